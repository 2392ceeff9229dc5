"""Predictions of K models at once: on the same samples, or on samples of their own.

No gradient is kept, and ``torch.inference_mode`` is avoided on purpose: a tensor that a model
caches under it (a text anchor, say) could never take part in training again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Predictor = Callable[[Mapping[str, Tensor]], Tensor]

#: The label given where a model's logits are not finite: never right, never another class.
BROKEN = -1


class Source(Protocol):
    """Samples by index; view 0 is the plain, unaugmented one."""

    def fetch(self, indices: Any, view: int) -> dict[str, Tensor]:
        """Return streams ``{name: [len(indices), ...]}``."""
        ...


@dataclass(frozen=True)
class Predicted:
    """One model on n samples.

    Attributes:
        labels: predicted labels ``[n]`` int64; ``BROKEN`` where the logits are not finite.
        logits: ``[n, C]`` on the CPU, if they were asked for.
    """

    labels: np.ndarray
    logits: Tensor | None = None


class Batches:
    """Fetches test samples in a fixed order and size, so that a repeated evaluation is bit-equal.

    Args:
        source: where samples come from.
        batch_size: samples per client and batch.
        device: where the predictor works; streams are moved there.
    """

    def __init__(self, source: Source, batch_size: int, device: torch.device | str) -> None:
        self.source, self.batch_size, self.device = source, batch_size, device

    def _fetch(self, indices: np.ndarray) -> dict[str, Tensor]:
        picked = torch.tensor(np.asarray(indices, dtype=np.int64).reshape(-1))
        found = self.source.fetch(picked, view=0)
        return {name: v.to(self.device) for name, v in found.items()}

    def shared(
        self, predict: Predictor, indices: np.ndarray, k: int, keep_logits: bool = False
    ) -> list[Predicted]:
        """Predict the same samples with each of ``k`` models; a sample is fetched once.

        Args:
            predict: ``x`` with streams ``[K, B, ...]`` -> logits ``[K, B, C]``.
            indices: ``[n]``.
        """
        parts = []
        for start in range(0, len(indices), self.batch_size):
            x = self._fetch(indices[start : start + self.batch_size])
            wide = {s: v.unsqueeze(0).expand(k, *v.shape) for s, v in x.items()}
            parts.append(_run(predict, wide, keep_logits))
        return [_join([(p[i], None if z is None else z[i]) for p, z in parts]) for i in range(k)]

    def own(
        self, predict: Predictor, indices: Sequence[np.ndarray], keep_logits: bool = False
    ) -> list[Predicted]:
        """Predict with each model its own samples; short clients are padded, and cut again.

        Args:
            predict: as in ``shared``.
            indices: K arrays ``[n_k]``, some of them empty.
        """
        longest = max((len(one) for one in indices), default=0)
        rows: list[list[tuple[np.ndarray, Tensor | None]]] = [[] for _ in indices]
        filler = next((one[0] for one in indices if len(one)), 0)
        for start in range(0, longest, self.batch_size):
            cut = [one[start : start + self.batch_size] for one in indices]
            width = max(map(len, cut))
            index = np.full((len(cut), width), filler, dtype=np.int64)
            for row, one in zip(index, cut, strict=True):
                row[: len(one)] = one
            flat = self._fetch(index)
            x = {s: v.reshape(*index.shape, *v.shape[1:]) for s, v in flat.items()}
            labels, logits = _run(predict, x, keep_logits)
            for i, one in enumerate(cut):
                if len(one):
                    z = None if logits is None else logits[i, : len(one)]
                    rows[i].append((labels[i, : len(one)], z))
        return [_join(row) for row in rows]


def _run(
    predict: Predictor, x: Mapping[str, Tensor], keep_logits: bool
) -> tuple[np.ndarray, Tensor | None]:
    with torch.no_grad():
        logits = predict(x).detach()
        finite = torch.isfinite(logits).all(-1)
        labels = torch.where(finite, logits.argmax(-1), BROKEN).cpu().numpy()
        return labels, logits.cpu().clone() if keep_logits else None


def _join(parts: Sequence[tuple[np.ndarray, Tensor | None]]) -> Predicted:
    if not parts:
        return Predicted(np.zeros(0, dtype=np.int64))
    logits = [z for _, z in parts if z is not None]
    return Predicted(
        np.concatenate([labels for labels, _ in parts]), torch.cat(logits) if logits else None
    )
