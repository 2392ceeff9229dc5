"""Trees: ``dict[name, tensor]``, with or without a leading client axis ``K``.

Inside a trainer every leaf is ``[K, ...]``; at rest (files, server, messages) there is no client
axis. All functions are pure: no leaf is changed in place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedvlm.core import foreach
from fedvlm.core.errors import FedvlmError

Tree = dict[str, Tensor]
TreeView = Mapping[str, Tensor]  # a tree that is read only
State = dict[str, Tree]  # slots of trees


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on ``device``; the host does not wait where it is copied to CUDA.

    CUDA copies on its own only from page-locked memory that lies in order, so that the numbers are
    put there first. That memory may be dropped at once: PyTorch's allocator of it
    (``CachingHostAllocator``) notes the copy as an event of its stream (``copy_kernel_cuda`` in
    ``aten/src/ATen/native/cuda/Copy.cu``) and gives the memory to nobody before the event is over.
    """
    if device.type != "cuda" or value.device.type != "cpu":
        return value.to(device)
    return value.contiguous().pin_memory().to(device, non_blocking=True)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack K trees of equal names and shapes into one with leaves ``[K, ...]``.

    Always a copy: strides decide which kernel runs, so a resumed run must see the same layout.

    Raises:
        FedvlmError: trees of other names: cutting them to the first one's would lose tensors.
    """
    _same_names(trees, "tensors")
    return {name: torch.stack([t[name] for t in trees]) for name in trees[0]}


def _same_names(parts: Sequence[Mapping[str, object]], what: str) -> None:
    for other in parts:
        if other.keys() != parts[0].keys():
            odd = sorted(other.keys() ^ parts[0].keys())
            raise FedvlmError(
                f"clients of one chunk differ in their {what} {odd}: all clients must have the "
                "same ones from their first round on (create them in init_client)"
            )


def expand(tree: Tree, k: int) -> Tree:
    """Give every leaf a leading axis of ``k`` equal rows, without copying."""
    return {name: v.unsqueeze(0).expand(k, *v.shape) for name, v in tree.items()}


def repeat(tree: Tree, k: int) -> Tree:
    """Return copies: ``k`` equal rows of each leaf, laid out as ``stack`` lays them out."""
    return {n: v.clone(memory_format=torch.contiguous_format) for n, v in expand(tree, k).items()}


def unstack(tree: Tree, k: int) -> list[Tree]:
    """Split leaves ``[k, ...]`` into k trees that share no memory."""
    return [{name: v[i].detach().clone() for name, v in tree.items()} for i in range(k)]


def stack_states(states: Sequence[State]) -> State:
    """Stack K client states slot by slot.

    Raises:
        FedvlmError: clients with other slots or tensors than the first one's.
    """
    _same_names(states, "slots")
    return {slot: stack([s[slot] for s in states]) for slot in states[0]}


def slice_clients(tree: Tree, start: int, stop: int) -> Tree:
    """Return clients ``start..stop-1`` of a stacked tree (views)."""
    return {name: v[start:stop] for name, v in tree.items()}


def cat(parts: Sequence[Tree]) -> Tree:
    """Join stacked trees along the client axis."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([t[name] for t in parts]) for name in parts[0]}


def per_client(value: Tensor, leaf: Tensor) -> Tensor:
    """Shape a ``[K]`` value so that it broadcasts over a ``[K, ...]`` leaf."""
    return value.reshape(-1, *([1] * (leaf.dim() - 1)))


def map_leaves(fn: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply ``fn`` to the leaves of equal names; names are those of the first tree."""
    return {name: fn(*(t[name] for t in trees)) for name in trees[0]}


def pick(tree: Tree, names: Iterable[str]) -> Tree:
    """Return the leaves called ``names`` that exist, in the tree's own order."""
    wanted = set(names)
    return {name: v for name, v in tree.items() if name in wanted}


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that one of the regular expressions matches in full."""
    compiled = [re.compile(p) for p in patterns]
    return [n for n in names if any(p.fullmatch(n) for p in compiled)]


def numel(tree: Tree) -> int:
    """Return the number of scalars in a tree."""
    return sum(v.numel() for v in tree.values())


def nbytes(tree: Tree) -> dict[str, int]:
    """Return bytes per tensor as they travel."""
    return {name: v.numel() * v.element_size() for name, v in tree.items()}


def largest(values: Sequence[Tensor]) -> Tensor:
    """Return the largest magnitude, 0-d: not finite if a number is not.

    On the CPU where they lie on several devices (Apple's mps has no float64).
    """
    if len({v.device for v in values}) > 1:
        values = [v.cpu() for v in values]
    return torch.cat([v.reshape(-1) for v in values]).abs().amax()


def first_non_finite(tree: Tree) -> str | None:
    """Return the name of the first leaf with a NaN or an infinity, or None; one read if none."""
    leaves = {n: v for n, v in tree.items() if v.is_floating_point()}
    if not leaves or math.isfinite(float(largest(foreach.tensor_norms(list(leaves.values()))))):
        return None
    return next((n for n, v in leaves.items() if not bool(torch.isfinite(v).all())), None)


def clone(tree: Tree) -> Tree:
    """Return a detached copy that shares no memory."""
    return {name: v.detach().clone() for name, v in tree.items()}


def cast(tree: Tree, dtype: torch.dtype, device: torch.device | str) -> Tree:
    """Move floating leaves to ``dtype`` and every leaf to ``device``."""
    return {
        name: v.to(device=device, dtype=dtype if v.is_floating_point() else v.dtype)
        for name, v in tree.items()
    }


def in_double(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float64, on the CPU where its device has none (Apple's mps)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
