"""``fedvlm advise`` from words to verdict: no test image is opened, its command can be pasted."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedvlm.advise import trial
from fedvlm.cli import main as cli
from fedvlm.cli.verbs import verbs
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve

VERB = verbs()["advise"]
SMALL = ("--backbone", "tiny")


@pytest.fixture(autouse=True)
def few_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "fold_count", lambda groups: 4)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of colours; the test images are no images."""
    root, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for c, colour in enumerate(((200, 40, 40), (40, 200, 40), (40, 40, 200), (180, 180, 40))):
        for part, count in (("train", 12), ("test", 4)):
            folder = root / part / f"colour {c}"
            folder.mkdir(parents=True)
            for i in range(count):
                if part == "test":
                    (folder / f"{i}.png").write_bytes(b"not an image")
                    continue
                pixels = draw.normal(colour, 30, (24, 24, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


def advised(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert cli.main(["advise", "--json", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_no_test_image_is_opened_and_the_command_is_that_of_the_same_clients(
    photos: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--images", str(photos), *SMALL, "--partition", "iid", "--num-users", "2",
             "--data-seed", "3", "--shots", "6", "--lr", "0.9", "DATASET.ON_CORRUPT", "refuse"]
    found = advised(words, capsys)
    assert [c["images"] for c in found["clients"]] == [24, 24]  # type: ignore[attr-defined]
    command = shlex.split(str(found["command"]))
    assert command[:2] == ["fedvlm", "run"] and "0.9" not in command
    mine, theirs = (resolve(parse(w)).jobs[0].cfg for w in (words, command[2:]))
    assert mine.DATASET == theirs.DATASET and mine.DATA_SEED == theirs.DATA_SEED == 3
    for key in ("PARTITION", "CLIENTS", "BETA"):
        assert mine.FED[key] == theirs.FED[key]
    capsys.readouterr()
    assert cli.main([*command[1:], "--output-dir", str(photos.parent / "out")]) == 3
    assert "4.png" in (said := capsys.readouterr().err) or "not" in said  # a run opens them


def test_rounds_of_a_run_are_no_matter_of_the_advice(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedvlm.advise.judge.judge_clients",
                        lambda *_: SimpleNamespace(
                            lines=["Verdict: none"], record={}, notes=["5 images are left out"]))
    assert cli.main(["advise", "--images", str(photos), *SMALL]) == 0
    said = capsys.readouterr()
    assert "note: photos" in said.err and "--rounds auto" not in said.err
    assert "note: 5 images are left out" in said.err


def test_what_is_wrong_with_the_data_is_said(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    """As a run says it: a file left out, a column that seems to name patients."""
    shutil.copytree(photos / "train", tmp_path / "train")
    for name in "abcd":
        (tmp_path / "train" / "colour 0" / f"{name}.png").write_bytes(b"not an image")
    lines = [f"{p.relative_to(tmp_path)},{p.parent.name},P{at // 2}"
             for at, p in enumerate(sorted(tmp_path.rglob("*.png")))]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,patient", *lines]) + "\n")
    assert cli.main(["advise", "--images", str(tmp_path / "list.csv"), *SMALL]) == 0
    said = capsys.readouterr().err
    assert "the column 'patient' (26 values) seems to say which images belong together" in said
    assert re.search(r"note: \d image\(s\) do not decode and are left out: train/colour 0/", said)
    assert said.count("note: list.csv: columns not used: patient") == 1


def test_hospitals_that_are_folders_have_their_names(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    for town in ("Bern", "Graz"):
        shutil.copytree(photos / "train", tmp_path / town)
    found = advised(["--images", str(tmp_path), *SMALL], capsys)
    assert [c["client"] for c in found["clients"]] == ["Bern", "Graz"]  # type: ignore[attr-defined]


def test_a_seed_that_deals_the_clients_stays_in_the_command() -> None:
    args = VERB.parser().parse_args(["--demo", "--seeds", "4", "5", "--trainer", "AFL"])
    assert VERB.module().words_of_run(args) == "fedvlm run --demo --seeds 4"


def test_the_demo_federates_and_its_page_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "--demo"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) <= 25 and lines[0].startswith("20 clients, 5 to 10 training images each")
    assert any(line.startswith("Verdict: federate: ") for line in lines)
    next_ = next(line for line in lines if line.startswith("Next: "))
    assert next_.startswith("Next: fedvlm run --demo --trainer ")
    assert "bytes up" in lines[-1]


def test_clients_at_their_sites_cannot_be_judged_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "--demo", "--engine", "sites", "--sites-at", "a.sock"]) == 2
    assert "advise needs the images of all clients in one place" in capsys.readouterr().err


def test_a_map_alone_is_not_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "--map", "x.csv"]) == 2
    assert "--map needs --like" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    ("--eval-only", "advise does not read --eval-only: fedvlm evaluate RUN judges a model"),
    ("--model-dir out", "advise does not read --model-dir: fedvlm evaluate RUN judges a model"),
    ("--no-train --dry-run", "advise does not read --dry-run: an advice trains no model"),
    ("--print-config", "advise does not read --print-config: fedvlm config shows the settings"),
])
def test_what_a_run_does_in_the_place_of_training_means_nothing_here(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["advise", "--demo", *words.split()]) == 2
    err = capsys.readouterr().err
    assert said in err and "add --eval-only" not in err
