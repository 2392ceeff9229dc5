"""Which samples a client sees at which step, and the padded batches of several clients at once.

No sample is dropped: the last batch of an epoch is short, and a client with fewer samples than the
batch size trains on what it has. Samples come from a source: what was computed once (features,
activations), or pixels (the plain path); ``local.streams`` tells whether a method gets the same
numbers from both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, overload

import numpy as np
import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.trees import Tree, to_device
from fedvlm.federation.local.steps import Block, StepPlan, plan_drawn, plan_steps, plan_whole
from fedvlm.federation.server import Roster, count_roster
from fedvlm.models.features.sources import SampleSource

if TYPE_CHECKING:
    from fedvlm.federation.local.balance import Balance

NO_WEIGHTS = "none"  # OPTIM.CLASS_WEIGHTS: classes count all the same
COHORT = 1 << 14  # clients whose sizes are kept when they are asked for together


class Split(Protocol):
    """One client's samples, as sorted indices into the source."""

    @property
    def train(self) -> np.ndarray: ...
    @property
    def val(self) -> np.ndarray: ...
    @property
    def test(self) -> np.ndarray: ...


@dataclass(frozen=True)
class IndexSplit:
    """The plainest ``Split``."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Moment:
    """When in a run a batch is drawn: all that its randomness depends on, beside the client.

    Attributes:
        seed: the model seed.
        round: 1-based round.
        tag: of the fit.
        step: 1-based local step.
        part: which of the step's disjoint batches, from 0.
        secrets: of clients whose noise is to be nobody's else.
    """

    seed: int
    round: int
    tag: str
    step: int
    part: int
    secrets: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """One mini-batch of K clients.

    Attributes:
        x: streams ``[K, B, ...]``.
        y: labels ``[K, B]``.
        w: 1 for a sample, 0 for padding, ``[K, B]``.
        rows: which of the context's clients these are, ``[K]`` int64; None: its first K.
        present: of ``Context.whole``: 1 for a client with samples in the split itself, ``[K]``.
        clients: ids of the clients.
        moment: of a loop's step; None elsewhere.
        counts: samples per client, known to the host (of drawn batches the number expected, since
            the number drawn is a secret); (): a batch that was made by hand.
        sets: the sets of labels that there are, ``[S, C]`` of 0 and 1, where a sample has a set of
            them: ``y`` is then the row of its set; None: ``y`` is its class.
        balance: what classes count in the loss; None: all the same.
        groups: numbers of what each sample belongs to, ``[K, B]`` int64; None: nobody asked.
    """

    x: Mapping[str, Tensor]
    y: Tensor
    w: Tensor
    rows: Tensor | None = None
    present: Tensor | None = None
    clients: tuple[int, ...] = ()
    moment: Moment | None = None
    counts: tuple[int, ...] = ()
    sets: Tensor | None = None
    balance: Balance | None = None
    groups: Tensor | None = None

    def costs(self, dtype: torch.dtype) -> Tensor | None:
        """Return what each sample counts in a loss ``[K, B]``, or each of its labels ``[K, B, C]``.

        By the class weights of its client; None without any. A loss multiplies by it before it
        takes the mean over the samples.
        """
        if self.balance is None:
            return None
        table = self.balance.table(self.clients, self.y.device, dtype)
        if self.sets is None:
            return table.gather(1, self.y)
        held = self.sets[self.y] > 0
        return torch.where(held, table[:, None, :, 1], table[:, None, :, 0])

    @property
    def samples(self) -> int:
        """Samples of all clients together."""
        return sum(self.counts) if self.counts else int(self.w.sum())

    @overload
    def cut(self, value: Tensor) -> Tensor: ...
    @overload
    def cut(self, value: Tree) -> Tree: ...

    def cut(self, value: Tensor | Tree) -> Tensor | Tree:
        """Return the rows of a tree (or tensor) of all the context's clients that are at work here.

        What a loss or an ``edit`` closes over keeps the rows of clients that have finished; the
        slots of a loop do not and must not be cut.
        """
        if isinstance(value, Tensor):
            if self.rows is None:
                return value[: len(self.y)]
            return value[self.rows.to(value.device)]
        return {name: self.cut(leaf) for name, leaf in value.items()}

    def part(self, k: int, start: int = 0, stop: int | None = None) -> Batch:
        """Return the samples ``start`` to ``stop`` of the first ``k`` clients."""
        end = self.y.shape[1] if stop is None else min(stop, self.y.shape[1])
        x = {s: v[:k, start:end] for s, v in self.x.items()}
        return replace(
            self, x=x, y=self.y[:k, start:end], w=self.w[:k, start:end],
            rows=None if self.rows is None else self.rows[:k], clients=self.clients[:k],
            present=None if self.present is None else self.present[:k],
            groups=None if self.groups is None else self.groups[:k, start:end],
            counts=tuple(min(max(c - start, 0), end - start) for c in self.counts[:k]),
        )

    def take(self, at: Sequence[int]) -> Batch:
        """Return the batch of those of its clients that lie at ``at``."""
        index = to_device(torch.tensor(at, dtype=torch.int64), self.y.device)
        return replace(
            self, x={s: v[index] for s, v in self.x.items()}, y=self.y[index], w=self.w[index],
            rows=index if self.rows is None else self.rows[index],
            clients=tuple(self.clients[i] for i in at) if self.clients else (),
            present=None if self.present is None else self.present[index],
            groups=None if self.groups is None else self.groups[index],
            counts=tuple(self.counts[i] for i in at) if self.counts else (),
        )

    def seed(self, purpose: str, row: int) -> int | None:
        """Return a seed of ``purpose`` for one client of a loop's step; None outside a loop.

        A function of (model seed, purpose, fit, round, client, step): no two clients and no two
        steps share it, and a resumed run meets it again.
        """
        if self.moment is None:
            return None
        m = self.moment
        return rng.seed_of(m.seed, f"{purpose}/{m.tag}", m.round, self.clients[row], m.step, m.part)

    def secret(self, purpose: str, row: int) -> bytes:
        """Return a key of ``purpose`` for one client of a loop's step that only its site knows.

        Empty where the client has no secret, as in every simulation.
        """
        m = self.moment
        own = m.secrets.get(self.clients[row], b"") if m is not None else b""
        if m is None or not own:
            return b""
        place = (f"{purpose}/{m.tag}", m.round, self.clients[row], m.step, m.part)
        return hashlib.sha256(own + repr(place).encode()).digest()


def single_samples(
    params: Tree, batch: Batch, size: int, real: Sequence[int] = (),
) -> Iterator[tuple[Batch, Tree, Tensor]]:
    """Yield batches of single samples, ``size`` of each client at a time.

    Args:
        params: leaves ``[K, ...]``.
        real: samples of each client, with padding behind them, which is then left out; (): padding
            counts as a sample, and whoever adds up leaves it out.

    Yields:
        ``n`` samples as a batch of ``n`` clients; their parameters, leaves ``[n, ...]``; their
        places in ``[K * B]``.
    """
    k, width = batch.y.shape
    columns, counts = torch.arange(width), torch.tensor(list(real) or [width] * k)[:, None]
    for start in range(0, width, size):
        here = (columns >= start) & (columns < start + size) & (columns < counts)
        place = here.flatten().nonzero()[:, 0]
        if not len(place):
            return
        clients = tuple(batch.clients[i] for i in (place // width).tolist() if batch.clients)
        place = to_device(place, batch.y.device)
        own = place // width
        yield replace(
            batch, x={s: v.flatten(0, 1)[place].unsqueeze(1) for s, v in batch.x.items()},
            y=batch.y.flatten()[place, None], w=batch.w.new_ones(len(place), 1),
            rows=own if batch.rows is None else batch.rows[own], clients=clients,
            counts=(1,) * len(place), present=None, groups=None,
        ), {name: v[own] for name, v in params.items()}, place


@dataclass(frozen=True)
class Step:
    """One optimiser step of the first ``active`` clients of the chunk.

    Attributes:
        active: how many clients of the chunk still have work.
        index: 1-based step number.
        epochs: epoch on the round's clock (from 0) of each active client.
        samples: samples used by all active clients together.
        batches: ``per_step`` batches.
    """

    active: int
    index: int
    epochs: tuple[int, ...]
    samples: int
    batches: tuple[Batch, ...]

    def take(self, at: Sequence[int]) -> Step:
        """Return the step of those of its clients that lie at ``at``, ascending."""
        batches = tuple(b.take(at) for b in self.batches)
        return Step(
            len(at), self.index, tuple(self.epochs[i] for i in at),
            sum(b.samples for b in batches), batches,
        )


class Batcher(Protocol):
    """Gives the steps of one ``fit``; clients come sorted by falling number of steps."""

    def steps(
        self, clients: Sequence[int], round_: int, epochs: int | Sequence[int], per_step: int,
        tag: str, after: int = 0, limit: int = 0, most: Sequence[int] = (),
    ) -> Iterator[Step]:
        """Yield the steps of ``epochs`` local epochs: of all clients, or one number each.

        Args:
            after: epochs of the round that earlier fits took: clock and views go on from there.
            limit: so many steps of each client instead, during which the round's clock goes
                forward by ``epochs``.
            most: at most so many steps of each client, falling; the clock goes as without.
        """

    def lengths(self, clients: Sequence[int], per_step: int) -> list[int]:
        """Return the steps of one epoch of each client."""

    def sizes(self, clients: Sequence[int]) -> list[int]:
        """Return the number of training samples per client."""

    def whole(self, clients: Sequence[int], part: str, fallback: str = "") -> Batch | None:
        """Return all samples of a part (``train``, ``val``) of each client as one batch.

        A client without any has those of ``fallback``, or padding only; None if nobody has any.
        """

    def draw(self, clients: Sequence[int], round_: int, tag: str, most: int) -> Batch | None:
        """Return up to ``most`` training samples of each client as one batch.

        A client without any has padding only; None if nobody has any.
        """

    def subset(self, clients: Sequence[int], part: str, share: float) -> Batcher:
        """Return a batcher that trains on a part of each client's training samples.

        Args:
            part: ``fit`` or ``held``: what is left, and the stratified ``share`` held out of it.
        """

    def roster(self) -> Roster:
        """Return sizes and class counts of all clients."""


@lru_cache(maxsize=4096)
def step_slices(n: int, batch: int, per_step: int) -> list[list[tuple[int, int]]]:
    """Cut ``n`` shuffled samples into steps of ``per_step`` disjoint batches.

    A rest too small for full batches is shared out evenly; a rest smaller than ``per_step`` is
    shared with the step before, in two steps. Fewer than ``per_step`` samples in all are repeated.
    With batches of one sample a rest below ``per_step`` is left for another epoch's shuffle.
    Kept, since many clients have as many samples: nobody changes what is returned.
    """
    if 0 < n < per_step:
        return [[(i % n, i % n + 1) for i in range(per_step)]]
    whole = batch * per_step
    takes, rest = [whole] * (n // whole), n % whole
    if rest >= per_step:
        takes.append(rest)
    elif rest and whole + rest >= 2 * per_step:
        both = takes.pop() + rest
        takes += [both - both // 2, both // 2]
    steps: list[list[tuple[int, int]]] = []
    start = 0
    for take in takes:
        edges = [start + round(take * i / per_step) for i in range(per_step + 1)]
        steps.append(list(zip(edges[:-1], edges[1:], strict=True)))
        start += take
    return steps


def stratify(
    labels: Tensor, ratio: float, seed: int, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return positions (fit, adaptation) of ``labels [n]``, both ascending.

    Stratified: of n samples of a class round(ratio n) adapt, at least one and never all; a class
    with one sample stays in fit. Ratio 0 takes none. Equal labels and seeds give equal splits.

    Args:
        groups: numbers ``[n]``; samples of one number stay together and count as one sample, of
            the class of the first of them.
    """
    if groups is not None:
        _, unit = groups.unique(return_inverse=True)
        first = torch.stack([labels[unit == u][0] for u in range(int(unit.max()) + 1)])
        fit, adapts = stratify(first, ratio, seed)
        return (torch.isin(unit, fit).nonzero().flatten(),
                torch.isin(unit, adapts).nonzero().flatten())
    generator = rng.stream(seed, "adaptation")
    adapts = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist() if ratio > 0 else []:
        here = (labels == label).nonzero().flatten()
        n = len(here)
        if n > 1:
            count = min(max(int(ratio * n + 0.5), 1), n - 1)
            adapts[here[torch.randperm(n, generator=generator)[:count]]] = True
    return (~adapts).nonzero().flatten(), adapts.nonzero().flatten()


