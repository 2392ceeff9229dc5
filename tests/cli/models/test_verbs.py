"""predict, export and evaluate: a run's models at work, from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import fedvlm
from fedvlm.api import evaluate, rebuild
from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.export.formats import tensors
from tests import jobs

Captured = pytest.CaptureFixture[str]


def data_of(place: Path) -> FederatedData:
    return build_federation(rebuild.run_config(place, {}))


def photos(folder: Path, data: FederatedData, each: int = 3) -> Path:
    """Test images in class folders, of the first two classes."""
    for label in (0, 1):
        name = data.classnames[label]
        (folder / name).mkdir(parents=True)
        for i in [i for i in data.global_test if data.labels[i] == label][:each]:
            Image.open(data.samples[i].path).save(folder / name / f"{i}.png")
    return folder


def test_predict_says_what_the_model_says(quick_run: Path, tmp_path: Path, capsys: Captured):
    place = jobs.folder(quick_run)
    folder = photos(tmp_path / "photos", data_of(place))
    said = fedvlm.load(place).client(1).predict(folder)
    assert main(["predict", str(place), str(folder), "--client", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and said.names[0] in lines[1] and said.classes[0] in lines[1]
    assert main(["predict", str(place), str(folder), "--client", "1", "--json", "--top", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["image"] for row in rows] == list(said.names)
    assert [row["classes"] for row in rows] == [[c for c, _ in best] for best in said.top(2)]
    assert rows[0]["probabilities"][0] == pytest.approx(said.top(1)[0][0][1], abs=1e-6)
    assert main(["predict", str(place), str(folder), "--client", "all", "--csv"]) == 0
    table = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["model"] for row in table[::6]] == ["client-0", "client-1", "global"]
    assert [row["class"] for row in table[6:12]] == said.classes
    assert sum(float(table[0][c]) for c in said.classnames) == pytest.approx(1, abs=1e-4)


def test_files_that_cannot_be_read_are_named_behind_the_rows_of_the_others(
    quick_run: Path, tmp_path: Path, capsys: Captured
) -> None:
    place = jobs.folder(quick_run)
    folder = photos(tmp_path / "photos", data_of(place), 1)
    bad = [folder / name for name in ("a.png", "z.png")]
    for path in bad:
        path.write_bytes(b"nothing")
    words = ["predict", str(place), str(folder), "--client", "1", "--json"]
    assert main(words) == 3
    said = capsys.readouterr()
    whole = fedvlm.load(place).client(1).predict(sorted(folder.rglob("*/*.png")))
    assert [json.loads(line)["image"] for line in said.out.splitlines()] == list(whole.names)
    for path in bad:
        assert f"problem: cannot read the image {path}: " in said.err
    assert said.err.rstrip().endswith("2 file(s) cannot be read and have no row: mend or remove "
                                      "them")
    assert main([*words[:2], *map(str, bad), *words[3:]]) == 3
    said = capsys.readouterr()
    assert not said.out and all(f"cannot read the image {path}" in said.err for path in bad)


def test_export_is_read_back(quick_run: Path, tmp_path: Path, capsys: Captured):
    place = jobs.folder(quick_run)
    words = ["export", str(place), "--client", "1", "--format", "safetensors", "--licence", "mit"]
    assert main([*words, "--to", str(tmp_path / "one")]) == 0
    assert "largest logit difference" in capsys.readouterr().out
    card = (tmp_path / "one" / "README.md").read_text()
    assert "license: mit" in card and "client 1 of 2" in card
    model = fedvlm.load(place).client(1)
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    side = model.model.backbone.image_size
    pixels = pixels[..., :side, :side]
    with torch.no_grad():
        ours = model._predictor({"pixels": pixels[None]})[0]
        assert torch.allclose(tensors.read(tmp_path / "one")(pixels), ours, atol=1e-3)
    words[words.index("1")] = "all"
    assert main([*words, "--to", str(tmp_path / "many")]) == 0
    index = json.loads((tmp_path / "many" / "index.json").read_text())
    assert [m["name"] for m in index["models"]] == ["client-0", "client-1", "global"]
    last = jobs.results(quick_run)["last"]
    told = [m["metrics"]["accuracy"] for m in index["models"]]
    assert told == [*(c["accuracy"] for c in last["clients"]), last["global"]]
    assert main([*words, "--to", str(tmp_path / "many")]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_evaluate_counts_as_the_run_did(quick_run: Path, capsys: Captured):
    """The run's own set is known by name, and all its classes are chosen from."""
    place = jobs.folder(quick_run)
    assert main(["evaluate", str(place), "--dataset", "shapes", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    model, tests = fedvlm.load(place).global_model, evaluate.of_dataset(
        "shapes", rebuild.run_config(place, {})
    )
    said = model.with_classes(tests.classnames, tests.templates).predict(
        [d.path for d in tests.samples]
    )
    right = sum(int(a) == d.label for a, d in zip(said.labels, tests.samples, strict=True))
    assert (row["correct"], row["images"], row["set"]) == (right, len(tests.samples), tests.name)


def test_evaluate_a_folder_of_known_classes(quick_run: Path, tmp_path: Path, capsys: Captured):
    place = jobs.folder(quick_run)
    data = data_of(place)
    folder = photos(tmp_path / "photos", data)
    assert main(["evaluate", str(place), "--images", str(folder), "--client", "all"]) == 0
    out = capsys.readouterr()
    assert f"predictions are among the run's {len(data.classnames)} classes" in out.err
    lines = out.out.splitlines()
    assert [line.split()[0] for line in lines] == ["model", "client-0", "client-1", "global"]
    said = fedvlm.load(place).client(0).predict(folder)
    right = sum(Path(n).parent.name == c for n, c in zip(said.names, said.classes, strict=True))
    assert lines[1].split()[1:3] == ["6", str(right)]


def test_evaluate_leaves_out_what_a_run_leaves_out(
    quick_run: Path, tmp_path: Path, capsys: Captured
) -> None:
    """One image of many does not decode: it is counted and named, or refused, as in a run."""
    place = jobs.folder(quick_run)
    folder = photos(tmp_path / "photos", data_of(place))
    whole = sorted(folder.rglob("*.png"))
    whole[0].write_bytes(b"nothing")
    words = ["evaluate", str(place), "--images", str(folder), "--client", "1"]
    assert main([*words, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["images"], row["left_out"]) == (len(whole) - 1, 1)
    said = fedvlm.load(place).client(1).predict(whole[1:])
    assert row["correct"] == sum(
        Path(n).parent.name == c for n, c in zip(said.names, said.classes, strict=True))
    capsys.readouterr()
    assert main(words) == 0
    assert (f"note: 1 image(s) do not decode and are left out: {whole[0].relative_to(folder)} ("
            ) in capsys.readouterr().err
    cfg = rebuild.run_config(place, {}).clone()
    cfg.defrost()
    cfg.DATASET.ON_CORRUPT = "refuse"
    with pytest.raises(DataError, match="do not decode: .*or set DATASET.ON_CORRUPT skip"):
        evaluate.of_folder(folder, run=cfg)
    for path in whole:
        path.write_bytes(b"nothing")
    assert main(words) == 3 and "there is no other image" in capsys.readouterr().err


def test_evaluate_says_each_class_of_the_test_part_of_a_table(
    quick_run: Path, tmp_path: Path, capsys: Captured
) -> None:
    place = jobs.folder(quick_run)
    folder = photos(tmp_path / "photos", data_of(place))
    rows = [f"{p.relative_to(folder)},{p.parent.name},{'train' if i % 3 == 0 else 'test'}"
            for i, p in enumerate(sorted(folder.rglob("*.png")))]
    (folder / "list.csv").write_text("\n".join(["path,classname,split", *rows]))
    words = ["evaluate", str(place), "--images", str(folder / "list.csv"), "--client", "1"]
    assert main([*words, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert sum(c["images"] for c in row["classes"]) == row["images"] == 4
    found = sum(c["sensitivity"] * c["images"] for c in row["classes"]) / 100
    assert found == pytest.approx(row["correct"])
    assert main(words) == 0
    said = capsys.readouterr()
    assert "4 of the 6 images of photos are its test part, and only these count" in said.err
    assert said.out.splitlines()[2].split() == [
        "class", "images", "sensitivity", "specificity", "auroc"]
    assert len(said.out.splitlines()) == 5


def test_a_table_without_parts_is_evaluated_and_adapted_to_whole(
    quick_run: Path, tmp_path: Path, capsys: Captured
):
    place = jobs.folder(quick_run)
    folder = photos(tmp_path / "photos", data_of(place))
    files = sorted(folder.rglob("*.png"))
    (folder / "list.csv").write_text("\n".join(["path,classname,patient", *(
        f"{p.relative_to(folder)},{p.parent.name},{p.stem}" for p in files)]))
    table = str(folder / "list.csv")
    (folder / "german.csv").write_text(
        (folder / "list.csv").read_text().replace("path,classname", "Datei,Befund"))
    assert main(["evaluate", str(place), "--images", str(folder / "german.csv"), "--columns",
                 "path=Datei,classname=Befund", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 6
    assert main(["evaluate", str(place), "--images", table, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == len(files) == 6
    assert main(["evaluate", str(place), "--images", table]) == 0
    assert "all images count, also any that the run trained on" in capsys.readouterr().err
    assert main(["adapt", str(place), "--images", table, "--to", str(tmp_path / "new")]) == 0
    said = "".join(capsys.readouterr())
    assert "note: there is no test part: all 6 images are training images" in said
    assert "test images: " not in said and "simulated" not in said


def test_a_table_of_test_images_needs_no_training_images(
    quick_run: Path, tmp_path: Path, capsys: Captured
):
    """Parts, classes and labels that training needs may be absent; unlabelled images are told."""
    place = jobs.folder(quick_run)
    folder = photos(tmp_path / "photos", data_of(place))
    files = sorted(folder.rglob("*.png"))
    first = files[0].parent.name

    def table(parts: list[str], only: str = "", bare: int = 0) -> list[str]:
        named = [p for p in files if only in ("", p.parent.name)]
        (folder / "list.csv").write_text("\n".join(["path,label,classname,split", *(
            f"{p.relative_to(folder)},{7 if p.parent.name == first else 9},{p.parent.name},{part}"
            for p, part in zip(named, parts * len(named), strict=False)),
        ]).replace(f",7,{first},", ",,,", bare))
        return [str(place), "--images", str(folder / "list.csv")]

    one = len([p for p in files if p.parent.name == first])
    for parts, only, images in ((["test"], "", 6), (["val", "train"], "", 3), (["train"], "", 6),
                                (["test"], first, one)):
        assert main(["evaluate", *table(parts, only), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["images"] == images
    photos(tmp_path / "only" / "test", data_of(place))
    assert main(["evaluate", str(place), "--images", str(tmp_path / "only"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 6
    assert main(["predict", str(place), str(tmp_path / "only")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert main(["predict", *table(["test"])[::2]]) == 3
    assert "list.csv is a table: fedvlm evaluate RUN --images" in capsys.readouterr().err
    assert main(["data", "add", str(tmp_path / "only"), "--to", str(tmp_path / "x.yaml")]) == 3
    assert "has test but no 'train' folder (fedvlm evaluate" in capsys.readouterr().err
    assert main(["evaluate", *table(["val", "train"])]) == 0
    assert "no test part: the validation images count" in capsys.readouterr().err
    out = ["--to", str(tmp_path / "new")]
    assert main(["adapt", *table(["test"]), *out]) == 3
    assert "no training images to adapt to" in capsys.readouterr().err
    assert main(["adapt", *table(["train"], bare=1), *out]) == 0
    said = capsys.readouterr().err
    assert "note: 1 images without a label are not used" in said
    assert "5/0/0 images in train/val/test" in said and "all 5 images are training" in said
    (folder / "list.csv").write_text(f"path,caption\n{files[0].relative_to(folder)},a word\n")
    assert main(["evaluate", str(place), "--images", str(folder / "list.csv")]) == 3
    said = capsys.readouterr().err
    assert "this run needs one class for each image" in said and "--captions" not in said
    (folder / "list.csv").write_text("path,classname\n" + "\n".join(
        f"{p.relative_to(folder)},a walrus" for p in files))
    assert main(["evaluate", str(place), "--images", str(folder / "list.csv")]) == 3
    assert "one class only, a walrus, which the run does not know" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "code", "sentence"), [
    (["predict", "RUN", "no.png"], 3, "no image 'no.png'"),
    (["predict", "RUN", "no.png", "--client", "nine"], 2, "no client nine: clients are numbered 0"),
    (["predict", "RUN", "no.png", "--json", "--csv"], 2, "or --csv, not both"),
    (["predict", "nowhere", "no.png"], 3, "'nowhere' is not a run folder"),
    (["export", "RUN", "--to", "x", "--format", "onyx"], 2, "did you mean 'onnx'?"),
    (["evaluate", "RUN"], 2, "choose the images: --dataset NAME, or --images FOLDER"),
    (["evaluate", "RUN", "--images", "x", "--root", "y"], 2, "--root needs --dataset"),
    (["evaluate", "RUN", "--dataset", "eurosta"], 2, "did you mean 'eurosat'?"),
])  # fmt: skip
def test_mistakes_get_a_sentence(
    quick_run: Path, words: list[str], code: int, sentence: str, capsys: Captured
):
    place = str(jobs.folder(quick_run))
    assert main([place if word == "RUN" else word for word in words]) == code
    assert sentence in capsys.readouterr().err
