"""Subscribes to the round loop: evaluates, writes metrics and state, tells console and log.

What a finished run shows and writes: the final table and the numbers of ``results.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from yacs.config import CfgNode

from fedvlm.console.log import Headline
from fedvlm.console.rows import ClientRow, RoundRow
from fedvlm.evaluation import Evaluator
from fedvlm.evaluation.scores import TARGET
from fedvlm.federation.rounds import Event, FedState, RoundFinished, RoundStarted
from fedvlm.job import similarity as cli_similarity
from fedvlm.job.build import Built
from fedvlm.runs.folder import RunFolder

METRICS = (
    "personal", "personal_std", "personal_worst", "personal_worst_decile", "personal_micro",
    "personal_macro_f1", "global", "global_macro_f1", "base_all", "base_other", "new", "hm2",
    "hm3", "cm", "personal_before_ft", "unseen", "unseen_personal", "targets",
)


class Screen(Protocol):
    """What ``Console`` and ``LogFile`` have in common."""

    def round_started(self, round_: int, cids: Sequence[int]) -> None:
        """Show who works."""

    def round_finished(self, row: RoundRow) -> None:
        """Show a finished round."""


def make_evaluator(built: Built, **options: Any) -> Evaluator:
    """Return the evaluator of a run on its test splits.

    Selection by validation may name any round, so then every round has its test numbers.
    """
    cfg = built.cfg
    every = 1 if cfg.TEST.SELECT == "val" else int(cfg.TEST.EVAL_EVERY)
    return Evaluator(
        built.model, built.federation.trainer, built.test, built.data,
        every=every, batch_size=int(cfg.DATALOADER.TEST.BATCH_SIZE), **options,
    )


def validation_evaluator(built: Built) -> Evaluator:
    """Return an evaluator whose test splits are the clients' validation splits."""
    clients = [replace(c, test=c.val) for c in built.data.clients]
    pooled = np.unique(np.concatenate([c.val for c in built.data.clients]))
    data = replace(
        built.data, clients=clients, global_test=pooled, new_classnames=[], others=[]
    )
    return Evaluator(
        built.model, built.federation.trainer, built.test, data, every=1,
        batch_size=int(built.cfg.DATALOADER.TEST.BATCH_SIZE), cross=False,
    )


class Recorder:
    """Order per round: evaluate, append metrics, save the state; a kill in between repeats it.

    Args:
        state: what the run goes on from; None for its beginning.
        sinks: get each round's record (``cli_sinks.Sinks``).
    """

    def __init__(
        self, built: Built, folder: RunFolder, screens: Sequence[Screen],
        state: FedState | None = None, sinks: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.sinks = sinks or (lambda record: None)
        self.built, self.folder, self.screens = built, folder, screens
        self.before = state.server if state else {}  # what the next round's clients start from
        self.evaluator = make_evaluator(built, keep_logits=bool(built.cfg.TEST.KEEP_LOGITS))
        by_validation = built.cfg.TEST.SELECT == "val"
        self.validation = validation_evaluator(built) if by_validation else None
        self.last: dict[int, ClientRow] = {}

    def __call__(self, event: Event) -> None:
        """See the class."""
        if isinstance(event, RoundStarted):
            for screen in self.screens:
                screen.round_started(event.round, event.clients)
            return
        found = self.evaluator(event)
        record = round_record(event) | (found or {})
        if cli_similarity.wanted(event):
            alike = cli_similarity.similarity(event, self.before)
            record |= {"similarity": alike} if alike else {}
        self.before = event.state.server
        if self.validation is not None:
            checked = self.validation(event)
            record["val"] = checked["personal"] if checked else None
        if self.evaluator.logits:
            self.folder.save_tensors("logits", self.evaluator.logits)
        self.folder.append_metrics(record)
        self.sinks(record)
        save(self.folder, event.state)
        row = self.row(event, found)
        for screen in self.screens:
            screen.round_finished(row)

    def row(self, event: RoundFinished, found: Mapping[str, Any] | None) -> RoundRow:
        """Return what the screen shows of a round."""
        accuracy = {c["client"]: c["accuracy"] for c in found["clients"]} if found else {}
        losses = {u.client: u.metrics.get("loss") for u in event.updates}
        rows = []
        for c, split in enumerate(self.built.data.clients):
            before = self.last.get(c)
            state = "dropped" if c in event.dropped else "trained" if c in losses else "absent"
            loss = losses.get(c, before.loss if before else None)
            known = accuracy.get(c, before.accuracy if before else None)
            rows.append(ClientRow(c, len(split.train), loss, known, state))
        self.last = {r.cid: r for r in rows}
        known_losses = [v for v in losses.values() if v is not None]
        shown = {"global": "global", "unseen": "unseen", "before fine-tuning": "personal_before_ft"}
        extra = {
            name: found[key] for name, key in shown.items() if found and found.get(key) is not None
        }
        return RoundRow(
            event.round, event.seconds,
            sum(known_losses) / len(known_losses) if known_losses else None,
            found["personal"] if found else None, found["personal_worst"] if found else None,
            total(event.bytes_up) + total(event.bytes_down), rows, extra,
        )


def save(folder: RunFolder, state: FedState) -> None:
    """Write the state after a round."""
    folder.save_state(state.round, state.server, state.clients)


def total(traffic: Mapping[int, Mapping[str, int]]) -> int:
    """Return all bytes of a round."""
    return sum(sum(tensors.values()) for tensors in traffic.values())


def by_tensor(traffic: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """Return a round's bytes by tensor, all clients together."""
    names = {name for tensors in traffic.values() for name in tensors}
    return {
        name: sum(tensors.get(name, 0) for tensors in traffic.values()) for name in sorted(names)
    }


def round_record(event: RoundFinished) -> dict[str, Any]:
    """Return a round's line of ``metrics.jsonl`` without its evaluation."""
    return {
        "round": event.round,
        "seconds": event.seconds,
        "participants": sorted(u.client for u in event.updates),
        "dropped": {str(c): why for c, why in event.dropped.items()},
        "train": {str(u.client): u.metrics for u in event.updates},
        "bytes_up": {str(c): sum(sent.values()) for c, sent in event.bytes_up.items()},
        "bytes_down": {str(c): sum(got.values()) for c, got in event.bytes_down.items()},
        "bytes_up_by_tensor": by_tensor(event.bytes_up),
        "bytes_down_by_tensor": by_tensor(event.bytes_down),
        "counters": dict(event.counters),
        "aggregation": event.report,
    } | ({"finetune": event.finetuning} if event.finetuning else {})


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named numbers of a round's record or of a reference row."""
    targets = [name for name in record if name.startswith(TARGET)]
    return {name: record[name] for name in (*METRICS, *targets) if name in record}


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
