"""Sums of more than moves: weights by similarity, and a method's own; in numbers and over sites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError, QuorumError
from fedvlm.core.trees import Tree, expand
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.sums import masks
from fedvlm.distributed.sums.server import SumEngine
from fedvlm.distributed.sums.vector import LEAST, SumVector, vector_of
from fedvlm.distributed.terms import Refused
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.sums import beyond_sums, weighs_by
from fedvlm.federation.aggregation.updates import Updates, similarity_aware
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Trainer
from tests.distributed import grid as room
from tests.distributed.grid import Grid, leaks
from tests.distributed.sums.test_rounds import FOUR, meddle

pytest.importorskip("cryptography")
HOME = {"a": torch.tensor([0.6, -0.3, 0.1]), "b": torch.zeros(2, 2), "c": torch.tensor([3.0])}
SIZES = (7.0, 5.0, 0.0, 1.0)
STEP = 2.0**-41  # a site loses half a step of 2^-40 of a number


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


@pytest.fixture(scope="module")
def fedtv(world: CheckWorld) -> Trainer:
    return world.federation(load_trainer("fedtv"), Setup()).trainer


@pytest.fixture(scope="module")
def afl(world: CheckWorld) -> Trainer:
    return world.federation(load_trainer("afl"), Setup(rounds=1)).trainer


def sent(moves: Tree, sizes: tuple[float, ...] = SIZES) -> Updates:
    """Return updates of clients that moved so from ``HOME``."""
    received = expand(HOME, len(sizes))
    return Updates(tuple(range(len(sizes))), {n: received[n] + moves[n] for n in HOME},
                   torch.tensor(sizes, dtype=torch.float64), received=received)


def drawn(seed: int, size: float) -> Tree:
    g = torch.Generator().manual_seed(seed)
    return {n: size * torch.randn(len(SIZES), *v.shape, generator=g) for n, v in HOME.items()}


def by_sites(
    vector: SumVector, trainer: Trainer, updates: Updates, sites: tuple[tuple[int, ...], ...]
) -> np.ndarray:
    """Return the sum of what sites with these clients send, without masks (which cancel)."""
    parts = [vector.encode(trainer, updates.take(at)) for at in sites]
    assert {len(part) for part in parts} == {len(vector)}
    return np.add.reduce(np.stack(parts))


@pytest.mark.parametrize(("tau", "size"), [(1.0, 1.0), (0.1, 0.2), (1.0, 100.0)])
def test_the_ratio_of_two_sums_is_the_aggregate_by_similarity(
    fedtv: Trainer, tau: float, size: float
) -> None:
    """FedTV's float64 weights, to half a step for each site over the sum of the weights."""
    updates = sent(drawn(3, size))
    spec = AggregateSpec("similarity", saa_temp=tau)
    vector = vector_of(fedtv, spec, 1, sum(SIZES), HOME, {})
    total = by_sites(vector, fedtv, updates, ((0, 2), (1,), (3,)))
    told = vector.decode(total, 3, 1)
    plain, used = similarity_aware(updates, HOME, tau)
    spread = [max(row[k] / SIZES[k] for k in (0, 1, 3)) / min(row[k] / SIZES[k] for k in (0, 1, 3))
              for row in used.values()]
    assert max(spread) > 1.5, "they weigh unlike"
    near = masks.from_fixed(total[-2 - len(HOME) : -2])
    assert min(near) > 2 * LEAST
    for (name, home), weight in zip(HOME.items(), near.tolist(), strict=True):
        gap = (home.double() + told.mean[name] - plain[name].double()).abs()
        most = 3 * STEP * (1 + told.mean[name].abs()) / weight + 2.0**-23 * plain[name].abs()
        assert bool((gap <= most).all()), name
    assert told.own == {} and vector.sizes() == {"a": 8 * 4, "b": 8 * 5, "c": 8 * 2}


