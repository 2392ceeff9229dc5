"""Why the map's gains are larger than those of runs: the same heads, dealt as in runs.

The map draws each image by its client's class shares, so a client may lack classes that it should
have; runs deal whole numbers of images.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from evidence.map.cell import ALONE, SHARING, TOGETHER, Cell, fit
from evidence.map.deal import EVEN, TWO, Held, Labels, deal, skew_words
from evidence.map.images import SHIFTED, Features, read_features
from fedvlm.data.partition.kinds import candidates, make_partition, shots_per_client
from fedvlm.data.partition.spec import ImagePool, PartitionSpec
from fedvlm.report.tables.papers import dataset_name

FILE = "dealt.csv"
CLIENTS, IMAGES = 10, 10  # the one size that the map and the plans of runs have in common
SKEWS = (TWO, "0.3", "1", EVEN)  # and their label skews
DRAWN, RUNS = "drawn", "as runs"  # ways of dealing
COLUMNS = ("set", "skew", "dealing", "draws", "lacking", ALONE, TOGETHER)
LIKE_EVEN = 1000.0  # concentration that the plans of runs have for "all classes evenly"
Row = dict[str, Any]


def as_runs(data: Features, skew: str, seed: int) -> list[Held]:
    """Return clients as the plans of runs deal them, tested in the class shares of their tests."""
    pool = ImagePool({"train": data.train.labels, "val": data.val.labels,
                      "test": data.test.labels}, data.classes)
    if skew == TWO:
        dealt = shots_per_client(pool, PartitionSpec(
            "n_classes", CLIENTS, seed, classes_per_client=2, shots=IMAGES // 2))
    else:
        spec = PartitionSpec(
            "dirichlet", CLIENTS, seed, beta=LIKE_EVEN if skew == EVEN else float(skew),
            shots=CLIENTS * IMAGES // data.classes)
        some = candidates(pool, pool, spec)
        dealt = make_partition(pool.select(some), spec).translate(some)
    out = []
    for train, val, test in zip(dealt.train, dealt.val, dealt.test, strict=True):
        counts = np.bincount(data.test.labels[test], minlength=data.classes)
        out.append(Held(counts / counts.sum(), train, val if len(val) else _any_val(data, train)))
    return out


def _any_val(data: Features, train: Labels) -> Labels:
    """Return a validation image of the commonest class of a client that has got none."""
    label = np.bincount(data.train.labels[train]).argmax()
    return np.flatnonzero(data.val.labels == label)[:1]


def lacking(data: Features, held: Sequence[Held]) -> float:
    """Return of how many classes a client has no training image, in the mean over clients.

    Of those that half an image or more is its share of.
    """
    return fmean(float(((one.shares * IMAGES >= 0.5) & (np.bincount(
        data.train.labels[one.train], minlength=data.classes) == 0)).sum()) for one in held)


def write_dealt(runs: Path, into: Path, draws: int) -> None:
    """Measure, for each set that the plans of runs have, each skew and dealing; write ``FILE``."""
    rows = [_row(data, skew, way, draws) for data in (read_features(n, runs) for n in SHIFTED)
            for skew in SKEWS for way in WAYS]
    with (into / FILE).open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows([f"{v:.2f}" if isinstance(v, float) else v for v in row.values()]
                      for row in rows)


def read_dealt(folder: Path) -> list[Row]:
    """Return the rows of ``FILE``; none where it is not there."""
    path = folder / FILE
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: text if name in COLUMNS[:3] else float(text) for name, text in row.items()}
                for row in csv.DictReader(file)]


def dealing_line(rows: Sequence[Row]) -> str:
    """Return in a sentence how much larger the map's gains are than with the rules of runs."""
    drawn, runs = (_mean([row for row in rows if row["skew"] == EVEN], way) for way in WAYS)
    if not drawn or not runs:
        return ""
    return (f"The map's gains are larger than those of runs. Its images are drawn by chance: of "
            f"{IMAGES} images of all classes evenly a client lacks {drawn['lacking']:.1f} classes. "
            f"Dealt as in runs, {CLIENTS} such clients gain {_points(runs):+.1f} instead of "
            f"{_points(drawn):+.1f}.")


def dealing_words(rows: Sequence[Row]) -> str:
    """Return what the rules of runs change, in sentences and a table; '' of none."""
    if not rows:
        return ""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    lines = ["| classes of the clients | classes that a client lacks: map, runs | alone: map "
             "| dealt as in runs | gain: map | dealt as in runs |", "|---|" + "---:|" * 5]
    less = []
    for skew in SKEWS:
        drawn, runs = (_mean([r for r in rows if r["skew"] == skew], way) for way in WAYS)
        if not drawn or not runs:
            continue
        less.append(_points(drawn) - _points(runs))
        lines.append(
            f"| {skew_words(skew)} | {drawn['lacking']:.1f}, {runs['lacking']:.1f} | "
            f"{drawn[ALONE]:.1f} | {runs[ALONE]:.1f} | {_points(drawn):+.1f} | "
            f"{_points(runs):+.1f} |")
    draws = max(int(row["draws"]) for row in rows)
    return "\n".join((
        "The map draws each image of a client by chance, with the client's class shares: a client "
        "lacks classes on which it is tested. Runs deal each class in whole numbers.",
        f"The same heads for {CLIENTS} clients with {IMAGES} images each (mean of "
        f"{' and '.join(dataset_name(name) for name in sets)}, {draws} draws of each), dealt both "
        "ways:", "", *lines, "",
        f"Dealt as in runs the gain is {min(less):.1f} to {max(less):.1f} points smaller."))


def _mean(rows: Sequence[Row], way: str) -> Row:
    """Return the mean over sets of the numbers of one way of dealing; {} of none."""
    some = [row for row in rows if row["dealing"] == way]
    return {name: fmean(row[name] for row in some) for name in COLUMNS[4:]} if some else {}


def _points(row: Row) -> float:
    return float(row[TOGETHER] - row[ALONE])


def _row(data: Features, skew: str, way: str, draws: int) -> Row:
    found = []
    for seed in range(1, draws + 1):
        held = WAYS[way](data, skew, seed)
        cell = Cell(data, held)
        scores = fit(cell)
        best = max(SHARING, key=lambda name: float(scores[name].val.mean()))
        found.append((lacking(data, held), float(scores[ALONE].clients.mean()),
                      float(scores[best].clients.mean())))
    means = map(fmean, zip(*found, strict=True))
    return dict(zip(COLUMNS, (data.name, skew, way, draws, *means), strict=True))


WAYS: dict[str, Callable[[Features, str, int], list[Held]]] = {
    DRAWN: lambda data, skew, seed: deal(data, CLIENTS, IMAGES, skew, False, seed),
    RUNS: as_runs}
