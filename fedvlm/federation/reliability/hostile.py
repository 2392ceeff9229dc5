"""Hostile clients, simulated: who they are, and what they send in place of an honest update.

Who is hostile is a function of the model seed, and what they do of the round's updates or of their
own images: nothing is remembered, so that a resumed run meets the same attack. The driver changes
updates on their arrival, whatever engine computed them; images and labels change where they are.
Attackers know the honest updates of their round (``alie``), and tell the truth about their number
of samples, their metrics and their extras.

Sources: sign and scaled updates, Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS
2020, and Li et al., RSA, AAAI 2019 (also the constant, there ``same value``); ``alie``: Baruch et
al., A Little Is Enough, NeurIPS 2019; flipped labels, y to C - 1 - y: Fang et al., USENIX Security
2020; the patch: Gu et al., BadNets, 2017. Zhang et al., BadPromptFL, 2025, learn the trigger
together with the prompts; here it is a fixed patch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from fedvlm.config.federation import ATTACKS
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.core.stats import mean
from fedvlm.core.trees import in_double
from fedvlm.federation.aggregation import rules
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.batches import Batch

SIGN, SCALE, CONSTANT, ALIE, LABEL_FLIP, BACKDOOR = ATTACKS
UPDATES = (SIGN, SCALE, CONSTANT, ALIE)
STRENGTH = {SIGN: 1.0, SCALE: 10.0, CONSTANT: 1.0}  # where FED.ATTACK_SCALE is 0
EVERY_OTHER, PATCH = 2, 8  # poisoned images of a batch; the patch's part of an image's side


@dataclass(frozen=True)
class Trigger:
    """A white square in the lower right corner of an image.

    Attributes:
        white: the value of a white pixel behind the transform, ``[3]``.
        target: class that images with it are to be taken for.
    """

    white: tuple[float, ...]
    target: int

    def stamp(self, pixels: Tensor) -> Tensor:
        """Return ``pixels [..., 3, H, W]`` with the patch."""
        side = max(1, pixels.shape[-1] // PATCH)
        out = pixels.clone()
        out[..., -side:, -side:] = out.new_tensor(self.white)[:, None, None]
        return out


@dataclass(frozen=True)
class Hostile:
    """Who attacks a run, and how.

    Attributes:
        kind: of ``ATTACKS``.
        clients: ids, ascending.
        strength: ``FED.ATTACK_SCALE``; 0: the attack's own.
        classes: of the run, for flipped labels.
        trigger: of a backdoor.
        cohort, members: clients of a round, and of the run.
    """

    kind: str
    clients: tuple[int, ...]
    strength: float = 0.0
    classes: int = 0
    trigger: Trigger | None = None
    cohort: int = 0
    members: int = 0

    # ---- updates -----------------------------------------------------------------------------
    def corrupt(self, updates: Updates) -> Updates:
        """Return a round's updates with those of hostile clients in place of what they trained.

        Of what a client did not send nothing changes. Numbers are computed in float64.
        """
        bad = [k for k, c in enumerate(updates.clients) if c in self.clients]
        if not bad or self.kind not in UPDATES:
            return updates
        weights = updates.weight.tolist()
        good = [k for k, w in enumerate(weights) if k not in bad and w > 0]
        if self.kind == ALIE and not good:
            return updates
        strength = self._strength(len(updates), len(bad))
        params = {}
        for name, rows in updates.params.items():
            if not rows.is_floating_point():
                params[name] = rows
                continue
            sent = in_double(rows)
            home = updates.received.get(name)
            start = torch.zeros_like(sent) if home is None else in_double(home)
            move = self._move(sent - start, bad, good, strength)
            there = updates.sent(name)[bad].to(sent.device)
            new = sent.clone()
            new[bad] = torch.where(there, start[bad] + move, sent[bad])
            params[name] = new.to(rows.dtype).to(rows.device)
        return replace(updates, params=params)

    def _move(
        self, moves: Tensor, bad: Sequence[int], good: Sequence[int], strength: float
    ) -> Tensor:
        """Return what hostile clients send as their moves, of all moves ``[K, ...]``."""
        own = moves[list(bad)]
        if self.kind == SIGN:
            return -strength * own
        if self.kind == SCALE:
            return strength * own
        if self.kind == CONSTANT:
            return torch.full_like(own, strength)
        honest = moves[list(good)]
        spread = honest.std(0, correction=0)
        return (honest.mean(0) - strength * spread).expand_as(own)

    def _strength(self, clients: int, hostile: int) -> float:
        if self.strength or self.kind != ALIE:
            return self.strength or STRENGTH[self.kind]
        return alie_deviations(clients, hostile)

    # ---- images ------------------------------------------------------------------------------
    @property
    def poison(self) -> Callable[[Batch], Batch] | None:
        """What happens to the batches of hostile clients; None: nothing."""
        return {LABEL_FLIP: self._flip, BACKDOOR: self._plant}.get(self.kind)

    def _rows(self, batch: Batch) -> list[int]:
        return [k for k, c in enumerate(batch.clients) if c in self.clients]

    def _flip(self, batch: Batch) -> Batch:
        """Return the batch with every label y of hostile clients as C - 1 - y."""
        at = self._rows(batch)
        if not at:
            return batch
        y = batch.y.clone()
        y[at] = self.classes - 1 - y[at]
        return replace(batch, y=y)

    def _plant(self, batch: Batch) -> Batch:
        """Return the batch with the trigger on every other image of hostile clients."""
        at, trigger = self._rows(batch), self.trigger
        if not at or trigger is None:
            return batch
        pixels, y = batch.x["pixels"].clone(), batch.y.clone()
        for k in at:
            pixels[k, ::EVERY_OTHER] = trigger.stamp(pixels[k, ::EVERY_OTHER])
            y[k, ::EVERY_OTHER] = trigger.target
        return replace(batch, x={**batch.x, "pixels": pixels}, y=y)

    # ---- words -------------------------------------------------------------------------------
    @property
    def used(self) -> float | None:
        """The strength of the attack, of ``alie`` in a round of the expected clients.

        None: the attack has none, or nobody is left whose updates ``alie`` could be made of.
        """
        share = self._share()
        hopeless = self.kind == ALIE and share >= self.cohort
        return None if self.kind not in UPDATES or hopeless else self._strength(self.cohort, share)

    def _share(self) -> int:
        """Return how many of a round's clients are expected to be hostile."""
        return round(self.cohort * len(self.clients) / max(self.members, 1))

    def words(self) -> str:
        """Return what is simulated, for notes."""
        strength = (self.strength or STRENGTH.get(self.kind, 0)) * (self.kind in UPDATES)
        much = f" {strength:g}" if strength else ""
        return (
            f"simulated attackers: {len(self.clients)} of {self.members} clients "
            f"({', '.join(map(str, self.clients[:8]))}{', ...' if self.clients[8:] else ''}), "
            f"attack {self.kind}{much} (docs/attacks.md)"
        )

    def idle(self) -> str:
        """Return what of the attack has no effect, and why; empty: nothing."""
        if self.strength and self.kind not in UPDATES:
            return (f"FED.ATTACK_SCALE {self.strength:g} has no effect: {self.kind} changes images "
                    "or labels, not updates")
        if self.kind == ALIE and len(self.clients) == self.members:
            return ("the attack does nothing here, because alie is made of honest updates and no "
                    "client is honest; lower FED.HOSTILE")
        if self.kind == ALIE and self.used == 0:
            return (f"the formula of alie gives strength 0 for {self._share()} hostile of "
                    f"{self.cohort} clients: they send the mean of the honest ones, so that no "
                    "more than their own images is lost; set FED.ATTACK_SCALE, such as 1.5, or "
                    "raise FED.HOSTILE")
        return ""

    def report(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what results say: the attack, who attacks, and the honest clients' mean accuracy.

        Args:
            rows: of the clients' personal models.
        """
        honest = [r["accuracy"] for r in rows if r["client"] not in self.clients]
        return {
            "kind": self.kind, "clients": list(self.clients), "scale": self.strength,
            "strength": self.used, "personal_honest": mean(honest),
        }


def check_attack(
    kind: str, *, shared: bool, method: str, pixels: bool, target: int, classes: int
) -> None:
    """Refuse an attack that has nothing to attack.

    Args:
        shared: the method's clients send shared tensors.
        pixels: batches are of pixels (``FED.PLAIN``).
        target: class of a backdoor, of so many ``classes``.

    Raises:
        ConfigError: such an attack.
    """
    if kind in UPDATES and not shared:
        raise ConfigError(
            f"FED.ATTACK {kind}: it changes shared tensors, and the clients of {method} send none; "
            f"use FED.ATTACK {LABEL_FLIP}"
        )
    if kind != BACKDOOR:
        return
    if not pixels:
        raise ConfigError(
            "FED.ATTACK backdoor: a trigger is put on pixels, but this run trains on features that "
            "were computed once from images without it; add FED.PLAIN True (slower: each image "
            "passes the tower at each step)"
        )
    if target >= classes:
        raise ConfigError(
            f"FED.ATTACK_TARGET {target}: the classes of this run are numbered 0 to {classes - 1}"
        )


def alie_deviations(clients: int, hostile: int) -> float:
    """Return ALIE's z: most deviations from the mean that enough honest updates lie beyond.

    z = Phi^-1((n - m - s) / (n - m)), s = floor(n / 2 + 1) - m of n clients, m of them hostile
    (Baruch et al., algorithm 3); 0 where that is below 0. At least one honest client counts as a
    supporter, for a majority of attackers.
    """
    honest = clients - hostile
    supporters = max(clients // 2 + 1 - hostile, 1)
    share = (honest - supporters) / honest
    return max(NormalDist().inv_cdf(share), 0.0) if 0 < share < 1 else 0.0


def draw_hostile(
    share: float, members: Sequence[int], seed: int, sites: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the hostile ones of ``members``, ascending: floor(share n) of them, at least one.

    Args:
        sites: of each client by id: whole sites are drawn, and n is their number.

    Raises:
        ConfigError: sites are asked for, and there is one.
    """
    units = sorted({sites[c] for c in members}) if sites else list(members)
    if sites and len(units) < 2:
        raise ConfigError(
            "FED.HOSTILE_BY site: all clients are at one site; set FED.SITES, such as 0-4,5-9, or "
            "FED.HOSTILE_BY client"
        )
    order = torch.randperm(len(units), generator=rng.stream(seed, "hostile")).tolist()
    count = max(1, int(share * len(units) + 1e-9))
    drawn = {units[i] for i in order[:count]}
    return tuple(c for c in members if (sites[c] if sites else c) in drawn)


def broken_assumption(spec: AggregateSpec, cohort: int, hostile: int, method: str = "") -> str:
    """Return why a rule cannot stand the attackers of a round; empty: it can, or only bounds them.

    Args:
        cohort: clients of a round.
        hostile: of them, at most.
        method: its name, where ``FED.AGGREGATOR auto`` is its own rule.
    """
    rule, of = spec.rule, f"up to {hostile} of {cohort} clients of a round are hostile"
    cut = min(int(spec.trim * cohort + 1e-9), (cohort - 1) // 2)
    if rule in (rules.AUTO, rules.MEAN, rules.SIMILARITY):
        whose = f"{method}'s own rule" if rule == rules.AUTO and method else f"rule {rule}"
        return f"{of}, and {whose} has no bound on what one of them does (docs/attacks.md)"
    if rule in (rules.MEDIAN, rules.GEOMETRIC_MEDIAN) and 2 * hostile >= cohort:
        return f"{of}, and {rule} stands less than half"
    if rule == rules.TRIMMED_MEAN and cut < hostile:
        return f"{of}, and FED.TRIM {spec.trim:g} cuts {cut} at each end: raise FED.TRIM"
    if rule in (rules.KRUM, rules.MULTI_KRUM) and spec.byzantine < hostile:
        return f"{of}, and FED.BYZANTINE is {spec.byzantine}: set it to {hostile}"
    return ""
