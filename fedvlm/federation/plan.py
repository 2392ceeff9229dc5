"""What a run does and where it ends, and who is computed with whom: plan, budget, chunks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, QuorumError, plural
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.server_optim import ServerOptimSpec
from fedvlm.federation.batches import step_slices
from fedvlm.federation.context import DESCENT, FIT, LOOP
from fedvlm.federation.local.effort import Effort, Worked, samples_of
from fedvlm.federation.optim import OptimSpec, Schedule
from fedvlm.federation.reliability.unreliable import Unreliable, below_quorum, quorum_count

if TYPE_CHECKING:
    from fedvlm.federation.aggregation.client_privacy import ClientPrivacy
    from fedvlm.federation.aggregation.fairness import Fairness
    from fedvlm.federation.reliability.buffered import Turn
    from fedvlm.federation.reliability.hostile import Hostile
    from fedvlm.federation.toolbox.image_privacy import ImagePrivacy
    from fedvlm.federation.trainer import Trainer

_COVER = "ranges such as 0-4,5-7 must contain every client once"
RISE = 0.5  # points of validation accuracy that count as a rise
FALL = 0.02  # share of a validation loss that counts as a fall
BLIND = 20  # rounds of ``--rounds auto`` without validation images
COUNTERS = {"steps": "gradients", "samples": "gradient_samples"}  # FED.BUDGET -> counter


@dataclass
class Budget:
    """How many rounds a method gets where methods are matched by work (``FED.BUDGET``).

    What plain FedAvg would spend under the same config, in local steps (batches trained on) or in
    samples, is the budget of every method. A method that spends more per round gets fewer rounds:
    the run ends before the round that would go beyond the budget, if that round cost what the last
    one did. Nobody gets more than ``FED.ROUNDS`` rounds, and everybody gets one. The final
    fine-tuning, adaptation for the evaluation and the server's own training are not counted; a
    batch from which a method takes several gradients (APFL, pFedMe, Per-FedAvg, FedALA) counts as
    often. Learning-rate schedules and the phases of a method go on counting in ``FED.ROUNDS``.

    Attributes:
        unit: ``rounds`` (no limit of its own), ``steps`` or ``samples``.
        plain: what FedAvg spends in rounds 1, 2, ... (all clients together); empty for ``rounds``.
        spent: round -> what it cost.
    """

    unit: str = "rounds"
    plain: Sequence[int] = ()
    spent: dict[int, int] = field(default_factory=dict)

    def record(self, round_: int, counters: Mapping[str, int]) -> None:
        """Enter what a round cost; entering it again replaces it."""
        if self.plain:
            self.spent[round_] = int(counters.get(COUNTERS[self.unit], 0))

    def last(self, rounds: int) -> int:
        """Return the number of the run's last round: ``rounds``, or where the budget ends."""
        newest = max(self.spent, default=rounds)
        if newest >= rounds:
            return rounds
        # The next round, if it cost as many times FedAvg's as this one did; in whole numbers.
        here, following = self.plain[newest - 1], self.plain[newest]
        needed = sum(self.spent.values()) * here + self.spent[newest] * following
        return newest if needed > sum(self.plain) * here else rounds


