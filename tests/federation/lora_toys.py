"""LoRA rules in which clients send a part, or the server keeps one, on four quadratic clients.

The change of a layer is R + B A: A and B shared, R (where there is one) the server's; beside them
a bias. Every client receives another model, so that it matters from whose download a gap is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedvlm.core.trees import State, Tree, matching, per_client
from fedvlm.federation.aggregation.arrival import Rows, Upload
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context
from fedvlm.federation.server import ServerContext
from tests.federation.toys import Quadratic, Watched, quadratic

SITE, BIAS, HINT, R = "image.lora.0.q", "image.bias", "hint", "residual.q"
FA, FB = SITE + ".A", SITE + ".B"
RANKS = (1, 4, 2, 3)
TAKEN = {1: (0, -1, 3), 3: (-1, 2, 5)}  # rows of the bias that clients with a hint send
WELLS = ((1.0, 0.3), (3.0, -0.2), (2.0, 0.5), (1.5, 0.1))


class Lora(Quadratic):
    """FedAvg over A, B and the bias; odd clients receive a hint, so that they do not stack."""

    apart = 0.125  # between the downloads of two clients
    extras_down = (HINT,)
    bad: tuple[int, ...] = ()  # clients whose loss is no number

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        draw = torch.Generator().manual_seed(3)
        shapes = {FA: (4, 3), FB: (5, 4), BIAS: (6, 2)}
        return {n: torch.randn(s, generator=draw).double() for n, s in shapes.items()}

    def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
        out = p[FB] @ p[FA] + p.get(R, 0)
        far = (out - b.x["b"][:, :1, None]).square().mean((1, 2)) + p[BIAS].square().mean((1, 2))
        sick = torch.tensor([c in self.bad for c in b.clients])
        return b.x["a"][:, 0] * torch.where(sick, torch.nan, far)

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        tree = {n: v + self.apart * client if n != R else v for n, v in server["w"].items()}
        return tree | ({HINT: torch.ones(1).double()} if client % 2 else {})

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        whole = {n: v for n, v in received.items() if n != HINT}
        w = ctx.fit(state["w"] | whole, self.loss).params
        return state | {"w": w}, self.send(ctx, w, whole)

    def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
        return ctx.upload(w)


def only(round_: int) -> tuple[str, ...]:
    """B and the bias in odd rounds, A and the bias in even ones."""
    return (r".*\.B" if round_ % 2 else r".*\.A", BIAS)


def bias_rows(ctx: Context) -> dict[str, Rows]:
    """Rows of the bias for clients that have a hint; the others send it whole."""
    if not ctx.clients[0] % 2:
        return {}
    return {BIAS: Rows(torch.tensor([TAKEN[c] for c in ctx.clients]))}


class Ro(Lora):
    """RoLoRA: one factor a round."""

    def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
        return ctx.upload(w, only=only(ctx.round))


class Het(Lora):
    """HetLoRA: each client sends its ranks."""

    def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
        return ctx.upload(w, ranks={SITE: [RANKS[c] for c in ctx.clients]})


class All(Lora):
    """Patterns, rows and ranks together; a part of the chunks sends the bias whole."""

    def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
        return ctx.upload(
            w, only=only(ctx.round), rows=bias_rows(ctx),
            ranks={SITE: torch.tensor([RANKS[c] for c in ctx.clients])},
        )


KINDS: dict[str, type[Lora]] = {"only": Ro, "ranks": Het, "all": All}


def sent_of(kind: str, name: str, round_: int, client: int) -> Sequence[int] | None:
    """Return the rows (of B: columns) that a client sends of a tensor; None: all, whole."""
    if kind in ("only", "all") and not matching([name], only(round_)):
        return ()
    if kind in ("ranks", "all") and name in (FA, FB):
        return range(RANKS[client])
    if kind == "all" and name == BIAS and client % 2:
        return [row for row in TAKEN[client] if row >= 0]
    return None


def dense(kind: str) -> type[Lora]:
    """Return the method that fills by hand, row by row, and sends everything."""

    class Dense(Lora):
        def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
            out = dict(w)
            for name in (FA, FB, BIAS):
                out[name] = w[name].clone()
                for k, client in enumerate(ctx.clients):
                    rows = sent_of(kind, name, ctx.round, client)
                    axis = 1 if name == FB else 0
                    for row in range(w[name].shape[1 + axis]):
                        if rows is not None and row not in rows:
                            at = (k, slice(None), row) if axis else (k, row)
                            out[name][at] = received[name][at]
            return ctx.upload(out)

    return Dense


class FedEx(Lora):
    """FedEx-LoRA: what the mean of the factors misses of the mean product goes into R.

    In odd rounds it is left alone.
    """

    extras_down = ()
    groups = ((r"image\..*", "shared"), (r"residual\..*", "server"))
    seen: list[Tensor]

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        return {R: torch.zeros(5, 3).double()} | super().trainables(model, generator)

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        return server["w"]

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        assert R not in state["w"]
        assert received[R].stride()[0] == 0 and len(received[R]) == ctx.k  # lies there once
        return super().client_update(ctx, state, received)

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        new = super().aggregate(ctx, server, updates)
        if ctx.round % 2:
            return new
        share = per_client(updates.weight / updates.weight.sum(), updates.params[FA])
        mean = (share * (updates.params[FB] @ updates.params[FA])).sum(0)
        w = new["w"]
        return new | {"w": w | {R: w[R] + mean - w[FB] @ w[FA]}}


def four(trainer: Lora, rounds: int = 3, **plan: Any) -> Watched:
    """Return four clients of one, two, one and three samples."""
    sizes = plan.pop("sizes", (1, 2, 1, 3))
    return quadratic(trainer, rounds, sizes=sizes, wells=WELLS, epochs=2, **plan)
