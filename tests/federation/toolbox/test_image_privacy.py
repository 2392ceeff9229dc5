"""Privacy of images and groups: the size of the noise, the bound, the accounting, refusals."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.check.world import SIZES, CheckWorld, Setup
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation import accountant
from fedvlm.federation.batches import Batch, Moment, SplitBatcher
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.local.effort import Worked
from fedvlm.federation.rounds import Federation
from fedvlm.federation.toolbox.image_privacy import (
    ImagePrivacy,
    beside_the_sum,
    check_method,
    make_image_privacy,
    sum_by_group,
)
from fedvlm.federation.toolbox.privacy import epsilon_of, gaussian_delta
from fedvlm.federation.trainer import Trainer

K, B = 2, 6
HOW = ImagePrivacy("image", clip=0.5, noise=2.0, delta=1e-5, fits=(0,))
GROUPS = torch.tensor([[3, 1, 3, 3, 2, 1], [9, 9, 8, 8, 7, 7]])


def grads(seed: int) -> Tree:
    draw = torch.Generator().manual_seed(seed)
    scale = 10 ** (4 * torch.rand(K, B, generator=draw, dtype=torch.float64) - 2)
    return {n: torch.randn(K, B, *s, generator=draw, dtype=torch.float64)
            * scale.reshape(K, B, *([1] * len(s))) for n, s in
            {"a": (3, 2), "b": (4,), "c": ()}.items()}


def step(at: int = 1) -> Batch:
    y = torch.zeros(K, B, dtype=torch.int64)
    return Batch({}, y, torch.ones(K, B, dtype=torch.float64), clients=(0, 1),
                 moment=Moment(1, 1, "w", at, 0), groups=GROUPS)


# ---- the mechanism ----------------------------------------------------------------------------
@pytest.mark.parametrize("unit", ["image", "group"])
@pytest.mark.parametrize("seed", range(4))
def test_one_unit_moves_a_sum_by_at_most_twice_the_bound(unit: str, seed: int) -> None:
    """One image (all images of one group) replaced by any other; one taken away: by the bound."""
    how = replace(HOW, unit=unit, noise=0.0)
    there = (GROUPS == 3) if unit == "group" else torch.arange(B).expand(K, B) == 0
    here, other = grads(seed), grads(seed + 100)

    def swapped(by: Tree) -> Tree:
        return {n: torch.where(there.reshape(K, B, *[1] * (v.dim() - 2)), by[n], v)
                for n, v in here.items()}

    none = swapped({n: torch.zeros_like(v) for n, v in here.items()})
    for to, most in ((swapped(other), 2), (none, 1)):
        one, two = how.noised(here, step()), how.noised(to, step())
        moved = sum((one[n] - two[n])[0].square().sum() for n in one) ** 0.5 * B
        assert 0 < float(moved) <= most * HOW.clip * (1 + 1e-12)


@pytest.mark.parametrize(("clip", "noise"), [(0.5, 2.0), (3.0, 0.7)])
@pytest.mark.parametrize("unit", ["image", "group"])
def test_the_noise_has_the_size_that_epsilon_was_computed_with(
    unit: str, clip: float, noise: float
) -> None:
    """What is added to a mean of B: N(0, (noise clip / B)^2) in 20,000 numbers."""
    how, zero = replace(HOW, unit=unit, clip=clip, noise=noise), {
        "a": torch.zeros(K, B, 20_000, dtype=torch.float64)}
    found = how.noised(zero, step())["a"]
    for row in found:
        assert float(row.std()) == pytest.approx(noise * clip / B, rel=0.025)  # 5 sigmas
        assert abs(float(row.mean())) < 5 * noise * clip / B / math.sqrt(20_000)
    other = how.noised(zero, step(2))["a"]
    assert torch.equal(found, how.noised(zero, step())["a"])
    for pair in (found, torch.stack([found[0], other[0]])):
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.04


def test_gradients_of_a_group_are_added_up_at_its_first_image() -> None:
    here = grads(1)
    got = sum_by_group(here, GROUPS)
    for n, v in got.items():
        for k in range(K):
            for group in GROUPS[k].unique().tolist():
                at = (GROUPS[k] == group).nonzero().flatten()
                assert torch.allclose(v[k, at[0]], here[n][k, at].sum(0), atol=1e-12)
                assert float(v[k, at[1:]].abs().sum()) == 0
    with pytest.raises(FedvlmError, match="does not know the groups"):
        sum_by_group(here, None)


# ---- a whole federation -----------------------------------------------------------------------
def federation(
    how: ImagePrivacy | None, method: str | type[Trainer] = "FedAvg", chunk: int = 1,
    groups: np.ndarray | None = None, **opts: Any,
) -> Federation:
    cls = load_trainer(method) if isinstance(method, str) else method
    fed = CheckWorld().federation(cls, Setup(chunk=chunk, opts=opts, momentum=0.0, decay=0.0))
    fed.plan = replace(fed.plan, private=how)
    assert isinstance(fed.batcher, SplitBatcher)
    fed.batcher = replace(fed.batcher, groups=groups, grouped=groups is not None)
    return fed


def moved(fed: Federation) -> Tree:
    return fed.run(until=1).server["w"]


@pytest.mark.parametrize(("method", "fits"), [
    ("FedAvg", (0,)), ("PromptFL", (0,)), ("FedTV", (0,)), ("Ditto", (0, 0)), ("FedPer", (0,)),
    ("FedProx", (0,)), ("FedDyn", (0,)), ("LocalOnly", (0,)), ("LG-FedAvg", (0,)),
    ("FedBABU", (0,)), ("CLIP-LoRA", (0,)),
])
def test_without_bound_and_noise_it_is_the_plain_method(method: str, fits: tuple[int, ...]) -> None:
    """The mean of single gradients is the batch's: the loss is a mean over images."""
    wide = replace(HOW, clip=1e9, noise=0.0, fits=fits)
    assert tuple(federation(None, method).trainer.image_fits) == fits
    plain, got = federation(None, method).run(until=1), federation(wide, method).run(until=1)
    for name, v in plain.server["w"].items():
        assert torch.allclose(v, got.server["w"][name], atol=1e-10), name


