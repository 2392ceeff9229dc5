"""The ordinary run over parties with data of their own: folder, way back in, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.cli.site._export import model_of
from fedvlm.core.errors import ConfigError
from fedvlm.data.own.site import read_site
from fedvlm.distributed.site_yaml import read_site_yaml
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import SUMS_TELL
from fedvlm.job.results.private import promises_privacy
from fedvlm.job.sites.parties import MET, NAME, PLACE, Parties, run_name
from fedvlm.report.collect import collect
from fedvlm.report.pages.origin import gifts
from tests import jobs
from tests.job.sites.places import NAMES, federated, make, own_and_global, rows

APFL = ("--trainer", "APFL")
BARE = ("TEST.REFERENCES", "False")


@pytest.fixture(scope="module")
def place(few: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("parties"))


@pytest.fixture(scope="module")
def whole(few: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that sees all images."""
    output = tmp_path_factory.mktemp("whole")
    assert jobs.run(output, *APFL, "FED.SITES", "0,1") == 0
    return output


def same(place: Path, output: Path, whole: Path) -> None:
    """The server's tensors, the clients' at their sites, and the personal numbers are equal."""
    ours, theirs = jobs.state(output) | rows(place, output), jobs.state(whole)
    assert {n for n in theirs if n.startswith("clients|")} and ours.keys() == theirs.keys()
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)
    for here, there in zip(jobs.records(output), jobs.records(whole), strict=True):
        for key in ("personal", "global", "train", "participants", "bytes_up"):
            assert here[key] == there[key], key
        for ours_, theirs_ in zip(here["clients"], there["clients"], strict=True):
            assert ours_.items() <= theirs_.items()  # those of the whole set have more tests


def test_a_run_over_parties_ends_below_its_quorum_and_goes_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One site is gone in round 2. No image, path or personal tensor leaves.

    What needs the clients' images is left out by name, and a finished run is shown.
    """
    code, line = federated(place, tmp_path, monkeypatch, *APFL, gone=("site1", 2))
    said = capsys.readouterr()
    assert code == 6 and "site1: no answer: not connected" in said.err
    assert "the state of round 1 is kept" in said.err
    assert "they need the clients' images: the baselines (" in said.out
    frames = line.frames
    code, line = federated(place, tmp_path, monkeypatch, *APFL, sites=line.answers)
    assert code == 0 and "resuming after round 1" in capsys.readouterr().out
    client = ("predict", str(jobs.folder(tmp_path)), str(place / "server"), "--client", "1")
    assert main([*client]) == 2
    said = capsys.readouterr().err
    assert "the state of client 1 is stored at the worker or site that made it" in said
    assert json.loads((jobs.folder(tmp_path) / "sites" / "met.json").read_text())["site1"][
        "clients"]["1"]["train"] == 10
    everything = b"\n".join([*frames, *line.frames])
    assert len(everything) > 10**5
    for name in NAMES:
        file = read_site(place / name / "site.json")
        for path in file.paths():
            image = (place / name / "images" / path).read_bytes()
            assert image not in everything and path.encode() not in everything
    assert str(place).encode() not in everything
    personal = {n: v for n, v in rows(place, tmp_path).items() if "|w|" not in n and v.numel() > 3}
    assert personal and all(v.numpy().tobytes() not in everything for v in personal.values())


def test_sites_hide_their_images_by_noise_of_their_own_and_are_believed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``FED.DP.UNIT image``: noise that no seed gives, epsilon, and whose word the numbers are."""
    words = ("--trainer", "FedTV", "FED.DP.UNIT", "image", "FED.DP.CLIP", "1", "FED.DP.DELTA",
             "1e-5")
    here, seeded = tmp_path / "sites", tmp_path / "seeded"
    assert federated(place, here, monkeypatch, *words, "FED.DP.EPSILON", "8")[0] == 2
    assert "give FED.DP.NOISE" in capsys.readouterr().err
    assert federated(place, here, monkeypatch, *words, "FED.DP.NOISE", "4")[0] == 0
    found = jobs.results(here)
    assert found["privacy"]["noise"] == "secret" and found["privacy"]["epsilon"] > 0
    assert found["privacy"]["words"].endswith("noise from each site's own secret")
    assert "are as their sites told them" in found["told"]
    assert found["told"] in (jobs.folder(here) / "log.txt").read_text()
    own, shared = own_and_global(place / "site1" / "site.yaml", here, 1)
    assert own.keys() == shared.keys() and torch.equal(own["text.sigma"], shared["text.sigma"])
    assert jobs.run(seeded, *words, "FED.DP.NOISE", "4", "FED.SITES", "0,1", *BARE) == 0
    assert "told" not in jobs.results(seeded)
    ours, theirs = jobs.state(here), jobs.state(seeded)
    assert not torch.equal(ours["server|w|text.sigma"], theirs["server|w|text.sigma"])


