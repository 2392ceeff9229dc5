"""The small classifiers against torch's own layers, client by client."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedvlm.core.trees import Tree
from fedvlm.models.adapt.small import WIDTHS, mlp_logits, small_mlp, small_tower, tower_logits

K, CLASSES = 3, 5


def clients(tree: Tree) -> Tree:
    """Return K different clients' values in float64."""
    draw = torch.Generator().manual_seed(2)
    return {
        n: v.double() + 0.1 * torch.randn(K, *v.shape, generator=draw).double()
        for n, v in tree.items()
    }


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).double()


def loaded(module: nn.Sequential, p: Tree, k: int) -> nn.Module:
    """Return ``module`` with client k's values, layer by layer in the tree's order."""
    module.double()
    module.load_state_dict(dict(zip(module.state_dict(), (v[k] for v in p.values()), strict=True)))
    return module


def test_the_tower_is_three_convolutions() -> None:
    p = clients(small_tower(CLASSES, torch.Generator().manual_seed(1)))
    x = drawn(K, 4, 3, 21, 17)
    found = tower_logits(p, x)
    assert found.shape == (K, 4, CLASSES)
    for k in range(K):
        convolutions = [
            layer for into, out in zip(WIDTHS[:-1], WIDTHS[1:], strict=True)
            for layer in (nn.Conv2d(into, out, 3, stride=2, padding=1), nn.GELU())
        ]
        one = nn.Sequential(
            *convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], CLASSES)
        )
        assert torch.allclose(loaded(one, p, k)(x[k]), found[k], 0, 1e-12)


def test_the_mlp_is_two_linear_layers_behind_a_norm() -> None:
    p = clients(small_mlp(7, 6, CLASSES, torch.Generator().manual_seed(1)))
    z = drawn(K, 4, 7)
    found = mlp_logits(p, z)
    for k in range(K):
        layers = (nn.LayerNorm(7, elementwise_affine=False), nn.Linear(7, 6), nn.GELU(),
                  nn.Linear(6, CLASSES))
        assert torch.allclose(loaded(nn.Sequential(*layers), p, k)(z[k]), found[k], 0, 1e-12)


def test_starts_are_within_torchs_bounds() -> None:
    tree = small_tower(CLASSES, torch.Generator().manual_seed(1))
    bound = {"small.conv1": 27, "small.conv2": 144, "small.conv3": 288, "small.fc": 64}
    for name, v in tree.items():
        largest = bound[name.rsplit(".", 1)[0]] ** -0.5
        assert 0.5 * largest < float(v.abs().max()) <= largest, name
