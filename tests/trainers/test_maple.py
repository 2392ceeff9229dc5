"""MaPLe: visual prompts are the text's images, and enter where the public code puts them."""

from __future__ import annotations

import torch

from fedvlm.compat.towers import ImageTower
from fedvlm.federation.discovery import load_trainer
from tests.trainers.small_world import batch, gradient, method, model, tree


def test_visual_prompts_are_linear_images_of_the_texts() -> None:
    trainer = method("MaPLe")
    p, b = tree(trainer), batch(names=("pixels",))
    got = trainer.image_features(model(), p, b.x)
    for k in range(2):
        v = [p[n][k] @ p[f"image.couple.{i}.weight"][k].T + p[f"image.couple.{i}.bias"][k]
             for i, n in enumerate(("text.ctx", "text.prompt.1"))]
        visual = model().backbone.model.visual
        tower = ImageTower(visual, 8, 12, design="MaPLe", depth=0, n_prompt=2)
        with torch.no_grad():
            want = tower(b.x["pixels"][k], v[0], v[1:])
        assert torch.allclose(got[k], want, atol=1e-9)
    assert all(bool(g.abs().max() > 0) for g in gradient(trainer, p, b).values())


def test_words_behind_the_learned_tokens_stay_or_are_cut() -> None:
    kept, cut = method("MaPLe"), method("MaPLe", WORDS="cut")
    p = tree(kept)
    deep = {1: p["text.prompt.1"]}
    words = model().text(p["text.ctx"], deep=deep, words="a photo of a")
    assert torch.equal(kept.text_features(model(), p), words)
    none = model().text(p["text.ctx"], deep=deep)
    assert torch.equal(cut.text_features(model(), p), none)
    assert float((words - none).abs().max()) > 1e-3
    assert load_trainer("MaPLe").options["WORDS"].neutral == "cut"
