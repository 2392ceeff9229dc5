"""A whole data set through the image tower, ahead of the runs: into the store, or into a pack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from yacs.config import CfgNode

from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import DataError
from fedvlm.core.pixels import check_decodes
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.image_records import ImageRecords, records_of
from fedvlm.data.images import ImageLoader, say_broken
from fedvlm.job.build import check_model, pick_device, views_of
from fedvlm.job.images.packed import packs_of
from fedvlm.job.inputs import Inputs
from fedvlm.job.sources import features_of, store_dir
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.store import default_dir

_PART = 1 << 15  # images whose features are in memory at once; a multiple of every batch


@dataclass(frozen=True)
class WholeSet:
    """A set and the towers, before anything is encoded.

    Attributes:
        data: its lists.
        records: of its files.
        faults: reason by position in ``data.all()`` of the images that do not decode.
        loader: of the others, in the lists' order.
        kept: how many of those each part has.
        notes: what is to be said of the set.
    """

    cfg: CfgNode
    data: DatasetBase
    records: ImageRecords
    faults: dict[int, str]
    loader: ImageLoader
    backbone: Backbone
    kept: dict[str, int]
    notes: list[str]

    @property
    def views(self) -> list[int | None]:
        """The test view, and the training views where they are augmented."""
        return [None, *(range(self.loader.views) if self.loader.views > 1 else ())]

    def encode(self, spent: Throughput) -> Iterator[Tensor]:
        """Yield the features of all images, then of the training images view by view, in parts."""
        for view in self.views:
            count = len(self.loader) if view is None else self.kept["train"]
            for at in range(0, count, _PART):
                part = range(at, min(at + _PART, count))
                yield features_of(
                    self.cfg, self.backbone, self.loader, progress, spent, self.notes, part, view
                )

    def say(self, spent: Throughput, *more: str) -> None:
        """Say what was encoded; ``more`` are lines after it."""
        sizes = "/".join(f"{self.kept[part]:,}" for part in PARTS)
        views = self.loader.views
        also = f", {views} views of the training images" if views > 1 else ""
        say(f"{self.data.name}: {sizes} images in {'/'.join(PARTS)}{also}, backbone "
            f"{self.cfg.MODEL.BACKBONE.NAME} on {self.backbone.device.type}", spent.sentence(),
            *more)
        complain(*self.notes, prefix="note")


def whole_set(cfg: CfgNode, verify: bool = False) -> WholeSet:
    """Read a set, check its images, load the towers.

    Args:
        cfg: of a run.
        verify: read every image file again, whatever its dates say.

    Raises:
        ConfigError: whatever of the config cannot work.
        DataError: missing or broken data, or a pack, which has its features already.
    """
    device = pick_device(cfg.DEVICE)
    check_model(cfg, device)
    data = load_dataset(cfg)
    if packs_of(data.all()):
        raise DataError(f"{cfg.DATASET.ROOT} is a feature pack: it has the features of "
                        f"{data.name} and no images to encode; fedvlm features --show describes it")
    if data.unlabelled:
        data.notes.append(f"{len(data.unlabelled):,} images without a label were left out here: "
                          "only a run on the images themselves trains on them")
    records = records_of(data.all(), cfg)
    records.progress = progress
    notes = [*data.notes, *(_verified(records, data.all()) if verify else ())]
    faults, kept, good, lines = dict[int, str](), dict[str, int](), list[Datum](), list[str]()
    at = 0
    for part in PARTS:
        images = data.parts[part]
        broken = records.find_broken(images, check_decodes)
        lines += [f"{images[i].key} ({why})" for i, why in broken.items()]
        faults |= {at + i: why for i, why in broken.items()}
        good += [datum for i, datum in enumerate(images) if i not in broken]
        kept[part] = len(images) - len(broken)
        at += len(images)
    notes += say_broken(data.name, lines, cfg.DATASET.ON_CORRUPT)
    backbone = Inputs().backbone(cfg, device)
    loader = ImageLoader(
        good, backbone.transform_spec, views_of(cfg), int(cfg.DATA_SEED),
        crop_scale=tuple(cfg.INPUT.RRCROP_SCALE), records=records,
    )
    return WholeSet(cfg, data, records, faults, loader, backbone, kept, notes)


def encode_set(cfg: CfgNode, verify: bool = False) -> None:
    """Encode all images of a set, and of every augmented view the training images; report."""
    images, spent = whole_set(cfg, verify), Throughput()
    for _ in images.encode(spent):
        pass
    images.say(spent, f"store: {store_dir(cfg) or default_dir()}")


def _verified(records: ImageRecords, images: Sequence[Datum]) -> list[str]:
    """Read all files again; return a note on those that changed behind their dates."""
    changed = records.verify(images, check_decodes)
    files = len({d.impath for d in images if d.array is None})
    first = f" (first: {changed[0]})" if changed else ""
    return [f"verified {files:,} image files: {len(changed)} changed without another date{first}"]
