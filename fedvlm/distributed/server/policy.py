"""What a server does about sites that do not answer well, and what it takes of an answer.

Names, shapes, types, rows, weights and finiteness are checked here once more, client by client:
shared tensors against what the server itself sent, extras against the forms that its own method
gives for the round (``Trainer.extra_forms``), weights against the images that the site told when it
was met. What the finite numbers in them mean is the method's and nobody checks it; neither a weight
that a method measures itself (weighting ``own``), but that it is finite. Where a method of a user's
own gives no forms, extras have one of ``TYPES``, and of several forms the one of most clients
counts; what its ``aggregate`` then fails with is told with the sites (``reliability.elsewhere``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree, first_non_finite, matching, pick, stack
from fedvlm.distributed.schema import MOST_CLIENTS, PARTS
from fedvlm.distributed.site import METRIC, WEIGHT
from fedvlm.distributed.wire import Frame
from fedvlm.federation.aggregation.arrival import Rows, Upload
from fedvlm.federation.context import OWN, UNIFORM, Context
from fedvlm.federation.engine import Homes, received_alike
from fedvlm.federation.local import sent
from fedvlm.federation.local.sent import odd_extra
from fedvlm.federation.reliability.unreliable import quorum_count

Form = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
TYPES = (  # of extras whose form the method does not give
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64,
    torch.uint8, torch.bool,
)
NOT_FINITE = "is not finite"  # of a client whose training diverged; its site need not be at fault
HEAVIEST = sys.float_info.max / MOST_CLIENTS  # so that no sum of weights overflows


@dataclass(frozen=True)
class Policy:
    """What happens when a site does not answer well.

    Attributes:
        deadline: seconds for an answer.
        quorum: share of a round's clients that have to answer, 0 to 1.
        retries: how often those that did not answer are asked again.
        wait: seconds before that.
        max_norm: of an update less what its client received; 0: no limit.
        refusals: rounds in a row with refused updates after which a site is asked no more.
    """

    deadline: float = 600.0
    quorum: float = 1.0
    retries: int = 2
    wait: float = 20.0
    max_norm: float = 0.0
    refusals: int = 3

    def __post_init__(self) -> None:
        """Refuse a quorum that is none.

        Raises:
            ConfigError: it is not between 0 and 1.
        """
        if not 0 <= self.quorum <= 1:
            raise ConfigError(f"a quorum of {self.quorum:g}: it is a share of clients, 0 to 1")

    def needed(self, clients: int) -> int:
        """Return how many of so many clients have to answer."""
        return quorum_count(self.quorum, clients)


class Odd(FedvlmError):
    """Why a part of an answer is not taken: one clause."""


def read_parts(
    frame: Frame, ctx: Context, downloads: Mapping[int, Tree], asked: Sequence[int],
    forms: Tree | None, homes: Homes | None = None,
) -> tuple[list[Upload], dict[int, str], list[int]]:
    """Return the parts of a site's answer that keep the contract.

    Args:
        ctx: of the round, of any of its clients.
        downloads: what the server sent.
        asked: the clients that this site was asked for.
        forms: of extras, ``Trainer.extra_forms``.
        homes: of the round, ``known`` of ``received_alike``.

    Returns:
        Parts; why the updates of other clients of ``asked`` are refused; ids of clients that the
        site was not asked for, or answers for twice.
    """
    parts, refused, foreign, seen = list[Upload](), dict[int, str](), list[int](), set[int]()
    for p, values in enumerate(frame.values["parts"]):
        ids = values["clients"]
        odd = [c for k, c in enumerate(ids) if c not in asked or c in seen or c in ids[:k]]
        seen |= set(ids)
        if odd:  # the rest of such a part is not believed either
            foreign += odd
            refused |= dict.fromkeys(
                (c for c in ids if c in asked), "its update came with those of other clients"
            )
            continue
        try:
            trees = {kind: frame.trees[f"{kind}/{p}"] for kind in PARTS}
            received = received_alike(
                downloads, ids, ctx.groups.shared, {} if homes is None else homes
            ) or stack([pick(downloads[c], ctx.groups.shared) for c in ids]) if ids else {}
            parts.append(_part(ids, values, trees, ctx, received, forms))
        except Odd as error:
            refused |= dict.fromkeys(ids, str(error))
    gone = set(refused)
    return [p for p in parts if not gone & set(p.clients)], refused, sorted(set(foreign))


def _part(
    ids: Sequence[int], values: Mapping[str, Any], trees: Mapping[str, Tree], ctx: Context,
    received: Tree, forms: Tree | None,
) -> Upload:
    """Return a part on the model's device, of clients that ``received [K, ...]``, or raise ``Odd``.
    """
    k, (up, extra, told, index) = len(ids), (trees[kind] for kind in PARTS)
    _names(up, extra, told, received, ctx)
    rows: dict[str, Rows] = {}
    axes, counts = values["rows"], values["counts"]
    if not axes.keys() == counts.keys() == index.keys() or axes.keys() - up.keys():
        raise Odd("its update lists rows of tensors that it does not send")
    device = ctx.model.device
    for name, at in index.items():
        home, axis = received[name], axes[name]
        if at.dtype != torch.int64 or at.dim() != 2 or len(at) != k or not (
            -home.dim() < axis < home.dim() - 1
        ):
            raise Odd(f"the rows of '{name}' have an index of the wrong shape")
        rows[name] = Rows(at.to(device), axis)
        number = rows[name].told(home.shape[rows[name].along(home)]).tolist()
        said = [sent.refusal(name, n, home.shape[rows[name].along(home)]) for n in number]
        if any(said) or counts[name] != number:
            raise Odd(f"its update sends {next(filter(None, said), 'other rows than it counts')}")
    for name, v in up.items():
        shape = list(received[name].shape)
        if name in rows:
            shape[rows[name].along(received[name])] = rows[name].index.shape[1]
        if list(v.shape) != shape or v.dtype != received[name].dtype:
            raise Odd(f"'{name}' is {list(v.shape)} {v.dtype}, not {shape}")
    _extras(extra, k, forms)
    for name, v in told.items():
        if v.shape != (k,) or v.dtype != torch.float64:
            raise Odd(f"'{name}' is not a number for each client")
    there = {n: {m: v.to(device) for m, v in tree.items()} for n, tree in
             (("up", up), ("extra", extra), ("received", received))}
    return Upload(
        there["up"], told[WEIGHT], there["extra"], rows=rows, clients=tuple(ids),
        metrics={n.removeprefix(METRIC): v for n, v in told.items() if n != WEIGHT},
        received=there["received"], counts=dict(counts),
    )


def _names(up: Tree, extra: Tree, told: Tree, received: Tree, ctx: Context) -> None:
    """Refuse tensors and numbers that the method does not declare."""
    stray = sorted(set(up) - set(received))
    allowed = set(matching(extra, ctx.extras)) - set(ctx.groups.server)
    stray += sorted(set(extra) - allowed)
    metrics = [n.removeprefix(METRIC) for n in told if n != WEIGHT]
    stray += sorted(set(metrics) - set(matching(metrics, ctx.metrics)))
    if stray:
        raise Odd(f"its update has tensors that the method does not send: {stray[:4]}")
    if WEIGHT not in told:
        raise Odd("its update has no weight")


def _extras(extra: Tree, k: int, forms: Tree | None) -> None:
    """Refuse extras of another form than the method's, as far as that is known (``Odd``)."""
    for name, v in extra.items():
        if v.dim() == 0 or len(v) != k:
            raise Odd(f"'{name}' has no row for each client")
        if forms is None and v.dtype not in TYPES:
            raise Odd(f"'{name}' is {v.dtype}, which no method sends")
    odd = odd_extra(extra, forms) if forms is not None else ""
    if odd:
        raise Odd(odd)


