"""Check the data sets under --root, or a feature pack: what is there, missing or broken.

States: ready, prepared (a split of fedvlm data prepare), built in, broken, partly, absent, unknown
(a folder that is no known set's; fedvlm data add makes it one). Some images of each set are
decoded, with --full all of them (then the bytes of all are compared too); results are cached for
the next time.

exit code: 0 no problem (sets not named may be absent, at least one set must be ready), 3 a set is
broken or incomplete, or a named set is absent, 2 wrong usage.
"""

from __future__ import annotations

import json
from argparse import Namespace

from yacs.config import CfgNode

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.read import find_config
from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.screen import progress, say
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.data.catalog import CATALOG, catalog_names, dataset_info
from fedvlm.data.datasets import DATASET_REGISTRY
from fedvlm.data.locate import find_root, pack_root
from fedvlm.data.packs.place import about_pack, reading_settings

EXAMPLES = (
    "fedvlm doctor --root DATA/",
    "fedvlm doctor --root DATA/ eurosat pets --full",
    "fedvlm doctor --root DATA/ --dataset-config-file my_set.yaml --json",
)
ALSO = ("diagnose", "status", "inspect")
_SAMPLE = 64
OF_TABLES = {"--clients-by": "DATASET.CLIENTS_BY", "--groups": "DATASET.GROUPS",
             "--columns": "DATASET.COLUMNS", "--labels": "DATASET.LABELS",
             "--captions": "DATASET.CAPTIONS"}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="only these sets")
    add("--root", default="", metavar="DATA/", help="folder that contains the data "
        "sets, or a feature pack")
    add("--dataset-config-file", action="append", default=[], metavar="FILE", help="a set of yours")
    for flag in OF_TABLES:
        add(flag, default="", metavar="COLUMN", help="of a --dataset-config-file, as of fedvlm run")
    add("--full", action="store_true", help="decode all images")
    add("--sample", type=whole_number(0), metavar="N",
        help=f"images of each set to decode ({_SAMPLE})")
    add("--json", action="store_true", help="the full result as JSON")
    add("--cache-dir", default="", metavar="FOLDER", help="another cache")
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    """Return what contradicts itself or is missing."""
    if args.full and args.sample is not None:
        return ["give --full or --sample N, not both"]
    if not args.root.strip():
        return ["--root is missing: give the folder that contains the data sets"]
    return []


def main(args: Namespace) -> int:
    """Look at the known sets, or at those that are named; return the exit code.

    Raises:
        ConfigError: unknown set.
        DataError: the root is not a folder.
    """
    from fedvlm.cli.data import _findings as findings  # start-up: PyTorch, 2 s
    from fedvlm.data.doctor.examine import (  # start-up: PyTorch
        examine,
        examine_own_packs,
        examine_unknown,
    )

    sample = None if args.full else _SAMPLE if args.sample is None else args.sample
    pack = pack_root(args.root)
    root = pack or find_root(args.root)
    if pack and not (args.names or args.dataset_config_file):
        args.names = [about_pack(pack).name]
    configs = _configs(args)
    checks = []
    try:
        for at, cfg in enumerate(configs, 1):
            progress(f"{cfg.DATASET.NAME} ({at} of {len(configs)})")
            checks.append(examine(cfg, sample, progress))
        if not (args.names or args.dataset_config_file):
            checks += [*examine_own_packs(root), *examine_unknown(root)]
    finally:
        progress.clear()
    code = findings.findings_code(checks, bool(args.names or args.dataset_config_file))
    if args.json:
        say(json.dumps(findings.json_record(checks, str(root), sample, code), indent=1))
    else:
        findings.show_checks(checks, str(root), sample)
    return code


def _configs(args: Namespace) -> list[CfgNode]:
    """Return the config of each set to look at: those that are named, else all.

    Raises:
        ConfigError: an unknown name, or a config file that is wrong.
    """
    pack = pack_root(args.root)
    about = about_pack(pack) if pack else None
    own = about.name if about else ""
    names = [_name(word, own) for word in args.names]
    if not names and not args.dataset_config_file:
        names = [*CATALOG, *(n for n in DATASET_REGISTRY.registered_names() if n not in CATALOG)]
    flags = {"DATASET.ROOT": args.root} | ({"CACHE_DIR": args.cache_dir} if args.cache_dir else {})
    configs = [
        build_config(
            None, None, flags | {"DATASET.NAME": name}, [], default_schema(),
            dataset_keys=reading_settings(about) if about and name == own else None,
        )[0]
        for name in dict.fromkeys(names)
    ]
    told = {key: value for flag, key in OF_TABLES.items()
            if (value := getattr(args, flag[2:].replace("-", "_")))}
    for word in args.dataset_config_file:
        path = find_config(word, "datasets")
        configs.append(build_config(path, None, flags | told, [], default_schema())[0])
    return configs


def _name(word: str, own: str = "") -> str:
    """Return a set's name as it is written; ``own`` is the set of a pack."""
    info = dataset_info(word)
    if info is not None:
        return info.name
    if own and fold(own) == fold(word):
        return own
    registered = {fold(name): name for name in DATASET_REGISTRY.registered_names()}
    if fold(word) in registered:
        return registered[fold(word)]
    names = [*catalog_names(), *registered.values()]
    raise ConfigError(f"doctor: unknown set '{word}'{did_you_mean(word, names)} (known: "
                      f"{', '.join(CATALOG)}; own data: --dataset-config-file FILE)")
