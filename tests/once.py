"""What runs of one process may share: the embedded towers and the lists of built-in sets.

A half of a small run's time. A sweep's worker shares the same objects (``job.inputs.SharedInputs``,
whose cells have the bits of single runs, as tests/sweep shows), and a run in a process of its own
(``tests.jobs.spawn``) makes its own.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fedvlm.core.repository import builtin_root
from fedvlm.data.catalog import dataset_info

KEPT = 8  # of each kind
TINY = "tiny"


def share(inputs: ModuleType, federated: ModuleType) -> None:
    """Let the runs of this process share what they load; once is enough."""
    if not hasattr(inputs.load_backbone, "kept"):
        inputs.load_backbone = _towers(inputs.load_backbone)
        federated.load_for_training = _sets(federated.load_for_training)
        inputs.load_for_training = federated.load_for_training


def _towers(load: Callable[..., Any]) -> Callable[..., Any]:
    kept: dict[str, Any] = {}
    loaded: dict[str, dict[str, Any]] = {}
    texts: dict[str, dict[Any, Tensor]] = {}

    def load_backbone(name: str, *words: Any, **more: Any) -> Any:
        """The embedded towers, unless a test changed them; each run has an object of its own."""
        if name != TINY:
            return load(name, *words, **more)
        key = repr((words, sorted(more.items(), key=repr)))
        if key in kept and not _same(_all_of(kept[key]), loaded[key]):
            del kept[key]
            texts.pop(key, None)
        if key not in kept:
            made = _recall(kept, key, lambda: load(name, *words, **more))
            loaded[key] = copy.deepcopy(_all_of(made))
        own = copy.copy(kept[key])
        own.encode_embeddings = _texts(own, texts.setdefault(key, {}))
        return own

    load_backbone.kept = kept  # type: ignore[attr-defined]
    return load_backbone


def _all_of(backbone: Any) -> dict[str, Any]:
    """What ``verify_frozen`` hashes; to compare it takes a third of the time."""
    model = backbone.model
    named = (*model.named_parameters(), *model.named_buffers())
    return {"arch": backbone.arch} | {name: value.detach() for name, value in named}


def _same(now: dict[str, Any], then: dict[str, Any]) -> bool:
    return now.keys() == then.keys() and all(
        torch.equal(value, then[name]) and value.dtype == then[name].dtype
        if isinstance(value, Tensor) else value == then[name] for name, value in now.items()
    )


def _texts(backbone: Any, known: dict[Any, Tensor]) -> Callable[..., Tensor]:
    """The text tower, which answers for a text that it has read: the templates of every run."""
    def encode_embeddings(emb: Tensor, eot: Tensor, enter: Any = None) -> Tensor:
        read = type(backbone).encode_embeddings  # a test may have changed it
        if enter is not None or emb.requires_grad:
            return read(backbone, emb, eot, enter)
        text = hashlib.sha256(memoryview(emb.contiguous().view(-1).view(torch.uint8).numpy()))
        key = read, emb.dtype, tuple(emb.shape), tuple(eot.tolist()), text.digest()
        while len(known) >= 8 * KEPT and key not in known:
            del known[next(iter(known))]
        if key not in known:
            known[key] = read(backbone, emb, eot)
        return known[key].clone()

    return encode_embeddings


def _sets(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    kept: dict[str, Any] = {}

    def load_for_training(cfg: Any) -> Any:
        """A built-in set as it is rendered in this cache; other sets are read from their files."""
        from fedvlm.data.builtin import sets  # start-up: Pillow, for runs only

        info = dataset_info(cfg.DATASET.NAME)
        if info is None or not info.builtin:
            return load(cfg)
        sizes = sets._PER_CLASS, sets._PER_DOMAIN_AND_CLASS  # tests change them
        seed = int(cfg.DATA_SEED) if cfg.DATASET.get("JOIN_TEST") or cfg.DATASET.get(
            "TEST_SHARE") else 0
        key = repr((cfg.DATASET, seed, str(builtin_root(cfg)), sizes))
        return _recall(kept, key, lambda: load(cfg))

    return load_for_training


def _recall(kept: dict[str, Any], key: str, make: Callable[[], Any]) -> Any:
    if key not in kept:
        kept[key] = make()
        while len(kept) > KEPT:
            del kept[next(iter(kept))]
    return kept[key]
