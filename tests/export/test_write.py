"""Folders that are whole or not there, their cards and their index."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import SafetensorError

from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.export import write
from fedvlm.export.card import readme
from fedvlm.export.formats import openclip, tensors
from fedvlm.export.recipe import build_recipe, difference
from fedvlm.export.trained import Facts, untested_model
from fedvlm.export.write import export, export_all
from tests.export.models import trained
from tests.jobs import REPOSITORY

LORA = ("--peft", "prompt+lora")


@pytest.mark.parametrize("form", ["safetensors", "peft", "open_clip"])
def test_the_card_is_the_hubs(form: str, tmp_path: Path) -> None:
    whole = trained("fedavg", LORA)
    export(whole, tmp_path / "out", form)
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.license == "apache-2.0" and card.data.library_name == form
    assert card.data.pipeline_tag == "image-classification" and "fedvlm" in card.data.tags
    (result,) = card.data.eval_results or []
    assert (result.dataset_name, result.metric_value) == ("noise, 6 images", 61.5)
    for words in ("tiny (embedded)", "client 1 of 2", "McMahan", "| accuracy | 61.50 |",
                  "red triangle", "**Licence of the base weights**: apache-2.0"):
        assert words in card.text, words


def test_the_card_says_how_many_images_a_number_is_of_and_no_path(tmp_path: Path) -> None:
    whole = trained("zeroshot")
    local = whole.model.fresh()
    local.backbone = copy.copy(local.backbone)
    local.backbone.name, local.backbone.weights = "local-dir:/home/anna/clip", "local-dir:anna/clip"
    said = readme(build_recipe(whole), replace(
        whole, model=local, facts=replace(whole.facts, images=23)), "safetensors", "")
    assert "| accuracy | 61.50 | 23 |" in said and "test images" in said
    bare = replace(whole, facts=Facts("client 3 of 4", untested=untested_model(12, 0)))
    assert ("## Results\nThis client has no test images: its model was never tested on its images "
            "(12 training images).\n") in readme(build_recipe(bare), bare, "", "")
    bare = replace(whole, facts=Facts("global"))
    assert "## Results" not in readme(build_recipe(bare), bare, "", "")
    assert untested_model(12, 1) == untested_model(0, 0) == ""
    assert untested_model(1, 0).endswith("(1 training image).")
    assert "local-dir:clip (local-dir:clip)" in said and "anna" not in said


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    """The tiny backbone is this project's own, under its licence."""
    whole = replace(trained("zeroshot"), facts=Facts())
    export(whole, tmp_path / "out", "safetensors")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.license == "apache-2.0" and card.data.base_model is None
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text()
    other = whole.model.fresh()
    other.backbone = copy.copy(other.backbone)
    other.backbone.name = "local-dir:clip"
    said = readme(build_recipe(whole), replace(whole, model=other), "safetensors", "")
    assert "license: unknown" in said and "unknown to fedvlm: ask the authors" in said


def test_all_is_a_folder_each_and_one_tower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as at a user's
    whole = trained("fedavg", LORA)
    moved = {n: v + 0.05 for n, v in whole.params.items()}
    models = {"client-1": whole, "global": replace(whole, params=moved, facts=Facts("global"))}
    done = export_all(models, tmp_path / "all", "safetensors")
    assert {p.name for p in (tmp_path / "all").iterdir()} == {
        "client-1", "global", "tower.safetensors", "README.md", "SHA256SUMS", "index.json",
    }
    for name, one in models.items():
        recipe = build_recipe(one)
        with torch.no_grad():
            logits = tensors.read(done[name].folder)(recipe.pixels)
        assert difference(logits, recipe.logits) <= 1e-5
    assert not list((tmp_path / "all").rglob("__pycache__"))
    index = json.loads((tmp_path / "all" / "index.json").read_text())
    assert [m["name"] for m in index["models"]] == ["client-1", "global"]
    assert "[global](global/README.md) | global" in (tmp_path / "all" / "README.md").read_text()


def test_nothing_is_left_of_a_refusal_or_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"a": trained("fedavg", LORA), "b": trained("fedavg", ("--peft", "prompt+feature"))}
    with pytest.raises(ConfigError, match="b: prediction needs an adapter on the image feature"):
        export_all(models, tmp_path / "all", "open_clip")
    monkeypatch.setattr(openclip, "merge_lora", lambda clip, lora, scale: clip.state_dict())
    with pytest.raises(FedvlmError, match="gives different logits when it is read back"):
        export(models["a"], tmp_path / "one", "open_clip")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors has an error of its own, with these words."""
    def save(held: object, path: str) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device "
                              "(os error 28)")

    monkeypatch.setattr(tensors, "save_file", save)
    with pytest.raises(DataError, match=r"out.*: the disk is full \(free some space\)"):
        export(trained("zeroshot"), tmp_path / "out", "safetensors")
    assert list(tmp_path.iterdir()) == []


def test_folders_formats_and_names_are_checked_first(tmp_path: Path) -> None:
    whole = trained("zeroshot")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        export(whole, tmp_path / "full", "safetensors")
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match="did you mean 'safetensors'"):
        export(whole, tmp_path / "new", "safetensor")
    for names in (["../up"], ["A", "a"], []):
        with pytest.raises(ConfigError, match="folder name|at least one"):
            export_all(dict.fromkeys(names, whole), tmp_path / "new", "safetensors")
    assert list(write.FORMATS) == ["safetensors", "peft", "open_clip", "onnx"]
