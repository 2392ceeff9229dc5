"""Hidden channels of a network: what can be taken out of it without touching any other layer.

A channel is hidden where one layer writes it and one layer reads it, and what lies between keeps
channels apart and zero at zero: norms, activations, pooling, dropout, flattening. Then row j of
the writer (and its bias), entry j of the norms and column j of the reader stand and fall together.
Layers are found by torch.fx; a module that it cannot trace is looked at part by part.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)
APART = (  # keep channels apart, and zero at zero
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Hardswish, nn.Identity,
    nn.Dropout, nn.Dropout2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
)
CALLS = (
    F.relu, torch.relu, F.gelu, F.silu, F.leaky_relu, F.elu, torch.tanh, F.dropout, F.max_pool2d,
    F.avg_pool2d, F.adaptive_avg_pool2d, torch.max_pool2d, "relu", "relu_", "tanh", "contiguous",
)
FLAT = (torch.flatten, "flatten")


@dataclass(frozen=True)
class UnitAxis:
    """Where the units of a site lie in a tensor.

    Attributes:
        rank: of the tensor, its client axis aside.
        axis: along which units lie.
        each: numbers of a unit along that axis.
    """

    rank: int
    axis: int
    each: int = 1

    def __call__(self, mask: Tensor) -> Tensor:
        """Return ``mask [..., U]`` shaped to multiply a tensor ``[..., *]``."""
        wide = mask.repeat_interleave(self.each, -1) if self.each > 1 else mask
        ones = (1,) * self.axis, (1,) * (self.rank - self.axis - 1)
        return wide.reshape(*mask.shape[:-1], *ones[0], wide.shape[-1], *ones[1])

    def along(self, index: Tensor) -> Tensor:
        """Return the positions ``[..., U * each]`` of units ``[..., U]``; -1 stays -1."""
        if self.each == 1:
            return index
        steps = torch.arange(self.each, device=index.device)
        at = torch.where(index[..., None] < 0, -1, index[..., None] * self.each + steps)
        return at.flatten(-2)

    def norms(self, value: Tensor) -> Tensor:
        """Return the L2 norm of each unit, ``[..., U]``."""
        if self.rank == 2 and self.each == 1:  # noqa: PLR2004
            return value.norm(dim=-1 if self.axis == 0 else -2)
        lead = value.dim() - self.rank
        rows = value.movedim(lead + self.axis, lead).flatten(lead + 1)
        return rows.unflatten(lead, (-1, self.each)).square().sum((-1, -2)).sqrt()


Held = tuple[tuple[str, UnitAxis], ...]


def hidden_channels(module: nn.Module, trained: Collection[str]) -> dict[str, Held]:
    """Return (site, place) of every tensor that has hidden channels, by its name.

    A layer between two others has two: rows that it writes, and columns that it reads.

    Args:
        trained: names of parameters; channels that lie in another one stay.
    """
    found: dict[str, Held] = {}
    for prefix, part, graph in _graphs(module, ""):
        for node in graph.nodes:
            site = _site(prefix, part, node) if node.op == "call_module" else {}
            if site and site.keys() <= {*trained}:
                for name, place in site.items():
                    found[name] = (*found.get(name, ()), (f"{prefix}{node.target}", place))
    return found


class KeptGroupNorm(nn.Module):
    """A group norm over the channels that are left; those taken out count as the zeros they were.

    Args:
        norm: over all channels.
        kept: which of them are left, ``[U]``, ascending.
    """

    member: Tensor

    def __init__(self, norm: nn.GroupNorm, kept: Tensor) -> None:
        super().__init__()
        self.eps, self.size = norm.eps, norm.num_channels // norm.num_groups
        self.weight, self.bias = nn.Parameter(norm.weight[kept]), nn.Parameter(norm.bias[kept])
        group = F.one_hot(kept // self.size, norm.num_groups)
        self.register_buffer("member", group.to(norm.weight.dtype))  # [U, groups]

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x [B, U, ...]``, normalised."""
        rows = x.reshape(x.shape[0], x.shape[1], -1)
        places = rows.shape[-1]
        mean = rows.sum(-1) @ self.member / (self.size * places)  # [B, groups]
        rows = rows - (mean @ self.member.t())[..., None]
        gone = places * (self.size - self.member.sum(0))
        square = rows.square().sum(-1) @ self.member + gone * mean.square()
        scale = (square / (self.size * places) + self.eps).rsqrt() @ self.member.t()
        return (rows * (scale * self.weight)[..., None] + self.bias[:, None]).reshape(x.shape)


