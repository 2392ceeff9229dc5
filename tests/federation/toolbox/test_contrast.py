"""SigLIP's loss of pairs, and which methods and backbones take ``OPTIM.LOSS sigmoid``."""

from __future__ import annotations

import math

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.toolbox.contrast import sigmoid_pairs
from fedvlm.federation.trainer import Trainer
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.models.vlmodel import VLModel
from tests.export.models import NAMES, federation, tiny
from tests.models.toys import toy


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_pairs_are_decided_one_by_one_and_padding_is_out() -> None:
    z = torch.tensor([[[2.0, 1.0, -1.0], [0.5, 3.0, 9.0]], [[9.0, 9.0, 9.0], [0.0, -2.0, 4.0]]])
    y, w = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    first = softplus(-1.0) + softplus(0.0) + softplus(-2.0)  # bias -1: pairs (1, 0, -2)
    second = softplus(-0.5) + softplus(-2.0) + softplus(8.0)
    third = softplus(-1.0) + softplus(-3.0) + softplus(-3.0)
    want = torch.tensor([(first + second) / 2, third])
    assert torch.allclose(sigmoid_pairs(z, y, w, -1.0), want, 0, 1e-6)
    z.requires_grad_(True)
    out = z.masked_fill(torch.tensor([False, False, True]), -math.inf)
    loss = sigmoid_pairs(out[:1], y[:1], w[:1], -1.0)
    assert torch.allclose(loss, torch.tensor([(first + second - softplus(-2) - softplus(8)) / 2]))
    loss.sum().backward()
    assert bool(z.grad.isfinite().all()) and float(z.grad[0, :, 2].abs().max()) == 0


def trainer_of(name: str, *words: str) -> Trainer:
    cfg = resolve(parse(["--demo", "--trainer", name, *words])).jobs[0].cfg
    return load_trainer(name)(cfg)


def test_the_loss_has_the_backbone_s_bias() -> None:
    words = ("OPTIM.LOSS", "sigmoid", "PEFT.N_CTX", "2")
    trainer, model = trainer_of("promptfl", *words), VLModel(toy("siglip"), NAMES)
    p = {"text.ctx": torch.randn(1, 2, model.text_width)}
    x = {"features": torch.randn(1, 3, model.embed_dim)}
    b = Batch(x, torch.tensor([[0, 1, 2]]), torch.ones(1, 3))
    z = trainer.predict(model, p, x)
    assert torch.equal(trainer.loss(model, p, b), sigmoid_pairs(z, b.y, b.w, -10.0))
    assert not trainer_of("promptfl").loss(model, p, b).equal(trainer.loss(model, p, b))
    fed = federation("fedprox", words, toy("siglip"))
    moved = fed.trainer.shared(fed.run().server)
    assert any(not v.equal(fed.p0[n]) for n, v in moved.items() if n in fed.p0)


@pytest.mark.parametrize(("name", "why"), [
    ("kgcoop", "OPTIM.LOSS sigmoid: KgCoOp has its own loss; drop the key"),
    ("afl", "AFL has its own loss"),
    ("promptfl", "OPTIM.LOSS sigmoid: the backbone has no logit_bias"),
])
def test_a_loss_that_nobody_reads_is_refused(name: str, why: str) -> None:
    trainer = trainer_of(name, "OPTIM.LOSS", "sigmoid")
    with pytest.raises(ConfigError, match=why):
        trainer.check_loss(VLModel(tiny(), NAMES))
