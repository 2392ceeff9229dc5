"""Single steps for methods that write their own ``ctx.loop`` body.

``gradient`` applies the non-finite policy, ``optimise`` takes a step of the run's optimiser on one
of several slots, ``descend`` one of plain SGD without any state.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.context import Context, Loss
from fedvlm.federation.optim import SGD
from fedvlm.federation.trees import State, Tree


def rates(ctx: Context, step: Step) -> list[float]:
    """Return the schedule's learning rate of each client at work."""
    return [ctx.schedule(ctx.clock(e)) for e in step.epochs]


def gradient(
    ctx: Context, p: Tree, loss: Loss, batch: Batch, what: str, train: Sequence[str] | None = None
) -> tuple[Tensor, Tree]:
    """Return (loss ``[K]``, gradients) at ``p``; ``what`` names the place for messages.

    Args:
        train: names to differentiate for; default: those in ``p`` that are shared or personal.

    Raises:
        DivergedError: a number is not finite (policy ``abort``).
    """
    names = ctx.trained(p, ("shared", "personal")) if train is None else train
    value, _, grads = ctx.grad(p, loss, batch, names)
    ctx.check(value, f"loss of {what}")
    ctx.check_tree(grads, f"gradient of {what}")
    return value, grads


def descend(p: Tree, grads: Tree, lr: Sequence[float]) -> Tree:
    """Return ``p - lr grads`` with a rate per client; leaves without gradient stay."""
    return p | SGD().step(p, grads, {}, lr, 1)[0]


def optimise(ctx: Context, slots: State, slot: str, grads: Tree, step: Step) -> State:
    """Return slot ``slot`` after a step of the run's optimiser, and that optimiser's state.

    The state lies in slots of its own, ``"<slot>/<name>"``: give back all of it from the body, so
    that it is cut with the clients.
    """
    prefix = f"{slot}/"
    state = {s.removeprefix(prefix): t for s, t in slots.items() if s.startswith(prefix)}
    rule = ctx.optim.build()
    new, state = rule.step(slots[slot], grads, state, rates(ctx, step), step.index)
    return {slot: slots[slot] | new} | {prefix + s: t for s, t in state.items()}
