"""A first word that is no verb: what it is instead, and the command that does what was wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedvlm.cli.verbs import Verb
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, did_you_mean, fold, nearest
from fedvlm.core.files import user_path
from fedvlm.federation.cards import method_of
from fedvlm.job.kinds import config_kind, dataset_of
from fedvlm.runs.names import is_finished


def unknown_verb(word: str, table: Mapping[str, Verb]) -> ConfigError:
    """Return the error: what the word is, and the command for that."""
    return ConfigError(f"unknown command '{word}'{_hint(word, table)} (known: {', '.join(table)})")


def _hint(word: str, table: Mapping[str, Verb]) -> str:
    also = {fold(other): name for name, verb in table.items() for other in verb.also()}
    if fold(word) in also:
        name = also[fold(word)]
        return f"; did you mean '{name}'? {table[name].sentence}"
    method = method_of(word)
    if method:
        return (f"; '{word}' is a method: fedvlm list {method} describes it, --trainer {method} "
                "runs it")
    near = did_you_mean(word, table)
    dataset = "" if near else dataset_of(word)
    if dataset:
        return (f"; '{word}' is a data set: --dataset {dataset} --root DATA/ runs on it, fedvlm "
                "doctor checks it")
    if "/" in word or not near:
        path = user_path(word)
        if path.exists():
            return f"; '{word}' is {_kind(path)}"
    if word.upper() in default_schema():
        return f"; config keys are in capitals: {word.upper()} VALUE"
    other = nearest(word, also)
    return near or (f"; did you mean '{also[fold(other)]}'?" if other else "")


def _kind(path: Path) -> str:
    """Return what a file or folder is, and the command that takes it."""
    if is_finished(path):
        return f"a finished run: fedvlm show {path}, fedvlm report {path}"
    if path.is_dir():
        return f"a folder: fedvlm table {path} for runs, fedvlm doctor --root {path} for data"
    if path.suffix == ".py":
        return f"a Python file: --trainer {path} for a run, fedvlm check {path}"
    return config_kind(path) if path.suffix in (".yaml", ".yml") else "a file that no command reads"
