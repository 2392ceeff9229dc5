"""``fedvlm federation`` where nothing runs; ``--engine flower`` before data are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from yacs.config import CfgNode

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.distributed.flower.place import SitePlan, new_place
from fedvlm.job.sites.parties import check_sites
from tests import jobs


@pytest.mark.parametrize(("words", "said"), [
    (("upp",), "unknown word 'upp'; did you mean 'up'?"),
    (("up",), "up needs --loopback N (how many sites), a site.yaml for each, or --li"),
    (("up", "--loopback", "99"), "--loopback 99: 1 to 64 sites"),
    (("down", "--loopback", "2"), "down does not read --loopback"),
    (("down", "--json"), "down does not read --json"),
    (("up", "--loopback", "2", "a.yaml"), "give --loopback N or files of sites, not both"),
    (("down", "a.yaml"), "down does not read a.yaml"),
    (("up", "--loopback", "2", "--listen", "a:1"), "give --loopback N or --listen, not both"),
    (("up", "--reach", "a:1"), "--reach needs --listen"),
    (("up", "--listen", "7400"), "--listen: '7400' is no address"),
    (("up", "--listen", "0.0.0.0:7400"), "is not an address that a site can reach: add --reach "
                                         "HOST:PO"),
    (("status", "--listen", "a:1"), "status does not read --listen"),
    (("admit",), "admit needs the public key of a site: FILE.pub"),
    (("admit", "a.pub", "b.pub", "--name", "c"), "--name works with one key"),
    (("admit", "a.pub"), "there is no federation in"),
    (("dismiss",), "dismiss needs the name of one site"),
    (("up", "a.yaml"), "a.yaml' does not exist; create it with fedvlm site make"),
    (("status",), "there is no federation in"),
    (("up", "--loopback", "2"), "has no flower-superlink: python3 -m venv flower &&"),
])  # fmt: skip
def test_what_does_not_go_is_one_sentence(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDVLM_FLOWER", str(tmp_path))
    assert main(["federation", *words]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_status_and_down_of_what_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "federation"
    new_place(folder, tmp_path, [""])
    where = ("--federation", str(folder))
    assert main(["federation", "status", *where]) == 1
    said = capsys.readouterr().out
    assert "link is not running" in said and f"fedvlm federation up --federation {folder}" in said
    assert main(["federation", "status", "--json", *where]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [p["name"] for p in told["processes"]] == ["link", "site0"]
    assert main(["federation", "down", *where]) == 0
    assert "nothing was running" in capsys.readouterr().out
    assert main(["federation", "up", "--loopback", "3", *where]) == 2
    assert "is a federation of 1 other sites: end it" in capsys.readouterr().err


def test_sites_and_clients_have_to_fit_before_data_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "federation"
    place = new_place(folder, tmp_path, [""] * 2)
    engine = ("--engine", "flower", "--federation", str(folder))
    for more, said in (
        (("--engine", "flower", "--federation", str(tmp_path / "no")), "there is no federation in"),
        (engine, "has 2 sites and no clients for them: set FED.SITES 0,1"),
        ((*engine, "FED.SITES", "0-1"), "FED.SITES 0-1 defines 1: set FED.SITES 0,1"),
        ((*engine, "--workers", "2"),
         "--workers 2 has no effect with --engine flower: use --engine workers"),
    ):
        assert jobs.run(tmp_path / "out", *more) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    keys = {"FEDERATION": str(folder), "SITE_FILE": "x", "SITES_AT": "a"}
    with pytest.raises(ConfigError, match="have no data of their own: use --engine flower"):
        check_sites(CfgNode({"FED": keys}))
    replace(place, sites=(SitePlan("site0", "site.yaml"),)).write()
    with pytest.raises(ConfigError, match="cannot be combined with --sites-at"):
        check_sites(CfgNode({"FED": keys}))
    check_sites(CfgNode({"FED": keys | {"SITES_AT": ""}}))
    assert jobs.run(tmp_path / "out", *engine) == 2
    assert "have their own data: use --engine sites --federation" in capsys.readouterr().err
