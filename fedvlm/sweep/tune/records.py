"""What runs of trials scored, a sealed line each: the truth of a tuning.

Everything else follows from these lines: the same plan asks for the same trials again, finds them
here, and goes on where it stopped.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError, DivergedError
from fedvlm.runs.seal import seal_of
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.worker import Outcome

FILE, PACKED = "runs.jsonl", "tuning.jsonl.xz"  # in a tuning's folder; beside published results
LARGEST = 2**28  # bytes that a packed one may hold: a bomb is refused
# Exit codes that would be the same again, whatever the machine: done, diverged.
FINAL = (0, DivergedError.exit_code)


def ends_trial(code: int) -> bool:
    """Return whether an exit code says something of a trial, and nothing of its method.

    So do refusals of its config, and a kill (negative: for its time or its memory).
    """
    return code in FINAL or code == ConfigError.exit_code or code < 0


@dataclass(frozen=True)
class TrialScore:
    """Right answers on validation images, pooled over clients, sets and seeds.

    Attributes:
        groups: of each client of each run: (right, images).
    """

    groups: tuple[tuple[int, int], ...]

    @property
    def images(self) -> int:
        """How many images."""
        return sum(n for _, n in self.groups)

    @property
    def value(self) -> float:
        """Percent right."""
        return 100.0 * sum(right for right, _ in self.groups) / max(1, self.images)

    @property
    def error(self) -> float:
        """Standard error in percent, clients of runs being the units (ratio estimator)."""
        share = self.value / 100.0
        return _spread([right - share * n for right, n in self.groups], self.images)

    def behind(self, other: TrialScore) -> tuple[float, float]:
        """Return (other - self, its standard error) in percent, paired over the same units."""
        gap = other.value - self.value
        pairs = zip(self.groups, other.groups, strict=True)
        each = [b - a - gap / 100.0 * n for (a, n), (b, _) in pairs]
        return gap, _spread(each, self.images)


def _spread(rest: Sequence[float], images: int) -> float:
    """Return the standard error of a sum over units, in percent of ``images``."""
    units = len(rest)
    if units < 2 or not images:
        return math.nan
    return 100.0 * math.sqrt(units / (units - 1) * sum(r * r for r in rest)) / images


class TrialRecords:
    """The lines of ``runs.jsonl`` in a tuning's folder, by the digest of a run's config.

    A folder without it may have it packed, to be read only (``PACKED``).
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.lines: dict[str, dict[str, Any]] = {}
        self.damaged, self.cut = 0, False
        if self.path.exists():
            data = self.path.read_bytes()
        elif (folder / PACKED).is_file():
            self.path = folder / PACKED
            data = _unpacked(self.path)
        else:
            return
        for text in filter(None, data.splitlines()):
            line = _sealed_line(text)
            if line is None:
                self.damaged += 1
            else:
                self.lines[str(line["config"])] = line
        self.cut = bool(data) and not data.endswith(b"\n")

    @property
    def bare(self) -> int:
        """How many lines say nothing of their origin: older ones."""
        return sum("origin" not in line for line in self.lines.values())

    def strange(self, cell: Cell, today: Callable[[], Mapping[str, str]]) -> list[str]:
        """Return what of a line's origin is another now; such a line is forgotten.

        Args:
            today: gives the origin that a run of ``cell`` would have; asked only where a line has
                one.
        """
        line = self.lines.get(cell.digest, {})
        if "origin" not in line:
            return []
        now = today()
        keys = [key for key in now if line["origin"].get(key) != now[key]]
        if keys:
            del self.lines[cell.digest]
        return keys

    def mend(self) -> None:
        """End a line that a kill cut, so that the next one is whole; only under the lock."""
        if self.cut:
            files.append_line(self.path, "")
            self.cut = False

    def add(self, cell: Cell, trial: int, outcome: Outcome) -> dict[str, Any]:
        """Append what became of a run; return the line."""
        answer = outcome.answer or {}
        line: dict[str, Any] = {
            "config": cell.digest, "method": cell.method, "trial": trial, "dataset": cell.dataset,
            "seed": cell.seed, "code": outcome.code,
            "sentence": answer.get("diverged", outcome.sentence),
            "seconds": round(outcome.seconds, 3),
        } | {k: v for k, v in answer.items() if k != "diverged"}
        line = json.loads(json.dumps(line))  # pairs are lists, as they will be read
        line["seal"] = seal_of(line)
        if outcome.code in FINAL:
            files.append_line(self.path, json.dumps(line))
        self.lines[cell.digest] = line
        return line

    def of(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """Return the lines of those cells that have one that counts."""
        lines = (self.lines.get(cell.digest) for cell in cells)
        return [line for line in lines if line is not None]


def _unpacked(path: Path) -> bytes:
    try:
        worker = lzma.LZMADecompressor(memlimit=LARGEST)
        data = worker.decompress(path.read_bytes(), max_length=LARGEST)
        if not worker.eof or worker.unused_data:
            raise ValueError("it is truncated, too large, or has data after its end")
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise DataError(f"{path}: is not a packed record of a tuning ({error}); copy "
                        "it again") from error
    return data


def _sealed_line(text: bytes) -> dict[str, Any] | None:
    """Return a line that is whole; None where it was cut or changed, or is no run's."""
    try:
        line = json.loads(text)
        right = line["seal"] == seal_of(line) and isinstance(line["config"], str)
        right = right and isinstance(line.get("code", 0), int) and float(line["seconds"]) >= 0
        counts = [n for pair in line.get("clients", ()) for n in (pair[0], pair[1])]
        return dict(line) if right and all(isinstance(n, int) for n in counts) else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError,
            RecursionError):
        return None


def pool_scores(lines: Iterable[Mapping[str, Any]]) -> TrialScore:
    """Return the score of runs."""
    return TrialScore(tuple((int(right), int(n)) for line in lines for right, n in line["clients"]))


def join_scores(parts: Iterable[TrialScore]) -> TrialScore:
    """Return the score of several groups of runs together."""
    return TrialScore(tuple(group for part in parts for group in part.groups))
