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
import torch
import torch.nn.functional as F
from PIL import Image

from fedvlm.advise import trial
from fedvlm.advise.gather import gather_clients
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


def test_patients_of_one_client_are_not_images_that_clients_share(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    """Twelve images of three hospitals and class, two of each patient: none at two hospitals."""
    rows = ["file,class,split,hospital,patient"]
    shutil.copytree(photos, tmp_path, dirs_exist_ok=True)
    for file in sorted(tmp_path.glob("*/*/*.png")):
        part, number = file.parts[-3], int(file.stem)
        rows.append(f"{file.relative_to(tmp_path)},{file.parent.name},{part},H{number % 3},"
                    f"{part}-{number % 3}-{number // 6}")
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    found = advised(["--images", str(table), *SMALL, "--clients-by", "hospital", "--groups",
                     "patient"], capsys)
    assert len(found["clients"]) == 3 and "same images" not in str(found)  # type: ignore[arg-type]


def test_class_names_score_images_as_zero_shot_does(photos: Path) -> None:
    words = ["--images", str(photos), *SMALL, "--partition", "iid", "--num-users", "2"]
    found = gather_clients(resolve(parse(words)).jobs[0].cfg)
    assert found.anchor is not None and found.names is not None
    for x, names in zip(found.features, found.names, strict=True):
        said = F.normalize(x, dim=-1) @ found.anchor.mT
        assert torch.allclose(said, names, atol=1e-4)


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


def test_a_hospital_without_a_test_image_hears_that_its_run_will_not_tell(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    lines = []
    for town in ("Bern", "Graz"):
        shutil.copytree(photos / "train", tmp_path / town)
        for at, path in enumerate(sorted((tmp_path / town).rglob("*.png"))):
            split = "test" if town == "Bern" and at % 5 == 0 else "train"
            lines.append(f"{path.relative_to(tmp_path)},{path.parent.name},{split},{town}")
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split,town", *lines]) + "\n")
    words = ["--images", str(tmp_path / "list.csv"), "--clients-by", "town"]
    assert cli.main(["advise", *words, *SMALL]) == 0
    assert ("note: in the run that is proposed, client 1 (Graz) has no test image: it is in no "
            "accuracy") in capsys.readouterr().err


def test_a_seed_that_deals_the_clients_stays_in_the_command() -> None:
    args = VERB.parser().parse_args(["--demo", "--seeds", "4", "--trainer", "AFL"])
    assert VERB.module().words_of_run(args) == "fedvlm run --demo --seeds 4"


def test_the_demo_federates_and_its_page_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "--demo"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) <= 25 and lines[0].startswith("20 clients, 5 to 10 training images each")
    assert any(line.startswith("Verdict: federate: ") for line in lines)
    next_ = next(line for line in lines if line.startswith("Next: "))
    assert next_.startswith("Next: fedvlm run --demo --trainer ")
    assert "bytes up" in lines[-1]


def test_no_verdict_on_clients_that_hold_the_same_images(
    capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has all images already cannot gain from the others, whatever is cross-validated."""
    assert cli.main(["advise", "--demo", "--partition", "iid", "--shots", "99"]) == 0
    shown = capsys.readouterr()
    verdict = next(line for line in shown.out.splitlines() if line.startswith("Verdict: "))
    assert verdict.startswith("Verdict: cannot say: the clients hold nearly the same images: ")
    assert "note: the clients hold nearly the same images: " in shown.err
    assert "Next: fedvlm" not in shown.out


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
    ("--seeds 1 2 3", "reads one seed, not 3: give the one that deals them, --data-seed N"),
    ("--seeds 1-3", "reads one seed, not 3: give the one that deals them, --data-seed N"),
])
def test_what_a_run_does_in_the_place_of_training_means_nothing_here(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["advise", "--demo", *words.split()]) == 2
    err = capsys.readouterr().err
    assert said in err and "add --eval-only" not in err


def test_what_an_advice_does_not_read_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedvlm.advise.judge.judge_clients", lambda *_: SimpleNamespace(
        lines=[], record={"verdict": "none"}, notes=[]))
    words = ["advise", "--demo", "--trainer", "FedAvg", "--peft", "prompt", "--rounds", "3",
             "FED.DP.CLIP", "1", "FED.DP.NOISE", "1", "FED.DP.DELTA", "1e-5", "OPTIM.LR", "3"]
    assert cli.main(words) == 0
    said = capsys.readouterr().err
    assert "it does not read --trainer, --peft, --rounds, OPTIM.LR\n" in said
    assert said.count("without the noise and the clipping of FED.DP, which the command keeps") == 1
    assert cli.main([*words, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert all(note in said for note in notes) and len(notes) > 1
    assert cli.main(["advise", "--demo"]) == 0
    assert "does not read" not in (said := capsys.readouterr().err) and "FED.DP" not in said


def test_a_pack_is_read_by_another_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "--pack", "mine.pack.safetensors"]) == 2
    assert "to read one: --root mine.pack.safetensors" in capsys.readouterr().err
