"""What a run does and where it ends, and who is computed with whom: plan, budget, chunks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.server_optim import ServerOptimSpec
from fedvlm.federation.batches import step_slices
from fedvlm.federation.optim import OptimSpec, Schedule

_COVER = "ranges such as 0-4,5-7 hold every client once"
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


def plain_work(
    unit: str, cohorts: Sequence[Sequence[int]], sizes: Sequence[int], epochs: int, batch: int
) -> tuple[int, ...]:
    """Return what FedAvg spends in each round, all clients together; nothing for ``rounds``.

    Args:
        cohorts: the clients of each round.
        sizes: training samples of each client.
        epochs, batch: of the local training.
    """
    if unit == "rounds":
        return ()
    each = [n if unit == "samples" else len(step_slices(n, batch, 1)) for n in sizes]
    return tuple(epochs * sum(each[c] for c in cohort) for cohort in cohorts)


@dataclass(frozen=True)
class Plan:
    """What ``FED`` and ``OPTIM`` say, as plain values.

    Attributes:
        rounds, clients, frac: T, number of clients, share drawn per round.
        epochs: local epochs.
        first_round_all: every client works in round 1, whatever ``frac``.
        nonfinite: ``abort`` or ``drop``.
        seed: model seed (initialisation, shuffles, client sampling).
        weighting: ``FED.WEIGHTING``: ``samples``, ``uniform``; ``auto``: as the method has it.
        schedule: learning rates (default: constant); its clock is the epoch of the whole run,
            or starts again each round with ``clock_per_round``.
        aggregator, server_optim: what ``FED.AGGREGATOR``, ``FED.SERVER_OPTIM`` and their keys say.
        unseen: clients that are never drawn (``FED.UNSEEN_CLIENTS``).
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
        if self.frac >= 1 or (round_ == 1 and self.first_round_all):
            return list(members)
        generator = rng.stream(self.seed, "sample", round_)
        order = torch.randperm(len(members), generator=generator)
        return sorted(members[i] for i in order[: self.cohort].tolist())


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
            raise ConfigError(f"FED.SITES '{text}': '{part}' is no range of clients; {_COVER}")
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


def draw_unseen(clients: int, count: int, data_seed: int) -> tuple[int, ...]:
    """Return the ``FED.UNSEEN_CLIENTS`` of ``clients``, ascending: a function of the data seed.

    Raises:
        ConfigError: nobody would be left to train.
    """
    if count >= clients:
        raise ConfigError(
            f"FED.UNSEEN_CLIENTS {count}: of {clients} clients nobody would be left to train; "
            f"set it to {clients - 1} at most, or raise FED.CLIENTS"
        )
    order = torch.randperm(clients, generator=rng.stream(data_seed, "unseen-clients"))
    return tuple(sorted(order[:count].tolist()))
