"""The clients of a chunk at work in one round: who they are, their samples, and their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree, in_double, to_device
from fedvlm.federation.batches import Batch, Batcher, Step
from fedvlm.federation.groups import Groups
from fedvlm.federation.local.effort import Effort, Work
from fedvlm.models.vlmodel import VLModel

if TYPE_CHECKING:
    from fedvlm.federation.toolbox.image_privacy import ImagePrivacy


@dataclass
class Cohort:
    """K clients at work in one round, and their samples.

    Attributes:
        model: the frozen model.
        groups: group of every trainable tensor.
        clients: ids, sorted by falling number of training samples.
        round: 1-based round; 0 outside training.
        seed: the model seed.
        epochs: local epochs of a round, by which it moves the schedule's clock.
        newcomers: whether each client never worked in a round; empty: all.
        effort: local epochs or steps of a plain ``fit`` or ``loop``; None: ``epochs``.
        class_counts: training images of every client by class, ``[N, C]`` (``Roster.classes``).
        private: noise on every gradient (``FED.DP.UNIT``): images are then read by ``fit`` alone.
    """

    model: VLModel
    groups: Groups
    _batcher: Batcher
    clients: Sequence[int]
    round: int
    seed: int
    epochs: int
    newcomers: Sequence[bool] = field(default=(), kw_only=True)
    effort: Effort | None = field(default=None, kw_only=True)
    class_counts: np.ndarray | None = field(default=None, kw_only=True, repr=False)
    private: ImagePrivacy | None = field(default=None, kw_only=True, repr=False)
    _whole: Batcher | None = field(default=None, kw_only=True, repr=False)

    @property
    def batcher(self) -> Batcher:
        """Refused: the batches are the engine's.

        Raises:
            FedvlmError: says what there is instead.
        """
        raise FedvlmError(
            "a context has no batcher: a method reads its samples with ctx.subset, ctx.whole and "
            "ctx.batches, and their counts with ctx.sizes"
        )

    @property
    def k(self) -> int:
        """Number of clients in the chunk."""
        return len(self.clients)

    @property
    def sizes(self) -> Tensor:
        """Training samples per client, ``[K]``, float64."""
        return torch.tensor(self._batcher.sizes(self.clients), dtype=torch.float64)

    @property
    def fresh(self) -> Tensor:
        """Which clients never worked in a round, ``[K]`` bool on the model's device."""
        flags = list(self.newcomers) or [True] * self.k
        return to_device(torch.tensor(flags, dtype=torch.bool), self.model.device)

    @property
    def classes(self) -> Tensor:
        """Which classes each client has training images of, ``[K, C]`` bool on the model's device.

        See ``class_sizes``.
        """
        return self.class_sizes > 0

    @property
    def class_sizes(self) -> Tensor:
        """Each client's training images of each class, ``[K, C]`` int64 on the model's device.

        C are the model's classes. All of the client's images count, also in a ``subset``.

        Raises:
            FedvlmError: the context was made without the clients' class counts.
        """
        if self.class_counts is None:
            raise FedvlmError("this context was made without the clients' class counts")
        held = self.class_counts[list(self.clients)]
        sizes = np.zeros((self.k, max(len(self.model.classnames), held.shape[1])), dtype=np.int64)
        sizes[:, : held.shape[1]] = held
        return to_device(torch.from_numpy(sizes), self.model.device)

    def check_weighted(self, method: str) -> None:
        """Refuse a method that has trained without reading the class weights of the run.

        Raises:
            ConfigError: no loss asked for them.
        """
        balance = getattr(self._batcher, "balance", None)
        if balance is not None and not balance.used and bool(self.sizes.sum() > 0):
            raise ConfigError(
                f"OPTIM.CLASS_WEIGHTS {balance.kind}: {method} has trained without reading class "
                "weights (its loss is no cross_entropy of fedvlm.method); leave it at none"
            )

    def stream(self, purpose: str, client: int = -1) -> torch.Generator:
        """Return a generator for ``purpose`` in this round (of one client, if given)."""
        return rng.stream(self.seed, purpose, self.round, client)

    def subset(self, part: str, share: float) -> Self:
        """Return this context on a part of each client's training samples.

        Args:
            part: ``fit`` or ``held``: the stratified ``share`` that is held out, or what is left.
                Its ``whole("val")`` is the other part. Equal seeds and labels give equal parts.

        Raises:
            FedvlmError: another part.
        """
        if part not in ("fit", "held"):
            raise FedvlmError(f"a method may train on the parts fit and held, not on '{part}'")
        self._unless_noised("subset")
        part_of = self._batcher.subset(self.clients, part, share)
        return replace(self, _batcher=part_of, _whole=self._whole or self._batcher)

    def only(self, at: Sequence[int]) -> Self:
        """Return this context for those of its clients that lie at ``at``, ascending."""
        newcomers = [self.newcomers[k] for k in at] if self.newcomers else ()
        clients = [self.clients[k] for k in at]
        return replace(self, clients=clients, newcomers=newcomers)

    def whole(self, part: str, fallback: str = "") -> Batch | None:
        """Return all samples of ``train`` or ``val`` of each client as one batch, un-augmented.

        A client without any has those of ``fallback`` (``present`` is 0), or padding only; None if
        nobody has any. The test split is out of reach here.
        """
        if not {part, fallback} <= {"train", "val", ""}:
            raise FedvlmError(f"a method may read train and val, not '{part}' or '{fallback}'")
        self._unless_noised("whole")
        return self._batcher.whole(self.clients, part, fallback)

    def draw(self, tag: str, most: int) -> Batch | None:
        """Return up to ``most`` training samples of each client as one batch, un-augmented.

        Drawn without replacement, from the seed, for this round, client and ``tag``. A client
        without training samples has padding only, which may show another client's; None if nobody
        has any.
        """
        self._unless_noised("draw")
        return self._batcher.draw(self.clients, self.round, tag, most)

    def batches(self, tag: str, epochs: int = 1) -> Iterator[Batch]:
        """Yield the batches of a pass without an optimiser; ``Batch.cut`` cuts trees to them."""
        self._unless_noised("batches")
        for step in self._steps(self._work(epochs, 1), 1, tag):
            yield step.batches[0]

    def _unless_noised(self, what: str) -> None:
        """Refuse what reads images without noise where noise is due (``FedvlmError``)."""
        if self.private is not None:
            self.private.refuse(what)

    def _work(self, epochs: int | None, per_step: int, after: int = 0) -> Work:
        """Return who trains how long, in the order of the loop: by falling number of steps."""
        effort = Effort(self.epochs if epochs is None else epochs)
        if epochs is None and self.effort is not None:
            effort = self.effort
        lengths = self._batcher.lengths(self.clients, per_step)
        sizes = self._batcher.sizes(self.clients)
        cuts, plain = effort.unreliable.cuts, lengths
        if cuts:
            plain = (self._whole or self._batcher).lengths(self.clients, 1)
        totals = effort.cut(self.round, self.clients, lengths, plain)
        order = sorted(range(self.k), key=lambda i: (-totals[i], -sizes[i], i))
        each: int | list[int] = effort.epochs
        if effort.span:
            drawn = effort.drawn(self.round, self.clients)
            each = [drawn[i] for i in order]
        return Work(
            [lengths[i] for i in order], [totals[i] for i in order], each, effort.steps, after,
            None if order == list(range(self.k)) else torch.tensor(order, dtype=torch.int64),
            tuple(totals[i] for i in order) if cuts else (),
        )

    def _steps(self, work: Work, per_step: int, tag: str) -> Iterator[Step]:
        """Yield steps; where clients are not in the context's own order, batches say whose rows."""
        how = work.epochs, per_step, tag, work.after, work.limit, work.most
        if work.order is None:
            yield from self._batcher.steps(self.clients, self.round, *how)
            return
        ids = [self.clients[i] for i in work.order.tolist()]
        there = to_device(work.order, self.model.device)
        for step in self._batcher.steps(ids, self.round, *how):
            at = there[: step.active]
            yield replace(step, batches=tuple(replace(b, rows=at) for b in step.batches))

    def accuracy(
        self, params: Tree, predict: Callable[[VLModel, Tree, Mapping[str, Tensor]], Tensor]
    ) -> Tensor:
        """Return each client's accuracy ``[K]`` on its validation split, float64, 0 to 1.

        It stays on the device; NaN for a client without validation samples. The test split is out
        of reach here.

        Args:
            predict: ``predict(model, params, x)`` -> logits ``[K, B, C]``.
        """
        b = self.whole("val")
        if b is None:
            return in_double(torch.full((self.k,), torch.nan, device=self.model.device))
        with torch.no_grad():
            right = predict(self.model, params, b.x).argmax(-1) == b.y
        weight = in_double(b.w)
        return (in_double(right) * weight).sum(-1) / weight.sum(-1)
