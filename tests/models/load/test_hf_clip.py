"""transformers' CLIP through our loader gives transformers' own features."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.load.hf_clip import rename, rename_back
from fedvlm.models.vlmodel import VLModel
from tests.models.adapted import save_hf_clip
from tests.models.toys import NAMES, relative


def test_features_equal_transformers(tmp_path: Path) -> None:
    theirs = save_hf_clip(tmp_path)
    state = torch.random.get_rng_state()
    ours = load_backbone(str(tmp_path), loader="transformers")
    assert torch.equal(state, torch.random.get_rng_state())
    pixels, ids = torch.randn(3, 3, 32, 32), ours.tokenize(["a dog", "two grey cats."])
    with torch.no_grad():
        images = theirs.get_image_features(pixels).pooler_output
        texts = theirs.get_text_features(ids).pooler_output
    assert relative(ours.encode_image(pixels), images) < 1e-5
    emb = ours.embed_tokens(ids)
    assert relative(ours.encode_embeddings(emb, ours.eot(ids)), texts) < 1e-5
    model = VLModel(ours, NAMES)
    plain = VLModel(ours, NAMES, packed=False)
    ctx = torch.randn(1, 3, 32)
    assert relative(model.text(ctx), plain.text(ctx)) < 1e-5 and model.notes == []
    assert ours.logit_scale == pytest.approx(theirs.logit_scale.exp().item())


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no CLIP 'RN50'"):
        load_backbone("RN50", loader="transformers")
    with pytest.raises(ConfigError, match="drop 'openai'"):
        load_backbone("ViT-B/16", "openai", loader="transformers")
    with pytest.raises(DataError, match="cannot load"):
        load_backbone(str(tmp_path), loader="transformers")
    save_hf_clip(tmp_path, vocabulary=100)
    with pytest.raises(DataError, match="no tokenizer"):
        load_backbone(str(tmp_path), loader="transformers")
    save_hf_clip(tmp_path, hidden_act="relu")
    with pytest.raises(ConfigError, match="relu"):
        load_backbone(str(tmp_path), loader="transformers")


def test_names_go_both_ways(tmp_path: Path) -> None:
    state = save_hf_clip(tmp_path).state_dict()
    back = rename_back(rename(state))
    assert back.keys() == {n for n in state if not n.endswith("position_ids")}
    assert all(torch.equal(back[n], state[n]) for n in back)