@pytest.mark.parametrize("unit", ["image", "group"])
def test_clients_move_by_noise_of_their_own_whatever_the_chunk(unit: str) -> None:
    groups = np.arange(200) // 2
    how = replace(HOW, unit=unit)
    alone, stacked = (federation(how, "Ditto", c, groups, P_EPOCHS=0) for c in (1, 4))
    alone.plan = replace(alone.plan, private=replace(how, fits=(0, 0)))
    stacked.plan = alone.plan
    one, two = alone.run(), stacked.run()
    for name, v in one.server["w"].items():
        assert torch.allclose(v, two.server["w"][name], atol=1e-9)
    kept = [alone.clients.read([c], one.versions)[c]["v"] for c in range(2)]
    name = next(iter(kept[0]))
    assert not torch.allclose(kept[0][name], kept[1][name], atol=1e-3)


def test_no_step_is_longer_than_the_bound() -> None:
    """One full batch a round without noise: the mean of cut gradients is at most the bound."""
    for clip in (1e-3, 1e-2):
        fed = federation(replace(HOW, clip=clip, noise=0.0))
        fed.plan = replace(fed.plan, epochs=1, local_steps=1)
        start = fed.start().server["w"]
        after = moved(fed)
        length = math.sqrt(sum(float((after[n] - start[n]).square().sum()) for n in start))
        assert 0.2 * clip < length / fed.plan.optim.lr <= clip * (1 + 1e-9)


def test_no_loss_leaves() -> None:
    fed, told = federation(HOW), []
    fed.subscribers.append(lambda event: told.append(getattr(event, "updates", None)))
    fed.run(until=1)
    assert [u.metrics for u in told if u is not None] == [{}]


class Reader(load_trainer("FedAvg")):  # type: ignore[misc]
    """Does more with its images than it declares."""

    name = "FedAvg"
    image_fits = (0,)
    reads = ""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = state["w"] | received
        if self.reads == "fit":
            ctx.fit(w, self.loss, tag="more")
        elif self.reads == "epochs":
            ctx.fit(w, self.loss, epochs=9)
        elif self.reads == "batches":
            next(iter(ctx.batches("x")))
        elif self.reads == "loop":
            ctx.loop({"w": w}, lambda slots, batches, step: slots)
        elif self.reads == "subset":
            ctx.subset("fit", 0.5)
        elif self.reads == "whole":
            ctx.whole("train")
        elif self.reads == "draw":
            ctx.draw("x", 1)
        return super().client_update(ctx, state, received)


@pytest.mark.parametrize(("reads", "said"), [
    ("fit", "fit 2 of a round is none"), ("epochs", "fit 1 of a round is none"),
    ("batches", "calls ctx.batches"), ("loop", "calls ctx.loop"), ("subset", "calls ctx.subset"),
    ("whole", "calls ctx.whole"), ("draw", "calls ctx.draw"),
])
def test_what_a_method_has_not_declared_ends_the_run(reads: str, said: str) -> None:
    cls = type("Reader", (Reader,), {"reads": reads, "image_fits": (0,)})
    with pytest.raises(FedvlmError, match=said):
        federation(HOW, cls).run(until=1)
    federation(None, cls).run(until=1)


