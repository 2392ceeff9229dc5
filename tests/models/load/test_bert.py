"""An encoder as the tower of texts: its feature, its layers with edits, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.transform import TextSpec
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.towers.adapters import TreeEdits, lora_tree
from fedvlm.models.towers.blocks import NoEdits
from fedvlm.models.vlmodel import VLModel
from tests.models.bert import WORDS, write_bert

TEXTS = ("the engine is a wheel", "moon", "the law of the party and the vote was a state " * 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


def model_of(folder: Path, dtype: torch.dtype = torch.float64, length: int = 16) -> VLModel:
    backbone = load_backbone(f"transformers-text:{folder}", dtype=dtype, length=length)
    return VLModel(backbone, ["cars", "space"])


def pixels_of(model: VLModel, texts: tuple[str, ...] = TEXTS) -> torch.Tensor:
    spec = model.backbone.transform_spec
    assert isinstance(spec, TextSpec)
    return torch.tensor([spec.tokenize(text) for text in texts], dtype=model.dtype)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_feature_is_the_mean_of_transformers_own_rows(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = write_bert(tmp_path, kind)
    model = model_of(folder)
    theirs = AutoModel.from_pretrained(folder, add_pooling_layer=False).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, row in zip(TEXTS, model.backbone.encode_image(pixels_of(model)), strict=True):
        ids = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            mean = theirs(input_ids=ids).last_hidden_state[0].mean(0)  # alone: nothing is padded
        torch.testing.assert_close(row, mean, rtol=0, atol=1e-9)


@pytest.mark.parametrize("start", [0, 1, 2])
def test_the_layers_read_out_are_the_encoder(folder: Path, start: int) -> None:
    model = model_of(folder)
    pixels = pixels_of(model)
    rows = model.vision.enter(pixels, start)
    empty = pixels == 0
    assert empty.any() and bool((rows[empty] == 0).all())
    assert bool((rows[~empty] != 0).any(-1).all())
    z, taps = model.adapted_image({f"tokens.{start}": rows[None]}, NoEdits(), taps=(2,))
    torch.testing.assert_close(z[0], model.backbone.encode_image(pixels), rtol=0, atol=1e-9)
    assert bool((taps[2][0][empty] == 0).all())


def test_low_rank_updates_are_those_of_changed_weights(folder: Path) -> None:
    model, clients = model_of(folder), 2
    draw = torch.Generator().manual_seed(1)
    sites = ("q", "k", "v", "o", "fc", "proj")
    tree = {n: torch.randn(clients, *v.shape, generator=draw).double() * 0.3
            for n, v in lora_tree("image", model.vision.blocks, sites, 2, draw).items()}
    pixels = pixels_of(model).expand(clients, -1, -1)
    out, _ = model.adapted_image({"pixels": pixels}, TreeEdits("image", tree, 0.5))
    for client in range(clients):
        other = model_of(folder)
        for block in other.vision.blocks:
            for site in sites:
                name = f"image.lora.{block.index}.{site}"
                update = tree[f"{name}.B"][client] @ tree[f"{name}.A"][client]
                block.layers[site][0].data += 0.5 * update
        expected = other.backbone.encode_image(pixels[client])
        torch.testing.assert_close(out[client], expected, rtol=0, atol=1e-9)
        assert not torch.allclose(expected, model.backbone.encode_image(pixels[client]))


def test_a_batchs_padding_is_no_divide_by_zero(folder: Path) -> None:
    model = model_of(folder)
    rows = model.vision.enter(pixels_of(model))
    rows = torch.cat([rows, torch.zeros_like(rows[:1])])
    z, _ = model.adapted_image({"tokens.0": rows[None]}, NoEdits())
    assert bool(torch.isfinite(z).all()) and bool((z[0, -1] == 0).all())


def test_the_tokenizer_is_part_of_the_cache_key(folder: Path, tmp_path: Path) -> None:
    here = model_of(folder).backbone
    again = model_of(folder).backbone
    longer = model_of(folder, length=20).backbone
    assert here.transform_spec.digest == again.transform_spec.digest
    assert here.transform_spec.digest != longer.transform_spec.digest
    assert here.digest == longer.digest
    other = write_bert(tmp_path)
    words = [*WORDS[:-2], WORDS[-1], WORDS[-2]]
    (other / "vocab.txt").write_text("\n".join(words) + "\n")
    assert model_of(other).backbone.transform_spec.digest != here.transform_spec.digest
    assert model_of(other).backbone.digest == here.digest


def test_what_cannot_be_read_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="model.safetensors and the tokenizer's files"):
        load_backbone("transformers-text:nowhere/to-be-found")
    with pytest.raises(ConfigError, match="TEXT_LENGTH 41: .* has 40 positions"):
        model_of(folder, length=41)
    with pytest.raises(ConfigError, match="drop 'x.pt'"):
        load_backbone(f"transformers-text:{folder}", "x.pt")
    other = write_bert(tmp_path)
    (other / "vocab.txt").write_text("\n".join([*WORDS, "more", "words"]) + "\n")
    with pytest.raises(DataError, match="does not belong to its encoder"):
        model_of(other)
    model = model_of(folder)
    with pytest.raises(ConfigError, match="reads texts: there are no patch features"):
        model.patches({"pixels": pixels_of(model)[None]})
    with pytest.raises(ConfigError, match="has no text tower"):
        model.anchor("template", 0)
