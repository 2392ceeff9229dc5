"""FedMVP: prompts of an image against torch's attention; the pull to the frozen feature."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedvlm.core.rng import stream
from fedvlm.models.vlmodel import VLModel
from tests.models.trunks import paired
from tests.trainers.small_world import batch, method, model, tree


def test_prompts_are_pooled_answers_of_the_patches() -> None:
    trainer = method("FedMVP", TOKENS=2, VARIANT="fixed")
    p, b = tree(trainer), batch(names=("pixels",))
    w, tower = model().vision.width, model().vision
    rows = tower.enter(b.x["pixels"].flatten(0, 1)).unflatten(0, b.y.shape)
    got = trainer.prompts(model(), p, rows)[1, 2]
    one = {n.removeprefix("image.net."): v[1] for n, v in p.items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (w,), one[f"norm.{name}.weight"], one[f"norm.{name}.bias"])

    mha = torch.nn.MultiheadAttention(w, 4, batch_first=True, dtype=torch.float64)
    mha.load_state_dict({
        "in_proj_weight": torch.cat([one[f"attn.{s}.weight"] for s in "qkv"]),
        "in_proj_bias": torch.cat([one[f"attn.{s}.bias"] for s in "qkv"]),
        "out_proj.weight": one["attn.o.weight"], "out_proj.bias": one["attn.o.bias"],
    })
    texts = model().anchor("template", 0) @ one["text.weight"].T + one["text.bias"]
    x = mha(norm(rows[1, 2, 1:], "query"), *[norm(texts, "key")] * 2)[0]
    value, gate = (norm(x, "ff") @ one["ff1.weight"].T + one["ff1.bias"]).chunk(2, -1)
    x = x + (value * F.gelu(gate)) @ one["ff2.weight"].T + one["ff2.bias"]
    assert torch.allclose(got, x.view(2, -1, w).mean(1), atol=1e-12)  # four patches, two prompts
    _, parts = trainer.loss(model(), p, b)
    z, frozen = trainer.image_features(model(), p, b.x)[0], model().image(b.x)[0]
    assert torch.allclose(
        parts["near_loss"][0], 10 * (1 - F.cosine_similarity(z, frozen)).mean(), atol=1e-12
    )


def test_the_first_patch_is_read_where_no_class_token_stands_before_it() -> None:
    trainer, siglip = method("FedMVP"), VLModel(paired("siglip"), ("a", "b"))
    start = trainer.trainables(siglip, stream(1, "init"))
    p = {n: v[None].to(siglip.dtype) for n, v in start.items()}
    rows = torch.randn(1, 1, siglip.vision.tokens, siglip.vision.width).to(siglip.dtype)
    other = torch.cat([rows[:, :, :1].flip(-1), rows[:, :, 1:]], 2)
    got, want = (trainer.prompts(siglip, p, one) for one in (rows, other))
    assert not torch.allclose(got[:, :, 0], want[:, :, 0])
    assert torch.equal(got[:, :, -1], want[:, :, -1])  # of the last patches
