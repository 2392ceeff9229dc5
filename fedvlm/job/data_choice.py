"""Which data set a run names: a config, a folder of images, a feature pack, data in memory.

A step before the configs are merged (``resolve``): it returns config keys. What reads folders,
packs and site files is imported where one is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedvlm.config.option import Value
from fedvlm.config.read import config_names, find_config, lookup
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path
from fedvlm.data.locate import pack_root
from fedvlm.federation.cards import method_of
from fedvlm.job.kinds import dataset_config
from fedvlm.job.request import Request


class OwnData(Protocol):
    """Data of the user's own, looked at: a folder, a site file, or data in memory."""

    @property
    def keys(self) -> Mapping[str, Value]:
        """The config keys that read them."""
        ...

    @property
    def origin(self) -> str:
        """Where the keys come from, in words."""
        ...

    @property
    def sentence(self) -> str:
        """What was understood."""
        ...

    @property
    def decided(self) -> tuple[str, ...]:
        """What was decided, a note each."""
        ...


@dataclass(frozen=True)
class DataChoice:
    """The data set of a run, as the config takes it.

    Attributes:
        yaml: its config; None without one.
        demo: the config of ``--demo``, which brings a data set.
        keys: config keys that are no file's: of own data, or of a pack.
        origin: where those come from; empty for a pack.
        notes: for the user.
    """

    yaml: Path | None = None
    demo: Path | None = None
    keys: Mapping[str, Value] = field(default_factory=dict)
    origin: str = ""
    notes: tuple[str, ...] = ()


def choose_data(request: Request, given: OwnData | None = None) -> DataChoice:
    """Return which data set a request names.

    Args:
        given: a data set in memory, which the request then need not name.

    Raises:
        ConfigError: none is named, or two are, or one that is not known.
        DataError: a folder without images, or a damaged pack or site file.
    """
    own = given or _own_data(request)
    if own:
        return DataChoice(
            demo=_demo_yaml(request), keys=own.keys, origin=own.origin,
            notes=(own.sentence, *own.decided),
        )
    yaml, demo = _dataset_yaml(request), _demo_yaml(request)
    named = demo or request.dataset or request.dataset_config_file
    return DataChoice(yaml, demo, {} if named else _pack_keys(request, yaml is not None))


def no_dataset() -> str:
    """Return the error message of a run without a data set."""
    known = ", ".join(config_names("datasets")) or "no configs/datasets folder found"
    return (
        "no dataset given: add --root DATA/ and --dataset NAME, or --images FOLDER with your "
        f"images, or --dataset-config-file FILE, or try --demo (known: {known})"
    )


def _own_data(request: Request) -> OwnData | None:
    """Return what ``--images`` or a coordinator's ``--site-file`` says of the data; None: neither.

    Raises:
        ConfigError: another flag names the data set too.
        DataError: the folder is none of images; says what it lacks.
    """
    given = request.given
    file = str(given.get("FED.SITE_FILE", ""))
    if not request.images and not file:
        return None
    others = [flag for flag, word in (
        ("--dataset", request.dataset), ("--dataset-config-file", request.dataset_config_file),
        ("--demo", request.demo), ("--root", "DATASET.ROOT" in given),
    ) if word]
    if others:
        says = "--site-file already defines the classes" if file else (
            "--images already defines the data")
        raise ConfigError(f"{says}: drop {others[0]}")
    if file:
        from fedvlm.data.own.site import server_set  # start-up: for site files only

        return server_set(user_path(file), request.images)
    from fedvlm.data.own.add import understand  # start-up: for folders of images only

    keys = {k: v for k, v in given.items() if k.startswith("DATASET.")
            or k in ("DATA_SEED", "CACHE_DIR", "FED.PARTITION", "FED.CLIENTS")}
    return understand(Path(request.images), keys)


def _dataset_yaml(request: Request) -> Path | None:
    words = [w for w in (request.dataset, request.dataset_config_file) if w]
    if len(words) > 1:
        raise ConfigError("give --dataset or --dataset-config-file, not both")
    if words and request.demo:
        raise ConfigError("--demo has its own data set; drop --demo or the dataset flag")
    if words:
        return _dataset_file(words[0])
    if request.demo or "DATASET.NAME" in request.pairs:
        return None
    pack = _pack(request)
    if pack is None:
        raise ConfigError(no_dataset())
    from fedvlm.data.packs.place import about_pack  # start-up: for packs only

    return dataset_config(about_pack(pack).name)


def _dataset_file(word: str) -> Path:
    """Return the dataset config that a path or a name means (``ConfigError``: none; lists all)."""
    path = dataset_config(word)
    if path is None and method_of(word):
        raise ConfigError(f"unknown data set '{word}'; '{word}' is a method: --trainer {word}; "
                          f"data sets are {', '.join(config_names('datasets'))}")
    return path or find_config(word, "datasets")


def _pack(request: Request) -> Path | None:
    """Return the feature pack that the root names; None where it names none."""
    root = str(request.given.get("DATASET.ROOT", ""))
    return pack_root(root)


def _pack_keys(request: Request, known: bool) -> Mapping[str, Value]:
    """Return the settings of the pack that is named in the place of a data set; none without.

    Args:
        known: the set has a config; of the pack comes only what makes it another set.
    """
    pack = None if "DATASET.NAME" in request.pairs else _pack(request)
    if pack is None:
        return {}
    from fedvlm.data.packs.place import about_pack, reading_settings  # start-up: for packs only

    about = about_pack(pack)
    return reading_settings(about) if known else about.settings | {"DATASET.NAME": about.name}


def _demo_yaml(request: Request) -> Path | None:
    if not request.demo:
        return None
    path = lookup("configs/demo.yaml", "")
    if path is None:
        raise ConfigError("--demo needs configs/demo.yaml, which is missing in this installation")
    return path
