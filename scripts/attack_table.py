"""Write the tables of ``docs/attacks.md``: accuracy of honest clients by attack and rule.

    python scripts/attack_table.py output/attacks docs/attacks.md [--add]
    python scripts/attack_table.py output/attacks_more docs/attacks.md
    python scripts/attack_table.py output/attacks_backdoor docs/attacks.md

Reads the finished runs of ``configs/sweeps/attacks.yaml``, of ``attacks_more.yaml`` (one table
of all its methods, under a mark of its own), or of ``attacks_backdoor.yaml`` (how often the trigger
succeeds at the honest clients, untrained and by rule, and their accuracy). A number is the mean
over seeds of the mean accuracy of the clients that are not drawn as hostile (also in runs
without attackers, so that all numbers are of the same clients); the interval is Student's, 95 %,
over three seeds or more. With ``--add`` numbers of the first table of which the folder has no run
stay.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scipy.stats import t as student

from fedvlm.core.stats import mean, sample_std
from fedvlm.federation.reliability.hostile import draw_hostile
from fedvlm.report.collect import collect
from fedvlm.runs.finished import FinishedRun

BEGIN, BEGIN_MORE, BEGIN_BACKDOOR, END = (
    "<!-- table -->", "<!-- more -->", "<!-- backdoor -->", "<!-- end -->")
SHARE = 0.3  # FED.HOSTILE of the plan
METHODS = {
    "head": "FedAvg, linear head", "prompt": "PromptFL", "fedtv": "FedTV",
    "lora": "FedAvg, LoRA of the text tower",
}
MORE = {
    "prox": "FedProx", "moon": "MOON", "fedper": "FedPer", "apfl": "APFL", "ditto": "Ditto",
    "fedclip": "FedCLIP", "kgcoop": "KgCoOp", "lg": "LG-FedAvg",
}
ATTACKS = {
    "none": "none", "sign": "sign", "scale": "scale (10)", "constant": "constant (1)",
    "alie": "alie (1.5)", "flip": "label_flip",
}
RULES = ("auto", "median", "trimmed_mean", "krum", "multi_krum", "clipped_mean", "geometric_median")
BACKDOOR_RULES = tuple(rule for rule in RULES if rule not in ("trimmed_mean", "krum"))
Cells = Mapping[tuple[str, str, str], Sequence[float]]


def honest(run: FinishedRun, name: str = "accuracy", at: int = -1) -> float:
    """Return a number's mean over the clients that are, or would be, honest.

    Args:
        name: of the clients' rows; those without it do not count.
        at: the round; -1: the last.
    """
    rows = run.rounds()[at]["clients"]
    seed = int(run.protocol["seed"])
    bad = draw_hostile(SHARE, [row["client"] for row in rows], seed)
    found = mean(r[name] for r in rows if r["client"] not in bad and r.get(name) is not None)
    if found is None:
        raise SystemExit(f"{run.path}: no honest client has '{name}'")
    return found


def cells(
    folder: Path, measure: Callable[[FinishedRun], float] = honest
) -> tuple[Cells, float]:
    """Return the numbers of each (method, attack, rule), and all runs' seconds."""
    found, seconds = defaultdict(list), 0.0
    for run in collect([folder]).runs:
        config = run.identity_config()
        method, _, attack = str(run.protocol["tag"]).partition("-")
        attack = re.split(r"[-_,]", attack)[0]
        rule = str(config.get("FED.AGGREGATOR", "auto"))
        found[method, attack, rule].append(measure(run))
        seconds += float(run.results["spent"]["seconds"])
    return found, seconds


def number(values: Sequence[float]) -> str:
    """Return mean and half the width of the interval; of fewer than three seeds their number."""
    if len(values) < 3:
        return f"{mean(values):.1f} ({len(values)})"
    half = student.ppf(0.975, len(values) - 1) * sample_std(values) / len(values) ** 0.5
    return f"{mean(values):.1f} ± {half:.1f}"


