"""Rounds by secure sums over Unix sockets: four sites of a client each, of which three suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.check.world import CheckWorld
from fedvlm.cli.site._erase import _delete
from fedvlm.core.errors import ConfigError, FedvlmError, QuorumError
from fedvlm.distributed.schema import KEYS
from fedvlm.distributed.server.baselines import _ask, site_baselines
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.site import BASELINE, Site
from fedvlm.distributed.sums import masks
from fedvlm.distributed.sums.server import SumEngine
from fedvlm.distributed.sums.site import READ
from fedvlm.distributed.sums.vector import SumVector
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import FedState, RoundFinished
from fedvlm.federation.trainer import Trainer
from tests.distributed import grid as room
from tests.distributed.grid import RUN, Grid, leaks

pytest.importorskip("cryptography")
FOUR = (0, 1, 2, 3)
LOSS = 8 * 2.0**-41  # of four sites, twice for weights that are not all of the round's
KEEP_ON = Policy(wait=0, retries=0, quorum=0.5)
Ask = Callable[[str, Frame], Frame | str | None]  # None: as it is


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


@pytest.fixture
def grid(world: CheckWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Grid]:
    monkeypatch.setattr(room, "SITES", FOUR)
    monkeypatch.setattr(room, "NAMES", tuple(f"site{s}" for s in FOUR))
    monkeypatch.setattr(room, "CONFIG", {**room.CONFIG, "FED.SECURE_SUM": True})
    yield Grid(world, load_trainer("fedper"), tmp_path, kind=SumEngine,
               secrets={f"site{s}": bytes([s + 1]) * 32 for s in FOUR})


def meddle(grid: Grid, how: Ask) -> list[tuple[str, Frame, Frame]]:
    """Let frames be lost or changed on their way back; return all that were carried.

    Args:
        how: site, question -> None: the site answers; text: it does not; a frame: its answer.
    """
    carried: list[tuple[str, Frame, Frame]] = []
    plain = type(grid.carrier).ask

    def ask(frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        out: dict[str, bytes | str] = {}
        for site in sorted(frames):
            asked = unpack(frames[site])
            answer = how(site, asked)
            if answer is None:
                out |= plain(grid.carrier, {site: frames[site]}, seconds)
                carried.append((site, asked, unpack(out[site])))  # type: ignore[arg-type]
            else:
                out[site] = answer if isinstance(answer, str) else pack(answer)
        return out

    grid.carrier.ask = ask  # type: ignore[method-assign]
    return carried


def lost(site: str, *ops: str) -> Ask:
    return lambda name, asked: "no answer" if name == site and asked.op in ops else None


def plain_run(grid: Grid, clients: tuple[int, ...] = FOUR) -> FedState:
    """Return the state after round 1 of the same run in this process, over some clients."""
    fed = room.federation(grid.world, grid.trainer, grid.setup)
    state = fed.start()
    downloads = fed.downloads(state, 1, clients)
    work = fed.engine.run(fed.trainer, lambda ids: fed.context(ids, 1, {}), downloads, fed.clients,
                          dict.fromkeys(clients, 0))
    ctx = fed.server_context(1, held=None)  # type: ignore[arg-type]
    updates = work.spend()
    assert updates is not None
    return FedState(1, fed.trainer.aggregate(ctx, state.server, updates), work.versions)


def same(ours: FedState, plain: FedState) -> None:
    """Equal but for the stated loss, and one rounding of float32."""
    for name, v in plain.server["w"].items():
        gap = (ours.server["w"][name].double() - v.double()).abs()
        assert bool((gap <= LOSS + 2.0**-23 * v.double().abs()).all()), name


def test_the_sum_is_the_plain_one_and_no_frame_shows_a_single_update(grid: Grid) -> None:
    """Personal states, versions and numbers are those of the plain run, too."""
    carried = meddle(grid, lambda site, asked: None)
    fed, engine = grid.server()
    events: list[RoundFinished] = []
    fed.subscribers.append(lambda e: events.append(e) if isinstance(e, RoundFinished) else None)
    state = fed.run(until=1)
    same(state, plain_run(grid))
    assert state.versions == dict.fromkeys(FOUR, 1)
    frames = [pack(reply) for _, _, reply in carried]
    single, whole = dict[str, torch.Tensor](), float(fed.roster.train.sum())
    for site in grid.sites.values():
        own = site.federation
        (client,) = site.clients
        work = own.engine.run(
            own.trainer, lambda ids, own=own: own.context(ids, 1, {}),  # type: ignore[misc]
            own.downloads(own.start(), 1, [client]), own.clients, {client: 0})
        updates = work.spend()
        assert updates is not None
        for name, rows in updates.params.items():
            move = rows[0].double() - updates.received[name][0].double()
            part = float(updates.weight[0]) / whole * move
            single |= {f"{name} of client {client}": rows[0], f"move of {client} in {name}": move,
                       f"coded {name} of {client}": torch.from_numpy(
                           masks.to_fixed(part.numpy()).view(np.int64))}
    assert len(single) >= 3 * 4 and leaks(single, frames) == []
    assert leaks(grid.private(), frames) == []
    for name, _, reply in carried:
        if reply.op == "masked":
            vector = reply.trees["sum"]["sum"].numpy().view(np.uint64)
            bits = np.unpackbits(vector.view(np.uint8)).mean()
            assert abs(bits - 0.5) < 6 * 0.5 / (64 * len(vector)) ** 0.5, name
    last = events[-1]
    assert last.updates is not None and not last.updates.params and not last.updates.metrics
    assert last.telltale.clients == () and set(last.bytes_up) == set(FOUR)
    numbers = sum(fed.p0[n].numel() for n in fed.groups.shared)
    assert numbers and sum(last.bytes_up[0].values()) == 8 * numbers


def test_a_site_that_drops_out_is_not_in_the_sum_and_the_others_are(grid: Grid) -> None:
    grid.policy = KEEP_ON
    meddle(grid, lost("site2", "mask"))
    fed, engine = grid.server()
    state = fed.run(until=1)
    same(state, plain_run(grid, (0, 1, 3)))
    assert sorted(state.versions) == [0, 1, 3]


def test_a_site_that_is_lost_after_its_sum_is_in_it(grid: Grid) -> None:
    grid.policy = KEEP_ON
    meddle(grid, lost("site2", "unmask"))
    fed, _ = grid.server()
    same(fed.run(until=1), plain_run(grid))


@pytest.mark.parametrize("op", ["keys", "share"])
def test_a_site_that_is_lost_before_is_left_out(grid: Grid, op: str) -> None:
    grid.policy = KEEP_ON
    meddle(grid, lost("site1", op))
    fed, _ = grid.server()
    same(fed.run(until=1), plain_run(grid, (0, 2, 3)))


def test_below_the_threshold_nothing_is_unmasked_and_the_run_goes_on_later(grid: Grid) -> None:
    """The second attempt has other keys: not one number of a masked sum is as before."""
    grid.policy = replace(KEEP_ON, quorum=0.25)
    carried = meddle(grid, lambda site, asked: (
        "no answer" if asked.op == "mask" and site in ("site0", "site3") else None))
    fed, engine = grid.server()
    with pytest.raises(QuorumError, match="2 of 4 sites sent a sum, and a secure sum takes 3"):
        fed.run(until=1)
    assert not [asked for _, asked, _ in carried if asked.op == "unmask"]
    again = meddle(grid, lambda site, asked: None)
    state = grid.server()[0].run(until=1)
    same(state, plain_run(grid))
    for site in ("site1", "site2"):
        one, two = (
            next(r.trees["sum"]["sum"] for s, a, r in some if s == site and a.op == "mask")
            for some in (carried, again))
        assert bool((one[:-2] != two[:-2]).all())
        before, after = (next(a for s, a, _ in some if s == site and a.op == "share")
                         .values["roster"][site] for some in (carried, again))
        assert before.pop("who") == after.pop("who")
        assert not {*before.values()} & {*after.values()}


@pytest.mark.parametrize("op", ["keys", "share", "mask", "unmask"])
def test_a_damaged_question_is_asked_again_and_no_refusal(grid: Grid, op: str) -> None:
    """Cut in half, or with a name that no frame has: once, the round is whole without a word of it;
    at three of four sites and for good, the run ends with the damage and not with a refusal."""
    plain, hurt, times = type(grid.carrier).ask, {"site1"}, 1

    def ask(frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        nonlocal times
        sent = dict(frames)
        for site in sorted(hurt & {s for s in sent if unpack(sent[s]).op == op}):
            if times > 0:
                half = sent[site][: len(sent[site]) // 2]
                sent[site] = half if times % 2 else sent[site].replace(b"nonce", b"nonse")
                times -= 1
        return plain(grid.carrier, sent, seconds)

    grid.carrier.ask = ask  # type: ignore[method-assign]
    same(grid.server()[0].run(until=1), plain_run(grid))
    assert times == 0 and len(grid.said) == 1
    assert "attempt 1: site1: the question came there damaged (" in grid.said[0]
    hurt, times, grid.policy = {"site0", "site1", "site2"}, 100, Policy(wait=0, retries=1)
    with pytest.raises(QuorumError, match="the question came there damaged") as told:
        grid.server()[0].run(until=1)
    assert "mends no refusal" not in str(told.value) and times == 100 - 2 * 3


def test_a_round_that_is_repeated_has_the_same_bits(grid: Grid) -> None:
    """As after a kill between the answer and the checkpoint; the sites begin anew in between."""
    first = grid.server()[0].run(until=1)
    grid.restart()
    second = grid.server()[0].run(until=1)
    for name, v in first.server["w"].items():
        assert torch.equal(v, second.server["w"][name])


def test_sites_whose_masks_do_not_cancel_are_noticed(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One site adds a mask that no other takes off."""
    plain = SumVector.encode

    def lie(self: SumVector, trainer: Trainer, updates: Updates | None) -> np.ndarray:
        vector = plain(self, trainer, updates)
        liar = trainer is grid.sites["site1"].federation.trainer
        return vector + masks.keystream(bytes(32), len(vector)) if liar else vector

    monkeypatch.setattr(SumVector, "encode", lie)
    with pytest.raises(QuorumError, match="masks of the sites do not cancel"):
        grid.server()[0].run(until=1)


