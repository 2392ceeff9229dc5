"""What clients change inside a tower's blocks: names, first values, application, mixing.

Names: ``<tower>.lora.<block>.<q|k|v|o|fc|proj>.{A [r, in], B [out, r]}`` (LoRA),
``<tower>.adapter.<block>.<attn|mlp|stage>.{ln,down,up}.{weight,bias}`` (bottlenecks; ``stage``:
one behind each stage of a convolutional trunk, see ``stages``) and
``<tower>.ln.<block>.<1|2>.{weight,bias}`` (what is added to a LayerNorm's own); tower is ``image``
or ``text``. ``<tower>.private.lora.*`` is a second LoRA in the same layers (``whole_lora``),
``<tower>.delta.<block>.<site> [out, in]`` what a server added to the frozen layer, counted as a
product ``B A`` is. All start as the frozen tower, bit for bit: B, up and ln are zero. For several
clients at once a low-rank update is one frozen product, then two batched ones.
``image.prompt.<block> [n, width]`` are visual prompts: rows that enter there and stay until the
next block that has some (shallow: one block; deep: each).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError, FedvlmError, did_you_mean
from fedvlm.core.trees import Tree
from fedvlm.models.towers.blocks import BRANCHES, STAGE, Edits, FrozenBlock, Layered
from fedvlm.models.towers.layers import frozen_linear

FACTOR_A, FACTOR_B = ".A", ".B"
PROMPT = "prompt"
LORA, DELTA, PRIVATE_LORA = ".lora.", ".delta.", ".private.lora."
NUMERIC_ZERO = 1e-7  # of the largest singular value: below it a dense change has no rank
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
                f"unknown layer in PEFT.TARGETS: '{word}'{did_you_mean(word, WORDS)} "
                f"({', '.join(WORDS)})"
            )
        sites += [s for s in WORDS[word] if s not in sites]
    if not sites:
        raise ConfigError(f"PEFT.TARGETS names no layer; choose from {', '.join(WORDS)}")
    return tuple(sites)


def lora_tree(
    tower: str, blocks: Iterable[Layered], sites: Iterable[str], rank: int, gen: torch.Generator
) -> Tree:
    """Return LoRA factors: A uniform in +-1/sqrt(in) (peft's), B zero."""
    tree: Tree = {}
    for block in blocks:
        for site in sites:
            out, into = block.shape(site)
            name = f"{tower}.lora.{block.index}.{site}"
            tree[f"{name}.A"] = uniform((rank, into), into, gen)
            tree[f"{name}.B"] = torch.zeros(out, rank)
    return tree


def adapter_tree(
    tower: str, blocks: Iterable[Layered], hidden: int, gen: torch.Generator,
    branches: Sequence[str] = BRANCHES,
) -> Tree:
    """Return two bottlenecks per block; 1,235,712 numbers for ViT-B, 32.

    LayerNorm 1 and 0, down as torch's linear layer, up zero. With ``branches`` ``(STAGE,)`` one per
    stage: a residual adapter of 1x1 convolutions (Rebuffi et al., NeurIPS 2017) with a bottleneck
    (Chen et al., Conv-Adapter, 2022); the norm is over a place's channels, without statistics.
    """
    tree: Tree = {}
    for block in blocks:
        width = block.shape("o")[0]
        for branch in branches:
            name = f"{tower}.adapter.{block.index}.{branch}"
            tree |= {
                f"{name}.ln.weight": torch.ones(width), f"{name}.ln.bias": torch.zeros(width),
                f"{name}.down.weight": uniform((hidden, width), width, gen),
                f"{name}.down.bias": uniform((hidden,), width, gen),
                f"{name}.up.weight": torch.zeros(width, hidden),
                f"{name}.up.bias": torch.zeros(width),
            }
    return tree


def ln_tree(tower: str, blocks: Iterable[FrozenBlock]) -> Tree:
    """Return what is added to weight and bias of both LayerNorms of each block: zero."""
    tree: Tree = {}
    for block in blocks:
        width = block.shape("o")[0]
        for place in (1, 2):
            name = f"{tower}.ln.{block.index}.{place}"
            tree |= {f"{name}.weight": torch.zeros(width), f"{name}.bias": torch.zeros(width)}
    return tree


def prompt_tree(
    blocks: Iterable[FrozenBlock], rows: int, gen: torch.Generator, deviation: float = 0.02
) -> Tree:
    """Return visual prompts ``image.prompt.<block> [rows, width]`` ~ N(0, deviation^2)."""
    return {
        f"image.{PROMPT}.{block.index}":
            torch.randn(rows, block.shape("o")[0], generator=gen) * deviation
        for block in blocks
    }


def uniform(shape: tuple[int, ...], fan_in: int, gen: torch.Generator) -> Tensor:
    """Return a tensor of ``U(-a, a)``, ``a = fan_in ** -0.5``."""
    return (torch.rand(shape, generator=gen) * 2 - 1) * fan_in**-0.5


@dataclass(frozen=True)
class TreeEdits(Edits):
    """The adapters and visual prompts of a tree ``[K, ...]`` at work in one tower.

    Attributes:
        tower: ``image`` or ``text``.
        p: tree; other names are ignored. LoRA of any rank is applied as it stands. A prompt may
            also depend on the image: ``[K, B, n, width]``.
        scale: LoRA's alpha over the rank that it was made for.
    """

    tower: str
    p: Mapping[str, Tensor]
    scale: float = 1.0

    @property
    def staged(self) -> bool:
        """Whether the tree has adapters behind the stages of a trunk."""
        return any(f".{STAGE}." in name for name in self.p)

    def enter(self, block: int, x: Tensor, own: int) -> Tensor:
        """Return the tower's rows with this block's prompt behind them; without one, ``x``."""
        prompt = self.p.get(f"{self.tower}.{PROMPT}.{block}")
        if prompt is None:
            return x
        if prompt.dim() == 3:
            prompt = prompt.unsqueeze(1).expand(-1, x.shape[1], -1, -1)
        return torch.cat([x[:, :, :own], prompt.to(x.dtype)], 2)

    def cut(self, images: slice) -> TreeEdits:
        """Return the edits of a part of the batch: prompts that depend on the image are cut."""
        mark = f"{self.tower}.{PROMPT}."
        parts = {n: v[:, images] for n, v in self.p.items() if n.startswith(mark) and v.dim() == 4}
        return replace(self, p={**self.p, **parts}) if parts else self

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return the layer with its low-rank update, if there is one.

        Raises:
            FedvlmError: the tree has one factor of it without the other.
        """
        name = f"{self.tower}.lora.{block}.{site}"
        a, b = self.p.get(name + FACTOR_A), self.p.get(name + FACTOR_B)
        delta = self.p.get(name.replace(LORA, DELTA))
        if a is None and b is None:
            out = frozen_linear(x, weight, bias)
        elif a is None or b is None:
            there, lacking = (FACTOR_A, FACTOR_B) if b is None else (FACTOR_B, FACTOR_A)
            raise FedvlmError(
                f"LoRA at {name} has {name}{there} but no {name}{lacking}: join the download with "
                "the client's state (state['w'] | received)"
            )
        else:
            out = lora_linear(x, weight, bias, a, b, self.scale * factor)
        return out if delta is None else out + self.scale * factor * by_client(x, delta)

    def norm(self, block: int, place: int, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return ``r (weight + w) + bias + b``, r the normalised rows of ``x [K, B, n, width]``."""
        frozen: Tensor = norm(x)
        name = f"{self.tower}.ln.{block}.{place}"
        if f"{name}.weight" not in self.p:
            return frozen
        w, b = (self.p[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        return frozen + (F.layer_norm(x, x.shape[-1:], eps=norm.eps) * w + b)

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


def by_client(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x W_k^T`` for every client k, differentiable in ``x``.

    Args:
        x: [K, ..., in].
        weight: [K, out, in]; one matrix for all (client stride 0) is one product.
    """
    if weight.stride(0) == 0:
        return frozen_linear(x, weight[0])
    return x.flatten(1, -2).bmm(weight.mT).view(*x.shape[:-1], weight.shape[1])


def is_factor(name: str) -> bool:
    """Tell whether a tensor is one of LoRA's two factors."""
    return ".lora." in name and name.endswith((FACTOR_A, FACTOR_B))


def sites(names: Mapping[str, Tensor]) -> list[str]:
    """Return the LoRA sites of a tree: names without ``.A`` and ``.B``, in the tree's order."""
    return [n.removesuffix(FACTOR_A) for n in names if is_factor(n) and n.endswith(FACTOR_A)]


def mix_peft(
    alpha: Tensor, v: Mapping[str, Tensor], w: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tree whose effect is ``alpha v + (1 - alpha) w``, exactly, for LoRA too.

    Plain tensors are mixed. For LoRA the product is: ``[aB_v, (1-a)B_w] [A_v; A_w]`` of rank
    r_v + r_w equals ``a B_v A_v + (1-a) B_w A_w``; mixed factors would not (62 % off in a random
    example). The result runs like any other tree.

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


def add_lora(
    p: Mapping[str, Tensor], more: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return ``p`` with the low-rank updates of ``more`` added: of rank r + r', exactly the sum.

    ``[B B'] [A; A']`` is ``B A + B' A'``; both count with the scale of ``p``.

    Args:
        p, more: trees ``[..., r, in]`` (A) and ``[..., out, r]`` (B); every factor in ``more`` has
            its like in ``p``, other names are as they are in ``p``.
    """
    axes = {FACTOR_A: -2, FACTOR_B: -1}
    return {**p, **{n: torch.cat([p[n], v], axes[n[-2:]]) for n, v in more.items()}}


def delta_name(site: str) -> str:
    """Return the name of the dense change at a LoRA's site: ``image.delta.3.q``."""
    return site.replace(LORA, DELTA)


def whole_lora(p: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tree whose LoRA is the shared one plus the private one, as one of both ranks."""
    own = {n.replace(PRIVATE_LORA, LORA): v for n, v in p.items() if PRIVATE_LORA in n}
    return add_lora(p, own) if own else p


def plain_lora(p: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tree, no client axis, whose LoRA alone is all that changes the layers.

    A private LoRA is joined to the shared one. A dense change becomes the factors of its singular
    value decomposition, of its numeric rank: at most the inputs of its layer.
    """
    out = {n: v for n, v in whole_lora(p).items() if PRIVATE_LORA not in n}
    for name in [n for n in out if DELTA in n]:
        delta, site = out.pop(name), name.replace(DELTA, LORA)
        u, s, vh = torch.linalg.svd(delta.double(), full_matrices=False)
        rank = int((s > NUMERIC_ZERO * s[0]).sum())
        if rank:
            more = {FACTOR_A: vh[:rank], FACTOR_B: u[:, :rank] * s[:rank]}
            out = add_lora(out, {site + end: v.to(delta.dtype) for end, v in more.items()})
    return out