@dataclass
class Plateau:
    """Where a run of ``--rounds auto`` ends: when its validation accuracy and loss are flat.

    Every ``every`` rounds the personal models are checked on the clients' own validation images
    (means over ``clients``). The run ends with the first check after which ``patience`` checks in a
    row were at most ``RISE`` points above the highest before them, and with ``loss`` not ``FALL``
    below the lowest loss either: of few images the accuracy stands still while the loss still
    falls. So it ends after ``patience + 1`` checks at the earliest, or with its last round. Without
    validation images it has ``BLIND`` rounds.

    Attributes:
        patience: ``FED.PATIENCE``; 0: the run goes to its last round.
        clients: those with validation images.
        every: rounds between checks.
        measure: what is checked, in words.
        found: round -> ``measure`` in percent.
        loss: whether losses are checked, too (``FED.PATIENCE_LOSS``).
        losses: round -> mean loss in nats, where every client's is finite.
        auto: nobody gave a number of rounds, for the words.
    """

    patience: int = 0
    clients: Sequence[int] = ()
    every: int = 1
    measure: str = "accuracy"
    found: dict[int, float] = field(default_factory=dict)
    loss: bool = False
    losses: dict[int, float] = field(default_factory=dict)
    auto: bool = False

    def due(self, round_: int) -> bool:
        """Say whether there is a check after a round."""
        return bool(self.patience and self.clients and round_) and round_ % self.every == 0

    def record(self, round_: int, accuracy: float | None, loss: float | None = None) -> None:
        """Enter what a check found; a round without one changes nothing."""
        if self.due(round_) and accuracy is not None:
            self.found[round_] = accuracy
            if self.loss and loss is not None:
                self.losses[round_] = loss

    def _flat(self) -> tuple[int, int, int, int]:
        """Return the rounds of the best accuracy and loss, the newest check, the flat ones."""
        best = low = newest = since = 0
        for newest in sorted(self.found):
            rises = not best or self.found[newest] > self.found[best] + RISE
            falls = newest in self.losses and (
                not low or self.losses[newest] < (1 - FALL) * self.losses[low])
            best, low = newest if rises else best, newest if falls else low
            since = 0 if rises or falls else since + 1
            if since == self.patience:
                break
        return best, low, newest, since

    def last(self, rounds: int) -> int:
        """Return the number of the run's last round, as far as it is known."""
        if not self.patience:
            return rounds
        if not self.clients:
            return min(BLIND, rounds)
        *_, newest, since = self._flat()
        return newest if since == self.patience else rounds

    def sentence(self, last: int, rounds: int) -> str:
        """Return why a run ended after round ``last`` of at most ``rounds``; empty if it is off."""
        if not self.patience:
            return ""
        rule = "--rounds auto" if self.auto else f"FED.PATIENCE {self.patience}"
        if not self.clients:
            rest = ("--rounds N sets another number" if self.auto
                    else f"FED.PATIENCE 0: all {rounds}")
            return f"{rule}: no client has validation images, so the run has {last} rounds; {rest}"
        best, low, newest, since = self._flat()
        what = f"{self.measure} and loss" if low else self.measure
        if since < self.patience or newest != last:
            return (f"{rule}: ended after round {last}; the clients' validation {what} "
                    f"{'were' if low else 'was'} not flat yet")
        why = (f"{rule}: stopped after round {last} of at most {rounds}, because the "
               f"clients' validation {what} {'are' if low else 'is'} flat: ")
        high = f"{self.found[best]:.1f} % after round {best}"
        checks = "check" if since == 1 else f"{since} checks"
        if not low:
            return (f"{why}{high}, and at most {RISE:g} points more in the {checks} since "
                    f"(one every {self.every} rounds)")
        return (f"{why}the last {checks} (one every {self.every} rounds) found at most "
                f"{RISE:g} points above {high} and less than {100 * FALL:g} % below the loss "
                f"{self.losses[low]:.3g} after round {low}")


def plain_work(
    unit: str, cohorts: Sequence[Sequence[int]], sizes: Sequence[int], effort: Effort, batch: int
) -> tuple[int, ...]:
    """Return what FedAvg spends in each round, all clients together; nothing for ``rounds``.

    Args:
        cohorts: the clients of each round.
        sizes: training samples of each client.
        effort, batch: of the local training.
    """
    if unit == "rounds":
        return ()
    slices = [step_slices(n, batch, 1) for n in sizes]
    out = []
    for round_, cohort in enumerate(cohorts, start=1):
        steps = effort.totals(round_, cohort, [len(slices[c]) for c in cohort])
        if unit == "samples":
            steps = [samples_of(n, slices[c]) for n, c in zip(steps, cohort, strict=True)]
        out.append(sum(steps))
    return tuple(out)


