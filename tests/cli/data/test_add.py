"""From a folder of images to a finished run: ``--images FOLDER`` and ``fedvlm data add``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.federation.discovery import load_trainer
from tests import jobs
from tests.data.columns.publishers import picture
from tests.data.miniatures import shapes
from tests.data.miniatures.own import shared, write_tree
from tests.data.miniatures.shapes import CLASSES, SHAPES
from tests.models.bert import write_news

RUN = ("--backbone", "tiny", "--shots", "2", "--rounds", "1", "--local-epochs", "1",
       "--trainer", "PromptFL", "TEST.REFERENCES", "False")  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


def run(*words: str) -> int:
    return main(["run", "--output-dir", "out", *words, *RUN])


def record(folder: str = "out") -> dict[str, object]:
    return json.loads((jobs.folder(Path(folder)) / "results.json").read_text())


@pytest.mark.parametrize("shape", [
    shape if i % 3 == 0 else pytest.param(shape, marks=pytest.mark.slow)
    for i, shape in enumerate(SHAPES)
])
def test_one_command_from_a_folder_to_a_finished_run(
    shape: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, what, names, _ = SHAPES[shape]
    make(place)
    before = {p: p.stat().st_mtime_ns for p in place.rglob("*")}
    assert run("--images", "photos") == 0
    said = capsys.readouterr()
    assert what in said.err and f"{len(names)} classes" in said.err
    assert record()["results"]
    assert {p: p.stat().st_mtime_ns for p in place.rglob("*")} == before


def test_images_that_a_table_names_and_that_are_not_there_are_counted(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.mkdir()
    lines = [f"{i}.png,{'cat' if i % 2 else 'dog'}" for i in range(12)]
    for i in range(9):
        picture(place / f"{i}.png", i)
    (place / "t.csv").write_text("\n".join(["path,classname", *lines]))
    assert main(["data", "add", "photos/t.csv"]) == 3
    said = capsys.readouterr()
    assert "3 of 12 images that the split names do not exist" in said.err
    assert "wrote photos.yaml" in said.out  # the doctor's command, beside it, reads it
    assert "no run starts before" in said.out and "train on it" not in said.out


def test_the_yaml_of_a_folder_is_the_same_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes.train_only(place)
    assert main(["data", "add", "photos"]) == 0
    said = capsys.readouterr().out
    assert "a train folder only" in said and "wrote photos.yaml" in said
    assert "fedvlm advise --dataset-config-file photos.yaml\n" in said  # comes first
    assert "fedvlm run --dataset-config-file photos.yaml --trainer FedAvg --peft head\n" in said
    assert run("--images", "photos") == 0
    first = record()
    capsys.readouterr()
    assert run("--dataset-config-file", "photos.yaml") == 0
    assert "already finished" in capsys.readouterr().out
    assert record() == first


def test_add_calls_texts_texts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_news(place, 4)
    assert main(["data", "add", "photos"]) == 0
    said = capsys.readouterr().out
    assert "look at all its texts: fedvlm doctor --root" in said and "images" not in said


def test_add_writes_once_and_where_it_is_told(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(place, [""], CLASSES, 4)
    assert main(["data", "add", "photos", "--name", "Beasts", "--to", "sets/b.yaml"]) == 0
    assert "NAME: \"Beasts\"" in Path("sets/b.yaml").read_text()
    assert main(["data", "add", "photos", "--name", "Beasts", "--to", "sets/b.yaml"]) == 0
    assert "there already sets/b.yaml" in capsys.readouterr().out
    assert main(["data", "add", "photos", "--to", "sets/b.yaml"]) == 2
    assert "already exists with other content and is not overwritten" in capsys.readouterr().err
    assert main(["data", "add", "photos", "--to", "sets"]) == 0
    assert Path("sets/photos.yaml").is_file()
    for words, code, says in (
        (["data", "add"], 2, "add needs a folder of images"),
        (["data", "add", "fotos"], 3, "does not exist; did you mean 'photos'"),
        (["data", "add", "photos", "--root", "x"], 2, "add does not read --root"),
        (["data", "add", "photos", "--to", "x.txt"], 2, "must be a .yaml or .yml file"),
        (["data", "list", "--name", "x"], 2, "list does not read --name"),
    ):
        assert main(words) == code, words
        assert says in capsys.readouterr().err


def test_images_goes_with_no_other_name_of_a_set(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(place, [""], CLASSES, 4)
    for more in (["--dataset", "dtd"], ["--demo"], ["--root", "."],
                 ["--dataset-config-file", "x.yaml"]):
        assert run("--images", "photos", *more) == 2
        assert f"--images already defines the data: drop {more[0]}" in capsys.readouterr().err


def test_the_refused_is_trained_with_the_remedy(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(place, ["train", "val"], CLASSES, 4)
    write_tree(place / "test", [""], ["images"], 30)
    assert run("--images", "photos") == 3
    said = capsys.readouterr().err
    assert "unlabelled images are no class; leave them out with DATASET.LEAVE_OUT test" in said
    assert run("--images", "photos", "DATASET.LEAVE_OUT", "test") == 0
    assert main(["data", "add", "photos"]) == 3
    assert main(["data", "add", "photos", "--leave-out", "test"]) == 0


def test_clients_follow_the_domains_that_are_left(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes.domains(place)
    assert run("--images", "photos", "--held-out", "Photo") == 0
    said = capsys.readouterr()
    assert "FED.CLIENTS 2: 1 for each of the 2 domains other than 'photo'" in said.err
    assert "2, domain-without-photo-K2-f1" in said.out and "unseen" in said.out


def test_the_header_says_how_many_images_each_client_gets(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(place, ["train", "test"], CLASSES, 10)
    words = ["--images", "photos", "--partition", "dirichlet", *RUN, "--output-dir", "out"]
    at = words.index("--shots")
    assert main(["run", *words]) == 0
    assert "8 of 40 training images; per client: " in capsys.readouterr().out
    del words[at : at + 2]
    assert main(["run", *words]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("images "))
    assert "40 of 40 training images" in line
    assert sum(map(int, line.partition("per client: ")[2].split(", "))) == 40
    assert "all training images" in out


def test_real_images_as_a_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (shared("eurosat") / "2750").iterdir():
        (here := place.parent / "2750" / folder.name).mkdir(parents=True)
        for file in sorted(folder.iterdir())[:10]:
            (here / file.name).symlink_to(file.resolve())
    assert run("--images", "2750") == 0
    assert "2750: class folders: 10 classes" in capsys.readouterr().err


def test_folder_names_become_words_and_are_given(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(place, [""], ["AnnualCrop", "SeaLake", "red_fox", "AMD"], 6)
    assert run("--images", "photos", "--output-dir", "words") == 0
    assert "AnnualCrop is read as 'annual crop' (2 of 4 names; --classnames a,b,c sets others)" in (
        capsys.readouterr().err)
    assert names_of("words") == ["AMD", "annual crop", "sea lake", "red fox"]
    assert run("--images", "photos", "--classnames", "eye,field,lake,fox") == 0
    assert names_of("out") == ["eye", "field", "lake", "fox"]
    assert run("--images", "photos", "--classnames", "a,b", "--output-dir", "no") == 2
    assert "gives 2 names for 4 classes" in capsys.readouterr().err
    assert main(["run", "--demo", "--classnames", "a,b", "--output-dir", "no"]) == 2
    assert "--classnames is for your own images" in capsys.readouterr().err
    assert main(["data", "add", "photos"]) == 0
    assert 'CLASSNAMES: "words"' in Path("photos.yaml").read_text()
    words = Path("photos.yaml").read_text().replace('  CLASSNAMES: "words"\n', "")
    Path("old.yaml").write_text(words)  # one that was written before the key was
    assert run("--dataset-config-file", "old.yaml", "--output-dir", "old") == 0
    assert names_of("old") == ["AMD", "AnnualCrop", "SeaLake", "red_fox"]


def names_of(output: str) -> list[str]:
    """Return the class names of a run, as its partition file has them."""
    return json.loads((jobs.folder(Path(output)) / "partition.json").read_text())["classnames"]


def test_sets_of_labels_are_sent_to_a_method_that_takes_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["file,a,b"]
    for i in range(12):
        picture(place / f"{i}.png", i)
        lines.append(f"{i}.png,{i % 2},{i % 4 // 2}")
    (place / "t.csv").write_text("\n".join(lines) + "\n")
    assert main(["data", "add", "photos/t.csv", "--labels", "a,b"]) == 0
    assert "--trainer FedAvg --peft head" in capsys.readouterr().out
    assert load_trainer("FedAvg").label_sets
