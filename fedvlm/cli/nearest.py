"""What a wrong word or folder is nearest to, and the command that does what was wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedvlm.cli.verbs import Verb
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, did_you_mean, fold


def unknown_verb(word: str, table: Mapping[str, Verb]) -> ConfigError:
    """Return the error for a first word that is no verb: what it is, and the command for that."""
    from fedvlm.job.kinds import dataset_of, method_of  # start-up: NumPy, for a mistake only

    also = {fold(other): name for name, verb in table.items() for other in (*verb.also(), name)}
    near = did_you_mean(word, table)
    if fold(word) in also:
        hint = f"; did you mean '{also[fold(word)]}'? {table[also[fold(word)]].sentence}"
    elif method := method_of(word):
        hint = f", it is a method: fedvlm list {method} describes it, fedvlm --trainer {method} ..."
    elif not near and (dataset := dataset_of(word)):
        hint = f", it is a data set: fedvlm --dataset {dataset} --root DATA/, or fedvlm doctor"
    elif Path(word).expanduser().exists():
        hint = f", it is {_of_path(Path(word).expanduser())}"
    elif word.upper() in default_schema():
        hint = f"; config keys are in capitals: {word.upper()} VALUE"
    else:
        hint = near or did_you_mean(word, also)
    return ConfigError(f"unknown command '{word}'{hint} (known: {', '.join(table)})")


def nearest_path(path: Path) -> str:
    """Return ``; did you mean 'output/eurosat'?`` for a path that does not exist.

    From the deepest folder above it that does exist the next name is compared with what is there;
    a file stands for its folder.
    """
    if path.is_file():
        return f"; did you mean its folder, '{path.parent}'?"
    above = next(p for p in path.absolute().parents if p.is_dir())
    wanted = path.absolute().relative_to(above).parts
    try:
        names = [p.name for p in above.iterdir() if p.is_dir()]
    except OSError:
        return ""
    near = did_you_mean(wanted[0], names)
    if not near:
        return "" if len(wanted) == len(path.parts) else f"; there is {_shown(above, path)}"
    name = near.partition("'")[2].rpartition("'")[0]
    whole = above.joinpath(name, *wanted[1:])
    return f"; did you mean '{_shown(whole if whole.exists() else above / name, path)}'?"


def _of_path(path: Path) -> str:
    if path.suffix == ".py":
        return f"a Python file: fedvlm --trainer {path} ..., fedvlm check {path}"
    if path.suffix in (".yaml", ".yml"):
        if path.parent.name == "sweeps":
            return f"a plan: fedvlm sweep {path}"
        kind = "trainer" if path.parent.name == "trainers" else "dataset"
        return f"a config: fedvlm --{kind}-config-file {path} ..., or a plan: fedvlm sweep {path}"
    if (path / "results.json").is_file():
        return f"a finished run: fedvlm show {path}, fedvlm report {path}"
    if path.is_dir():
        return f"a folder: fedvlm table {path} for runs, fedvlm doctor --root {path} for data"
    return "a file that no command reads"


def _shown(path: Path, typed: Path) -> str:
    """Return a path as it was typed: relative where that was."""
    here = Path.cwd()
    return str(path if typed.is_absolute() or not path.is_relative_to(here)
               else path.relative_to(here))
