"""A pool of workers that share states: the bits of one process, whoever takes which chunk."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.check.compare import copy_fed, same_fed
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.trees import State
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.store import SiteStore, new_letters
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.evaluation import ClientMeter
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine, RoundWork
from fedvlm.federation.local.images import Absent
from fedvlm.federation.rounds import Federation, FedState, WholeState
from fedvlm.federation.trainer import Trainer
from fedvlm.job.workers.engine import PoolEngine
from fedvlm.job.workers.site import PoolSite
from tests.distributed import grid
from tests.distributed.grid import CONFIG, RUN, measured
from tests.distributed.in_process import InProcess

CHUNK, ROUNDS = 2, 3
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Noting(LocalEngine):
    """The local engine, which notes its chunks: (round, clients)."""

    chunks: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)

    def run(self, *given: Any) -> RoundWork:
        """Work."""
        work = super().run(*given)
        rounds = dict(work.versions)
        self.chunks.update((rounds[p.clients[0]], p.clients) for p in work.uploads)
        return work


def federation(
    world: CheckWorld, trainer: type[Trainer], frac: float, poisoned: tuple[int, ...] = ()
) -> Federation:
    engine = Noting(CHUNK, (0,) * len(world.splits))
    fed = world.federation(trainer, Setup(
        rounds=ROUNDS, seed=3, engine=engine, poisoned=poisoned, nonfinite="drop",
    ))
    fed.plan = replace(fed.plan, frac=frac, first_round_all=False)
    pool = torch.cat([torch.from_numpy(s.test) for s in world.splits]).numpy()
    tests = grid.Tests(world.labels.numpy(), world.splits, pool, pool[:4])
    source: Any = fed.batcher
    fed.meter = ClientMeter(fed.model, fed.trainer, source.source, tests, batch_size=4)
    return fed


class Mortal(InProcess):
    """Workers of which one dies over a round's work, having done it."""

    def __init__(self, sites: Mapping[str, Any]) -> None:
        super().__init__(sites)
        self.dies, self.work = 0, list[tuple[int, str]]()
        self.chunks: set[tuple[int, tuple[int, ...]]] = set()

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        out = dict(super().ask(frames, seconds))
        for name, frame in ((n, unpack(data)) for n, data in frames.items()):
            if frame.op == "work":
                self.work.append((frame.values["round"], name))
                if frame.values["round"] == self.dies and len(self.answers) > 1:
                    del self.answers[name]
                    out[name] = "it closed the connection"
                    self.dies = 0
        for reply in (unpack(data) for data in out.values() if isinstance(data, bytes)):
            if reply.op == "worked":
                self.chunks |= {(reply.values["round"], tuple(part["clients"]))
                                for part in reply.values["parts"]}
        return out


@dataclass
class Pool:
    """Three workers and their driver."""

    world: CheckWorld
    trainer: type[Trainer]
    folder: Path
    frac: float = 0.75
    poisoned: tuple[int, ...] = ()
    said: list[str] = field(default_factory=list)
    chunks: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)  # of the local run

    def __post_init__(self) -> None:
        """Put the workers up."""
        feds = [self.federation() for _ in range(3)]
        sites = [PoolSite(fed, self.folder, CONFIG) for fed in feds]
        self.carrier = Mortal({f"worker{i}": site.answer for i, site in enumerate(sites)})

    def federation(self) -> Federation:
        return federation(self.world, self.trainer, self.frac, self.poisoned)

    def driver(self) -> Federation:
        fed = self.federation()
        engine = PoolEngine(
            self.carrier, CONFIG, CHUNK, Policy(wait=0), RUN, self.said.append,
            layout=fed.engine.sites,
        )
        engine.meet(len(self.world.splits), 0)
        fed.meter, fed.batcher = None, Absent(fed.roster, 4, "the driver")
        engine.join(fed)
        return fed

    def end(self, fed: Federation, state: FedState) -> WholeState:
        """The end with the clients' tensors, which any worker has."""
        store = SiteStore(self.folder, RUN, CPU, new_letters())
        clients, there = fed.clients, fed.clients.store
        clients.store = store
        own: dict[int, State] = clients.read(range(len(self.world.splits)), state.versions)
        clients.store = there
        held = {c: fed.held.get([c], [v]) for c, v in state.held.items()}
        out = {c: {s: {n: v[0] for n, v in t.items()} for s, t in rows[0][1].items()}
               for c, rows in held.items()}
        return WholeState(state.round, state.server, own, out, dict(state.versions))


