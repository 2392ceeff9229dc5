"""``fedvlm features``: encode whole data sets ahead of the runs; list and delete feature stores.

``fedvlm features --list`` and ``--clean``: what lies in the feature cache, and tidying it.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.console.rows import table_lines
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.files import records_dir
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.federated import common_folder
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import ImageLoader, broken_images, check_decodes
from fedvlm.job.build import Maker, check_model, pick_device, views_of
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.job.sources import cache_dir, features_of
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.inventory import StoreInfo, list_stores, remove_store
from fedvlm.models.features.store import default_dir

_DAY = 86_400.0


def show_stores(folder: Path, backbone: str = "") -> None:
    """Print a table of the stores in ``folder``.

    Args:
        backbone: only those of this one; '' is all.
    """
    stores = _of_backbone(list_stores(folder), backbone)
    if not stores:
        say(f"no feature store in {folder}")
        return
    say(*table_lines(_row(info) for info in stores),
        f"{len(stores)} store(s), {megabytes(stores)} MB, in {folder}")


def clean_stores(
    folder: Path, older_than: str, backbone: str, every: bool, dry_run: bool
) -> int:
    """Delete the stores that fit all conditions and that nobody has open; say which.

    Args:
        older_than: days since the last use; '' is no condition.
        backbone: only those of this one; '' is no condition.
        every: delete without any condition.
        dry_run: only say what would be deleted.

    Returns:
        0, also where there is nothing to delete.

    Raises:
        ConfigError: no condition, a contradiction, or days that are no number.
    """
    if not (older_than or backbone or every):
        raise ConfigError("features --clean wants to know which stores: --older-than DAYS, "
                          "--backbone X or --all")
    if every and (older_than or backbone):
        raise ConfigError("features --clean: --all goes with neither --older-than nor --backbone; "
                          "drop one of them")
    latest = time.time() - _days(older_than) * _DAY if older_than else math.inf
    chosen = [i for i in _of_backbone(list_stores(folder), backbone) if i.used <= latest]
    gone = [info for info in chosen if dry_run or remove_store(info)]
    busy = [info for info in chosen if info not in gone]
    say(*table_lines(_row(info) for info in gone))
    what = "would delete" if dry_run else "deleted"
    say(f"{what} {len(gone)} store(s), {megabytes(gone)} MB, in {folder}" if gone
        else f"nothing to delete in {folder}")
    complain(*(f"{info.name[:12]} is in use by a running process: kept" for info in busy),
             prefix="note")
    return 0


def megabytes(stores: list[StoreInfo]) -> str:
    """Return the size of stores together, in 10^6 bytes."""
    return f"{sum(info.size for info in stores) / 1e6:,.1f}"


def transform_words(transform: str) -> str:
    """Return what ``ImageLoader.transform_key`` says, in few words."""
    parts = transform.split(":")
    if parts[0] == "test" and len(parts) > 3:
        return f"test view, {parts[2]} px"
    if parts[0] == "crop-flip" and len(parts) > 3:
        return f"{parts[-1].replace('view', 'view ')} of data {parts[-2].replace('seed', 'seed ')}"
    return transform


def _row(info: StoreInfo) -> dict[str, object]:
    about = info.about
    return {
        "store": info.name[:12], "backbone": about.get("backbone", "-"),
        "weights": about.get("weights", "") or "-",
        "images": f"{info.rows:,}" if not info.state else info.state,
        "of": transform_words(about.get("transform", "-")),
        "numbers": " ".join([*about.get("numerics", "-").split()[:3],
                             *([f"batch {about['batch']}"] if "batch" in about else [])]),
        "MB": f"{info.size / 1e6:,.1f}",
        "last use": time.strftime("%Y-%m-%d %H:%M", time.localtime(info.used)),
    }  # fmt: skip


def _of_backbone(stores: list[StoreInfo], backbone: str) -> list[StoreInfo]:
    """Return those of one backbone.

    Raises:
        ConfigError: there are stores, but none of it.
    """
    if not backbone or not stores:
        return stores
    found = [i for i in stores if fold(i.about.get("backbone", "")) == fold(backbone)]
    if not found:
        known = sorted({i.about["backbone"] for i in stores if "backbone" in i.about})
        near = did_you_mean(backbone, known)
        raise ConfigError(f"--backbone {backbone}: no store is of it{near} "
                          f"(there are: {', '.join(known) or 'none'})")
    return found


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 <= days < math.inf:
        raise ConfigError(f"--older-than {text}: wants a number of days, such as 30 or 0.5")
    return days


USAGE = (
    "fedvlm features --root DATA/ --dataset NAME [--dataset NAME2] --backbone X [--views N] "
    "[--verify]: encode all images of the sets; --verify reads files again whose dates are old; "
    "every flag and KEY VALUE of a run is taken",
    "fedvlm features --list: the stores, their size, what they belong to, their last use",
    "fedvlm features --clean (--older-than DAYS | --backbone X | --all) [--dry-run]: delete stores "
    "that no process has open",
    "with --list and --clean, --cache-dir FOLDER is another place than $FEDVLM_CACHE",
)  # fmt: skip
VALUES = ("--dataset", "--older-than", "--cache-dir")
SWITCHES = ("--list", "--clean", "--all", "--dry-run", "--verify", "--help")
_PART = 1 << 15  # images whose features are in memory at once; a multiple of every batch


def main(argv: Sequence[str]) -> int:
    """Encode, list or delete; return the exit code.

    Raises:
        ConfigError: unknown flags or combinations.
        DataError: missing or broken data, or a cache that cannot be written.
    """
    asked, rest = split_words(argv)
    if asked.help:
        say(*USAGE)
        return 0
    if asked.list or asked.clean:
        return _stores(asked, rest)
    for flag, given in (("--older-than", asked.older_than), ("--all", asked.all),
                        ("--dry-run", asked.dry_run)):
        if given:
            raise ConfigError(f"features {flag} is for --clean (fedvlm features --help says how)")
    if asked.cache_dir:
        rest += ["CACHE_DIR", asked.cache_dir]
    cfgs = [config_of(["--dataset", name, *rest]) for name in asked.dataset] or [config_of(rest)]
    for cfg in cfgs:
        encode_set(cfg, asked.verify)
    return 0


def split_words(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Return the verb's own flags and, untouched, the words that are a run's.

    Raises:
        ConfigError: a flag without its value.
    """
    asked, rest, words = Namespace(dataset=[], older_than="", cache_dir=""), [], list(argv)
    for name in SWITCHES:
        setattr(asked, name[2:].replace("-", "_"), False)
    own = {fold(name): name for name in (*VALUES, *SWITCHES)}
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        name = own.get(fold(flag), "") if flag.startswith("--") else ""
        dest = name[2:].replace("-", "_")
        if word in ("-h", "help"):
            asked.help = True
        elif not name:
            rest.append(word)
        elif name in SWITCHES:
            setattr(asked, dest, True)
        elif not equals and (not words or words[0].startswith("--")):
            raise ConfigError(f"features {name} wants a value (fedvlm features --help says how)")
        else:
            value = value if equals else words.pop(0)
            setattr(asked, dest, [*asked.dataset, value] if name == "--dataset" else value)
    return asked, rest


