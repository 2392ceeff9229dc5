"""Whether clients seem to use the same class names for different things.

A model of all images then learns what contradicts itself, and each client alone does well. A run's
next step and ``fedvlm advise`` both ask here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvlm.core.spelling import quote_name
from fedvlm.runs.verify.answer import POOLED, WHO

FAR = 0.6  # of the way from chance to alone: real sets that many clients share reach 0.73 and more


def shared_classes(counts: Sequence[Sequence[float]], names: Sequence[str]) -> list[str]:
    """Return the names of the classes that at least half of the clients have, the commonest first.

    Args:
        counts: images of each class, of each client; a client may be counted up to its last class.
    """
    have = np.zeros(len(names), dtype=np.int64)
    for own in counts:
        have[:len(own)] += np.asarray(own)[:len(names)] > 0
    order = np.argsort(-have, kind="stable").tolist()
    return [names[c] for c in order if 2 * have[c] >= max(1, len(counts))]


def meaning_words(
    alone: float, pooled: float, chance: float, shared: Sequence[str], clear: bool
) -> str:
    """Return that clients may mean different things by their class names; empty: they seem not to.

    It takes two shared classes to confuse them.

    Args:
        alone, pooled, chance: percent.
        shared: see ``shared_classes``.
        clear: pooled is below alone by more than the margin.
    """
    if not clear or len(shared) < 2 or pooled - chance > FAR * (alone - chance):
        return ""
    by = "" if len(shared) == 2 else "class names such as "
    return (f"{WHO[POOLED]} reach {pooled:.1f}, alone {alone:.1f}: check that all clients mean the "
            f"same by {by}{quote_name(shared[0])} and {quote_name(shared[1])}")
