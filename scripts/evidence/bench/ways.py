"""By which ways the fast side of ``bench methods`` does less than the plain one.

Read off what the two sides served, counted and stacked, not off a list of methods.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedvlm.federation.batches import SplitBatcher
from fedvlm.federation.rounds import Federation
from fedvlm.models.features.sources import StreamSource

PACKED, STACKED = "packed", "stacked"


def ways(
    fast: Federation, plain: Federation, fast_work: Mapping[str, int],
    plain_work: Mapping[str, int],
) -> tuple[str, ...]:
    """Return the shortcuts that the fast side took in a round, as they were seen.

    The streams that it read out of a store; ``packed``: the same texts in fewer tokens;
    ``stacked``: several clients in one step. None where a round computes nothing.

    Args:
        fast_work, plain_work: the counters of the same rounds (``RoundFinished.counters``).
    """
    out = []
    if plain_work.get("image_forwards", 0) and (cached := _streams(fast)):
        out += [name for name in cached if name != "pixels"]
    if 0 < fast_work.get("text_tokens", 0) < plain_work.get("text_tokens", 0):
        out.append(PACKED)
    if any(plain_work.values()) and _stack(fast) > _stack(plain):
        out.append(STACKED)
    return tuple(out)


def _streams(fed: Federation) -> tuple[str, ...]:
    source = fed.batcher.source if isinstance(fed.batcher, SplitBatcher) else None
    return source.streams if isinstance(source, StreamSource) else ()


def _stack(fed: Federation) -> int:
    """Return how many clients are computed at once."""
    most = fed.engine.chunk if fed.trainer.batched else 1
    return min(most, fed.plan.cohort)
