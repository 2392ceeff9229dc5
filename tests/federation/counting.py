"""Counts what a device would feel, on the CPU: kernels, reads by the host, copies to the device.

Tensors are distinguished as on a machine with an accelerator. What goes through ``.to(device)``, is
made with ``device=`` or comes from such tensors lies on the device; what ``.cpu()`` returns, and
what is made without a device, lies on the host. A read is whatever would make the host wait for a
tensor of the device; reads of the host's own are free. Views and reshapes are no kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

VIEWS = {
    "view", "_unsafe_view", "expand", "permute", "transpose", "t", "slice", "select", "unsqueeze",
    "squeeze", "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "diagonal",
    "lift_fresh", "empty", "empty_like", "new_empty", "empty_strided", "_reshape_alias", "unfold",
    "_local_scalar_dense", "is_same_size", "sym_size", "detach_", "chunk", "view_as", "narrow",
    "_efficientzerotensor", "resolve_conj", "resolve_neg",
}
WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim",
         "unique_consecutive", "repeat_interleave"}  # a shape or a value that the host must know


@dataclass
class Counts:
    """What was counted.

    Attributes:
        kernels: on the device.
        reads: of the device's tensors by the host.
        sent: copies from the host to the device.
        where: reads by the operation that made them.
        ops: kernels by operation.
    """

    kernels: int = 0
    reads: int = 0
    sent: int = 0
    where: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)

    def read(self, what: str) -> None:
        self.reads += 1
        self.where[what] += 1


class _Places:
    """Which storages lie on the device."""

    def __init__(self, device: list[Tensor]) -> None:
        self._on: set[int] = set()
        for v in device:
            self.put(v)

    def has(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.untyped_storage()._cdata in self._on

    def put(self, value: Any, on: bool = True) -> None:
        if isinstance(value, Tensor):
            (self._on.add if on else self._on.discard)(value.untyped_storage()._cdata)


class _Kernels(TorchDispatchMode):
    def __init__(self, counts: Counts, places: _Places) -> None:
        super().__init__()
        self.counts, self.places = counts, places

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        on = any(self.places.has(v) for v in given)
        out = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        masks = name in ("index", "index_put", "index_put_") and any(
            v.dtype in (torch.bool, torch.uint8) for v in given[1:] if self.places.has(v)
        )
        if on and (name in WAITS or masks):
            self.counts.read(name)
        fresh = [v for v in tree_leaves(out) if isinstance(v, Tensor)]
        for v in fresh:
            if on or not any(v is g for g in given):
                self.places.put(v, on)
        if on and name not in VIEWS:
            self.counts.kernels += 1
            self.counts.ops[name] += 1
        return out


class _Reads(TorchFunctionMode):
    """Copies between host and device, which a CPU does not make."""

    def __init__(self, counts: Counts, places: _Places) -> None:
        super().__init__()
        self.counts, self.places = counts, places

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if name in ("tolist", "numpy", "cpu") and self.places.has(first):
            self.counts.read(name)
            if name == "cpu":
                return self._copy(first, first, False)
        out = func(*args, **kwargs)
        if name in ("from_numpy", "tensor", "as_tensor") and kwargs.get("device") is None:
            if out is not first:
                self.places.put(out, False)  # its address may have been a device's before
        elif name == "to" and isinstance(out, Tensor) and not self.places.has(first):
            placed = [*args[1:2], kwargs.get("device")]
            if any(isinstance(p, torch.device) for p in placed):
                self.counts.sent += 1
                out = self._copy(first, out, True)
        elif kwargs.get("device") is not None and isinstance(out, Tensor):
            if name in ("tensor", "as_tensor"):
                self.counts.sent += 1
            self.places.put(out)
        return out

    def _copy(self, source: Any, out: Tensor, on: bool) -> Tensor:
        """Return ``out`` in a storage of its own, where ``source`` lies on the other side."""
        if out is source:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                out = out.clone()
        self.places.put(out, on)
        return out


@contextmanager
def counted(device: list[Tensor]) -> Iterator[Counts]:
    """Count what happens inside; ``device`` are the tensors that lie there at the start."""
    counts, places = Counts(), _Places(device)
    with _Reads(counts, places), _Kernels(counts, places):
        yield counts
