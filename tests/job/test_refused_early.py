"""What will be refused is refused before images are encoded, or the backbone is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.data.builtin import sets
from fedvlm.job import inputs
from fedvlm.job import run as job_run
from fedvlm.runs import lock
from tests import jobs

PLACE = "base2new/Shapes/shots_2/FedTV/tiny/disjoint-K2-f1/seed1-data1"


def never(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("too late")


@pytest.fixture
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvlm.job.build.image_sources", never)


@pytest.fixture
def no_towers(no_encoder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither data nor towers may be asked for."""
    monkeypatch.setattr(inputs, "build_federation", never)
    monkeypatch.setattr(inputs, "load_backbone", never)


@pytest.fixture
def unfinished(quick_run: Path, tmp_path: Path) -> Path:
    output = tmp_path / "output"
    shutil.copytree(quick_run, output)
    (jobs.folder(output) / "results.json").unlink()
    return output


@pytest.mark.usefixtures("no_towers")
@pytest.mark.parametrize("finished", [True, False])
def test_another_run_in_the_folder(
    finished: bool, unfinished: Path, quick_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(quick_run if finished else unfinished, "--lr", "0.5") == 2
    told = capsys.readouterr().err
    assert "holds another run" in told and "config.OPTIM.LR: 0.005 -> 0.5" in told
    assert "--resume" not in told


@pytest.mark.usefixtures("no_towers")
def test_a_folder_in_which_somebody_works(
    unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = lock.acquire(jobs.folder(unfinished))
    try:
        assert jobs.run(unfinished) == 2
    finally:
        held.release()
    assert "is in use by process" in capsys.readouterr().err


@pytest.mark.usefixtures("no_towers")
@pytest.mark.parametrize(("words", "says"), [
    (["--opts", "FED.ROUNDZ", "3"], "FED.ROUNDS"),
    (["--resume", "elsewhere"], "this command's run folder is"),
    (["--resume", "elsewhere", "--dry-run"], "this command's run folder is"),
    (["--resume", "elsewhere", "--no-train"], "this command's run folder is"),
    (["--output-dir", "file/below"], "cannot make the run folder 'file/below/base2new"),
])
def test_words_and_places(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert jobs.run(tmp_path / "output", *words) == 2
    assert says in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("no_towers")
@pytest.mark.parametrize("verb", [["export"], ["adapt", "--images", "photos"]])
def test_a_model_for_a_folder_that_is_taken(
    verb: list[str], quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    words = [verb[0], str(jobs.folder(quick_run)), *verb[1:], "--to", str(tmp_path)]
    assert main([*words, "--format", "safetensors"]) == 2
    assert "is not empty: export into a new folder" in capsys.readouterr().err


@pytest.mark.usefixtures("no_encoder")
def test_other_images_are_noticed_before_they_are_encoded(
    unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sets, "_PER_CLASS", (4, 2, 4))
    assert jobs.run(unfinished) == 2
    assert "holds another run" in (told := capsys.readouterr().err) and "images: " in told
    assert not (jobs.folder(unfinished) / lock.NAME).exists()


@pytest.mark.usefixtures("no_encoder")
def test_a_finished_run_is_shown_without_an_encoder(
    quick_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(quick_run) == 0
    assert "already finished" in capsys.readouterr().out


def test_images_are_encoded_under_the_lock_and_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def fail(*_: Any) -> NoReturn:
        seen.append((tmp_path / "output" / PLACE / lock.NAME).is_file())
        raise DataError("the disk is full")

    monkeypatch.setattr(job_run, "complete_run", fail)
    assert jobs.run(tmp_path / "output") == 3
    assert seen == [True] and not list(tmp_path.iterdir())