def test_when_clients_weigh_by_similarity(world: CheckWorld, fedtv: Trainer) -> None:
    """FedTV from round 2 on; anybody whose server takes a mean under the rule by name."""
    plain = world.federation(load_trainer("fedper"), Setup()).trainer
    named = AggregateSpec("similarity", saa_temp=0.3)
    for trainer, spec, found in (
        (fedtv, AggregateSpec(), (1.0, 2)), (fedtv, named, (0.3, 1)), (plain, named, (0.3, 1)),
        (plain, AggregateSpec(), (0.0, 2)), (fedtv, AggregateSpec("mean"), (0.0, 1)),
        (fedtv, AggregateSpec("median"), (0.0, 1)),
    ):
        assert weighs_by(trainer, spec) == found
    lengths = [len(vector_of(fedtv, AggregateSpec(), r, 1.0, HOME, {})) for r in (1, 2)]
    assert lengths == [8 + 2, 8 + 3 + 2]
    hermes = world.federation(load_trainer("hermes"), Setup())
    heart = world.federation(load_trainer("heart_pfl"), Setup())
    for fed in (hermes, heart):
        assert beyond_sums(fed.trainer, fed.groups, exact=True, more=named)


def test_weights_too_small_for_fixed_point_are_refused(fedtv: Trainer) -> None:
    """All clients turn round at a low temperature: e^(-2 / 0.1) is 2e-9."""
    updates = sent({n: -2 * v.expand(len(SIZES), *v.shape) for n, v in HOME.items()})
    vector = vector_of(fedtv, AggregateSpec("similarity", saa_temp=0.1), 1, sum(SIZES), HOME, {})
    total = by_sites(vector, fedtv, updates, ((0,), (1,), (3,)))
    with pytest.raises(ConfigError, match="weights by similarity of 'a' add up to 2.1e-09"):
        vector.decode(total, 3, 1)


def test_what_is_too_large_for_fixed_point_is_refused(fedtv: Trainer, afl: Trainer) -> None:
    vector = vector_of(fedtv, AggregateSpec("similarity"), 1, sum(SIZES), HOME, {})
    with pytest.raises(Refused, match="too far for a secure sum"):
        vector.encode(fedtv, sent(drawn(3, 1e8)))
    forms = {"afl.gram": torch.zeros(3, 3).double(), "afl.weight": torch.zeros(1, 3).double()}
    sums = vector_of(afl, AggregateSpec(), 1, 4.0, HOME, forms)
    extras = {n: v.expand(4, *v.shape) + 0 for n, v in forms.items()}
    extras["afl.gram"] = extras["afl.gram"] + torch.eye(3)
    updates = replace(sent(drawn(3, 0.0), (1.0,) * 4), extras=extras)
    sums.encode(afl, updates)
    extras["afl.gram"][2, 0, 1] = 4 * masks.REACH * 1.01
    with pytest.raises(Refused, match="adds more than that to a sum"):
        sums.encode(afl, updates)


@pytest.mark.parametrize("off", [2.0**30, -(2.0**30), 2.0**45])
def test_a_sum_of_weights_out_of_range_is_no_sum(fedtv: Trainer, off: float) -> None:
    """Weights by similarity are between nothing and the weights of all."""
    vector = vector_of(fedtv, AggregateSpec("similarity"), 1, sum(SIZES), HOME, {})
    total = by_sites(vector, fedtv, sent(drawn(3, 0.01)), ((0,), (1,), (3,)))
    vector.decode(total, 3, 1)
    share = int(masks.from_fixed(total[-3:-2])[0] * 2**40)
    total[-3] += np.uint64(int(off) % 2**64 if off > 0 else (-share - 1) % 2**64)
    with pytest.raises(QuorumError, match="masks of the sites do not cancel"):
        vector.decode(total, 3, 1)


