"""Every batch of a fit, planned before its first step: samples, labels and padding on the device.

NumPy makes the plan on the host; one copy brings it to the device, and a step takes views of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.trees import to_device
from fedvlm.models.features.sources import FeatureSource, JoinedSource, SampleSource

Slices = Sequence[Sequence[tuple[int, int]]]  # of one epoch's shuffle: per step, per batch
Order = Callable[[int, int], np.ndarray]  # (client's place, local epoch) -> its shuffled samples


class Block(NamedTuple):
    """One batch in the plan's arrays: ``clients x width`` numbers from ``start`` on."""

    start: int
    width: int
    counts: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.width * len(self.counts)

    def of(self, values: Tensor) -> Tensor:
        """Return the batch's own, ``[K, B]`` (a view)."""
        return values[self.start : self.stop].view(len(self.counts), self.width)


class PlannedStep(NamedTuple):
    """One step: epoch on the clock and view of each client at work, and its batches."""

    epochs: tuple[int, ...]
    views: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class StepPlan:
    """The batches of a fit.

    Attributes:
        steps: one after the other.
        index: samples ``[n]`` int64, on the host; padding repeats a client's first one.
        rows: where they lie in the tables of each stream, beside these; (): the source has pixels.
        labels: ``[n]`` int64, on the device.
        mask: 1 for a sample, 0 for padding, ``[n]``, on the device.
    """

    source: SampleSource
    steps: tuple[PlannedStep, ...]
    index: Tensor
    rows: tuple[Tensor, ...]
    labels: Tensor
    mask: Tensor

    def streams(self, block: Block, views: Sequence[int]) -> dict[str, Tensor]:
        """Return the samples of a batch, ``{stream: [K, B, ...]}``, where the source has them."""
        if self.rows:
            return {table.stream: _taken(table, block.of(rows), views)
                    for table, rows in zip(_tables(self.source), self.rows, strict=True)}
        index = block.of(self.index)
        if len(set(views)) == 1:
            flat = self.source.fetch(index.reshape(-1), views[0])
            return {s: v.reshape(*index.shape, *v.shape[1:]) for s, v in flat.items()}
        parts = [self.source.fetch(row, view) for row, view in zip(index, views, strict=True)]
        return {s: torch.stack([part[s] for part in parts]) for s in parts[0]}


def _tables(source: SampleSource) -> tuple[FeatureSource, ...]:
    """Return the sources of single streams; none where one of them is no table."""
    parts = source.parts if isinstance(source, JoinedSource) else (source,)
    tables = tuple(part for part in parts if isinstance(part, FeatureSource))
    return tables if len(tables) == len(parts) else ()


def _taken(table: FeatureSource, rows: Tensor, views: Sequence[int]) -> Tensor:
    if len(set(views)) == 1:
        return table.take(rows, views[0])
    return torch.stack([table.take(row, view) for row, view in zip(rows, views, strict=True)])


