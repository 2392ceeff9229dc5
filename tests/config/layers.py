"""A schema with one trainer's node, and a build that takes files, flags and opts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Option, declare
from fedvlm.core.errors import ConfigError

FEDTV = {"RANK": Option(8, "rank", low=1), "TEMP": Option(0.5, "tau", low=0, low_open=True)}
SCHEMA = declare(default_schema(), "TRAINER.FEDTV", FEDTV)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def build(
    *opts: str, dataset: Path | None = None, trainer: Path | None = None, **flags: Any
) -> Any:
    typed = {key.replace("__", "."): value for key, value in flags.items()}
    return build_config(dataset, trainer, typed, list(opts), SCHEMA)


def mistakes(*opts: str, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build(*opts, **more)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()