def both(
    pool: Pool, dies: int = 0
) -> tuple[WholeState, WholeState, tuple[list[list[Any]], list[list[Any]]]]:
    """Return the ends of the run in this process and by the pool, and the numbers of both."""
    whole = pool.federation()
    rows, dropped = measured(whole), list[Mapping[int, str]]()
    whole.subscribers.append(lambda event: dropped.append(getattr(event, "dropped", {})))
    end = copy_fed(whole.read(whole.run()))
    assert isinstance(whole.engine, Noting)
    pool.chunks = whole.engine.chunks
    fed = pool.driver()
    told, lost = measured(fed), list[Mapping[int, str]]()
    fed.subscribers.append(lambda event: lost.append(getattr(event, "dropped", {})))
    pool.carrier.dies = dies
    state = fed.run()
    assert lost == dropped and any(lost) == bool(pool.poisoned)
    return end, pool.end(fed, state), (rows, told)


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


@pytest.mark.parametrize("name", [
    "fedper",
    *(pytest.param(n, marks=pytest.mark.slow) for n in sorted(trainer_files()) if n != "fedper"),
])  # fmt: skip
def test_a_pool_gives_the_bits_of_one_process(world: CheckWorld, name: str, tmp_path: Path) -> None:
    pool = Pool(world, load_trainer(name), tmp_path)
    local, away, (rows, told) = both(pool)
    same_fed(away, local, f"{name} by a pool")
    assert json.dumps(told) == json.dumps(rows) and pool.said == []
    assert pool.carrier.chunks == pool.chunks
    assert len({worker for _, worker in pool.carrier.work}) >= 2


def test_clients_of_two_forms_share_no_chunk_and_a_worker_may_die(tmp_path: Path) -> None:
    """Whoever worked keeps its optimiser's state, so that it has other tensors than a newcomer.

    Client 3 is dropped each time: its loss is not finite.
    """
    keeping = CheckWorld(opts=["OPTIM.KEEP_STATE", "True"])
    pool = Pool(keeping, load_trainer("fedper"), tmp_path, poisoned=(3,))
    local, away, (rows, told) = both(pool, dies=2)
    same_fed(away, local, "two forms")
    assert told == rows and pool.carrier.chunks == pool.chunks
    # By size alone (1, 2) and (3,), which is dropped, would be computed together.
    assert {(2, (2,)), (2, (1,))} <= pool.chunks
    (said,) = pool.said
    assert re.fullmatch(r"round 2, attempt 1: worker\d: it closed the connection", said)
    assert len([worker for round_, worker in pool.carrier.work if round_ == 2]) == 3


def test_a_worker_that_reads_other_images_cannot_take_part(
    world: CheckWorld, tmp_path: Path
) -> None:
    """Not at the start, not as a newcomer, and not begun again at the address of one that was."""
    pool = Pool(world, load_trainer("fedper"), tmp_path)

    def worker(images: str) -> PoolSite:
        return PoolSite(pool.federation(), tmp_path, CONFIG, beside={"images": images})

    def driver() -> tuple[Federation, PoolEngine]:
        fed = pool.federation()
        engine = PoolEngine(
            pool.carrier, CONFIG, CHUNK, Policy(wait=0), RUN, pool.said.append,
            layout=fed.engine.sites, beside={"images": "ours"},
        )
        engine.meet(len(world.splits), 0)
        fed.meter, fed.batcher = None, Absent(fed.roster, 4, "the driver")
        engine.join(fed)
        return fed, engine

    ours, others = worker("ours"), worker("others")
    pool.carrier.answers = {"worker0": ours.answer, "worker1": others.answer}
    with pytest.raises(ConfigError, match="worker1 cannot take part: it differs in images"):
        driver()
    pool.carrier.answers = {"worker0": ours.answer}
    fed, engine = driver()
    pool.carrier.answers["worker1"] = others.answer
    assert engine.workers() == ["worker0"]
    assert pool.said == ["worker1 cannot take part: images"]
    pool.carrier.answers = {"worker0": others.answer}
    with pytest.raises(FedvlmError, match="of a run with another config, model or version"):
        fed.run()


