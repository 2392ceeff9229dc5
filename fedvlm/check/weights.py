"""The invariant of weights: what the server makes of unequal clients, by plain arithmetic."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedvlm.check.compare import Broken, copy_fed, copy_state, demand, gap
from fedvlm.check.messages import CLOSE, sent_in
from fedvlm.check.world import CheckWorld
from fedvlm.core import rng
from fedvlm.core.trees import State
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.cards import fields
from fedvlm.federation.context import OWN, SAMPLES, UNIFORM
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.server import Held
from fedvlm.federation.trainer import ServerRule, Trainer
from fedvlm.models.towers.adapters import DELTA, is_factor
from fedvlm.models.vlmodel import VLModel

WORDS = {"sum_k p_k": SAMPLES, "mean_k": UNIFORM, "mean_s": UNIFORM}  # of a card's equations


@dataclass(frozen=True)
class ServerRound:
    """A tensor of the server in a round and all that came, in float64: what a rule is given.

    Attributes:
        trainer: the method; ``trainer.cfg`` has its options.
        slot, name: of the tensor.
        round, rounds: of the run.
        server: the server's slots before the round.
        updates: what clients sent.
        first: ``[K]`` bool: who has sent nothing before.
        samples: training samples of every client.
        model: the frozen model.
    """

    trainer: Trainer
    slot: str
    name: str
    round: int
    rounds: int
    server: State
    updates: Updates
    first: Tensor
    samples: Sequence[int]
    model: VLModel

    @property
    def members(self) -> int:
        """Clients in all."""
        return len(self.samples)

    @property
    def key(self) -> str:
        """``slot/tensor``, which the patterns of ``server_rules`` match in full."""
        return f"{self.slot}/{self.name}"

    @property
    def old(self) -> Tensor:
        """The tensor before the round."""
        return self.server[self.slot][self.name].double()

    @property
    def weight(self) -> Tensor:
        """How the clients weigh, ``[K]``."""
        return self.updates.weight.double()

    @property
    def sizes(self) -> Tensor:
        """Training samples of the clients, ``[K]``."""
        return torch.tensor([float(self.samples[c]) for c in self.updates.clients]).double()

    @property
    def rule(self) -> ServerRule | None:
        """What the method declares of this tensor.

        Raises:
            Broken: several rules.
        """
        rules = self.trainer.server_rules.items()
        found = [rule for pattern, rule in rules if re.fullmatch(pattern, self.key)]
        demand(len(found) < 2, f"'{self.key}' has {len(found)} server_rules")
        return found[0] if found else None

    def sent(self, name: str = "") -> Tensor:
        """Return what clients sent under a name (the tensor's own by default), ``[K, ...]``.

        Raises:
            Broken: nobody sent it.
        """
        uploads = self.updates.params | self.updates.extras
        name = name or self.name
        demand(name in uploads, f"the rule of '{self.key}' needs '{name}', which nobody sent")
        return uploads[name].double()

    def total(self, rows: Tensor, by: Tensor | None = None) -> Tensor:
        """Return sum_k by_k rows_k; ``by`` has the first axes of ``rows [K, ...]``, default 1."""
        by = torch.ones(len(rows)) if by is None else by
        by = by.double().reshape(*by.shape, *[1] * (rows.dim() - by.dim()))
        return (rows * by).sum(0)

    def mean(self, rows: Tensor | None = None, by: Tensor | None = None) -> Tensor:
        """Return sum_k by_k rows_k / sum_k by_k; by default of what was sent, by ``weight``."""
        by = self.weight if by is None else by.double()
        return self.total(self.sent() if rows is None else rows, by / by.sum(0))

    def after(self, slot: str, name: str) -> Tensor:
        """Return what another tensor of the server is after the round, by its rule.

        Raises:
            Broken: it has no rule.
        """
        other = replace(self, slot=slot, name=name)
        found = other.rule
        value = found(other) if callable(found) else None
        if not isinstance(value, Tensor):
            raise Broken(f"the rule of '{self.key}' needs one of '{other.key}'")
        return value


def g16_weights(world: CheckWorld, trainer: type[Trainer]) -> None:
    """Every tensor of the server is the declared mean of what unequal clients sent.

    Declared are ``Trainer.weighting``, and by ``Trainer.server_rules`` what is no such mean. Tried
    are the rounds of a run, and the last one again with uploads that are far from each other.
    """
    run, seen = world.trajectory(trainer), set[int]()
    method = run.fed.trainer
    agree_with_card(trainer, method.weighting)
    samples = [len(s.train) for s in world.splits]
    for event, before, after in zip(run.events, run.states[:-1], run.states[1:], strict=True):
        updates = sent_in(event)
        _weigh(method, event.round, updates, samples)
        first = torch.tensor([c not in seen for c in updates.clients])
        seen |= set(updates.clients)
        one = ServerRound(
            method, "", "", event.round, run.fed.plan.rounds, before.server, updates, first,
            samples, run.fed.model,
        )
        _server(one, after.server)
    last, fed = replace(one, updates=_apart(updates)), world.federation(trainer)
    ctx = fed.server_context(last.round, Held(fed.held, fed.adopt(copy_fed(before)).held))
    _server(last, fed.trainer.aggregate(ctx, copy_state(before.server), last.updates))


def _apart(updates: Updates) -> Updates:
    """Return updates with random numbers in what clients sent of the shared tensors."""
    draw = rng.stream(0, "check-weights")
    params = {
        n: torch.where(updates.sent(n), torch.randn(v.shape, generator=draw).to(v), v)
        if v.is_floating_point() else v
        for n, v in updates.params.items()
    }
    return replace(updates, params=params)


def _weigh(method: Trainer, round_: int, updates: Updates, sizes: Sequence[int]) -> None:
    """Clients weigh as the method declares."""
    reason = method.server_rules.get("weight")
    for client, got in zip(updates.clients, updates.weight.tolist(), strict=True):
        size = float(sizes[client])
        said = f"round {round_}: client {client} of {size:g} samples weighs {got:g}"
        if isinstance(reason, str) and reason.strip():
            demand(0 < got <= size, said)
        elif method.weighting != OWN:
            want = size if method.weighting == SAMPLES else float(size > 0)
            demand(got == want, f"{said}, not {want:g} (weighting '{method.weighting}')")


def _server(one: ServerRound, after: State) -> None:
    """All tensors of a round's new server state follow their rules."""
    for slot, tree in after.items():
        for name, value in tree.items():
            if value.is_floating_point():
                _tensor(replace(one, slot=slot, name=name), value)


def _tensor(one: ServerRound, value: Tensor) -> None:
    """A tensor of the server follows its rule; without one it is the mean, or has not moved."""
    rule, weighting = one.rule, one.trainer.weighting
    if _by_lora_rule(one.trainer, one.name):
        return
    if rule is None and not (one.slot == "w" and one.name in one.updates.params):
        old = one.server.get(one.slot, {}).get(one.name)
        demand(old is not None and gap(value, old) == 0, f"round {one.round}, server: '{one.key}' "
               "moved and is not shared by clients: declare in server_rules how")
        return
    want = one.mean() if rule is None else rule(one) if callable(rule) else rule
    if isinstance(want, str):
        demand(bool(want.strip()), f"'{one.key}' has a server rule without a reason")
        return
    distance = gap(value, want)
    demand(distance <= CLOSE, f"round {one.round}, server: '{one.key}' is {distance:.1e} off "
           + ("its server rule" if rule is not None else "the mean of what was sent (weighting "
              f"'{weighting}'); if it is to be something else, declare it in server_rules"))


def _by_lora_rule(method: Trainer, name: str) -> bool:
    """Whether a rule of ``PEFT.LORA_AVG`` that is no plain mean makes a tensor.

    ``tests/federation/test_lora_rules.py`` holds those, for every method that takes them.
    """
    return (
        isinstance(method, PeftTrainer) and method.lora_rule.mean
        and method.spec.average not in method.lora_taken
        and (is_factor(name) or DELTA in name)
    )


def card_weightings(trainer: type[Trainer]) -> list[str]:
    """Return the weightings that the equations of a trainer's card name for the server, in order.

    They are the words behind the first "server": ``sum_k p_k`` is by samples, ``mean_k`` and
    ``mean_S`` are uniform.
    """
    text = getattr(sys.modules.get(trainer.__module__), "__doc__", None) or ""
    words = " ".join(fields(text).get("Equations", "").split()).lower()
    _, _, server = words.partition("server")
    found = [WORDS[w] for w in re.findall("|".join(WORDS), server)]
    return list(dict.fromkeys(found))


def agree_with_card(trainer: type[Trainer], weighting: str) -> None:
    """Demand that a card which names a weighting names the trainer's, or one of its options'."""
    named = card_weightings(trainer)
    if named and weighting != OWN and "WEIGHTING" not in trainer.options:
        demand(
            weighting in named,
            f"the card's equations say that the server weighs by {' or '.join(named)}, the class "
            f"weighting '{weighting}'",
        )
