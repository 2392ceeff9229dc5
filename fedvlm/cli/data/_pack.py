"""``fedvlm features --pack`` and ``--show``: a set's features in one file; what a pack holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fedvlm.cli.data._encode import WholeSet, whole_set
from fedvlm.cli.data._stores import transform_words
from fedvlm.config.build import DEFAULT, flat
from fedvlm.console.screen import complain, say
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.version import __version__
from fedvlm.data.catalog import dataset_info
from fedvlm.data.datum import PARTS, refuse_targets
from fedvlm.data.get.offers import offer_of
from fedvlm.data.locate import PACK_SUFFIX
from fedvlm.data.packs.lists import hash_groups, hash_images, write_pack_file
from fedvlm.data.packs.pack import PACK_SETTINGS, About, Setting, open_pack
from fedvlm.data.packs.place import about_pack
from fedvlm.data.targets import split_digest
from fedvlm.job.resolve import Job
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.encode import batch_size

_WHOSE = " --shots -1 FED.INDEX_FILE partition.json"
_OF_RUN = "partition.json is that of a run on the images: no pack says whose images are whose"
_ASK = "unknown to fedvlm: ask the authors"


def write_pack(job: Job, place: Path, stem: str = "", verify: bool = False) -> Path:
    """Encode a set and write its pack; say so.

    Args:
        job: a run on the set.
        place: the file; a folder gets ``<stem>.pack.safetensors``.
        stem: the word that named the set; by default the set's name.
        verify: as of ``whole_set``.

    Raises:
        ConfigError: another file is there.
        DataError: missing or broken data; the file cannot be written.
    """
    node = job.cfg.DATASET
    refuse_targets("a feature pack", sets=node.LABELS, captions=node.CAPTIONS)
    path = pack_path(place, stem or re.sub(r"[^\w-]+", "_", job.cfg.DATASET.NAME))
    images, spent = whole_set(job.cfg, verify), Throughput()
    hashes = [images.records.content_key(datum) for datum in images.data.all()]
    about = about_of(job, images, hashes)
    if path.exists():
        if about_pack(path) != about:
            raise ConfigError(f"{path} is another pack and is not overwritten: choose another "
                              "file, or remove it first")
        images.say(spent, f"there already: {path}, {open_pack(path).path.stat().st_size:,} bytes")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_pack_file(path, about, images.data.parts, hashes, images.faults) as out:
        for rows in images.encode(spent):
            out.add(rows.numpy())
    pack = open_pack(path)
    named = about.settings.get("FED.PARTITION") == "natural"
    images.say(spent, f"wrote {path}, {path.stat().st_size:,} bytes, sha256 {pack.digest}",
               f"train on it: fedvlm run --root {path} --backbone {about.backbone} --trainer FedTV"
               f"{_WHOSE if named else ''}", *([_OF_RUN] if named else []))
    return path


def pack_path(place: Path, stem: str) -> Path:
    """Return the file: ``place``, or below it where that is a folder.

    Raises:
        ConfigError: a name that no run would take for a pack.
    """
    path = user_path(place)
    if path.is_dir():
        path = path / f"{stem}{PACK_SUFFIX}"
    if not path.name.endswith(PACK_SUFFIX):
        near = path.name.removesuffix(".safetensors").removesuffix(".pack")
        raise ConfigError(f"--pack {place}: the name of a pack must end in "
                          f"{PACK_SUFFIX}; use {path.with_name(near + PACK_SUFFIX)}, or an "
                          "existing folder")
    if path.is_dir():
        raise ConfigError(f"--pack {path} is a folder; give a file")
    return path


def about_of(job: Job, images: WholeSet, hashes: list[str]) -> About:
    """Return what the pack of a set is to say of itself."""
    cfg, data, backbone, loader = images.cfg, images.data, images.backbone, images.loader
    sizes = [len(data.parts[part]) for part in PARTS]
    views = [loader.transform_key(v) for v in images.views if v is not None]
    info = dataset_info(data.name)
    data_terms = "built in: no terms" if info and info.builtin else (
        f"{(offer := offer_of(info.name, info.source)).terms}; see {offer.page}" if info else _ASK
    )
    return About(
        name=data.name, settings=_settings(job), classnames=data.classnames,
        domains=data.domain_names, sizes=sizes,
        unreadable=[n - images.kept[part] for n, part in zip(sizes, PARTS, strict=True)],
        notes=[_one_line(note) for note in data.notes],
        cut_seed=int(cfg.DATA_SEED) if float(cfg.DATASET.TEST_SHARE) else -1,
        split=split_digest(data), images=hash_images(hashes),
        backbone=backbone.name, weights=_bare(backbone.weights), digest=backbone.digest,
        width=backbone.embed_dim, transform=loader.transform_key(None),
        numerics=str(backbone.numerics), batch=batch_size(backbone),
        dtype=str(backbone.feature_dtype).removeprefix("torch."),
        views=views, view_seed=int(cfg.DATA_SEED) if views else -1,
        data_terms=_one_line(data_terms),
        weight_terms=_ASK if backbone.name != "tiny" else "embedded in fedvlm, under its licence",
        version=__version__, groups=hash_groups(data.all()),
    )


def _settings(job: Job) -> dict[str, Setting]:
    """Return the keys that were set for the set: its YAML, or its folder."""
    values = flat(job.cfg)
    said = {}
    for key in PACK_SETTINGS:
        origin = job.origins.get(key, DEFAULT)
        of_set = key.startswith("DATASET.") or origin == job.origins["DATASET.NAME"]
        if origin != DEFAULT and of_set:
            value = values[key]
            said[key] = list(value) if isinstance(value, tuple | list) else value
    return said


def _bare(weights: str) -> str:
    """Return weights without the folders of this machine."""
    head, colon, rest = weights.rpartition(":")
    return f"{head}{colon}{Path(rest).name}" if "/" in rest or "\\" in rest else weights


def _one_line(text: str) -> str:
    return " ".join(text.split())


def show_pack(path: Path) -> None:
    """Print a pack's description, having hashed it.

    Raises:
        DataError: it is none, or damaged.
    """
    if path.is_dir():
        raise DataError(f"--show {path} is a folder; give a pack file, *{PACK_SUFFIX}")
    pack = open_pack(path)
    about = pack.about
    rows: Mapping[str, str] = {
        "pack": f"{path}, {path.stat().st_size:,} bytes",
        "sha256": f"{pack.digest} (of the content)",
        "set": f"{about.name}, {len(about.classnames)} classes "
               f"({', '.join(about.classnames[:3])}{', ...' if len(about.classnames) > 3 else ''})",
        "domains": ", ".join(about.domains),
        "groups": f"{len({*pack.groups} - {None}):,} (numbers; no names)" if about.groups else "",
        "images": f"{'/'.join(f'{n:,}' for n in about.sizes)} in {'/'.join(PARTS)}"
                  + (f", of which {sum(about.unreadable)} do not decode" if any(about.unreadable)
                     else ""),
        "split": about.split,
        "backbone": f"{about.backbone} ({about.weights or 'its own weights'}), "
                    f"{about.width} numbers per image",
        "weights' digest": about.digest,
        "transform": f"{transform_words(about.transform)} ({about.transform})",
        "views": f"0 to {len(about.views) - 1} of data seed {about.view_seed}" if about.views
                 else "the test view only",
        "test images": f"drawn by data seed {about.cut_seed}" if about.cut_seed >= 0 else "",
        "computed": f"{about.numerics}, batch {about.batch}, by fedvlm {about.version}",
        "terms of the images": about.data_terms,
        "terms of the weights": about.weight_terms,
        "settings": ", ".join(f"{key} {value}" for key, value in about.settings.items()),
    }  # fmt: skip
    width = max(map(len, rows))
    say(*(f"{key.ljust(width)}  {value}" for key, value in rows.items() if value))
    complain(*about.notes, prefix="note")