def test_what_a_worker_refuses_others_are_asked_for(world: CheckWorld, tmp_path: Path) -> None:
    """The first worker is there and says no, to work and to numbers; a new job asks it again."""
    pool = Pool(world, load_trainer("fedper"), tmp_path)
    fed = pool.driver()
    told = measured(fed)
    asked: list[str] = []

    def refuse(data: bytes) -> bytes:
        frame = unpack(data)
        asked.append(frame.op)
        values = {"nonce": frame.values["nonce"], "kind": "failed", "text": "no memory"}
        return pack(Frame("failed", values))

    pool.carrier.answers["worker0"] = refuse
    fed.run()
    assert asked.count("work") == ROUNDS and asked.count("evaluate") == len(told) == ROUNDS + 1


def test_nobody_left_is_said(world: CheckWorld, tmp_path: Path) -> None:
    pool = Pool(world, load_trainer("fedper"), tmp_path)
    fed = pool.driver()
    pool.carrier.answers = {}
    with pytest.raises(FedvlmError, match="no worker is left; the same command"):
        fed.run()


def test_old_states_go_once_no_checkpoint_needs_them(world: CheckWorld, tmp_path: Path) -> None:
    pool = Pool(world, load_trainer("fedper"), tmp_path, frac=1.0)
    fed = pool.driver()
    fed.savers.append(fed.commit)
    fed.round(fed.run(), 4)
    store = SiteStore(tmp_path, RUN, CPU, new_letters())
    assert {version for _, version in store.rows()} == {2, 3, 4}
    assert isinstance(fed.clients.store, AwayStore)
    assert {v for forms in fed.clients.store.forms.values() for v in forms} == {3, 4}


def test_the_local_engine_refuses_states_of_workers(world: CheckWorld) -> None:
    away = AwayStore(None)
    away.note_forms(3, {1: "ab" * 6})
    ((ids, state),) = away.get([1], [3])
    fed = federation(world, load_trainer("fedper"), 1.0)
    fed.clients.store.put(3, ids, state)
    with pytest.raises(ConfigError, match="is stored at the worker or site that made it"):
        fed.clients.stacked([1], {1: 3})


def test_records_of_many_rounds_are_packed_as_old_states_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that worked once holds its round's record: packs keep the files few."""
    monkeypatch.setattr("fedvlm.runs.records.MOST", 8)
    workers, accepted, floor = (new_letters(), new_letters()), dict[int, int](), dict[int, int]()
    for round_ in range(1, 25):
        SiteStore(tmp_path, RUN, CPU, workers[round_ % 2]).forget(floor)
        floor = dict(accepted)
        for letters, client in zip(workers, (0, round_), strict=True):
            store = SiteStore(tmp_path, RUN, CPU, letters)
            store.put(round_, [client], {"w": {"a": torch.tensor([100 * client + round_])}})
            store.keep({})
            accepted[client] = round_
    store = SiteStore(tmp_path, RUN, CPU, new_letters())
    assert len(store.names()) <= 8 + 2 and not store.damage
    ((ids, state),) = store.get(sorted(accepted), [accepted[c] for c in sorted(accepted)])
    assert ids == sorted(accepted) and len(ids) == 25
    assert state["w"]["a"].tolist() == [100 * c + accepted[c] for c in ids]
