"""A site leaves a finished run: the others do it again, and the site erases what it keeps."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from yacs.config import CfgNode

from fedvlm.api import forget
from fedvlm.api.forget import plan_forgetting
from fedvlm.api.forgetting import parting
from fedvlm.cli.main import main
from fedvlm.cli.site._erase import _erase, kept_of_runs, lists_without
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.own.site import SiteFile, read_site
from fedvlm.distributed.flower import network
from fedvlm.distributed.flower.place import read_place
from fedvlm.distributed.site_yaml import SiteYaml, read_site_yaml
from fedvlm.distributed.terms import Terms
from fedvlm.job.resolve import run_config
from fedvlm.job.sites import parties
from fedvlm.job.sites.resident import serving
from fedvlm.runs.finished import read_finished
from fedvlm.runs.metrics import read_metrics
from tests import flower, jobs
from tests.job.sites.places import NAMES, WORDS, Line, federated, make

APFL = ("--trainer", "APFL")
BARE = ("TEST.REFERENCES", "False")


@pytest.fixture(scope="module")
def ran(few: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two parties, and the folder of two finished runs over them; for reading."""
    place, out = make(tmp_path_factory.mktemp("parties")), tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        for tag in ("one", "two"):
            assert federated(place, out, patch, *APFL, "--tag", tag)[0] == 0
    return place, out


@pytest.fixture
def place(ran: tuple[Path, Path], tmp_path: Path) -> Path:
    """The parties after both runs, to change."""
    return shutil.copytree(ran[0], tmp_path / "parties")


@pytest.fixture
def runs(ran: tuple[Path, Path], tmp_path: Path) -> list[Path]:
    """Both runs, to change."""
    return sorted(read_runs(shutil.copytree(ran[1], tmp_path / "out")))


def others(place: Path, patch: pytest.MonkeyPatch, away: str) -> Line:
    """Only the sites that stay are there."""
    line = Line(place, ("", 0), ("", 0), {})
    line.answers.pop(away, None)
    patch.setattr(parties, "sites_of", lambda cfg: line)
    return line


