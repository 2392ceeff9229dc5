"""Write the table of ``docs/private_accuracy.md``: accuracy by method, clients, unit and epsilon.

    python scripts/privacy_table.py output/privacy docs/private_accuracy.md

Reads the finished runs of ``configs/sweeps/privacy.yaml``. A number is the mean over seeds of
``personal`` after the last round, with Student's 95 % interval where there are three seeds, else
with the number of seeds; a cell without a run is "missing".
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fedvlm.report.collect import collect
from scripts.attack_table import number, rewrite

METHODS = {
    "head": "FedAvg, linear head", "ditto": "Ditto, linear head", "prompt": "PromptFL",
    "fedtv": "FedTV",
}
CLIENTS, EPSILONS = (10, 50, 100), ("none", "8", "3", "1")
UNITS = {"client": "one client", "image": "one image"}
Cells = Mapping[tuple[str, int, str, str], Sequence[float]]


def cells(folder: Path) -> tuple[Cells, float]:
    """Return the numbers of each (method, clients, unit, epsilon), and all runs' seconds.

    Without privacy unit and epsilon are ``none``.
    """
    found, seconds = defaultdict(list), 0.0
    for run in collect([folder]).runs:
        method, unit, epsilon = str(run.protocol["tag"]).split("-")[:3]
        epsilon = "none" if unit == "none" else epsilon
        clients = len(run.results["last"]["clients"])
        found[method, clients, unit, epsilon].append(float(run.results["last"]["personal"]))
        seconds += float(run.results["spent"]["seconds"])
    return found, seconds


def lines(found: Cells, seconds: float) -> list[str]:
    """Return the tables."""
    out, missing = [], 0
    for method, title in METHODS.items():
        if not any(key[0] == method for key in found):
            missing += len(UNITS) * len(CLIENTS) * len(EPSILONS)
            out += ["", f"**{title}**: not run."]
            continue
        heads = ["no privacy", *(f"epsilon {e}" for e in EPSILONS[1:])]
        out += ["", f"**{title}**", "", f"| hides | clients | {' | '.join(heads)} |",
                f"|---|---:{'|---:' * len(heads)}|"]
        for unit, words in UNITS.items():
            for clients in CLIENTS:
                row = [found.get((method, clients, "none" if e == "none" else unit, e), ())
                       for e in EPSILONS]
                missing += sum(not values for values in row)
                told = " | ".join(number(v) if v else "missing" for v in row)
                out.append(f"| {words} | {clients} | {told} |")
    count = sum(map(len, found.values()))
    return [*out, "", f"{count} runs, {seconds / 3600:.2f} hours of rounds. A number in brackets "
            f"is the number of seeds, where there are fewer than three; {missing} cells are "
            "missing."]


if __name__ == "__main__":
    rewrite(sys.argv[2], lines(*cells(Path(sys.argv[1]))))
