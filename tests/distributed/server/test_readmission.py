"""Clients that are taken in again: once, by name, and from the start only on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import DataError
from fedvlm.distributed.server.readmission import NAME, VOID, add_wishes, read_wishes, readmit
from fedvlm.federation.discovery import load_trainer
from tests.distributed.grid import Grid


def test_whoever_is_readmitted_is_asked_again_once(tmp_path: Path) -> None:
    grid = Grid(CheckWorld(), load_trainer("fedper"), tmp_path / "grid")
    fed, engine = grid.server()
    state = fed.run(until=1)
    engine.members.excluded, engine.members.refusals["site1"] = {"site1"}, 3
    add_wishes(tmp_path, [2], anew=False)
    add_wishes(tmp_path, [3], anew=True)
    wishes = read_wishes(tmp_path)
    after = readmit(engine, wishes, state)
    assert (state.versions, after.versions) == (dict.fromkeys(range(4), 1), {0: 1, 1: 1, 2: 1})
    assert engine.members.excluded == set() and engine.members.refusals["site1"] == 0
    assert grid.said == [
        "after round 1: client 2 (site1) is readmitted and goes on from its accepted state",
        "after round 1: client 3 (site1) is readmitted and goes on from the start, as a new client",
    ]
    end = fed.run(after)
    assert end.versions == dict.fromkeys(range(4), 2) and len(grid.said) == 2
    _, later = grid.server()  # the next session, with the checkpoint's memory
    later.recall(json.loads(json.dumps(engine.memory())))
    assert readmit(later, wishes, end).versions == end.versions and len(grid.said) == 2
    assert [(one["client"], one["after"]) for one in later.members.readmitted] == [(2, 1), (3, 1)]


def test_a_site_is_known_again_by_its_clients_and_may_be_away(tmp_path: Path) -> None:
    """A carrier may call it otherwise when a run goes on; who is away counts as it told before."""
    grid = Grid(CheckWorld(), load_trainer("fedper"), tmp_path)
    _, engine = grid.server()
    engine.members.excluded = {"site1"}
    before, memory = engine.members.welcomes(), engine.memory()
    grid.carrier.answers = {"b": grid.sites["site1"].answer, "a": grid.sites["site0"].answer}
    _, later = grid.server()
    later.recall(memory)
    assert later.members.excluded == {"b"} and later.members.home[0] == "a"
    del grid.carrier.answers["b"]
    later.members.home, later.members.met = {}, {}
    later.meet(4, 0, before)
    assert later.members.home == {0: "a", 1: "a", 2: "site1", 3: "site1"}
    assert later.members.roster().train.tolist() == engine.members.roster().train.tolist()
    assert grid.said == ["site1 is not connected: clients [2, 3] count as before"]


def test_a_site_that_is_back_within_the_session_counts_in_the_order_of_the_beginning(
    tmp_path: Path,
) -> None:
    grid = Grid(CheckWorld(), load_trainer("fedper"), tmp_path)
    fed, engine = grid.server()
    state, before = fed.run(until=1), engine.members.welcomes()
    fed, later = grid.server()
    back = grid.carrier.answers.pop("site0")
    later.members.home, later.members.met = {}, {}
    later.meet(4, 0, before)
    assert later.sites == engine.sites and list(later.members.welcomes()) == ["site0", "site1"]
    assert grid.said == ["site0 is not connected: clients [0, 1] count as before"]
    grid.carrier.answers["site0"] = back
    assert fed.run(state).versions == dict.fromkeys(range(4), 2) and len(grid.said) == 1
    grid.carrier.answers = {"site0": grid.sites["site1"].answer}  # its address is the first now
    later.members.home, later.members.met = {}, {}
    later.meet(4, 0, before)
    assert later.members.home == {0: "site0 (away)", 1: "site0 (away)", 2: "site0", 3: "site0"}
    assert later.sites == engine.sites and len(later.members.welcomes()) == 2


def test_all_clients_of_an_excluded_site_are_readmitted_by_name_and_others_are_not(
    tmp_path: Path,
) -> None:
    grid = Grid(CheckWorld(), load_trainer("fedper"), tmp_path)
    fed, engine = grid.server()
    state = fed.start()
    add_wishes(tmp_path, [0, 2], anew=False)
    engine.members.excluded = {"site1"}
    readmit(engine, read_wishes(tmp_path), state)
    assert not engine.members.excluded
    taken = [one for one in engine.members.readmitted if VOID not in one]
    assert [one["client"] for one in taken] == [2, 3]
    assert "client 0 is not readmitted: site0 is not excluded" in grid.said[0]
    engine.members.excluded = {"site0"}  # later: the wish was done
    readmit(engine, read_wishes(tmp_path), state)
    assert engine.members.excluded == {"site0"} and len(grid.said) == 3


def test_a_damaged_wish_is_told(tmp_path: Path) -> None:
    assert read_wishes(tmp_path) == []
    (tmp_path / NAME).write_text('[{"id": "../..", "client": 1, "anew": true}]')
    with pytest.raises(DataError, match="is damaged: delete it, and run fedvlm readmit again"):
        read_wishes(tmp_path)