# ---- draws by coins ---------------------------------------------------------------------------
DRAWN = replace(HOW, poisson=True)


def drawing(how: ImagePrivacy | None, groups: np.ndarray, chunk: int = 1, size: int = 2) -> Any:
    fed = federation(how, "FedAvg", chunk, groups)
    fed.batcher = replace(fed.batcher, drawn=True, batch_size=size)
    return fed


def drawn(batcher: SplitBatcher, rounds: int, client: int = 0) -> np.ndarray:
    """Return who was drawn at each of 4 steps of some rounds, [steps, numbers of groups]."""
    out = []
    for r in range(1, rounds + 1):
        for step in batcher.steps([client], r, 1, 1, "w", limit=4):
            batch = step.batches[0]
            assert batch.groups is not None and batch.y.shape[1] >= 1
            out.append(np.bincount(batch.groups[0][batch.w[0] > 0], minlength=200))
    return np.array(out)


@pytest.mark.parametrize("secret", [False, True])
def test_each_image_is_drawn_by_a_coin_of_its_own(secret: bool) -> None:
    """2 of 7 expected: rates, sizes, empty batches and pairs as of independent coins."""
    batcher = drawing(None, np.arange(200)).batcher
    batcher = replace(batcher, secrets={0: b"own", 1: b"other"} if secret else {})
    train = np.array(batcher.splits[0].train)
    found = drawn(batcher, 500)
    n, q, steps = len(train), 2 / len(train), len(found)
    assert n == 7 and steps == 2000 and found.max() == 1
    assert found[:, np.setdiff1d(np.arange(200), train)].sum() == 0
    sigma = math.sqrt(q * (1 - q) / steps)
    assert np.abs(found[:, train].mean(0) - q).max() < 4 * sigma
    size = found.sum(1)
    assert size.var() == pytest.approx(n * q * (1 - q), rel=0.13)  # 4 sigmas; of a fixed batch 0
    empty = (1 - q) ** n
    assert abs((size == 0).mean() - empty) < 4 * math.sqrt(empty * (1 - empty) / steps)
    pairs = np.corrcoef(found[:, train].T)[np.triu_indices(n, 1)]
    assert np.abs(pairs).max() < 4.5 / math.sqrt(steps)
    after = [np.corrcoef(found[:-1, i], found[1:, i])[0, 1] for i in train]
    assert np.abs(after).max() < 4.5 / math.sqrt(steps)
    assert np.array_equal(found[:40], drawn(batcher, 10))  # a run that goes on meets them again
    other = replace(batcher, secrets={0: b"else"}) if secret else replace(batcher, seed=9)
    assert not np.array_equal(found[:40], drawn(other, 10))
    if secret:
        assert np.array_equal(found[:40], drawn(replace(batcher, seed=9), 10))


def test_images_of_a_group_are_drawn_together() -> None:
    groups = np.arange(200) // 3
    batcher = drawing(None, groups).batcher
    whole = np.bincount(groups[np.array(batcher.splits[0].train)], minlength=200)
    found = drawn(batcher, 200)
    there = np.flatnonzero(whole)
    assert len(there) > 1 and set(found[:, there].ravel()) == {0, *whole[there]}
    for g in there:
        assert set(found[:, g]) == {0, whole[g]}
        q = 2 / 7
        assert abs((found[:, g] > 0).mean() - q) < 4 * math.sqrt(q * (1 - q) / 800)


def test_sums_of_draws_are_divided_by_what_was_expected() -> None:
    """Also where nobody was drawn, and one image moves the sum by one bound, not two."""
    batch = replace(step(), counts=(2, 4))
    quiet, here = replace(DRAWN, noise=0.0), grads(3)
    got = quiet.noised(here, batch)
    full = replace(HOW, noise=0.0).noised(here, step())
    for n, v in got.items():
        for k, count in enumerate((2, 4)):
            assert torch.allclose(v[k] * count, full[n][k] * B, atol=1e-12)
    gone = {n: v.clone() for n, v in here.items()}
    for v in gone.values():
        v[:, 0] = 0
    less = quiet.noised(gone, batch)
    moves = [2 * math.sqrt(sum(float((got[n] - less[n])[0].square().sum()) for n in got))]
    assert 0 < moves[0] <= HOW.clip * (1 + 1e-12)
    nobody = replace(batch, w=torch.zeros(K, B, dtype=torch.float64))
    zero = {"a": torch.zeros(K, B, 20_000, dtype=torch.float64)}
    for row, count in zip(DRAWN.noised(zero, nobody)["a"], (2, 4), strict=True):
        assert float(row.std()) == pytest.approx(HOW.noise * HOW.clip / count, rel=0.025)


