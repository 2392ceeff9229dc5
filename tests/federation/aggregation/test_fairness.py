"""``FED.WEIGHTING`` q_ffl and agnostic, against the papers' algorithms by plain arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.federation.aggregation.fairness import LAMBDA, SLOT, Fairness, project
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import RECEIVED
from fedvlm.federation.rounds import Federation, RoundFinished
from tests import jobs
from tests.federation.toys import ETA, A, B, Quadratic, quadratic

WORLD = CheckWorld()


def fair(kind: str, q: float = 2.0, rate: float = 0.05) -> Fairness:
    return Fairness(kind, q, rate, 1 / ETA)


def toy(kind: str, rounds: int, sizes: tuple[int, int] = (1, 1), **more: Any) -> Any:
    cfg = SimpleNamespace(TRAINER={}, FED=SimpleNamespace(WEIGHTING=kind, PERSONAL=""))
    return quadratic(Quadratic(cfg), rounds, sizes=sizes, fairness=fair(kind, **more))


def losses(w: float) -> np.ndarray:
    return np.array([a / 2 * (w - b) ** 2 for a, b in zip(A, B, strict=True)])


def sent(w: float) -> np.ndarray:
    return np.array([w - ETA * a * (w - b) for a, b in zip(A, B, strict=True)])


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 1)])
def test_q_fedavg_is_algorithm_2(q: float, sizes: tuple[int, int]) -> None:
    w, p, lipschitz = 0.0, np.array(sizes) / sum(sizes), 1 / ETA
    for _ in range(4):
        f, move = losses(w), lipschitz * (w - sent(w))
        f = np.maximum(f, 1e-300)
        h = q * f ** (q - 1) * move**2 + lipschitz * f**q
        w -= float((p * f**q * move).sum() / (p * h).sum())
    state = toy("q_ffl", 4, sizes, q=q).run()
    assert float(state.server["w"]["w"]) == pytest.approx(w, abs=1e-12)


def test_a_higher_q_helps_the_client_with_the_higher_loss() -> None:
    worst = [losses(float(toy("q_ffl", 60, q=q).run().server["w"]["w"])).max()
             for q in (0.0, 1.0, 4.0)]
    assert worst[0] > worst[1] > worst[2]


def test_agnostic_is_algorithm_1_and_finds_the_minimax() -> None:
    w, mixture = 0.0, np.array([0.5, 0.5])
    fed = toy("agnostic", 400, rate=0.02)
    state = fed.start()
    for round_ in range(1, 401):
        new = float(mixture @ sent(w))
        mixture = slow_project(mixture + 0.02 * losses(w))
        w = new
        state = fed.round(state, round_)
        if round_ in (1, 2, 7):
            assert float(state.server["w"]["w"]) == pytest.approx(w, abs=1e-12)
            np.testing.assert_allclose(state.server[SLOT][LAMBDA].numpy(), mixture, atol=1e-12)
    f = losses(float(state.server["w"]["w"]))  # both losses are equal at the minimax
    assert f[0] == pytest.approx(f[1], rel=0.02)


def slow_project(v: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex by bisection on its threshold."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - (low + high) / 2, 0)


def test_the_projection_onto_the_simplex() -> None:
    draw = np.random.default_rng(0)
    for n in (1, 2, 5, 40):
        v = draw.normal(0, 2, n)
        found = project(torch.from_numpy(v)).numpy()
        np.testing.assert_allclose(found, slow_project(v), atol=1e-9)
        assert found.sum() == pytest.approx(1) and found.min() >= 0


# ---- every method with a mean at the server ------------------------------------------------------
def built(name: str, kind: str, aggregator: str = "auto", **plan: Any) -> Federation:
    cls = load_trainer(name)
    plain = WORLD.federation(cls, Setup(rounds=2))
    cfg = plain.trainer.root.clone()
    cfg.defrost()
    cfg.FED.WEIGHTING = kind
    fed_plan = replace(plain.plan, fairness=fair(kind), aggregator=AggregateSpec(aggregator),
                       **plan)
    return Federation(cls(cfg), plain.model, plain.batcher, fed_plan, engine=plain.engine,
                      proxy=plain.proxy)


@pytest.mark.parametrize("kind", ["q_ffl", "agnostic"])
@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "PromptFL", "Ditto", "FedPer", "VPT"])
def test_methods_with_a_mean_take_them(name: str, kind: str) -> None:
    """The server's tensors of a round follow from what was sent, by the papers' steps."""
    fed = built(name, kind)
    events: list[RoundFinished] = []
    fed.subscribers.append(lambda e: events.append(e) if isinstance(e, RoundFinished) else None)
    fed.run()
    before = fed.trainer.shared(events[1].server)
    after, updates = fed.trainer.shared(events[2].server), events[2].updates
    assert updates is not None
    f, p = updates.metrics[RECEIVED], updates.weight / updates.weight.sum()
    square = sum(((v - before[n]) ** 2).flatten(1).sum(1) for n, v in updates.params.items())
    if kind == "agnostic":
        share, short = events[1].server[SLOT][LAMBDA], 1.0
    else:
        short = float((p * f**2).sum() / (p * f**2 + p * 2 * f * square / ETA).sum())
        share = p * f**2 / (p * f**2).sum()
    for n, v in updates.params.items():
        moves = (v - before[n]) * share.reshape(-1, *[1] * (v.dim() - 1))
        torch.testing.assert_close(after[n], before[n] + short * moves.sum(0))
    assert sum(events[2].report["client_weights"].values()) == pytest.approx(1)


def test_the_loss_is_of_the_received_model() -> None:
    fed = built("FedAvg", "q_ffl")
    events: list[RoundFinished] = []
    fed.subscribers.append(lambda e: events.append(e) if isinstance(e, RoundFinished) else None)
    fed.run()
    ctx = fed.context(range(4), 2)
    start = {n: v.expand(4, *v.shape) for n, v in fed.trainer.shared(events[1].server).items()}
    whole = ctx.whole("train")
    assert whole is not None and events[2].updates is not None
    said = fed.trainer.loss(fed.model, start, whole)
    torch.testing.assert_close(events[2].updates.metrics[RECEIVED], said)
    assert RECEIVED in fed.trainer.releases(fed.groups).metrics
    assert RECEIVED not in WORLD.federation(type(fed.trainer)).trainer.releases(fed.groups).metrics


@pytest.mark.parametrize(("name", "aggregator", "plan", "says"), [
    ("AFL", "auto", {}, "takes no plain mean"),
    ("SCAFFOLD", "auto", {}, "takes no plain mean"),
    ("FedTV", "auto", {}, "or FED.AGGREGATOR mean"),
    ("FedAvg", "median", {}, "FED.AGGREGATOR median has weights of its own or none"),
    ("FedAvg", "auto", {"frac": 0.5}, "needs the loss of every client in every round"),
    ("FedAvg", "auto", {"dp": SimpleNamespace(draw=lambda r, m: list(m))}, "FED.DP.CLIP"),
])
def test_refused(name: str, aggregator: str, plan: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        built(name, "agnostic", aggregator, **plan)
    built("FedTV", "agnostic", "mean")


def test_a_run_resumes_them_and_says_what_leaves(tmp_path: Any) -> None:
    words = ["--trainer", "FedAvg", "--peft", "head", "--rounds", "4", "--opts", "FED.WEIGHTING",
             "agnostic", "FED.FAIR_LR", "0.2", "TEST.REFERENCES", "False"]
    assert jobs.run(tmp_path / "whole", *words) == 0
    stop = "import fedvlm.job.record as r; old = r.Recorder.save\n" \
           "def save(self, state):\n    old(self, state)\n" \
           "    if state.round == 2: raise KeyboardInterrupt\nr.Recorder.save = save"
    assert jobs.spawn(tmp_path / "cut", *words, before=stop).returncode != 0
    assert jobs.run(tmp_path / "cut", *words) == 0
    one, two = jobs.state(tmp_path / "whole"), jobs.state(tmp_path / "cut")
    assert one.keys() == two.keys() and all(torch.equal(v, two[n]) for n, v in one.items())
    assert any(LAMBDA in name for name in one)
    folder = jobs.folder(tmp_path / "whole")
    assert RECEIVED in json.dumps(json.loads((folder / "released.json").read_text()))
    assert main(["verify", str(folder), "--replay", "1"]) == 0
