"""What a client's work leaves on the device until its end: running means, and numbers to be finite.

Nothing here reads the device while clients train. ``Means`` and ``Flags`` keep lists of tensors;
each becomes a few numbers by a handful of operations when the work is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvlm.core import foreach
from fedvlm.core.trees import Tree, in_double

FOLD = 4096  # tensors that are kept apart at most


class Flags:
    """Numbers that must be finite, of all clients together; who it was is asked if they are not."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def add(self, values: Iterable[Tensor]) -> None:
        """Remember a few numbers."""
        self._kept.extend(v.detach().reshape(-1) for v in values)
        if len(self._kept) > FOLD:
            self._kept = [self.total().reshape(-1)]

    def watch(self, leaves: Iterable[Tensor]) -> None:
        """Remember tensors of any size, by their lengths."""
        self.add(foreach.norms([v.detach() for v in leaves if v.is_floating_point()]))

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    def total(self) -> Tensor:
        """Return one number, 0-d: not finite if one of them is not."""
        return torch.cat(self._kept).abs().amax() if self._kept else torch.zeros(())


@dataclass
class _Run:
    """Numbers of the same names and clients, one step after the other."""

    names: tuple[str, ...]
    ordered: bool
    k: int
    values: list[Tensor] = field(default_factory=list)


class Means:
    """Running means per client; clients that finished early keep the mean of their own steps.

    Args:
        k: clients.
        order: their places in the context, in the order of the loop; None: the same.
    """

    def __init__(self, k: int, order: Tensor | None = None) -> None:
        self._k, self._order = k, order
        self._runs: list[_Run] = []

    def add(self, values: Mapping[str, Tensor], ordered: bool = False) -> None:
        """Add one number for each of the first clients of the context, or of the loop's order."""
        names, k = tuple(values), len(next(iter(values.values())))
        last = self._runs[-1] if self._runs else None
        if last is None or (last.names, last.ordered, last.k) != (names, ordered, k):
            last = _Run(names, ordered, k)
            self._runs.append(last)
        last.values.extend(values.values())

    def values(self) -> Tree:
        """Return the means ``[K]``, float64, on the device; NaN for a client without a number.

        Sums run in float64, step by step.
        """
        sums: dict[tuple[str, bool], Tensor] = {}
        counts: dict[tuple[str, bool], list[int]] = {}
        for run in self._runs:
            keys = [(name, run.ordered) for name in run.names]
            new = in_double(torch.cat(run.values)).view(-1, len(keys), run.k)
            for key in keys:
                if key not in sums:
                    sums[key], counts[key] = new.new_zeros(self._k), [0] * self._k
                for k in range(run.k):
                    counts[key][k] += len(new)
            before = torch.stack([sums[key][: run.k] for key in keys])
            after = torch.cat([before[None], new]).cumsum(0)[-1]
            for key, row in zip(keys, after, strict=True):
                sums[key] = row if run.k == self._k else torch.cat([row, sums[key][run.k :]])
        return self._divided(sums, counts)

    def _divided(
        self, sums: dict[tuple[str, bool], Tensor], counts: dict[tuple[str, bool], list[int]]
    ) -> Tree:
        """Return sums over counts, in the context's order."""
        total: Tree = {}
        number: dict[str, Tensor] = {}
        for (name, ordered), row in sums.items():
            count = torch.tensor(counts[name, ordered], dtype=torch.float64)
            if ordered and self._order is not None:
                back = self._order.argsort()
                row, count = row[back.to(row.device)], count[back]
            total[name] = total[name] + row if name in total else row
            number[name] = number[name] + count if name in number else count
        return {
            n: v / number[n].to(v.device, non_blocking=True) for n, v in total.items()
        }
