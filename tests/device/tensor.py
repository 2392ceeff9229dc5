"""A tensor that says ``cuda:N`` and has its numbers on the host: every operation passes ``run``.

A subclass of PyTorch's wrapper tensors over ``meta``: C++ sees no host memory, so that nothing of
it computes by accident, and Python gets every operation by ``__torch_dispatch__``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tests.device.tally import Tally

CPU = torch.device("cpu")
# Without a deterministic kernel (torch.use_deterministic_algorithms), as its page of
# PyTorch 2.12 lists them; index_put, index_add, scatter_add and gather's backward have one.
UNSURE = frozenset((
    "put_", "histc", "bincount", "kthvalue", "median", "nanmedian", "cumsum", "nanquantile",
    "_scaled_dot_product_flash_attention_backward", "scatter_reduce", "index_reduce",
    "_scaled_dot_product_efficient_attention_backward", "resize_", "adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward", "upsample_bilinear2d_backward", "_ctc_loss_backward",
    "upsample_bicubic2d_backward", "reflection_pad2d_backward", "max_pool2d_with_indices_backward",
    "nll_loss2d_forward", "grid_sampler_2d_backward", "avg_pool3d_backward", "index_add_float16",
    "adaptive_max_pool2d_backward", "max_pool3d_with_indices_backward",
    "upsample_linear1d_backward", "upsample_trilinear3d_backward",
))
READS = frozenset((
    "_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique", "_unique2",
    "unique_consecutive", "unique_dim", "equal", "is_nonzero",
))
INDEXED = frozenset(("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_",
                     "_unsafe_index_put"))
LISTS = frozenset(("cat", "stack", "mm", "bmm", "addmm", "embedding", "index_select", "gather",
                   "scatter", "scatter_add", "index_add", "index_copy", "index_fill"))
MADE = frozenset((
    "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like",
    "full_like", "scalar_tensor", "new_empty", "new_empty_strided", "empty_strided", "empty_like",
    "empty", "arange", "eye", "linspace", "tril_indices", "rand_like", "randn_like",
))
NO_KERNEL = frozenset(("empty", "new_empty", "new_empty_strided", "empty_strided", "empty_like",
                       "_unsafe_view", "lift_fresh", "_local_scalar_dense", "set_", "alias"))
REFUSED = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first"


class PretendCard:
    """The device of this process: what it counts, and which of its numbers is current."""

    tally = Tally()


class OnDevice(Tensor):
    """A tensor of the pretend device.

    Args:
        host: its numbers.
        at: number of the device.
    """

    _host: Tensor
    _at: int

    @staticmethod
    def __new__(cls, host: Tensor, at: int = 0) -> OnDevice:
        """Make the wrapper, of the form of ``host``."""
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(),
            dtype=host.dtype, device="meta", requires_grad=False,
        )

    def __init__(self, host: Tensor, at: int = 0) -> None:
        self._host, self._at = host, at

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """``cuda:N``."""
        return torch.device("cuda", self._at)

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        """As PyTorch's; ``x.data = y`` gives ``x`` the numbers of ``y``, too."""
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        assert isinstance(other, OnDevice), "x.data = y of two devices"
        self._host = other._host

    def get_device(self) -> int:
        """Return the number of the device."""
        return self._at

    def data_ptr(self) -> int:
        """Return the address of the numbers."""
        return self._host.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory of the numbers."""
        return self._host.untyped_storage()

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Refuse, as PyTorch does."""
        raise TypeError(REFUSED)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(REFUSED)

    def cpu(self, *_: Any) -> Tensor:
        """Return a copy on the host."""
        return self.to(CPU)

    def tolist(self) -> Any:
        """Return the numbers, after a copy to the host."""
        return self.cpu().tolist()

    def new_tensor(self, data: Any, **how: Any) -> Tensor:  # type: ignore[override]
        """Return a tensor of the device; the host waits for the copy."""
        return torch.tensor(data, **{"device": self.device, "dtype": self.dtype, **how})

    def type_as(self, other: Tensor) -> Tensor:
        """Return ``self`` on the device and of the type of ``other``."""
        return self.to(other.device, other.dtype)

    def pin_memory(self, *_: Any) -> Tensor:
        """Refuse, as PyTorch does."""
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be")

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        new = OnDevice(self._host.detach().clone(), self._at)
        new.requires_grad_(self.requires_grad)
        memo[id(self)] = new
        return new

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args = tuple(args)
        if func in _PRODUCTS and len({args[0].dim(), args[1].dim()}) > 1:
            a, b = args  # C++ squeezes in place there, which a wrapper's shape does not follow
            if a.dim() == 1:
                return (a.unsqueeze(0) @ b).squeeze(-2)
            if b.dim() == 1:
                return (a @ b.unsqueeze(-1)).squeeze(-1)
        if func in _ITEMS and isinstance(args[0], OnDevice):
            args = (args[0], _item(args[1], args[0]._at), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
_ITEMS = (Tensor.__getitem__, Tensor.__setitem__)


def _item(key: Any, at: int) -> Any:
    """Return an index whose lists are tensors of the device, as C++ makes them: by waiting."""
    if isinstance(key, tuple):
        return tuple(_item(k, at) for k in key)
    if isinstance(key, (list, range)) and all(isinstance(k, (int, bool)) for k in key):
        PretendCard.tally.note(PretendCard.tally.blocking, "list as index")
        return OnDevice(torch.tensor(list(key)), at)
    return key


class PretendMode(TorchDispatchMode):
    """Takes the operations that have no tensor of the device yet: those that make or copy one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


def is_there(x: object) -> bool:
    """Return whether ``x`` is a tensor of the pretend device."""
    return isinstance(x, OnDevice)


def host_of(x: Any) -> Any:
    """Return the host's tensor of one of the device; anything else as it is."""
    return x._host if isinstance(x, OnDevice) else x


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of lists, tuples and dicts in each other, as operations take and give them.

    In the order of ``torch.utils._pytree``, which took half of the time on the pretend device.
    """
    if type(tree) in (list, tuple):
        return [leaf for part in tree for leaf in leaves_of(part)]
    if type(tree) is dict:
        return leaves_of(list(tree.values()))
    return [tree]


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same lists, tuples and dicts of changed leaves (see ``leaves_of``)."""
    if type(tree) in (list, tuple):
        return type(tree)([map_leaves(change, part) for part in tree])
    if type(tree) is dict:
        return {name: map_leaves(change, part) for name, part in tree.items()}
    return change(tree)


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do an operation on the host's numbers, and count what the device would have done."""
    tally, name = PretendCard.tally, func.overloadpacket.__name__
    target = kwargs.get("device")
    target = None if target is None else torch.device(target)
    if name == "_to_copy":
        return _copied(func, args[0], dict(kwargs), target)
    if name == "copy_":
        return _written(func, args)
    tensors = [x for x in leaves_of((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, OnDevice)]
    begins = target is not None and (
        target.type == "cuda" or (target.type == "meta" and name in MADE)
    )
    if not there and not begins:
        return func(*args, **kwargs)
    at = there[0]._at if there else (target.index or 0) if target else 0
    if there:
        _examine(tally, func, name, args, kwargs, tensors, there)
    on = target is None or target.type != "cpu"
    if target is not None and on:  # autograd's own too, of options that C++ sees: ``meta``
        kwargs = {**kwargs, "device": CPU}
    out = func(*map_leaves(host_of, tuple(args)), **map_leaves(host_of, dict(kwargs)))
    if name == "_local_scalar_dense":
        return out
    if not func.is_view and name not in NO_KERNEL:
        _count(tally, func, args, kwargs, out, name)
    back = _inputs(args, kwargs) if func._schema.is_mutable else {}

    def wrapped(o: Any) -> Any:
        if not isinstance(o, Tensor):
            return o
        return back.get(id(o)) if id(o) in back else OnDevice(o, at) if on else o

    return map_leaves(wrapped, out)


def _inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, OnDevice]:
    """Return the device's tensors among the arguments, by their host tensors."""
    return {id(x._host): x for x in leaves_of((args, kwargs)) if isinstance(x, OnDevice)}


def _count(
    tally: Tally, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, name: str
) -> None:
    part = tally.part
    many = len(args[0]) if name.startswith("_foreach") and not _as_one(args) else 1
    tally.kernels[part] += many
    tally.names[f"{part} | {name}"] += many
    tensors = [x for x in leaves_of((args, kwargs, out)) if isinstance(x, Tensor)]
    tally.bytes[part] += sum(x.numel() * x.element_size() for x in tensors)
    count = flop_registry.get(func.overloadpacket)
    if count is not None:
        tally.flops[part] += count(*args, **kwargs, out_val=out)


def _as_one(args: Sequence[Any]) -> bool:
    """Return whether CUDA does an operation on lists by one kernel (PyTorch's ForeachUtils.h).

    All tensors dense, of one type, and of the same sizes and strides in all lists.
    """
    lists = [list(map(host_of, a)) for a in args if isinstance(a, (list, tuple))
             and all(isinstance(x, Tensor) for x in a)]
    rows = list(zip(*lists, strict=True))
    return len({x.dtype for row in rows for x in row}) == 1 and all(
        _is_dense(row[0]) and len({(x.shape, _steps(x)) for x in row}) == 1 for row in rows)


def _steps(x: Tensor) -> tuple[int, ...]:
    return tuple(step for size, step in zip(x.shape, x.stride(), strict=True) if size != 1)


def _is_dense(x: Tensor) -> bool:
    """Return whether the numbers fill a piece of memory, each place once."""
    want = 1
    for step, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and step != want:
            return False
        want *= size
    return True


def _copied(func: Any, source: Tensor, kwargs: dict[str, Any], to: torch.device | None) -> Tensor:
    """Copy between devices or types; ``meta`` is what C++ takes the device for."""
    tally, at = PretendCard.tally, getattr(source, "_at", 0)
    if to is None:
        to = source.device
    elif to.type == "meta":
        to = torch.device("cuda", at)
    words = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
    host: Tensor = func(host_of(source), **words)
    if to.type != "cuda":
        if is_there(source):
            tally.note(tally.reads, "copy to the host")
        return host
    if not is_there(source):
        if source.device.type == "meta":
            raise RuntimeError("a meta tensor copied to the pretend device")
        _sent(tally, "copy to the device", source, host.dtype, bool(kwargs.get("non_blocking")))
    else:
        tally.kernels[tally.part] += 1
    return OnDevice(host, at if to.index is None else to.index)


def pinned(host: Tensor) -> Tensor:
    """Return what ``Tensor.pin_memory`` does: a copy in page-locked memory, of the same strides."""
    out = torch.empty_strided(host.shape, host.stride(), dtype=host.dtype).copy_(host)
    out._pinned = True  # type: ignore[attr-defined]
    return out


def _sent(tally: Tally, name: str, source: Tensor, dtype: torch.dtype, free: bool) -> None:
    """Note a copy from the host: it goes by itself if asked, from pinned memory in order.

    CUDA's guide (API synchronization behavior): from pageable memory the host may wait. PyTorch
    copies through pageable memory where types differ or strides do not fill the memory.
    """
    by_itself = getattr(source, "_pinned", False) and source.is_contiguous()
    if free and by_itself and source.dtype == dtype:
        tally.note(tally.copies, name)
        return
    tally.note(tally.blocking, name)
    if free:
        tally.note(tally.pageable, name)


def _written(func: Any, args: Sequence[Any]) -> Tensor:
    """Write one tensor into another, perhaps of another device."""
    tally, (to, source, *how) = PretendCard.tally, args
    if is_there(source) and not is_there(to):
        tally.note(tally.reads, "copy_ to the host")
    elif is_there(to) and not is_there(source) and source.dim():
        _sent(tally, "copy_ to the device", source, to.dtype, bool(how and how[0]))
    else:
        tally.kernels[tally.part] += is_there(to)
    func(host_of(to), host_of(source), *how)
    return to  # type: ignore[no-any-return]


def _examine(
    tally: Tally, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor], there: Sequence[OnDevice],
) -> None:
    """Note what CUDA would refuse, wait for, or compute in no fixed order."""
    odd = [x for x in tensors if not is_there(x) and x.device.type == "meta"]
    if odd:
        raise RuntimeError(f"the pretend device lost a tensor: {func} {[o.shape for o in odd]}")
    if len({x._at for x in there}) > 1:
        tally.note(tally.mixed, f"{name} on two cards")
    listed = name in LISTS or name.startswith("_foreach")
    places = list(args[1]) if name in INDEXED else []
    for x in tensors:
        if is_there(x) or any(x is p for p in places) or (x.dim() == 0 and not listed):
            continue  # CUDA takes a number of the host, and an index
        tally.note(tally.mixed, f"{name} {tuple(x.shape)} of the host")
    for place in places:
        if isinstance(place, Tensor) and place.dtype in (torch.bool, torch.uint8):
            tally.note(tally.reads, f"{name} by a mask")
        elif isinstance(place, Tensor) and not is_there(place):
            tally.note(tally.blocking, f"{name} by an index of the host")
    if name in READS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        tally.note(tally.reads, name)
    if name in UNSURE and any(x.is_floating_point() for x in there):
        tally.note(tally.unsure, name)
