"""FedPFT: mixtures are scikit-learn's, draws follow them, the head is that of all draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture

from fedvlm.check.world import Setup
from fedvlm.core.rng import stream
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.discovery import load_trainer
from tests import jobs
from tests.trainers.small_world import method, world

KINDS = ["spherical", "diag", "full"]


def points(n: int, d: int = 5) -> torch.Tensor:
    draw = torch.Generator().manual_seed(n)
    return torch.randn(n, d, generator=draw, dtype=torch.float64) * 3 + 1


def fitted(y: torch.Tensor, z: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
    """Return what a client of these images would send, of four classes."""
    one: Any = method("FedPFT", **options)
    start = {"head.weight": z.new_zeros(4, z.shape[1])}
    into = {n: torch.zeros_like(v) for n, v in one.extra_forms(None, start).items()}
    one.fit_classes(into, z, y, torch.Generator().manual_seed(1))
    return into


@pytest.mark.parametrize("kind", KINDS)
def test_one_component_is_scikit_learns(kind: str) -> None:
    z, y = points(9), torch.tensor([2] * 9)
    got = fitted(y, z, COVARIANCE=kind)
    want = GaussianMixture(1, covariance_type=kind).fit(z.numpy())
    assert got["pft.count"].tolist() == [0, 0, 9, 0]
    assert torch.allclose(got["pft.mean"][2], torch.as_tensor(want.means_))
    assert torch.allclose(got["pft.spread"][2], torch.as_tensor(want.covariances_))
    assert not got["pft.mean"][[0, 1, 3]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_components_are_a_maximum_of_the_likelihood(kind: str) -> None:
    z = torch.cat([points(20) + 9, points(30) - 9])
    got = fitted(torch.ones(50, dtype=torch.int64), z, COVARIANCE=kind, MIXTURES=2)
    assert torch.allclose(got["pft.share"][1].sort()[0], torch.tensor([0.4, 0.6]).double())
    means = got["pft.mean"][1][got["pft.share"][1].argsort()]
    assert torch.allclose(means, torch.stack([z[:20].mean(0), z[20:].mean(0)]), atol=1e-4)


def test_a_class_of_few_images_stays_at_home() -> None:
    z, y = points(6), torch.tensor([0, 1, 1, 3, 3, 3])
    assert fitted(y, z)["pft.count"].tolist() == [0, 2, 0, 3]
    got = fitted(y, z, MIXTURES=2)
    assert got["pft.count"].tolist() == [0, 0, 0, 3]
    assert not got["pft.mean"][:3].any()


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_moments_of_their_mixture(kind: str) -> None:
    one: Any = method("FedPFT", COVARIANCE=kind)
    mixture = fitted(torch.zeros(40, dtype=torch.int64), points(40), COVARIANCE=kind)
    many = mixture | {"pft.count": torch.tensor([200_000, 0, 0, 0.0])}
    z, y = one.draw(many, torch.Generator().manual_seed(1))
    assert not y.any() and len(y) == 200_000
    assert torch.allclose(z.mean(0), mixture["pft.mean"][0, 0], atol=0.05)
    spread = mixture["pft.spread"][0, 0]
    want = spread if kind == "full" else (spread * torch.ones(5).double()).diag()
    assert torch.allclose(z.T.cov(), want, rtol=0.03, atol=0.1)


def test_the_head_is_adamw_on_the_draws_of_all_clients() -> None:
    none = np.zeros(0, np.int64)
    splits = [IndexSplit(np.arange(i, j), none, none) for i, j in ((0, 12), (12, 30))]
    setup = Setup(splits=splits, rounds=1, chunk=2, opts={"HEAD_EPOCHS": 3, "HEAD_LR": 0.01})
    fed = world().federation(load_trainer("FedPFT"), setup)
    got = fed.run().server["w"]
    trainer: Any = fed.trainer
    drawn = []
    for k, split in enumerate(splits):
        z, y = world().features[split.train], world().labels[split.train]
        into = {n: torch.zeros_like(v) for n, v in trainer.extra_forms(None, got).items()}
        trainer.fit_classes(into, z, y, torch.Generator())
        drawn.append(trainer.draw(into, stream(setup.seed, "draw", 1, k)))
    z, y = (torch.cat([one[i] for one in drawn]) for i in (0, 1))
    head = torch.nn.Linear(z.shape[1], 4, dtype=torch.float64)
    for value in head.parameters():
        torch.nn.init.zeros_(value)
    adamw = torch.optim.AdamW(head.parameters(), lr=0.01)
    order = stream(setup.seed, "head", 1, -1)
    for _ in range(3):
        for rows in torch.randperm(len(y), generator=order).split(32):
            adamw.zero_grad()
            F.cross_entropy(head(z[rows]), y[rows]).backward()
            adamw.step()
    assert torch.allclose(got["head.weight"], head.weight.detach(), atol=1e-9)
    assert torch.allclose(got["head.bias"], head.bias.detach(), atol=1e-9)


def test_more_than_alone_in_one_round(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--trainer", "FedPFT", "--rounds", "1") == 0
    found = jobs.results(tmp_path)
    assert found["last"]["personal"] > found["references"]["zero_shot"]["personal"]