# ---- over sites -------------------------------------------------------------------------------
@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four sites of a client each."""
    monkeypatch.setattr(room, "SITES", FOUR)
    monkeypatch.setattr(room, "NAMES", tuple(f"site{s}" for s in FOUR))
    monkeypatch.setattr(room, "CONFIG", {**room.CONFIG, "FED.SECURE_SUM": True})
    yield


@pytest.mark.parametrize(("variant", "near"), [("fixed", 1e-9), ("published", 3e-7)])
def test_fedtv_over_sites_is_fedtv(
    world: CheckWorld, tmp_path: Path, four: None, variant: str, near: float
) -> None:
    """Round 2 with weights by similarity; the published variant's plain weights are float32.

    No site helps to read the same updates at another temperature. One that hears of another model
    in round 2 makes no sum: what its clients are compared with is the model that all received.
    """
    setup = Setup(rounds=2, opts={"VARIANT": variant})
    grid = Grid(world, load_trainer("fedtv"), tmp_path, setup=setup, kind=SumEngine,
                policy=Policy(wait=0, retries=0, quorum=0.5))
    carried = meddle(grid, lambda site, asked: None)
    fed, _ = grid.server()
    first = fed.run(until=1)
    state = fed.run(first, until=2)
    plain, _ = room.local(world, load_trainer("fedtv"), setup)
    for name, v in plain.server["w"].items():
        assert torch.allclose(state.server["w"][name], v, rtol=near, atol=near), name
    frames = [pack(reply) for _, _, reply in carried]
    assert leaks(grid.private(), frames) == []
    numbers = sum(v.numel() for v in state.server["w"].values())
    length = {asked.values["round"]: reply.trees["sum"]["sum"].numel()
              for _, asked, reply in carried if asked.op == "mask"}
    extra = len(state.server["w"]) + 2
    assert length == {1: numbers + 2, 2: numbers + extra}
    vectors = [reply.trees["sum"]["sum"].numpy() for _, asked, reply in carried
               if asked.op == "mask" and asked.values["round"] == 2]
    bits = np.unpackbits(np.concatenate([v[-extra:] for v in vectors]).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 6 * 0.5 / len(bits) ** 0.5, "weights are masked"
    for row in vectors:  # with masks that none of the moves has
        masked = row.view(np.uint64)
        apart = (masked[-6:] - masked[:6]).view(np.int64)
        assert np.median(np.abs(apart.astype(np.float64))) > 2.0**44
    if variant == "published":
        return

    def lie(site: str, asked: Frame) -> Frame | None:
        if asked.op != "mask" or site != "site3":
            return None
        trees = {ref: {n: -v for n, v in tree.items()} for ref, tree in asked.trees.items()}
        return unpack(grid.sites[site].answer(pack(Frame("mask", asked.values, trees))))

    meddle(grid, lambda site, asked: None)
    fed, _ = grid.server()
    for one in (fed, *(site.federation for site in grid.sites.values())):
        one.trainer.__dict__["similarity"] = 0.5
    with pytest.raises(QuorumError, match="temperature 0.1; now samples, by similarity"):
        fed.run(first, until=2)
    for name, site in grid.sites.items():
        site.federation.trainer.__dict__["similarity"] = 0.1
        (grid.folder / name / room.RUN / "asked.json").unlink()
    meddle(grid, lie)
    with pytest.raises(QuorumError, match="masks of the sites do not cancel"):
        grid.server()[0].run(first, until=2)


def test_updates_are_summed_under_one_kind_of_weights(
    world: CheckWorld, tmp_path: Path, four: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By images and alike, from one model: of sites with 7, 5, 5 and 5 images the first's shows.

    A site that refuses is not asked the same again, and all of its sentence is told.
    """
    grid = Grid(world, load_trainer("fedper"), tmp_path, kind=SumEngine,
                policy=Policy(wait=0, retries=2, quorum=0.5),
                secrets={f"site{s}": bytes([s + 1]) * 32 for s in FOUR})
    grid.server()[0].run(until=1)
    for name, weighting, fits in (("cd", "uniform", False), ("ef", "samples", True)):
        monkeypatch.setattr(room, "RUN", name * 16)
        grid.restart()
        fed, _ = grid.server()
        for one in (fed, *(site.federation for site in grid.sites.values())):
            one.weighting = weighting
        if fits:
            fed.run(until=1)
            continue
        carried = meddle(grid, lambda site, asked: None)
        with pytest.raises(
            QuorumError, match="0 of 4 sites helped to unmask.*samples; now unif"
        ) as raised:
            fed.run(until=1)
        said = str(raised.value)
        assert "(site0, site1, site2, site3: this site helped to read a sum of updates of" in said
        assert "--sums)); the state of round 0 is kept; waiting mends no refusal" in said
        assert sum(asked.op == "unmask" for _, asked, _ in carried) == 4


