"""List, add, download or prepare data sets (a training run does none of these).

add: read a folder of images (or a table of them) and write its dataset YAML.
list: the known sets, their sizes, terms, and whether they can be downloaded.
download: fetch a set, verify and unpack it.
prepare: make a split where the published one is absent; it goes into the cache, or beside the
images with --into-dataset.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.cli.data._add import add_folder
from fedvlm.cli.verbs import verbs
from fedvlm.console.parser import Parser
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import progress, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import user_path
from fedvlm.data.catalog import CATALOG, DatasetInfo, catalog_names, dataset_info
from fedvlm.data.datum import PARTS
from fedvlm.data.get.download import fetch_piece
from fedvlm.data.get.fetch import check_url
from fedvlm.data.get.offers import Offer, Piece, offer_of
from fedvlm.data.get.prepare import PreparedSplit, prepare_split
from fedvlm.data.layouts import cached_split_path, prepared_name
from fedvlm.data.locate import find_root, read_json_file

EXAMPLES = (
    "fedvlm data add photos/",
    "fedvlm data add birds.csv --name Birds --to my_sets/birds.yaml",
    "fedvlm data add scans.csv --clients-by hospital --groups patient",
    "fedvlm data list",
    "fedvlm data download eurosat --root DATA/",
    "fedvlm data prepare eurosat --root DATA/",
    "fedvlm data prepare MySet --root DATA/ --dir my_set --into-dataset  # own images",
)
ALSO = ("dataset", "datasets", "add", "download", "prepare", "fetch", "get")
READS = {  # command -> the flags that it reads
    "list": (),
    "add": ("name", "to", "leave_out", "classnames", "cache_dir", "clients_by", "groups",
            "columns", "labels", "captions"),
    "download": ("root", "url_base"),
    "prepare": ("root", "dir", "image_dir", "seed", "into_dataset", "cache_dir"),
}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("command", nargs="?", default="", choices=list(READS), help="what to do")
    add("dataset", nargs="?", default="", metavar="NAME",
        help="a data set (fedvlm data list shows all); add: a folder of images or a table")
    add("--root", default="", metavar="DATA/", help="folder that contains the data sets")
    add("--url-base", default="", metavar="URL", help="download: a mirror, http:// or https://")
    add("--seed", type=int, default=0, metavar="N", help="prepare: random seed of the split (0)")
    add("--into-dataset", action="store_true", help="prepare: write next to the images")
    add("--dir", default="", metavar="FOLDER", help="prepare: folder of your own set below --root")
    add("--image-dir", default="", metavar="FOLDER", help="prepare: where its images are")
    add("--cache-dir", default="", metavar="FOLDER", help="prepare, add: cache folder")
    add("--name", default="", metavar="NAME", help="add: name of the data set (default: the "
                                                   "folder's name)")
    add("--to", default="", metavar="FILE.yaml", help="add: file to write (NAME.yaml)")
    add("--leave-out", default="", metavar="A,B", help="add: folders to ignore")
    add("--clients-by", default="", metavar="COLUMN", help="add: column of a table that says whose "
        "image it is, or a pattern of folders, {client}/{class}/*")
    add("--groups", default="", metavar="COLUMN", help="add: column of what images belong to "
        "(patient), never on two sides of a split")
    add("--columns", default="", metavar="A=B", help="add: what columns of a table mean: "
        "classname=dx,path=img_id")
    add("--labels", default="", metavar="COLUMN", help="add: several labels per image: column "
        "whose cells list them (a|b), or columns of 0 and 1")
    add("--captions", default="", metavar="COLUMN", help="add: column of captions, one a line or "
        "a JSON list")
    add("--classnames", default="", metavar="A,B", help="add: class names, in the order of the "
        "folders, or folder=name,..., or a file")
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    """Return what the command does not read, or lacks."""
    if not args.command:
        return []
    idle = [args.spelling[dest] for dest in args.spelling if dest not in READS[args.command]]
    mistakes = [f"{args.command} does not read {flag}" for flag in idle]
    if args.command == "list" and args.dataset:
        mistakes.append(f"unknown word '{args.dataset}'; fedvlm data list shows all sets")
    if args.command == "add" and not args.dataset:
        mistakes.append("add needs a folder of images: fedvlm data add FOLDER")
    elif args.command != "list" and not args.dataset:
        mistakes.append(f"{args.command} needs a data set: fedvlm data {args.command} NAME "
                        "--root DATA/")
    return mistakes


def main(args: Namespace) -> int:
    """Do ``data add``, ``data prepare``, ``data download`` or ``data list``; return the exit code.

    Raises:
        ConfigError: unknown set.
        DataError: something is missing, broken, or cannot be had this way.
    """
    if not args.command:
        say(*verbs()["data"].parser().format_help().splitlines())
        return 0
    commands = {"list": _list, "add": add_folder, "download": _download, "prepare": _prepare}
    return commands[args.command](args)


def _prepare(args: Namespace) -> int:
    split = prepare_split(args.dataset, args.root, folder=args.dir, image_dir=args.image_dir,
                    seed=args.seed)
    if split.info is None and not args.into_dataset:
        raise ConfigError(f"data prepare {split.name}: the split of your own set must be stored "
                          "where a run can find it: add --into-dataset, which writes "
                          f"{split.folder}/"
                          f"{prepared_name(split.name)}")
    place = split.folder / prepared_name(split.name)
    if not args.into_dataset:
        cfg = CfgNode({"CACHE_DIR": args.cache_dir}) if args.cache_dir else None
        place = cached_split_path(split.name, split.folder, cfg)
    there = _write(split, place)
    counts = "/".join(str(len(split.data.parts[part])) for part in PARTS)
    say(f"{split.name}: {split.data.num_classes} classes, {counts} images in {'/'.join(PARTS)}, "
        f"cut by seed {args.seed} from {split.how}",
        f"{'there already' if there else 'wrote'} {place}", *_next(split, args))
    return 0


def _write(split: PreparedSplit, place: Path) -> bool:
    """Write the split unless the same one is there; return whether it was."""
    content = split.content()
    if place.exists():
        if read_json_file(place) != content:
            raise DataError(f"{place} holds another split (another seed, or the images have "
                            "changed) and is not overwritten: remove it first; runs that used it "
                            "cannot be resumed then")
        return True
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {place.parent}: {error.strerror}; choose "
                        "another with --cache-dir, or make this one writable") from error
    files.write_text(place, json.dumps(content, ensure_ascii=False) + "\n")
    return False


def _next(split: PreparedSplit, args: Namespace) -> list[str]:
    """Return what a run does with the split."""
    info, name = split.info, prepared_name(split.name)
    if info is None:
        more = f" DATASET.IMAGE_DIR {args.image_dir}" if args.image_dir else ""
        return [f"use it with DATASET.NAME {split.name} DATASET.DIR {args.dir}{more} "
                f"DATASET.FORMAT coop DATASET.SPLIT_FILE {name}"]
    advice = f"a run uses it only with DATASET.FORMAT coop DATASET.SPLIT_FILE {name}"
    if not args.into_dataset:
        advice = "to be able to choose this one, add --into-dataset"
    if info.split_file and (split.folder / info.split_file).is_file():
        return [f"note: the published split {info.split_file} exists and takes precedence; "
                f"{advice}"]
    if not info.split_file:
        return [f"note: the layout of {info.name} defines train and test and takes precedence; "
                f"{advice}"]
    runs = f"runs with CACHE_DIR {args.cache_dir}" if args.cache_dir else "runs"
    if args.into_dataset:
        runs = "runs"
    return [f"{runs} find it automatically; their results say that it is not the published split"]


def _download(args: Namespace) -> int:
    info = dataset_info(args.dataset)
    if info is None:
        raise ConfigError(f"data download: unknown set '{args.dataset}'"
                          f"{did_you_mean(args.dataset, catalog_names())} (fedvlm data list "
                          "shows all)")
    if info.builtin:
        raise ConfigError(f"{info.name} is built in: nothing to download")
    if args.url_base:
        check_url(args.url_base)
    root, offer = _root_of(args.root), offer_of(info.name, info.source)
    if offer.pieces is None:
        raise DataError(f"{info.name} cannot be downloaded automatically: get it from "
                        f"{offer.page} ({offer.rest}; terms: {offer.terms})")
    say(f"{info.name}: terms: {offer.terms}; see {offer.page}")
    for piece in offer.pieces():
        _fetch(piece, root, args.url_base)
    say(*_left(info, offer, root))
    return 0


def _root_of(word: str) -> Path:
    """Return ``find_root``; where nothing is there yet, the error says how to begin."""
    try:
        return find_root(word)
    except DataError as error:
        path = user_path(word)
        if not word.strip() or path.exists():
            raise
        raise DataError(f"{error}; to start with an empty one: mkdir -p {path}") from None


def _fetch(piece: Piece, root: Path, url_base: str) -> None:
    try:
        new = fetch_piece(piece, root, url_base, progress)
    finally:
        progress.clear()
    for _, place in piece.puts:
        say(f"{'wrote' if root / place in new else 'there already:'} {root / place}")


def _left(info: DatasetInfo, offer: Offer, root: Path) -> list[str]:
    """Return what is still missing after a download."""
    lines = [f"note: download by hand {offer.rest}"] if offer.rest else []
    home = root / info.folder
    if info.split_file and not (home / info.split_file).is_file():
        lines.append(f"note: the download does not include the published split {info.split_file}: "
                     f"get it from {info.source} into {home}, or make one with `fedvlm data "
                     "prepare "
                     f"{info.name} --root {root}`")
    return lines


def _list(_args: Namespace) -> int:
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
