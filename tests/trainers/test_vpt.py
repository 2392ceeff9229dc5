"""VPT: the prompted tower is the one that files of the CoOp family get (``fedvlm.compat``)."""

from __future__ import annotations

import torch

from fedvlm.compat.towers import ImageTower
from tests.trainers.small_world import batch, method, model, tree


def test_prompts_stand_where_the_public_codes_put_them() -> None:
    trainer = method("VPT", TOKENS=3)
    p, b = tree(trainer), batch(names=("pixels",))
    assert set(p) == {"image.prompt.0", "image.prompt.1"}
    got = trainer.image_features(model(), p, b.x)
    visual = model().backbone.model.visual
    for k in range(2):
        tower = ImageTower(visual, 8, 12, design="VPT", depth=2, n_prompt=3)
        with torch.no_grad():
            tower.VPT.copy_(p["image.prompt.0"][k])
            tower.transformer.resblocks[1].VPT_shallow.data = p["image.prompt.1"][k]
            want = tower(b.x["pixels"][k])
        assert torch.allclose(got[k], want, atol=1e-6)  # VPT is kept in float32 there
    shallow = method("VPT", TOKENS=3, DEPTH=1)
    assert set(tree(shallow)) == {"image.prompt.0"}