def test_wrong_shares_are_noticed(grid: Grid) -> None:
    grid.policy = KEEP_ON

    def lie(site: str, asked: Frame) -> Frame | None:
        if asked.op != "unmask" or site != "site0":
            return None
        reply = unpack(grid.sites[site].answer(pack(asked)))
        shares = dict(reply.values["shares"]) | {"site2": "00" * masks.WIDE}
        return Frame(reply.op, {**reply.values, "shares": shares})

    meddle(grid, lie)
    with pytest.raises(QuorumError, match="shares of the secret of site2 do not fit"):
        grid.server()[0].run(until=1)


@pytest.mark.parametrize("part", ["whole", "model"])
def test_sites_that_are_told_unlike_things_make_no_sum(grid: Grid, part: str) -> None:
    """Site 3 alone hears of other weights, or of another model."""
    carried: list[Frame] = []

    def lie(site: str, asked: Frame) -> Frame | None:
        if asked.op != "mask" or site != "site3":
            return None
        values, trees = dict(asked.values), asked.trees
        if part == "whole":
            values["whole"] *= 2
        else:
            trees = {ref: {n: v + 1 for n, v in tree.items()} for ref, tree in trees.items()}
        reply = unpack(grid.sites[site].answer(pack(Frame("mask", values, trees))))
        carried.append(reply)
        return reply

    grid.policy = KEEP_ON
    meddle(grid, lie)
    with pytest.raises(QuorumError, match="masks of the sites do not cancel"):
        grid.server()[0].run(until=1)
    assert [reply.op for reply in carried] == ["masked"]


