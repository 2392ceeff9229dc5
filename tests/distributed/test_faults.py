"""What goes wrong between a server and its sites: what happens, and the messages.

The table of faults of the engine's design: a run in which nothing is lost for good ends with the
bits of a run without a fault; whatever is left out is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.check.compare import same_fed
from fedvlm.check.disk import read_state, write_state
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError, DataError, DivergedError, FedvlmError, QuorumError
from fedvlm.core.trees import Tree
from fedvlm.distributed.server.baselines import site_baselines
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.wire import WIRE, Frame, checksummed, pack, unpack
from fedvlm.evaluation.scores import notes
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import Releases
from fedvlm.federation.reliability.unreliable import NO_ANSWER, count_reasons
from fedvlm.federation.rounds import FedState, RoundFinished, WholeState
from fedvlm.federation.trainer import Trainer
from tests.distributed.grid import CONFIG, RUN, Grid, OverSockets, federation, local, measured

Out = dict[str, "bytes | str"]
ROUNDS = Setup(rounds=3)
METHOD = load_trainer("apfl")  # two models and a number at each client
KEEP_ON = Policy(wait=0, quorum=0.5, retries=0)


class Faulty(OverSockets):
    """A carrier that does something to the answers of each piece of work."""

    def __init__(self, fault: Callable[[Faulty, int, int, Out], Out]) -> None:
        super().__init__()
        self.fault, self.attempts, self.old = fault, dict[int, int](), dict[int, Out]()

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        out = dict(super().ask(frames, seconds))
        asked = [unpack(data) for data in frames.values()]
        if asked[0].op != "work":
            return self.fault(self, -1, 1, out)
        round_ = asked[0].values["round"]
        self.attempts[round_] = self.attempts.get(round_, 0) + 1
        self.old[round_] = dict(out)
        return self.fault(self, round_, self.attempts[round_], out)


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


@pytest.fixture(scope="module")
def whole(world: CheckWorld) -> WholeState:
    """The end of the run in which nothing goes wrong."""
    return local(world, METHOD, ROUNDS)[0]


class Outcome:
    """A run over a faulty carrier."""

    def __init__(
        self, world: CheckWorld, folder: Path, fault: Any, policy: Policy | None = None,
        setup: Setup = ROUNDS, method: type[Trainer] = METHOD,
    ) -> None:
        self.grid = Grid(world, method, folder, setup, policy or Policy(wait=0))
        self.grid.carrier = self.carrier = Faulty(fault)
        self.grid.restart()
        self.fed, self.engine = self.grid.server()
        self.dropped: dict[int, dict[int, str]] = {}
        self.states: list[FedState] = []
        self.fed.subscribers.append(self.hear)
        self.fed.savers.append(self.states.append)

    def hear(self, event: object) -> None:
        if isinstance(event, RoundFinished):
            self.dropped[event.round] = event.dropped

    def end(self) -> WholeState:
        return self.grid.whole(self.fed, self.fed.run())

    def save_round_1(self, disk: Path) -> None:
        """Save the state after round 1 and none after it: the coordinator dies before that."""

        def save(state: FedState) -> None:
            if state.round == 1:
                write_state(disk, self.fed, state)
                self.fed.commit(state)

        self.fed.savers.append(save)


def edited(data: bytes | str, change: Callable[[dict[str, Tree], dict[str, Any]], None]) -> bytes:
    """Return an answer with something changed in it."""
    assert isinstance(data, bytes)
    frame = unpack(data)
    trees = {name: dict(tree) for name, tree in frame.trees.items()}
    values: dict[str, Any] = dict(frame.values)
    change(trees, values)
    return pack(Frame(frame.op, values, trees))


def once(new: Callable[[Faulty, Out], bytes | str], site: str = "site1") -> Any:
    """Return the fault of the second round's first answer of a site."""

    def fault(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        return out | {site: new(carrier, out)} if (round_, attempt) == (2, 1) else out

    return fault


def foreign(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    """Answer for client 0, which is at the other site, with a great weight."""
    p = len(values["parts"])
    trees |= {f"{kind}/{p}": trees[f"{kind}/0"] for kind in ("up", "extra", "told", "rows")}
    trees[f"told/{p}"] = {n: v * 1e9 for n, v in trees["told/0"].items()}
    values["parts"] = [*values["parts"], {**values["parts"][0], "clients": [0, 1]}]


@pytest.mark.parametrize(("fault", "said"), [
    (once(lambda carrier, out: "no answer within 5 s"), "site1: no answer within 5 s"),
    (once(lambda carrier, out: carrier.old[1]["site1"]), "a late answer to another request"),
    (once(lambda carrier, out: b"\0" * 64), "a message is not a fedvlm frame"),
    (once(lambda carrier, out: nested(300)), "'config' of 'hello' has an invalid value"),
    (once(lambda carrier, out: edited(out["site1"], foreign)), "answers for clients [0, 1]"),
])  # fmt: skip
def test_what_can_be_asked_again_moves_no_bit(
    world: CheckWorld, whole: WholeState, tmp_path: Path, fault: Any, said: str
) -> None:
    run = Outcome(world, tmp_path, fault)
    same_fed(run.end(), whole, said)
    assert len(run.grid.said) == 1 and said in run.grid.said[0]
    assert not any(run.dropped.values())


def test_no_site_drops_the_clients_of_another(
    world: CheckWorld, whole: WholeState, tmp_path: Path
) -> None:
    """The other site does not answer at first: its clients are still waited for."""

    def drop(trees: dict[str, Tree], values: dict[str, Any]) -> None:
        values["dropped"] = {"2": "a number is not finite"}

    def fault(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        if (round_, attempt) != (2, 1):
            return out
        return {"site0": edited(out["site0"], drop), "site1": "not connected"}

    run = Outcome(world, tmp_path, fault)
    same_fed(run.end(), whole, "dropped by another site")
    assert "site0 answers for clients [2]" in run.grid.said[0]
    assert not any(run.dropped.values())


def test_sites_that_start_anew_between_rounds_move_no_bit(
    world: CheckWorld, whole: WholeState, tmp_path: Path
) -> None:
    def fault(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        if round_ > 0:
            run.grid.restart()
        return out

    run = Outcome(world, tmp_path, lambda *given: given[-1])
    run.carrier.fault = fault
    same_fed(run.end(), whole, "sites started anew")
    assert run.grid.said == []


def away(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
    """The second site is gone from the second round on."""
    gone = round_ >= 2 or (round_ < 0 and 2 in carrier.attempts)
    return {s: "not connected" if gone and s == "site1" else data for s, data in out.items()}


def test_below_the_quorum_the_run_stops_and_goes_on_from_the_round_before(
    world: CheckWorld, whole: WholeState, tmp_path: Path
) -> None:
    run = Outcome(world, tmp_path, away)
    with pytest.raises(QuorumError, match="round 2: 2 of 4 clients did not answer") as told:
        run.end()
    assert "site1: no answer: not connected" in str(told.value)
    assert "round 1 is kept" in str(told.value)
    assert QuorumError.exit_code == 6 and run.carrier.attempts[2] == 3
    run.carrier.fault = lambda *given: given[-1]
    run.grid.restart()
    fed, _ = run.grid.server()
    same_fed(run.grid.whole(fed, fed.run(run.states[-1])), whole, "gone on after the quorum")


def test_above_the_quorum_the_others_go_on(world: CheckWorld, tmp_path: Path) -> None:
    run = Outcome(world, tmp_path, away, KEEP_ON)
    numbers = measured(run.fed)
    end = run.end()
    assert [row["accuracy"] is None for row in numbers[-1]] == [False, False, True, True]
    assert end.worked == {0: 3, 1: 3, 2: 1, 3: 1}
    assert run.dropped[2] == dict.fromkeys((2, 3), "site1: no answer: not connected")
    assert count_reasons(run.dropped[2].values()) == {NO_ANSWER: 2}
    assert notes(numbers[-1])[0] == ("2 clients (2, 3) whose site did not answer: not in any "
                                     "number")


def nan(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    name = next(iter(trees["up/0"]))
    trees["up/0"][name] = trees["up/0"][name].clone()
    trees["up/0"][name][0] = torch.nan


def poison(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["up/0"] = {n: v * torch.nan for n, v in trees["up/0"].items()}


def shape(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["up/0"] = {n: v.unsqueeze(-1) for n, v in trees["up/0"].items()}


def personal(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["up/0"]["personal.secret"] = torch.zeros(2, 3)


def extra(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["extra/0"]["data.images"] = torch.zeros(2, 3)


def number(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["told/0"]["metric/labels"] = torch.zeros(2, dtype=torch.float64)


def negative(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["told/0"]["weight"] = torch.tensor([-1.0, 1.0], dtype=torch.float64)


def heavy(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["told/0"]["weight"] = torch.tensor([1e9, 1.0], dtype=torch.float64)


def eighths(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["extra/0"] = {n: v.to(torch.float8_e4m3fn) for n, v in trees["extra/0"].items()}


def nested(depth: int) -> bytes:
    """Return a frame with a value in so many lists."""
    value = "[" * depth + "1" + "]" * depth
    values = f'{{"run":"{RUN}","nonce":"{RUN}","config":{{"X":{value}}}}}'
    head = f'{{"wire":"{WIRE}","op":"hello","values":{values},"layout":{{}}}}'
    return checksummed({}, head)


def far(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["up/0"] = {n: v + torch.tensor([1e6, 0.0]).view(2, *[1] * (v.dim() - 1)).to(v.dtype)
                     for n, v in trees["up/0"].items()}


def unlike(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    trees["rows/0"] = {"nothing": torch.zeros(2, 1, dtype=torch.int64)}


@pytest.mark.parametrize(("change", "lost", "said"), [
    (nan, 1, "is not finite"), (shape, 2, "torch.float64, not ["), (negative, 1, "weight is -1"),
    (heavy, 1, "its weight is 1e+09, and its site reported "),
    (personal, 2, "that the method does not send: ['personal.secret']"),
    (extra, 2, "['data.images']"), (number, 2, "['labels']"), (unlike, 2, "rows of tensors that "
                                                                          "it does not send"),
    (far, 1, "above 100"),
])  # fmt: skip
def test_a_bad_update_is_left_out_by_name_and_its_client_goes_back(
    world: CheckWorld, tmp_path: Path, change: Any, lost: int, said: str
) -> None:
    fault = once(lambda carrier, out: edited(out["site1"], change))
    run = Outcome(world, tmp_path, fault, Policy(wait=0, max_norm=100.0), Setup(rounds=2))
    end = run.end()
    assert len(run.dropped[2]) == lost and all(said in why for why in run.dropped[2].values())
    assert all(why.startswith("site1: ") for why in run.dropped[2].values())
    assert [end.worked[c] for c in sorted(run.dropped[2])] == [1] * lost
    assert len(run.grid.said) == lost and all(said in words for words in run.grid.said)
    assert run.carrier.attempts[2] == 1  # asking again would give the same


@pytest.mark.parametrize(("change", "error", "said"), [
    (shape, QuorumError, "round 1: of 4 clients no update is left .site0: .*round 0 is kept"),
    (poison, DivergedError, "round 1: every client was dropped .*is not finite"),
])  # fmt: skip
def test_where_no_update_can_be_taken_the_run_ends_by_what_is_wrong_with_them(
    world: CheckWorld, tmp_path: Path, change: Any, error: type[FedvlmError], said: str
) -> None:
    def fault(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        return {site: edited(data, change) for site, data in out.items()} if round_ > 0 else out

    with pytest.raises(error, match=said):
        Outcome(world, tmp_path, fault, KEEP_ON, Setup(rounds=1)).end()


def test_a_site_that_is_refused_three_times_in_a_row_is_asked_no_more(
    world: CheckWorld, tmp_path: Path
) -> None:
    def fault(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        bad = round_ > 0 and "site1" in out
        return out | {"site1": edited(out["site1"], shape)} if bad else out

    run = Outcome(world, tmp_path, fault, KEEP_ON, Setup(rounds=4))
    end = run.end()
    assert "site1 is excluded from now on: refused 3 rounds in a row" in run.grid.said[-1]
    assert run.dropped[4] == dict.fromkeys((2, 3), "site1: no answer: excluded")
    assert end.worked == {0: 4, 1: 4}


def test_a_state_that_is_gone_stops_the_run_and_is_not_made_anew(
    world: CheckWorld, tmp_path: Path
) -> None:
    def fault(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        for path in (tmp_path / "site1" / RUN).glob("s*.safetensors") if round_ == 1 else ():
            path.write_bytes(path.read_bytes()[:-1])
        return out

    run = Outcome(world, tmp_path, fault)
    with pytest.raises(FedvlmError, match="site1: client 2: the state of round 1, which") as told:
        run.end()
    assert "restore it from a backup" in str(told.value) and str(tmp_path) not in str(told.value)


def boast(trees: dict[str, Tree], values: dict[str, Any]) -> None:
    values["counters"] = dict.fromkeys(values["counters"], 2**53)


def failed(kind: str, text: str) -> Callable[[Faulty, Out], bytes]:
    """The answer of a site that fails for good."""
    def answer(carrier: Faulty, out: Out) -> bytes:
        assert isinstance(out["site1"], bytes)
        nonce = unpack(out["site1"]).values["nonce"]
        return pack(Frame("failed", {"nonce": nonce, "kind": kind, "text": text}))

    return answer


GRAVE = [("diverged", "round 2, client 2: loss is not finite", DivergedError),
         ("lost", "client 2: the state of round 1 is not at this site", DataError)]


@pytest.mark.parametrize(("kind", "text", "error"), GRAVE)
def test_a_site_that_fails_for_good_ends_a_run_only_below_the_quorum(
    world: CheckWorld, tmp_path: Path, kind: str, text: str, error: type[FedvlmError]
) -> None:
    """Above it the failure is that site's: its clients are left out by name, and not asked again
    in the round; the round after takes them back."""
    fault = once(failed(kind, text))
    with pytest.raises(error, match=f"site1: {text}"):
        Outcome(world, tmp_path / "strict", fault).end()
    run = Outcome(world, tmp_path / "quorum", fault, KEEP_ON)
    end = run.end()
    assert run.dropped[2] == dict.fromkeys((2, 3), f"site1: {text}")
    assert end.worked == dict.fromkeys(range(4), 3) and run.carrier.attempts[2] == 1
    assert run.grid.said == [f"round 2: without client {c} (site1: {text})" for c in (2, 3)]


@pytest.mark.parametrize(("kind", "text", "error"), GRAVE)
def test_numbers_of_a_site_that_fails_for_good_are_lacking_above_the_quorum(
    world: CheckWorld, tmp_path: Path, kind: str, text: str, error: type[FedvlmError]
) -> None:
    def fault(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        data = out.get("site1")
        if not isinstance(data, bytes) or unpack(data).op != "evaluated":
            return out
        return out | {"site1": failed(kind, text)(carrier, out)}

    strict = Outcome(world, tmp_path / "strict", fault)
    measured(strict.fed)
    with pytest.raises(error, match=f"site1: {text}"):
        strict.end()
    run = Outcome(world, tmp_path / "quorum", fault, KEEP_ON)
    told = measured(run.fed)
    run.end()
    assert all([row["n"] > 0 for row in rows] == [True, True, False, False] for rows in told)


class Failing(OverSockets):
    """A carrier of whose sites the second says that it failed for good, once ``on`` is set."""

    on = False

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        out = super().ask(frames, seconds)
        if not self.on or "site1" not in out:
            return out
        return {**out, "site1": failed("diverged", "so it says")(self, dict(out))}


def test_a_site_that_fails_for_good_at_the_start_or_as_it_forgets_ends_nobody_s_run(
    world: CheckWorld, tmp_path: Path
) -> None:
    """Of a run that goes on, above the quorum; whatever asks for baselines does without it."""
    grid = Grid(world, METHOD, tmp_path, policy=KEEP_ON)
    grid.carrier = carrier = Failing()
    grid.restart()
    _, engine = grid.server()
    before = engine.members.welcomes()
    carrier.on = True
    engine.forget(dict.fromkeys(range(4), 0))
    assert grid.said[-1] == "site1 did not forget: so it says"
    assert site_baselines(engine, range(4), 16, 4, Releases(), True) is None
    for start, policy in (({}, KEEP_ON), (before, Policy(wait=0))):
        with pytest.raises(DivergedError, match="site1: so it says"):
            RemoteEngine(carrier, CONFIG, 4, policy, RUN).meet(4, 0, start)
    again = RemoteEngine(carrier, CONFIG, 4, KEEP_ON, RUN, say=grid.said.append)
    again.meet(4, 0, before)
    assert again.members.askable(range(4)) == [0, 1]
    assert "so it says: it takes no part in this session" in grid.said[-2] + grid.said[-1]


def test_what_a_site_counts_is_capped_by_what_it_was_asked_for(
    world: CheckWorld, tmp_path: Path
) -> None:
    def spent(fault: Any, folder: Path) -> tuple[dict[str, int], list[str]]:
        counted: dict[str, int] = {}
        run = Outcome(world, folder, fault)
        run.fed.subscribers.append(lambda event: counted.update(getattr(event, "counters", {}))
                                   if getattr(event, "round", 0) == 2 else None)
        run.end()
        return counted, run.grid.said

    true, silent = spent(lambda *given: given[-1], tmp_path / "true")
    told, said = spent(once(lambda carrier, out: edited(out["site1"], boast)), tmp_path / "boast")
    assert not silent
    assert any("site1 counts 9007199254740992 steps, more than its" in words for words in said)
    assert told["steps"] < 1000 * true["steps"] and told["samples"] < 1000 * true["samples"]


class Keyed(OverSockets):
    """A carrier that makes sure of keys."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        super().__init__()
        self.keys = keys

    def key(self, site: str) -> str:
        return self.keys[site]


def test_a_client_belongs_to_the_key_that_brought_it(world: CheckWorld, tmp_path: Path) -> None:
    """A site with another key that claims it later takes no part; the rest goes on."""
    def met(keys: Mapping[str, str], before: Mapping[str, Any], policy: Policy) -> Grid:
        grid = Grid(world, METHOD, tmp_path, policy=policy)
        grid.carrier = Keyed(keys)
        grid.restart()
        engine = RemoteEngine(grid.carrier, CONFIG, 4, policy, RUN, say=grid.said.append)
        engine.meet(4, 0, before)
        grid.engine = engine  # type: ignore[attr-defined]
        return grid

    first = met({"site0": "A", "site1": "B"}, {}, KEEP_ON)
    told = first.engine.members.welcomes()  # type: ignore[attr-defined]
    assert {site: one["key"] for site, one in told.items()} == {"site0": "A", "site1": "B"}
    stranger = {"site0": "A", "site1": "C"}
    with pytest.raises(ConfigError, match="site1 says that it has client 2, which a site with ano"):
        met(stranger, told, Policy(wait=0))
    grid = met(stranger, told, KEEP_ON)
    members = grid.engine.members  # type: ignore[attr-defined]
    assert members.askable(range(4)) == [0, 1] and members.shut == {"site1"}
    assert "takes no part in this session" in grid.said[0]
    assert members.welcomes()["site0"]["key"] == "A"


def test_above_the_quorum_a_site_that_fits_no_more_is_left_out_of_a_run_that_goes_on(
    world: CheckWorld, tmp_path: Path
) -> None:
    grid = Grid(world, METHOD, tmp_path, policy=KEEP_ON)
    _, engine = grid.server()
    before = engine.members.welcomes()
    grid.sites["site1"].facts |= {"torch": "1.0"}
    with pytest.raises(ConfigError, match="site1 cannot take part: it differs in torch"):
        grid.server()  # a run that begins needs all
    fed, engine = grid.server(before)
    assert engine.members.askable(range(4)) == [0, 1]
    assert "it differs in torch" in grid.said[-1] and "takes no part" in grid.said[-1]


def test_a_site_with_another_config_is_refused_by_its_keys(
    world: CheckWorld, tmp_path: Path
) -> None:
    grid = Grid(world, METHOD, tmp_path)
    grid.sites["site1"].config = CONFIG | {"OPTIM.LR": 0.01, "X.DIR": "/secret", "NEW": True}
    with pytest.raises(ConfigError) as told:
        grid.server()
    assert str(told.value) == (
        "site1 cannot take part: the config differs in NEW (True there, absent here), "
        "OPTIM.LR (0.01 there, 0.05 here), X.DIR (another value there, another value here)"
    )


def test_sites_of_another_version_or_start_are_refused(world: CheckWorld, tmp_path: Path) -> None:
    grid = Grid(world, METHOD, tmp_path)
    grid.sites["site0"].facts |= {"torch": "1.0", "trained tensors": "ab"}
    with pytest.raises(ConfigError, match=r"it differs in torch \(1.0 there, .* here\), trained"):
        grid.server()
    grid.sites["site0"].facts |= {"class names": "ab"}
    with pytest.raises(ConfigError, match="class names, .*list of --classes.* in the same order"):
        grid.server()


def test_clients_without_a_site_and_with_two_are_refused(world: CheckWorld, tmp_path: Path) -> None:
    grid = Grid(world, METHOD, tmp_path)
    both = grid.carrier.answers
    grid.carrier.answers = {"site0": both["site0"]}
    with pytest.raises(ConfigError, match=r"no site has clients \[2, 3\]; there are site0"):
        grid.server()
    grid.carrier.answers = both | {"twin": both["site1"]}
    with pytest.raises(ConfigError, match="sites site1 and twin both have client 2"):
        grid.server()


def test_a_number_that_is_not_finite_at_a_site_ends_the_run(
    world: CheckWorld, tmp_path: Path
) -> None:
    grid = Grid(world, METHOD, tmp_path)
    fed = federation(world, METHOD, Setup(rounds=2, poisoned=(2,)))
    grid.sites["site1"].federation = fed
    server, _ = grid.server()
    with pytest.raises(DivergedError, match="site1: round 1, client 2: .* is not finite$"):
        server.run()


def test_a_server_that_dies_before_it_saves_goes_on_with_the_same_bits(
    world: CheckWorld, whole: WholeState, tmp_path: Path
) -> None:
    """The sites have worked for two rounds more than the checkpoint knows of."""
    run = Outcome(world, tmp_path / "grid", lambda *given: given[-1])
    disk = tmp_path / "server"
    disk.mkdir()
    run.save_round_1(disk)
    run.end()
    saved = b"".join(path.read_bytes() for path in disk.rglob("*.safetensors"))
    fed, _ = run.grid.server()
    state = read_state(disk, fed)
    assert (state.round, state.versions) == (1, dict.fromkeys(range(4), 1))
    same_fed(run.grid.whole(fed, fed.run(state)), whole, "gone on from the checkpoint")
    for client in whole.clients.values():  # no tensor of a client is in the server's files
        assert client["v"]["text.ctx"].numpy().tobytes() not in saved
