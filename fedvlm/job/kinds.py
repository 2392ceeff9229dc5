"""What a word that stands in the wrong place is: a method, a data set, a file of a run."""

from __future__ import annotations

from pathlib import Path

from fedvlm.config.read import lookup
from fedvlm.core.errors import fold
from fedvlm.data.catalog import dataset_info
from fedvlm.federation.cards import trainer_files


def method_of(word: str) -> str:
    """Return the file stem of the method that a word names; '' where it names none."""
    return next((stem for stem in trainer_files() if fold(stem) == fold(word)), "")


def dataset_of(word: str) -> str:
    """Return the name of the data set that a word names; '' where it names none."""
    info = dataset_info(word)
    config = lookup(word, "datasets") if "." not in word and "/" not in word else None
    return config.stem if config else info.name if info else ""


def flag_for(word: str) -> str:
    """Return what a word without a flag may have meant: ``; 'fedtv' is a method: --trainer fedtv``.

    An empty string where it is nothing that a run takes.
    """
    if method_of(word):
        return f"; '{word}' is a method: --trainer {word}"
    if dataset_of(word):
        return f"; '{word}' is a data set: --dataset {word}"
    path = Path(word)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        kind = "trainer" if path.parent.name == "trainers" else "dataset"
        plan = f", or fedvlm sweep {word}" if path.parent.name == "sweeps" else ""
        return f"; '{word}' is a file: --{kind}-config-file {word}{plan}"
    if path.is_dir():
        return f"; '{word}' is a folder: --root {word} of data sets, --output-dir {word} of runs"
    return ""
