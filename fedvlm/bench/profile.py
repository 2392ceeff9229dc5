"""Where the time of a piece of work goes, by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "baddbmm_", "_linear_pointwise")


def busiest(work: Callable[[], Any], count: int = 14) -> dict[str, Any]:
    """Return ``rows``, the operators with most CPU time of their own, and ``products``.

    A row has name, seconds, share and calls; ``products`` is the share of all matrix products.
    """
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    rows = sorted(found.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in rows) or 1.0
    share = sum(e.self_cpu_time_total for e in rows if e.key.split("::")[-1] in PRODUCTS) / total
    listed = [
        {"op": e.key, "seconds": e.self_cpu_time_total / 1e6,
         "share": e.self_cpu_time_total / total, "calls": e.count}
        for e in rows[:count]
    ]
    return {"products": share, "rows": listed}
