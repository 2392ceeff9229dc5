"""One bit of a run folder flips: what comes out is equal, or the file is named.

``python -m tests.attacks.test_flips`` prints the table of ``docs/seals.md``.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedvlm.runs.verify.check import inspect
from tests import jobs
from tests.attacks.forge import copy, flip, unfinish

FEW_UNFINISHED, FEW_FINISHED = range(3), range(60)
ALL_UNFINISHED, ALL_FINISHED = range(60), range(200)
PLACES = ("metrics.jsonl", "manifest.json", "state", "models", "results.json", "config.yaml",
          "partition", "log.txt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OUTPUT_DIR of an uninterrupted run of two rounds."""
    output = tmp_path_factory.mktemp("whole")
    assert jobs.run(output) == 0
    assert inspect(jobs.folder(output)).word == "ok"
    return output


def contents(path: Path) -> Any:
    """What a file says: JSON may be spaced otherwise, text that no code reads is not compared."""
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    return path.read_bytes()


def finished(whole: Path, place: Path, seed: int) -> tuple[str, str]:
    """Flip a bit of a finished folder: (the file, ``equal`` or ``refused``)."""
    folder = copy(jobs.folder(whole), place)
    name = flip(folder, seed)
    verdict = inspect(folder)
    if verdict.damage:
        said = " ".join(verdict.damage)
        assert Path(name).stem in said, (seed, name, said)
        outcome = "refused"
    else:
        assert contents(folder / name) == contents(jobs.folder(whole) / name), (seed, name)
        outcome = "equal"
    shutil.rmtree(folder)
    return name, outcome


def unfinished(whole: Path, place: Path, seed: int) -> tuple[str, str]:
    """Flip a bit of a folder left by a kill and run on: (the file, ``equal`` or ``refused``)."""
    folder = copy(jobs.folder(whole), place / jobs.folder(whole).relative_to(whole))
    unfinish(folder)
    name = flip(folder, seed)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = jobs.run(place)
    if code:
        assert code in (2, 3) and Path(name).name in said.getvalue(), (seed, name, said.getvalue())
        outcome = "refused"
    else:
        jobs.same(whole, place)
        assert jobs.results(place)["last"] | {"seconds": 0} == (
            jobs.results(whole)["last"] | {"seconds": 0}), (seed, name)
        for part in ("models/start.safetensors", "partition.json", "partition.csv"):
            there, ours = (root / part for root in (jobs.folder(whole), folder))
            assert there.read_bytes() == ours.read_bytes(), (seed, name)
        assert inspect(folder).word == "ok", (seed, name, inspect(folder))
        outcome = "equal"
    shutil.rmtree(place)
    return name, outcome


def table(outcomes: Iterable[tuple[str, str]]) -> list[str]:
    """Count outcomes by place."""
    counts: Counter[tuple[str, str]] = Counter()
    for name, outcome in outcomes:
        counts[next((p for p in PLACES if name.startswith(p)), name), outcome] += 1
    rows = [f"| {place} | {counts[place, 'equal']} | {counts[place, 'refused']} |"
            for place in PLACES if counts[place, "equal"] + counts[place, "refused"]]
    total = [sum(n for (_, o), n in counts.items() if o == word) for word in ("equal", "refused")]
    return [*rows, f"| all | {total[0]} | {total[1]} |"]


def test_a_flip_in_a_finished_folder_is_named_or_says_the_same(
    whole: Path, tmp_path: Path
) -> None:
    outcomes = {finished(whole, tmp_path / "run", seed)[1] for seed in FEW_FINISHED}
    assert outcomes >= {"refused"}


def test_a_flip_in_an_unfinished_folder_moves_no_number(whole: Path, tmp_path: Path) -> None:
    for seed in FEW_UNFINISHED:
        unfinished(whole, tmp_path / "output", seed)


def test_the_same_command_shows_no_damaged_run(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edited number is not shown again: results are made anew, other files are named."""
    folder = copy(jobs.folder(whole), tmp_path / jobs.folder(whole).relative_to(whole))
    results = folder / "results.json"
    wrong = results.read_text().replace('"personal": ', '"personal": 9', 1)
    results.write_text(wrong)
    assert jobs.run(tmp_path) == 0
    assert "results.json is damaged: it will be written again" in capsys.readouterr().out
    jobs.same(whole, tmp_path)
    assert inspect(folder).word == "ok"
    config = folder / "config.yaml"
    config.write_text(config.read_text() + "\n")
    assert jobs.run(tmp_path) == 3
    assert "config.yaml is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_all_flips(whole: Path, tmp_path: Path) -> None:
    for seed in ALL_FINISHED:
        finished(whole, tmp_path / "run", seed)
    for seed in ALL_UNFINISHED:
        unfinished(whole, tmp_path / "output", seed)


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp())
    with contextlib.redirect_stdout(io.StringIO()):
        assert jobs.run(place / "whole") == 0
    for words, one, seeds in (("finished", finished, ALL_FINISHED),
                              ("unfinished", unfinished, ALL_UNFINISHED)):
        rows = table(one(place / "whole", place / words, seed) for seed in seeds)
        sys.stdout.write("\n".join([f"| {words}: file | equal | refused |", "|---|---|---|",
                                    *rows, "", ""]))
        sys.stdout.flush()
    shutil.rmtree(place)