@dataclass(frozen=True)
class SplitBatcher:
    """Batches from each client's training split.

    Shuffles depend on (seed, tag, round, client, epoch) only. The augmented view of a local
    epoch is its number in the whole run, modulo ``views``. Samples of ``whole`` and ``draw`` come
    un-augmented from ``plain``; without it from ``source``, first view. ``poison`` is what hostile
    clients do to theirs, ``secrets`` what a site's clients draw noise from; ``groups``: by sample,
    numbers of what ``subset`` never divides; ``grouped``: batches tell them, too; ``balance``:
    what classes count in the loss; ``drawn``: every step draws each sample (each group, if
    ``grouped``) by a coin of batch size over samples, instead of shuffles (``FED.DP.SAMPLING``).
    """

    source: SampleSource
    splits: Sequence[Split] | Mapping[int, Split]
    batch_size: int
    seed: int
    views: int
    epochs_per_round: int
    device: torch.device
    dtype: torch.dtype
    plain: SampleSource | None = None
    poison: Callable[[Batch], Batch] | None = None
    secrets: Mapping[int, bytes] = field(default_factory=dict)
    sets: Tensor | None = None
    groups: np.ndarray | None = None
    balance: Balance | None = None
    grouped: bool = False
    drawn: bool = False
    _sizes: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def sizes(self, clients: Sequence[int]) -> list[int]:
        """See ``Batcher.sizes``; of a cohort they are kept, since a round asks several times."""
        if len(clients) > COHORT:
            return [len(self.splits[c].train) for c in clients]
        known = self._sizes
        for c in clients:
            if c not in known:
                known[c] = len(self.splits[c].train)
        return [known[c] for c in clients]

    def largest_groups(self, clients: Sequence[int]) -> dict[int, int]:
        """Return by client the training samples of its largest group; {}: no groups are known."""
        if self.groups is None:
            return {}
        counts = {c: np.unique(self.groups[self._part(c, "train")], return_counts=True)[1]
                  for c in clients}
        return {c: int(n.max(initial=1)) for c, n in counts.items()}

    def lengths(self, clients: Sequence[int], per_step: int) -> list[int]:
        """See ``Batcher.lengths``."""
        return [len(step_slices(n, self.batch_size, per_step)) for n in self.sizes(clients)]

    def steps(
        self, clients: Sequence[int], round_: int, epochs: int | Sequence[int], per_step: int,
        tag: str, after: int = 0, limit: int = 0, most: Sequence[int] = (),
    ) -> Iterator[Step]:
        """See ``Batcher.steps``; the plan of all steps is made before the first."""
        cuts = [step_slices(n, self.batch_size, per_step) for n in self.sizes(clients)]
        each = [epochs] * len(cuts) if isinstance(epochs, int) else list(epochs)
        totals = [(limit or e * len(c)) if c else 0 for e, c in zip(each, cuts, strict=True)]
        if most:
            totals = [min(n, m) for n, m in zip(totals, most, strict=True)]

        def clock(step: int, epoch: int) -> int:
            return after + (step * max(each) // limit if limit else epoch)

        def view(epoch: int) -> int:
            return self._view(round_, after + epoch)

        if self.drawn:
            plan = plan_drawn(
                self.source, lambda k, t: self._drawn(clients[k], round_, t + 1, tag),
                [self._part(c, "train")[:1] for c in clients], list(map(len, cuts)), totals, view,
                self.device, self.dtype, clock,
            )
        else:
            dice = torch.Generator()
            plan = plan_steps(
                self.source, lambda k, epoch: self._shuffled(clients[k], round_, epoch, tag, dice),
                cuts, totals, view, self.device, self.dtype, clock,
            )
        if self.balance is not None:
            self.balance.place(clients, self.device, self.dtype)
        groups = self._groups_of(plan)
        expected = tuple(min(self.batch_size, n) for n in self.sizes(clients))
        for t, step in enumerate(plan.steps, start=1):
            active = len(step.epochs)
            ids = tuple(clients[:active])
            told = [expected[:active] if self.drawn else b.counts for b in step.blocks]
            yield Step(
                active, t, step.epochs, sum(map(sum, told)),
                tuple(
                    replace(self._batch(
                        plan, block, step.views, ids,
                        Moment(self.seed, round_, tag, t, j, self.secrets), groups,
                    ), counts=told[j])
                    for j, block in enumerate(step.blocks)
                ),
            )

    def whole(self, clients: Sequence[int], part: str, fallback: str = "") -> Batch | None:
        """See ``Batcher.whole``; samples come un-augmented."""
        picks = [self._part(c, part) for c in clients]
        present = torch.tensor([float(len(p) > 0) for p in picks], dtype=self.dtype)
        if fallback:
            picks = [p if len(p) else self._part(c, fallback)
                     for p, c in zip(picks, clients, strict=True)]
        batch = self._as_they_are(clients, picks)
        return batch and replace(batch, present=to_device(present, self.device))

    def draw(self, clients: Sequence[int], round_: int, tag: str, most: int) -> Batch | None:
        """See ``Batcher.draw``: the first ones of a shuffle under ``tag``, un-augmented."""
        dice = torch.Generator()
        return self._as_they_are(
            clients, [self._shuffled(c, round_, 0, tag, dice)[:most] for c in clients]
        )

    def _as_they_are(self, clients: Sequence[int], picks: Sequence[np.ndarray]) -> Batch | None:
        """Return samples of each client un-augmented; None if there are none at all."""
        filler = next((p[:1] for p in picks if len(p)), None)
        if filler is None:
            return None
        plan = plan_whole(
            self.plain or self.source, [p if len(p) else filler for p in picks],
            [len(p) > 0 for p in picks], self.device, self.dtype,
        )
        (step,) = plan.steps
        return self._batch(plan, step.blocks[0], step.views, tuple(clients), None,
                           self._groups_of(plan))

    def _part(self, client: int, part: str) -> np.ndarray:
        return np.array(getattr(self.splits[client], part), dtype=np.int64)

    def subset(self, clients: Sequence[int], part: str, share: float) -> SplitBatcher:
        """See ``Batcher.subset``."""
        splits = dict(enumerate(self.splits)) if not isinstance(self.splits, Mapping) else (
            dict(self.splits))
        for c in clients:
            train = self._part(c, "train")
            groups = None if self.groups is None else torch.from_numpy(self.groups[train])
            fit, held = stratify(
                self.source.labels[torch.from_numpy(train)], share, self.seed, groups
            )
            chosen, other = (fit, held) if part == "fit" else (held, fit)
            splits[c] = IndexSplit(
                train[chosen.numpy()], train[other.numpy()], np.array(self.splits[c].test)
            )
        return replace(self, splits=splits)

    def roster(self) -> Roster:
        """See ``Batcher.roster``."""
        splits = self.splits
        if isinstance(splits, Mapping):
            splits = [splits[c] for c in range(len(splits))]
        return count_roster(splits, self.source.labels)

    def _shuffled(
        self, client: int, round_: int, epoch: int, tag: str, dice: torch.Generator | None = None
    ) -> np.ndarray:
        """Return a client's training samples in the order of a local epoch.

        Args:
            dice: is seeded anew; whoever shuffles many clients' saves making one for each.
        """
        dice = torch.Generator() if dice is None else dice
        train = np.asarray(self.splits[client].train, dtype=np.int64)
        dice.manual_seed(rng.seed_of(self.seed, f"batches/{tag}", round_, client, epoch))
        order: np.ndarray = train[torch.randperm(len(train), generator=dice).numpy()]
        return order

    def _drawn(self, client: int, round_: int, step: int, tag: str) -> np.ndarray:
        """Return the training samples that a client draws for a step, maybe none.

        Each sample (group) by a coin of its own: a function of the model seed, or of the client's
        secret, since a gain by draws needs draws that nobody knows.
        """
        train = self._part(client, "train")
        units = np.arange(len(train))
        if self.grouped and self.groups is not None:
            units = np.unique(self.groups[train], return_inverse=True)[1]
        place, own = (f"draws/{tag}", round_, client, step), self.secrets.get(client, b"")
        count = int(units.max(initial=-1)) + 1
        if own:
            key = hashlib.sha256(own + repr(place).encode()).digest()
            raw = np.frombuffer(hashlib.shake_256(key).digest(8 * count), dtype="<u8")
            uniform = (raw >> np.uint64(11)).astype(np.float64) / 2.0**53
        else:
            stream = rng.stream(self.seed, *place)
            uniform = torch.rand(count, generator=stream, dtype=torch.float64).numpy()
        picked: np.ndarray = train[(uniform < self.batch_size / max(len(train), 1))[units]]
        return picked

    def _view(self, round_: int, epoch: int) -> int:
        """Return the augmented view of a local epoch."""
        return ((round_ - 1) * self.epochs_per_round + epoch) % self.views

    def _groups_of(self, plan: StepPlan) -> Tensor | None:
        """Return the groups of a plan's samples ``[n]`` on the device; None: nobody asks."""
        if not self.grouped or self.groups is None:
            return None
        return to_device(torch.from_numpy(self.groups)[plan.index], self.device)

    def _batch(
        self, plan: StepPlan, block: Block, views: Sequence[int], clients: tuple[int, ...],
        moment: Moment | None, groups: Tensor | None,
    ) -> Batch:
        x = plan.streams(block, views)
        batch = Batch(
            {s: to_device(v, self.device) for s, v in x.items()}, block.of(plan.labels),
            block.of(plan.mask), clients=clients, moment=moment, counts=block.counts,
            sets=self.sets, balance=self.balance,
            groups=None if groups is None else block.of(groups),
        )
        return batch if self.poison is None else self.poison(batch)
