"""PGD in pixel space, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.models.adapt.attack import PGD, PixelSpace

EPS, ALPHA = 8 / 255, 2 / 255
CLIP = PixelSpace((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def linear(x: Tensor) -> Tensor:
    """z = (a x, 0) with a = 3, of one pixel."""
    one = 3 * x.flatten(-3).sum(-1)
    return torch.stack([one, torch.zeros_like(one)], -1)


@pytest.mark.parametrize(
    ("start", "steps", "end"),
    [(0.5, 20, 0.4686275), (0.01, 20, 0.0), (1.0, 20, 0.9686275), (0.5, 3, 0.4764706)],
)
def test_one_pixel(start: float, steps: int, end: float) -> None:
    x = torch.full((1, 1, 1, 1), start, dtype=torch.float64)
    attack = PGD(EPS, ALPHA, steps, random_start=False)
    found = attack(linear, x, torch.zeros(1, dtype=torch.int64))
    assert float(found) == pytest.approx(end, abs=5e-8)


def small_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)
    ).double()
    net(torch.zeros(2, 3, 8, 8, dtype=torch.float64))
    return net


def images(*lead: int) -> Tensor:
    return torch.rand(*lead, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("random_start", [True, False])
def test_bounds_and_no_traces(random_start: bool) -> None:
    with torch.random.fork_rng():
        net = small_net()
    x, y = images(6), torch.arange(6) % 5
    net.train()
    net[1].eval()
    modes = [m.training for m in net.modules()]
    found = PGD(EPS, ALPHA, 20, random_start)(net, x, y, torch.Generator().manual_seed(3))
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    assert float((found - x).abs().max()) <= EPS + 1e-6
    assert [m.training for m in net.modules()] == modes
    assert all(p.grad is None for p in net.parameters())
    assert not found.requires_grad
    before, after = (F.cross_entropy(net(v), y).detach() for v in (x, found))
    assert float(after) > float(before) + 1e-3


def test_leading_axes_are_independent() -> None:
    with torch.random.fork_rng():
        net = small_net().eval()

    def stacked(x: Tensor) -> Tensor:
        return net(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    x, y = images(2, 3), torch.tensor([[0, 1, 2], [3, 4, 0]])
    attack = PGD(EPS, ALPHA, 4, random_start=False)
    both = attack(stacked, x, y)
    for k in range(2):
        assert torch.allclose(both[k], attack(net, x[k], y[k]), atol=1e-12)


def test_random_start_is_a_function_of_the_generator() -> None:
    x, y = images(2), torch.zeros(2, dtype=torch.int64)
    attack = PGD(EPS, ALPHA, 0)
    one, same, other = (attack(linear, x, y, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert float((one - x).abs().max()) > EPS / 2


def test_normalisation_happens_inside() -> None:
    """In normalised units nothing moves further than eps / std; clamping those to [0, 1] would."""
    pixels = images(4)
    normalised = CLIP.normalise(pixels)
    assert torch.allclose(CLIP.pixels(normalised), pixels, atol=1e-15)
    weight = torch.randn(2, 3 * 64, generator=torch.Generator().manual_seed(2)).double()

    def logits(x: Tensor) -> Tensor:
        return CLIP.normalise(x).flatten(1) @ weight.T

    found = PGD(EPS, ALPHA, 20)(logits, CLIP.pixels(normalised), torch.tensor([0, 1, 0, 1]),
                                torch.Generator().manual_seed(4))
    moved = (CLIP.normalise(found) - normalised).abs().amax((0, 2, 3))
    assert moved.tolist() == pytest.approx([0.1168, 0.1201, 0.1138], abs=5e-5)
    wrong = (normalised.clamp(0, 1) - normalised).abs().max()  # what the released code does
    assert float(wrong) > 1.5


def test_pixels_cut_rounding_only() -> None:
    x = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 1, 1)
    back = CLIP.pixels(CLIP.normalise(x))
    assert float(back.min()) >= 0 and float(back.max()) <= 1
    assert torch.allclose(back, x, atol=1e-6)
