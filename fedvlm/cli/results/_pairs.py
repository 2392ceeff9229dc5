"""Two runs compared, for the verbs that do so: table --paired, compare, verify --against."""

from __future__ import annotations

from collections.abc import Sequence

from fedvlm.console.rows import one_line
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import run_folders
from fedvlm.report.compare.runs import compare_runs, compare_seeds, find_side, find_sides
from fedvlm.report.compare.text import PAIR_FORMATS
from fedvlm.runs.verify.parting import (
    find_differences,
    find_partings,
    rounds_lines,
    settings_lines,
)


def print_pairs(words: str, folders: Sequence[str], over_seeds: bool, form: str) -> int:
    """Print settings that differ, paired differences, and where two runs part.

    Args:
        words: verb and flags, for an error.
        over_seeds: whether each folder holds a run per seed.
        form: one of ``PAIR_FORMATS``.

    Raises:
        ConfigError: not two folders, several runs in one, or seeds that do not pair.
        DataError: no run there, or it cannot be read.
    """
    if len(folders) != 2:
        raise ConfigError(
            f"{words} needs two folders, got {len(folders)}: fedvlm {words} RUN_A RUN_B")
    a, b = run_folders(folders)
    seen = compare_seeds(find_sides(a), find_sides(b)) if over_seeds else \
        compare_runs(find_side(a), find_side(b))
    say(*PAIR_FORMATS[form](seen).rstrip("\n").splitlines())
    return 0


def parting_lines(folders: Sequence[str]) -> list[str]:
    """Return what differs between two runs in their settings, and where their rounds part.

    Raises:
        ConfigError: several runs in a folder.
        DataError: no run there, or it cannot be read.
    """
    a, b = (find_side(folder) for folder in run_folders(folders))
    differing = find_differences(a, b)
    rounds = rounds_lines(a, b, find_partings(a, b), differing)
    notes = [f"{letter}: {note}" for letter, one in (("A", a), ("B", b)) for note in one.notes]
    heads = {f"A: {a.path}": (), f"B: {b.path}": notes, "settings, A -> B":
             settings_lines(differing), "first round that differs": rounds}
    return [line for head, lines in heads.items()
            for line in (one_line(head), *(f"  {one_line(text)}" for text in lines))]
