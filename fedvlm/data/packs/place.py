"""A pack in the place of a data set: its lists, under the settings that it was made with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.data.catalog import DatasetInfo, dataset_info
from fedvlm.data.datum import DatasetBase
from fedvlm.data.packs.file import read_container
from fedvlm.data.packs.lists import read_pack_lists
from fedvlm.data.packs.pack import About, Setting, open_pack, read_about

# What changes the lists that a reader makes of a set; a pack was made under one setting of each.
_STRICT = ("SPLIT_FILE", "NAMES_FILE", "CLASSNAMES", "LEAVE_OUT", "TEST_SHARE", "GROUPS")
_LENIENT = ("FORMAT",)  # the same lists lie in several: a config need not say which


def about_pack(path: Path) -> About:
    """Return a pack's description, without reading its features.

    Raises:
        DataError: it is none.
    """
    return read_about(read_container(path))


def reading_settings(about: About) -> dict[str, Setting]:
    """Return the settings of a pack without which its set is another, by config key."""
    keys = [f"DATASET.{key}" for key in _STRICT]
    return {key: about.settings[key] for key in keys if about.settings.get(key)}


def read_pack(cfg: CfgNode, path: Path) -> DatasetBase:
    """Return the lists of a pack for a run, checked.

    Raises:
        ConfigError: the config names another set, or reads the set in another way.
        DataError: the pack is damaged.
    """
    pack = open_pack(path)
    _check_settings(cfg, pack.about, path)
    data = read_pack_lists(pack)
    data.name = pack.about.name
    data.check()
    if not pack.about.groups and dataset_info(data.name) is None:
        data.notes.append(
            f"{data.name}: {path.name} says of no images that they belong together; if some are of "
            "one patient, slide or video, advise and baselines may learn from one and judge by "
            "another: make the pack again with --groups COLUMN"
        )
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
