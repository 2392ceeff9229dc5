"""Write the table of ``docs/private_accuracy.md``: accuracy by method, clients, unit and epsilon.

    python scripts/privacy_table.py output/privacy docs/private_accuracy.md

Reads the finished runs of ``configs/sweeps/privacy.yaml``. A number is the mean over seeds of
``personal`` after the last round, with Student's 95 % interval where there are three seeds, else
with the number of seeds; a cell without a run is "missing". A page that has a number in a cell of
which the folder has no run is left as it is, with a sentence: give the folder that has all runs.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fedvlm.report.collect import collect
from scripts.attack_table import BEGIN, END, number, rewrite

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


def rows_of(page: str) -> set[tuple[str, ...]]:
    """Return (method, unit, clients, column) of every cell of a page's table that has a number."""
    out, title, heads = set(), "", list[str]()
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        if line.startswith("**"):
            title = line.partition("**:")[0].strip("*")
        if line.startswith("| hides"):
            heads = _parts(line)
        elif line.startswith("| one"):
            row = _parts(line)
            out |= {(title, *row[:2], head) for head, value in zip(heads[2:], row[2:], strict=True)
                    if value != "missing"}
    return out


def _parts(line: str) -> list[str]:
    return [part.strip() for part in line.strip("|").split("|")]


def write(page: Path, found: Cells, seconds: float) -> None:
    """Write the tables into a page.

    Raises:
        SystemExit: the page has numbers of which there is no run; it is left as it is.
    """
    new = lines(found, seconds)
    old = rows_of(page.read_text(encoding="utf-8"))
    lost = sorted(old - rows_of("\n".join([BEGIN, *new])))
    if lost:
        method, unit, clients, column = lost[0]
        raise SystemExit(
            f"{page} is left as it is: it has numbers of {len(lost)} cells of which the folder has "
            f"no run ({method}, {unit}, {clients} clients, {column} first); give the folder that "
            "has all runs of configs/sweeps/privacy.yaml")
    rewrite(str(page), new)


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
    write(Path(sys.argv[2]), *cells(Path(sys.argv[1])))
