"""Encode images before training, into a cache or a pack; list or clean caches.

Encoding takes every flag and KEY VALUE of a run and uses those that features depend on. --pack
writes features, labels, names and splits into one file without images, which a run reads with
--root; --show describes such a file. --list shows the stores with size, backbone, data set and last
use; --clean deletes stores that no process has open.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fedvlm.console.parser import Parser, amount
from fedvlm.console.screen import complain, progress
from fedvlm.core.files import user_path
from fedvlm.job.flags import add_flags, add_opts

EXAMPLES = (
    "fedvlm features --root DATA/ --dataset eurosat --dataset pets --backbone ViT-B/16",
    "fedvlm features --root DATA/ --dataset dtd --backbone ViT-B/16 --pack dtd.pack.safetensors",
    "fedvlm features --images photos/ --backbone ViT-B/16 --pack packs/",
    "fedvlm features --show dtd.pack.safetensors",
    "fedvlm features --list",
    "fedvlm features --clean --older-than 30 --dry-run",
)
ALSO = ("encode", "cache", "precompute", "embed", "store", "pack")
_OF_STORES = ("older_than", "cache_dir", "list", "clean", "all", "dry_run", "MODEL.BACKBONE.NAME")
_OF_CLEAN = ("older_than", "all", "dry_run")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("--dataset", action="append", default=[], metavar="NAME", help="a data set; may be "
                                                                       "repeated")
    add("--verify", action="store_true", help="read all files again, unchanged ones too")
    add("--pack", default="", metavar="FILE", help="write the features to a file without images "
        "(*.pack.safetensors, or a folder); --views K adds K training views")
    add("--show", default="", metavar="PACK", help="what a pack holds")
    add("--list", action="store_true", help="list the stores; --backbone X: only stores of this "
                                            "backbone")
    add("--clean", action="store_true", help="delete stores; needs --older-than, --all or "
        "--backbone X")
    add("--older-than", type=amount("days", 0), metavar="DAYS",
        help="--clean: stores unused for this many days")
    add("--all", action="store_true", help="--clean: every store")
    add("--dry-run", action="store_true", help="--clean: print what would be deleted")
    add("--cache-dir", default="", metavar="FOLDER", help="cache folder (default: $FEDVLM_CACHE)")
    add_flags(parser, shown=False)
    add_opts(parser)
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    """Return what does not go together."""
    if args.show:
        stray = [name for dest, name in args.spelling.items() if dest != "show"] + args.opts[:1]
        return [f"--show cannot be combined with '{stray[0]}'"] if stray else []
    if args.list or args.clean:
        verb = "--clean" if args.clean else "--list"
        stray = [name for dest, name in args.spelling.items() if dest not in _OF_STORES]
        stray += args.opts[:1] + (["--list"] if args.list and args.clean else [])
        return [f"{verb} cannot be combined with '{stray[0]}'"] if stray else []
    mistakes = [f"{args.spelling[dest]} needs --clean" for dest in _OF_CLEAN
                if dest in args.spelling]
    if args.flags.get("FED.PLAIN", "").lower() == "true":
        mistakes.append("--plain does not use feature stores; drop --plain")
    if args.pack and len(args.dataset) > 1 and not user_path(args.pack).is_dir():
        mistakes.append(f"--pack {args.pack}: several data sets need an existing folder; each "
                        "gets its own pack")
    if args.seeds:
        mistakes.append("--seeds has no effect: stores do not depend on the model seed; use "
                        "--data-seed N for the views of that seed, or drop --seeds")
    return mistakes


def main(args: Namespace) -> int:
    """Encode, pack, show, list or delete; return the exit code.

    Raises:
        ConfigError: contradictions, or whatever is wrong with a run's flags.
        DataError: missing or broken data, a damaged pack, or a place that cannot be written.
    """
    from fedvlm.job.resolve import resolve  # start-up: NumPy, 0.15 s

    if args.show:
        from fedvlm.cli.data._pack import show_pack  # start-up: PyTorch, 2 s

        show_pack(user_path(args.show))
        return 0
    if args.list or args.clean:
        return _stores(args)
    if args.cache_dir:
        args.opts += ["CACHE_DIR", args.cache_dir]
    progress("loading PyTorch")
    plans = [resolve(Namespace(**vars(args) | {"dataset": name})) for name in args.dataset or [""]]
    from fedvlm.cli.data._encode import encode_set  # start-up: PyTorch, 2 s
    from fedvlm.cli.data._pack import write_pack  # start-up: PyTorch

    for name, plan in zip(args.dataset or [""], plans, strict=True):
        complain(*plan.data_notes, prefix="note")
        if args.pack:
            write_pack(plan.jobs[0], Path(args.pack), name, args.verify)
        else:
            encode_set(plan.jobs[0].cfg, args.verify)
    return 0


def _stores(args: Namespace) -> int:
    from fedvlm.cli.data._stores import clean_stores, show_stores  # start-up: PyTorch, 2 s
    from fedvlm.models.features.store import default_dir  # start-up: PyTorch

    folder = user_path(args.cache_dir) if args.cache_dir else default_dir()
    backbone = args.flags.get("MODEL.BACKBONE.NAME", "")
    if args.list:
        show_stores(folder, backbone)
    else:
        clean_stores(folder, args.older_than, backbone, args.all, args.dry_run)
    return 0
