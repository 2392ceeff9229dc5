"""Advice beside its own runs: the folders, the comparison by hand, and the whole command."""

from __future__ import annotations

import csv
import json
import math
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evidence.commands import main
from evidence.map import advise
from evidence.map.advise import (
    Cut,
    differences,
    is_opposite,
    make_images,
    mean_lines,
    table_lines,
)
from fedvlm.advise import trial
from fedvlm.core.errors import DataError
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 26 images in noisy colours of their own."""
    root, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, colour in zip("abcd", np.eye(4, 3) * 120 + 60, strict=True):
        (root / "set" / name).mkdir(parents=True)
        for i in range(26):
            pixels = draw.normal(colour, 30, (24, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / "set" / name / f"{i}.png")
    return root


def test_a_folder_has_as_many_images_of_each_class_and_none_twice(
    root: Path, tmp_path: Path,
) -> None:
    into = make_images(Cut("x", "set", 3, 5, 7), root, tmp_path / "x")
    for part, count in (("train", 5), ("test", 7)):
        classes = sorted(path.name for path in (into / part).iterdir())
        assert len(classes) == 3
        assert all(len(list((into / part / name).iterdir())) == count for name in classes)
    contents = [path.read_bytes() for path in into.rglob("*.png")]
    assert len(set(contents)) == len(contents) == 36
    other = make_images(Cut("x", "set", 3, 5, 7), root, tmp_path / "other", draw=1)
    assert {path.read_bytes() for path in other.rglob("*.png")} != set(contents)
    table = make_images(Cut("y", "set", 4, 9, 8, sites=2), root, tmp_path / "y")
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 17 and {row["hospital"] for row in rows} == {"H0", "H1"}
    assert all((table.parent / row["file"]).is_file() for row in rows)
    with pytest.raises(DataError, match="has 4 classes with 10 images, not 5"):
        make_images(Cut("z", "set", 5, 5, 5), root, tmp_path / "z")
    assert main(["advise", "--root", str(tmp_path), "--backbone", "tiny",
                 "--runs", str(tmp_path / "none")]) == 3


def judged(verdict: str, gain: float, run: float, margin: float = 3.0) -> advise.Judged:
    """Return advice and run that reach 60 alone."""
    answer = {"together": {"personal": 60 + run}, "alone": {"personal": 60.0}, "points": run,
              "margin": 4.0,
              "verdict": "unclear" if abs(run) <= 4 else "pays" if run > 0 else "costs"}
    advice: dict[str, Any] = {
        "verdict": verdict, "method": "afl_prior", "alone": "logreg", "points": gain,
        "margin": margin,
        "reached": {"afl_prior": {"personal": 60 + gain}, "logreg": {"personal": 60.0}},
        "clients": [{"images": 3}, {"images": 9}],
    }
    return f"{verdict} {run}", advice, {"answer": answer}


def test_how_near_advice_and_runs_are_by_hand() -> None:
    _, advice, results = judged("federate", 10.0, 4.0)
    assert differences(advice, results) == (6.0, 6.0, math.hypot(3.0, 4.0))
    for verdict, run, wrong in (("federate", -9.0, True), ("federate", -3.0, False),
                                ("federate", 9.0, False), ("do not federate", 9.0, True),
                                ("do not federate", -9.0, False), ("cannot say", 9.0, False)):
        assert is_opposite(*judged(verdict, 0.0, run)[1:]) is wrong
    lines = table_lines([judged("federate", 10.0, 4.0), judged("federate", 8.0, 9.0),
                         judged("do not federate", 1.0, 9.0)])
    assert lines[2].startswith("| federate 4.0, 3 to 9 images each | federate (AFL + class shares) "
                               "| 70.0 | 64.0")
    assert "is -1.0 points from the run on average (5.0 without signs). In 1 of 3" in lines[-1]
    assert lines[-1].endswith("The opposite advice: do not federate 9.0.")
    both = [("x", *judged("federate", 10.0, 4.0)[1:]), ("x", *judged("cannot say", 8.0, 9.0)[1:])]
    assert mean_lines(both)[2:] == [
        "| x | federate 1, cannot say 1 | 69.0 | 66.5 | 60.0 | 60.0 | +9.0 | +6.5 | 1 of 2 |"]


def test_the_command_advises_and_runs(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut = Cut("four colours", "set", 4, 16, 10, "--partition iid --num-users 2")
    monkeypatch.setattr(advise, "FEW", {"four": cut})
    words = ["advise", "--root", str(root), "--backbone", "tiny", "--runs", str(tmp_path),
             "--few", "--draws", "0", "3"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert told.count("| four colours, 32 images each |") == 4
    assert told.count("| four colours | ") == 1
    assert "Over these 2 rows" in told
    (run,) = (tmp_path / "four-3").rglob("results.json")
    assert json.loads(run.read_text(encoding="utf-8"))["protocol"]["data_seed"] == 4
    assert main(["advise"]) == 2


def test_partitions_are_of_known_sets_and_of_the_demo(tmp_path: Path) -> None:
    args = Namespace(root="DATA", backbone="tower")
    cases = {words: data for words, _, data in advise.partitions(args, tmp_path)}
    assert len(cases) == len(advise.PARTITIONS)
    assert cases["eurosat, dirichlet 0.3, 10 clients, data seed 2"][-6:] == [
        "--data-seed", "2", "--root", "DATA", "--backbone", "tower"]
    assert cases["demo, iid, 5 clients, shots 4, data seed 3"] == shlex.split(
        "--demo --partition iid --num-users 5 --shots 4 --data-seed 3")
    for words, data in cases.items():  # all are flags of a run
        node = resolve(parse([*data, "--trainer", "AFL"])).jobs[0].cfg
        assert f", {node.FED.CLIENTS} clients" in words
        assert f", {node.FED.PARTITION}" in words


def test_the_command_advises_and_runs_on_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(advise, "PARTITIONS", ("--demo --partition iid --num-users 2 --shots 1",))
    monkeypatch.setattr(trial, "fold_count", lambda groups: 4)
    words = ["advise", "--root", "DATA", "--backbone", "tiny", "--partitions", "--runs",
             str(tmp_path)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert told.count("| demo, iid, 2 clients, shots 1, 10 images each |") == 2
    assert "Over these 1 rows" in told
    assert len(list((tmp_path / "partitions").rglob("results.json"))) == 1
    assert main([*words, "--draws", "1"]) == 2
