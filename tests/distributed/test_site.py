"""A site's answers: from the frame and its disk alone, and nothing in them that has to stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import State
from fedvlm.distributed.server.baselines import _ask, site_baselines
from fedvlm.distributed.site import BASELINE, Site
from fedvlm.distributed.store import LostState, SiteStore, hold_store
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.federation.discovery import load_trainer
from fedvlm.method import Releases
from tests.distributed.grid import RUN, Grid

CPU = torch.device("cpu")
MARK = "cd" * 8


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    return Grid(CheckWorld(), load_trainer("fedper"), tmp_path_factory.mktemp("grid"))


def work(site: Site) -> dict[str, Any]:
    return {"run": RUN, "like": site.like, "nonce": MARK, "round": 1, "accepted": {"0": 0},
            "floor": {"0": 0}, "down": {"0": "0"}, "seconds": 1.0}


def down(site: Site) -> dict[str, torch.Tensor]:
    return site.federation.downloads(site.federation.start(), 1, [0])[0]


def ask(site: Site, op: str, **values: Any) -> Frame:
    """Ask a site for work with one of its clients, or for what ``values`` say."""
    if op == "work":
        frame = Frame(op, work(site) | values, {"down/0": down(site)})
    else:
        frame = Frame(op, {"run": RUN, "like": site.like, "nonce": MARK} | values)
    return unpack(site.answer(pack(frame)))


def test_an_answer_is_a_function_of_frame_and_disk(grid: Grid) -> None:
    site = grid.sites["site0"]
    first, again = ask(site, "work"), ask(site, "work")
    assert first.values == again.values and first.op == "worked"
    for name, tree in first.trees.items():
        assert all(torch.equal(v, again.trees[name][n]) for n, v in tree.items())
    assert first.values["parts"][0]["clients"] == [0]
    assert not set(first.trees["up/0"]) - set(site.federation.groups.shared)


@pytest.mark.parametrize(("op", "values", "said"), [
    ("work", {"like": MARK}, "of a run with another config"),
    ("work", {"accepted": {"2": 0}, "floor": {"2": 0}, "down": {"2": "0"}}, "clients [2] are not"),
    ("forget", {"keep": {"3": 0}}, "clients [3] are not"),
    ("forgot", {}, "a site is not asked for 'forgot'"),
])  # fmt: skip
def test_what_a_site_does_not_do_it_refuses(
    grid: Grid, op: str, values: dict[str, Any], said: str
) -> None:
    if op == "forgot":
        reply = unpack(grid.sites["site0"].answer(pack(Frame("forgot", {"nonce": MARK}))))
    else:
        reply = ask(grid.sites["site0"], op, **values)
    assert reply.op == "failed" and reply.values["kind"] == "refused"
    assert said in reply.values["text"] and reply.values["nonce"] == MARK


def test_sums_leave_only_if_the_methods_own_list_names_them(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of a method's own has no sums by default: neither does the server ask for them, nor
    does a site answer one that does."""
    fed, engine = grid.server()
    usual = fed.trainer.releases(fed.groups)
    assert usual.sums == ("gram", "cross", "count") and Releases(("w",)).sums == ()
    monkeypatch.setattr(type(fed.trainer), "releases", lambda self, groups: Releases(groups.shared))
    asked: list[str] = []
    plain = grid.carrier.ask

    def ask(frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        asked.extend(unpack(frame).values["model"] for frame in frames.values())
        return plain(frames, seconds)

    monkeypatch.setattr(grid.carrier, "ask", ask)
    list_ = fed.trainer.releases(fed.groups)
    assert list_.outside((), (), (), usual.sums) == ["gram", "cross", "count"]
    assert site_baselines(engine, range(4), 16, 4, list_, True) is None and {*asked} == {"alone"}
    said = len(grid.said)
    assert _ask(engine, range(4), usual, BASELINE) == (None, {}) and "baseline" in asked
    assert all("run does not release them" in words for words in grid.said[said:])
    assert len(grid.said) > said


@pytest.mark.parametrize("tree", [
    {"personal.secret": torch.zeros(2)}, {"text.ctx": torch.zeros(3)},
])  # fmt: skip
def test_a_download_that_no_server_sends_is_refused(grid: Grid, tree: dict[str, Any]) -> None:
    site = grid.sites["site0"]
    reply = unpack(site.answer(pack(Frame("work", work(site), {"down/0": tree}))))
    assert reply.op == "failed" and reply.values["kind"] == "refused"
    assert re.search("has the wrong shape|does not send", reply.values["text"])


def test_an_answer_as_a_request_is_refused_and_ends_no_site(grid: Grid) -> None:
    """It is well-formed and names a round, but no run."""
    values = {"nonce": MARK, "round": 1, "rows": [], "seconds": {}}
    reply = unpack(grid.sites["site0"].answer(pack(Frame("evaluated", values))))
    assert reply.values["text"] == "a site is not asked for 'evaluated'"


def test_what_an_error_says_stays_at_the_site(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, secret = grid.sites["site0"], "/home/anna/patient_0815.png"

    for error in (RuntimeError, FedvlmError):
        def fail(*given: Any, error: type[Exception] = error, **named: Any) -> None:
            raise error(f"cannot read {secret}")

        monkeypatch.setattr(site.federation.engine.__class__, "run", fail)
        data = site.answer(pack(Frame("work", work(site), {"down/0": down(site)})))
        assert secret.encode() not in data and b"anna" not in data, error
        reply = unpack(data)
        assert reply.values["kind"] == "failed" and "the site's log" in reply.values["text"]
    assert any(secret in words for words in grid.logs)


def state(ids: list[int], version: int) -> State:
    return {"w": {"a": torch.tensor([[100.0 * c + version] for c in ids])}}


def put(folder: Path, version: int, ids: list[int], floor: dict[int, int]) -> None:
    with hold_store(folder, RUN, CPU) as store:
        store.put(version, ids, state(ids, version))
        store.keep(floor)


def value(folder: Path, client: int, version: int) -> float:
    store = SiteStore(folder, RUN, CPU)
    store.require({client: version})
    ((_, rows),) = store.get([client], [version])
    return float(rows["w"]["a"][0, 0])


def test_versions_stay_until_the_server_cannot_fall_back(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        put(tmp_path, version, [4, 5], {4: max(0, version - 2), 5: 0})
    assert [value(tmp_path, 5, v) for v in (1, 2, 3)] == [501, 502, 503]
    put(tmp_path, 4, [4, 5], {4: 3, 5: 3})
    assert len(list((tmp_path / RUN).glob("s*.json"))) == 2
    assert [value(tmp_path, 4, v) for v in (3, 4)] == [403, 404]
    with pytest.raises(LostState, match="client 4: the state of round 2, which the server acc"):
        value(tmp_path, 4, 2)


def test_thin_records_become_one(tmp_path: Path) -> None:
    for version in range(1, 8):  # client 4 stays as it was; client 5 works on
        put(tmp_path, version, [4, 5] if version == 1 else [5], {5: max(0, version - 1)})
        assert len(list((tmp_path / RUN).glob("s*.json"))) <= 4
    assert value(tmp_path, 4, 1) == 401 and value(tmp_path, 5, 7) == 507


def test_a_run_that_begins_again_keeps_its_rows(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        put(tmp_path, version, [0, 1], {0: version, 1: version})
    put(tmp_path, 1, [0], {0: 0})
    assert value(tmp_path, 0, 1) == 1 and value(tmp_path, 1, 3) == 103


@pytest.mark.parametrize("damage", [False, True])
def test_damaged_records_are_not_sealed_anew(tmp_path: Path, damage: bool) -> None:
    first = tmp_path / RUN / "s000001.safetensors"
    put(tmp_path, 1, list(range(6)), {})
    put(tmp_path, 2, list(range(5)), dict.fromkeys(range(5), 2))  # client 5 alone is in the first
    if damage:
        first.write_bytes(first.read_bytes()[:-1] + b"?")
    put(tmp_path, 3, [0, 1], {0: 3, 1: 3})  # what was said of the others still holds
    assert first.exists() == damage and value(tmp_path, 4, 2) == 402
    if damage:
        with pytest.raises(LostState, match="client 5: the state of round 1"):
            value(tmp_path, 5, 1)
    else:
        assert value(tmp_path, 5, 1) == 501


def test_a_round_that_is_done_again_counts_as_it_was_written_last(tmp_path: Path) -> None:
    put(tmp_path, 1, [0, 1], {})
    with hold_store(tmp_path, RUN, CPU) as store:
        store.put(1, [1], {"w": {"a": torch.tensor([[7.0]])}})
        store.keep({})
    assert value(tmp_path, 0, 1) == 1 and value(tmp_path, 1, 1) == 7


def test_a_record_without_its_json_is_nothing_and_goes(tmp_path: Path) -> None:
    put(tmp_path, 1, [0], {})
    half = tmp_path / RUN / "s000002.safetensors"
    half.write_bytes(b"cut")
    put(tmp_path, 2, [0], {0: 1})
    assert not half.exists() and value(tmp_path, 0, 1) == 1 and value(tmp_path, 0, 2) == 2


def test_forget_leaves_the_version_that_is_named(tmp_path: Path) -> None:
    for version in (1, 2):
        put(tmp_path, version, [0, 1], {})
    with hold_store(tmp_path, RUN, CPU) as store:
        store.forget({0: 2, 1: 0})
    assert value(tmp_path, 0, 2) == 2
    with hold_store(tmp_path, RUN, CPU) as store:
        store.forget({0: 0, 1: 0})
    assert not list((tmp_path / RUN).glob("s*"))
