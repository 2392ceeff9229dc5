"""What a run is made of before its method comes in: the clients' images, and the frozen towers.

``Inputs`` makes both anew. ``SharedInputs`` keeps the last few for the runs of one process, a
sweep's cells: the very objects that a single run makes, so the numbers are the same to the bit.
Everything that a run changes (model, trainer, counters) is made anew for each; features come from
the store, which all processes share.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.core.progress import Progress
from fedvlm.data.catalog import dataset_info
from fedvlm.data.datasets import load_for_training, pack_of
from fedvlm.data.datum import DatasetBase
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.federation.server import Roster
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.backbones import load_backbone
from fedvlm.runs.identity import identity_plain

if TYPE_CHECKING:
    from fedvlm.data.memory.given import MemorySet
    from fedvlm.data.own.site import SiteFile

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
KEEP = 2  # of each kind: cells come sorted, so that more would only take memory
# What the data do not depend on; every other key counts, read or not.
NOT_DATA = (
    "TRAINER.", "OPTIM.", "PEFT.", "MODEL.", "TRAIN.", "OUTPUT_DIR", "RESUME", "TAG", "SEED",
    "DRAFT", "DEVICE", "FED.ROUNDS", "FED.LOCAL_EPOCHS", "FED.FRAC", "FED.FINETUNE_", "FED.BUDGET",
    "FED.CHUNK", "FED.PLAIN", "FED.NONFINITE", "FED.FIRST_ROUND_ALL",
    "FED.UNSEEN_CLIENTS", "FED.MIN_IMAGES",
)
T = TypeVar("T")


class Inputs:
    """Makes a run's data and towers, anew each time.

    Attributes:
        counts: where clients' images are elsewhere, what is known of them.
        serves: this place aggregates, and so has the server's images, if there are any.
        settled: the garbage collector passes over what lives on (``gc.freeze``), which it would
            take 20 ms to ask.
    """

    counts: Roster | None = None
    serves: bool = True
    settled: bool = False

    def data(self, cfg: CfgNode, progress: Progress | None) -> FederatedData:
        """Return the clients' images."""
        return build_federation(cfg, progress)

    def backbone(self, cfg: CfgNode, device: torch.device) -> Backbone:
        """Return the frozen towers."""
        return load_backbone(
            cfg.MODEL.BACKBONE.NAME, cfg.MODEL.INIT_WEIGHTS, loader=cfg.MODEL.LOADER,
            dtype=DTYPES[cfg.MODEL.PREC], device=device,
            allow_random=not cfg.MODEL.BACKBONE.PRETRAINED, seed=cfg.SEED, plain=cfg.FED.PLAIN,
            length=int(cfg.INPUT.TEXT_LENGTH),
        )


class GivenInputs(Inputs):
    """Data that a Python program gave, and towers as usual."""

    def __init__(self, given: MemorySet) -> None:
        self.given = given

    def data(self, cfg: CfgNode, progress: Progress | None) -> FederatedData:
        """See ``Inputs``."""
        data = build_federation(cfg, progress, self.given.read(cfg, progress))
        names = [client.domain for client in data.clients] if self.given.named else []
        if any(name.isdigit() for name in names):  # "1" could be client 1, or the one so named
            names = []
        return replace(data, client_names=names)


class SiteInputs(Inputs):
    """The data of one site's clients, and towers as usual: nothing else is opened."""

    serves = False

    def __init__(self, file: SiteFile, folder: Path) -> None:
        self.file, self.folder = file, folder

    def data(self, cfg: CfgNode, progress: Progress | None) -> FederatedData:
        """See ``Inputs``."""
        return self.file.load(cfg, self.folder)


