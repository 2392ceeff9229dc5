"""Updates that came from other places: a method's aggregate must not fail as if it were at fault.

Names, shapes, types and finiteness are looked at before (``distributed.server.policy``); what the
numbers mean, the method alone knows.
"""

from __future__ import annotations

import math

from fedvlm.core.errors import DivergedError, FedvlmError, failure_text
from fedvlm.core.trees import State, first_non_finite
from fedvlm.federation.aggregation.telltale import Telltale, measured_moves, outlier_sentence, tell
from fedvlm.federation.aggregation.updates import (
    Updates,
    finite_later,
    largest_norm,
    refuse_non_finite,
)
from fedvlm.federation.local.guard import read_numbers
from fedvlm.federation.local.hooks import explain_hook, keep_shapes, name_of, slots_of
from fedvlm.federation.server import ServerContext
from fedvlm.federation.trainer import Trainer


def aggregate_updates(
    trainer: Trainer, ctx: ServerContext, server: State, updates: Updates, origin: str
) -> tuple[State, Telltale]:
    """Return the server's state after a round, and the updates' telltale: one read for both.

    Args:
        origin: from which places the updates came (``Engine.origin``); empty: all from here.

    Raises:
        DivergedError: the global model is not finite; the message names the outliers.
        MethodError: the method fails on updates from here, or returns no slots.
        FedvlmError: it fails on what came from other places.
    """
    moves = measured_moves(updates)
    try:
        if origin:  # what came from other places is looked at at once
            after = _aggregated(trainer, ctx, server, updates, origin)
            return after, tell(updates, moves.tolist())
        with finite_later() as trees:
            after = _aggregated(trainer, ctx, server, updates, origin)
        *read, (norm,) = read_numbers([*moves, largest_norm(trees)])
        for tree in trees if not math.isfinite(norm) else ():
            refuse_non_finite(tree)
    except DivergedError as error:
        words = [outlier_sentence(ctx.round, r) for r in tell(updates, moves.tolist()).rows()]
        raise DivergedError("; ".join([str(error), *words])) from error
    return after, tell(updates, read)


def _aggregated(
    trainer: Trainer, ctx: ServerContext, server: State, updates: Updates, origin: str
) -> State:
    """Return the server's state after a round."""
    hook = name_of(trainer, "aggregate")
    if not origin:
        with explain_hook(f"round {ctx.round}: {hook}"):
            after = slots_of(hook, trainer.aggregate(ctx, server, updates))
            keep_shapes(hook, after.get("w", {}), server.get("w", {}))
            return after
    kept = f"the state of round {ctx.round - 1} is kept"
    try:
        after = slots_of(hook, trainer.aggregate(ctx, server, updates))
    except FedvlmError:
        raise
    except Exception as error:
        raise FedvlmError(
            f"round {ctx.round}: {trainer.name or type(trainer).__name__} cannot aggregate the "
            f"updates of {origin}: {failure_text(error)}; {kept} (--debug shows the traceback)"
        ) from error
    bad = first_non_finite(trainer.shared(after))
    if bad is not None:
        raise DivergedError(
            f"round {ctx.round}: the aggregate of '{bad}' is not finite (updates of {origin}); "
            f"{kept}"
        )
    return after
