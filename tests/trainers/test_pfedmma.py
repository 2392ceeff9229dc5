"""pFedMMA: the bottleneck beside an MLP, written out for the last block."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedvlm.core.rng import stream
from fedvlm.core.trees import cast
from fedvlm.models.towers.blocks import NoEdits
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import NAMES, toy
from tests.trainers.small_world import batch, gradient, method, model, tree


def test_bottleneck_stands_beside_the_last_mlp() -> None:
    trainer = method("pFedMMA", BLOCKS=1, HIDDEN=3, SCALE=0.5, VARIANT="fixed")
    p, b = tree(trainer), batch(names=("pixels",))
    got = trainer.image_features(model(), p, b.x)[1, 2]
    tower = model().vision
    rows = tower.enter(b.x["pixels"][1, 2:3], 1)[None]
    block = tower.blocks[1]
    out = block(rows, NoEdits())  # x + attn + mlp, frozen
    h = rows + block.finish(
        torch.zeros_like(rows), _NoMlp(), block._attend(*(
            block.site(s, block.norms[0](rows), NoEdits()) for s in "qkv"
        ), None),
    )
    one = {n: v[1] for n, v in p.items()}

    def lin(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ one[f"{name}.weight"].T + one[f"{name}.bias"]

    x = block.norms[1](h)
    middle = F.relu(lin("both.mm_adapter.0", F.relu(lin("image.mm_adapter.0.down", x))))
    out = out + 0.5 * lin("image.mm_adapter.0.up", middle)
    want = tower.project(out[0, :, 0])[0]
    assert torch.allclose(got, want, atol=1e-9)


class _NoMlp(NoEdits):
    """The attention branch alone."""

    def branch(self, block: int, which: str, h: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(h) if which == "mlp" else h


def test_both_towers_move_the_shared_layer() -> None:
    trainer = method("pFedMMA", SCALE=0.5)
    p, b = tree(trainer), batch(names=("pixels",))
    full = gradient(trainer, p, b)
    assert set(full) == set(p) and all(bool(g.abs().max() > 0) for g in full.values())
    still = {n: torch.zeros_like(v) if n.startswith("image.") and ".up." in n else v
             for n, v in p.items()}
    text_only = gradient(trainer, still, b)["both.mm_adapter.0.weight"]
    assert float(text_only.abs().max()) > 0


def test_packed_texts_are_the_plain_ones() -> None:
    """On a tower whose norms are not neutral: what the bottleneck reads is behind the norm."""
    trainer, found = method("pFedMMA", SCALE=0.5, BLOCKS=2), []
    backbone = toy("vit", dtype=torch.float64)
    for packed in (False, True):
        m = VLModel(backbone, NAMES, packed=packed)
        start = cast(trainer.trainables(m, stream(1, "init")), torch.float64, torch.device("cpu"))
        draw = torch.Generator().manual_seed(4)
        p = {n: v + 0.1 * torch.randn(2, *v.shape, generator=draw).double()
             for n, v in start.items()}
        found.append(trainer.text_features(m, p))
        assert m.notes == []
    assert torch.allclose(*found, atol=1e-9)
