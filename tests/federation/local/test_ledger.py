"""Means and flags that stay on the device until the work is done."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.federation.local.ledger import FOLD, Flags, Means

STEPS = st.lists(
    st.tuples(st.integers(1, 4), st.booleans(), st.sampled_from([("loss",), ("loss", "ce")])),
    min_size=1, max_size=12,
)


@given(STEPS, st.permutations(range(4)), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_means_are_those_of_a_loop_on_the_host(steps: list, order: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ours = Means(4, torch.tensor(order))
    sums: dict[str, list[float]] = {}
    counts: dict[str, list[int]] = {}
    for k, ordered, names in steps:
        values = {n: torch.randn(k, generator=generator) for n in names}
        ours.add(values, ordered)
        for name, row in values.items():
            sums.setdefault(name, [0.0] * 4)
            counts.setdefault(name, [0] * 4)
            for i, value in enumerate(row.tolist()):
                at = order[i] if ordered else i
                sums[name][at] += value
                counts[name][at] += 1
    found = ours.values()
    assert set(found) == set(sums)
    for name, row in found.items():
        assert row.dtype is torch.float64
        for k in range(4):
            if counts[name][k]:
                mean = sums[name][k] / counts[name][k]
                assert float(row[k]) == pytest.approx(mean, rel=1e-13, abs=1e-15)
            else:
                assert bool(row[k].isnan())


def test_sums_run_step_by_step_in_float64() -> None:
    """The bits of ``+=``: another order of a thousand steps gives others."""
    generator = torch.Generator().manual_seed(1)
    for sizes in ([3] * 1000, [3] * 700 + [2] * 300):
        means, total = Means(3), [0.0] * 3
        for k in sizes:
            row = torch.randn(k, generator=generator)
            means.add({"loss": row})
            for i, value in enumerate(row.tolist()):
                total[i] += value
        found = means.values()["loss"].tolist()
        assert found == [t / sum(k > i for k in sizes) for i, t in enumerate(total)]


def test_flags_tell_of_one_number_among_many() -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        flags = Flags()
        flags.watch([torch.ones(3, 4), torch.zeros(0), torch.ones(2, dtype=torch.int64)])
        flags.add([torch.ones(2), torch.ones(())])
        assert bool(torch.isfinite(flags.total()))
        flags.watch([torch.tensor([[1.0, bad]])])
        assert not bool(torch.isfinite(flags.total()))
    assert bool(torch.isfinite(Flags().total()))


def test_a_long_fit_keeps_few_flags() -> None:
    flags = Flags()
    flags.add([torch.tensor(torch.nan)])
    for _ in range(FOLD + 10):
        flags.add([torch.ones(())])
    assert len(flags) < FOLD and not bool(torch.isfinite(flags.total()))
