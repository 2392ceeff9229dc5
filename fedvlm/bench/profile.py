"""Where the time of a piece of work goes, by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "_linear_pointwise", "linear", "mkldnn_linear")


def busiest(work: Callable[[], Any], count: int = 14) -> list[dict[str, Any]]:
    """Return the operators with most CPU time of their own: name, seconds, share, calls."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    rows = sorted(found.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in rows) or 1.0
    return [
        {"op": e.key, "seconds": e.self_cpu_time_total / 1e6,
         "share": e.self_cpu_time_total / total, "calls": e.count}
        for e in rows[:count]
    ]
