"""A client's line, and what lines say together, where images have captions.

``i2t_r1``, ``_r5``, ``_r10``: percentage of images one of whose own captions is among the 1, 5, 10
nearest captions. ``t2i_*``: percentage of captions whose image is among the nearest images. Each
client's test images and captions are searched by themselves; of ``global`` the whole test set.
``accuracy``, and so ``personal`` and ``global``, is the mean of ``i2t_r1`` and ``t2i_r1``:
``protocol.target`` says ``captions``. A smaller set is easier to search, so that numbers of clients
of different sizes, and ``personal`` beside ``global``, do not compare. Ties count against a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.stats import mean, population_std, quartiles, worst, worst_decile
from fedvlm.core.trees import slice_clients
from fedvlm.federation.server import Row
from fedvlm.federation.toolbox import retrieval
from fedvlm.federation.trainer import Trainer
from fedvlm.federation.workplace import PersonalModels
from fedvlm.models.features.sources import SampleSource
from fedvlm.models.vlmodel import VLModel

AT = (1, 5, 10)
NAMES = tuple(f"{way}_r{k}" for way in ("i2t", "t2i") for k in AT)
Embed = Callable[[Mapping[str, Tensor]], Tensor]  # streams of one client -> [1, B, d]


def caption_row(
    client: int, embed: Embed, source: SampleSource, samples: np.ndarray, size: int,
    device: torch.device | str,
) -> Row:
    """Return a line: client, n, captions, accuracy and ``NAMES``; None without samples.

    Args:
        embed: image features of a batch.
        size: samples of a batch.
    """
    images, texts, counts = list[Tensor](), list[Tensor](), list[Tensor]()
    for some in torch.from_numpy(np.array(samples, dtype=np.int64)).split(size):
        if not len(some):
            continue
        x = {name: v[None].to(device) for name, v in source.fetch(some, 0).items()}
        own = x.pop(retrieval.STREAM)[0]
        there = (own != 0).any(-1)
        with torch.no_grad():
            images.append(embed(x)[0])
        texts.append(own[there])
        counts.append(there.sum(1))
    if not images:
        return {"client": int(client), "n": 0, "captions": 0, "accuracy": None,
                **dict.fromkeys(NAMES)}
    z, t = torch.cat(images), torch.cat(texts)
    broken = int((~torch.isfinite(z)).any(-1).sum())
    return {"client": int(client), "n": len(z), "captions": len(t),
            **recalls(z, t, torch.cat(counts)), **({"broken": broken} if broken else {})}


def recalls(images: Tensor, texts: Tensor, counts: Tensor) -> dict[str, float]:
    """Return ``accuracy`` and ``NAMES`` of features in one search.

    Args:
        images: ``[n, d]``.
        texts: ``[m, d]``, those of an image together, in the order of images.
        counts: how many each image has, ``[n]``.
    """
    owner = torch.arange(len(images), device=counts.device).repeat_interleave(counts)
    found = retrieval.ranks(images, texts, owner)
    values = [value for one in found for value in retrieval.recall(one, AT)]
    row = dict(zip(NAMES, values, strict=True))
    return {"accuracy": (row["i2t_r1"] + row["t2i_r1"]) / 2, **row}


def personal_rows(
    trainer: Trainer, model: VLModel, models: PersonalModels, source: SampleSource,
    clients: Sequence[Any], split: str, size: int,
) -> Iterator[Row]:
    """Yield each client's line, of its own model on its own samples of a split."""
    for ids, params in models:
        for k, client in enumerate(ids):
            own = slice_clients(params, k, k + 1)
            yield caption_row(
                client, partial(trainer.image_features, model, own), source,
                getattr(clients[client], split), size, model.device)


def shared_recall(
    embed: Embed, source: SampleSource, samples: np.ndarray, size: int, device: torch.device | str
) -> dict[str, Any]:
    """Return ``global`` and ``global_<name>`` of one model on the whole test set."""
    row = caption_row(-1, embed, source, samples, size, device)
    return {"global": row["accuracy"], **{f"global_{name}": row[name] for name in NAMES}}


def caption_scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Return mean, spread and quartiles of the clients' one number, and means of ``NAMES``."""
    values = [row["accuracy"] for row in rows]
    low, middle, high = quartiles(values)
    return {
        "personal": mean(values), "personal_std": population_std(values),
        "personal_worst": worst(values), "personal_worst_decile": worst_decile(values),
        "personal_q1": low, "personal_median": middle, "personal_q3": high,
    } | {f"personal_{name}": mean(row[name] for row in rows) for name in NAMES}
