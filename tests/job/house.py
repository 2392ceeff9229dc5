"""A folder with configs, and a stand-in for a trainer: flags become configs without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fedvlm.config.option import Option
from fedvlm.core.errors import ConfigError, fold
from fedvlm.job.flags import parse
from fedvlm.job.resolve import Jobs, resolve


class FakeTrainer:
    """Stands for a trainer: name and options are all that the command line reads."""

    name = "FedTV"
    options = {"RANK": Option(8, "rank", low=1), "VARIANT": Option("published", "bundle")}


def jobs(line: str) -> Jobs:
    def load(spec: str) -> Any:
        if fold(spec) != "fedtv" and ".py" not in spec:
            raise ConfigError(f"unknown trainer '{spec}'")
        return FakeTrainer

    with mock.patch("fedvlm.job.resolve._load", load):
        return resolve(parse(line.split()))


def mistakes(line: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        jobs(line)
    return str(caught.value).splitlines()


def make_house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with configs, which is the current one."""
    (tmp_path / "configs" / "datasets").mkdir(parents=True)
    (tmp_path / "configs" / "trainers").mkdir()
    (tmp_path / "configs/datasets/oxford_pets.yaml").write_text(
        "DATASET:\n  NAME: OxfordPets\n  NUM_SHOTS: 8\nOPTIM:\n  LR: 0.5\n"
    )
    (tmp_path / "configs/trainers/fedtv.yaml").write_text("OPTIM:\n  LR: 0.4\n  MOMENTUM: 0.5\n")
    (tmp_path / "configs/demo.yaml").write_text("DATASET: {NAME: shapes}\nOPTIM: {LR: 0.3}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*lines: str) -> list[str]:
    return " ".join(lines).split()
