"""A frozen transformer block as plain weights, with a leading client axis and places for adapters.

Reads open_clip's ``ResidualAttentionBlock`` as it is, or as ``attention.cast_linears`` remade it.

Low-rank updates for several clients at once: one frozen product, then two batched ones.

LoRA and bottleneck adapters inside a tower's blocks: names, first values, application.

Names: ``<tower>.lora.<block>.<q|k|v|o|fc|proj>.{A [r, in], B [out, r]}`` and
``<tower>.adapter.<block>.<attn|mlp>.{ln,down,up}.{weight,bias}``; tower is ``image`` or ``text``.
Both start as the frozen tower, bit for bit: B and up are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.trees import Tree
from fedvlm.models.towers.clip import is_block
from fedvlm.models.towers.layers import QUICK_GELU, SplitAttention, frozen_linear

SITES = ("q", "k", "v", "o", "fc", "proj")
BRANCHES = ("attn", "mlp")
Pair = tuple[Tensor, "Tensor | None"]
Module = Callable[[Tensor], Tensor]


class Unreadable(Exception):
    """A tower whose blocks are not open_clip's standard ones."""


class Edits(Protocol):
    """What a client changes in a frozen block."""

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return layer ``site`` of ``x [K, ..., in]``, adapted; see ``Block.factor``."""
        ...

    def branch(self, block: int, which: str, h: Tensor) -> Tensor:
        """Return the output ``h [K, B, n, width]`` of a branch, adapted."""
        ...


class NoEdits:
    """The frozen block as it is."""

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return the frozen layer's output."""
        return frozen_linear(x, weight, bias)

    def branch(self, block: int, which: str, h: Tensor) -> Tensor:
        """Return ``h``."""
        return h


@dataclass(frozen=True)
class Block:
    """One frozen block.

    Attributes:
        index: number in its tower, from 0.
        heads: attention heads.
        layers: site -> (weight ``[out, in]``, bias), of ``SITES``.
        norms, scales: (before attention, before MLP), (after attention, after MLP).
        act: of the MLP.
        fold: c where ``fc`` is stored times c and ``proj`` over c (QuickGELU as SiLU), else 1.
    """

    index: int
    heads: int
    layers: dict[str, Pair]
    norms: tuple[Module, Module]
    scales: tuple[Module, Module]
    act: Module
    fold: float

    def factor(self, site: str) -> float:
        """Return what an update of the unfolded layer is to be multiplied with."""
        return {"fc": self.fold, "proj": 1 / self.fold}.get(site, 1.0)

    def shape(self, site: str) -> tuple[int, int]:
        """Return (out, in) of a layer."""
        out, into = self.layers[site][0].shape
        return out, into

    def __call__(
        self, x: Tensor, edits: Edits, mask: Tensor | None = None, read: Tensor | None = None
    ) -> Tensor:
        """Return the block's output.

        Args:
            x: ``[K, B, n, width]``.
            edits: see ``Edits``.
            mask: ``[n, n]``, added to the scores.
            read: ``[B]`` positions; the output is then of these rows only, ``[K, B, 1, width]``
                (nothing behind a last block needs the others).
        """
        h = self.norms[0](x)
        top, rows = (x, h) if read is None else (_rows(x, read), _rows(h, read))
        q, k, v = self._site("q", rows, edits), self._site("k", h, edits), self._site("v", h, edits)
        if mask is not None and read is not None:
            mask = mask[read].unsqueeze(1).unsqueeze(1)  # [B, 1, 1, n]
            mask = mask.repeat(len(x), 1, 1, 1)
        mixed = self._attend(q, k, v, mask)
        out = self.scales[0](self._site("o", mixed, edits))
        x = top + edits.branch(self.index, "attn", out)
        hidden = self.act(self._site("fc", self.norms[1](x), edits))
        out = self.scales[1](self._site("proj", hidden, edits))
        return x + edits.branch(self.index, "mlp", out)

    def _site(self, site: str, x: Tensor, edits: Edits) -> Tensor:
        weight, bias = self.layers[site]
        return edits.linear(self.index, site, x, weight, bias, self.factor(site))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """[K, B, m, width], [K, B, n, width] twice -> [K, B, m, width]."""
        mask = None if mask is None else mask.to(q.dtype)
        mixed = F.scaled_dot_product_attention(
            self._split(q), self._split(k), self._split(v), attn_mask=mask
        )
        return mixed.transpose(1, 2).reshape(q.shape)

    def _split(self, t: Tensor) -> Tensor:
        """[K, B, n, width] -> [K * B, heads, n, dim]."""
        return t.reshape(-1, t.shape[2], self.heads, t.shape[3] // self.heads).transpose(1, 2)


def _rows(x: Tensor, read: Tensor) -> Tensor:
    return x[:, torch.arange(x.shape[1], device=x.device), read].unsqueeze(2)


def read_blocks(resblocks: Sequence[Any]) -> list[Block]:
    """Return open_clip's blocks as plain weights (no copy).

    Raises:
        Unreadable: blocks of another kind.
    """
    found = []
    for index, block in enumerate(resblocks):
        if not is_block(block) or hasattr(block, "ln_1_kv"):
            raise Unreadable(f"its blocks are {type(block).__name__}")
        mlp, attn = block.mlp, block.attn
        fold = QUICK_GELU if type(mlp.gelu) is nn.SiLU else 1.0
        layers = _attention(attn) | {
            "fc": (mlp.c_fc.weight, mlp.c_fc.bias), "proj": (mlp.c_proj.weight, mlp.c_proj.bias),
        }
        found.append(
            Block(
                index, int(attn.num_heads), layers, (block.ln_1, block.ln_2),
                (block.ls_1, block.ls_2), mlp.gelu, fold,
            )
        )
    return found


def _attention(attn: Any) -> dict[str, Pair]:
    if isinstance(attn, SplitAttention):
        four = (attn.q_proj, attn.k_proj, attn.v_proj, attn.out_proj)
        return {s: (m.weight, m.bias) for s, m in zip("qkvo", four, strict=True)}
    if not isinstance(attn, nn.MultiheadAttention) or attn.in_proj_weight is None:
        raise Unreadable(f"its attention is {type(attn).__name__}")
    weights, biases = attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3)
    pairs: dict[str, Pair] = {s: (w, b) for s, w, b in zip("qkv", weights, biases, strict=True)}
    return pairs | {"o": (attn.out_proj.weight, attn.out_proj.bias)}