def test_afl_over_sites_is_one_sum_of_its_normal_equations(
    world: CheckWorld, tmp_path: Path, four: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets no client's C_k, W_k, Z_k'Z_k or Z_k'Y_k; and none in a second round.

    Nothing of them is a move of a model: in another run weights of moves may be others.
    """
    setup = Setup(rounds=1)
    grid = Grid(world, load_trainer("afl"), tmp_path, setup=setup, kind=SumEngine,
                secrets={f"site{s}": bytes([s + 1]) * 32 for s in FOUR})
    carried = meddle(grid, lambda site, asked: None)
    fed, _ = grid.server()
    state = fed.run(until=1)
    whole = room.federation(world, load_trainer("afl"), setup)
    plain = whole.run(until=1)
    for name, v in plain.server["sums"].items():
        gap = (state.server["sums"][name] - v).abs()
        loss = 4 * 4 * STEP + 1e-12 * float(v.abs().max())
        assert bool((gap <= loss).all()), name
    assert torch.allclose(state.server["w"]["head.weight"], plain.server["w"]["head.weight"],
                          rtol=1e-6, atol=1e-8)
    work = whole.engine.run(
        whole.trainer, lambda ids: whole.context(ids, 1, {}),
        whole.downloads(whole.start(), 1, FOUR), whole.clients, dict.fromkeys(FOUR, 0)).spend()
    assert work is not None
    single: dict[str, Tensor] = {}
    for kind, tree in (("", work.extras), ("sum of ", whole.trainer.summands(work.extras))):
        for name, rows in tree.items():
            single |= {f"{kind}{name} of {k}": rows[k] for k in FOUR}
            single |= {f"coded {kind}{name} of {k}": torch.from_numpy(
                masks.to_fixed((rows[k] / 4).numpy()).view(np.int64)) for k in FOUR}
    assert len(single) == 32
    assert leaks(single, [pack(reply) for _, _, reply in carried]) == []
    asked = next(a for site, a, _ in carried if site == "site0" and a.op == "mask")
    again = {**asked.values, "round": 2, "attempt": "ab" * 16}
    assert "are sent in round 1 only" in second_round(grid, asked, again)
    monkeypatch.setattr(room, "RUN", "ef" * 16)
    grid.restart()
    fed, _ = grid.server()
    for one in (fed, *(site.federation for site in grid.sites.values())):
        one.weighting = "samples"
    same = fed.run(until=1).server["sums"]
    assert all(torch.allclose(same[n], v, rtol=1e-9) for n, v in state.server["sums"].items())


def second_round(grid: Grid, asked: Frame, values: dict[str, object]) -> str:
    """Return what site 0 says to the same question about round 2, keys and shares exchanged."""
    words = {k: values[k] for k in ("run", "like", "nonce", "round", "attempt")}
    names = sorted(grid.sites)

    def ask(site: str, op: str, **more: object) -> Frame:
        trees = dict(asked.trees) if op == "mask" else {}
        return unpack(grid.sites[site].answer(pack(Frame(op, {**words, **more}, trees))))

    roster = {s: {k: ask(s, "keys").values[k] for k in ("lock", "mask", "mark", "who")}
              for s in names}
    made = {s: ask(s, "share", roster=roster).values["shares"] for s in names}
    shares = {s: made[s]["site0"] for s in names if s != "site0"}
    rest = {k: values[k] for k in ("accepted", "down", "floor", "whole")}
    reply = ask("site0", "mask", roster=roster, shares=shares, **rest)
    assert reply.op == "failed"
    return str(reply.values["text"])
