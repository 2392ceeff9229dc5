"""``FED.SECURE_SUM`` in the real job: parties with images of their own, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.distributed.wire import outline
from fedvlm.report.collect import collect
from fedvlm.report.pages.origin import gifts
from tests import jobs
from tests.job.sites import places

pytest.importorskip("cryptography")
THREE = ("site0", "site1", "site2")
USERS = ("--num-users", "3", "--trainer", "APFL")
KEYS = (*USERS, "FED.SECURE_SUM", "True")


@pytest.fixture(scope="module")
def made(few: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parties with a client each, and a coordinator."""
    folder = tmp_path_factory.mktemp("parties")
    words = ("--demo", "--partition", "disjoint", "--num-users", "3", "--shots", "2")
    assert main(["site", "make", "--split", "0,1,2", "--to", str(folder), *words]) == 0
    for name in THREE:
        (folder / name / "site.yaml").write_text(places.RULES + "  sums: true\n  baselines: true\n")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parties, for one test."""
    monkeypatch.setattr(places, "NAMES", THREE)
    return shutil.copytree(made, tmp_path / "parties")


def test_a_run_says_what_holds_and_keeps_no_number_of_a_single_update(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And goes on after a stop with the bits that it would have had."""
    one, two = tmp_path / "one", tmp_path / "two"
    code, line = places.federated(place, one, monkeypatch, *KEYS)
    assert code == 0
    said = capsys.readouterr().out
    words = "the server learns the sum of the updates of 3 sites, and no site's own; 3 of them have"
    assert words in " ".join(said.split()) and "nobody may drop out" in " ".join(said.split())
    assert "follows the protocol and only reads, and not against one" in " ".join(said.split())
    told = json.loads((jobs.folder(one) / "results.json").read_text())
    assert any(words in note for note in told["run_info"]["notes"])
    for record in jobs.records(one):
        assert not any(record["train"].values()) and record["update_norm"] == {}
    released = json.loads((jobs.folder(one) / "released.json").read_text())
    assert released["sent"]["metrics"] == {}
    assert released["declared"]["sums"] == [] and released["sent"]["sums"] == {}
    assert not [data for data in line.frames if "sums" in outline(data)[2]]
    page = str(gifts(collect([jobs.folder(one)]).runs[0]))
    assert "own images; tensors came as sums over the sites of a round, under masks" in page
    assert list(jobs.results(one)["references"]) == ["zero_shot", "logreg", "logreg_names"]
    assert any("pooled is not known: it takes each site's own sums without masks" in note
               for note in told["run_info"]["notes"])
    own, shared = places.own_and_global(place / "site2" / "site.yaml", one, 2)
    assert own.keys() == shared.keys()
    assert places.federated(place, two, monkeypatch, *KEYS, stop=("mask", 2))[0] == 130
    assert places.federated(place, two, monkeypatch, *KEYS)[0] == 0
    ours, theirs = jobs.state(one), jobs.state(two)
    assert ours.keys() == theirs.keys() and all(bool((ours[n] == theirs[n]).all()) for n in ours)


def test_a_site_of_such_a_rule_takes_no_part_without_sums(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert places.federated(place, tmp_path / "out", monkeypatch, *USERS)[0] == 2
    said = capsys.readouterr().err
    assert "updates leave this site in secure sums only" in said and "(rule 'sums')" in said


@pytest.mark.parametrize(("words", "said"), [
    (("--trainer", "FedTV", "FED.AGGREGATOR", "median"),
     "FED.SECURE_SUM does not cover FedTV: its server reads single updat"),
    (("FED.AGGREGATOR", "median"), "FED.SECURE_SUM with FED.AGGREGATOR median: it looks at"),
    (("FED.ASK.MAX_NORM", "1"), "FED.SECURE_SUM with FED.ASK.MAX_NORM 1: it looks at single"),
])
def test_what_reads_single_updates_is_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str,
) -> None:
    assert places.federated(place, tmp_path / "out", monkeypatch, *KEYS, *words)[0] == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (("--trainer", "FedTV", "--rounds", "2", "TRAINER.FEDTV.SAA_TEMP", "0.5"),
     "temperature 0.5: one image may weigh up to e^4 times as much as another"),
    (("--trainer", "AFL", "--rounds", "1"), "the server learns the sum of the updates of 3 sites"),
])
def test_more_than_a_mean_in_the_real_job(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str,
) -> None:
    """The models of the same run without masks, but for rounding; no weights of single clients."""
    plain, summed = tmp_path / "plain", tmp_path / "summed"
    for name in THREE:
        (place / name / "site.yaml").write_text(places.RULES.replace("APFL", "AFL"))
    if "AFL" in words:
        more = (*words, "--rounds", "2", "TRAINER.AFL.SHARES", "True")
        assert places.federated(place, summed, monkeypatch, *KEYS, *more)[0] == 2
        refused = capsys.readouterr().err
        assert "FED.ROUNDS 2: the sums of AFL are those of images" in refused
        assert "without options that need a second one (TRAINER.AFL.SHARES)" in refused
        assert places.federated(place, tmp_path / "shares", monkeypatch, *USERS, *more)[0] == 0
        assert "server|w|afl.temper" in jobs.state(tmp_path / "shares")  # the sites told it
    assert places.federated(place, plain, monkeypatch, *USERS, *words)[0] == 0
    assert places.federated(place, summed, monkeypatch, *KEYS, *words)[0] == 0
    assert said in " ".join(capsys.readouterr().out.split())
    ours, theirs = jobs.state(summed), jobs.state(plain)
    names = [n for n in theirs if n.startswith("server|w|")]
    assert names and ours.keys() == theirs.keys()
    for name in names:
        gap = float((ours[name].double() - theirs[name].double()).abs().max())
        assert gap <= 1e-5 * max(1.0, float(theirs[name].abs().max())), name
    for record in jobs.records(summed):
        assert "aggregation_weights" not in record.get("aggregation", {})


def test_in_one_process_there_is_nobody_to_hide_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, *KEYS) == 2
    assert "FED.SECURE_SUM True has no effect with --engine local: use --engine sites" in (
        capsys.readouterr().err)
