"""The pretend device in place of ``torch.cuda``, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from fedvlm.federation import context
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.rounds import Federation
from fedvlm.job import inputs
from fedvlm.models.device import WORKSPACE
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel
from tests.device.tally import Tally
from tests.device.tensor import OnDevice, PretendCard, PretendMode, host_of, pinned

FACTORIES = ("zeros", "ones", "full", "empty", "arange", "eye", "linspace", "rand", "randn",
             "randint", "randperm", "zeros_like", "ones_like", "full_like", "empty_like",
             "rand_like", "randn_like")
METHODS = ("new_zeros", "new_ones", "new_full", "new_empty")
GIB = 1 << 30


@contextmanager
def pretend_card(cards: int = 1, memory: int = 80 * GIB) -> Iterator[Tally]:
    """Pretend that this machine has CUDA devices; yields what they are asked for.

    Args:
        cards: how many.
        memory: bytes of each, all of them free.
    """
    torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]
    tally = Tally()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv(WORKSPACE, ":4096:8")  # and whatever it was, again
        stack.enter_context(_as_before())
        patch.setattr(PretendCard, "tally", tally)
        patch.setattr(inputs, "load_backbone", load_backbone)  # none that other tests share
        for name in FACTORIES:
            patch.setattr(torch, name, _factory(getattr(torch, name)))
        for name in METHODS:
            patch.setattr(Tensor, name, _method(getattr(Tensor, name)))
        patch.setattr(Tensor, "pin_memory", pinned)
        made = torch.tensor
        patch.setattr(torch, "tensor", _tensor(made))
        patch.setattr(torch, "as_tensor", lambda data, **how: (
            data.to(**how) if isinstance(data, Tensor) else _tensor(made)(data, **how)))
        _driver(patch, cards, memory)
        _parts(patch, tally)
        stack.enter_context(PretendMode())
        yield tally


@contextmanager
def _as_before() -> Iterator[None]:
    """Put back what ``models.device.compute_in_order`` sets for a whole process."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = torch.are_deterministic_algorithms_enabled(), products.allow_tf32
    kept = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
    attention = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("error" if before[0] else "default")
        products.allow_tf32 = before[1]
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = kept
        torch.backends.cuda.enable_cudnn_sdp(attention)


def _factory(real: Any) -> Any:
    """A function that makes tensors: on the host, and said to be there."""
    def factory(*args: Any, device: Any = None, **how: Any) -> Any:
        if device is None:
            return real(*args, **how)
        if torch.device(device).type == "meta":  # the project's own, not what C++ sees
            with _disable_current_modes():
                return real(*map(host_of, args), device=device, **how)
        if torch.device(device).type != "cuda":
            return real(*args, device=device, **how)
        wants = bool(how.pop("requires_grad", False))
        out = real(*(host_of(a) for a in args), **how)
        PretendCard.tally.kernels[PretendCard.tally.part] += real.__name__ != "empty"
        return OnDevice(out, torch.device(device).index or 0).requires_grad_(wants)

    return factory


def _method(real: Any) -> Any:
    """The same of a tensor's own."""
    def method(self: Tensor, *args: Any, device: Any = None, **how: Any) -> Any:
        out = real(host_of(self), *args, **how)
        to = self.device if device is None else torch.device(device)
        return OnDevice(out, to.index or 0) if to.type == "cuda" else out

    return method


def _tensor(real: Any) -> Any:
    """``torch.tensor``: what it makes on the device is copied there, and the host waits."""
    def tensor(data: Any, *, device: Any = None, **how: Any) -> Any:
        out = real(data, **how)
        if device is None or torch.device(device).type != "cuda":
            return out if device is None else out.to(device)
        PretendCard.tally.note(PretendCard.tally.blocking, "torch.tensor(device=)")
        return OnDevice(out, torch.device(device).index or 0)

    return tensor


def _driver(patch: pytest.MonkeyPatch, cards: int, memory: int) -> None:
    """What ``torch.cuda`` tells and does."""
    for name, value in {
        "is_available": True, "device_count": cards, "_lazy_init": None,
        "current_device": 0, "memory_allocated": 0, "max_memory_allocated": 0,
        "synchronize": None, "set_rng_state": None, "manual_seed": None, "manual_seed_all": None,
        "mem_get_info": (memory, memory), "empty_cache": None,
        "get_device_capability": (9, 0),
    }.items():
        patch.setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
    patch.setattr(torch.cuda, "get_device_name", lambda at=0: "pretend" + (
        f" {at.index}" if isinstance(at, torch.device) and at.index else ""))
    patch.setattr(torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state())
    begun: list[bool] = []
    patch.setattr(torch.cuda, "init", lambda: begun.append(True))
    patch.setattr(torch.cuda, "is_initialized", lambda: bool(begun))

    def reset(*_: object) -> None:  # which starts nothing itself where a card has a number
        if not begun:
            raise RuntimeError("Invalid device argument 0: did you call init?")

    patch.setattr(torch.cuda, "reset_peak_memory_stats", reset)


def _parts(patch: pytest.MonkeyPatch, tally: Tally) -> None:
    """Tell the tally in which part of a run it is."""
    loop, work = context.run_loop, LocalEngine.run
    round_, publish, constant = Federation.round, Federation._publish, VLModel._constant

    def fetched(steps: Iterator[Any]) -> Iterator[Any]:
        part = "plan"  # with the first batch
        while True:
            with tally.within(part):
                found = next(steps, None)
            if found is None:
                return
            part = "fetch"
            yield found

    def run_loop(
        slots: Any, body: Any, work: Any, steps: Iterator[Any], *rest: Any, **more: Any
    ) -> Any:
        def step(*args: Any) -> Any:
            with tally.within("step"):
                tally.steps += 1
                return body(*args)

        return loop(slots, step, work, fetched(steps), *rest, **more)

    def run(*args: Any) -> Any:
        with tally.within("work"):
            tally.clients += len(args[-1])
            return work(*args)

    def one(*args: Any) -> Any:
        with tally.within("round"):
            tally.rounds += 1
            return round_(*args)

    def told(*args: Any, **more: Any) -> Any:
        with tally.within("told"):
            return publish(*args, **more)

    def once(*args: Any, **more: Any) -> Any:
        with tally.within("once"):
            return constant(*args, **more)

    patch.setattr(VLModel, "_constant", once)
    patch.setattr(Federation, "_publish", told)
    patch.setattr(context, "run_loop", run_loop)
    patch.setattr(LocalEngine, "run", run)
    patch.setattr(Federation, "round", one)