FACTOR_A, FACTOR_B = ".A", ".B"


def lora_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float = 1.0
) -> Tensor:
    """``x W^T + bias + scale * (x A_k^T) B_k^T`` for every client k; W is frozen.

    Args:
        x: [K, ..., in].
        weight: [out, in], shared by all clients, without gradient.
        bias: [out] or None.
        a: [K, r, in].
        b: [K, out, r].
        scale: LoRA's alpha / r.

    Returns:
        [K, ..., out].
    """
    flat = x.flatten(1, -2)
    update = flat.bmm(a.mT).bmm((scale * b).mT)
    return frozen_linear(x, weight, bias) + update.view(*x.shape[:-1], b.shape[1])


def is_factor(name: str) -> bool:
    """Tell whether a tensor is one of LoRA's two factors."""
    return ".lora." in name and name.endswith((FACTOR_A, FACTOR_B))


def sites(names: Mapping[str, Tensor]) -> list[str]:
    """Return the LoRA sites of a tree: names without ``.A`` and ``.B``, in the tree's order."""
    return [n.removesuffix(FACTOR_A) for n in names if is_factor(n) and n.endswith(FACTOR_A)]


def products(tree: Mapping[str, Tensor], scale: float = 1.0) -> dict[str, Tensor]:
    """Return ``scale B A`` ``[..., out, in]`` of each site: what LoRA adds to the weights."""
    return {s: scale * tree[s + FACTOR_B] @ tree[s + FACTOR_A] for s in sites(tree)}


