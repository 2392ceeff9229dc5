"""Further axes of the map in words: poor beside rich clients, few in a round, clients that come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from statistics import fmean

from evidence.map.images import SETS
from evidence.methods.runs import Row
from fedvlm.report.tables.papers import dataset_name

AXES = ("map-axes", "map-new-clients", "map-unseen")
MIDDLE, POOR, ROUND, LATER = ("middle", "poor beside rich", "two clients in a round",
                              "three new clients")
NAMES = {short: dataset_name(name) for name, short in SETS.items()}


def axes_words(rows: Sequence[Row]) -> str:
    """Return what the cases show, a paragraph each, the best method first; '' of none."""
    return "\n\n".join(filter(None, (_poor(rows), _rounds(rows), _later(rows))))


def by_method(
    rows: Sequence[Row], case: str, value: Callable[[Row], float | None]
) -> dict[str, float]:
    """Return the mean over sets of the means over seeds, of methods that have all sets, best first.

    Args:
        value: of a run; None where it has none.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        number = value(row)
        if row["plan"] in AXES and row["case"] == case and number is not None:
            found.setdefault((row["method"], row["set"]), []).append(number)
    sets = {name for _, name in found}
    means = {m: fmean(fmean(found[m, s]) for s in sets)
             for m in dict.fromkeys(m for m, _ in found) if all((m, s) in found for s in sets)}
    return dict(sorted(means.items(), key=lambda pair: -pair[1]))


def gain(row: Row, what: str = "personal", alone: str = "alone") -> float | None:
    """Return a run's gain above alone; None where either is not known."""
    pair = (row[what], row[alone])
    return None if None in pair else pair[0] - pair[1]


def _poor(rows: Sequence[Row]) -> str:
    poor = by_method(rows, POOR, lambda row: gain(row, "poor", "poor_alone"))
    rich = by_method(rows, POOR, lambda row: gain(row, "rich", "rich_alone"))
    if not poor:
        return ""
    alone = [next(iter(by_method(rows, POOR, itemgetter(who)).values()))
             for who in ("poor_alone", "rich_alone")]
    lines = ["| method | gain of the poorest third | gain of the richest third |",
             "|---|---:|---:|",
             *(f"| {method} | {value:+.1f} | {rich[method]:+.1f} |"
               for method, value in poor.items())]
    lose = [m for m in rich if rich[m] < 0]
    return "\n".join([
        "**Poor beside rich.** All classes evenly, sizes drawn with Dirichlet 0.3: compare these "
        "rows with no others.",
        f"Alone the third of the clients with the fewest test images reaches {alone[0]:.1f} %, "
        f"that with the most {alone[1]:.1f} %. With {next(iter(poor))} the poor gain "
        f"{next(iter(poor.values())):+.1f} points and the rich {rich[next(iter(poor))]:+.1f}; "
        + (f"the rich lose with {' and '.join(lose)}." if lose else "the rich lose with none.")
        + " Each client's gain is above the baseline that is best over all of them.", "", *lines])


def _rounds(rows: Sequence[Row]) -> str:
    few, every = by_method(rows, ROUND, gain), by_method(rows, MIDDLE, gain)
    both = [f"{m} {value:+.1f} ({every[m]:+.1f})" for m, value in few.items() if m in every]
    return ("**Two of ten clients in a round** (in brackets: all ten), gain in points: "
            f"{', '.join(both)}.") if both else ""


def _later(rows: Sequence[Row]) -> str:
    new, own = by_method(rows, LATER, lambda r: r["unseen_clients"]), by_method(rows, LATER, gain)
    if not new or not own:
        return ""
    top = next(iter(own))
    return ("**Clients that join after training** (three of ten, who get the trained model), "
            f"accuracy: {', '.join(f'{m} {value:.1f} %' for m, value in new.items())}. "
            f"{top}, the best for the clients that trained, reaches {new[top]:.1f} % there.")
