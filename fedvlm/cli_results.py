"""What a finished run shows and writes: the final table and the numbers of ``results.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from yacs.config import CfgNode

from fedvlm.cli_record import summary
from fedvlm.console_log import Headline
from fedvlm.evaluation.others import TARGET

SHOWN = (
    "personal", "personal_before_ft", "personal_worst", "global", "base_all", "base_other", "new",
    "hm2", "hm3", "cm", "unseen", "unseen_personal", "targets",
)
FEW = 4  # targets with a column each; of more, the table on the screen has the mean only


def conclude(
    cfg: CfgNode, reference: Mapping[str, Any] | None, records: Sequence[Mapping[str, Any]],
    name: str,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the final table and the numbers of ``results.json`` from the rounds' records.

    The last round is the headline. With ``TEST.SELECT val`` the round with the best validation
    accuracy (the earliest of equals) stands beside it; the test set chooses nothing.
    """
    start, last = records[0], records[-1]
    rows = {"zero-shot (template)": reference} if reference else {}
    rows["untrained start"] = start
    kept = {key: value for key, value in last.items() if key != "similarity"}  # K x K: long
    results: dict[str, Any] = {"untrained": summary(start), "last": kept}
    if reference:  # a backbone without text tower has none
        results["zero_shot"] = summary(reference)
    if cfg.TEST.SELECT == "val":
        known = [r for r in records if r.get("val") is not None and "personal" in r]
        best = max(known, key=lambda r: (r["val"], -r["round"]))
        rows[f"round {best['round']} (best on val)"] = best
        results["selected"] = summary(best) | {"round": best["round"], "val": best["val"]}
    rows[f"{name}, round {last['round']}"] = last
    targets = [name for name in last if name.startswith(TARGET)]
    shown = (*SHOWN, *(targets if len(targets) <= FEW else ()))
    table = [
        {"": label} | {k: row[k] for k in shown if k in last and k in row}
        for label, row in rows.items()
    ]
    return table, results


def headline(last: Mapping[str, Any]) -> Headline | None:
    """Return what ``log.txt`` ends with; None where no client has a test image."""
    if last["personal"] is None:
        return None
    clients = [c for c in last["clients"] if c["n"]]
    return Headline(
        sum(c["n"] for c in clients), sum(c["correct"] for c in clients), last["personal"],
        last["personal_macro_f1"],
    )