def mix_peft(
    alpha: Tensor, v: Mapping[str, Tensor], w: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tree whose effect is ``alpha v + (1 - alpha) w``, exactly, for LoRA too.

    Plain tensors are mixed. For LoRA the product is: ``[aB_v, (1-a)B_w] [A_v; A_w]`` of rank
    r_v + r_w equals ``a B_v A_v + (1-a) B_w A_w``; mixed factors would not (62 % off in a random
    example, ``personalized_fl.md`` 2.2). The result runs like any other tree.

    Args:
        alpha: ``[K]``; gradients reach it and both trees.
        v, w: trees of equal names, ``[K, ...]``; LoRA ranks may differ.
    """
    out = {}
    for name, own in v.items():
        a = alpha.reshape(-1, *([1] * (own.dim() - 1)))
        if not is_factor(name):
            out[name] = a * own + (1 - a) * w[name]
        elif name.endswith(FACTOR_A):
            out[name] = torch.cat([own, w[name]], -2)
        else:
            out[name] = torch.cat([a * own, (1 - a) * w[name]], -1)
    return out


WORDS = {"q": ("q",), "k": ("k",), "v": ("v",), "o": ("o",), "fc": ("fc",), "proj": ("proj",),
         "mlp": ("fc", "proj")}  # fmt: skip


def parse_targets(words: str) -> tuple[str, ...]:
    """Return the sites that ``PEFT.TARGETS`` names (``q,v``; ``mlp`` is ``fc`` and ``proj``).

    Raises:
        ConfigError: an unknown word, or none.
    """
    sites: list[str] = []
    for word in (w.strip().lower() for w in words.replace("+", ",").split(",") if w.strip()):
        if word not in WORDS:
            raise ConfigError(
                f"PEFT.TARGETS has no '{word}'{did_you_mean(word, WORDS)} ({', '.join(WORDS)})"
            )
        sites += [s for s in WORDS[word] if s not in sites]
    if not sites:
        raise ConfigError(f"PEFT.TARGETS names no layer; choose from {', '.join(WORDS)}")
    return tuple(sites)


def last_blocks(blocks: list[Block], count: int, tower: str) -> list[Block]:
    """Return the last ``count`` blocks, all for 0.

    Raises:
        ConfigError: the tower has fewer.
    """
    if count > len(blocks):
        raise ConfigError(
            f"PEFT.BLOCKS {count}: the {tower} tower has {len(blocks)} blocks; 0 takes all"
        )
    return blocks[len(blocks) - count :] if count else blocks


def lora_tree(
    tower: str, blocks: Iterable[Block], sites: Iterable[str], rank: int, gen: torch.Generator
) -> Tree:
    """Return LoRA factors: A uniform in +-1/sqrt(in) (peft's), B zero."""
    tree: Tree = {}
    for block in blocks:
        for site in sites:
            out, into = block.shape(site)
            name = f"{tower}.lora.{block.index}.{site}"
            tree[f"{name}.A"] = _uniform((rank, into), into, gen)
            tree[f"{name}.B"] = torch.zeros(out, rank)
    return tree


def adapter_tree(tower: str, blocks: Iterable[Block], hidden: int, gen: torch.Generator) -> Tree:
    """Return two bottlenecks per block (``heart_thorki_fedas.md`` 4.1); 1,235,712 for ViT-B, 32.

    LayerNorm 1 and 0, down as torch's linear layer, up zero.
    """
    tree: Tree = {}
    for block in blocks:
        width = block.shape("o")[0]
        for branch in BRANCHES:
            name = f"{tower}.adapter.{block.index}.{branch}"
            tree |= {
                f"{name}.ln.weight": torch.ones(width), f"{name}.ln.bias": torch.zeros(width),
                f"{name}.down.weight": _uniform((hidden, width), width, gen),
                f"{name}.down.bias": _uniform((hidden,), width, gen),
                f"{name}.up.weight": torch.zeros(width, hidden),
                f"{name}.up.bias": torch.zeros(width),
            }
    return tree


def _uniform(shape: tuple[int, ...], fan_in: int, gen: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=gen) * 2 - 1) * fan_in**-0.5


@dataclass(frozen=True)
class TreeEdits:
    """The adapters of a tree ``[K, ...]`` at work in one tower (``blocks.Edits``).

    Attributes:
        tower: ``image`` or ``text``.
        p: tree; other names are ignored. LoRA of any rank is applied as it stands.
        scale: LoRA's alpha over the rank that it was made for.
    """

    tower: str
    p: Mapping[str, Tensor]
    scale: float = 1.0

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return the layer with its low-rank update, if there is one."""
        name = f"{self.tower}.lora.{block}.{site}"
        if f"{name}.A" not in self.p:
            return frozen_linear(x, weight, bias)
        a, b = self.p[f"{name}.A"], self.p[f"{name}.B"]
        return lora_linear(x, weight, bias, a, b, self.scale * factor)

    def branch(self, block: int, which: str, h: Tensor) -> Tensor:
        """Return ``h + up(gelu(down(LN(h))))``, or ``h``."""
        name = f"{self.tower}.adapter.{block}.{which}"
        if f"{name}.down.weight" not in self.p:
            return h
        flat = h.flatten(1, 2)
        one = {k: self.p[f"{name}.{k}"] for k in
               ("ln.weight", "ln.bias", "down.weight", "down.bias", "up.weight", "up.bias")}
        x = F.layer_norm(flat, flat.shape[-1:]) * one["ln.weight"].unsqueeze(1)
        x = torch.baddbmm(one["down.bias"].unsqueeze(1), x + one["ln.bias"].unsqueeze(1),
                          one["down.weight"].mT)
        x = torch.baddbmm(one["up.bias"].unsqueeze(1), F.gelu(x), one["up.weight"].mT)
        return h + x.view_as(h)
