"""The layout of clients over chunks and sites: the same one gives the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedvlm.core.errors import ConfigError
from tests import jobs

KEY = "FED.SITES"
UNEQUAL = ("--num-users", "5", "--shots", "16", "--trainer", "SCAFFOLD", "--opts",
           "FED.PARTITION", "dirichlet", "FED.BETA", "0.3")


def run(folder: Path, sites: str) -> int:
    return jobs.run(folder, *UNEQUAL, KEY, sites)


def test_layouts_differ_in_bits_and_one_layout_does_not(tmp_path: Path) -> None:
    """SCAFFOLD: a client's batches are as wide as the largest of its chunk (7e-6 here)."""
    for name, sites in (("one", ""), ("two", "0-1,2-4"), ("again", "0-1,2-4")):
        assert run(tmp_path / name, sites) == 0
    jobs.same(tmp_path / "two", tmp_path / "again")
    one, two = (jobs.state(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert any(not torch.equal(one[n], two[n]) for n in one)
    assert all(torch.allclose(one[n], two[n], atol=1e-4) for n in one)
    configs = [
        json.loads((jobs.folder(tmp_path / name) / "manifest.json").read_text())["identity"]
        for name in ("one", "two")
    ]
    assert KEY not in configs[0]["config"] and configs[1]["config"][KEY] == "0-1,2-4"


def test_another_layout_is_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "0-1,2-4") == 0
    for sites in ("", "0-2,3-4"):
        assert run(tmp_path, sites) == ConfigError.exit_code
        assert f"{KEY}: \"0-1,2-4\" ->" in capsys.readouterr().err


def test_sites_that_miss_a_client_are_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for sites, said in (("0-1,3-4", "client 2 is at no site"), ("a", "must be ranges of clients")):
        assert run(tmp_path, sites) == ConfigError.exit_code
        assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("manifest.json"))
