"""Builds with an encoder of transformers: from folders and the cache, and the image tower alone."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.export.traced import plain_model
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.peft import PeftSpec
from fedvlm.models.encoders import EncoderBackbone
from fedvlm.models.load.openclip import build_model, load
from fedvlm.models.load.vit import ViTBackbone
from fedvlm.models.towers.prompts import encode_texts
from fedvlm.models.vlmodel import VLModel
from tests.models.encoders import arch_of
from tests.models.toys import CONFIGS, NAMES, relative
from tests.models.trunks import shake

BUILD = "xlm-roberta-base-ViT-B-32"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "cat", ".", "x", "tench"]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing of the Hub is on this machine, and nothing can be fetched."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for module in ("huggingface_hub.constants", "huggingface_hub.file_download.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("fedvlm.models.load.weights.hub_is_reachable", lambda: False)
    return cache


def bert(arch: dict[str, Any], folder: Path, config: bool = True, tokenizer: bool = True) -> Any:
    """Write a folder as the Hub has them; return its model."""
    folder.mkdir(parents=True, exist_ok=True)
    model, _ = build_model(arch)
    shake(model)
    text = copy.deepcopy(arch["text_cfg"])
    sizes = text.pop("hf_config")
    card = {"model_cfg": arch | {"text_cfg": text}, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3]}}
    (folder / "open_clip_config.json").write_text(json.dumps(card))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(sizes))
    if tokenizer:
        (folder / "vocab.txt").write_text("\n".join(WORDS))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
    return model.eval()


def test_a_folder_with_everything(tmp_path: Path) -> None:
    model = bert(arch_of("bert"), tmp_path / "f")
    tower = load(f"local-dir:{tmp_path / 'f'}")
    assert isinstance(tower, EncoderBackbone) and tower.transform_spec.mean == (0.1, 0.2, 0.3)
    texts = ["a photo of a cat.", "x"]
    ids = tower.tokenize(texts)
    assert ids[1, :4].tolist() == [2, WORDS.index("x"), 3, 0]
    with torch.no_grad():
        want = model.encode_text(ids)
    assert relative(encode_texts(tower, texts), want) < 1e-6
    ctx = torch.zeros(3, tower.text_width)
    assert VLModel(tower, NAMES).text(ctx).shape == (len(NAMES), 24)
    assert tower.arch["text_cfg"]["hf_config"]["model_type"] == "bert"  # and in the digest
    other = arch_of("bert")
    other["text_cfg"]["hf_config"]["layer_norm_eps"] = 1e-3
    bert(other, tmp_path / "other")
    assert load(f"local-dir:{tmp_path / 'other'}").digest != tower.digest


def test_the_hubs_name_from_the_cache(tmp_path: Path, empty_cache: Path) -> None:
    with pytest.raises(DataError, match="is not in this machine's Hugging Face cache.*hf download"):
        load("hf-hub:toy/bert")
    repo = empty_cache / "models--toy--bert"
    bert(arch_of("bert"), repo / "snapshots" / "abc")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    tower = load("hf-hub:toy/bert")
    assert isinstance(tower, EncoderBackbone) and tower.name == "hf-hub:toy/bert"
    # The encoder's config and tokenizer come from there too, for a folder that has neither.
    bert(arch_of("bert"), tmp_path / "bare", config=False, tokenizer=False)
    other = load(f"local-dir:{tmp_path / 'bare'}")
    assert isinstance(other, EncoderBackbone) and other.digest == tower.digest


@pytest.mark.parametrize(("config", "tokenizer", "lack"), [
    (False, True, "the text encoder 'toy/bert' is not on this machine: put the config.json"),
    (True, False, "cannot load the tokenizer 'toy/bert'"),
])
def test_what_is_missing_is_told_when_a_text_is_asked_for(
    tmp_path: Path, config: bool, tokenizer: bool, lack: str
) -> None:
    model = bert(arch_of("bert"), tmp_path / "f", config, tokenizer)
    tower = load(f"local-dir:{tmp_path / 'f'}")
    assert isinstance(tower, ViTBackbone) and not tower.has_text
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert relative(tower.encode_image(pixels), model.encode_image(pixels)) < 1e-6
    assert tower.logit_scale == pytest.approx(float(model.logit_scale.detach().exp()))
    whole = VLModel(tower, NAMES)
    assert plain_model(whole).scale == tower.logit_scale  # as it is traced for ONNX
    assert lack in whole.notes[0] and "linear head starts at random" in whole.notes[0]
    for visual in ("none", "feature", "lora", "adapter"):
        tree = peft.build_tensors(PeftSpec("none", visual, "linear"), whole, torch.Generator())
        assert tree["head.weight"].shape == (len(NAMES), 24)
    for ask in (
        lambda: peft.build_tensors(PeftSpec("prompt"), whole, torch.Generator()),
        lambda: whole.anchor("template", 0),
        lambda: whole.text_width,
    ):
        with pytest.raises(DataError, match=lack):
            ask()


def test_a_build_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arch = arch_of("xlm-roberta")
    model: Any = build_model(arch)[0]
    shake(model)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    small = copy.deepcopy(arch)
    del small["text_cfg"]["hf_config"]
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, BUILD, small)
    tower = load(BUILD, str(tmp_path / "w.safetensors"))
    pixels = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert relative(tower.encode_image(pixels), model.eval().encode_image(pixels)) < 1e-6
    assert load(BUILD, random=True, seed=1).digest != load(BUILD, random=True, seed=2).digest


def test_siglip_without_its_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    small = copy.deepcopy(CONFIGS["siglip"])
    small["text_cfg"]["hf_tokenizer_name"] = "timm/nowhere"
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "ViT-B-16-SigLIP2", small)
    model = VLModel(load("ViT-B-16-SigLIP2", random=True), NAMES)
    with pytest.raises(DataError, match="cannot load the tokenizer 'timm/nowhere'"):
        model.anchor("template", 0)
    assert not model.has_text and model.notes


@pytest.mark.parametrize(("key", "value", "words"), [
    ("hf_model_name", "../secret", "names another place"),
    ("hf_tokenizer_name", "/etc/x", "names another place"),
])
def test_a_folder_cannot_point_elsewhere(
    tmp_path: Path, key: str, value: str, words: str
) -> None:
    arch = arch_of("bert")
    bert(arch, tmp_path / "f")
    card = tmp_path / "f" / "open_clip_config.json"
    body = json.loads(card.read_text())
    body["model_cfg"]["text_cfg"][key] = value
    card.write_text(json.dumps(body))
    with pytest.raises(DataError, match=words):
        load(f"local-dir:{tmp_path / 'f'}")


@pytest.mark.parametrize(("own", "words"), [
    ({"model_type": "bert", "hidden_size": 10**9}, "hidden_size is 1000000000; it must be"),
    ({"auto_map": {"AutoModel": "x.py"}}, "is not the config of a text encoder"),
])
def test_a_card_with_a_config_of_its_own(
    tmp_path: Path, own: dict[str, object], words: str
) -> None:
    bert(arch_of("bert"), tmp_path / "f")
    card = tmp_path / "f" / "open_clip_config.json"
    body = json.loads(card.read_text())
    body["model_cfg"]["text_cfg"]["hf_config"] = own
    card.write_text(json.dumps(body))
    model = VLModel(load(f"local-dir:{tmp_path / 'f'}"), NAMES)
    with pytest.raises(DataError, match=words):
        model.anchor("template", 0)


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": 32}'])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    bert(arch_of("bert"), tmp_path / "f")
    (tmp_path / "f" / "config.json").write_text(text)
    model = VLModel(load(f"local-dir:{tmp_path / 'f'}"), NAMES)
    with pytest.raises(DataError, match="is not the config of a text encoder of transformers"):
        model.anchor("template", 0)


def test_an_encoder_that_is_not_known(tmp_path: Path) -> None:
    arch = arch_of("bert")
    arch["text_cfg"]["hf_config"] |= {"model_type": "distilbert", "dim": 32, "n_layers": 1,
                                      "n_heads": 2, "hidden_dim": 32}
    with pytest.raises(ConfigError, match="open_clip cannot build"):
        build_model(arch)
