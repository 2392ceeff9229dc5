"""What a server asks of its sites beside a round's work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.terms import Terms
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.evaluation import ClientMeter
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import Federation, FedState
from fedvlm.federation.server import Measure, Question
from tests.distributed.grid import ALL, RUN, SITES, Grid, federation


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    return Grid(CheckWorld(), load_trainer("fedper"), tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="module")
def end(grid: Grid) -> tuple[Federation, FedState]:
    fed, _ = grid.server()
    return fed, fed.run()


def test_the_model_as_it_comes_is_measured_where_the_images_are(grid: Grid) -> None:
    _, engine = grid.server()
    whole = federation(grid.world, grid.trainer, grid.setup).meter
    assert isinstance(whole, ClientMeter)
    everybody = range(len(SITES))
    assert list(engine.template(ALL, everybody)) == list(whole.template(ALL, everybody))


def test_the_server_knows_counts_and_sites(grid: Grid) -> None:
    fed, engine = grid.server()
    told = engine.members.roster()
    assert told.train.tolist() == fed.roster.train.tolist()
    assert told.classes.tolist() == fed.roster.classes.tolist()
    assert fed.roster.site.tolist() == list(SITES) and set(engine.members.data) == set(grid.sites)


def test_personal_models_cannot_be_had_from_a_server(end: tuple[Federation, FedState]) -> None:
    fed, state = end
    with pytest.raises(FedvlmError, match="personal models stay at their sites"):
        list(fed.personal(state, [0]))
    assert fed.read(state).clients == {c: {} for c in range(len(SITES))}


def test_seconds_of_the_final_fine_tuning_and_allowed_logits_come_along(
    grid: Grid, end: tuple[Federation, FedState], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, state = end
    monkeypatch.setattr(grid.sites["site1"], "terms", Terms(logits=True))
    everybody = list(range(len(SITES)))
    question = Question(
        state.round, everybody, fed.downloads(state, state.round, everybody), state.versions, True
    )
    engine = fed.engine
    rows = list(engine.rows(question, Measure(keep_logits=True), list))
    assert set(fed.finetune_seconds) == set(everybody) and min(fed.finetune_seconds.values()) > 0
    assert {n for n in engine.logits if n.startswith("personal")} == {"personal|2", "personal|3"}
    right = engine.logits["personal|3"].argmax(-1) == engine.logits["true|personal|3"]
    assert int(right.sum()) == rows[3]["correct"] and len(right) == rows[3]["n"]
    said = grid.said.pop()
    assert "keeps its logits: its rules do not allow sending them (rule 'logits')" in said


def test_sites_forget_what_they_are_told_to(
    grid: Grid, end: tuple[Federation, FedState]
) -> None:
    _, engine = grid.server()
    places = [grid.folder / site / RUN for site in grid.sites]
    assert [len(list(p.glob("s*.json"))) for p in places] == [2, 2]  # nothing was settled
    engine.forget(end[1].versions)
    assert [len(list(p.glob("s*.json"))) for p in places] == [1, 1]
    engine.forget(dict.fromkeys(range(len(SITES)), 0))
    assert [len(list(p.glob("s*"))) for p in places] == [0, 0] and grid.said == []


def test_a_quorum_is_a_share() -> None:
    assert [Policy(quorum=q).needed(10) for q in (0, 0.25, 0.9, 1)] == [0, 3, 9, 10]
    with pytest.raises(ConfigError, match="a quorum of 90: it is a share of clients, 0 to 1"):
        Policy(quorum=90)


def test_a_server_with_other_counts_than_the_sites_say_does_not_start(
    grid: Grid, tmp_path: Path
) -> None:
    grid.server()
    counts = grid.sites["site1"].federation.roster.train
    counts[2] += 1
    try:
        with pytest.raises(ConfigError, match=r"the sites now report other image counts \(train\)"):
            grid.server()
    finally:
        counts[2] -= 1


def test_what_a_checkpoint_keeps_of_the_sites_is_gone_on_with(grid: Grid) -> None:
    _, engine = grid.server()
    engine.members.excluded, engine.members.refusals["site1"] = {"site1"}, 3
    memory = json.loads(json.dumps(engine.memory()))
    _, later = grid.server()
    later.recall(memory)
    assert later.members.excluded == {"site1"} and later.members.refusals == {"site1": 3}
    with pytest.raises(ConfigError, match="^site0 has other data than when this run began"):
        later.recall(memory | {"data": {"site0": "ab" * 8}})


def test_a_row_that_cannot_be_true_counts_as_no_numbers(tmp_path: Path) -> None:
    policy = Policy(quorum=0.5, retries=0)
    grid = Grid(CheckWorld(), load_trainer("fedper"), tmp_path, policy=policy)
    _, engine = grid.server()
    answer = grid.carrier.answers["site1"]

    def lie(data: bytes) -> bytes:
        frame = unpack(answer(data))
        rows = [row if row["client"] == 2 else {"client": row["client"]}
                for row in frame.values["rows"]]
        return pack(Frame(frame.op, {**frame.values, "rows": rows}, frame.trees))

    grid.carrier.answers["site1"] = lie
    rows = engine.template(Measure(), range(len(SITES)))
    assert [row.get("absent") for row in rows] == [None, None, None, 1]
    assert grid.said == ["numbers of round 0, site1: no numbers of client 3: its row lacks "
                         "'accuracy'"]