def test_the_others_give_the_bits_of_a_run_it_was_never_in(
    place: Path, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Against the run that sees all images, from which the client is away from round 1."""
    old = runs[0]
    assert main(["forget", str(old), "--client", "site1", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "to forget: site1 (10 train" in said and "away from round 1: client 1" in said
    assert "its owner erases them (fedvlm site forget)" in said
    everybody = Line(place, ("", 0), ("", 0), {})
    monkeypatch.setattr(parties, "sites_of", lambda cfg: everybody)
    assert main(["forget", str(old), "--client", "1"]) == 2
    assert "site1 has client 1, which this run has forgotten" in capsys.readouterr().err
    line = others(place, monkeypatch, "site1")
    assert main(["forget", str(old), "--client", "1"]) == 0
    (file,) = (tmp_path / "out").rglob("forgotten.json")
    told, new = json.loads(file.read_text()), read_finished(file.parent)
    run = read_finished(old)
    assert run is not None and new is not None and len(line.frames) > 4
    assert (told["unit"], told["clients"], told["from_round"]) == ("site", [1], 1)
    assert (told["of"], told["without"]) == (run.digest, new.digest)
    assert main(["verify", str(file.parent)]) == 0
    assert jobs.run(tmp_path / "away", *APFL, "FED.SITES", "0,1",
                    "FED.UNRELIABLE.AWAY", "1:1-", *BARE) == 0
    newest = sorted(file.parent.glob("state/round_*.safetensors"))[-1]
    theirs = {n: v for n, v in jobs.state(tmp_path / "away").items() if n.startswith("server|")}
    ours = safetensors.torch.load_file(newest)
    assert theirs and ours.keys() == theirs.keys()
    assert all(torch.equal(v, ours[n]) for n, v in theirs.items())
    before = safetensors.torch.load_file(sorted(old.glob("state/round_*.safetensors"))[-1])
    assert any(not torch.equal(v, ours[n]) for n, v in before.items()), "it had a part in them"
    for row in new.rounds():
        assert 1 not in [c["client"] for c in row.get("clients", ())] + row["participants"]
    with pytest.raises(ConfigError, match="it was forgotten before"):
        plan_forgetting(file.parent, client="1")
    with pytest.raises(ConfigError, match="no site is left that trained"):
        plan_forgetting(file.parent, client="0")
    with pytest.raises(ConfigError, match="the run has the sites site0, site1.*did you mean"):
        plan_forgetting(old, client="site3")


def test_a_site_erases_what_it_keeps_and_says_who_else_knows(
    place: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    yaml = place / "site0" / "site.yaml"
    states = read_site_yaml(yaml).states
    run = (runs[0] / "sites" / "run").read_text().strip()
    assert (states / run).is_dir() and (states / ".runs" / f"{run}.json").is_file()
    with serving(read_site_yaml(yaml)):
        assert main(["site", "forget", str(yaml)]) == 2
        assert "already serves this site" in capsys.readouterr().err
    assert main(["site", "forget", str(yaml), "nobody"]) == 2
    assert "'nobody' begins no run that this site keeps" in capsys.readouterr().err
    assert main(["site", "forget", str(yaml), ""]) == 2  # an empty variable is not all runs
    assert "'' begins no run that this site keeps" in capsys.readouterr().err
    assert main(["site", "forget", str(yaml), run[:8], "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"to erase: {states / run}" in said and (states / run).is_dir()
    assert f"run {run[:12]}: updates of 2 rounds, 1 to 2, left this site" in said
    assert main(["site", "forget", str(yaml), run[:8]]) == 0
    assert not [p for p in states.rglob("*") if run in p.name]
    assert (states / "messages.jsonl").is_file() and (states / ".noise").is_file()
    assert main(["site", "forget", str(yaml)]) == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert "models that fedvlm site export wrote" in told  # they lie elsewhere
    left = {p.name for p in states.rglob("*") if p.is_file()}
    assert left == {".noise", "messages.jsonl"}


def test_what_protects_earlier_messages_and_folders_of_others_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without ASKED a coordinator could ask again for fewer clients, and subtract."""
    owner = SiteYaml(tmp_path / "site.json", tmp_path / "images", tmp_path, Terms())
    name, alone = "ab" * 32, "cd" * 32
    for place in (tmp_path / "images", tmp_path / "backup", tmp_path / name, tmp_path / alone):
        place.mkdir()
        (place / "file").write_text("x")
    (tmp_path / name / "asked.json").write_text("{}")
    assert kept_of_runs(owner).keys() == {name, alone}
    assert kept_of_runs(replace(owner, images=tmp_path / name / "deep")).keys() == {alone}
    assert _erase(owner, None, False) == 0
    left = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert left == [f"{name}/asked.json", "backup/file", "images/file"]
    assert kept_of_runs(owner) == {}
    said = capsys.readouterr()
    assert f"erased: {tmp_path / name} (1 B)" in said.out
    assert "asked.json of a run, which keep anybody from asking again" in said.err


def test_a_log_that_was_changed_is_refused_before_anything_goes(place: Path) -> None:
    states = read_site_yaml(place / "site1" / "site.yaml").states
    log, before = states / "messages.jsonl", sorted(states.rglob("*"))
    whole = log.read_text()
    log.write_text(whole.replace('"round": 1', '"round": 7', 1))
    assert main(["site", "forget", str(place / "site1" / "site.yaml")]) == 3
    assert sorted(states.rglob("*")) == before
    log.write_text(whole)


def test_another_run_of_the_site_is_listed_and_secure_sums_are_refused(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = runs
    assert main(["forget", str(one), "--client", "site0", "--dry-run"]) == 0
    assert f"{two} (another run with this site)" in capsys.readouterr().out
    monkeypatch.setattr(forget, "run_config", lambda *a: summed(run_config(*a)))
    with pytest.raises(ConfigError, match="has secure sums.*difference of two sums"):
        plan_forgetting(one, client="site0")


def test_a_patient_and_a_client_of_a_site_leave_with_the_bits_of_one_process(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Site 0 has clients 0 and 1; images of clients 0 and 2 leave, then client 1 the new run."""
    place, out, alone = make(tmp_path / "three", "0-1,2", 3), tmp_path / "out", tmp_path / "alone"
    yaml, three = place / "site0" / "site.yaml", (*APFL, "--num-users", "3", *BARE)
    states = read_site_yaml(yaml).states
    assert federated(place, out, monkeypatch, *three)[0] == 0
    assert jobs.run(alone, *three, "FED.SITES", "0-1,2") == 0
    (old,), (one,) = read_runs(out), read_runs(alone)
    held = read_site(place / "site0" / "site.json")
    first = held.clients[0]
    names = [path for path, _ in (*first["train"][:2], first["test"][0])]
    (tmp_path / "list.txt").write_text("\n".join(names))
    with_images = ("--images", str(tmp_path / "list.txt"))
    (tmp_path / "other.txt").write_text(
        read_site(place / "site1" / "site.json").clients[2]["train"][0][0])
    (tmp_path / "both.txt").write_text("\n".join(
        (tmp_path / name).read_text() for name in ("list.txt", "other.txt")))
    assert main(["forget", str(old), "--images", "site0"]) == 2
    assert "site0 still has all its images: its owner first takes" in capsys.readouterr().err
    assert main(["site", "forget", str(yaml), *with_images, "--dry-run"]) == 0
    assert read_site(place / "site0" / "site.json") == held and kept_of_runs(read_site_yaml(yaml))
    said = capsys.readouterr().out
    assert "leaving the lists: 2 train, 0 val, 1 test images of client 0\n" in said
    assert main(["site", "forget", str(yaml), *with_images]) == 0
    assert "ask for fedvlm forget RUN --images SITE" in capsys.readouterr().out
    assert kept_of_runs(read_site_yaml(yaml)) == {} and (states / "messages.jsonl").is_file()
    assert not {*names} & {*read_site(place / "site0" / "site.json").paths()}
    assert main(["site", "forget", str(place / "site1" / "site.yaml"), "--images",
                 str(tmp_path / "other.txt")]) == 0
    new = forgotten(old, capsys, "--images", "site0,site1")
    told = json.loads((new / "forgotten.json").read_text())
    assert (told["unit"], told["clients"]) == ("images", [])
    assert told["images"] == {"train": 3, "val": 0, "test": 1, "server": 0}
    less = forgotten(one, capsys, "--images", str(tmp_path / "both.txt"))
    assert_same_server(new, less)
    with pytest.raises(AssertionError):
        assert_same_server(new, old)
    assert main(["verify", str(new)]) == 0

    assert main(["forget", str(new), "--client", "1"]) == 2
    assert "site0 still has client 1: its owner" in capsys.readouterr().err
    assert main(["site", "forget", str(yaml), "--client", "1"]) == 0
    assert list(read_site(place / "site0" / "site.json").clients) == [0]
    last = forgotten(new, capsys, "--client", "1")
    told = json.loads((last / "forgotten.json").read_text())
    assert (told["unit"], told["clients"]) == ("client", [1])
    assert main(["site", "record", str(yaml)]) == 0
    assert "the owner took 3 images out of the lists" in (yaml.parent / "record.md").read_text()
    assert_same_server(last, forgotten(less, capsys, "--client", "1"))
    assert all(1 not in row["participants"] for row in read_metrics(last / "metrics.jsonl")[0])
    with pytest.raises(ConfigError, match="it was forgotten before"):
        plan_forgetting(last, client="1")


@pytest.mark.flower
def test_images_of_a_site_leave_a_run_over_flower(
    few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bits of one process; the site is known again by the key that it proves, over TLS."""
    flower.need()
    place, out, alone = make(tmp_path / "two"), tmp_path / "out", tmp_path / "alone"
    yamls, at = [str(place / name / "site.yaml") for name in NAMES], place / "federation"
    first = read_site(place / "site0" / "site.json").clients[0]
    less = tmp_path / "list.txt"
    less.write_text("\n".join(path for path, _ in (*first["train"][:2], first["test"][0])))

    def up() -> None:
        code, text = flower.said(flower.started(
            "federation", "up", *yamls, "--federation", str(at)))
        assert code == 0 and "2 sites in it" in text, text

    try:
        up()
        assert main([
            "run", "--engine", "sites", "--federation", str(at), "--site-file",
            str(place / "server" / "site.json"), "--images", str(place / "server" / "images"),
            "--output-dir", str(out), *WORDS, *APFL, *flower.QUICK]) == 0
        (old,) = read_runs(out)
        network.down(read_place(at))  # one process holds a site's states
        assert main(["site", "forget", yamls[0], "--images", str(less)]) == 0
        up()
        capsys.readouterr()
        new = forgotten(old, capsys, "--images", "site0")
    finally:
        network.down(read_place(at))
    met = [json.loads((run / "sites" / "met.json").read_text()) for run in (old, new)]
    for name in NAMES:
        assert met[0][name]["key"] and met[0][name]["key"] == met[1][name]["key"]
    assert met[0]["site1"] == met[1]["site1"] and met[0]["site0"] != met[1]["site0"]
    assert json.loads((new / "forgotten.json").read_text())["images"] == {
        "train": 2, "val": 0, "test": 1, "server": 0}
    assert jobs.run(alone, *APFL, "FED.SITES", "0,1") == 0
    assert_same_server(new, forgotten(read_runs(alone)[0], capsys, "--images", str(less)))
    with pytest.raises(AssertionError):
        assert_same_server(new, old)


def test_what_leaves_the_lists_of_a_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shared images stay; a client below the rule 'count' leaves whole; nobody left is refused."""
    def lists(*train: str) -> dict[str, list[tuple[str, int]]]:
        return {"train": [(n, 0) for n in train], "val": [], "test": [(f"{train[0]}t", 0)]}

    owner = SiteYaml(tmp_path / "site.json", tmp_path, tmp_path / "states", Terms(count=2))
    (tmp_path / "patient").mkdir()
    file = SiteFile("Set", ["a"], ["{}"], {0: lists("a", "b", "c"), 1: lists("c", "patient/d")},
                    public=[("patient/p", 0), ("b", 0)])
    alone, words = lists_without(owner, file, 1, "")
    assert list(alone.clients) == [0] and alone.clients[0] == file.clients[0]
    assert words == ["leaving the lists: 2 train, 0 val, 1 test images of client 1"]
    less, words = lists_without(owner, file, None, str(tmp_path / "patient"))
    assert list(less.clients) == [0] and less.public == [("b", 0)]
    assert "client 1 leaves with all its images: fewer than 2 training images" in words[1]
    (tmp_path / "list").write_text("b\nc\n")
    with pytest.raises(ConfigError, match="no client of this site would be left"):
        lists_without(owner, file, None, str(tmp_path / "list"))
    with pytest.raises(ConfigError, match="--client 7: this site has the clients 0, 1"):
        lists_without(owner, file, 7, "")
    (tmp_path / "list").write_text("nobody\n")
    with pytest.raises(DataError, match="1 of its 1 names are no image of the site"):
        lists_without(owner, file, None, str(tmp_path / "list"))
    for more, why in (
        (["--client", "1", "x"], "forget takes one number"),
        (["--client", "1", "--images", "x"], "not both"), (["RUN", "--client", "1"], "drop RUN"),
    ):
        assert main(["site", "forget", "site.yaml", *more]) == 2
        assert why in capsys.readouterr().err


def test_a_site_that_is_not_the_old_one_without_images_is_refused(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(data: str, key: str = "", **clients: int) -> dict[str, Any]:
        return {"data": data * 64, "clients": {
            c[1:]: {"train": n, "val": 0, "test": 3, "classes": []} for c, n in clients.items()}
        } | ({"key": key} if key else {})

    old, cfg = told("a", "one", c3=5, c4=5), CfgNode()
    for now, client, why in (
        (told("a", "one", c3=4, c4=5), "", "s still has all its images"),
        (told("b", "one", c3=5, c4=5), "4", "s still has client 4.*--client 4"),
        (told("b", "one", c3=4, c5=5), "", "client 5 has more than then"),
        (told("b", "one", c3=6), "", "client 3 has more than then"),
        (told("b", "two", c3=5), "4", "it proves another key than then"),
    ):
        monkeypatch.setattr(parting, "ask_sites", lambda *a, now=now: {"s": now})
        with pytest.raises(ConfigError, match=why):
            parting._without_parts(cfg, {"s": old}, client)
    monkeypatch.setattr(parting, "ask_sites", lambda *a: {"s": told("b", "one", c3=4)})
    left = parting.Leaving("", "", {"s": old}, parting._without_parts(cfg, {"s": old}, "4"))
    assert (left.clients, left.touched) == ((4,), (3, 4))
    assert left.counts == {"train": 6, "val": 0, "test": 3}


def forgotten(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Path:
    """Forget, and return the new run's folder."""
    assert main(["forget", str(run), *words]) == 0
    (line,) = [s for s in capsys.readouterr().out.splitlines() if s.startswith("done: ")]
    return Path(line.removeprefix("done: "))


def assert_same_server(ours: Path, theirs: Path) -> None:
    """The server's tensors are equal bit for bit, and so are the clients' right answers."""
    a, b = ({n: v for n, v in safetensors.torch.load_file(
        sorted(run.glob("state/round_*.safetensors"))[-1]).items() if n.startswith("server|")}
        for run in (ours, theirs))
    assert b and a.keys() == b.keys() and all(torch.equal(v, b[n]) for n, v in a.items())
    rows = [[(c["client"], c["n"], c["correct"]) for c in read_metrics(
        run / "metrics.jsonl")[0][-1]["clients"]] for run in (ours, theirs)]
    assert rows[0] and rows[0] == rows[1]


def read_runs(folder: Path) -> list[Path]:
    return [file.parent for file in folder.rglob("results.json")]


def summed(cfg: CfgNode) -> CfgNode:
    cfg.defrost()
    cfg.FED.SECURE_SUM = True
    return cfg