def plan_steps(
    source: SampleSource, order: Order, cuts: Sequence[Slices], totals: Sequence[int],
    view: Callable[[int], int], device: torch.device, dtype: torch.dtype,
    clock: Callable[[int, int], int] = lambda step, epoch: epoch,
) -> StepPlan:
    """Return the plan of a fit.

    Args:
        order: a client's shuffle of an epoch.
        cuts: per client the slices of every epoch's shuffle.
        totals: its steps, falling; it walks on from one epoch's shuffle to the next.
        view: of a local epoch.
        dtype: of ``mask``.
        clock: (0-based step, local epoch) -> epoch on the round's clock.

    Raises:
        FedvlmError: a sample that the source does not have.
    """
    steps, picks, start = list[PlannedStep](), list[list[np.ndarray]](), 0
    shuffled: dict[int, tuple[int, np.ndarray]] = {}
    for t in range(max(totals, default=0)):
        active = sum(total > t for total in totals)
        at = tuple(t // len(cuts[k]) for k in range(active))
        for k in range(active):
            if shuffled.get(k, (-1, None))[0] != at[k]:
                shuffled[k] = (at[k], order(k, at[k]))
        blocks = []
        slices = [cuts[k][t % len(cuts[k])] for k in range(active)]
        for j in range(len(slices[0])):
            picks.append([shuffled[k][1][a:b] for k, (a, b) in enumerate(s[j] for s in slices)])
            counts = tuple(map(len, picks[-1]))
            blocks.append(Block(start, max(counts), counts))
            start = blocks[-1].stop
        hands, views = tuple(clock(t, e) for e in at), tuple(view(e) for e in at)
        steps.append(PlannedStep(hands, views, tuple(blocks)))
    return lay_out(source, tuple(steps), picks, device, dtype)


def plan_drawn(
    source: SampleSource, draw: Order, fillers: Sequence[np.ndarray], lengths: Sequence[int],
    totals: Sequence[int], view: Callable[[int], int], device: torch.device, dtype: torch.dtype,
    clock: Callable[[int, int], int],
) -> StepPlan:
    """Return the plan of a fit of which every step draws its samples anew.

    Args:
        draw: (client's place, 0-based step) -> its samples, which may be none.
        fillers: a sample of each client, as padding where none was drawn.
        lengths: steps of an epoch of each client.
        totals, view, dtype, clock: as of ``plan_steps``.
    """
    steps, picks, start = list[PlannedStep](), list[list[np.ndarray]](), 0
    for t in range(max(totals, default=0)):
        at = tuple(t // n for n, total in zip(lengths, totals, strict=True) if total > t)
        drawn = [draw(k, t) for k in range(len(at))]
        counts = tuple(map(len, drawn))
        block = Block(start, max(1, *counts), counts)
        picks.append([d if len(d) else f for d, f in zip(drawn, fillers, strict=False)])
        start = block.stop
        steps.append(
            PlannedStep(tuple(clock(t, e) for e in at), tuple(view(e) for e in at), (block,)))
    return lay_out(source, tuple(steps), picks, device, dtype)


def plan_whole(
    source: SampleSource, picks: Sequence[np.ndarray], full: Sequence[bool], device: torch.device,
    dtype: torch.dtype,
) -> StepPlan:
    """Return the plan of one batch of all samples given, un-augmented.

    Args:
        picks: samples per client, at least one each.
        full: False: these are padding.
    """
    counts = tuple(len(p) if f else 0 for p, f in zip(picks, full, strict=True))
    block = Block(0, max(map(len, picks)), counts)
    step = PlannedStep((), (0,) * len(picks), (block,))
    return lay_out(source, (step,), [list(picks)], device, dtype)


def lay_out(
    source: SampleSource, steps: tuple[PlannedStep, ...], picks: Sequence[Sequence[np.ndarray]],
    device: torch.device, dtype: torch.dtype,
) -> StepPlan:
    """Fill the plan's arrays and bring them to the device, by one copy."""
    blocks = [block for step in steps for block in step.blocks]
    size = blocks[-1].stop if blocks else 0
    tables = _tables(source)
    index, there = np.empty(size, np.int64), np.zeros((2 + len(tables), size), np.int64)
    mask = there[1]
    for block, chosen in zip(blocks, picks, strict=True):
        at = block.start
        if min(block.counts) == block.width:  # nobody has padding
            index[at : block.stop], mask[at : block.stop] = np.concatenate(chosen), 1
            continue
        for samples, count in zip(chosen, block.counts, strict=True):
            n, end = len(samples), at + block.width
            index[at : at + n] = samples
            index[at + n : end] = samples[0]
            mask[at : at + count] = 1
            at = end
    there[0] = source.labels.numpy()[index]
    for i, table in enumerate(tables, 2):
        there[i] = table.locate(index)
    host = torch.from_numpy(there)
    placed = to_device(host, device)
    rows = tuple((placed if table.device == placed.device else host)[i]
                 for i, table in enumerate(tables, 2))
    return StepPlan(source, steps, torch.from_numpy(index), rows, placed[0], placed[1].to(dtype))
