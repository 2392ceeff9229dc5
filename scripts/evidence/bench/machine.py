"""What the machine does and can do: clocks, memory, load, product rates, busiest operators."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from fedvlm.core.errors import ConfigError
from fedvlm.models.towers import layers
from fedvlm.models.towers.layers import linear, onednn_available

Measurements = dict[str, Any]  # plain JSON values
T = TypeVar("T")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# (rows, inner, columns): a square product, and the widest one of a packed ViT-B text tower.
_SHAPES = ((1536, 1536, 1536), (2048, 512, 2048))


PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "baddbmm_", "_linear_pointwise")


@dataclass(frozen=True)
class Cost:
    """CPU seconds of all threads, wall seconds, peak resident memory in bytes."""

    cpu: float
    wall: float
    rss: int

    def over(self, n: int) -> Cost:
        """Return the time of one of ``n`` equal parts."""
        return Cost(self.cpu / n, self.wall / n, self.rss)


def measure(work: Callable[[], T]) -> tuple[T, Cost]:
    """Run ``work`` and return what it returned and what it spent."""
    _reset_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    out = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return out, Cost(cpu, wall, _peak())


def settle() -> int:
    """Give freed memory back to the system where that can be asked for; return what is in use.

    Resident bytes; 0 where the system does not say. A peak minus this is what a piece of work took.
    """
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # only glibc can
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS:")


def _reset_peak() -> None:
    """Start the kernel's high-water mark again (Linux; elsewhere it keeps rising)."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return


def _peak() -> int:
    peak = _status("VmHWM:")
    if peak:
        return peak
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(field: str) -> int:
    """Return a field of the process's status in bytes; 0 where there is none (not Linux)."""
    try:
        line = next(s for s in _STATUS.read_text().splitlines() if s.startswith(field))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """Return the load average of the last minute (0 where there is none)."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def refuse_below_one(**numbers: int) -> None:
    """Refuse flags' numbers below 1 (``ConfigError``)."""
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"--{name} {value}: must be at least 1")


def cpu_facts() -> dict[str, object]:
    """Return the processor's name, its core count and which wide units it has."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        fields = {}
    flags = set(fields.get("flags", "").split())
    return {
        "name": fields.get("model name", platform.processor() or platform.machine()),
        "family": f"{fields.get('cpu family', '?')}/{fields.get('model', '?')}",
        "cores": cores(),
        "amx": "amx_tile" in flags,
        "avx512": "avx512f" in flags,
        "avx512_bf16": "avx512_bf16" in flags,
        "onednn_fp32": onednn_available(),
    }


@contextmanager
def torch_products(wanted: bool = True) -> Iterator[None]:
    """Make our frozen layers use torch's own products inside the block, as the reference does."""
    original = layers.onednn_available
    if wanted:
        layers.onednn_available = lambda: False  # type: ignore[assignment]
    try:
        yield
    finally:
        layers.onednn_available = original


def product_rate(
    product: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, tries: int = 4
) -> float:
    """Return the best FLOP per CPU second of ``product(x [m, k], w [n, k])`` over a few shapes."""
    best = 0.0
    generator = torch.Generator().manual_seed(0)
    for m, k, n in _SHAPES:
        x = torch.randn(m, k, generator=generator).to(dtype)
        w = torch.randn(n, k, generator=generator).to(dtype)
        product(x, w)
        for _ in range(tries):
            _, spent = measure(lambda x=x, w=w: product(x, w))  # type: ignore[misc]
            best = max(best, 2 * m * k * n / max(spent.cpu, 1e-9))
    return best


def peaks(bf16: bool, tries: int = 4) -> dict[str, float]:
    """Return matrix-product rates in FLOP per CPU second.

    ``torch_fp32``: what ``torch.nn.Linear`` gets; ``fp32``: the best kernel that is here;
    ``bf16`` if asked for.
    """
    plain = product_rate(torch.nn.functional.linear, torch.float32, tries)
    rates = {"torch_fp32": plain, "fp32": max(plain, product_rate(linear, torch.float32, tries))}
    if bf16:
        rates["bf16"] = product_rate(torch.nn.functional.linear, torch.bfloat16, tries)
    return rates



def busiest(work: Callable[[], Any], count: int = 14) -> dict[str, Any]:
    """Return ``rows``, the operators with most CPU time of their own, and ``products``.

    A row has name, seconds, share and calls; ``products`` is the share of all matrix products.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    rows = sorted(profiler.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in rows) or 1.0
    share = sum(e.self_cpu_time_total for e in rows if e.key.split("::")[-1] in PRODUCTS) / total
    listed = [
        {"op": e.key, "seconds": e.self_cpu_time_total / 1e6,
         "share": e.self_cpu_time_total / total, "calls": e.count}
        for e in rows[:count]
    ]
    return {"products": share, "rows": listed}