def test_a_federation_of_draws_tells_no_numbers_of_draws_and_no_chunk() -> None:
    told = []
    runs = [drawing(DRAWN, np.arange(200), chunk) for chunk in (1, 4)]
    for fed in runs:
        fed.subscribers.append(lambda event: told.append(getattr(event, "counters", None)))
    one, two = (fed.run() for fed in runs)
    for name, v in one.server["w"].items():
        assert torch.isfinite(v).all() and torch.allclose(v, two.server["w"][name], atol=1e-9)
    seen = [c for c in told if c]
    assert seen and all(c["samples"] == c["gradient_samples"] == c["gradients"] for c in seen)
    assert len({c["samples"] for c in seen}) == 1  # the same in every round, whatever the coins


def test_every_image_that_is_drawn_has_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """More or fewer than the two that are expected."""
    found = list[tuple[float, int]]()

    def noised(how: ImagePrivacy, grads: Tree, batch: Batch) -> Tree:
        some = sum(v.flatten(2).abs().sum(2) for v in grads.values()) > 0
        found.extend(zip(batch.w.sum(1).tolist(), some.sum(1).tolist(), strict=True))
        return {n: v.sum(1) for n, v in grads.items()}

    monkeypatch.setattr(ImagePrivacy, "noised", noised)
    drawing(DRAWN, np.arange(200), chunk=4).run()
    assert {int(w) for w, _ in found} >= {1, 2, 3}
    assert all(w == n for w, n in found)


def test_epsilon_of_draws_is_dp_accountings_own() -> None:
    """Its loss distributions and Renyi bound: batches of 10 of 100 images, 100 steps, noise 1."""
    package = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    relation = package.NeighboringRelation.REPLACE_SPECIAL  # an image, or none in its place
    how = replace(DRAWN, noise=1.0)
    work = [Worked((40, 60), 10, 100, 10), Worked((40,), 50, 500, 10)]
    told = how.report(work)
    event = package.PoissonSampledDpEvent(0.1, package.GaussianDpEvent(1.0))
    loss = PLDAccountant(neighboring_relation=relation).compose(event, 100).get_epsilon(1e-5)
    assert told["epsilon"] == pytest.approx(loss, rel=2e-3)
    assert told["epsilon_bound"] == pytest.approx(7.904, abs=1e-2) and told["releases"] == 100
    assert "for the presence of one image of a client" in told["words"]
    grouped = replace(how, unit="group", largest={0: 9}).report(work)
    assert grouped["epsilon"] == told["epsilon"] and "one group of" in grouped["words"]
    assert how.report([])["epsilon"] == 0


def test_the_noise_of_draws_reaches_epsilon_for_every_client() -> None:
    work = [Worked((10,) * 10, 10, 100, 10), Worked((1,), 5, 50, 10), Worked((), 0, 0, 0)]
    start = replace(DRAWN, noise=0.0)
    told = {"epsilon": 3.0, "largest": 100, "sites": False}
    both = make_image_privacy(start, work=work, **told)
    each = [make_image_privacy(start, work=[one], **told).noise for one in work[:2]]
    assert both.noise == max(each) > min(each)
    assert 2.5 < both.report(work)["epsilon"] <= both.report(work)["epsilon_bound"] <= 3.0
    least = replace(both, noise=0.99 * both.noise).report(work)
    assert least["epsilon_bound"] > 3.0
    with pytest.raises(ConfigError, match="no noise reaches it in 100 steps that draw 10 %"):
        make_image_privacy(start, work=work[:1], **told | {"epsilon": 1e-4})


def test_tight_noise_of_draws_spends_epsilon_at_the_worst_client(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        accountant, "loss_epsilon", lambda *how: 0.9 * accountant.renyi_epsilon(*how))
    work = [Worked((10,) * 10, 10, 100, 10), Worked((1,), 5, 50, 10)]
    told = {"epsilon": 3.0, "largest": 100, "sites": False, "work": work}
    start = replace(DRAWN, noise=0.0)
    tight = make_image_privacy(start, **told, tight=True)
    assert tight.noise < make_image_privacy(start, **told).noise
    assert 2.99 < tight.report(work)["epsilon"] <= 3.0


