"""A new client is personalised as one that never worked, and nothing of the run changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import fedvlm
from fedvlm.api import rebuild
from fedvlm.api.adapt import adapt
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.federated import build_federation
from tests import jobs


def photos(folder: Path, place: Path, parts: bool = False, each: int = 4) -> Path:
    """Images of two classes of the run, in class folders, also below train and test."""
    data = build_federation(rebuild.run_config(place, {}))
    for label in (0, 1):
        found = [i for i in data.global_test if data.labels[i] == label][:each]
        for n, i in enumerate(found):
            part = ("train" if n % 2 else "test") if parts else ""
            where = folder / part / data.classnames[label]
            where.mkdir(parents=True, exist_ok=True)
            Image.open(data.samples[i].path).save(where / f"{i}.png")
    return folder


def test_a_method_without_a_final_phase_gives_the_shared_model(quick_run: Path, tmp_path: Path):
    place = jobs.folder(quick_run)
    model, notes = adapt(place, photos(tmp_path / "photos", place))
    shared = fedvlm.load(place).global_model
    image = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.predict(image).logits, shared.predict(image).logits)
    assert any("the model is the shared one" in note for note in notes)
    assert model.owner == "a new client" and not model.facts.metrics


def test_fine_tuning_learns_from_the_folder_only(quick_run: Path, tmp_path: Path):
    place = jobs.folder(quick_run)
    before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
    folder = photos(tmp_path / "photos", place, parts=True)
    model, notes = adapt(place, folder, epochs=8)
    again, _ = adapt(place, folder, epochs=8)
    shared = fedvlm.load(place).global_model
    train = sorted((folder / "train").rglob("*.png"))
    names = [p.parent.name for p in train]

    def sure(of: fedvlm.Model) -> float:
        rows = of.predict(train).probabilities
        return sum(float(r[of.classnames.index(n)]) for r, n in zip(rows, names, strict=True))

    assert sure(model) > sure(shared) + 0.05
    assert torch.equal(model.predict(train).logits, again.predict(train).logits)
    assert "4 test images: " in notes[-1] and set(model.facts.metrics) == {"accuracy"}
    assert any("8 epochs of fine-tuning" in note for note in notes)
    assert {p: p.read_bytes() for p in place.rglob("*") if p.is_file()} == before


def test_images_that_do_not_decode_are_left_out_by_name(quick_run: Path, tmp_path: Path):
    """As a run does: one damaged file is no reason to stop, and none is lost without a word."""
    place = jobs.folder(quick_run)
    folder = photos(tmp_path / "photos", place, parts=True)
    model, _ = adapt(place, folder, epochs=2)
    for part in ("train", "test"):
        (next((folder / part).iterdir()) / "a_broken.png").write_bytes(b"not an image")
    again, notes = adapt(place, folder, epochs=2)
    (said,) = (note for note in notes if "do not decode and are left out" in note)
    assert said.startswith("2 image(s)") and "a_broken.png" in said
    image = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.predict(image).logits, again.predict(image).logits)
    for path in (folder / "train").rglob("*.png"):
        path.write_bytes(b"not an image")
    with pytest.raises(DataError, match="there is no other training image"):
        adapt(place, folder, epochs=2)


@pytest.mark.usefixtures("few_images")
def test_thorki_trains_a_gate_for_the_new_client(tmp_path: Path):
    steps = ("--opts", "TRAINER.THORKI.FUSION_STEPS", "10")
    assert jobs.run(tmp_path / "out", "--trainer", "Thorki", *steps) == 0
    place = jobs.folder(tmp_path / "out")
    model, notes = adapt(place, photos(tmp_path / "photos", place))
    assert "gate.on" in model.params
    assert "gate.on" not in fedvlm.load(place).global_model.params
    assert any("personalised as Thorki does after the last round" in note for note in notes)


def test_a_server_that_keeps_something_for_each_client_is_said(tmp_path: Path):
    assert jobs.run(tmp_path / "out", "--trainer", "FedFomo") == 0
    place = jobs.folder(tmp_path / "out")
    with pytest.raises(ConfigError, match="FedFomo: its server keeps tensors for each client"):
        adapt(place, photos(tmp_path / "photos", place))


def test_the_verb_writes_an_export(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place = jobs.folder(quick_run)
    words = ["--images", str(photos(tmp_path / "photos", place)), "--to", str(tmp_path / "new")]
    assert main(["adapt", str(place), *words, "--epochs", "1"]) == 0
    out = capsys.readouterr()
    assert "read back" in out.out and "1 epochs of fine-tuning" in out.err
    assert "a new client" in (tmp_path / "new" / "README.md").read_text()


def test_mistakes_get_a_sentence(quick_run: Path, tmp_path: Path):
    place = jobs.folder(quick_run)
    for epochs in (-1, "some", 2.5, True):
        with pytest.raises(ConfigError, match="epochs expects a whole number from 0 on, got "
                                              f"'{epochs}'"):
            adapt(place, tmp_path, epochs=epochs)  # type: ignore[arg-type]
    with pytest.raises(DataError):
        adapt(place, tmp_path / "nowhere")
    folder = photos(tmp_path / "photos", place)
    next(p for p in folder.iterdir()).rename(folder / "a walrus")
    with pytest.raises(ConfigError, match="1 classes that the run does not know .first: a walrus"):
        adapt(place, folder)
