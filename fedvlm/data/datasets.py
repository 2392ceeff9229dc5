"""DATASET_REGISTRY and ``load_dataset``: from the DATASET node of the config to checked lists.

A set is either in the catalog, or registered by a user's class, or described by the config
alone (``DATASET.DIR`` and ``DATASET.FORMAT``). Reading lists files; it decodes no image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.cache import builtin_root, cache_dir
from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.core.plugins import Registry
from fedvlm.data.catalog import CATALOG, DatasetInfo, compare, dataset_info
from fedvlm.data.datum import PARTS, DatasetBase, untestable
from fedvlm.data.formats.cifar import read_cifar
from fedvlm.data.formats.class_names import read_class_names
from fedvlm.data.formats.coop_split import read_split
from fedvlm.data.formats.folders import Names, read_domains, read_folders
from fedvlm.data.formats.parts import Cut
from fedvlm.data.formats.table import read_table
from fedvlm.data.formats.tiny_imagenet import read_tiny_imagenet
from fedvlm.data.layouts import prepared_layouts, prepared_name, read_layouts
from fedvlm.data.locate import explain_refusals, find, find_root, listing
from fedvlm.data.packs.place import pack_of, read_pack

DATASET_REGISTRY: Registry[Callable[[CfgNode], DatasetBase]] = Registry("dataset")
TABLES = ("csv", "jsonl", "parquet")
FORMATS = ("coop", *TABLES, "folders", "domains", "cifar", "tiny_imagenet")
_HINT = "; or set DATASET.FORMAT (folders, csv, ...) to read a copy of another shape"
MEMORY = "memory"  # DATASET.FORMAT of what a Python program gave (``memory/given.py``)
DEFAULT_TEMPLATE = "a photo of a {}."


@explain_refusals()
def load_dataset(cfg: CfgNode) -> DatasetBase:
    """Read the data set that ``cfg.DATASET`` names, from its images or from a feature pack.

    Raises:
        ConfigError: unknown name (and no DATASET.DIR that describes an own set) or format; a pack
            of another set.
        DataError: something is missing on disk or inconsistent; the message says what.
    """
    name = cfg.DATASET.NAME
    if fold(cfg.DATASET.FORMAT) == MEMORY:
        raise ConfigError(
            f"{name} (DATASET.FORMAT {MEMORY}) is data that a Python program held: give them to "
            "fedvlm.train(data=...) again there; a command line, a sweep and its workers "
            "read images from disk: --images FOLDER"
        )
    info = dataset_info(name)
    key = info.name if info else name
    pack = pack_of(cfg)
    if pack is not None:
        return read_pack(cfg, pack)
    if key in DATASET_REGISTRY:
        return DATASET_REGISTRY.get(key)(cfg)
    if not name.strip() or not cfg.DATASET.DIR:
        names = DATASET_REGISTRY.registered_names()
        aliases = [a for row in CATALOG.values() for a in row.aliases]
        raise ConfigError(
            f"unknown DATASET.NAME '{name}'{did_you_mean(name, [*names, *aliases])} "
            f"(known: {', '.join(names)}; own data: set DATASET.DIR and DATASET.FORMAT, "
            "see configs/datasets/custom_folders.yaml)"
        )
    return _checked(name, read_by_config(cfg, find_root(cfg.DATASET.ROOT)))


def set_name(cfg: CfgNode) -> str:
    """Return the name that the set will have once it is read; empty where only that tells."""
    name: str = cfg.DATASET.NAME
    info = dataset_info(name)
    if info is not None and cfg.DATASET.FORMAT != MEMORY:
        return info.name
    return "" if info is None and name in DATASET_REGISTRY else name


def load_for_training(cfg: CfgNode) -> DatasetBase:
    """Read the data set that ``cfg.DATASET`` names, which must have training images.

    Raises:
        ConfigError: it is only there to be tested on (ImageNetV2, -Sketch, -A, -R); else as
            ``load_dataset``.
        DataError: as ``load_dataset``.
    """
    data = load_dataset(cfg)
    if not data.train_x:
        raise ConfigError(
            f"{data.name} has test images only and cannot be trained on: train on another set, "
            f"such as ImageNet, and name {data.name} in TEST.TARGETS"
        )
    refuse_untestable(data)
    return data


def refuse_untestable(data: DatasetBase) -> None:
    """Refuse a set that says little of what is trained.

    Raises:
        DataError: most classes have no test image; says what may have been misread.
    """
    bare = untestable(data.parts)
    if not bare:
        return
    strange = sorted({d.classname for d in data.test} - {d.classname for d in data.train_x})
    also = ""
    if strange:
        also = (f"; '{strange[0]}' has test images only: if these have no labels, leave their "
                "folder out with DATASET.LEAVE_OUT")
    raise DataError(
        f"{data.name}: {len(bare)} of {len({d.label for d in data.train_x})} trained classes have "
        f"no test image (first: {', '.join(bare[:3])}){also}; give every class test images, or "
        "take the test part away and let DATASET.TEST_SHARE 0.3 draw them from train"
    )


def templates(cfg: CfgNode) -> list[str]:
    """Return the prompt templates: DATASET.TEMPLATE (one or a list), else the set's own.

    Raises:
        ConfigError: a template without ``{}``.
    """
    template = cfg.DATASET.TEMPLATE
    if not template:
        info = dataset_info(cfg.DATASET.NAME)
        return [info.template if info else DEFAULT_TEMPLATE]
    texts = [template] if isinstance(template, str) else list(template)
    for text in texts:
        if text.count("{}") != 1:
            raise ConfigError(f"DATASET.TEMPLATE '{text}' must hold {{}} once, for the class name")
    return texts


def _read_known(info: DatasetInfo, cfg: CfgNode) -> DatasetBase:
    root = find_root(_builtin_root(info, cfg) if info.builtin else cfg.DATASET.ROOT)
    if spells_layout(info, cfg):
        data = _checked(info.name, read_by_config(cfg, root))
    else:
        folder = folder_of(info, cfg)
        prepared = prepared_layouts(info, root, folder, cfg)
        data = _checked(info.name, read_layouts(info, root, folder, prepared, _HINT))
    data.notes += _differences(info, data)
    return data


def folder_of(info: DatasetInfo, cfg: CfgNode) -> str:
    """Return DATASET.DIR; empty where it repeats the set's own, which shuts no other folder out."""
    return "" if info.folder == cfg.DATASET.DIR else str(cfg.DATASET.DIR)


