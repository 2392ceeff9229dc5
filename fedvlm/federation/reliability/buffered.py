"""Buffered asynchronous rounds, simulated (``FED.UNRELIABLE.BUFFER``).

Source: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022
(FedBuff, algorithm 1). Nobody waits for the slow: C clients are at work at any time, each on the
model w_v that it received when it started. As soon as K updates have arrived the server makes a
step, which is a round here:

    w_{t+1} = w_t + sum_k p_k s(tau_k) (w_k - w_{v_k}),   s(tau) = 1 / sqrt(1 + tau)

with tau_k = t - v_k, and p_k the weights of the run, normalised over the K. ``FED.SERVER_OPTIM``
makes its own step of that sum. Who arrives when depends on seeds and durations, never on numbers of
the model: the whole schedule is computed beforehand, and a client's work is done in the round in
which it arrives. What has to be remembered is the model of every version that somebody is still at
work on: slots ``past.<version>`` of the server's state.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree, in_double
from fedvlm.federation.aggregation.rules import AUTO, MEAN
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.reliability.unreliable import KEY, Unreliable

PAST = "past."


@dataclass(frozen=True)
class Turn:
    """One step of the server.

    Attributes:
        starts: clients whose updates it takes, ascending -> the version that each started from.
        busy: versions that clients at work after the step started from.
    """

    starts: Mapping[int, int]
    busy: frozenset[int]

    def servers(self, server: State, newest: int) -> dict[int, State]:
        """Return for each client the server's state with the model that it received.

        Args:
            server: the state of version ``newest``.
        """
        return {c: server | {"w": _model(server, newest, v)} for c, v in self.starts.items()}

    def remember(self, before: State, after: State, round_: int) -> State:
        """Return the state ``after`` a round with the older models that clients are at work on.

        Args:
            before: the state of version ``round_ - 1``.
        """
        new = {slot: tree for slot, tree in after.items() if not slot.startswith(PAST)}
        kept = [v for v in sorted(self.busy) if v < round_]
        return new | {f"{PAST}{v}": _model(before, round_ - 1, v) for v in kept}

    def discount(self, updates: Updates, home: Tree, newest: int) -> tuple[Updates, dict[str, int]]:
        """Return the updates as moves of the newest model, and each client's staleness tau.

        w_k becomes w_t + s(tau_k) (w_k - w_{v_k}), in float64; an update without staleness keeps
        its bits.

        Args:
            home: the model of version ``newest``.
        """
        stale = [newest - self.starts[c] for c in updates.clients]
        factor = torch.tensor([1 / (1 + tau) ** 0.5 for tau in stale], dtype=torch.float64)
        params, received = dict(updates.params), dict(updates.received)
        for name, sent in updates.params.items():
            here = home[name].expand_as(sent)
            if sent.is_floating_point():
                move = in_double(sent) - in_double(updates.received[name])
                s = factor.to(move).view(-1, *[1] * (sent.dim() - 1))
                moved = (in_double(here) + s * move).to(sent)
                params[name] = torch.where((s == 1).to(sent.device), sent, moved)
            received[name] = here
        taus = dict(zip(map(str, updates.clients), stale, strict=True))
        return replace(updates, params=params, received=received), taus


@lru_cache(maxsize=4)
def turns(how: Unreliable, members: tuple[int, ...], working: int, rounds: int) -> tuple[Turn, ...]:
    """Return the first ``rounds`` steps of the server; more rounds change none of them.

    A client's work takes its slowness of the round in which it starts. Of arrivals at one time the
    lower id is first. A place that gets free is drawn at once among the clients that neither work
    nor wait in the buffer.

    Args:
        members: clients that may be drawn.
        working: how many are at work at any time, as far as there are as many.

    Raises:
        ConfigError: the buffer never fills.
    """
    if how.buffer > len(members):
        raise ConfigError(
            f"{KEY}.BUFFER {how.buffer}: only {len(members)} clients take part, and each sends one "
            f"update per round, so the buffer never fills: use at most {len(members)}"
        )
    idle, waiting, at_work = list(members), dict[int, int](), dict[int, int]()
    arrivals, drawn, found = list[tuple[float, int]](), 0, list[Turn]()
    now = 0.0
    while True:
        while idle and len(at_work) < working:
            seed = rng.seed_of(how.seed, "unreliable-start", drawn)
            client, drawn = idle.pop(seed % len(idle)), drawn + 1
            at_work[client] = len(found)
            lasts = how.slowness(len(found) + 1, client)
            heapq.heappush(arrivals, (now + lasts, client))
        if found and not waiting:  # a step was made, and its places are taken again
            found[-1] = replace(found[-1], busy=frozenset(at_work.values()))
        if len(found) == rounds and not waiting:
            return tuple(found)
        now, client = heapq.heappop(arrivals)
        waiting[client] = at_work.pop(client)
        if len(waiting) == how.buffer:
            found.append(Turn(dict(sorted(waiting.items())), frozenset()))
            idle += sorted(waiting)
            waiting = {}


def _model(server: State, newest: int, version: int) -> Tree:
    """Return the model of a version from the server's state of version ``newest``."""
    return server["w"] if version == newest else server[f"{PAST}{version}"]


def check_buffer(
    method: str, buffer: int, *, plain: bool, rule: str,
    others: Mapping[str, object],
) -> None:
    """Refuse buffered rounds where the server takes no plain mean of shared tensors.

    Args:
        method: its name.
        buffer: ``FED.UNRELIABLE.BUFFER``.
        plain: the server's new model is the weighted mean of all that the clients send.
        rule: ``FED.AGGREGATOR``.
        others: settings that are not defined for such rounds -> whether the run has them.

    Raises:
        ConfigError: such a run.
    """
    what = f"{KEY}.BUFFER {buffer}"
    if not plain:
        raise ConfigError(
            f"{what}: an update may arrive after newer models, which is defined for a plain mean "
            f"of shared tensors; {method}, as configured, has another server step or shares "
            f"nothing: choose a method such as FedAvg, or {KEY}.BUFFER 0"
        )
    if rule not in (AUTO, MEAN):
        raise ConfigError(f"{what}: FED.AGGREGATOR {rule} is no mean; use mean")
    odd = [name for name, there in others.items() if there]
    if odd:
        raise ConfigError(f"{what} cannot be combined with {odd[0]}; drop one of the two")
