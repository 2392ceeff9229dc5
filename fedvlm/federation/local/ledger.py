"""What a client's work leaves on the device until its end: running means, and numbers to be finite.

Nothing here reads the device while clients train. ``Means`` and ``Flags`` keep lists of tensors;
each becomes a few numbers by a handful of operations when the work is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvlm.core import foreach
from fedvlm.core.trees import Tree, in_double, largest, to_device

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
        self.add(foreach.tensor_norms([v.detach() for v in leaves if v.is_floating_point()]))

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    def total(self) -> Tensor:
        """Return one number, 0-d: not finite if one of them is not."""
        return largest(self._kept) if self._kept else torch.zeros(())


@dataclass
class _Run:
    """Numbers of the same names and clients, one step after the other."""

    names: tuple[str, ...]
    ordered: bool
    k: int
    places: tuple[int, ...] = ()
    values: list[Tensor] = field(default_factory=list)


class Means:
    """Running means per client; clients that finished early keep the mean of their own steps.

    Args:
        k: clients.
        order: their places in the context, in the order of the loop; None: the same.

    Attributes:
        places: in the loop's order, of whom numbers come from now on; (): of the first ones.
    """

    def __init__(self, k: int, order: Tensor | None = None) -> None:
        self._k, self._order = k, order
        self.places: tuple[int, ...] = ()
        self._runs: list[_Run] = []

    def add(self, values: Mapping[str, Tensor], ordered: bool = False) -> None:
        """Add one number for each of the first clients of the context, or of the loop's order."""
        names, k, places = tuple(values), len(next(iter(values.values()))), self.places
        last = self._runs[-1] if self._runs else None
        kind = names, ordered, k, places
        if last is None or (last.names, last.ordered, last.k, last.places) != kind:
            last = _Run(*kind)
            self._runs.append(last)
        last.values.extend(values.values())

    def values(self) -> Tree:
        """Return the means ``[K]``, float64, on the device; NaN for a client without a number.

        Sums run in float64, step by step.
        """
        if len(self._runs) == 1 and self._runs[0].k == self._k and not self._runs[0].ordered:
            (run,) = self._runs  # clients of one size: no row ends before another
            new = in_double(torch.cat(run.values)).view(-1, len(run.names), run.k)
            last = new[0] if len(new) == 1 else _sum_in_order(new)
            return dict(zip(run.names, (last / len(new)).unbind(), strict=True))
        groups: dict[tuple[tuple[str, ...], bool], _Sums] = {}
        for run in self._runs:
            new = in_double(torch.cat(run.values)).view(-1, len(run.names), run.k)
            known = groups.setdefault((run.names, run.ordered), _Sums(self._k, new))
            known.add(new, run.places)
        total: Tree = {}
        count: Tree = {}
        for (names, ordered), known in groups.items():
            sums, counts = known.total, torch.tensor(known.counts, dtype=torch.float64)
            counts = to_device(counts, sums.device)
            if ordered and self._order is not None:
                back = to_device(self._order.argsort(), sums.device)
                sums, counts = sums[:, back], counts[back]
            if len(groups) == 1:
                return dict(zip(names, (sums / counts).unbind(), strict=True))
            for name, row in zip(names, sums, strict=True):
                total[name] = total[name] + row if name in total else row
                count[name] = count[name] + counts if name in count else counts
        return {n: v / count[n] for n, v in total.items()}


def _sum_in_order(values: Tensor) -> Tensor:
    """Return the sum over the first axis, one row after the other.

    On a GPU as a plain sum: its cumsum of floats has no fixed order in older PyTorch.
    """
    return values.cumsum(0)[-1] if values.device.type in ("cpu", "mps") else values.sum(0)


class _Sums:
    """Sums ``[names, K]`` and how many numbers are in them, by client."""

    def __init__(self, k: int, like: Tensor) -> None:
        self.total = like.new_zeros(like.shape[1], k)
        self.counts = [0] * k

    def add(self, new: Tensor, places: Sequence[int] = ()) -> None:
        """Add numbers ``[steps, names, K']``, one step after the other.

        Args:
            places: whose they are; (): the first clients'.
        """
        steps, _, k = new.shape
        whose = set(places or range(k))
        self.counts = [n + steps * (i in whose) for i, n in enumerate(self.counts)]
        if places:
            whole = new.new_zeros(steps, new.shape[1], len(self.counts))
            whole[:, :, list(places)] = new
            new, k = whole, len(self.counts)
        after = _sum_in_order(torch.cat([self.total[None, :, :k], new]))
        self.total = torch.cat([after, self.total[:, k:]], 1)