@dataclass(frozen=True)
class Plan:
    """What ``FED`` and ``OPTIM`` say, as plain values.

    Attributes:
        rounds, clients, frac: T, number of clients, share drawn per round.
        epochs: local epochs.
        first_round_all: every client works in round 1, whatever ``frac``.
        nonfinite: ``abort`` or ``drop``.
        seed: model seed (initialisation, shuffles, client sampling).
        weighting: ``FED.WEIGHTING``: ``samples``, ``uniform``; ``auto``: as the method has it, also
            before ``fairness``.
        schedule: learning rates (default: constant); its clock is the epoch of the whole run,
            or starts again each round with ``clock_per_round``.
        aggregator, server_optim: what ``FED.AGGREGATOR``, ``FED.SERVER_OPTIM`` and their keys say.
        unseen: clients that are never drawn (``FED.UNSEEN_CLIENTS``).
        local_steps: steps of every client and round instead of epochs; 0: epochs.
        epochs_range: fewest and most epochs, drawn per client and round; (): ``epochs``.
        early_stop: epochs without a better validation loss that end a client's fit; 0: none do.
        unreliable: who does not answer in time.
        hostile: who attacks, and how; None: nobody.
        dp: client-level privacy, by which rounds are drawn, too; None: none.
        private: privacy of images or groups, by noise on every gradient; None: none.
        fairness: how clients weigh by their losses; None: they do not.
    """

    rounds: int
    clients: int
    frac: float = 1.0
    epochs: int = 1
    first_round_all: bool = True
    nonfinite: str = "abort"
    seed: int = 1
    optim: OptimSpec = field(default_factory=OptimSpec)
    schedule: Schedule | None = None
    clock_per_round: bool = False
    weighting: str = "auto"
    aggregator: AggregateSpec = AggregateSpec()
    server_optim: ServerOptimSpec = ServerOptimSpec()
    unseen: tuple[int, ...] = ()
    local_steps: int = 0
    epochs_range: tuple[int, ...] = ()
    early_stop: int = 0
    unreliable: Unreliable = field(default_factory=Unreliable)
    hostile: Hostile | None = None
    dp: ClientPrivacy | None = None
    private: ImagePrivacy | None = None
    fairness: Fairness | None = None

    @property
    def effort(self) -> Effort:
        """How long a client trains in a round."""
        return Effort(self.epochs, self.local_steps, self.epochs_range, self.seed, self.unreliable)

    @property
    def members(self) -> Sequence[int]:
        """The clients that may be drawn, ascending."""
        everyone, out = range(self.clients), set(self.unseen)
        return [c for c in everyone if c not in out] if out else everyone

    @property
    def cohort(self) -> int:
        """Clients of a round that is not the first: max(int(frac K), 1)."""
        count = self.clients - len(self.unseen)
        return count if self.frac >= 1 else max(int(self.frac * count), 1)

    def sample(self, round_: int) -> list[int]:
        """Return the clients of a round, ascending, drawn without replacement."""
        members = self.members
        if self.unreliable.buffer:
            return list(self.turn(round_).starts)
        if self.dp is not None:
            return self.dp.draw(round_, members)
        if self.frac >= 1 or (round_ == 1 and self.first_round_all):
            return list(members)
        generator = rng.stream(self.seed, "sample", round_)
        order = torch.randperm(len(members), generator=generator)
        return sorted(members[i] for i in order[: self.cohort].tolist())

    def turn(self, round_: int) -> Turn:
        """Return whose updates arrive for an asynchronous round; ``cohort`` clients work."""
        from fedvlm.federation.reliability.buffered import turns  # start-up: such runs only

        members, last = tuple(self.members), max(self.rounds, round_)
        return turns(self.unreliable, members, self.cohort, last)[round_ - 1]

    def fates(
        self, round_: int, clients: Sequence[int], lengths: Sequence[int]
    ) -> tuple[dict[int, str], dict[int, float]]:
        """Return who of a round's clients is lost and why, and who sends which share of its work.

        Args:
            lengths: steps of one plain epoch of each.

        Raises:
            QuorumError: too few are left.
        """
        quorum, lost = self.unreliable.quorum, self.lost(round_, clients, lengths)
        counted = [c for c in clients if not self.unreliable.never(c)]
        gone = {c: why for c, why in lost.items() if c in counted}
        if len(counted) - len(gone) < quorum_count(quorum, len(counted)):
            raise QuorumError(below_quorum(round_, len(counted), gone, quorum))
        if not self.unreliable.cuts:
            return lost, {}
        whole, done = (f(round_, clients, lengths) for f in (self.effort.whole, self.effort.totals))
        return lost, {
            c: part / total for c, part, total in zip(clients, done, whole, strict=True)
            if part < total and c not in lost
        }

    def lost(self, round_: int, clients: Sequence[int], lengths: Sequence[int]) -> dict[int, str]:
        """Return who of a round's clients does not answer in time, and why.

        Args:
            lengths: steps of one plain epoch of each.
        """
        if not self.unreliable.active:
            return {}
        steps = self.effort.whole(round_, clients, lengths)
        return self.unreliable.lost(round_, clients, steps)

    def worked(
        self, cohorts: Mapping[int, Sequence[int]], sizes: Sequence[int], batch: int
    ) -> list[Worked]:
        """Return what each client of some rounds does in them, as far as it is public.

        Args:
            cohorts: round -> who is drawn.
            sizes: training samples of every client of the federation.
            batch: of the local training.
        """
        slices, steps = [step_slices(int(n), batch, 1) for n in sizes], dict[int, list[int]]()
        fits = self.private.fits if self.private else (0,)
        for round_, drawn in cohorts.items():
            lengths = [len(slices[c]) for c in drawn]
            whole = self.effort.whole(round_, drawn, lengths)
            for c, n, length in zip(drawn, whole, lengths, strict=True):
                steps.setdefault(c, []).extend(e * length if e else n for e in fits)
        return [
            Worked(
                tuple(each), len(slices[c]), int(sizes[c]),
                max((stop - start for step in slices[c] for start, stop in step), default=0),
                self.private.spread(c, len(slices[c])) if self.private else 1,
            )
            for c, each in sorted(steps.items())
        ]

    def answering(self, round_: int, lengths: Sequence[int]) -> list[int]:
        """Return the clients of a round that answer in time, ascending.

        Args:
            lengths: steps of one plain epoch of every client of the federation.
        """
        chosen = self.sample(round_)
        lost = self.lost(round_, chosen, [lengths[c] for c in chosen])
        return [c for c in chosen if c not in lost]


