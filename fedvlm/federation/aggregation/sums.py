"""Methods of which a sum over clients is enough: what they are, and how such a sum becomes a round.

``FED.DP`` noises such a sum, ``FED.SECURE_SUM`` hides what it is made of. What the method's
``aggregate`` then gets is the one mean, as if each of its clients had sent it. A secure sum may
hold more than moves: weights by similarity, and sums of a method's own (``Trainer.summands``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree, expand, in_double, per_client, to_device
from fedvlm.federation.aggregation.rules import AUTO, MEAN, SIMILARITY, AggregateSpec
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.context import OWN
from fedvlm.federation.groups import Groups
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.trainer import Trainer


def beyond_sums(
    trainer: Trainer, groups: Groups, exact: bool = False, more: AggregateSpec | None = None
) -> str:
    """Return why a method's server needs more than a sum of its clients' moves; empty: it does not.

    Derived from what the method declares: its list of releases, its ``aggregators``, ``linear``,
    and whether it has a ``download`` of its own.

    Args:
        exact: the method has to be what it is with single updates, too (``linear``), and weigh by
            what is known beforehand.
        more: what ``FED`` says of the aggregation, where weights by similarity and the method's
            own sums go beside the moves.
    """
    released, kind = trainer.releases(groups), type(trainer)
    own = more is not None and kind.summands is not Trainer.summands
    near = more is not None and weighs_by(trainer, more)[0] > 0
    reasons = {
        "its clients send no shared tensor": not released.shared,
        f"its clients send {', '.join(released.extras)} beside the shared tensors":
            bool(released.extras) and not own,
        "its clients receive unlike models":
            kind.download not in (Trainer.download, PeftTrainer.download),
        "its server does more than take a mean of updates":
            MEAN not in trainer.aggregators and not own,
        "its server reads single updates": exact and not (trainer.linear or near or own),
        "its clients make up their weights": exact and trainer.weighting == OWN,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def weighs_by(trainer: Trainer, spec: AggregateSpec) -> tuple[float, int]:
    """Return the temperature of a server's weights by similarity, and their first round.

    0: it gives none, or of other tensors than its clients send.
    """
    if spec.rule == AUTO:
        return trainer.similarity, 2
    plain = trainer.similarity > 0 or trainer.linear
    return (spec.saa_temp, 1) if spec.rule == SIMILARITY and plain else (0.0, 1)


def reads_single(rule: str) -> bool:
    """Say whether a rule (``FED.AGGREGATOR``) looks at single updates."""
    return rule not in (AUTO, MEAN)


def add_moves(
    sums: dict[str, Tensor], updates: Updates, factor: Tensor | Mapping[str, Tensor],
    home: Tree, key: str,
) -> None:
    """Add each client's move from ``home``, times its factor, to sums in float64.

    Args:
        sums: by tensor, without client axis; written to.
        factor: ``[K]``, or one for each tensor.
        home: what all clients received, no client axis.
        key: of the config, for the message.

    Raises:
        FedvlmError: a client received something else, or sends no floating-point numbers.
    """
    for name, rows in updates.params.items():
        here = updates.received[name]
        alike = (here == home[name].expand_as(here)).all()
        move = in_double(rows) - in_double(here)
        by = factor if isinstance(factor, Tensor) else factor[name]
        scaled = per_client(to_device(by, move.device), move) * move
        told = torch.cat([alike.to(scaled).reshape(1), scaled.reshape(-1)]).cpu()  # one read
        if not told[0] or not rows.is_floating_point():
            raise FedvlmError(f"{key} does not cover '{name}': clients received unlike "
                              "tensors, or it holds whole numbers")
        for row in told[1:].view(scaled.shape):  # in turn: the same bits for any number of them
            sums[name] += row


def of_each(
    clients: Sequence[int], home: Tree, mean: Mapping[str, Tensor],
    sizes: Mapping[str, tuple[int, ...]] = {},
) -> Updates:
    """Return a mean move, on top of ``home``, as the update of each of some clients.

    A server that counts the clients of a round (FedDyn, FedDecomp) so counts them.

    Args:
        home: what all clients received, no client axis.
        mean: by tensor, float64 on the CPU, no client axis.
        sizes: as of ``Updates``.
    """
    count = len(clients)
    wide = {n: in_double(at) for n, at in home.items()}
    moved = {n: (wide[n] + to_device(mean[n], wide[n].device)).to(at.dtype).to(at.device)
             for n, at in home.items()}
    return Updates(
        tuple(clients), expand(moved, count), torch.ones(count, dtype=torch.float64),
        received=expand(home, count), sizes=dict(sizes),
    )
