"""Mistakes of a first hour: one message that names the way out, and the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedvlm.cli import main as cli


def tree(root: Path, *folders: str, count: int = 3) -> Path:
    """Put a few small images into each folder below ``root``."""
    for number, folder in enumerate(folders):
        (root / folder).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8), (40 * number, 20 * i, 90)).save(root / folder / f"{i}.png")
    return root


def said(capsys: pytest.CaptureFixture[str], words: list[str], code: int) -> str:
    """Run a command that fails with ``code`` and return its one message."""
    assert cli.main(words) == code
    (line,) = capsys.readouterr().err.splitlines()
    return line


def job(root: Path, dataset: str, *more: str) -> list[str]:
    return ["--root", str(root), "--dataset", dataset, "--backbone", "tiny", "--num-users", "2",
            "--rounds", "1", "--output-dir", str(root / "out"), *more]


def test_parts_are_no_domains_and_domains_no_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tree(tmp_path, "a/images/train/x", "a/images/test/x", "b/site/train/x", "b/site/test/x")
    words = job(tmp_path, "custom_folders", "DATASET.DIR", "a", "DATASET.FORMAT", "domains")
    assert "'test', a part and no domain" in said(capsys, words, 3)
    words = job(tmp_path, "custom_domains", "DATASET.DIR", "b", "DATASET.FORMAT", "folders",
                "--partition", "iid")
    assert "set DATASET.FORMAT domains" in said(capsys, words, 3)


def test_the_set_itself_given_as_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tree(tmp_path, "eurosat/2750/River")
    assert "give the folder above it as --root" in said(
        capsys, job(tmp_path / "eurosat", "eurosat"), 3
    )
    assert f"found in {tmp_path}: eurosat" in said(capsys, job(tmp_path / "no", "eurosat"), 3)
    lacking = said(capsys, job(Path("/no_such_folder"), "eurosat"), 3)
    assert "/no_such_folder does not exist" in lacking and "found" not in lacking


def test_a_class_without_test_images_is_noted(tmp_path: Path):
    from fedvlm.data.federated import build_federation
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    tree(tmp_path, "my_set/images/train/x", "my_set/images/train/y", "my_set/images/test/x")
    words = job(tmp_path, "custom_folders", "--shots", "1", "--partition", "iid")
    seen: list[tuple[str, int, int]] = []
    data = build_federation(
        resolve(parse(words)).jobs[0].cfg, lambda *step: seen.append(step)
    )
    assert "1 class(es) have no test image: y" in data.notes
    assert seen and all(what == "checking images" and n <= of for what, n, of in seen)


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "file"))
    line = said(capsys, ["--demo", "--output-dir", str(tmp_path / "out")], 3)
    assert "set CACHE_DIR or $FEDVLM_CACHE" in line and "bug" not in line


def test_a_trainers_file_with_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "one.py").write_text("x = 1\nclass M(:\n")
    line = said(capsys, ["--demo", "--trainer", f"{tmp_path}/one.py:M"], 2)
    assert "one.py" in line and "line 2" in line.replace("one.py:2", "line 2") and "bug" not in line
    (tmp_path / "two.py").write_text("import no_such_module_here\n")
    line = said(capsys, ["--demo", "--trainer", f"{tmp_path}/two.py:M"], 2)
    assert "no_such_module_here" in line and "two.py" in line and "bug" not in line


def test_switches_and_bounds_in_words(capsys: pytest.CaptureFixture[str]):
    assert "True or False, got 'Flase'" in said(capsys, ["--demo", "--iid", "Flase"], 2)
    assert "at most 1000000, got" in said(capsys, ["--demo", "--rounds", "9" * 20], 2)
    assert "OPTIM.LR must be above 0" in said(capsys, ["--demo", "--lr", "1e300"], 2)


@pytest.mark.parametrize("words, shown", [
    (["--version"], "fedvlm 0"), (["help"], "COMMAND --help lists"), (["list", "--help"], "card"),
    (["show", "-h"], "RUN_FOLDER"), (["config", "--help"], "fedvlm config WORD"),
])
def test_help_is_where_it_is_looked_for(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(words) == 0
    assert shown in capsys.readouterr().out


def test_an_interruption_says_what_was_saved(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def stop(words: list[str]) -> int:
        raise KeyboardInterrupt("finished rounds are saved in here")

    monkeypatch.setattr(cli, "_dispatch", stop)
    assert said(capsys, [], 130) == "interrupted: finished rounds are saved in here"


def test_clients_with_the_same_images_are_named_at_the_start_and_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Alone and together then train on the same, and AFL's ridge is too weak."""
    words = ["--demo", "--partition", "iid", "--num-users", "2", "--shots", "99", "--trainer",
             "FedAvg", "--peft", "head", "--rounds", "1", "--output-dir", str(tmp_path)]
    for start in ("the clients hold nearly the same images: ", "already finished"):
        assert cli.main(words) == 0
        lines = capsys.readouterr().out.splitlines()
        end = next(i for i, line in enumerate(lines) if line.startswith("accuracy (%)"))
        assert lines[end - 2].startswith("note: The clients hold nearly the same images: ")
        assert lines[end - 1].startswith("note: AFL and its baseline")
        first = next(line for line in lines if line.startswith("note: "))
        assert first.startswith(f"note: {start}")