@dataclass(frozen=True)
class Chunk:
    """Clients that are computed at once; a client's last bits depend on who shares its chunk.

    Attributes:
        site: where all of them are.
        form: of what they hold and receive (``Clients.forms``).
        clients: by falling number of samples, ties by id.
    """

    site: int
    form: str
    clients: tuple[int, ...]


def plan_chunks(
    ids: Sequence[int], sizes: Sequence[int], sites: Sequence[int], forms: Sequence[str], most: int
) -> list[Chunk]:
    """Cut clients into chunks; a pure function, part of a run's layout.

    Args:
        ids: the clients, in any order.
        sizes, sites, forms: of each of ``ids``: training samples, site, form of its tensors.
        most: clients in a chunk.

    Returns:
        Chunks of one site and one form, sorted by (site, form, -samples, id).
    """
    order = sorted(zip(sites, forms, (-int(n) for n in sizes), ids, strict=True))
    chunks: list[Chunk] = []
    for (site, form), group in groupby(order, key=lambda row: (int(row[0]), row[1])):
        clients = [client for *_, client in group]
        chunks += [
            Chunk(site, form, tuple(clients[i : i + most])) for i in range(0, len(clients), most)
        ]
    return chunks


def parse_sites(text: str, clients: int) -> tuple[int, ...]:
    """Return the site of each client of ``FED.SITES``: ``0-4,5-7`` -> five times 0, three times 1.

    Args:
        text: ranges of clients, one per site; empty is one site.
        clients: how many there are.

    Raises:
        ConfigError: the ranges do not hold each client once.
    """
    sites: dict[int, int] = {}
    for site, part in enumerate(text.replace(" ", "").split(",") if text.strip() else []):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if bounds is None:
            raise ConfigError(f"FED.SITES '{text}': '{part}' is not a range of clients; {_COVER}")
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last < first or last >= clients:
            why = "runs backwards" if last < first else f"ends after client {clients - 1}, the last"
            raise ConfigError(f"FED.SITES '{text}': range {part} {why}; {_COVER}")
        twice = [c for c in range(first, last + 1) if c in sites]
        if twice:
            raise ConfigError(f"FED.SITES '{text}': client {twice[0]} is at two sites; {_COVER}")
        sites |= dict.fromkeys(range(first, last + 1), site)
    missing = [c for c in range(clients) if c not in sites] if sites else []
    if missing:
        raise ConfigError(f"FED.SITES '{text}': client {missing[0]} is at no site; {_COVER}")
    return tuple(sites[c] for c in range(clients)) if sites else (0,) * clients


