"""Updates that came from other places: a method's aggregate must not fail as if it were at fault.

Names, shapes, types and finiteness are looked at before (``distributed.server.policy``); what the
numbers mean, the method alone knows.
"""

from __future__ import annotations

from fedvlm.core.errors import DivergedError, FedvlmError, failure_text
from fedvlm.core.trees import State, first_non_finite
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.local.hooks import explain_hook, name_of, slots_of
from fedvlm.federation.server import ServerContext
from fedvlm.federation.trainer import Trainer


def aggregate_updates(
    trainer: Trainer, ctx: ServerContext, server: State, updates: Updates, origin: str
) -> State:
    """Return the server's state after a round.

    Args:
        origin: from which places the updates came (``Engine.origin``); empty: all from here.

    Raises:
        DivergedError: the global model is not finite.
        MethodError: the method fails on updates from here, or returns no slots.
        FedvlmError: it fails on what came from other places.
    """
    hook = name_of(trainer, "aggregate")
    if not origin:
        with explain_hook(f"round {ctx.round}: {hook}"):
            return slots_of(hook, trainer.aggregate(ctx, server, updates))
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
