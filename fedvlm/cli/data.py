"""``data``: prepare a split, download a set, list what is known. A run does none of these."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.cli.parser import VerbParser
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import progress, say
from fedvlm.core import files as atomic
from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.data.catalog import CATALOG, DatasetInfo, dataset_info
from fedvlm.data.datum import PARTS
from fedvlm.data.formats.coop_split import read_json
from fedvlm.data.get.download import Offer, Piece, fetch_piece, offer_of
from fedvlm.data.get.fetch import check_url
from fedvlm.data.get.prepare import PreparedSplit, prepare
from fedvlm.data.layouts import prepared_in_cache, prepared_name
from fedvlm.data.locate import find_root

USAGE = (
    "fedvlm data list: the known sets, their sizes, terms, and whether they can be downloaded",
    "fedvlm data download NAME --root DATA/ [--url-base URL]: fetch a set, verify and unpack it",
    "fedvlm data prepare NAME --root DATA/ [--seed 0] [--into-dataset] [--dir FOLDER] "
    "[--image-dir FOLDER] [--cache-dir CACHE_DIR]: make a split where the published one is absent; "
    "it goes into the cache, or beside the images with --into-dataset",
)  # fmt: skip
FLAGS = {
    "list": (),
    "download": ("--root", "--url-base"),
    "prepare": ("--root", "--dir", "--image-dir", "--seed", "--into-dataset",
                "--cache-dir"),
}


def main(argv: Sequence[str]) -> int:
    """Do ``data prepare``, ``data download`` or ``data list``; return the exit code.

    Raises:
        ConfigError: unknown command, set or flag.
        DataError: something is missing, broken, or cannot be had this way.
    """
    words = list(argv)
    if not words or words[0] in ("-h", "--help", "help") or "--help" in words or "-h" in words:
        say(*USAGE)
        return 0
    verb, rest = words[0], words[1:]
    if verb not in FLAGS:
        raise ConfigError(f"data: unknown command '{verb}'{did_you_mean(verb, FLAGS)} "
                          f"(known: {', '.join(FLAGS)})")
    return _WORK[verb](_parse(verb, rest))


def _parse(verb: str, words: Sequence[str]) -> argparse.Namespace:
    made = VerbParser(f"data {verb}", "", "fedvlm data --help says how")
    if verb != "list":
        made.add_argument("name")
    for flag in FLAGS[verb]:
        if flag == "--into-dataset":
            made.add_argument(flag, action="store_true")
        else:
            number = flag == "--seed"
            made.add_argument(flag, default=0 if number else "", type=int if number else str)
    dashed = [w.replace("_", "-") if w.startswith("--") and "=" not in w else w for w in words]
    args, rest = made.parse_known_args(dashed)
    if rest:
        flag = rest[0].partition("=")[0]
        near, known = did_you_mean(flag, FLAGS[verb]), ", ".join(FLAGS[verb]) or "none"
        raise ConfigError(f"data {verb}: unknown word '{flag}'{near} (flags: {known})")
    return args


def _prepare(args: argparse.Namespace) -> int:
    made = prepare(args.name, args.root, folder=args.dir, image_dir=args.image_dir, seed=args.seed)
    if made.info is None and not args.into_dataset:
        raise ConfigError(f"data prepare {made.name}: the split of an own set must lie where a run "
                          f"can name it: add --into-dataset, which writes {made.folder}/"
                          f"{prepared_name(made.name)}")
    place = made.folder / prepared_name(made.name)
    if not args.into_dataset:
        cfg = CfgNode({"CACHE_DIR": args.cache_dir}) if args.cache_dir else None
        place = prepared_in_cache(made.name, made.folder, cfg)
    known = _write(made, place)
    counts = "/".join(str(len(made.data.part(part))) for part in PARTS)
    say(f"{made.name}: {made.data.num_classes} classes, {counts} images in {'/'.join(PARTS)}, "
        f"cut by seed {args.seed} from {made.how}",
        f"{'there already' if known else 'wrote'} {place}", *_next(made, args))
    return 0


def _write(made: PreparedSplit, place: Path) -> bool:
    """Write the split unless the same one is there; return whether it was.

    Raises:
        DataError: another split is there, or the folder cannot be written.
    """
    content = made.content()
    if place.exists():
        if read_json(place) != content:
            raise DataError(f"{place} holds another split (another seed, or the images have "
                            "changed) and is not overwritten: remove it first, and know that "
                            "runs with it will not go on")
        return True
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {place.parent}: {error.strerror}; give another "
                        "with --cache-dir, or free or mend that one") from error
    atomic.write_text(place, json.dumps(content, ensure_ascii=False) + "\n")
    return False


def _next(made: PreparedSplit, args: argparse.Namespace) -> list[str]:
    """Return what a run does with the split."""
    info, name = made.info, prepared_name(made.name)
    if info is None:
        more = f" DATASET.IMAGE_DIR {args.image_dir}" if args.image_dir else ""
        return [f"use it with DATASET.NAME {made.name} DATASET.DIR {args.dir}{more} "
                f"DATASET.FORMAT coop DATASET.SPLIT_FILE {name}"]
    told = f"a run takes it only with DATASET.FORMAT coop DATASET.SPLIT_FILE {name}"
    if not args.into_dataset:
        told = "add --into-dataset to be able to choose this one"
    if info.split_file and (made.folder / info.split_file).is_file():
        return [f"note: the published split {info.split_file} is there and goes first; {told}"]
    if not info.split_file:
        return [f"note: the layout of {info.name} says train and test itself and goes first; "
                f"{told}"]
    runs = f"runs with CACHE_DIR {args.cache_dir}" if args.cache_dir else "runs"
    if args.into_dataset:
        runs = "runs"
    return [f"{runs} find it by themselves; their results say that it is not the published split"]


def _download(args: argparse.Namespace) -> int:
    info = dataset_info(args.name)
    if info is None:
        names = [*CATALOG, *(a for row in CATALOG.values() for a in row.aliases)]
        raise ConfigError(f"data download: unknown set '{args.name}'"
                          f"{did_you_mean(args.name, names)} (fedvlm data list names all)")
    if info.builtin:
        raise ConfigError(f"{info.name} is built in: runs render it, there is nothing to download")
    if args.url_base:
        check_url(args.url_base)
    root, offer = _root_of(args.root), offer_of(info.name, info.source)
    if offer.pieces is None:
        raise DataError(f"{info.name} cannot be downloaded by a program: fetch it from "
                        f"{offer.page} ({offer.rest}; terms: {offer.terms})")
    say(f"{info.name}: terms: {offer.terms}; see {offer.page}")
    for piece in offer.pieces():
        _fetch(piece, root, args.url_base)
    say(*_left(info, offer, root))
    return 0


def _root_of(given: str) -> Path:
    """Return ``find_root``; where nothing is there yet, the error says how to begin."""
    try:
        return find_root(given)
    except DataError as error:
        path = Path(given).expanduser()
        if not given.strip() or path.exists():
            raise
        raise DataError(f"{error}; to begin with an empty one: mkdir -p {path}") from None


def _fetch(piece: Piece, root: Path, url_base: str) -> None:
    try:
        new = fetch_piece(piece, root, url_base, progress)
    finally:
        progress.clear()
    for _, place in piece.puts:
        say(f"{'wrote' if root / place in new else 'there already:'} {root / place}")


def _left(info: DatasetInfo, offer: Offer, root: Path) -> list[str]:
    """Return what is still missing after a download."""
    lines = [f"note: fetch by hand {offer.rest}"] if offer.rest else []
    home = root / info.folder
    if info.split_file and not (home / info.split_file).is_file():
        lines.append(f"note: the published split {info.split_file} is not part of it: get it from "
                     f"{info.source} into {home}, or make one with `fedvlm data prepare "
                     f"{info.name} --root {root}`")
    return lines


def _list(_args: argparse.Namespace) -> int:
    rows = []
    for info in CATALOG.values():
        offer = offer_of(info.name, info.source)
        sizes = (info.train, info.val, info.test)
        rows.append({
            "set": info.name, "classes": info.classes,
            "train/val/test": "/".join("?" if n is None else str(n) for n in sizes),
            "download": _way(info, offer), "terms": "" if info.builtin else offer.terms,
            "page": "" if info.builtin else offer.page,
        })  # fmt: skip
    say(*table_lines(rows))
    return 0


def _way(info: DatasetInfo, offer: Offer) -> str:
    if info.builtin:
        return "built in"
    return f"yes, {offer.size:g} GB" if offer.pieces else "by hand"


_WORK: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list, "download": _download, "prepare": _prepare,
}  # fmt: skip
