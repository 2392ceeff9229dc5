"""``FED.UNRELIABLE.BUFFER`` (FedBuff) against a simulation of its own, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.cli.main import main
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.server_optim import ServerOptimSpec
from fedvlm.federation.batches import Batch, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.reliability.unreliable import Unreliable, parse_absences
from fedvlm.federation.rounds import Federation, RoundFinished
from fedvlm.federation.trainer import Trainer
from tests import jobs
from tests.federation.toys import ToyModel, ToySource, ToySplit

SIZES, DIM, CLASSES, LR, STEPS = (6, 2, 4, 8, 3, 5), 3, 4, 0.3, 2
SLOW: dict[str, Any] = {"stragglers": 0.6, "slowdown": (2.0, 7.0)}


class Head(Trainer):
    """FedAvg on a linear head."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(TRAINER={}))

    def trainables(self, model: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {"w": torch.zeros(CLASSES, DIM, dtype=torch.float64)}

    def loss(self, model: Any, p: dict[str, torch.Tensor], b: Batch) -> torch.Tensor:
        logits = b.x["x"] @ p["w"].transpose(1, 2)
        each = F.cross_entropy(logits.flatten(0, 1), b.y.flatten(), reduction="none")
        return (b.w * each.view(b.w.shape)).sum(1) / b.w.sum(1)


def images() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    draw, total = np.random.default_rng(3), sum(SIZES)
    edges = np.cumsum([0, *SIZES])
    parts = [np.arange(i, j) for i, j in zip(edges[:-1], edges[1:], strict=True)]
    return draw.normal(size=(total, DIM)), draw.integers(0, CLASSES, total), parts


def head(rounds: int, how: Unreliable, **plan: Any) -> Federation:
    x, y, parts = images()
    source = ToySource({"x": torch.from_numpy(x)}, torch.from_numpy(y))
    batcher = SplitBatcher(source, [ToySplit(p) for p in parts], 100, 1, 1, STEPS,
                           torch.device("cpu"), torch.float64)
    how_long = Plan(rounds, len(SIZES), epochs=STEPS, optim=OptimSpec("sgd", LR, 0.0, 0.0),
                    unreliable=how, **plan)
    model: Any = ToyModel()
    return Federation(Head(), model, batcher, how_long, engine=LocalEngine(8))


def trained(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Softmax regression by full-batch gradient descent."""
    for _ in range(STEPS):
        p = np.exp(x @ w.T)
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        w = w - LR * p.T @ x / len(y)
    return w


def fedbuff(how: Unreliable, steps: int, working: int, rate: float = 1.0) -> tuple[Any, list[int]]:
    """Algorithm 1, event by event, as it would happen: a client trains when it starts."""
    x, y, parts = images()
    w, now, version, draws = np.zeros((CLASSES, DIM)), 0.0, 0, 0
    jobs_: list[tuple[float, int, int, np.ndarray]] = []  # end, client, version, its move
    buffer: list[tuple[int, int, np.ndarray]] = []
    idle, seen = list(range(len(SIZES))), []
    while version < steps:
        while idle and len(jobs_) < working:
            k = idle.pop(rng.seed_of(how.seed, "unreliable-start", draws) % len(idle))
            draws += 1
            move = trained(w, x[parts[k]], y[parts[k]]) - w
            jobs_.append((now + how.slowness(version + 1, k), k, version, move))
        first = min(jobs_, key=lambda job: job[:2])
        jobs_.remove(first)
        now = first[0]
        buffer.append(first[1:])
        if len(buffer) == how.buffer:
            total = sum(SIZES[k] for k, _, _ in buffer)
            step = sum(SIZES[k] / total * move / np.sqrt(1 + version - v) for k, v, move in buffer)
            seen += [version - v for _, v, _ in buffer]
            w, version = w + rate * step, version + 1
            idle += sorted(k for k, _, _ in buffer)
            buffer = []
    return w, seen


@pytest.mark.parametrize(("buffer", "frac", "by"), [
    (2, 1.0, "round"), (3, 0.5, "round"), (2, 0.7, "client"), (1, 1.0, "round"), (5, 0.4, "round"),
])
def test_it_is_algorithm_1(buffer: int, frac: float, by: str) -> None:
    how = Unreliable(4, 12, **SLOW, slow_by=by, buffer=buffer)
    fed = head(12, how, frac=frac)
    w, stale = fedbuff(how, 12, fed.plan.cohort)
    events: list[RoundFinished] = []
    fed.subscribers.append(lambda e: events.append(e) if isinstance(e, RoundFinished) else None)
    found = fed.run().server["w"]["w"].numpy()
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)
    told = [tau for e in events[1:] for tau in e.report["staleness"].values()]
    assert sorted(told) == sorted(stale) and (max(stale) > 1 or buffer == 5)
    assert all(e.updates and len(e.updates) == buffer for e in events[1:])


def test_the_server_rate_is_that_of_the_server_optimiser() -> None:
    how = Unreliable(4, 9, **SLOW, buffer=2)
    spec = ServerOptimSpec("momentum", lr=0.4, momentum=0.0)
    found = head(9, how, server_optim=spec).run().server["w"]["w"].numpy()
    np.testing.assert_allclose(found, fedbuff(how, 9, len(SIZES), 0.4)[0], rtol=0, atol=1e-12)


def test_a_buffer_for_all_clients_at_one_speed_is_the_plain_run_bit_for_bit() -> None:
    plain, buffered = (head(4, Unreliable(1, 4, buffer=n)).run() for n in (0, len(SIZES)))
    assert torch.equal(plain.server["w"]["w"], buffered.server["w"]["w"])
    assert plain.server.keys() == buffered.server.keys() and plain.versions == buffered.versions


def test_more_rounds_change_no_earlier_arrival_and_only_models_in_use_are_kept() -> None:
    how = Unreliable(4, 30, **SLOW, buffer=2)
    short, long = head(5, how).plan, head(30, how).plan
    assert [short.turn(r) for r in range(1, 6)] == [long.turn(r) for r in range(1, 6)]
    fed = head(30, how)
    state = fed.start()
    for round_ in range(1, 31):
        state = fed.round(state, round_)
        kept = {int(s.removeprefix("past.")) for s in state.server if s.startswith("past.")}
        assert kept == {v for v in long.turn(round_).busy if v < round_}
        assert len(kept) < len(SIZES)


# ---- runs ----------------------------------------------------------------------------------------
WORDS = ["--trainer", "FedAvg", "--peft", "head", "--rounds", "6", "--num-users", "4", "--opts",
         "FED.UNRELIABLE.BUFFER", "2", "FED.UNRELIABLE.STRAGGLERS", "0.5", "TEST.REFERENCES",
         "False"]


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    assert jobs.run(tmp_path / "whole", *WORDS) == 0
    stop = "import os\nimport fedvlm.job.record as r; old = r.Recorder.save\n" \
           "def save(self, state):\n    old(self, state)\n" \
           "    if state.round == 3: os._exit(9)\nr.Recorder.save = save"
    assert jobs.spawn(tmp_path / "cut", *WORDS, before=stop).returncode == 9
    assert any("past." in name for name in jobs.state(tmp_path / "cut"))
    assert jobs.run(tmp_path / "cut", *WORDS) == 0
    jobs.same(tmp_path / "whole", tmp_path / "cut")
    taus = [t for r in jobs.records(tmp_path / "whole")
            for t in r.get("aggregation", {}).get("staleness", {}).values()]
    assert len(taus) == 12 and max(taus) >= 1
    folder = jobs.folder(tmp_path / "cut")
    assert main(["verify", str(folder), "--replay", "1"]) == 0
    notes = json.loads((folder / "results.json").read_text())
    assert "asynchronous rounds of 2 updates" in json.dumps(notes)


# ---- refused -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "says"), [
    ("SCAFFOLD", "SCAFFOLD, as configured, has another server step"),
    ("FedTV", "FedTV, as configured, has another server step"),
    ("AFL", "AFL, as configured, has another server step"),
    ("LocalOnly", "LocalOnly, as configured, has another server step or shares nothing"),
])
def test_methods_without_a_plain_mean(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        built(name)


def built(name: str) -> Federation:
    cls = load_trainer(name)
    plain = CheckWorld().federation(cls, Setup(rounds=3))
    plan = replace(plain.plan, unreliable=Unreliable(1, 3, **SLOW, buffer=2))
    return Federation(cls(plain.trainer.root), plain.model, plain.batcher, plan,
                      engine=plain.engine, proxy=plain.proxy)


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "PromptFL", "Ditto", "FedPer", "VPT"])
def test_methods_with_a_plain_mean_run(name: str) -> None:
    state = built(name).run()
    assert all(bool(v.isfinite().all()) for v in state.server["w"].values())


@pytest.mark.parametrize(("keys", "says"), [
    ({"dropout": 0.1}, "combined with FED.UNRELIABLE.DROPOUT"),
    ({"deadline": 2.0, "quorum": 0.5}, "UNRELIABLE.DEADLINE and FED.UNRELIABLE.QUORUM"),
    ({"absences": parse_absences("1:2", 4)}, "FED.UNRELIABLE.AWAY"),
    ({"clock": "steps"}, "FED.UNRELIABLE.CLOCK steps"),
])
def test_keys_of_rounds_with_an_end(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Unreliable(buffer=2, **keys)


@pytest.mark.parametrize(("buffer", "plan", "says"), [
    (7, {}, "only 6 clients take part"),
    (2, {"aggregator": AggregateSpec("median")}, "FED.AGGREGATOR median is no mean"),
    (2, {"fairness": SimpleNamespace()}, "FED.WEIGHTING by losses"),
    (2, {"hostile": SimpleNamespace()}, "FED.HOSTILE"),
])
def test_settings_that_do_not_go_with_it(buffer: int, plan: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        head(3, Unreliable(buffer=buffer), **plan)


def test_before_data_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs.run(tmp_path, "--trainer", "SCAFFOLD", "--opts", "FED.UNRELIABLE.BUFFER", "2") == 2
    assert "SCAFFOLD, as configured, has another server step" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.safetensors"))
