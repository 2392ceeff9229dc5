"""CLIP-LoRA: q, k and v of both towers, by itself."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.core.rng import stream
from fedvlm.federation.discovery import load_trainer
from tests.trainers.small_world import method, model, world


def test_both_towers_have_lora_of_the_papers_rank_in_q_k_and_v() -> None:
    tree = method("CLIP-LoRA").trainables(model(), stream(1, "init"))
    places = {name.rpartition(".")[0] for name in tree}
    for tower, blocks in (("image", len(model().vision.blocks)), ("text", 2)):
        here = {p for p in places if p.startswith(f"{tower}.lora")}
        assert len(here) == 3 * blocks, (tower, here)
    assert {v.shape[0 if n.endswith(".A") else 1] for n, v in tree.items()} == {2}


def test_other_parts_are_for_other_methods() -> None:
    cls = load_trainer("CLIP-LoRA")
    cfg = world().config(cls)
    cfg.defrost()
    cfg.PEFT.TEXT = "prompt"
    with pytest.raises(ConfigError, match=r"--peft text-lora\+lora"):
        cls(cfg)


def test_the_update_is_scaled_by_the_root_of_the_rank_or_by_the_rank() -> None:
    root, rank = method("CLIP-LoRA"), method("CLIP-LoRA", SCALE="rank")
    assert root.spec.scale == pytest.approx(2**-0.5)  # type: ignore[attr-defined]
    assert rank.spec.scale == 0.5  # type: ignore[attr-defined]
    assert load_trainer("CLIP-LoRA").options["SCALE"].neutral == "rank"
    p = {n: torch.ones_like(v[None]).double() / 9
         for n, v in root.trainables(model(), stream(1, "init")).items()}
    same = {n: v * (2**0.5 if n.endswith(".B") else 1) for n, v in p.items()}
    torch.testing.assert_close(root.text_features(model(), p), rank.text_features(model(), same))
