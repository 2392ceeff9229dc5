"""``fedvlm features``: encode whole data sets ahead of the runs; list and delete feature stores."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.cli_build import Maker, check_model, pick_device, views_of
from fedvlm.cli_config import resolve
from fedvlm.cli_features_list import clean_stores, show_stores
from fedvlm.cli_flags import parse
from fedvlm.cli_sources import cache_dir, features_of
from fedvlm.console import complain, progress, say
from fedvlm.data.broken import broken_images
from fedvlm.data.cachedir import records_dir
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.federated import common_folder
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import ImageLoader, check_decodes
from fedvlm.errors import ConfigError, did_you_mean, fold
from fedvlm.models.store import default_dir
from fedvlm.models.throughput import Throughput

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
