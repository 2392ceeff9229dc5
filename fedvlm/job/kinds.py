"""What a word names: a method, a data set, a file; wherever it stands."""

from __future__ import annotations

from pathlib import Path

from fedvlm.config.read import lookup
from fedvlm.core.errors import fold
from fedvlm.core.files import user_path
from fedvlm.data.catalog import dataset_info
from fedvlm.federation.cards import method_of


def dataset_of(word: str) -> str:
    """Return the name of the data set that a word names; '' where it names none."""
    info = dataset_info(word)
    config = dataset_config(word) if fold(word).isalnum() else None
    return config.stem if config else info.name if info else ""


def dataset_config(word: str) -> Path | None:
    """Return the config of a path, a config's name or a set's other name; None without one."""
    info = dataset_info(word)
    words = (word, info.name, info.folder, *info.aliases) if info else (word,)
    return next(filter(None, (lookup(word, "datasets") for word in words)), None)


def flag_for(word: str) -> str:
    """Return what a word without a flag may have meant: ``; 'fedtv' is a method: --trainer fedtv``.

    An empty string where it is nothing that a run takes.
    """
    if method_of(word):
        return f"; '{word}' is a method: --trainer {word}"
    if dataset_of(word):
        return f"; '{word}' is a data set: --dataset {word}"
    path = user_path(word)
    if path.suffix == ".py" and path.is_file():
        return f"; '{word}' is a Python file: --trainer {word}"
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return f"; '{word}' is {config_kind(path)}"
    if path.is_dir():
        return f"; '{word}' is a folder: --root {word} for data sets, --output-dir {word} for runs"
    return ""


def config_kind(path: Path) -> str:
    """Return what a YAML file is, by its folder, and the words that take it."""
    if path.parent.name == "sweeps":
        return f"a plan: fedvlm sweep {path}"
    if path.parent.name in ("trainers", "datasets"):
        return f"a config: --{path.parent.name[:-1]}-config-file {path}"
    return (f"a YAML file: --dataset-config-file {path}, --trainer-config-file {path}, or a plan: "
            f"fedvlm sweep {path}")
