"""Runs that a released fedvlm left (``tests/fixtures``) are read, compared and resumed."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedvlm
from fedvlm.cli.main import main
from fedvlm.config.option import Option
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.identity import identity_config, present_config
from fedvlm.job.resolve import run_config
from fedvlm.runs.identity import identity_plain
from tests import jobs

V01 = Path(__file__).resolve().parents[1] / "fixtures" / "v0.1"
EXPECTED: dict[str, dict[str, Any]] = json.loads((V01 / "expected.json").read_text())
FINISHED = ("local", "workers", "sites", "flower")
KEPT = (*FINISHED, "interrupted")
CLOSE = 1e-4  # of a probability: another machine's kernels

THEN = ("--partition", "disjoint")  # of the demo of 0.1

Capture = pytest.CaptureFixture[str]


def folder_of(name: str) -> Path:
    return V01 / "runs" / EXPECTED[name]["folder"]


def snapshot() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in V01.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """No reader changes a folder."""
    before = snapshot()
    yield
    assert snapshot() == before


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = (np.arange(64 * 64 * 3).reshape(64, 64, 3) * 7 % 256).astype(np.uint8)
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("name", KEPT)
def test_every_model_predicts_what_it_did(name: str, photo: Path, capsys: Capture) -> None:
    models = [who for who in ("client-0", "client-1", "global")
              if isinstance(EXPECTED[name][who], list)]
    assert models
    for who in models:
        words = ["predict", str(folder_of(name)), str(photo), "--csv", "--client"]
        assert main([*words, who.removeprefix("client-")]) == 0
        _, line = capsys.readouterr().out.splitlines()
        assert [float(p) for p in line.split(",")[3:]] == pytest.approx(
            EXPECTED[name][who], abs=CLOSE
        )


@pytest.mark.parametrize("name", KEPT)
def test_every_run_is_exported(name: str, tmp_path: Path) -> None:
    words = ["export", str(folder_of(name)), "--client", "global", "--to", str(tmp_path / "m"),
             "--format", "safetensors"]
    assert main(words) == 0
    assert (tmp_path / "m" / "model.safetensors").is_file()


def test_verify_finds_all_of_them_whole(capsys: Capture) -> None:
    assert main(["verify", str(V01 / "runs"), str(V01 / "demo.cells.xz")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "8 runs: 7 ok, 1 unfinished"


def test_damage_in_them_is_found(tmp_path: Path, capsys: Capture) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder_of("local"), copy)
    file = copy / "results.json"
    file.write_text(file.read_text().replace('"personal": 67.5', '"personal": 97.5'))
    assert main(["verify", str(copy)]) == 3
    assert "results.json is damaged" in capsys.readouterr().out


def test_table_has_their_numbers(capsys: Capture) -> None:
    pack = V01 / "demo.cells.xz"
    assert main(["table", str(pack), "--format", "csv", "--metric", "personal"]) == 0
    told = capsys.readouterr().out
    mean = (EXPECTED["local"]["personal"] + EXPECTED["second"]["personal"]) / 2
    assert f"{mean:.2f}" in told and "FedPer" in told
    assert {run.path.name for run in fedvlm_runs(pack)} == {"seed1-data1", "seed2-data2"}


def fedvlm_runs(path: Path) -> list[Any]:
    from fedvlm.report.collect import collect

    collected = collect([path])
    assert not collected.notes()
    return collected.runs


@pytest.mark.parametrize("name", FINISHED)
def test_show_and_the_api_have_their_numbers(name: str, capsys: Capture) -> None:
    assert main(["show", str(folder_of(name))]) == 0
    assert f"{EXPECTED[name]['personal']:.1f}" in capsys.readouterr().out
    frame = fedvlm.results(folder_of(name))
    assert frame["personal"].tolist() == [EXPECTED[name]["personal"]]
    metrics = fedvlm.load(folder_of(name)).metrics
    assert metrics["round"].tolist() == [0, 1, 2]


def test_a_replay_gives_their_numbers(capsys: Capture) -> None:
    assert main(["verify", "--replay", "2", str(folder_of("local"))]) == 0
    assert "replayed rounds 1 to 2" in capsys.readouterr().out
    packed = ["verify", "--replay", "2", "--sample", "1", str(V01 / "demo.cells.xz")]
    assert main(packed) == 0
    assert "replayed rounds 1 to 2" in capsys.readouterr().out


def test_an_interrupted_one_goes_on_to_the_same_numbers(tmp_path: Path, capsys: Capture) -> None:
    expected = EXPECTED["interrupted"]
    folder = tmp_path / expected["folder"]
    shutil.copytree(folder_of("interrupted"), folder)
    words = [*shlex.split(expected["command"])[1:-2], *THEN]
    assert main([*words, "--output-dir", str(tmp_path)]) == 0
    assert "resuming after round 2" in capsys.readouterr().out
    last = json.loads((folder / "results.json").read_text())["results"]["last"]
    rows = [[row["client"], row["n"], row["correct"]] for row in last["clients"]]
    sessions = json.loads((folder / "manifest.json").read_text())["sessions"]
    before, after = ([s["versions"]["torch"], s["machine"]["processor"]] for s in sessions)
    assert last["personal"] == pytest.approx(expected["personal"], abs=2)
    if before == after:
        assert rows == expected["rows"]  # to the bit where bits are promised
    assert jobs.folder(tmp_path) == folder
    assert main(["verify", str(folder)]) == 0


def test_a_finished_one_is_loaded_and_not_run_again(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / EXPECTED["local"]["folder"]
    shutil.copytree(folder_of("local"), folder)
    words = [*shlex.split(EXPECTED["interrupted"]["command"])[1:-6], *THEN]
    assert main([*words, "--rounds", "2", "--output-dir", str(tmp_path)]) == 0
    assert "already finished" in capsys.readouterr().out
    for name in ("results.json", "manifest.json", "metrics.jsonl"):
        assert (folder / name).read_bytes() == (folder_of("local") / name).read_bytes()


@pytest.mark.parametrize("name", KEPT)
def test_a_config_without_a_newer_key_means_what_it_meant(name: str) -> None:
    """Keys that came later have a neutral value: the old file gives the identity of old."""
    cfg = run_config(folder_of(name), {})
    told = json.loads((folder_of(name) / "manifest.json").read_text())["identity"]["config"]
    assert identity_plain(identity_config(cfg)) == present_config(cfg.TRAINER.NAME, told)


def test_a_key_with_another_default_keeps_the_old_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved config without the key has the neutral value, not today's default."""
    later = Option("new", "a key that came later", choices=("new", "old"), neutral="old")
    apfl = load_trainer("APFL")
    monkeypatch.setattr(apfl, "options", {**apfl.options, "HOW": later})
    folder = tmp_path / "run"
    shutil.copytree(folder_of("sites"), folder)
    assert run_config(folder, {}).TRAINER.APFL.HOW == "old"
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("  APFL:\n", "  APFL:\n    HOW: new\n", 1))
    assert run_config(folder, {}).TRAINER.APFL.HOW == "new"