def without_channels(module: nn.Module, kept: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a module whose norms take fewer channels and compute as before.

    Args:
        kept: a norm's name to its channels that are left ``[U]``; all others must be zero before
            the norm and in its weight and bias.
    """
    out = copy.deepcopy(module)
    for name, index in kept.items():
        norm = out.get_submodule(name)
        above, _, last = name.rpartition(".")
        if isinstance(norm, nn.GroupNorm):
            setattr(out.get_submodule(above), last, KeptGroupNorm(norm, index).eval())
            continue
        for kind in ("_parameters", "_buffers"):  # BatchNorm: each channel by itself
            tensors: dict[str, Any] = vars(norm)[kind]
            for key, value in list(tensors.items()):
                if value is not None and value.dim():
                    cut = value.detach()[index]
                    tensors[key] = nn.Parameter(cut) if kind == "_parameters" else cut
    return out


def _graphs(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module, fx.Graph]]:
    try:
        yield prefix, module, fx.Tracer().trace(module)
    except Exception:  # noqa: BLE001 (what a forward does with a proxy can fail in any way)
        for name, child in module.named_children():
            yield from _graphs(child, f"{prefix}{name}.")


def _site(prefix: str, module: nn.Module, node: fx.Node) -> Mapping[str, UnitAxis]:
    """Return the tensors that hold the channels which ``node`` writes; none if they do not end."""
    writer = _called(module, node)
    if not _plain(writer) or not _once(node):
        return {}
    count, site = writer.weight.shape[0], f"{prefix}{node.target}"
    out = {f"{site}.weight": UnitAxis(writer.weight.dim(), 0)}
    if writer.bias is not None:
        out[f"{site}.bias"] = UnitAxis(1, 0)
    rows, here = isinstance(writer, nn.Linear), node
    while len(here.users) == 1:
        (here,) = here.users
        if here.op in ("call_function", "call_method"):
            if here.target in FLAT and not rows and here.args[1:] == (1,):
                rows = True
            elif here.target not in CALLS:
                return {}
            continue
        if here.op != "call_module":
            return {}
        layer, name = _called(module, here), f"{prefix}{here.target}"
        if isinstance(layer, LAYERS):
            width = layer.weight.shape[1] if layer.weight.dim() > 1 else 0
            if not _plain(layer) or not _once(here) or isinstance(layer, nn.Linear) is not rows:
                return {}
            return out | {f"{name}.weight": UnitAxis(layer.weight.dim(), 1, width // count)}
        if isinstance(layer, NORMS) and layer.weight is not None and _once(here):
            out |= {f"{name}.weight": UnitAxis(1, 0), f"{name}.bias": UnitAxis(1, 0)}
        elif isinstance(layer, nn.Flatten) and layer.start_dim == 1:
            rows = True
        elif not isinstance(layer, APART):
            return {}
    return {}


def _called(module: nn.Module, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(module)


def _plain(layer: nn.Module) -> bool:
    """Whether each of its rows is one channel that it writes."""
    return isinstance(layer, LAYERS) and getattr(layer, "groups", 1) == 1


def _once(node: fx.Node) -> bool:
    """Whether the forward calls the node's module in this place alone."""
    same = [n for n in node.graph.nodes if n.op == "call_module" and n.target == node.target]
    return len(same) == 1