def draw_unseen(
    clients: int, count: int, data_seed: int, least: int = 0, sizes: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the ``FED.UNSEEN_CLIENTS`` of ``clients``, ascending: a function of the data seed.

    Clients with fewer than ``least`` training images (``FED.MIN_IMAGES``; ``sizes`` has the numbers
    of all) are of them as well.

    Raises:
        ConfigError: nobody would be left to train.
    """
    if count >= clients:
        raise ConfigError(
            f"FED.UNSEEN_CLIENTS {count}: none of the {clients} clients would be left to "
            f"train; set it to at most {clients - 1}, or raise FED.CLIENTS"
        )
    order = torch.randperm(clients, generator=rng.stream(data_seed, "unseen-clients"))
    small = {c for c, size in enumerate(sizes) if size < least}
    unseen = small.union(order[:count].tolist())
    if len(unseen) >= clients:
        raise ConfigError(
            f"FED.MIN_IMAGES {least}: none of the {clients} clients would be left to train; the "
            f"largest has {plural(max(sizes), 'training image')}"
        )
    return tuple(sorted(unseen))


def check_footing(method: Trainer, plan: Plan, train: Sequence[int], val: Sequence[int]) -> None:
    """Refuse keys of the local training that contradict each other, the method or the data.

    Args:
        train, val: samples of each client.

    Raises:
        ConfigError: such a key.
    """
    name, spec = method.name or type(method).__name__, plan.optim
    if method.trains_by not in (FIT, LOOP, DESCENT):
        raise ConfigError(
            f"trainer {name}: trains_by '{method.trains_by}' is none of {FIT}, {LOOP}, {DESCENT}"
        )
    own = {"FED.EARLY_STOP": plan.early_stop > 0, "OPTIM.KEEP_STATE": spec.keep}
    if method.trains_by == DESCENT:
        own |= {"OPTIM.CLIP": spec.clip > 0, f"OPTIM.{min(spec.roles, default='').upper()}":
                bool(spec.roles)}
    for key in (k for k, on in own.items() if on and method.trains_by != FIT):
        raise ConfigError(
            f"{key}: {name} has its own training loop, which ignores this key; leave it at its "
            "default"
        )
    counts = {"FED.LOCAL_STEPS": plan.local_steps, "FED.EPOCHS_RANGE": plan.epochs_range,
              "FED.EARLY_STOP": plan.early_stop}
    if method.phases and plan.unreliable.cuts:
        raise ConfigError(
            f"FED.UNRELIABLE.LATE partial: {name} has phases within a round, counted in epochs, "
            "which cannot stop at a deadline; set FED.UNRELIABLE.LATE drop"
        )
    several = [key for key, value in counts.items() if value]
    if plan.local_steps and len(several) > 1:
        raise ConfigError(
            f"FED.LOCAL_STEPS {plan.local_steps} and {several[1]}: every client makes exactly "
            "this number of steps; set only one of the two"
        )
    if method.phases and several and several[0] != "FED.EARLY_STOP":
        raise ConfigError(
            f"{several[0]}: {name} has phases within a round, counted in epochs; set "
            "FED.LOCAL_EPOCHS and the method's own epoch settings instead"
        )
    span = plan.epochs_range
    if span and not (len(span) == 2 and 1 <= span[0] <= span[1] <= plan.epochs):
        raise ConfigError(
            f"FED.EPOCHS_RANGE {tuple(span)}: expected (fewest, most) with 1 <= fewest <= most "
            f"<= FED.LOCAL_EPOCHS, which is {plan.epochs}"
        )
    if spec.keep and not spec.stateful:
        raise ConfigError(
            "OPTIM.KEEP_STATE True: SGD without momentum has no state to keep; set OPTIM.MOMENTUM, "
            "OPTIM.NAME adam, or drop it"
        )
    blind = [c for c, (n, m) in enumerate(zip(train, val, strict=True)) if n and not m]
    if plan.early_stop and blind:
        raise ConfigError(
            f"FED.EARLY_STOP {plan.early_stop}: client {blind[0]}"
            f"{f' and {len(blind) - 1} more have' if len(blind) > 1 else ' has'} no validation "
            "images for early stopping; set DATASET.VAL_SHOTS above 0, another partition, or "
            "FED.EARLY_STOP 0"
        )