def weigh(part: Upload, max_norm: float, ctx: Context) -> dict[int, str]:
    """Return why updates of single clients are refused: what is not finite, weights, norms.

    A method may train on a part of a client's images (``Context.subset``), so a weight by samples
    may be below the number that was told, and never above.

    Args:
        ctx: of the round, of all its clients.
    """
    told = dict(zip(ctx.clients, ctx.sizes.tolist(), strict=True))
    out: dict[int, str] = {}
    for k, client in enumerate(part.clients):
        tree = {n: v[k] for n, v in (part.params | part.extras).items()}
        bad, weight, most = first_non_finite(tree), float(part.weight[k]), told[client]
        if bad is not None:
            out[client] = f"update '{bad}' {NOT_FINITE}"
        elif not 0 <= weight <= HEAVIEST:
            out[client] = f"its weight is {weight}"
        elif ctx.weighting == UNIFORM and weight > 1:
            out[client] = f"its weight is {weight:g}, and all weights are 1"
        elif ctx.weighting not in (UNIFORM, OWN) and weight > most:
            out[client] = (f"its weight is {weight:g}, and its site reported {most:g} training "
                           "images")
    if max_norm:
        for client, norm in zip(part.clients, _norms(part), strict=True):
            if norm > max_norm:
                out.setdefault(client, f"its update has norm {norm:.3g}, above {max_norm:g}")
    return out


def _norms(part: Upload) -> list[float]:
    dense = part.arrive()
    total: Tensor = torch.zeros(len(dense), dtype=torch.float64)
    for name, v in dense.params.items():
        gap = v.double().cpu() - dense.received[name].double().cpu()
        total += gap.reshape(len(dense), -1).square().sum(1)
    norms: list[float] = total.sqrt().tolist()
    return norms


def without(part: Upload, refused: Mapping[int, str]) -> Upload | None:
    """Return a part without some of its clients; None where nobody is left."""
    stay = [k for k, c in enumerate(part.clients) if c not in refused]
    return part.take(stay) if stay else None


def find_outvoted(parts: Sequence[Upload]) -> dict[int, str]:
    """Return why clients are refused whose extras or rows do not stack with most others'."""
    forms = [_form(part.extras) for part in parts]
    votes: Counter[Form] = Counter()
    for part, form in zip(parts, forms, strict=True):
        votes[form] += len(part.clients)
    most = max(votes, key=lambda form: votes[form], default=())
    axes: dict[str, Counter[int]] = {}
    out: dict[int, str] = {}
    for part, form in zip(parts, forms, strict=True):
        if form != most:
            out |= dict.fromkeys(part.clients, "its extras differ in form from the other clients'")
            continue
        for name, axis in _axes(part).items():
            axes.setdefault(name, Counter())[axis] += len(part.clients)
    usual = {name: max(count, key=lambda axis: count[axis]) for name, count in axes.items()}
    for part in parts:
        if any(usual.get(name, axis) != axis for name, axis in _axes(part).items()):
            for client in part.clients:
                out.setdefault(client, "its rows are along another axis than the other clients'")
    return out


def _axes(part: Upload) -> dict[str, int]:
    return {name: rows.along(part.params[name]) for name, rows in part.rows.items()}


def _form(tree: Tree) -> Form:
    return tuple(sorted(((n, v.dtype, tuple(v.shape[1:])) for n, v in tree.items()),
                        key=lambda leaf: leaf[0]))
