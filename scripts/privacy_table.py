"""Write the table of ``docs/private_accuracy.md``: accuracy by method, clients, unit and epsilon.

    python scripts/privacy_table.py output/privacy docs/private_accuracy.md

Reads the finished runs of ``configs/sweeps/privacy.yaml``. A number is the mean over seeds of
``personal`` after the last round, with Student's 95 % interval where there are three seeds, else
with the number of seeds; a cell without a run is "missing". A page that has a number in a cell of
which the folder has no run is left as it is, with a sentence: give the folder that has all runs,
or ``--add`` as a third word: then these numbers stay.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fedvlm.report.collect import collect
from scripts.attack_table import BEGIN, number, rewrite, rows_of

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


def write(page: Path, found: Cells, seconds: float, *, add: bool = False) -> None:
    """Write the tables into a page.

    Args:
        page: with the marks of the table.
        found: numbers of each cell.
        seconds: of all runs.
        add: numbers of which there is no run stay.

    Raises:
        SystemExit: the page has such numbers, without ``add``; it is left as it is.
    """
    old = rows_of(page.read_text(encoding="utf-8"))
    new = lines(found, seconds, old if add else {})
    lost = sorted(old.keys() - rows_of("\n".join([BEGIN, *new])))
    if lost:
        method, unit, clients, column = lost[0]
        raise SystemExit(
            f"{page} is left as it is: it has numbers of {len(lost)} cells of which the folder has "
            f"no run ({method}, {unit}, {clients} clients, {column} first); give the folder that "
            "has all runs of configs/sweeps/privacy.yaml")
    rewrite(str(page), new)


def lines(found: Cells, seconds: float, old: Mapping[tuple[str, ...], str]) -> list[str]:
    """Return the tables; a cell without a run has its ``old`` number, else "missing"."""
    out, missing, kept = [], 0, 0
    for method, title in METHODS.items():
        columns = dict(zip(EPSILONS, ("no privacy", *(f"epsilon {e}" for e in EPSILONS[1:])),
                           strict=True))
        rows = []
        for (unit, words), clients in itertools.product(UNITS.items(), CLIENTS):
            row = []
            for e, column in columns.items():
                values = found.get((method, clients, "none" if e == "none" else unit, e), ())
                before = old.get((title, words, str(clients), column), "missing")
                row.append(number(values) if values else before)
                missing += row[-1] == "missing"
                kept += not values and row[-1] != "missing"
            rows.append(f"| {words} | {clients} | {' | '.join(row)} |")
        if all(row.count("missing") == len(columns) for row in rows):
            out += ["", f"**{title}**: not run."]
            continue
        out += ["", f"**{title}**", "", f"| hides | clients | {' | '.join(columns.values())} |",
                f"|---|---:{'|---:' * len(columns)}|", *rows]
    count = sum(map(len, found.values()))
    more = f" Numbers of {kept} cells are of earlier runs." if kept else ""
    return [*out, "", f"{count} runs, {seconds / 3600:.2f} hours of rounds.{more} A number in "
            "brackets is the number of seeds, where there are fewer than three; "
            f"{missing} cells are missing."]


if __name__ == "__main__":
    write(Path(sys.argv[2]), *cells(Path(sys.argv[1])), add=sys.argv[3:] == ["--add"])
