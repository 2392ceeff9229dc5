"""DATASET_REGISTRY and ``load_dataset``: from the DATASET node of the config to checked lists.

A set is either in the facts table, or registered by a user's class, or described by the config
alone (``DATASET.DIR`` and ``DATASET.FORMAT``). Reading lists files; it decodes no image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.data.cachedir import builtin_root
from fedvlm.data.cifar import read_cifar
from fedvlm.data.datum import PARTS, DatasetBase
from fedvlm.data.facts import FACTS, Facts, compare, facts_for
from fedvlm.data.layouts import read_known
from fedvlm.data.locate import find, find_root, listing
from fedvlm.data.readers import Names, Tree, read_domains, read_folders
from fedvlm.data.split_file import read_split
from fedvlm.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.registry import Registry

DATASET_REGISTRY: Registry[Callable[[CfgNode], DatasetBase]] = Registry("dataset")
FORMATS = ("coop", "csv", "folders", "domains", "cifar")
_HINT = "; or set DATASET.FORMAT (folders, csv, ...) to read a copy of another shape"
DEFAULT_TEMPLATE = "a photo of a {}."


def load_dataset(cfg: CfgNode) -> DatasetBase:
    """Read the data set that ``cfg.DATASET`` names.

    Raises:
        ConfigError: unknown name (and no DATASET.DIR that describes an own set) or format.
        DataError: something is missing on disk or inconsistent; the message says what.
    """
    name = cfg.DATASET.NAME
    facts = facts_for(name)
    key = facts.name if facts else name
    if key in DATASET_REGISTRY:
        return DATASET_REGISTRY.get(key)(cfg)
    if not name.strip() or not cfg.DATASET.DIR:
        known = DATASET_REGISTRY.registered_names()
        aliases = [a for row in FACTS.values() for a in row.aliases]
        raise ConfigError(
            f"unknown DATASET.NAME '{name}'{did_you_mean(name, [*known, *aliases])} "
            f"(known: {', '.join(known)}; own data: set DATASET.DIR and DATASET.FORMAT, "
            "see configs/datasets/custom_folders.yaml)"
        )
    return _read_own(cfg)


def templates(cfg: CfgNode) -> list[str]:
    """Return the prompt templates: DATASET.TEMPLATE (one or a list), else the set's own.

    Raises:
        ConfigError: a template without ``{}``.
    """
    given = cfg.DATASET.TEMPLATE
    if not given:
        facts = facts_for(cfg.DATASET.NAME)
        return [facts.template if facts else DEFAULT_TEMPLATE]
    found = [given] if isinstance(given, str) else list(given)
    for text in found:
        if text.count("{}") != 1:
            raise ConfigError(f"DATASET.TEMPLATE '{text}' must hold {{}} once, for the class name")
    return found


def _read_known(facts: Facts, cfg: CfgNode) -> DatasetBase:
    root, folder = cfg.DATASET.ROOT, cfg.DATASET.DIR
    if facts.builtin:
        root = _builtin_root(facts, cfg)
    if cfg.DATASET.FORMAT or cfg.DATASET.IMAGE_DIR or cfg.DATASET.SPLIT_FILE:
        data = _read_as_told(facts, cfg, root)
    else:
        data = _dataset(facts.name, read_known(facts, root, folder, _HINT))
    sizes = {part: len(data.part(part)) for part in PARTS}
    data.notes += compare(facts, data.num_classes, sizes)
    return data


def _read_as_told(facts: Facts, cfg: CfgNode, root: str) -> DatasetBase:
    """Read a known set in the layout that the config spells out, not in one of its own."""
    node = cfg.DATASET
    what = f"the folder of {facts.name} (DATASET.DIR)"
    folder = find(find_root(root), node.DIR or facts.folder, what, source=facts.source)
    form = _format(cfg, facts.form)
    split_file = node.SPLIT_FILE or facts.split_file
    names = Names(facts.renames, facts.drop)
    image_dir = node.IMAGE_DIR or facts.image_dir
    return _read(facts.name, folder, form, image_dir, split_file, names, facts.source)


def _read_own(cfg: CfgNode) -> DatasetBase:
    node = cfg.DATASET
    folder = find(find_root(node.ROOT), node.DIR, f"the folder of {node.NAME} (DATASET.DIR)")
    form = _format(cfg, "coop" if node.SPLIT_FILE else "folders")
    return _read(node.NAME, folder, form, node.IMAGE_DIR, node.SPLIT_FILE, Names({}), "")


def _builtin_root(facts: Facts, cfg: CfgNode) -> str:
    """Return the root of a set that this project renders; the user's own copy of it goes first."""
    root = cfg.DATASET.ROOT
    if root and (Path(root).expanduser() / (cfg.DATASET.DIR or facts.folder)).is_dir():
        return str(root)
    from fedvlm.data.builtin import materialise  # renders images: only when asked for

    place = builtin_root(cfg)
    try:
        return str(materialise(facts.builtin, place).parent)
    except OSError as error:
        raise DataError(
            f"cannot render {facts.name} into {place}: {error.strerror or error}; set CACHE_DIR or "
            "$FEDVLM_CACHE to a folder that can be written"
        ) from error


def _format(cfg: CfgNode, default: str) -> str:
    form = cfg.DATASET.FORMAT or default
    if fold(form) not in FORMATS:
        raise ConfigError(
            f"unknown DATASET.FORMAT '{form}'{did_you_mean(form, FORMATS)} "
            f"(known: {', '.join(FORMATS)})"
        )
    return fold(form)


def _read(
    name: str,
    folder: Path,
    form: str,
    image_dir: str,
    split_file: str,
    names: Names,
    source: str,
) -> DatasetBase:
    if form == "coop":
        return _read_coop(name, folder, image_dir, split_file, source)
    if form == "cifar":
        return _dataset(name, read_cifar(folder))
    images = find(folder, image_dir, f"the image folder of {name} (DATASET.IMAGE_DIR)")
    reader = read_domains if form == "domains" else read_folders
    return _dataset(name, reader(images, names))


def _read_coop(
    name: str, folder: Path, image_dir: str, split_file: str, source: str
) -> DatasetBase:
    if not split_file:
        raise ConfigError(f"{name}: DATASET.FORMAT coop needs DATASET.SPLIT_FILE")
    if not (folder / split_file).is_file():
        seen = ", ".join(listing(folder)[:8]) or "nothing"
        where = f"; get it from {source}" if source else ""
        raise DataError(
            f"{name}: the split file {folder / split_file} (DATASET.SPLIT_FILE) is missing and "
            f"none is invented; found there: {seen}{where}, or set DATASET.FORMAT folders to use "
            "the image tree with a split of this project's own"
        )
    path = find(folder, split_file, f"the split file of {name}", file=True)
    what = f"the image folder of {name} (DATASET.IMAGE_DIR)"
    images = find(folder, image_dir, what, source=source)
    split = read_split(path, images)
    return DatasetBase(
        split.train, split.val, split.test, name=name, domain_names=split.domain_names
    )


def _dataset(name: str, tree: Tree) -> DatasetBase:
    return DatasetBase(
        tree.parts["train"],
        tree.parts["val"],
        tree.parts["test"],
        name=name,
        domain_names=tree.domain_names,
        notes=tree.notes,
    )


for _facts in FACTS.values():
    DATASET_REGISTRY.register(_facts.name)(partial(_read_known, _facts))