def _differences(info: DatasetInfo, data: DatasetBase) -> list[str]:
    """Return notes on where what was read differs from the catalog."""
    sizes = {part: len(data.parts[part]) for part in PARTS}
    base = sum(datum.label < info.base for datum in data.test)
    number = Counter(data.domain_names[datum.domain] for datum in data.all() if data.domain_names)
    return compare(info, data.num_classes, sizes, base, number)


def spells_layout(info: DatasetInfo, cfg: CfgNode) -> bool:
    """Return whether the config spells out another layout than the catalog's."""
    node = cfg.DATASET
    config = (fold(node.FORMAT), node.IMAGE_DIR, node.SPLIT_FILE)
    catalog = (info.form, info.image_dir, info.split_file)
    return any(value not in ("", row) for value, row in zip(config, catalog, strict=True))


def read_by_config(cfg: CfgNode, root: Path) -> DatasetBase:
    """Read a set, known or not, in the layout that the config spells out.

    Raises:
        ConfigError: the config does not say how it is laid out.
        DataError: something is missing on disk or inconsistent.
    """
    node, info = cfg.DATASET, dataset_info(cfg.DATASET.NAME)
    name = info.name if info else node.NAME
    what = f"the folder of {name} (DATASET.DIR)"
    if info is None:
        folder = find(root, node.DIR, what)
        form = _format(cfg, _form_of(node.SPLIT_FILE))
        drop = tuple(node.get("LEAVE_OUT", ()))
        names = Names(_names_of(cfg, folder), drop)
        return _read(name, folder, form, node.IMAGE_DIR, node.SPLIT_FILE, names, "", cfg)
    folder = find(root, node.DIR or info.folder, what, source=info.source)
    form = _format(cfg, _form_of(node.SPLIT_FILE) if node.SPLIT_FILE else info.form)
    split_file = node.SPLIT_FILE or (info.split_file if form == "coop" else "")
    renames = info.renames | _names_of(cfg, folder)
    names = Names(renames, (*info.drop, *node.get("LEAVE_OUT", ())))
    image_dir = node.IMAGE_DIR or info.image_dir
    return _read(name, folder, form, image_dir, split_file, names, info.source, cfg)


def _names_of(cfg: CfgNode, folder: Path) -> dict[str, str]:
    """Return the class names of DATASET.NAMES_FILE by folder or label; none without one."""
    file = cfg.DATASET.get("NAMES_FILE", "")
    if not file:
        return {}
    return read_class_names(find(folder, file, "DATASET.NAMES_FILE", file=True))


