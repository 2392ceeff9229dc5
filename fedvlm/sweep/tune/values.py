"""Values of a method's keys: as its file says, and as they were tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvlm.config.keys import method_schema
from fedvlm.config.option import Schema, Value, nodes
from fedvlm.config.read import read_yaml
from fedvlm.core.errors import ConfigError


def load_schema(name: str, named: bool = False) -> tuple[Any, Schema]:
    """Return a method's class and the keys that its file may set.

    Args:
        named: the plan of this command names the method; else a file of results does, which may
            name no method's own file that has not run here.

    Raises:
        ConfigError: there is no such method, or it is a file that the command does not name.
    """
    from fedvlm.federation.discovery import load_trainer, load_trusted  # start-up: PyTorch

    trainer = load_trainer(name) if named else load_trusted("tuned.json", name)[1]
    return trainer, method_schema(trainer)


def read_values(path: Path | None, schema: Schema) -> dict[str, Value]:
    """Return all values of a method that has read its file; None: the declared defaults.

    Raises:
        ConfigError: the file's mistakes.
    """
    lines, mistakes = read_yaml(path, nodes(schema)) if path is not None else ([], [])
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    config = {key: option.default for key, option in schema.items()}
    return config | {line.key: schema[line.key].parse(line.value) for line in lines}


def parse_value(schema: Schema, key: str, word: str, label: str) -> Value:
    """Return a tuned value.

    Raises:
        ConfigError: its key is gone, or its option refuses it now.
    """
    if key not in schema:
        raise ConfigError(f"{label}: was tuned over {key}, which no longer exists; tune it again")
    try:
        return schema[key].parse(word)
    except ValueError as error:
        raise ConfigError(f"{label}: {key} {error}") from None
