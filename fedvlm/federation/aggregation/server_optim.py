"""The server's optimiser (``FED.SERVER_OPTIM``): the aggregate is a target, not yet the new model.

With w the shared tensors before the round and d = target - w, leaf by leaf in float64:

    none       w <- target (the very tensors of the aggregate)
    momentum   m <- b m + d;  w <- w + lr m  (FedAvgM: Hsu et al. 2019)
    adam       m <- b1 m + (1 - b1) d;  v <- b2 v + (1 - b2) d^2;  w <- w + lr m / (sqrt(v) + tau)
    yogi       v <- v - (1 - b2) d^2 sign(v - d^2), the rest as adam

Source: Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 2: no bias correction,
m starts at 0 and v at tau^2. Both are slots of the server's state, ``opt.m`` and ``opt.v``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlm.core.trees import State, Tree, in_double
from fedvlm.federation.aggregation.updates import require_finite

NONE = "none"
SLOTS = ("opt.m", "opt.v")
RATES = {"momentum": 1.0, "adam": 0.01, "yogi": 0.01}  # where ``FED.SERVER_LR`` is 0


@dataclass(frozen=True)
class ServerOptimSpec:
    """What ``FED`` says of the server's optimiser.

    Attributes:
        kind: ``none`` or a name of ``SERVER_OPTIMS``.
        lr: the server's rate; 0: 1 for momentum, 0.01 for adam and yogi, whose steps do not shrink
            with the clients'.
        momentum: b of momentum.
        beta1, beta2: decays of adam and yogi.
        tau: their degree of adaptivity; the smaller, the more.
    """

    kind: str = NONE
    lr: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    @property
    def rate(self) -> float:
        """The server's rate."""
        return self.lr or RATES[self.kind]


Moments = tuple[Tensor, ...]  # what a rule keeps of one leaf, in the order of ``SLOTS``
ServerRule = Callable[[Tensor, Moments, ServerOptimSpec], tuple[Tensor, Moments]]


def momentum(delta: Tensor, old: Moments, spec: ServerOptimSpec) -> tuple[Tensor, Moments]:
    """Return the way of FedAvgM, without the rate, and its new moment."""
    m = spec.momentum * old[0] + delta if old else delta
    return m, (m,)


def adam(delta: Tensor, old: Moments, spec: ServerOptimSpec) -> tuple[Tensor, Moments]:
    """Return the way of FedAdam, without the rate, and its new moments."""
    m, v = old or _start(delta, spec)
    v = spec.beta2 * v + (1 - spec.beta2) * delta.square()
    return _adaptive(delta, m, v, spec)


def yogi(delta: Tensor, old: Moments, spec: ServerOptimSpec) -> tuple[Tensor, Moments]:
    """Return the way of FedYogi, without the rate, and its new moments."""
    m, v = old or _start(delta, spec)
    square = delta.square()
    v = v - (1 - spec.beta2) * square * (v - square).sign()
    return _adaptive(delta, m, v, spec)


SERVER_OPTIMS: Mapping[str, ServerRule] = {"momentum": momentum, "adam": adam, "yogi": yogi}


def server_step(spec: ServerOptimSpec, server: State, target: Tree) -> State:
    """Return the server's state with ``w`` moved towards ``target``, the aggregate of a round.

    Tensors that ``target`` lacks stay. Moments are float64; they begin with the first step.

    Raises:
        DivergedError: the new model is not finite; the message names the tensor.
    """
    if spec.kind == NONE:
        stay = {n: v for n, v in server.get("w", {}).items() if n not in target}
        return server | {"w": target | stay}
    rule, w = SERVER_OPTIMS[spec.kind], dict(server["w"])
    kept: State = {slot: dict(server.get(slot, {})) for slot in SLOTS}
    for name, aim in target.items():
        here = in_double(server["w"][name])
        old = tuple(kept[slot][name] for slot in SLOTS if name in kept[slot])
        way, new = rule(in_double(aim) - here, old, spec)
        w[name] = (here + spec.rate * way).to(aim.dtype).to(aim.device)
        for slot, value in zip(SLOTS, new, strict=False):
            kept[slot][name] = value
    return server | {"w": require_finite(w)} | {slot: tree for slot, tree in kept.items() if tree}


def _start(delta: Tensor, spec: ServerOptimSpec) -> Moments:
    return torch.zeros_like(delta), torch.full_like(delta, spec.tau**2)


def _adaptive(delta: Tensor, m: Tensor, v: Tensor, spec: ServerOptimSpec) -> tuple[Tensor, Moments]:
    m = spec.beta1 * m + (1 - spec.beta1) * delta
    return m / (v.sqrt() + spec.tau), (m, v)