# ---- accounting -------------------------------------------------------------------------------
def test_releases_are_counted_by_fit_by_pass_and_by_batches_of_a_group() -> None:
    fed = federation(replace(HOW, fits=(0, 3)))
    cohorts = {1: [0, 1], 2: [0]}
    work = fed.plan.worked(cohorts, SIZES, 4)  # two epochs a fit; 7 and 5 images: 2 steps a pass
    assert [one.steps for one in work] == [(4, 6, 4, 6), (4, 6)]
    assert [one.passes for one in work] == [10, 5]
    grouped = replace(fed.plan, private=replace(
        HOW, unit="group", fits=(0, 3), largest={0: 7, 1: 1}))
    assert [one.passes for one in grouped.worked(cohorts, SIZES, 4)] == [20, 5]
    assert Worked((7, 2), 5, 20, 4, spread=3).passes == 3 + 2 + 2


def test_the_noise_for_an_epsilon_reaches_it_and_no_less_does() -> None:
    """By an independent computation: delta of a Gaussian with a sum that moves by two bounds."""
    work = [Worked((2,) * 10, 2, 60, 32), Worked((2,) * 4, 2, 60, 32)]
    how = make_image_privacy(
        replace(HOW, noise=0.0), epsilon=3.0, work=work, largest=60, sites=False)
    assert epsilon_of(how.noise / 2, 10, 1e-5) == pytest.approx(3.0, abs=1e-6)
    assert gaussian_delta(3.0, how.noise / 2, 10) <= 1e-5 < gaussian_delta(
        3.0, 0.999 * how.noise / 2, 10)
    told = how.report(work)
    assert told["epsilon"] == pytest.approx(3.0, abs=1e-6) and told["releases"] == 10
    assert told["unit"] == "image" and "for replacing one image of a client" in told["words"]
    assert "against everybody, the server too" in told["words"]
    assert "one group" in replace(how, unit="group", largest={0: 1}).report(work)["words"]
    assert "32 of at most 0.5, gets noise of length" in beside_the_sum(how, 100, 32)


@pytest.mark.parametrize(("change", "more", "words"), [
    ({"clip": 0.0}, {}, "FED.DP.CLIP 0"), ({}, {"epsilon": 1.0}, "set one of"),
    ({"noise": 0.0}, {}, "set one of"), ({"delta": 0.0}, {}, "give a delta above 0"),
    ({"delta": 0.02}, {}, "below 1/60"), ({"unit": "group"}, {}, "give --groups COLUMN"),
    ({"unit": "group"}, {"sites": True}, "does not tell groups"),
    ({"noise": 0.0}, {"epsilon": 3.0, "sites": True}, "give FED.DP.NOISE"),
    ({"noise": 0.0}, {"epsilon": 1e-7, "work": [Worked((2,) * 4000, 2, 60, 32)]},
     "no noise reaches it"),
])
def test_a_mechanism_that_is_incomplete_is_refused(
    change: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    told: dict[str, Any] = {
        "epsilon": 0.0, "work": [Worked((2,), 2, 60, 32)], "largest": 60, "sites": False}
    with pytest.raises(ConfigError, match=words):
        make_image_privacy(replace(HOW, **change), **told | more)


@pytest.mark.parametrize(("change", "words"), [
    ({"fits": ()}, "looks at several images"), ({"network": True}, "BatchNorm"),
    ({"trains_by": "loop"}, "a loop of its own"), ({"extras": ("proto.*",)}, "send proto"),
    ({"own_privacy": True}, "noise of its own"), ({"own_weight": True}, "tell weights"),
    ({"finetune": 5}, "5 epochs"), ({"early_stop": 1}, "FED.EARLY_STOP"),
])
def test_methods_that_it_does_not_cover_are_refused(change: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {
        "fits": (0,), "network": False, "trains_by": "fit", "extras": (), "own_privacy": False,
        "own_weight": False, "finetune": 0, "early_stop": 0,
    }
    check_method("X", "image", **good)
    with pytest.raises(ConfigError, match=f"FED.DP.UNIT image does not cover X: .*{words}"):
        check_method("X", "image", **good | change)


def test_fits_are_counted_again_where_work_is_done_again() -> None:
    counters = Counter[str]()
    replace(HOW, fits=(3, 0)).enter(counters, 3)
    replace(HOW, fits=(3, 0)).enter(counters, None)
    assert counters == {"noised_fits": 2}
