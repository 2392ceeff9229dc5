"""Hidden channels: which layers have them, where they lie, and that nothing else feels them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from fedvlm.models.adapt.channels import UnitAxis, hidden_channels, without_channels


def found(net: nn.Module) -> dict[str, list[tuple[str, int, int]]]:
    """Return site, axis and numbers of a unit by tensor."""
    trained = [n for n, p in net.named_parameters() if p.requires_grad]
    return {n: [(site, p.axis, p.each) for site, p in held]
            for n, held in hidden_channels(net, trained).items()}


class Residual(nn.Module):
    """Only what lies between its two convolutions is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.n, self.m = nn.BatchNorm2d(6), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.m(self.b(torch.relu(self.n(self.a(x))))))


def test_a_residual_block_gives_up_its_inner_channels_alone() -> None:
    assert found(nn.Sequential(Residual(), nn.Flatten(), nn.Linear(4, 2))) == {
        "0.a.weight": [("0.a", 0, 1)], "0.a.bias": [("0.a", 0, 1)],
        "0.n.weight": [("0.a", 0, 1)], "0.n.bias": [("0.a", 0, 1)],
        "0.b.weight": [("0.a", 1, 1)],
    }


def test_resnet18_has_one_site_in_each_block() -> None:
    places = found(resnet18(num_classes=3))
    sites = {site for held in places.values() for site, *_ in held}
    assert sites == {f"layer{i}.{j}.conv1" for i in (1, 2, 3, 4) for j in (0, 1)}
    assert set(places) == {f"layer{i}.{j}.{n}" for i in (1, 2, 3, 4) for j in (0, 1)
                           for n in ("conv1.weight", "bn1.weight", "bn1.bias", "conv2.weight")}


class Awkward(nn.Module):
    """Cannot be traced as a whole; a part of it can."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x if x.sum() > 0 else -x)


def test_what_cannot_be_traced_is_looked_at_part_by_part() -> None:
    assert set(found(Awkward())) == {"part.0.weight", "part.0.bias", "part.2.weight"}


def frozen_norm() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    net[1].weight.requires_grad_(False)
    return net


class Twice(nn.Module):
    """One layer that is called in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(self.a(x)))


@pytest.mark.parametrize("net", [
    nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)),  # not zero at zero
    nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1), nn.Linear(4, 2)),  # mixes channels
    nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
    nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 2, 1, groups=2)),
    nn.Sequential(nn.Conv2d(2, 4, 1), nn.Linear(8, 2)),  # reads places, not channels
    nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 2, 1)),
    frozen_norm(), Twice(), nn.Linear(3, 2),
])
def test_what_has_none(net: nn.Module) -> None:
    assert found(net) == {}


def test_a_place_shapes_masks_counts_rows_and_takes_norms() -> None:
    mask, conv = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.randn(2, 3, 2, 5, 5)
    rows, columns = UnitAxis(4, 0), UnitAxis(4, 1)
    assert rows(mask).shape == (2, 2, 1, 1, 1) and columns(mask).shape == (2, 1, 2, 1, 1)
    assert UnitAxis(2, 1, 3)(mask).tolist() == [[[1, 1, 1, 0, 0, 0]], [[0, 0, 0, 1, 1, 1]]]
    assert UnitAxis(2, 1, 3).along(torch.tensor([[1, -1]])).tolist() == [[3, 4, 5, -1, -1, -1]]
    assert torch.allclose(columns.norms(conv), conv.square().sum((1, 3, 4)).sqrt())
    flat = torch.randn(2, 4, 6)
    each = flat.unflatten(-1, (2, 3)).square().sum((1, 3)).sqrt()
    assert torch.allclose(UnitAxis(2, 1, 3).norms(flat), each)
    assert torch.equal(UnitAxis(2, 0).norms(flat), flat.norm(dim=-1))


@pytest.mark.parametrize("norm", [
    nn.BatchNorm2d(6), nn.BatchNorm2d(6, track_running_stats=False), nn.GroupNorm(3, 6),
])
def test_a_norm_computes_the_same_without_channels_of_zeros(norm: nn.Module) -> None:
    """Channels of a group that is zero as a whole are among them; the module itself stays."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 6, 3), norm, nn.ReLU()).eval().double()
    kept = torch.tensor([0, 1, 4])
    gone = torch.tensor([2, 3, 5])
    with torch.no_grad():
        for value in net.state_dict().values():
            if value.dim() and value.dtype.is_floating_point:
                value.copy_(torch.rand(value.shape) + 0.5)
        for value in (net[0].weight, net[0].bias, norm.weight, norm.bias):
            value[gone] = 0
        x = torch.randn(3, 2, 7, 7, dtype=torch.float64)
        small = without_channels(net, {"1": kept})
        small[0].weight, small[0].bias = (nn.Parameter(v[kept]) for v in net[0].parameters())
        assert (small(x) - net(x)[:, kept]).abs().max() < 1e-12
        assert dict(small.named_parameters())["1.weight"].shape == (3,) and net[1] is norm
    assert len(norm.weight) == 6
