"""Features of texts of samples, once for all runs: kept in the feature store as those of images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedvlm.core.progress import Progress
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.encode import open_store

KIND = "texts"
BATCH = 64  # texts of a pass; part of the identity
_WHAT = "encoding captions"


def cached_texts(
    backbone: Backbone, texts: Sequence[str], cache_dir: Path | None = None,
    progress: Progress | None = None, notes: list[str] | None = None,
) -> Tensor:
    """Return text features ``[n, embed_dim]``, not normalised, on the CPU.

    Texts that are longer than the tower's context are cut at its end, and ``notes`` tells. What is
    missing is encoded in batches of one size, so that a row's bits do not depend on what else was.

    Raises:
        DataError: the store cannot be written.
    """
    keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    by_key = dict(zip(keys, texts, strict=True))
    with open_store(backbone, KIND, cache_dir, BATCH) as store:
        at, rows = store.find(list(by_key), -1)
        missing = sorted(set(by_key) - set(at))
        parts, place = [rows], dict(at)
        for start in range(0, len(missing), BATCH):
            some = missing[start : start + BATCH]
            values = _encoded(backbone, [by_key[key] for key in some])
            store.put_many(some, -1, values)
            place |= {key: len(place) + i for i, key in enumerate(some)}
            parts.append(values)
            if progress is not None:
                progress(_WHAT, start + len(some), len(missing))
        if notes is not None:
            notes += [*store.notes, *_cut(backbone, list(by_key.values()))]
    return torch.cat(parts)[torch.tensor([place[key] for key in keys], dtype=torch.int64)]


def encode_captions(backbone: Backbone, texts: Sequence[str]) -> Tensor:
    """Return text features ``[n, embed_dim]``, not normalised, on the CPU; nothing is kept."""
    return torch.cat([_encoded(backbone, texts[i : i + BATCH])
                      for i in range(0, len(texts), BATCH)])


def _encoded(backbone: Backbone, texts: Sequence[str]) -> Tensor:
    ids = backbone.tokenize([*texts, *[texts[0]] * (BATCH - len(texts))])
    with torch.no_grad():
        out = backbone.encode_embeddings(backbone.embed_tokens(ids), backbone.eot(ids))
    return out[: len(texts)].to(backbone.feature_dtype).cpu()


def _cut(backbone: Backbone, texts: Sequence[str]) -> list[str]:
    length = backbone.context_length
    ends = [backbone.token_ends(backbone.tokenize(texts[i : i + 1024], 2 * length))
            for i in range(0, len(texts), 1024)]
    long = int((torch.cat(ends) >= length).sum()) if ends else 0
    return [f"{long} of {len(texts):,} captions have more than the {length} tokens that "
            f"{backbone.name} reads: their ends were cut"] if long else []
