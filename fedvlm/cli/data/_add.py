"""``fedvlm data add``: a folder becomes a dataset YAML; prints how it was read."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path

from fedvlm.config.read import check_suffix
from fedvlm.console.screen import say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.data.formats.class_names import read_given
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.own.add import (
    CAPTIONS,
    CLASSNAMES_KEY,
    CLIENTS_BY,
    COLUMNS,
    GROUPS,
    LABELS,
    LEAVE_OUT_KEY,
    NAME_KEY,
    OwnSet,
    understand,
    yaml_text,
)


def add_folder(args: Namespace) -> int:
    """Understand the folder, write its YAML, say both; return the exit code.

    Raises:
        ConfigError: the YAML's place holds another file.
        DataError: the folder cannot be read as a data set, or images are missing (the YAML is
            there then, for the doctor, and no run is proposed); says how to mend it.
    """
    given = {NAME_KEY: args.name, LEAVE_OUT_KEY: args.leave_out, "CACHE_DIR": args.cache_dir,
             CLIENTS_BY: args.clients_by, GROUPS: args.groups, COLUMNS: args.columns,
             LABELS: args.labels, CAPTIONS: args.captions,
             CLASSNAMES_KEY: read_given(args.classnames)}
    own = understand(Path(args.dataset), {key: value for key, value in given.items() if value})
    place = _place(own, args.to)
    there = _write(place, yaml_text(own))
    method = f"FedAvg --peft {'lora' if own.data.captioned else 'head'}"
    if {d.client for d in own.data.unlabelled} - {d.client for d in own.data.train_x}:
        method = "SAGE"  # others refuse clients that have only images without a label
    root, samples = shlex.quote(str(own.keys["DATASET.ROOT"])), "images"
    if own.of_texts:
        samples, method = "texts", "FedAvg --peft head --backbone transformers-text:FOLDER"
    lost = _missing(own)
    its = f"--dataset-config-file {shlex.quote(str(place))}"
    judge = ["ask whether it pays to train together: fedvlm advise " + its
             ] if not own.data.captioned and not own.of_texts else []
    train = [*judge, f"train on it: fedvlm run {its} --trainer {method}"] if lost is None else []
    mended = "" if lost is None else ", with which no run starts before the images are there"
    say(own.sentence, *(f"note: {note}" for note in own.shown),
        f"{'there already' if there else 'wrote'} {place}{mended}", *train,
        f"look at all its {samples}: fedvlm doctor --root {root}"
        f" --dataset-config-file {shlex.quote(str(place))} --full")
    if lost is not None:
        raise lost
    return 0


def _missing(own: OwnSet) -> DataError | None:
    """Return the error of a set whose images are not all there."""
    try:
        ImageRecords.refuse_missing([
            d.impath for d in (*own.data.all(), *own.data.unlabelled)
            if d.array is None and d.packed is None])
    except DataError as error:
        return error
    return None


def _place(own: OwnSet, to: str) -> Path:
    path = user_path(to) if to else Path(f"{own.keys[NAME_KEY]}.yaml")
    path = path / f"{own.keys[NAME_KEY]}.yaml" if path.is_dir() else path
    check_suffix(path)
    return path


def _write(place: Path, text: str) -> bool:
    """Write the YAML unless the same is there; return whether it was."""
    if place.exists():
        if not place.is_file() or place.read_text(encoding="utf-8", errors="replace") != text:
            raise ConfigError(f"{place} already exists with other content and is not "
                              "overwritten: choose another file with --to FILE.yaml, or remove "
                              "it first")
        return True
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(place, text)
    except OSError as error:
        raise ConfigError(f"cannot write {place}: {error.strerror}; choose another file with "
                          "--to FILE.yaml") from error
    return False