def _form_of(split_file: str) -> str:
    """Return the format that a config without DATASET.FORMAT means."""
    for form in TABLES:
        if split_file.lower().endswith(f".{form}"):
            return form
    return "coop" if split_file else "folders"


def _builtin_root(info: DatasetInfo, cfg: CfgNode) -> str:
    """Return the root of a set that this project renders; the user's own copy of it goes first."""
    root: str = cfg.DATASET.ROOT
    if root and (user_path(root) / (cfg.DATASET.DIR or info.folder)).is_dir():
        return root
    from fedvlm.data.builtin.sets import materialise  # start-up: Pillow and the renderer

    place = builtin_root(cfg)
    try:
        return str(materialise(info.builtin, place).parent)
    except OSError as error:
        raise DataError(
            f"cannot render {info.name} into {place}: {error.strerror or error}; set CACHE_DIR or "
            "$FEDVLM_CACHE to a folder that can be written"
        ) from error


def _format(cfg: CfgNode, default: str) -> str:
    form = cfg.DATASET.FORMAT or default
    if not cfg.DATASET.FORMAT and form not in FORMATS:
        raise ConfigError(
            f"{cfg.DATASET.NAME}: DATASET.IMAGE_DIR alone does not say how this copy is laid out; "
            f"leave it empty, or set DATASET.FORMAT too ({', '.join(FORMATS)})"
        )
    known = {fold(name): name for name in FORMATS}
    if fold(form) not in known:
        raise ConfigError(
            f"unknown DATASET.FORMAT '{form}'{did_you_mean(form, FORMATS)} "
            f"(known: {', '.join(FORMATS)})"
        )
    return known[fold(form)]


def _read(
    name: str,
    folder: Path,
    form: str,
    image_dir: str,
    split_file: str,
    names: Names,
    source: str,
    cfg: CfgNode,
) -> DatasetBase:
    cut = Cut(float(cfg.DATASET.get("TEST_SHARE", 0.0)), int(cfg.DATA_SEED))
    if form in TABLES:
        what = f"the image folder of {name} (DATASET.IMAGE_DIR)"
        tables = _split_files(name, folder, form, split_file, source)
        images = find(folder, image_dir, what, source=source)
        return read_table(tables, images, names, cut, cache_dir(cfg) / "fedvlm" / "unpacked")
    if form == "coop":
        return _read_split(name, folder, form, image_dir, split_file, source)
    if form == "cifar":
        return read_cifar(folder)
    if form == "tiny_imagenet":
        return read_tiny_imagenet(folder)
    images = find(folder, image_dir, f"the image folder of {name} (DATASET.IMAGE_DIR)")
    if form == "domains":
        return read_domains(images, names, cut=cut)
    return read_folders(images, names, cut)


def _split_files(
    name: str, folder: Path, form: str, split_file: str, source: str
) -> list[Path]:
    """Return the files that DATASET.SPLIT_FILE names, ``a,b`` for several tables.

    Raises:
        ConfigError: none is named.
        DataError: one is missing.
    """
    if not split_file:
        raise ConfigError(f"{name}: DATASET.FORMAT {form} needs DATASET.SPLIT_FILE")
    words = split_file.split(",") if form in TABLES else [split_file]
    paths = []
    for word in (w.strip() for w in words):
        if not (folder / word).is_file():
            content = ", ".join(listing(folder)[:8]) or "nothing"
            where = f"; get it from {source}" if source else ""
            raise DataError(
                f"{name}: the split file {folder / word} (DATASET.SPLIT_FILE) is missing and "
                f"none is invented; found there: {content}{where}, or set DATASET.FORMAT folders "
                "to use the image tree with a split of this project's own"
            )
        paths.append(find(folder, word, f"the split file of {name}", file=True))
    return paths


def _read_split(
    name: str, folder: Path, form: str, image_dir: str, split_file: str, source: str
) -> DatasetBase:
    (path,) = _split_files(name, folder, form, split_file, source)
    what = f"the image folder of {name} (DATASET.IMAGE_DIR)"
    data = read_split(path, find(folder, image_dir, what, source=source))
    if path.name == prepared_name(name):
        data.notes.append(f"{name}: not the published split ({path.name})")
    return data


def _checked(name: str, data: DatasetBase) -> DatasetBase:
    """Give the lists that a reader got their set's name, and check them."""
    data.name = name
    data.check()
    return data


for _info in CATALOG.values():
    DATASET_REGISTRY.register(_info.name)(partial(_read_known, _info))
