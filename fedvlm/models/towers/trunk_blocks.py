"""timm's transformer blocks as ``FrozenBlock``: ViT (SigLIP, DINOv2, ViTamin) and EVA (PE, DINOv3).

Read by names: whoever holds such a module has imported timm, and this file need not. What a block
has that ``FrozenBlock`` does not compute is refused. Sources: Dosovitskiy et al. 2021 (ViT), Zhai
et al. 2023 (SigLIP), Oquab et al. 2024 (DINOv2), Fang et al. 2023 (EVA-02: rotary positions,
SwiGLU, norms inside), Bolya et al. 2025 (PE), Simeoni et al. 2025 (DINOv3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.models.towers.blocks import FrozenBlock, Module, Pair, Rope, Unreadable, as_it_is

BLOCKS = {"timm.models.vision_transformer": "Block", "timm.models.eva": "EvaBlock"}
_FUSED = ("attn.qkv",)
# Kind of MLP -> the layers that are ``fc`` together, the gate's first where it stands alone; the
# last layer; the norms before the first and before the last.
_MLPS: Mapping[str, tuple[tuple[str, ...], str, str, str]] = {
    "Mlp": (("fc1",), "fc2", "", "norm"),
    "GluMlp": (("fc1",), "fc2", "", "norm"),
    "SwiGLU": (("fc1_g", "fc1_x"), "fc2", "", "norm"),
    "GeGluMlp": (("w0", "w1"), "w2", "norm", ""),
}


@dataclass(frozen=True)
class WeightRows:
    """Rows of a weight below a block: ``name`` of the layer, the first row and how many."""

    name: str
    first: int
    count: int


def is_timm(module: Any, *kinds: str) -> bool:
    """Tell whether a module's class is timm's own one of these names."""
    kind = type(module)
    return kind.__module__.startswith("timm.") and kind.__qualname__ in kinds


def places(block: Any) -> dict[str, tuple[WeightRows, ...]]:
    """Return where a block keeps the rows of q, k, v, o, fc, proj, one after the other.

    Raises:
        Unreadable: a block of another kind.
    """
    attn, mlp = block.attn, block.mlp
    if not is_timm(mlp, *_MLPS):
        raise Unreadable(f"its MLP is {type(mlp).__name__}")
    first, last, _, _ = _MLPS[type(mlp).__name__]
    if getattr(attn, "qkv", None) is not None:
        wide = len(attn.qkv.weight) // 3
        out = {s: (WeightRows("attn.qkv", i * wide, wide),) for i, s in enumerate("qkv")}
    else:
        out = {s: (_whole(block, f"attn.{s}_proj"),) for s in "qkv"}
    return out | {
        "o": (_whole(block, "attn.proj"),),
        "fc": tuple(_whole(block, f"mlp.{name}") for name in first),
        "proj": (_whole(block, f"mlp.{last}"),),
    }


def _whole(block: nn.Module, name: str) -> WeightRows:
    return WeightRows(name, 0, len(block.get_submodule(name).weight))  # type: ignore[arg-type]


def read_trunk(blocks: Sequence[Any], ropes: Sequence[Rope | None]) -> list[FrozenBlock]:
    """Return timm's blocks as plain weights (no copy), each with its rotary positions.

    Raises:
        Unreadable: blocks of another kind.
    """
    return [_read(i, b, rope) for i, (b, rope) in enumerate(zip(blocks, ropes, strict=True))]


def _read(index: int, block: Any, rope: Rope | None) -> FrozenBlock:
    if BLOCKS.get(type(block).__module__) != type(block).__qualname__:
        raise Unreadable(f"its blocks are {type(block).__name__}")
    attn, mlp, where = block.attn, block.mlp, places(block)
    if not is_timm(attn, "Attention", "AttentionRope", "EvaAttention"):
        raise Unreadable(f"its attention is {type(attn).__name__}")
    if getattr(attn, "gate", None) is not None or getattr(attn, "num_kv_groups", 1) != 1:
        raise Unreadable("its attention has a gate, or keys that queries share")
    odd = [n for n in (block.norm1, block.norm2) if not isinstance(n, nn.LayerNorm)]
    if odd:
        raise Unreadable(f"its norms are {type(odd[0]).__name__}")
    _, _, before_fc, behind = _MLPS[type(mlp).__name__]
    return FrozenBlock(
        index, int(attn.num_heads), {site: _layer(block, rows) for site, rows in where.items()},
        (block.norm1, block.norm2), (_scale(block, 1), _scale(block, 2)),
        _activation(mlp, _norm(mlp, behind)), 1.0, (_norm(attn, "q_norm"), _norm(attn, "k_norm")),
        rope, _norm(attn, "norm"), _norm(mlp, before_fc),
    )


def _norm(owner: Any, name: str) -> Module:
    norm = getattr(owner, name, None) if name else None
    return as_it_is if norm is None or isinstance(norm, nn.Identity) else norm


def _scale(block: Any, which: int) -> Module:
    """Return what scales a branch: a layer (ViT) or a vector (EVA)."""
    gamma = getattr(block, f"gamma_{which}", None)
    if gamma is not None:
        return lambda h: gamma * h
    return _norm(block, f"ls{which}")


def _activation(mlp: Any, norm: Module) -> Module:
    """Return what stands between an MLP's layers; a gated one halves its rows."""
    act: Callable[[Tensor], Tensor] = mlp.act
    if is_timm(mlp, "Mlp"):
        return act if norm is as_it_is else lambda h: norm(act(h))
    gate_last = bool(getattr(mlp, "gate_last", False))

    def gated(h: Tensor) -> Tensor:
        a, b = h.chunk(2, -1)
        return norm(a * act(b) if gate_last else act(a) * b)

    return gated


def _layer(block: Any, rows: Sequence[WeightRows]) -> Pair:
    layers = [block.get_submodule(r.name) for r in rows]
    if len(rows) > 1:
        biases = [layer.bias for layer in layers]
        return _joined(layers), None if biases[0] is None else torch.cat(biases)
    (layer,), (part,) = layers, rows
    cut = slice(part.first, part.first + part.count)
    return layer.weight[cut], _bias(block.attn, part, layer.bias, cut)


def _bias(attn: Any, part: WeightRows, bias: Tensor | None, cut: slice) -> Tensor | None:
    """Return a layer's bias; EVA keeps those of q and v beside their joint layer, k has none."""
    beside = getattr(attn, "q_bias", None)
    if part.name not in _FUSED or beside is None:
        return None if bias is None else bias[cut]
    return (beside, None, attn.v_bias)[part.first // part.count]


def _joined(layers: Sequence[Any]) -> Tensor:
    """Return the layers' weights as one, ``[sum of out, in]``; they become views of it.

    So nothing is kept twice, and a second reading finds them joined.
    """
    first, rows = layers[0].weight, sum(len(layer.weight) for layer in layers)
    at = [layer.weight.data_ptr() for layer in layers]
    step = first.element_size() * first.shape[1]
    steps = [0]
    for layer in layers[:-1]:
        steps.append(steps[-1] + step * len(layer.weight))
    room = first.untyped_storage().nbytes() - first.storage_offset() * first.element_size()
    if at[0] and [a - at[0] for a in at] == steps and room >= rows * step:
        return first.detach().as_strided((rows, first.shape[1]), (first.shape[1], 1))
    whole = torch.cat([layer.weight.detach() for layer in layers])
    for layer, part in zip(layers, whole.split([len(x.weight) for x in layers]), strict=True):
        layer.weight.data = part
    return whole