class ServerInputs(SiteInputs):
    """A server's: class names, a public test set and images of its own; towers as usual.

    Args:
        file: without clients.
        counts: what the sites say of their clients.
        digest: of the data of all of them, as they tell it.
        forgotten: see ``FederatedData``.
    """

    serves = True

    def __init__(
        self, file: SiteFile, folder: Path, counts: Roster, digest: str = "",
        forgotten: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(file, folder)
        self.counts, self.digest, self.forgotten = counts, digest, dict(forgotten or {})

    def data(self, cfg: CfgNode, progress: Progress | None) -> FederatedData:
        """See ``Inputs``."""
        data = replace(super().data(cfg, progress), forgotten=self.forgotten)
        return replace(data, split_digest=self.digest) if self.digest else data


@dataclass(frozen=True)
class Parting(Inputs):
    """What a run over sites without one of them is built of (``api.forgetting.parting``).

    Attributes:
        met: what the sites told in the old run; of the one that leaves zeros.
        forgotten: what is to be certified.
    """

    met: Mapping[str, Any]
    forgotten: Mapping[str, Any]


class SharedInputs(Inputs):
    """Keeps the last few data and towers of a process."""

    def __init__(self) -> None:
        self._lists: OrderedDict[str, DatasetBase] = OrderedDict()
        self._data: OrderedDict[str, FederatedData] = OrderedDict()
        self._backbones: OrderedDict[str, Backbone] = OrderedDict()

    def data(self, cfg: CfgNode, progress: Progress | None) -> FederatedData:
        """See ``Inputs``; the same object for the same ``data_key``."""
        return _recall(self._data, data_key(cfg),
                       lambda: build_federation(cfg, progress, self._known(cfg)))

    def _known(self, cfg: CfgNode) -> DatasetBase | None:
        """Return the lists of a set of the catalog, which no seed moves; None: read them anew."""
        if dataset_info(cfg.DATASET.NAME) is None or pack_of(cfg) or (
            cfg.DATASET.JOIN_TEST or cfg.DATASET.TEST_SHARE):  # drawn by DATA_SEED
            return None
        seedless = cfg.clone()
        seedless.defrost()
        seedless.DATA_SEED = 0
        return _recall(self._lists, data_key(seedless), lambda: load_for_training(cfg))

    def backbone(self, cfg: CfgNode, device: torch.device) -> Backbone:
        """See ``Inputs``; the same object for the same ``backbone_key``.

        Raises:
            RuntimeError: a run before this one has changed its weights; it is forgotten.
        """
        key, make = backbone_key(cfg, device), super().backbone
        before = self._backbones.get(key)
        if before is not None and before.verify_frozen() != before.digest:
            del self._backbones[key]
            raise RuntimeError(
                f"a previous run changed the frozen weights of backbone '{before.name}'; this "
                "cell was not run, --retry-failed runs it with fresh weights"
            )
        return _recall(self._backbones, key, lambda: make(cfg, device))


def data_key(cfg: CfgNode) -> str:
    """Return a text that is the same for configs with the same clients' images."""
    keys = {k: v for k, v in flat(cfg).items() if not k.startswith(NOT_DATA)}
    # Of several packs of a set the backbone chooses one.
    return json.dumps([identity_plain(keys), str(pack_of(cfg) or "")], sort_keys=True)


def backbone_key(cfg: CfgNode, device: torch.device) -> str:
    """Return a text that is the same for configs with the same towers."""
    pretrained = bool(cfg.MODEL.BACKBONE.PRETRAINED)
    return json.dumps([
        cfg.MODEL.BACKBONE.NAME, cfg.MODEL.INIT_WEIGHTS, cfg.MODEL.LOADER, cfg.MODEL.PREC,
        str(device), pretrained, None if pretrained else int(cfg.SEED), bool(cfg.FED.PLAIN),
        int(cfg.INPUT.TEXT_LENGTH),
    ])


def _recall(store: OrderedDict[str, T], key: str, make: Callable[[], T]) -> T:
    if key not in store:
        store[key] = make()
    store.move_to_end(key)
    while len(store) > KEEP:
        store.popitem(last=False)
    return store[key]
