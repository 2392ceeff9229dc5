"""How alike the clients' uploads of a round are: cosines for the metrics of its first and last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedvlm.federation.rounds import RoundFinished

MOST_CLIENTS = 100  # of more, those with the lowest ids are compared: a line stays below 1 MB
MOST_VALUES = 20_000  # of all K x K matrices of single tensors together; above, they are left out
DIGITS = 6


def has_similarity(event: RoundFinished) -> bool:
    """Say whether a round's record has similarities: the first and the last round's."""
    return bool(event.updates) and event.round in (1, event.total_rounds)


def upload_similarity(event: RoundFinished) -> dict[str, Any] | None:
    """Return how alike the uploads of a round are; None where no tensor is shared.

    Only what was uploaded of the shared group is looked at. Cosines are taken in float64 and
    rounded; a zero vector has cosine 0, as in similarity-aware aggregation.

    Returns:
        ``clients``: ids, ascending, the order of all rows and columns; ``update`` ``[K][K]``:
        between uploads minus what was downloaded, all shared tensors as one vector; ``tensors``:
        per tensor ``[K][K]`` between the uploads themselves; ``to_global``: per tensor ``[K]``
        between an upload and what was downloaded (c_i of ``similarity_weights``).
        ``tensors`` is left out where it would be long, ``left_out`` counts clients not compared.
    """
    updates = event.updates
    if updates is None or not updates.params:
        return None
    clients, names = updates.clients[:MOST_CLIENTS], sorted(updates.params)
    moved = torch.zeros(len(clients), len(clients), dtype=torch.float64)
    pairs, to_global = {}, {}
    for name in names:
        sent, got = (_rows(tree[name], len(clients)) for tree in (updates.params, updates.received))
        pairs[name] = _plain(_normalised(sent @ sent.T))
        to_global[name] = _plain(_ratio((sent * got).sum(1), sent.norm(dim=1) * got.norm(dim=1)))
        sent -= got
        moved += sent @ sent.T
    cosines = {"clients": list(clients), "update": _plain(_normalised(moved))}
    if len(names) * len(clients) ** 2 <= MOST_VALUES:
        cosines["tensors"] = pairs
    cosines["to_global"] = to_global
    left_out = len(updates) - len(clients)
    return cosines | ({"left_out": left_out} if left_out else {})


def _rows(leaf: Tensor, k: int) -> Tensor:
    """Return the first ``k`` clients of a leaf as ``[k, d]`` in float64, on the CPU."""
    return leaf[:k].detach().cpu().double().flatten(1) if leaf.dim() > 1 else (
        leaf[:k].detach().cpu().double()[:, None])


def _normalised(gram: Tensor) -> Tensor:
    """Return cosines from inner products ``[K, K]``."""
    norm = gram.diagonal().clamp_min(0).sqrt()
    return _ratio(gram, norm[:, None] * norm)


def _ratio(inner: Tensor, norm: Tensor) -> Tensor:
    cosine = torch.where(norm > 0, inner / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0.0)
    return cosine.clamp(-1, 1)


def _plain(values: Tensor) -> Any:
    """Return nested lists, rounded: on Python's floats, so that JSON shows the digits asked for."""
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [round(v, DIGITS) for v in values.tolist()]
