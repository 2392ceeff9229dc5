"""Forgetting from a kept state: the bits of the run from round 1, and where that is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedvlm.api.forget import carry_out, plan_forgetting
from fedvlm.api.forgetting.kept import begin_kept, kept_start
from fedvlm.api.replay import replay
from fedvlm.cli.main import main
from fedvlm.config.build import flat
from fedvlm.federation.discovery import NO_TRUST
from fedvlm.job.inputs import Inputs
from fedvlm.job.request import Request
from fedvlm.job.resolve import Job, run_config
from fedvlm.job.run import run_job
from fedvlm.runs.finished import read_finished
from tests import jobs

# Client 1 is drawn in round 3 for the first time, client 0 in round 1.
WORDS = ("--num-users", "6", "--partition", "dirichlet", "--frac", "0.34", "--rounds", "5",
         "FED.FIRST_ROUND_ALL", "False", "TEST.REFERENCES", "False")
ALL = ("TRAIN.KEEP_STATES", "all")
METHODS = {
    "FedPer": (), "Ditto": ("FED.SERVER_OPTIM", "adam", "OPTIM.KEEP_STATE", "True"),
}


def run_of(output: Path, method: str, *more: str) -> Path:
    assert jobs.run(output, "--trainer", method, *WORDS, *METHODS.get(method, ()), *more) == 0
    return jobs.folder(output)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("run"), "FedPer", *ALL)


@pytest.fixture(scope="module")
def without(run: Path) -> Path:
    """The run without client 1, from the state of round 2."""
    assert main(["forget", str(run), "--client", "1"]) == 0
    (found,) = run.parents[6].rglob("forgotten.json")
    return found.parent


@pytest.mark.parametrize("method", METHODS)
def test_the_bits_are_those_of_the_run_from_round_1(
    method: str, tmp_path: Path, run: Path, without: Path
) -> None:
    """Another way to them: every image is there, and the client is away from round 1."""
    mine = method == "FedPer"  # the module's runs
    old = run if mine else run_of(tmp_path / "old", method, *ALL)
    plan = plan_forgetting(old, client="1")
    assert plan.start.round == 2
    shutil.copytree(without if mine else carry_out(plan), tmp_path / "new" / "run")
    run_of(tmp_path / "away", method, "FED.UNRELIABLE.AWAY", "1:1-")
    ours, theirs = jobs.state(tmp_path / "new"), jobs.state(tmp_path / "away")
    assert ours.keys() == theirs.keys() and any(n.startswith("clients|0|") for n in ours)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    drawn = [r["participants"] for r in read_finished(old).rounds()]  # type: ignore[union-attr]
    assert any(1 in clients for clients in drawn), "else nothing was to be forgotten"


def test_every_number_is_that_of_all_rounds_done_again(without: Path) -> None:
    """Kept rounds and their evaluations too; the replay begins at the untrained model."""
    found = replay(without, 10)
    assert found.equal and found.since is None and found.compared["numbers of rounds"] > 100


def test_the_client_is_in_no_line_of_the_kept_rounds(run: Path, without: Path) -> None:
    old, new = ([json.loads(line) for line in (p / "metrics.jsonl").read_text().splitlines()]
                for p in (run, without))
    assert 1 in [c["client"] for c in old[0]["clients"]]
    assert not [row for row in new if 1 in [c["client"] for c in row["clients"]]]
    assert [r["participants"] for r in new[:3]] == [r["participants"] for r in old[:3]]
    assert new[2]["global"] != old[2]["global"], "its test images counted"


def test_the_certificate_says_from_where(run: Path, without: Path) -> None:
    told = json.loads((without / "forgotten.json").read_text())
    old = read_finished(run)
    assert told["from_round"] == 3 and old is not None and told["of"] == old.digest
    assert f"rounds before 3 are those of the run {old.digest[:8]}" in told["how"]
    assert main(["verify", str(without)]) == 0


def test_start_and_cost_are_said_before(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", str(run), "--client", "1", "--dry-run"]) == 0
    told = capsys.readouterr().out
    again = [json.loads(line)["seconds"]
             for line in (run / "metrics.jsonl").read_text().splitlines()[3:]]
    assert "start: the state of round 2, the last that is kept before a client" in told
    assert f"cost: 3 of 5 rounds, about {sum(again):.1f} s of training" in told
    assert plan_forgetting(run, client="0").start.round == 0


def test_a_run_that_lost_its_kept_rounds_says_round_1(run: Path, tmp_path: Path) -> None:
    """As after damage between the kept rounds and the rest."""
    old = tmp_path / "old" / run.relative_to(run.parents[6])
    plan = plan_forgetting(shutil.copytree(run, old), client="1")
    index = Path(plan.changes["FED.INDEX_FILE"])
    index.parent.mkdir()
    index.write_text(json.dumps(plan.index))
    cfg = run_config(plan.path, plan.changes)
    job = Job(cfg, dict.fromkeys(flat(cfg), "test"))
    begin_kept(plan.path, plan.run, job, plan.start.round, Inputs())
    (state,) = [p for p in (tmp_path / "old").rglob("index-*/*/state") if p.is_dir()]
    before = sorted(state.iterdir())
    assert "round_0002.json" in [p.name for p in before]
    begin_kept(plan.path, plan.run, job, plan.start.round, Inputs())
    assert sorted(state.iterdir()) == before, "what is there already stays"
    shutil.rmtree(state)
    done = run_job(job, Request())
    assert done is not None
    told = json.loads((done[1] / "forgotten.json").read_text())
    assert told["from_round"] == 1 and "all rounds were run again" in told["how"]


def test_a_server_that_reads_sizes_of_all_begins_at_the_start(tmp_path: Path) -> None:
    """FedDyn reads the mean size; its kept state is not that of the run without the client."""
    old = run_of(tmp_path, "FedDyn", *ALL)
    plan = plan_forgetting(old, client="1")
    assert plan.start.round == 0
    assert "the server of FedDyn has its own" in plan.lines()[1]
    new = carry_out(plan)
    one, other = (safetensors.torch.load_file(p / "state" / "round_0002.safetensors")
                  for p in (old, new))
    assert any(not torch.equal(v, other[name]) for name, v in one.items())


@pytest.mark.parametrize(("key", "value", "said"), [
    ("FED.BUDGET", "samples", "FED.BUDGET samples counts the work of all clients"),
    ("FED.PATIENCE", 2, "FED.PATIENCE looks at validation images"),
    ("TEST.SELECT", "val", "TEST.SELECT val looks at validation images"),
    ("FED.WEIGHTING", "agnostic", "FED.WEIGHTING agnostic reads losses"),
    ("FED.MIN_IMAGES", 5, "FED.MIN_IMAGES chooses the clients"),
    ("FED.HOSTILE", 0.2, "attackers are drawn among all clients"),
    ("FED.ENGINE", "workers", "its clients' states are kept by workers"),
])
def test_what_may_know_of_all_clients_begins_at_the_start(
    run: Path, key: str, value: Any, said: str
) -> None:
    done, cfg = read_finished(run), run_config(run, {})
    assert done is not None and kept_start(run, done, cfg, [1], NO_TRUST).round == 2
    cfg.defrost()
    *path, name = key.split(".")
    cfg[path[0]][name] = value
    found = kept_start(run, done, cfg, [1], NO_TRUST)
    assert found.round == 0 and said in found.why


def test_without_its_states_an_evaluation_cannot_be_made_again(tmp_path: Path, run: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    done, cfg = read_finished(copy), run_config(copy, {})
    assert done is not None
    for file in (copy / "state").glob("round_0001.*"):
        file.unlink()
    found = kept_start(copy, done, cfg, [1], NO_TRUST)
    assert found.round == 0 and "the evaluation after round 1 counted the images" in found.why
    cfg.defrost()
    cfg.TEST.EVAL_EVERY = 10
    assert kept_start(copy, done, cfg, [1], NO_TRUST).round == 2
    (copy / "state" / "round_0002.safetensors").write_bytes(b"cut")
    found = kept_start(copy, done, cfg, [1], NO_TRUST)
    assert found.round == 0 and "no state up to round 2 is kept" in found.why
