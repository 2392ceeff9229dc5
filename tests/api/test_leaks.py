"""What a step of a head gives away, against autograd on heads with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedvlm.api.leaks import counts_of_step, feature_of

SCALE = 20.0


def step(x: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy of a head on unit features."""
    w = head.clone().requires_grad_()
    loss = F.cross_entropy(SCALE * F.normalize(x, dim=-1) @ F.normalize(w, dim=-1).T, y)
    return torch.autograd.grad(loss, w)[0]


@pytest.mark.parametrize("label", range(4))
def test_the_feature_of_a_batch_of_one_is_exact(label: int) -> None:
    g = torch.Generator().manual_seed(label)
    head, x = torch.randn(4, 16, generator=g).double(), torch.randn(1, 16, generator=g).double()
    found = feature_of(step(x, torch.tensor([label]), head), head, SCALE)
    assert torch.allclose(found, F.normalize(x[0], dim=-1), atol=1e-7), "its sign too"


def test_two_images_are_not_recovered_as_one() -> None:
    """The planes of the classes then have no common line: no claim beyond a batch of one."""
    g = torch.Generator().manual_seed(9)
    head, x = torch.randn(4, 16, generator=g).double(), torch.randn(2, 16, generator=g).double()
    found = feature_of(step(x, torch.tensor([0, 1]), head), head, SCALE)
    assert float((F.normalize(x, dim=-1) @ found).abs().max()) < 0.99


def test_labels_of_a_step_are_exact_where_a_class_is_a_point() -> None:
    g = torch.Generator().manual_seed(1)
    head, centres = (torch.randn(6, 32, generator=g).double() for _ in range(2))
    classes = torch.arange(6)
    columns = torch.stack([step(centres[c : c + 1], classes[c : c + 1], head).flatten()
                           for c in range(6)])
    y = torch.tensor([0] * 5 + [2] * 11 + [5])
    found = counts_of_step(step(centres[y], y, head).flatten(), columns, len(y))
    assert np.allclose(found, [5, 0, 11, 0, 0, 1], atol=1e-6)
    noisy = centres[y] + 0.1 * torch.randn(len(y), 32, generator=g).double()
    near = counts_of_step(step(noisy, y, head).flatten(), columns, len(y))
    assert np.abs(near - [5, 0, 11, 0, 0, 1]).sum() < 4 and near.sum() == pytest.approx(17)
