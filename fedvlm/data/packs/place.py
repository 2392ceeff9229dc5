"""Which pack serves a config: DATASET.ROOT itself, or a file below it that is named by the set.

``--root FILE`` is a pack. ``--root DIR`` serves a set from ``DIR/<set>.pack.safetensors`` where no
images of it lie there; ``<set>.<anything>.pack.safetensors`` are packs of several backbones, of
which the run takes the one made with its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.data.catalog import DatasetInfo, dataset_info
from fedvlm.data.datum import DatasetBase
from fedvlm.data.layouts import choose, layouts_of, prepared_layouts
from fedvlm.data.packs.file import SUFFIX, is_pack, read_container
from fedvlm.data.packs.lists import read_lists
from fedvlm.data.packs.pack import About, Setting, open_pack, read_about

# What changes the lists that a reader makes of a set; a pack was made under one setting of each.
_STRICT = ("SPLIT_FILE", "NAMES_FILE", "LEAVE_OUT", "TEST_SHARE")
_LENIENT = ("FORMAT",)  # the same lists lie in several: a config need not say which


def about_pack(path: Path) -> About:
    """Return what a pack says of itself, without reading its features.

    Raises:
        DataError: it is none.
    """
    return read_about(read_container(path))


def reading_of(about: About) -> dict[str, Setting]:
    """Return the settings of a pack without which its set is another, by config key."""
    keys = [f"DATASET.{key}" for key in _STRICT]
    return {key: about.settings[key] for key in keys if about.settings.get(key)}


def pack_root(root: str) -> Path | None:
    """Return DATASET.ROOT where it is a pack; None where it is anything else."""
    path = user_path(root)
    return path if root.strip() and is_pack(path) else None


def packs_in(folder: Path) -> list[Path]:
    """Return the packs in a folder, sorted."""
    try:
        return sorted(p for p in folder.iterdir() if p.name.endswith(SUFFIX) and p.is_file())
    except OSError:
        return []


def pack_of(cfg: CfgNode) -> Path | None:
    """Return the pack that serves the set of a config; None where images do, or nothing.

    Raises:
        ConfigError: several packs of the set, and none or more than one of the run's backbone.
        DataError: one of several is none.
    """
    node = cfg.DATASET
    root = user_path(node.ROOT)
    if not node.ROOT.strip() or root.is_file():
        return pack_root(node.ROOT)
    packs = [path for path in packs_in(root) if fold(stem_of(path)) in _names(node.NAME)]
    if not packs or _has_images(cfg, root):
        return None
    if len(packs) == 1:
        return packs[0]
    backbone = cfg.MODEL.BACKBONE.NAME if "MODEL" in cfg else ""
    fitting = [path for path in packs if fold(about_pack(path).backbone) == fold(backbone)]
    if len(fitting) != 1:
        raise ConfigError(
            f"{root} has {len(packs)} packs of {node.NAME} ({', '.join(p.name for p in packs)}), "
            f"{len(fitting) or 'none'} of them of backbone '{backbone}'; give one: --root "
            f"{packs[0]}"
        )
    return fitting[0]


def stem_of(path: Path) -> str:
    """Return the set in a pack's file name: what is before the first dot."""
    return path.name.removesuffix(SUFFIX).partition(".")[0]


def _names(name: str) -> set[str]:
    """Return the folded names under which a pack of a set can lie."""
    info = dataset_info(name)
    words = (name, info.name, info.folder, *info.aliases) if info else (name,)
    return {fold(word) for word in words}


def _has_images(cfg: CfgNode, root: Path) -> bool:
    """Tell whether a folder holds the images of the set, which serve every method."""
    node, info = cfg.DATASET, dataset_info(cfg.DATASET.NAME)
    if info is None:
        return bool(node.DIR) and (root / node.DIR).is_dir()
    folder = "" if info.folder == node.DIR else str(node.DIR)
    layouts = (*layouts_of(info), *prepared_layouts(info, root, folder, cfg))
    return choose(layouts, root, folder) is not None


def read_pack(cfg: CfgNode, path: Path) -> DatasetBase:
    """Return the lists of a pack for a run, checked.

    Raises:
        ConfigError: the config names another set, or reads the set in another way.
        DataError: the pack is damaged.
    """
    pack = open_pack(path)
    _check_settings(cfg, pack.about, path)
    data = read_lists(pack)
    data.name = pack.about.name
    data.check()
    return data


def _check_settings(cfg: CfgNode, about: About, path: Path) -> None:
    """Refuse a config under which the images would give other lists."""
    node, info = cfg.DATASET, dataset_info(cfg.DATASET.NAME)
    name = info.name if info else node.NAME
    if fold(name) != fold(about.name):
        raise ConfigError(
            f"DATASET.NAME {name}: {path} is a pack of {about.name}"
            f"{did_you_mean(name, [about.name])}; give its own pack, or --dataset {about.name}"
        )
    for key in (*_LENIENT, *_STRICT):
        said, there = _words(node.get(key)), _words(about.settings.get(f"DATASET.{key}"))
        if key == "SPLIT_FILE":
            said = said or _usual_split(info, node.FORMAT)
            there = there or _usual_split(info, str(about.settings.get("DATASET.FORMAT", "")))
        if said == there or (not said and key in _LENIENT):
            continue
        made, alone = f"{path} was made with", f"--root {path} without --dataset"
        if said:
            raise ConfigError(
                f"DATASET.{key} {', '.join(said)}: {made} {', '.join(there) or 'none set'}; drop "
                f"it ({alone} takes the pack's own settings), or make a pack with it"
            )
        raise ConfigError(
            f"DATASET.{key} is not set: {made} {', '.join(there)}, and the images would be read "
            f"without; give DATASET.{key} {','.join(there)}, or {alone}, which takes the pack's "
            "own settings"
        )
    if about.cut_seed not in (-1, int(cfg.DATA_SEED)):
        raise ConfigError(
            f"DATA_SEED {cfg.DATA_SEED}: the test images of {path} were drawn by data seed "
            f"{about.cut_seed} (DATASET.TEST_SHARE); set --data-seed {about.cut_seed}, or make a "
            f"pack with --data-seed {cfg.DATA_SEED}"
        )


def _usual_split(info: DatasetInfo | None, form: str) -> list[str]:
    """Return the split file that a set is read by where none is named."""
    return _words(info.split_file) if info and fold(form) in ("", "coop") else []


def _words(value: object) -> list[str]:
    """Return a setting as texts, numbers in one way of writing; nothing where it is not set."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(v) for v in value]
    if isinstance(value, int | float):
        return [f"{value:g}"] if value else []
    return [str(value)] if value else []