def lines(
    found: Cells, seconds: float, old: Mapping[tuple[str, ...], str] = MappingProxyType({})
) -> list[str]:
    """Return the tables; a cell without a run has its ``old`` number (``rows_of``), or none.

    An attack without any number has no row.
    """
    out, kept = [], 0
    for method, title in METHODS.items():
        out += ["", f"**{title}**", "", f"| attack | {' | '.join(RULES)} |",
                f"|---{'|---:' * len(RULES)}|"]
        for attack, label in ATTACKS.items():
            row = []
            for rule in RULES:
                values = found.get((method, attack, rule), ())
                before = old.get((title, label, rule), "")
                row.append(number(values) if values else before)
                kept += not values and before != ""
            out += [f"| {label} | {' | '.join(row)} |"] if any(row) else []
    out += cost(found, seconds)
    if kept:
        out[-1] += f" Numbers of {kept} cells are of earlier runs."
    return out


def rows_of(page: str, names: int = 2, begin: str = BEGIN) -> dict[tuple[str, ...], str]:
    """Return the numbers of a page's tables: (title, words of the row, column) -> number.

    Args:
        names: first columns, which are the words of a row.
        begin: mark of the tables.
    """
    out, title, heads = dict[tuple[str, ...], str](), "", list[str]()
    for line in page.partition(begin)[2].partition(END)[0].splitlines():
        row = [part.strip() for part in line.strip("|").split("|")]
        if line.startswith("**"):
            title, heads = line.partition("**:")[0].strip("*"), []
        elif line.startswith("| ") and not heads:
            heads = row
        elif line.startswith("| "):
            out |= {(title, *row[:names], head): value
                    for head, value in zip(heads[names:], row[names:], strict=True)
                    if value not in ("", "missing")}
    return out


def lines_more(found: Cells, seconds: float) -> list[str]:
    """Return the table of the other methods: without and with scaled updates, by two rules."""
    pairs = [(attack, rule) for attack in ("none", "scale") for rule in ("auto", "multi_krum")]
    out = ["", f"| method | {' | '.join(f'{ATTACKS[a]}, {r}' for a, r in pairs)} |",
           f"|---{'|---:' * len(pairs)}|"]
    for method, title in MORE.items():
        row = [found.get((method, *pair), ()) for pair in pairs]
        out.append(f"| {title} | {' | '.join(number(v) if v else '' for v in row)} |")
    return [*out, *cost(found, seconds)]


def lines_backdoor(folder: Path) -> list[str]:
    """Return the tables of the backdoor: success of the trigger, and accuracy."""
    trigger = partial(honest, name="backdoor")
    (hits, _), (first, _), (right, seconds) = (
        cells(folder, measure) for measure in (trigger, partial(trigger, at=0), honest))
    head = [f"| method | {{}}{' | '.join(BACKDOOR_RULES)} |",
            f"|---|{{}}{'---:|' * len(BACKDOOR_RULES)}"]
    out = []
    for title, found, start in (
        ("The trigger succeeds, %", hits, first), ("Accuracy of honest clients, %", right, None),
    ):
        out += ["", f"**{title}**", "", head[0].format("untrained | " if start else ""),
                head[1].format("---:|" if start else "")]
        for method, name in METHODS.items():
            row = [number(found[method, "backdoor", rule]) for rule in BACKDOOR_RULES]
            row[:0] = [number(start[method, "backdoor", BACKDOOR_RULES[0]])] if start else []
            out.append(f"| {name} | {' | '.join(row)} |")
    return [*out, *cost(right, seconds)]


def cost(found: Cells, seconds: float) -> list[str]:
    """Return how many runs there were, and how long their rounds took."""
    return ["", f"{sum(map(len, found.values()))} runs, {seconds / 3600:.2f} hours of rounds."]


def rewrite(page: str, table: Sequence[str], begin: str = BEGIN) -> None:
    """Write the lines between a page's mark and the next end anew."""
    path = Path(page)
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    text = "\n".join(table)
    path.write_text(f"{before}{begin}\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    found, seconds = cells(Path(sys.argv[1]))
    if any(attack == "backdoor" for _, attack, _ in found):
        rewrite(sys.argv[2], lines_backdoor(Path(sys.argv[1])), BEGIN_BACKDOOR)
    elif any(method in MORE for method, _, _ in found):
        rewrite(sys.argv[2], lines_more(found, seconds), BEGIN_MORE)
    else:
        page = Path(sys.argv[2]).read_text(encoding="utf-8")
        old = rows_of(page, 1) if sys.argv[3:] == ["--add"] else {}
        rewrite(sys.argv[2], lines(found, seconds, old))
