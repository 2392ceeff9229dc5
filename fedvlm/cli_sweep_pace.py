"""How long the rest of a sweep takes, from seconds measured before; unknown where nothing was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedvlm.cli_sweep_cells import Cell
from fedvlm.run_identity import read_results


class Pace:
    """Seconds of finished cells; a cell is judged by those of its data set and method.

    Where a method has not run on a data set yet, the data set's mean stands in, times the method's
    mean ratio to it on the others.
    """

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, dataset: str, method: str, seconds: float) -> None:
        """Take one measurement."""
        self.seconds[dataset, method].append(seconds)

    def known(self, records: Iterable[Mapping[str, Any]], cells: Sequence[Cell]) -> None:
        """Take the journal's whole attempts; of cells that it lacks, what their results say."""
        mine = {(c.key, c.digest): c for c in cells}
        for record in records:
            cell = mine.pop((record["cell"], record["config"]), None)
            if record["code"] == 0 and cell is not None:
                self.add(cell.dataset, cell.method, float(record["seconds"]))
        for cell in mine.values():
            results = read_results(cell.folder / "results.json")
            spent = (results or {}).get("run_info", {}).get("seconds_this_session")
            if isinstance(spent, int | float):
                self.add(cell.dataset, cell.method, float(spent))

    def of(self, cell: Cell) -> float | None:
        """Return the seconds that a cell should take; None where nothing comparable has run."""
        own = self.seconds.get((cell.dataset, cell.method))
        if own:
            return sum(own) / len(own)
        mean = self._mean(cell.dataset)
        if mean is None:
            return None
        ratios = [
            sum(v) / len(v) / (self._mean(d) or 1.0)
            for (d, m), v in self.seconds.items() if m == cell.method and self._mean(d)
        ]
        return mean * (sum(ratios) / len(ratios) if ratios else 1.0)

    def left(self, cells: Iterable[Cell], jobs: int) -> tuple[float, int]:
        """Return (seconds for the cells that can be judged, number of those that cannot)."""
        found = [self.of(cell) for cell in cells]
        known = [s for s in found if s is not None]
        return sum(known) / max(1, min(jobs, len(found))), len(found) - len(known)

    def _mean(self, dataset: str) -> float | None:
        means = [sum(v) / len(v) for (d, _), v in self.seconds.items() if d == dataset]
        return sum(means) / len(means) if means else None
