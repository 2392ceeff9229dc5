"""The runs that are compared: one at or below a folder, or all finished ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.report.collect import collect
from fedvlm.runs.verify.parting import Side, read_side


def find_side(folder: Path) -> Side:
    """Read the one run at or below ``folder``, finished or not.

    Raises:
        ConfigError: several runs lie there.
        DataError: none does, or what lies there cannot be read.
    """
    below = collect([folder])
    paths = [run.path for run in below.runs] + below.unfinished
    if not paths:
        raise DataError(
            below.problems[0] if below.problems else
            f"no run in {folder}; give a folder with manifest.json, as `results:` names it at the "
            "end of a run"
        )
    count = len(paths) + len(below.problems)
    if count > 1:
        raise ConfigError(
            f"{folder} holds {count} runs, the first in {paths[0]}; name one of them, or compare "
            "two folders of seeds with --over-seeds"
        )
    return read_side(paths[0], below.runs[0] if below.runs else None)


def find_sides(folder: Path) -> list[Side]:
    """Read all finished runs below ``folder``.

    Raises:
        DataError: there is none.
    """
    below = collect([folder])
    if not below.runs:
        why = "; ".join([*below.problems[:1], f"{len(below.unfinished)} unfinished"])
        raise DataError(f"no finished run below {folder} ({why}); --over-seeds wants one per seed")
    left = [f"{path} is unfinished and left out" for path in below.unfinished] + below.problems
    first, *others = [read_side(run.path, run) for run in below.runs]
    return [replace(first, notes=(*first.notes, *left)), *others]