def _stores(asked: Namespace, rest: Sequence[str]) -> int:
    """List or delete; ``rest`` may hold ``--backbone X`` alone."""
    verb = "--clean" if asked.clean else "--list"
    words = [word for part in rest for word in part.split("=", 1)]
    backbone = words[1] if len(words) == 2 and fold(words[0]) == "backbone" else ""
    known = (*VALUES[1:], *SWITCHES, "--backbone")
    stray = "--dataset" if asked.dataset else "--verify" if asked.verify else ""
    if (words and not backbone) or stray or (asked.list and asked.clean):
        word = words[0] if words and not backbone else stray or "--list"
        near = did_you_mean(word, known) if word not in known else ""
        raise ConfigError(f"features {verb}: '{word}' does not go with it{near} "
                          "(fedvlm features --help says how)")
    folder = Path(asked.cache_dir).expanduser() if asked.cache_dir else default_dir()
    if asked.list:
        show_stores(folder, backbone)
        return 0
    return clean_stores(folder, asked.older_than, backbone, asked.all, asked.dry_run)


def config_of(words: Sequence[str]) -> CfgNode:
    """Return the config that a run with these words would have.

    Raises:
        ConfigError: wrong flags; several seeds or the plain path, which have no store of their own.
    """
    args = parse(words)
    if args.flags.get("FED.PLAIN", "").lower() == "true":
        raise ConfigError("features --plain: the plain path reads no store; drop --plain")
    if args.seeds:
        raise ConfigError("features --seeds: stores do not depend on the model seed; give "
                          "--data-seed N for the views of that seed, or drop --seeds")
    progress("loading PyTorch")
    jobs = resolve(args)
    complain(*jobs.notes, prefix="note")
    return jobs.jobs[0].cfg


def encode_set(cfg: CfgNode, verify: bool = False) -> Throughput:
    """Encode all images of a set, and of every augmented view the training images; report.

    Args:
        cfg: of a run.
        verify: read every image file again first, whatever its dates say.
    """
    device = pick_device(cfg.DEVICE)
    check_model(cfg, device)
    data = load_dataset(cfg)
    folder = common_folder(data.all())
    records = ImageRecords.of_folder(folder, records_dir(cfg)) if folder else ImageRecords(None)
    records.progress = progress
    notes = _verified(records, data.all()) if verify else []
    lists = {part: data.part(part) for part in PARTS}
    bad, found = broken_images(data.name, lists, records, cfg.DATASET.ON_CORRUPT)
    out = {part: set(places) for part, places in bad.items()}
    kept = {p: [d for i, d in enumerate(lists[p]) if i not in out[p]] for p in PARTS}
    backbone = Maker().backbone(cfg, device)
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
        f"store: {cache_dir(cfg) or default_dir()}")
    complain(*data.notes, *found, *notes, prefix="note")
    return spent


def _verified(records: ImageRecords, images: Sequence[Datum]) -> list[str]:
    """Read all files again; return a note on those that changed behind their dates."""
    changed = records.verify(images, check_decodes)
    files = len({d.impath for d in images if d.array is None})
    first = f" (first: {changed[0]})" if changed else ""
    return [f"verified {files:,} image files: {len(changed)} changed without another date{first}"]
