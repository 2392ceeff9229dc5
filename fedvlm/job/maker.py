"""What the cells of one worker share: the frozen backbone, and the clients' images.

Both are the very objects that a single run makes: the numbers are the same to the bit. Everything
that a run changes (model, trainer, counters) is made anew for each cell; features come from the
store, which all processes share.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import torch
from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.core.progress import Progress
from fedvlm.data.federated import FederatedData
from fedvlm.job.build import Maker
from fedvlm.models.backbone import Backbone
from fedvlm.runs.identity import identity_plain

KEPT = 2  # of each kind: cells come sorted, so that more would only take memory
# What the data do not depend on; every other key counts, read or not.
NOT_DATA = (
    "TRAINER.", "OPTIM.", "PEFT.", "MODEL.", "TRAIN.", "OUTPUT_DIR", "RESUME", "TAG", "SEED",
    "DEVICE", "FED.ROUNDS", "FED.LOCAL_EPOCHS", "FED.FRAC", "FED.FINETUNE_", "FED.BUDGET",
    "FED.CHUNK", "FED.PLAIN", "FED.NONFINITE", "FED.FIRST_ROUND_ALL",
)
T = TypeVar("T")


def data_key(cfg: CfgNode) -> str:
    """Return a text that is the same for configs with the same clients' images."""
    known = {k: v for k, v in flat(cfg).items() if not k.startswith(NOT_DATA)}
    return json.dumps(identity_plain(known), sort_keys=True)


def backbone_key(cfg: CfgNode, device: torch.device) -> str:
    """Return a text that is the same for configs with the same towers."""
    pretrained = bool(cfg.MODEL.BACKBONE.PRETRAINED)
    return json.dumps([
        cfg.MODEL.BACKBONE.NAME, cfg.MODEL.INIT_WEIGHTS, cfg.MODEL.LOADER, cfg.MODEL.PREC,
        str(device), pretrained, None if pretrained else int(cfg.SEED), bool(cfg.FED.PLAIN),
    ])


class Memo(Maker):
    """Keeps the last few backbones and data of a worker."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._data: OrderedDict[str, FederatedData] = OrderedDict()
        self._backbones: OrderedDict[str, Backbone] = OrderedDict()

    def data(self, cfg: CfgNode, progress: Progress | None) -> FederatedData:
        """See ``Maker``; the same object for the same ``data_key``."""
        return _kept(self._data, data_key(cfg), lambda: super(Memo, self).data(cfg, progress))

    def backbone(self, cfg: CfgNode, device: torch.device) -> Backbone:
        """See ``Maker``; the same object for the same ``backbone_key``.

        Raises:
            RuntimeError: a run before this one has changed its weights; it is forgotten.
        """
        key = backbone_key(cfg, device)
        found = self._backbones.get(key)
        if found is not None and found.verify_frozen() != found.digest:
            del self._backbones[key]
            raise RuntimeError(
                f"a run changed the frozen weights of backbone '{found.name}'; this cell was not "
                "run with them, --retry-failed does it with fresh ones"
            )
        return _kept(
            self._backbones, key, lambda: super(Memo, self).backbone(cfg, device)
        )


def _kept(store: OrderedDict[str, T], key: str, make: Callable[[], T]) -> T:
    if key not in store:
        store[key] = make()
    store.move_to_end(key)
    while len(store) > KEPT:
        store.popitem(last=False)
    return store[key]
