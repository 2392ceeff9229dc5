"""Client-level differential privacy (``FED.DP``): clipped moves, a noised sum, and its accounting.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018: each client
takes part in a round by a coin of probability q (Poisson); its move, all tensors as one vector, is
cut to length C; the sum gets noise N(0, (z C)^2) in every number and is divided by q N, whoever
came. What the method's ``aggregate`` gets is this one noised mean, as if q N clients had sent it:
whatever it does with that is post-processing. Neighbours are federations with and without a client.

With a quantile the bound follows the moves (Andrew et al., Differentially Private Learning with
Adaptive Clipping, NeurIPS 2021): each round also counts who moved no further than C, with noise,
and C becomes C exp(-0.2 (share - quantile)). A client adds (move / C, +-1/2) to the two sums, so
that noise z_s C on the moves and s on the count are one mechanism of noise z with
1 / z^2 = 1 / z_s^2 + 1 / (2 s)^2 (theorem 1): epsilon is that of z. Weights by similarity take
their part of z in the same way (``aggregation.two_sums``).

Epsilon and the noise for it are ``aggregation.accountant``'s.

The noise is drawn from the run's seed, in floating point: a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.accountant import (
    loss_epsilon,
    noise_for,
    renyi_epsilon,
    told_epsilon,
)
from fedvlm.federation.aggregation.rules import SIMILARITY, move_norms
from fedvlm.federation.aggregation.sums import add_moves, of_each, reads_single
from fedvlm.federation.aggregation.two_sums import SHARE, Weights, weights_of
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.groups import Groups
from fedvlm.federation.trainer import Trainer

FEW = 50  # clients of a round; below, the noise that hides one of them hides their sum
SLOT, BOUND, PACE = "dp", "bound", 0.2  # the server's slot of a bound that moves; how fast it does
PART, LEAST = 20, 2.5  # noise of the count: clients over this, or noises, the larger of the two
TRUST = "against the other clients and whoever gets the shared model; the server is trusted"


@dataclass(frozen=True)
class ClientPrivacy:
    """The mechanism of a run.

    Attributes:
        clip: C, the longest move of a client.
        noise: z, noise on the sum over C.
        delta: of (epsilon, delta).
        rate: q, probability that a client takes part in a round.
        clients: N, that may take part.
        seed: of the noise.
        quantile: share of moves that the bound is to leave uncut; 0: the bound stays.
        temperature: of weights by similarity; 0: all weigh the same.
        since: first round that has such weights.
        own: why a client's own model is not covered (``own_model_reason``); empty: it is covered.
        chosen: validation images choose a round (``TEST.SELECT val``).
    """

    clip: float
    noise: float
    delta: float
    rate: float
    clients: int
    seed: int
    quantile: float = 0.0
    temperature: float = 0.0
    since: int = 1
    own: str = ""
    chosen: bool = False

    @property
    def expected(self) -> float:
        """The fixed denominator q N."""
        return self.rate * self.clients

    @property
    def count_noise(self) -> float:
        """Noise on the count of moves within the bound: at most 2.1 % more on the moves."""
        return max(self.expected / PART, LEAST * self.noise) if self.noise else 0.0

    @property
    def move_noise(self) -> float:
        """Noise on the moves over the bound: what count and weights leave of ``noise``."""
        if not (self.quantile or self.temperature) or not self.noise:
            return self.noise
        count = (2 * self.count_noise) ** -2 if self.quantile else 0.0
        weights = (SHARE * self.noise) ** -2 if self.temperature else 0.0
        return (self.noise**-2 - count - weights) ** -0.5

    def bound(self, server: State) -> float:
        """Return C of the round that starts from the server's state ``server``."""
        return float(server[SLOT][BOUND]) if SLOT in server else self.clip

    def follow(self, updates: Updates | None, bound: float, round_: int) -> State:
        """Return the server's slot with C of the next round; {}: C stays.

        Args:
            updates: of the round; None: nobody came.
            bound: C of the round.
        """
        if not self.quantile:
            return {}
        inside = 0.0
        if updates is not None:
            there = (updates.weight > 0).double().cpu()
            within = (move_norms(updates) <= bound).double().cpu()
            inside = float(((within - 0.5) * there).sum())
        stream = rng.stream(self.seed, "dp/count", round_)
        z = float(torch.randn((), generator=stream, dtype=torch.float64))
        share = 0.5 + (inside + self.count_noise * z) / self.expected
        ahead = bound * math.exp(-PACE * (share - self.quantile))
        return {SLOT: {BOUND: torch.tensor(ahead, dtype=torch.float64)}}

    def draw(self, round_: int, members: Sequence[int]) -> list[int]:
        """Return who takes part in a round: each of ``members`` by a coin of its own, ascending."""
        if self.rate >= 1:
            return list(members)
        coins = torch.rand(
            len(members), generator=rng.stream(self.seed, "dp/sample", round_), dtype=torch.float64
        )
        return [c for c, coin in zip(members, coins.tolist(), strict=True) if coin < self.rate]

    def weights(self, home: Tree, round_: int, clip: float) -> Weights | None:
        """Return what is public of a round's weights by similarity; None: all weigh the same."""
        if not self.temperature or round_ < self.since:
            return None
        return weights_of(home, clip, self.temperature)

    def sums(
        self, updates: Updates | None, home: Tree, clip: float, weights: Weights | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the sums of a round without noise: of moves, and of weights by similarity."""
        sums = {n: torch.zeros(v.shape, dtype=torch.float64) for n, v in home.items()}
        own = {n: torch.zeros(0, dtype=torch.float64) for n in home}
        if updates is not None:
            norm = move_norms(updates)
            factor = (clip / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp(max=1)
            there = updates.weight > 0
            factor = factor * there.to(factor.device)
            by = dict.fromkeys(home, factor)
            if weights is not None:
                own = weights.of_clients(updates, factor, home)
                by = {n: factor * e.to(factor.device) for n, e in own.items()}
                own = {n: e[there.cpu()] for n, e in own.items()}
            add_moves(sums, updates, by, home, "FED.DP")
        if weights is None:
            return sums, {}
        return sums, {n: weights.total(n, e, self.expected) for n, e in own.items()}

    def release(
        self, updates: Updates | None, home: Tree, round_: int, bound: float = 0.0,
        told: dict[str, float] | None = None,
    ) -> Updates:
        """Return the noised mean move of a round on ``home``, as the update of each of q N clients.

        So many whoever came: a server that counts the clients of a round (FedDyn, FedDecomp) counts
        what is expected.

        Args:
            updates: of the round; None: nobody came, and the noise comes alone.
            home: what all clients received of the shared tensors, no client axis.
            bound: C of the round; 0: ``clip``.
            told: gets the mean weight of every tensor, as noised, where there are weights.

        Raises:
            FedvlmError: a client received something else, or sends no floating-point numbers.
        """
        clip = bound or self.clip
        weights = self.weights(home, round_, clip)
        sums, totals = self.sums(updates, home, clip, weights)
        stream, second = (rng.stream(self.seed, f"dp/{part}", round_)
                          for part in ("noise", "weights"))
        means = {}
        for name, total in sorted(sums.items()):
            z = torch.randn(total.shape, generator=stream, dtype=torch.float64)
            by = self.expected
            if weights is not None:
                noise = weights.noise(name, self.noise)
                noised = float(totals[name] + noise * torch.randn(
                    (), generator=second, dtype=torch.float64))
                by = weights.kept(name, noised, self.expected, self.noise)
            if told is not None and weights is not None:
                told[name] = by / self.expected
            means[name] = (total + self.move_noise * clip * z) / by
        return of_each(range(max(1, round(self.expected))), home, means)

    def report(self, rounds: int, most: int) -> dict[str, Any]:
        """Return what results say: epsilon, delta, what is hidden from whom, and in words.

        Args:
            rounds: that were run, of at most ``most``.
        """
        bound = renyi_epsilon(self.rate, self.noise, rounds, self.delta)
        tight = loss_epsilon(self.rate, self.noise, rounds, self.delta)
        spent = told_epsilon(self.rate, self.noise, rounds, self.delta)
        said = "Renyi bound" if tight is None else f"by loss distributions; Renyi bound {bound:.4g}"
        drawn = (
            f"each of {self.clients} clients by a coin of {self.rate:g}" if self.rate < 1
            else f"all {self.clients} clients"
        )
        follows = (
            f" at first, then by the noised share of moves within it, quantile {self.quantile:g}: "
            f"noise {self.move_noise:.4g} on the moves and {self.count_noise:.4g} on the count"
        ) if self.quantile else ""
        if self.temperature:
            follows += (
                f", weights by similarity as two sums, temperature {self.temperature:g}: noise "
                f"{self.move_noise:.4g} on the moves"
            )
        words = (
            f"epsilon {spent:.4g} ({said}), delta {self.delta:g} for the presence of one client, "
            f"{TRUST}; noise from the seed: a simulation (clip {self.clip:g}{follows}, noise "
            f"{self.noise:.4g}, {rounds} rounds, {drawn} a round; {self.limits()})"
        )
        return {
            "epsilon": spent, "epsilon_bound": bound, "delta": self.delta, "releases": rounds,
            "unit": "client", "trust": TRUST, "noise": "seed", "clip": self.clip,
            "multiplier": self.noise, "rate": self.rate, "planned": most, "words": words,
            "own_models": self.own,
        }

    def limits(self) -> str:
        """Return in words what the guarantee leaves out."""
        chosen = " (TEST.SELECT val chooses a round by them)" if self.chosen else ""
        names = ["evaluations", f"validation images{chosen}", "baselines"]
        names += [own_model_words(self.own)] if self.own else []
        return f"not covered: {', '.join(names)}"


def own_model_reason(trainer: Trainer, groups: Groups, epochs: int) -> str:
    """Return why a client's own model is more than the noised shared one; empty: it is that.

    Args:
        epochs: of the final fine-tuning.
    """
    kept = groups.personal or type(trainer).personalize is not Trainer.personalize
    why = ["its personal part is trained without noise"] * bool(kept)
    why += ["it is fine-tuned without noise"] * (epochs > 0)
    return " and ".join(why)


def own_model_words(own: str) -> str:
    """Return what is to be said of a client's own model, by ``own_model_reason``."""
    return f"a client's own model ({own}: it must stay with the client)"


def drowned(dp: ClientPrivacy, numbers: int, by_image: str = "") -> str:
    """Return what is to be said of the noise beside the sum.

    Args:
        numbers: that are shared.
        by_image: the method, where ``FED.DP.UNIT image`` covers it, too.
    """
    length = dp.noise * dp.clip * math.sqrt(numbers)
    words = (
        f"FED.DP: the sum of about {dp.expected:g} moves of at most {dp.clip:g} gets noise of "
        f"length {length:.3g}, {length / (dp.expected * dp.clip):.2g} times the largest sum"
    )
    if dp.expected >= FEW:
        return words
    image = (f"FED.DP.UNIT image covers {by_image}, too" if by_image else
             "FED.DP.UNIT image with a method that trains by gradients of single images, such as "
             "FedAvg; or DP-FPL")
    return (
        f"{words}; with {dp.clients} clients, noise that hides one of them drowns their sum: use "
        f"{FEW} or more in a round ({dp.expected:.3g} are expected), or protect single images "
        f"({image})"
    )


# ---- what is refused -----------------------------------------------------------------------------
def check_cover(
    method: str, *, rule: str, beyond: str, own_privacy: bool, patience: int, proxy: str,
    two_sums: bool = False,
) -> None:
    """Refuse a run of which the noised sum is not all that leaves the clients for the models.

    Args:
        rule: ``FED.AGGREGATOR``.
        beyond: why a sum of moves is not enough (``federation.aggregation.sums.beyond_sums``).
        own_privacy: the method has a guarantee of its own.
        patience: ``FED.PATIENCE``.
        proxy: whose images the server trains on.
        two_sums: weights by similarity are noised, too.

    Raises:
        ConfigError: such a run, with the reason.
    """
    reasons = {
        beyond: bool(beyond),
        "it has noise of its own; set FED.DP.CLIP 0": own_privacy,
        "its server trains on validation images of clients": proxy == "clients",
    }
    for why, holds in reasons.items():
        if holds:
            raise ConfigError(f"FED.DP does not cover {method}: {why}")
    if reads_single(rule) and not (two_sums and rule == SIMILARITY):
        raise ConfigError(
            f"FED.DP with FED.AGGREGATOR {rule}: the rule reads single updates, or their median, "
            "which no noise covers; drop FED.AGGREGATOR"
            + (", or set FED.DP.SIMILARITY True" if rule == SIMILARITY else "")
        )
    if patience:
        raise ConfigError(
            "FED.DP with --rounds auto: when the run ends would tell of the clients' validation "
            "images; give --rounds N"
        )


def make_privacy(
    *, clip: float, noise: float, epsilon: float, delta: float, rate: float, clients: int,
    rounds: int, seed: int, quantile: float = 0.0, temperature: float = 0.0, since: int = 1,
    own: str = "", chosen: bool = False, tight: bool = False,
) -> ClientPrivacy:
    """Return the mechanism that ``FED.DP`` asks for.

    Raises:
        ConfigError: a key is missing or contradicts another, or the epsilon cannot be reached.
    """
    if not clip:
        raise ConfigError(
            "FED.DP.CLIP 0: differential privacy needs a bound on a client's move that no data "
            "chose; set FED.DP.CLIP, such as 0.1 (update_norm in metrics.jsonl of a run on public "
            "images shows the size)"
        )
    if bool(noise) == bool(epsilon):
        raise ConfigError(
            "FED.DP: set one of FED.DP.EPSILON (the noise follows) and FED.DP.NOISE (epsilon "
            "follows)"
        )
    if not delta or delta >= 1 / clients:
        raise ConfigError(
            f"FED.DP.DELTA {delta:g}: give a delta above 0 and below 1/{clients}: a mechanism of "
            "delta 1/N may publish one of N clients as it is; 1e-5 is usual"
        )
    return ClientPrivacy(
        clip, noise or noise_for(epsilon, delta, rate, rounds, tight), delta, rate, clients, seed,
        quantile, temperature, since, own, chosen,
    )
