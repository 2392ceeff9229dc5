"""Feature packs from one end to the other: made, moved, run on, refused, shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.data import image_records, images
from fedvlm.data.packs.pack import open_pack
from fedvlm.models.features import encode
from tests.data.columns.test_header import ward
from tests.data.miniatures.own import shared
from tests.data.packs.packs import rewritten

NAME = "new_nouns.pack.safetensors"
RUN = ("--dataset", "new_nouns", "--backbone", "tiny", "--shots", "2", "--rounds", "2",
       "--local-epochs", "1", "--num-users", "2")  # fmt: skip
Line = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pack of the built-in NewNouns, and nothing else."""
    maker, away = tmp_path_factory.mktemp("maker"), tmp_path_factory.mktemp("away")
    words = ["--dataset", "new_nouns", "--backbone", "tiny", "--pack", str(maker)]
    assert main(["features", *words]) == 0
    shutil.move(maker / NAME, away / NAME)
    return away


@pytest.fixture(scope="module")
def with_images(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of FedTV and PromptFL on the images."""
    output = tmp_path_factory.mktemp("images")
    for method in ("FedTV", "PromptFL"):
        assert main(["run", *RUN, "--trainer", method, "--output-dir", str(output)]) == 0
    return output


@pytest.fixture
def blind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache, and no way to an image file."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(image_records, "_read", never)
    monkeypatch.setattr(images, "decode", never)
    monkeypatch.setattr(encode, "encode_padded", never)
    yield
    assert not (tmp_path / "empty" / "fedvlm-data").exists()


def folder(output: Path, method: str) -> Path:
    (file,) = [p for p in output.rglob("manifest.json") if f"/{method}/" in str(p)]
    return file.parent


def numbers(run: Path) -> tuple[list[Line], Line]:
    """What a run's metrics and results say, without its times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    results: Line = json.loads((run / "results.json").read_text())["results"]
    for line in lines:
        del line["seconds"], line["seal"]  # the seal is over the seconds, too
    for key in ("seconds", "seal"):
        results["last"].pop(key, None)
    del results["spent"]["seconds"]
    return lines, results


def digest(run: Path) -> str:
    return str(json.loads((run / "manifest.json").read_text())["identity_digest"])


@pytest.mark.parametrize("method", ["FedTV", "PromptFL"])
def test_a_run_on_a_pack_has_the_bits_of_the_run_on_images(
    made: Path, with_images: Path, blind: None, tmp_path: Path, method: str
) -> None:
    root = made if method == "FedTV" else made / NAME  # by the set's name, and by the file
    words = [*RUN, "--root", str(root), "--trainer", method, "--output-dir", str(tmp_path / "o")]
    assert main(["run", *words]) == 0
    ours, theirs = (folder(p, method) for p in (tmp_path / "o", with_images))
    assert numbers(ours) == numbers(theirs)
    assert digest(ours) == digest(theirs)
    for part in ("partition.json", "partition.csv"):
        assert (ours / part).read_bytes() == (theirs / part).read_bytes()
    states = [sorted((p / "state").rglob("*.safetensors")) for p in (ours, theirs)]
    for a, b in zip(*states, strict=True):
        assert a.read_bytes() == b.read_bytes(), a
    notes = json.loads((ours / "results.json").read_text())["run_info"]["notes"]
    assert any(note.endswith(" from a pack") for note in notes)


def test_a_run_begun_with_images_goes_on_with_the_pack(
    made: Path, with_images: Path, blind: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "copy"
    shutil.copytree(with_images, output)
    run = folder(output, "PromptFL")
    (run / "results.json").unlink()  # as if it had been killed
    for file in run.glob("state/*2.*"):
        file.unlink()
    words = [*RUN, "--root", str(made), "--trainer", "PromptFL", "--output-dir", str(output)]
    assert main(["run", *words]) == 0
    assert "resuming after round 1" in capsys.readouterr().out
    assert numbers(run) == numbers(folder(with_images, "PromptFL"))


def test_features_of_another_machine_are_another_run(
    made: Path, with_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = rewritten(made / NAME, tmp_path / NAME, numerics="torch.float32 fast cuda torch 9")
    words = [*RUN, "--root", str(there), "--trainer", "PromptFL", "--output-dir"]
    assert main(["run", *words, str(tmp_path / "o")]) == 0
    assert "computed on another system (torch.float32 fast cuda torch 9, batch 16)" in (
        capsys.readouterr().out
    )
    assert main(["run", *words, str(with_images)]) == 2
    assert "features" in capsys.readouterr().err


PROXIED = '''
from fedvlm.method import Trainer
import torch

class Proxied(Trainer):
    """A method whose server looks at images of its own."""
    name = "Proxied"
    proxy_source = "holdout"

    def trainables(self, model, generator):
        return {"text.ctx": torch.zeros(4, model.text_width)}
'''
REFUSED = {
    "tokens": ("--peft lora --trainer FedAvg", "FedAvg with these settings needs activations "
               "inside the image tower (tokens.0)"),
    "pixels": ("--trainer Thorki TRAINER.THORKI.SMALL tower", "and pixels, but"),
    "views": ("--views 3", "3 augmented views of data seed 1"),
    "plain": ("--plain", "--plain needs images at every step"),
    "precision": ("MODEL.PREC fp64", "was computed in float32, but this run computes in float64"),
    "set": ("DATASET.NAME EuroSAT", "is a pack of NewNouns"),
    "server": ("--trainer {toy}:Proxied DATASET.SERVER_HOLDOUT 1", "server images holdout: "),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_a_pack_cannot_do_is_refused(
    made: Path, blind: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    line, says = REFUSED[why]
    toy = tmp_path / "toy.py"
    toy.write_text(PROXIED)
    line = line.replace("{toy}", str(toy))
    words = [*RUN, "--root", f"{made}/{NAME}", "--output-dir", f"{tmp_path}/o", *line.split()]
    assert main(["run", *words]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ") and says in error and str(made) in error, error
    assert not (tmp_path / "o").exists()


def test_a_pack_of_another_backbone_names_both(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = rewritten(made / NAME, tmp_path / NAME, backbone="ViT-B/16", digest="ab" * 32)
    words = [*RUN, "--root", str(other), "--output-dir", f"{tmp_path}/o"]
    assert main(["run", *words]) == 2
    error = capsys.readouterr().err
    ours = open_pack(made / NAME).about.digest[:12]
    assert "ViT-B/16 (embedded, digest abababababab)" in error
    assert f"tiny (embedded, digest {ours})" in error


def test_verbs_understand_a_pack(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = f"{made}/{NAME}"

    def said(code: int, *words: str) -> str:
        assert main(list(words)) == code, words
        captured = capsys.readouterr()
        return captured.out + captured.err

    text = said(0, "features", "--show", pack)
    for word in ("NewNouns", "320/80/320", "tiny (embedded)", "test view, 32 px", "terms of the"):
        assert word in text
    assert "NewNouns  ready  feature pack" in said(0, "doctor", "--root", pack)
    assert "1 ready" in said(0, "doctor", "--root", str(made), "new_nouns")
    assert "feature pack, which has no images" in said(
        3, "data", "prepare", "eurosat", "--root", pack
    )
    words = ("features", *RUN[:4])
    assert "no images to encode" in said(3, *words, "--root", pack)
    assert "there already" in said(0, *words, "--pack", pack)
    assert "is another pack" in said(2, *words, "--pack", pack, "DATASET.TEMPLATE", "a {}.")
    assert "must end in .pack.safetensors" in said(2, *words, "--pack", f"{made}/x.npz")
    assert "several data sets need an existing folder" in said(
        2, *words, "--dataset", "shapes", "--pack", f"{made}/x.pack.safetensors"
    )
    assert "--show cannot be combined with '--dataset'" in said(2, *words, "--show", pack)


def test_a_trained_model_is_evaluated_on_a_pack(
    made: Path, with_images: Path, blind: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(with_images, "PromptFL")
    words = ("evaluate", str(run), "--dataset", "new_nouns", "--client", "global", "--json")
    assert main([*words, "--root", f"{made}/{NAME}"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["images"] == 320
    assert row["accuracy"] == pytest.approx(numbers(run)[0][-1]["global"])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Class folders without parts, one image of which does not decode."""
    draw = np.random.default_rng(0)
    for c in range(4):
        place = tmp_path / "photos" / f"kind_{c}"
        place.mkdir(parents=True)
        for n in range(8):
            pixels = draw.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{n}.png")
    (tmp_path / "photos" / "kind_1" / "3.png").write_bytes(b"no image")
    return tmp_path / "photos"


def test_a_folder_of_ones_own_with_views_by_the_pack_alone(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pack says which set it is; views and drawn test images are those of its data seed."""
    own = ["--images", str(photos), "DATASET.TEST_SHARE", "0.25"]
    run = ["--backbone", "tiny", "--trainer", "PromptFL", "--rounds", "1", "--shots", "2"]
    pack = tmp_path / "photos.pack.safetensors"
    assert main(["features", *own, "--backbone", "tiny", "--views", "3", "--pack", str(pack)]) == 0
    assert main(["run", *own, *run, "--views", "2", "--output-dir", f"{tmp_path}/a"]) == 0
    shutil.rmtree(photos)
    on = ["run", "--root", str(pack), *run]
    assert main([*on, "--views", "2", "--output-dir", f"{tmp_path}/b"]) == 0
    ours, theirs = (folder(tmp_path / name, "PromptFL") for name in "ba")
    assert numbers(ours) == numbers(theirs) and digest(ours) == digest(theirs)
    infos = [json.loads((p / "results.json").read_text())["run_info"] for p in (ours, theirs)]
    broken = [[n for n in info["notes"] if "do not decode" in n] for info in infos]
    assert broken[0] == broken[1] and broken[0]
    capsys.readouterr()
    for more, says in (
        (["--views", "4"], "has views 0 to 2 of data seed 1"),
        (["--views", "2", "INPUT.RRCROP_SCALE", "(0.5, 1.0)"], "has views 0 to 2 of data seed 1"),
        (["--data-seed", "2"], "were drawn by data seed 1"),
    ):
        assert main([*on, *more, "--output-dir", f"{tmp_path}/c"]) == 2
        assert says in capsys.readouterr().err


def test_the_pack_of_a_table_with_clients_says_how_to_train_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose images are whose is in no pack, but in the partition of a run."""
    monkeypatch.chdir(tmp_path)
    own = ["--images", str(ward(tmp_path / "ward") / "t.csv"), "--clients-by", "hospital"]
    pack = str(tmp_path / "ward.pack.safetensors")
    head = ["--peft", "head", "--rounds", "1"]
    assert main(["run", *own, *head, "--backbone", "tiny", "--trainer", "FedAvg"]) == 0
    shutil.copy(next((tmp_path / "output").rglob("partition.json")), tmp_path)
    capsys.readouterr()
    assert main(["features", *own, "--backbone", "tiny", "--pack", pack]) == 0
    said = "".join(capsys.readouterr())
    assert "--rounds auto" not in said  # which is nothing of features
    line = next(x for x in said.splitlines() if x.startswith("train on it: fedvlm "))
    assert main([*line.removeprefix("train on it: fedvlm ").split(), *head, "--trainer", "FedAvg"]
                ) == 0
    assert "Lyon" not in Path(pack).read_bytes().decode("latin-1")


def test_the_pack_of_a_table_with_groups_keeps_them_whole_without_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same split, partition, baselines and numbers as from the table; and ``advise``."""
    monkeypatch.chdir(tmp_path)
    table = ward(tmp_path / "ward", **{f"patient{i}": f"Jones-{5 - i // 2}" for i in range(12)})
    own = ["--images", str(table / "t.csv"), "--groups", "patient", "--backbone", "tiny"]
    run = ["--trainer", "FedAvg", "--peft", "head", "--rounds", "1", "--clients", "2"]
    pack = str(tmp_path / "ward.pack.safetensors")
    assert main(["features", *own, "--pack", pack]) == 0
    assert main(["run", *own, *run, "--output-dir", f"{tmp_path}/a"]) == 0
    shutil.rmtree(table)
    there = ["--root", pack, "--backbone", "tiny"]
    assert main(["run", *there, *run, "--output-dir", f"{tmp_path}/b"]) == 0
    ours, theirs = (folder(tmp_path / name, "FedAvg-head") for name in "ba")
    assert numbers(ours) == numbers(theirs) and digest(ours) == digest(theirs)
    assert (ours / "partition.csv").read_bytes() == (theirs / "partition.csv").read_bytes()
    assert b"Jones" not in Path(pack).read_bytes()
    capsys.readouterr()
    assert main(["features", "--show", pack]) == 0
    assert "6 (numbers; no names)" in capsys.readouterr().out
    assert main(["run", *there, *run, "DATASET.GROUPS", "", "--output-dir", f"{tmp_path}/c"]) == 2
    assert "DATASET.GROUPS is not set: " in capsys.readouterr().err


@pytest.mark.slow
def test_eurosat_without_its_images(
    blind_eurosat: Callable[[], Path], tmp_path: Path
) -> None:
    """A pack of EuroSAT in an empty folder gives FedTV the bits that the images give."""
    pack = blind_eurosat()
    line = ["run", "--dataset", "eurosat", "--backbone", "tiny", "--trainer", "FedTV", "--rounds",
            "2", "--num-users", "5", "--shots", "8"]
    data = str(shared("eurosat").parent)
    assert main([*line, "--root", data, "--output-dir", f"{tmp_path}/a"]) == 0
    assert main([*line, "--root", str(pack), "--output-dir", f"{tmp_path}/b"]) == 0
    ours, theirs = (folder(tmp_path / name, "FedTV") for name in "ba")
    assert numbers(ours) == numbers(theirs) and digest(ours) == digest(theirs)


@pytest.fixture
def blind_eurosat(tmp_path: Path) -> Callable[[], Path]:
    """Make the pack of EuroSAT, as far as it is on this machine, in a folder of its own."""

    def make() -> Path:
        (tmp_path / "alone").mkdir()
        pack = tmp_path / "alone" / "eurosat.pack.safetensors"
        root = str(shared("eurosat").parent)
        assert main(["features", "--root", root, "--dataset", "eurosat", "--backbone", "tiny",
                     "--pack", str(pack)]) == 0
        return pack

    return make
