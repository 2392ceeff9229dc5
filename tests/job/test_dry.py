"""The dry run's count of images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedvlm.job import run as job_run
from tests import jobs


@pytest.mark.usefixtures("few_images")
def test_dry_run_counts_the_images_that_a_run_encodes(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(job_run, "progress", lambda *said: seen.append(said))
    own = ("--opts", "CACHE_DIR", str(tmp_path / "cache"))
    assert jobs.run(tmp_path / "a", "--dry-run", *own) == 0
    assert jobs.run(tmp_path / "b", "--dry-run", "--workers", "2", *own) == 2
    assert jobs.run(tmp_path / "b", "--dry-run", "--metric", "aurco", *own) == 2
    assert jobs.run(tmp_path / "b", "--dry-run", *own, "TEST.CALIBRATE", "True",
                    "DATASET.VAL_SHOTS", "0") == 2
    told = re.search(r"([\d,]+)\s+images\s+to\s+encode", capsys.readouterr().out)
    assert jobs.run(tmp_path / "a", *own) == 0
    encoded = max(of for what, _, of in seen if what.startswith("encoding"))
    assert told and int(told[1].replace(",", "")) == encoded
