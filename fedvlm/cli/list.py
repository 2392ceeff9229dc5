"""``list``: the methods and their cards; ``config``: the settings; ``show``: finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvlm.config.keys import default_schema
from fedvlm.config.option import Schema, declare
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.federation.cards import card, trainer_files, year


def main(argv: Sequence[str]) -> int:
    """List all methods, or print the card (the module docstring) of each that is named.

    Raises:
        ConfigError: unknown method.
    """
    files = trainer_files()
    if not argv:
        say(*_rows(files))
        return 0
    for word in argv:
        if word.partition(":")[0].endswith(".py"):
            say(*card(Path(word.partition(":")[0]).expanduser()).splitlines())
            continue
        stem = next((s for s in files if fold(s) == fold(word)), None)
        if stem is None:
            near, known = did_you_mean(word, files), ", ".join(files) or "none"
            raise ConfigError(f"unknown trainer '{word}'{near} (known: {known})")
        say(*card(files[stem]).splitlines())
    return 0






def _rows(files: dict[str, Path]) -> list[str]:
    rows = []
    for stem, path in files.items():
        text = card(path)
        name, _, line = text.partition("\n")[0].partition(":")
        rows.append({"name": name if line else stem, "year": year(text), "method": line.strip()})
    return table_lines(rows) or ["no trainers/ folder found"]


def config(argv: Sequence[str]) -> int:
    """Print every config key with default, range and help; with flags, the config they give.

    ``fedvlm config``, ``fedvlm config FED``, ``fedvlm config --dataset eurosat --shots 4``.
    """
    if any(word.startswith("-") for word in argv):
        from fedvlm.cli.run import run

        return run([*argv, "--print-config"])
    from fedvlm.cli.parser import reference_lines
    word = argv[0] if argv else ""
    schema = _with_trainer(default_schema(), word)
    lines = reference_lines(schema, word)
    if not lines:
        raise ConfigError(f"no config key holds '{word}'{did_you_mean(word, schema)}")
    say(*lines)
    return 0


def _with_trainer(schema: Schema, word: str) -> Schema:
    """Add a trainer's own options where ``word`` names it (``fedvlm config fedtv``)."""
    name = word.upper().removeprefix("TRAINER.").split(".")[0]
    if not name or any(key.split(".")[0] == name for key in schema):
        return schema
    from fedvlm.federation.cards import trainer_files
    from fedvlm.federation.discovery import load_trainer

    if all(fold(name) != fold(stem) for stem in trainer_files()):
        return schema
    trainer = load_trainer(name)
    return declare(schema, f"TRAINER.{trainer.name.upper()}", trainer.options)


def show(argv: Sequence[str]) -> int:
    """Print the headline numbers of finished runs: ``fedvlm show RUN_FOLDER ...``.

    Raises:
        ConfigError: no folder given.
        DataError: a folder without a readable ``results.json``.
    """
    if not argv:
        raise ConfigError("show wants a run folder: fedvlm show output/...")
    for word in argv:
        results = _results(Path(word))
        say(word, *(f"  {key} {value}" for key, value in _plain(results).items()))
    return 0


def _results(folder: Path) -> dict[str, Any]:
    path = folder / "results.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read ({error.strerror}); is the run finished?"
        raise DataError(f"{path}: {why}") from None
    except ValueError:
        raise DataError(f"{path}: is not valid JSON; the run folder is damaged") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: does not hold a result; the run folder is damaged")
    return found


def _plain(results: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return numbers and words by dotted name; lists (per client, per round) are left out."""
    flat: dict[str, Any] = {}
    for key, value in results.items():
        if isinstance(value, dict):
            flat |= _plain(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            flat[prefix + key] = value
    return flat
