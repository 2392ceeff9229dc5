"""TOFA: moments add up; the discriminant of Gaussians; texts and their fusion."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlm.check.world import Setup
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.toolbox.moments import Moments, best_share
from tests.trainers.small_world import batch, method, model, world


@pytest.mark.parametrize("variant", ["published", "fixed"])
def test_global_model_is_that_of_all_images_and_the_personal_one_counts_own_twice(
    variant: str
) -> None:
    none = np.zeros(0, np.int64)
    parts = [IndexSplit(np.arange(0, 8), none, none), IndexSplit(np.arange(8, 30), none, none)]
    opts = {"SHRINK": 0.2, "PRIOR": 1.0, "TEMPLATES": ("a {}.",), "VARIANT": variant}
    setups = [Setup(splits=s, rounds=1, chunk=2, opts=opts) for s in (
        parts, [IndexSplit(np.arange(30), none, none)]
    )]
    two, one = (world().federation(load_trainer("TOFA"), s) for s in setups)
    ends = [f.run() for f in (two, one)]
    for name in ("head.visual", "head.bias"):
        assert torch.allclose(*(e.server["w"][name] for e in ends), atol=1e-8), name
    ((_, both),) = list(two.personal(ends[0], [0]))
    twice = torch.cat([torch.arange(30), torch.arange(8)])
    z, y = F.normalize(world().features[twice], dim=-1), world().labels[twice]
    member = F.one_hot(y, 4).double()
    m = Moments(member.sum(0), member.T @ z, z.T @ z)
    whole = Moments(m.count - member[30:].sum(0), m.total - member[30:].T @ z[30:],
                    m.gram - z[30:].T @ z[30:])
    want = two.trainer.heads(m, both["head.mix"][0], two.trainer.share(whole))
    for name in ("head.visual", "head.bias"):
        assert torch.allclose(both[name][0], want[name], atol=1e-8), name


@pytest.mark.parametrize("variant", ["published", "fixed"])
def test_discriminant_is_the_log_ratio_of_gaussians(variant: str) -> None:
    z, y = world().features, world().labels
    member = F.one_hot(y, 4).double()
    m = Moments(member.sum(0), member.T @ z, z.T @ z)
    trainer = method("TOFA", SHRINK=0.3, VARIANT=variant)
    head = trainer.heads(m, torch.zeros(4, 1).double(), trainer.share(m))
    means = torch.stack([z[y == c].mean(0) for c in range(4)])
    gap = z - means[y]
    cov, share = gap.T @ gap / len(z), 0.3
    if variant == "fixed":
        share = float(best_share(m))
        assert 0 < share < 0.3
    cov = (1 - share) * cov + share * cov.diagonal().mean() * torch.eye(12).double()
    want = torch.stack([
        torch.distributions.MultivariateNormal(v, cov).log_prob(z) for v in means
    ], -1).softmax(-1)
    ours = (z @ head["head.visual"].T + head["head.bias"]).softmax(-1)
    assert torch.allclose(ours, want, atol=1e-9)


def test_a_client_votes_for_the_classes_that_it_has() -> None:
    """The texts' scores are means over the clients with images of a class, here two and one."""
    none = np.zeros(0, np.int64)
    parts = [IndexSplit(np.array([0, 1, 4]), none, none), IndexSplit(np.array([0, 8]), none, none)]
    setup = Setup(splits=parts, rounds=1, chunk=2, opts={"TEMPLATES": ("a {}.", "one {}.")})
    run = world().record(load_trainer("TOFA"), setup)
    sent, server = run.events[0].updates, run.states[-1].server
    assert sent is not None
    assert world().labels[[0, 1, 4, 8]].tolist() == [0, 1, 0, 0]
    assert server["sums"]["tofa.votes"].tolist() == [2, 1, 0, 0]
    score = sent.extras["tofa.score"]
    want = torch.stack([score[:, 0].mean(0), score[0, 1], *torch.zeros(2, 3).double()])
    assert torch.allclose(server["w"]["head.mix"], (want / 0.1).softmax(-1), atol=1e-9)


def test_the_surer_side_weighs_more() -> None:
    trainer = method("TOFA", TEMPLATES=())
    p = {"head.visual": torch.zeros(1, 4, 12).double(), "head.bias": torch.zeros(1, 4).double(),
         "head.mix": torch.ones(1, 4, 1).double()}
    x = batch(1).x
    said = model().logits(x["features"], model().anchor("template", 0))[0]
    top = said.softmax(-1).amax(-1, keepdim=True)
    got = trainer.predict(model(), p, x)[0]
    assert torch.allclose(got, said * top / (top + 0.25), atol=1e-9)
    assert sys.modules[type(trainer).__module__].LEAST < 1
