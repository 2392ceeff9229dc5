"""Drives real trainer classes on problems with known answers, in float64.

``drive("Ditto", rounds=600, options={"LAMBDA": 1.0})`` runs the class behind ``--trainer Ditto``
on the quadratic toy; ``split=True`` gives the split toy: shared body, own head. Only trainable
tensors and loss are replaced; ``client_update``, ``aggregate``, ``personalize`` and options are the
real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.option import declare
from fedvlm.core.trees import State, Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import Federation, FedState
from fedvlm.federation.trainer import Trainer
from tests.federation.toys import quadratic

G, L = "image.g", "text.l"  # body and head of the split toy
PEFT = {"TEXT": "prompt", "VISUAL": "feature", "HEAD": "text"}


class OneNumber:
    """F_k(w) = a_k / 2 (w - b_k)^2; ``w`` is one number on the image side.

    Clients keep all of their model, so that it can be looked at.
    """

    start = 0.0
    reads_old = True

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        return {"image.w": torch.tensor(self.start, dtype=torch.float64)}

    def value(self, p: Tree) -> Tensor:
        return p["image.w"]

    def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
        gap = self.value(p)[:, None] - b.x["b"]
        return (b.w * b.x["a"] / 2 * gap**2).sum(1) / b.w.sum(1)


class TwoNumbers(OneNumber):
    """F_k(g, l) = a_k / 2 (g + l_k - b_k)^2: ``g`` is the body, ``l`` the head."""

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        zero = torch.tensor(self.start, dtype=torch.float64)
        return {G: zero, L: zero.clone()}

    def value(self, p: Tree) -> Tensor:
        return p[G] + p[L]


def config(
    trainer: type[Trainer], options: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> CfgNode:
    """Return a whole config: the trainer's own ``options`` and other ``KEY.S`` set."""
    node = f"TRAINER.{trainer.name.upper()}"
    schema = declare(default_schema(), node, trainer.options)
    flags = {f"{node}.{k}": v for k, v in (options or {}).items()}
    flags |= {f"PEFT.{k}": v for k, v in PEFT.items()} | dict(keys or {})
    cfg, _ = build_config(None, None, {k: str(v) for k, v in flags.items()}, [], schema)
    return cfg


def toy(
    trainer: str | type[Trainer], *, split: bool = False, options: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None, **attributes: Any,
) -> Trainer:
    """Return the real trainer with the toy's tensors and loss; ``attributes`` go on its class."""
    cls = load_trainer(trainer) if isinstance(trainer, str) else trainer
    made = type(f"Toy{cls.__name__}", (TwoNumbers if split else OneNumber, cls), attributes)
    return made(config(cls, options, keys))


def drive(
    trainer: str | type[Trainer], rounds: int, *, split: bool = False,
    options: Mapping[str, Any] | None = None, keys: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None, **federation: Any,
) -> tuple[Federation, FedState]:
    """Run ``rounds`` rounds; return the federation and its last state.

    ``federation``: ``epochs, lr, sizes, chunk, momentum, batch`` and the plan's fields
    (``tests.federation.toys.quadratic``).
    """
    made = toy(trainer, split=split, options=options, keys=keys, **(attributes or {}))
    fed = quadratic(made, rounds, **federation)
    return fed, fed.run()


def shared(state: FedState, name: str = "image.w") -> float:
    """Return one number of the server's model."""
    return float(state.server["w"][name])


def own(state: FedState, name: str = "image.w", slot: str = "w") -> list[float]:
    """Return one number of every client's slot, by client."""
    return [float(state.clients[c][slot][name]) for c in sorted(state.clients)]


def personal(fed: Federation, state: FedState, name: str = "image.w", **how: Any) -> list[float]:
    """Return one number of every client's evaluated model, by client."""
    found: dict[int, float] = {}
    for ids, p in fed.personal(state, sorted(state.clients), **how):
        found |= dict(zip(ids, p[name].tolist(), strict=True))
    return [found[c] for c in sorted(found)]


def leaves(state: FedState) -> Iterator[tuple[str, Tensor]]:
    """Yield (place, tensor) of everything a state holds."""
    parts: dict[str, State] = {f"client {c}": s for c, s in state.clients.items()}
    for who, slots in (parts | {"server": state.server}).items():
        for slot, tree in slots.items():
            for name, value in tree.items():
                yield f"{who}/{slot}/{name}", value