def test_sites_with_unlike_settings_make_no_sum(grid: Grid) -> None:
    """Site 3 was started for another config, and is asked as if all were."""
    grid.policy = KEEP_ON
    fed, _ = grid.server()
    site = grid.sites["site3"]
    site.like = "ee" * 16
    meddle(grid, lambda name, asked: None if name != "site3" else unpack(
        site.answer(pack(Frame(asked.op, {**asked.values, "like": site.like}, asked.trees)))))
    with pytest.raises(QuorumError, match="the shares of site3 are damaged"):
        fed.run(until=1)


# ---- what a site refuses --------------------------------------------------------------------
def asked_of(carried: list[tuple[str, Frame, Frame]], site: str, op: str) -> Frame:
    return next(asked for name, asked, _ in carried if name == site and asked.op == op)


def refused(site: Site, asked: Frame, **values: Any) -> str:
    reply = unpack(site.answer(pack(Frame(asked.op, {**asked.values, **values}, asked.trees))))
    assert reply.op == "failed" and reply.values["kind"] == "refused", reply
    return str(reply.values["text"])


def test_a_site_that_erased_a_run_answers_no_second_question(
    world: CheckWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks are those of before: the sum of one client less would show that client's update."""
    monkeypatch.setattr(room, "SITES", (0, 0, 1, 2))
    monkeypatch.setattr(room, "NAMES", ("site0", "site1", "site2"))
    monkeypatch.setattr(room, "CONFIG", {**room.CONFIG, "FED.SECURE_SUM": True})
    three = Grid(world, load_trainer("fedper"), tmp_path, kind=SumEngine, policy=KEEP_ON,
                 secrets={f"site{s}": bytes([s + 1]) * 32 for s in range(3)})
    carried = meddle(three, lambda site, asked: None)
    three.server()[0].run(until=1)
    asked = asked_of(carried, "site0", "mask")
    _delete(three.folder / "site0" / RUN)
    assert [p.name for p in (three.folder / "site0" / RUN).iterdir()] == ["asked.json"]
    three.restart()
    fewer = {name: {"0": asked.values[name]["0"]} for name in ("accepted", "down", "floor")
             if name in asked.values}
    said = refused(three.sites["site0"], asked, **fewer)
    assert "answered another question of that attempt" in said


def test_a_site_answers_one_question_of_each_kind(grid: Grid) -> None:
    """The same question again has the same answer; another one, none."""
    carried = meddle(grid, lambda site, asked: None)
    grid.server()[0].run(until=1)
    site = grid.sites["site0"]
    for op in ("share", "mask", "unmask"):
        asked = asked_of(carried, "site0", op)
        answer = next(r for s, a, r in carried if s == "site0" and a.op == op)
        again = unpack(site.answer(pack(asked)))
        assert again.values == answer.values or op == "mask"
        assert all(torch.equal(v, again.trees[n][m]) for n, t in answer.trees.items()
                   for m, v in t.items())
    there = asked_of(carried, "site0", "unmask")
    assert "does not answer a second" in refused(site, there, there=["site0", "site1", "site2"])
    work = asked_of(carried, "site0", "mask")
    assert "answered another question" in refused(site, work, whole=work.values["whole"] * 2)
    moved = Frame("mask", work.values, {
        ref: {n: v + 1 for n, v in tree.items()} for ref, tree in work.trees.items()})
    assert "answered another question" in refused(site, moved)
    roster = dict(there.values["roster"])
    less = {n: roster[n] for n in ("site0", "site1", "site2")}
    assert "answered another question" in refused(
        site, asked_of(carried, "site0", "share"), roster=less)
    words = ("run", "like", "nonce", "round", "accepted", "down", "floor")
    bare = Frame("work", {k: work.values[k] for k in words} | {"seconds": 1.0}, work.trees)
    assert "is not asked for 'work'" in refused(site, bare)


def test_a_site_does_not_help_to_read_two_sums_of_a_round(grid: Grid) -> None:
    """Of the sums over four and over three sites the difference is one site's update."""
    grid.server()[0].run(until=1)
    grid.policy = KEEP_ON
    meddle(grid, lost("site3", "mask"))
    with pytest.raises(QuorumError, match="0 of 4 sites helped to unmask the sum.*would show sin"):
        grid.server()[0].run(until=1)


def test_another_run_name_makes_no_second_sum_of_a_round(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server renames the run and leaves a site out; the same sites again tell nothing new."""
    grid.server()[0].run(until=1)
    for name in ("cd", "ef"):
        grid.restart()  # what they know is on their disks
        monkeypatch.setattr(room, "RUN", name * 16)
        grid.server()[0].run(until=1)
    monkeypatch.setattr(room, "RUN", "01" * 16)
    grid.policy = KEEP_ON
    meddle(grid, lost("site3", "keys"))
    with pytest.raises(QuorumError, match="0 of 3 sites helped to unmask.*in this run or another"):
        grid.server()[0].run(until=1)
    for name in grid.sites:
        (grid.folder / name / READ).unlink()  # as their owners may
    grid.server()[0].run(until=1)
    (grid.folder / "site0" / READ).write_text("{")
    with pytest.raises(QuorumError, match="2 of 3 sites helped to unmask"):
        grid.server()[0].run(until=1)
    assert any(f"{READ}' is damaged" in words for words in grid.logs)


def test_a_site_sends_no_sums_of_its_own_beside_masked_ones(grid: Grid) -> None:
    """Whatever the server asks for; and what comes unasked ends the run."""
    fed, engine = grid.server()
    list_ = fed.trainer.releases(fed.groups)
    carried = meddle(grid, lambda site, asked: None)
    assert _ask(engine, FOUR, list_, BASELINE)[0] is None
    assert "own sums for baselines would leave without masks" in carried[0][2].values["text"]
    carried.clear()
    assert site_baselines(engine, FOUR, 16, 4, list_, True) is None
    assert [(asked.values["model"], reply.op) for _, asked, reply in carried] == [
        ("alone", "evaluated")] * 4
    more = {"sums": {"gram": torch.eye(2)}}
    replies = {site: Frame(reply.op, reply.values, more) for site, _, reply in carried}
    meddle(grid, lambda site, asked: Frame(
        "evaluated", {**replies[site].values, "nonce": asked.values["nonce"]}, more))
    with pytest.raises(FedvlmError, match="site0 sends 'gram', sums over its own images"):
        site_baselines(engine, FOUR, 16, 4, list_, True)


def test_a_site_without_work_is_in_no_sum(grid: Grid) -> None:
    """The round again, with nothing of site 3: the difference would be site 3's update."""
    grid.server()[0].run(until=1)
    replies: list[Frame] = []

    def bare(site: str, asked: Frame) -> Frame | None:
        if asked.op != "mask" or site != "site3":
            return None
        empty = {**asked.values, "accepted": {}, "down": {}, "floor": {}}
        replies.append(unpack(grid.sites[site].answer(pack(Frame("mask", empty, {})))))
        return replies[-1]

    grid.policy = KEEP_ON
    meddle(grid, bare)
    with pytest.raises(QuorumError, match="0 of 4 sites helped to unmask the sum"):
        grid.server()[0].run(until=1)
    assert [r.values["text"] for r in replies] == ["a secure sum asks each of its sites for work"]


def test_all_clients_of_a_site_start_from_one_model(
    world: CheckWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "SITES", (0, 0, 1, 2))
    monkeypatch.setattr(room, "NAMES", ("site0", "site1", "site2"))
    monkeypatch.setattr(room, "CONFIG", {**room.CONFIG, "FED.SECURE_SUM": True})
    three = Grid(world, load_trainer("fedper"), tmp_path, kind=SumEngine, policy=KEEP_ON)
    replies: list[Frame] = []

    def unlike(site: str, asked: Frame) -> Frame | None:
        if asked.op != "mask" or site != "site0":
            return None
        down = dict(asked.values["down"])
        assert down["0"] == down["1"]
        other = {n: v + 1 for n, v in asked.trees[f"down/{down['0']}"].items()}
        values = {**asked.values, "down": {**down, "1": "7"}}
        replies.append(unpack(three.sites[site].answer(
            pack(Frame("mask", values, {**asked.trees, "down/7": other})))))
        return replies[-1]

    meddle(three, unlike)
    with pytest.raises(QuorumError):
        three.server()[0].run(until=1)
    assert replies[0].values["text"] == "the clients of a secure sum start from one model"


def test_a_site_does_the_same_work_in_all_attempts_at_a_round(grid: Grid) -> None:
    meddle(grid, lost("site0", "unmask"))
    grid.policy = KEEP_ON
    grid.server()[0].run(until=1)
    replies: list[Frame] = []

    def other(site: str, asked: Frame) -> Frame | None:
        if asked.op != "mask" or site != "site0":
            return None
        twice = {**asked.values, "whole": asked.values["whole"] * 2}
        replies.append(unpack(grid.sites[site].answer(pack(Frame("mask", twice, asked.trees)))))
        return replies[-1]

    meddle(grid, other)
    with pytest.raises(QuorumError):
        grid.server()[0].run(until=1)
    assert "did other work for a sum of round 1" in replies[0].values["text"]


@pytest.mark.parametrize(("labels", "op"), [((0, 1, 2, 3), "unmasked"), ((0, 1, 3, 2), "failed")])
def test_names_that_are_exchanged_do_not_hide_who_is_in_a_sum(
    grid: Grid, labels: tuple[int, ...], op: str
) -> None:
    """After a sum over the sites 0, 1 and 2, one over 0, 1 and 3, which is now called site 2."""
    grid.policy = KEEP_ON
    carried = meddle(grid, lost("site3", "mask"))
    grid.server()[0].run(until=1)
    label = {f"site{s}": f"site{name}" for s, name in enumerate(labels)}

    def ask(site: str, op: str, **values: Any) -> Frame:
        asked = asked_of(carried, site, op)
        values = {**asked.values, "attempt": "ab" * 16, **values}
        return unpack(grid.sites[site].answer(pack(Frame(op, values, asked.trees))))

    offers = {s: ask(s, "keys").values for s in label}
    roster = {label[s]: {k: offer[k] for k in KEYS} for s, offer in offers.items()}
    made = {label[s]: ask(s, "share", roster=roster).values["shares"] for s in label}
    shares = {name: sealed["site0"] for name, sealed in made.items() if name != "site0"}
    assert ask("site0", "mask", roster=roster, shares=shares).op == "masked"
    reply = ask("site0", "unmask", roster=roster, shares=shares,
                there=["site0", "site1", "site2"])
    assert reply.op == op
    if op == "failed":
        assert "over other sites or clients" in reply.values["text"]


@pytest.mark.parametrize(("change", "said"), [
    ({"there": ["site0", "site1"]}, "the sum of 2 of 4 sites is not unmasked: it takes 3"),
    ({"there": ["site1", "site2", "site3"]}, "this site sent no sum in that attempt"),
    ({"there": ["site0", "site1", "site9"]}, "does not name the sites of its attempt"),
    ({"round": 2}, "the list of sites does not have this site once"),
])  # fmt: skip
def test_dishonest_questions_for_shares(
    grid: Grid, change: dict[str, Any], said: str
) -> None:
    carried = meddle(grid, lost("site0", "unmask"))
    grid.policy = KEEP_ON
    grid.server()[0].run(until=1)
    asked = asked_of(carried, "site1", "unmask")
    whose = asked_of(carried, "site0", "mask").values["shares"]
    assert said in refused(grid.sites["site0"], asked, shares=whose, **change)


def test_a_list_of_sites_is_of_three_with_keys_of_their_own(grid: Grid) -> None:
    carried = meddle(grid, lambda site, asked: None)
    grid.server()[0].run(until=1)
    asked, site = asked_of(carried, "site0", "share"), grid.sites["site0"]
    roster = asked.values["roster"]
    two = {n: roster[n] for n in ("site0", "site1")}
    assert "needs 3 sites; this one is over 2" in refused(site, asked, attempt="ab" * 8, roster=two)
    mine = unpack(site.answer(pack(Frame("keys", {
        k: asked.values[k] for k in ("run", "like", "nonce", "round")} | {"attempt": "ab" * 8}))))
    own = {k: mine.values[k] for k in KEYS}
    twice = {"site0": own, "site1": roster["site1"], "site2": roster["site1"]}
    assert "each with its own keys" in refused(site, asked, attempt="ab" * 8, roster=twice)


def test_nobody_else_can_make_a_sites_keys(grid: Grid) -> None:
    """They follow from its own secret: not from what the server knows, nor from another site's."""
    carried = meddle(grid, lambda site, asked: None)
    grid.server()[0].run(until=1)
    asked = asked_of(carried, "site0", "keys")
    words = (asked.values["run"], asked.values["round"], asked.values["attempt"])
    roster = asked_of(carried, "site0", "share").values["roster"]
    for guess in (b"", RUN.encode(), bytes(32), asked.values["like"].encode()):
        public = masks.public_of(masks.derive(guess, "mask", *words)).hex()
        assert public not in {offer["mask"] for offer in roster.values()}
    assert len({offer["mask"] for offer in roster.values()}) == 4


def test_two_sites_are_too_few(
    world: CheckWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CONFIG", {**room.CONFIG, "FED.SECURE_SUM": True})
    few = Grid(world, load_trainer("fedper"), tmp_path, kind=SumEngine)
    with pytest.raises(ConfigError, match=r"clients of 2 site\(s\), and a secure sum needs 3"):
        few.server()