def test_the_list_says_which_site_withheld_its_class_counts(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shutil.copytree(place, tmp_path / "parties")
    with (here / "site1" / "site.yaml").open("a") as file:
        file.write("  count: 3\n")
    assert federated(here, tmp_path / "out", monkeypatch, *APFL, "--rounds", "1")[0] == 0
    folder = jobs.folder(tmp_path / "out")
    met = json.loads((folder / PLACE / MET).read_text())
    assert all(one["classes"] == [] for one in met["site1"]["clients"].values())
    counts = json.loads((folder / "released.json").read_text())["sent"]["counts"]
    assert counts == {"site0": ["train", "val", "test", "classes"],
                      "site1": ["train", "val", "test"]}
    page = str(gifts(collect([folder]).runs[0]))
    assert "site0 train, val, test, classes; site1 train, val, test<" in page


@pytest.mark.slow
@pytest.mark.parametrize("stop", [
    ("hello", 0), ("evaluate", 0), ("work", 1), ("evaluate", 1), ("work", 2), ("evaluate", 2),
])
def test_a_coordinator_that_stops_between_a_request_and_its_checkpoint_goes_on_with_the_same_bits(
    place: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: tuple[str, int]
) -> None:
    """The sites begin anew, too."""
    assert federated(place, tmp_path, monkeypatch, *APFL, stop=stop)[0] == 130
    assert federated(place, tmp_path, monkeypatch, *APFL)[0] == 0
    same(place, tmp_path, whole)


@pytest.mark.slow
def test_a_state_that_is_gone_is_made_anew_only_when_that_is_said(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = shutil.copytree(place, tmp_path / "parties")
    output = tmp_path / "out"
    assert federated(here, output, monkeypatch, *APFL, stop=("work", 2))[0] == 130
    folder = jobs.folder(output)
    for path in (here / "site1" / "states").glob("*/s*"):
        path.unlink()
    for _ in range(2):
        assert federated(here, output, monkeypatch, *APFL)[0] == 3
        said = capsys.readouterr().err
        assert "site1: client 1: the state of round 1, which the server accepted, is not" in said
        assert "fedvlm readmit RUN CLIENT --anew continues without it" in said
    assert main(["readmit", str(folder), "7"]) == 2
    assert "has no client 7: it has 0, 1" in capsys.readouterr().err
    assert main(["readmit", str(folder), "1", "--anew"]) == 0
    assert "clients 1 (site1) go on anew when the run does" in capsys.readouterr().out
    assert federated(here, output, monkeypatch, *APFL, stop=("evaluate", 2))[0] == 130
    assert "after round 1: client 1 (site1) is readmitted and goes on from the start" in (
        capsys.readouterr().out)
    assert federated(here, output, monkeypatch, *APFL)[0] == 0
    (one,) = jobs.results(output)["readmitted"]
    assert (one["client"], one["anew"], one["after"]) == (1, True, 1)
    results = json.loads((folder / "results.json").read_text())
    assert ("client 1 was readmitted after round 1, restarted: its earlier state is lost"
            in results["run_info"]["notes"])
    assert main(["readmit", str(folder), "1"]) == 2
    assert "is finished" in capsys.readouterr().err


@pytest.mark.slow
def test_a_site_that_is_away_when_a_run_goes_on_counts_as_before(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one with other data is refused."""
    here = shutil.copytree(place, tmp_path / "parties")
    output, half = tmp_path / "out", ("FED.UNRELIABLE.QUORUM", "0.5", "FED.ASK.RETRIES", "0")
    assert federated(here, output, monkeypatch, *APFL, stop=("work", 2))[0] == 130
    with monkeypatch.context() as patch:
        patch.setattr("tests.job.sites.places.NAMES", ("site0",))
        patch.setattr("tests.job.sites.places.Line.ask", lambda self, frames, seconds: (
            {s: self.answers[s](f) if s in self.answers else "not connected"
             for s, f in frames.items()}))
        assert federated(here, output, patch, *APFL, *half)[0] == 0
    said = capsys.readouterr()
    assert "site1 is not connected: clients [1] count as before" in said.err
    assert jobs.results(output)["lost"] == {"no answer": 1}
    assert jobs.records(output)[2]["dropped"] == {"1": "site1: no answer: not connected"}
    assert federated(here, tmp_path / "next", monkeypatch, *APFL, stop=("work", 2))[0] == 130
    file = read_site(here / "site1" / "site.json")
    file.clients[1]["val"].pop()
    file.write(here / "site1" / "site.json")
    assert federated(here, tmp_path / "next", monkeypatch, *APFL)[0] == 2
    assert "site1 has other data than when this run began" in capsys.readouterr().err


def test_a_run_that_another_process_began_meanwhile_is_not_joined(tmp_path: Path) -> None:
    (tmp_path / PLACE).mkdir()
    (tmp_path / PLACE / NAME).write_text("ab" * 32)
    engine: Any = SimpleNamespace(run_id="cd" * 32)
    none: Any = None
    with pytest.raises(ConfigError, match="another process started this run in the meantime"):
        Parties(engine, none, none).employ(none, tmp_path, print)
    assert run_name(tmp_path) == "ab" * 32


@pytest.mark.parametrize(("words", "said"), [
    (("--sites-at", "a"), "--sites-at a has no effect with --engine local: use --engine sites"),
    (("--token-file", "t"), "flag --token-file ended with 0.2: a site on this machine"),
    (("FED.TOKEN_FILE", "t"), "FED.TOKEN_FILE ended with 0.2: a site on this machine answers"),
    (("--engine", "sites", "--num-users", "2"), "--engine sites needs --federation FOLDER"),
    (("--engine", "sites", "--num-users", "2", "--workers", "2"), "use --engine workers"),
])  # fmt: skip
def test_what_a_run_over_sites_lacks_is_said_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["run", "--demo", "--output-dir", str(tmp_path / "o"), *words]) == 2
    assert said in capsys.readouterr().err and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("words", "said"), [
    (("--sites-at", "a:1"), "--sites-at a:1: sites on other machines are reached only through "
                            "Flower"),
    (("--sites-at", "x,[::1]:7007"), "reached only through Flower (--federation FOLDER; docs/"),
    (("--sites-at", "a,unix:a"), "a path is given twice"),
    (("--dry-run",), "--dry-run needs the clients' images, which are at their sites"),
    (("--dataset", "eurosat"), "--site-file already defines the classes: drop --dataset"),
    (("DATASET.NAME", "other"), "is for 'Shapes'; drop the key"),
    (("--site-file", "/no"), "there is no site file '/no'"),
])  # fmt: skip
def test_wrong_words_of_a_coordinator_are_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str,
) -> None:
    words_ = ["--engine", "sites", "--num-users", "2", "--site-file",
              str(place / "server" / "site.json"), "--sites-at", "a"]
    code = main(["run", "--output-dir", str(tmp_path), *words_, *words])
    assert code in (2, 3) and said in capsys.readouterr().err
    assert main(["run", *words_[:2], *words_[4:]]) == 2
    assert ("--engine sites needs --num-users N (number of clients of all sites "
            "together)") in capsys.readouterr().err


def test_alone_and_pooled_over_sites_whose_owners_allow_it(
    place: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each client's numbers alone are those of the run that sees all; pooled is AFL's ridge."""
    here = shutil.copytree(place, tmp_path / "parties")
    for name, allowed in (("site0", True), ("site1", False)):
        with (here / name / "site.yaml").open("a") as file:
            file.write(f"  baselines: {str(allowed).lower()}\n")
    code, line = federated(here, tmp_path / "one", monkeypatch, *APFL)
    said = capsys.readouterr()
    assert code == 0 and "Whether federation pays is not known" in said.out
    assert "site1: no baselines are sent (rule 'baselines' of site.yaml)" in said.err + said.out
    assert any("the server asked for baselines; none is sent" in words for words in line.logs)
    assert "references" not in jobs.results(tmp_path / "one")
    told = json.loads((jobs.folder(tmp_path / "one") / "released.json").read_text())
    assert told["declared"]["sums"] == ["gram", "cross", "count"] and not told["sent"]["sums"]
    assert told["sent"]["references"] == ["logreg"]  # of site0, for nothing
    assert told["sent"]["counts"] == dict.fromkeys(
        ("site0", "site1"), ["train", "val", "test", "classes"])
    assert SUMS not in leaves(here, capsys) and SHORT not in leaves(here, capsys)
    run = (jobs.folder(tmp_path / "one") / "sites" / "run").read_text().strip()
    assert own_rows(here, capsys)[1][run]["alone"] == {}

    rules = here / "site1" / "site.yaml"
    rules.write_text(rules.read_text().replace("baselines: false", "baselines: true"))
    assert federated(here, tmp_path / "two", monkeypatch, *APFL)[0] == 0
    assert "all images in one place (pooled)" in capsys.readouterr().out
    told = json.loads((jobs.folder(tmp_path / "two") / "released.json").read_text())
    assert told["declared"]["sums"] == list(told["sent"]["sums"]) == ["gram", "cross", "count"]
    assert told["sent"]["references"] == ["logreg", "logreg_names", "pooled", "zero_shot"]
    assert told["tells"] == [SUMS_TELL] and "labels of single images" not in told["never"]
    page = str(gifts(collect([jobs.folder(tmp_path / "two")]).runs[0]))
    assert f"gram: {told['sent']['sums']['gram']:,} bytes" in page
    left = leaves(here, capsys)
    assert SUMS in left and SHORT in left and f": {SUMS_TELL}." in left
    assert main(["site", "record", str(here / "site0" / "site.yaml"), "--json"]) == 0
    assert "abels of single" not in json.loads(capsys.readouterr().out)["answers"][STAYS][0]
    found, ours = jobs.results(tmp_path / "two"), jobs.results(whole)
    assert list(found["references"]) == ["zero_shot", "logreg", "logreg_names", "pooled"]
    for name, same_as in (("logreg", "logreg"), ("logreg_names", "logreg_names"),
                          ("pooled", "afl")):
        mine, theirs = found["references"][name]["clients"], ours["references"][same_as]["clients"]
        assert [(r["client"], r["n"], r["correct"]) for r in mine] == [
            (r["client"], r["n"], r["correct"]) for r in theirs]
    run = (jobs.folder(tmp_path / "two") / "sites" / "run").read_text().strip()
    last = jobs.records(tmp_path / "two")[-1]["clients"]
    for client, kept in enumerate(own_rows(here, capsys)):
        logreg, names = (
            found["references"][name]["clients"][client] for name in ("logreg", "logreg_names"))
        for part, row in (("alone", logreg), ("model", last[client])):
            mine = kept[run][part][str(client)]
            assert {name: mine[name] for name in ("n", "accuracy", "balanced")} == {
                name: row[name] for name in ("n", "accuracy", "balanced")}
        _, words = model_of(read_site_yaml(here / NAMES[client] / "site.yaml"), run, client, {})
        assert kept[run]["alone"][str(client)]["names"] == names["accuracy"]
        assert (f"alone (its own logistic regression) {logreg['accuracy']:.1f} %, or "
                f"{names['accuracy']:.1f} % from the class names") in words
    assert found["answer"]["pooled"]["personal"] == ours["references"]["afl"]["personal"]
    assert found["answer"]["alone"]["personal"] == max(
        found["references"][name]["personal"] for name in ("zero_shot", "logreg", "logreg_names"))
    assert main(["verify", str(jobs.folder(tmp_path / "two"))]) == 0


STAYS = "What stays here?"
SHORT = "Sums over this site's own images, without masks, of run "
SUMS = ("for baselines sums over this site's own training images left, without masks (rule "
        "'baselines'): `count`, `cross`, `gram`.")


def leaves(place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the record of the first site says of what left it."""
    assert main(["site", "record", str(place / "site0" / "site.yaml"), "--json"]) == 0
    (left, *_) = json.loads(capsys.readouterr().out)["answers"].values()
    return " ".join(left)


def own_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what the status of each site says of what its clients reach, by run."""
    capsys.readouterr()
    out = []
    for name in NAMES:
        assert main(["site", "status", str(place / name / "site.yaml"), "--json"]) == 0
        out.append({run["run"]: run["own"] for run in json.loads(capsys.readouterr().out)["runs"]})
    return out


def test_a_guarantee_of_privacy_leaves_baselines_out() -> None:
    for name, promises in (("DP_FPL", True), ("FedAvg", False)):
        trainer = object.__new__(load_trainer(name))
        built: Any = SimpleNamespace(
            federation=SimpleNamespace(
                trainer=trainer, plan=SimpleNamespace(dp=None, private=None)))
        assert promises_privacy(built) is promises


def test_rounds_auto_over_sites_ends_in_the_round_of_the_run_that_sees_all(
    few: None, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shutil.copytree(place, tmp_path / "parties")
    for name in NAMES:
        rules = here / name / "site.yaml"
        rules.write_text(rules.read_text().replace("rounds: 5", "rounds: 0"))
    auto = ("--rounds", "auto", "--lr", "1e-6", "FED.PATIENCE", "1")
    assert federated(here, tmp_path / "sites", monkeypatch, *APFL, *auto)[0] == 0
    assert jobs.run(tmp_path / "whole", *APFL, "FED.SITES", "0,1", *auto, *BARE) == 0
    ours, theirs = (jobs.records(tmp_path / n) for n in ("sites", "whole"))
    for key in ("val", "val_loss"):
        assert [r.get(key) for r in ours] == [r.get(key) for r in theirs] != [None] * 5
    assert len(ours) == 5  # checks after rounds 2 and 4
