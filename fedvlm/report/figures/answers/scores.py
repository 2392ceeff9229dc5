"""The class scores of a run's models for its test images, where the run kept them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import DataError
from fedvlm.report.compare.runs import PERSONAL, personal_names, read_logits
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.cover import LOGITS

SHARED, TRUE = "global", "true|"
NOT_KEPT = "the run kept no scores: run it with --keep-logits"


@dataclass(frozen=True)
class Scores:
    """Scores of test images.

    Attributes:
        logits: ``[n, C]``; ``true``: labels ``[n]``.
        clients: ``[n]``, whose image and model it is; -1 for the shared model.
    """

    logits: NDArray[np.float64]
    true: NDArray[np.int64]
    clients: NDArray[np.int64]

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Probability of the predicted class ``[n]``."""
        top = self.logits.max(1, keepdims=True)
        return np.asarray(1 / np.exp(self.logits - top).sum(1))

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the predicted class is the true one ``[n]``."""
        return np.asarray(self.logits.argmax(1) == self.true)


def read_scores(run: FinishedRun) -> Scores | str:
    """Return the scores of all clients' models, else of the shared one; a sentence without any.

    Raises:
        DataError: the file is damaged.
    """
    path = run.path / LOGITS
    if not path.is_file():
        return NOT_KEPT
    try:
        kept: dict[str, Any] = dict(read_logits(path))
        names = personal_names(kept) or [SHARED]
        logits = np.concatenate([np.asarray(kept[n], dtype=np.float64) for n in names])
        true = np.concatenate([np.asarray(kept[TRUE + n], dtype=np.int64) for n in names])
        client = [int(n.removeprefix(PERSONAL)) if n != SHARED else -1 for n in names]
        clients = np.repeat(client, [len(kept[n]) for n in names])
    except (ValueError, KeyError, OSError) as error:
        raise DataError(f"{path} is damaged ({error})") from None
    good = np.isfinite(logits).all(1)
    if not good.any():
        return "no test image has finite scores"
    return Scores(logits[good], true[good], clients[good])
