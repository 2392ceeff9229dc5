"""One look at the numbers of a client's work, at its end; a second run where one is not finite."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedvlm.federation.local.ledger import Flags

if TYPE_CHECKING:
    from fedvlm.federation.context import Context

T = TypeVar("T")
HostNumbers = list[list[float]]


class Looked(NamedTuple):
    """What the host was told.

    Attributes:
        numbers: of the tensors that were asked for.
        finite: all is, so that nobody has to look at it again.
    """

    numbers: HostNumbers
    finite: bool


def run_guarded(
    ctx: Context, work: Callable[[], T], watch: Callable[[T], Iterable[Tensor]] = lambda out: (),
    ask: Callable[[T], Sequence[Tensor]] = lambda out: (),
) -> tuple[T, Looked]:
    """Return what ``work`` gives, looked at once: one read of the device.

    If a number is not finite, ``work`` is done again from the same inputs, with counters put back
    and every number looked at where it is made: that names client, step and tensor and applies the
    policy. So ``work`` is pure: it makes its inputs itself, and the second run repeats the first.

    Args:
        ctx: of the chunk.
        work: what a method does; what it raises on numbers that are not finite is not told.
        watch: tensors of the outcome that must be finite, too.
        ask: tensors whose numbers the caller wants.

    Raises:
        DivergedError: a number is not finite (policy ``abort``).
    """
    before, towers = Counter(ctx.counters), Counter(ctx.model.counters)
    ctx.flags = flags = Flags()
    try:
        out = work()
        flags.watch(watch(out))
        *numbers, (total,) = read_numbers([*ask(out), flags.total()])
        if math.isfinite(total):
            return out, Looked(numbers, True)
    except Exception:
        if math.isfinite(float(flags.total())):
            raise
    finally:
        ctx.flags = None
    for counter, old in ((ctx.counters, before), (ctx.model.counters, towers)):
        counter.clear()
        counter.update(old)
    ctx.logs.clear()
    ctx.failed.clear()
    out = work()
    return out, Looked(read_numbers(ask(out)), False)


def read_numbers(tensors: Sequence[Tensor]) -> HostNumbers:
    """Return the numbers of small tensors, by one read of each device that they lie on."""
    places: dict[torch.device, list[int]] = {}
    for i, v in enumerate(tensors):
        places.setdefault(v.device, []).append(i)
    out: HostNumbers = [[] for _ in tensors]
    for at in places.values():
        values = torch.cat([tensors[i].detach().reshape(-1) for i in at]).tolist()
        for i in at:
            out[i], values = values[: tensors[i].numel()], values[tensors[i].numel() :]
    return out
