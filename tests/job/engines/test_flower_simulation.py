"""``--engine flower-sim``: the job by workers whose frames go through Flower and Ray.

The run itself wants both (``make test-flower``); elsewhere it is skipped, unless ``FEDVLM_RAY``
says that they are there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.distributed.flower import commands
from tests import jobs
from tests.job.workers.test_worker_processes import same

WORDS = (
    "run", "--demo", "--shots", "8", "--rounds", "2", "--num-users", "12", "--partition", "iid",
    "--local-epochs", "1", "--trainer", "FedTV", "--opts", "TEST.REFERENCES", "False",
)
ENGINE = ("--engine", "flower-sim", "--workers", "2")


@pytest.mark.flower
def test_a_run_through_ray_has_the_bits_of_the_local_engine(tmp_path: Path) -> None:
    try:
        commands.find_ray()
    except ConfigError as error:
        if os.environ.get("FEDVLM_RAY"):  # make test-flower says that it is there
            pytest.fail(str(error))
        pytest.skip(str(error))
    local, away = tmp_path / "local", tmp_path / "away"
    assert main([*WORDS[:1], "--output-dir", str(local), *WORDS[1:]]) == 0
    assert main([*WORDS[:1], "--output-dir", str(away), *ENGINE, *WORDS[1:]]) == 0
    same(away, local)
    assert (jobs.folder(away) / "workers" / "flower.log").is_file()


def test_without_ray_it_is_refused_before_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(commands.VARIABLE, str(tmp_path))
    assert main([*WORDS[:1], "--output-dir", str(tmp_path / "o"), *ENGINE, *WORDS[1:]]) == 2
    assert f"{commands.VARIABLE}={tmp_path} has no flower-superlink" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
