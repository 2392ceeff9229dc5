"""A whole data set through the image tower, into the feature store, ahead of the runs."""

from __future__ import annotations

from collections.abc import Sequence

from yacs.config import CfgNode

from fedvlm.console.screen import complain, progress, say
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.image_records import ImageRecords, records_of
from fedvlm.data.images import ImageLoader, broken_images, check_decodes
from fedvlm.job.build import check_model, pick_device, views_of
from fedvlm.job.inputs import Inputs
from fedvlm.job.sources import features_of, store_dir
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.store import default_dir

_PART = 1 << 15  # images whose features are in memory at once; a multiple of every batch


def encode_set(cfg: CfgNode, verify: bool = False) -> Throughput:
    """Encode all images of a set, and of every augmented view the training images; report.

    Args:
        cfg: of a run.
        verify: read every image file again first, whatever its dates say.
    """
    device = pick_device(cfg.DEVICE)
    check_model(cfg, device)
    data = load_dataset(cfg)
    records = records_of(data.all(), cfg)
    records.progress = progress
    notes = _verified(records, data.all()) if verify else []
    lists = data.parts
    bad, found = broken_images(data.name, lists, records, cfg.DATASET.ON_CORRUPT)
    out = {part: set(places) for part, places in bad.items()}
    kept = {p: [d for i, d in enumerate(lists[p]) if i not in out[p]] for p in PARTS}
    backbone = Inputs().backbone(cfg, device)
    loader = ImageLoader(
        [d for part in PARTS for d in kept[part]], backbone.transform_spec, views_of(cfg),
        int(cfg.DATA_SEED), crop_scale=tuple(cfg.INPUT.RRCROP_SCALE), records=records,
    )
    views: list[int | None] = [None, *(range(loader.views) if loader.views > 1 else ())]
    spent = Throughput()
    for view in views:
        count = len(loader) if view is None else len(kept["train"])
        for at in range(0, count, _PART):
            part = range(at, min(at + _PART, count))
            features_of(cfg, backbone, loader, part, view, progress, spent, notes)
    sizes = "/".join(f"{len(kept[part]):,}" for part in PARTS)
    more = f", {loader.views} views of the training images" if loader.views > 1 else ""
    say(f"{data.name}: {sizes} images in {'/'.join(PARTS)}{more}, backbone "
        f"{cfg.MODEL.BACKBONE.NAME} on {device.type}", spent.sentence(),
        f"store: {store_dir(cfg) or default_dir()}")
    complain(*data.notes, *found, *notes, prefix="note")
    return spent


def _verified(records: ImageRecords, images: Sequence[Datum]) -> list[str]:
    """Read all files again; return a note on those that changed behind their dates."""
    changed = records.verify(images, check_decodes)
    files = len({d.impath for d in images if d.array is None})
    first = f" (first: {changed[0]})" if changed else ""
    return [f"verified {files:,} image files: {len(changed)} changed without another date{first}"]
