"""Client-level privacy: the size of the noise, the bound, the draws, the accounting, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State
from fedvlm.federation.aggregation import accountant
from fedvlm.federation.aggregation.accountant import (
    ORDERS,
    loss_epsilon,
    noise_for,
    renyi_divergence,
    renyi_epsilon,
    told_epsilon,
)
from fedvlm.federation.aggregation.client_privacy import (
    ClientPrivacy,
    check_cover,
    drowned,
    make_privacy,
)
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.rounds import RoundFinished
from fedvlm.federation.server import ServerContext
from fedvlm.federation.toolbox.privacy import epsilon_of

from ..toys import Quadratic, quadratic

PLAIN = ClientPrivacy(clip=2.0, noise=0.0, delta=1e-5, rate=0.5, clients=8, seed=1)


def moved(*rows: list[float], home: float = 3.0, weights: tuple[float, ...] = ()) -> Updates:
    moves = torch.tensor(rows, dtype=torch.float64)
    start = torch.full_like(moves, home)
    weight = torch.tensor(weights or [1.0] * len(rows), dtype=torch.float64)
    return Updates(tuple(range(len(rows))), {"w": start + moves}, weight, received={"w": start})


def home(size: int = 2) -> dict[str, torch.Tensor]:
    return {"w": torch.full((size,), 3.0, dtype=torch.float64)}


# ---- the mechanism ----------------------------------------------------------------------------
def test_moves_are_cut_and_divided_by_what_was_expected() -> None:
    """(6, 8) is cut to (1.2, 1.6), (0.3, 0.4) stays, weights are not read, 4 are expected."""
    found = PLAIN.release(moved([6.0, 8.0], [0.3, 0.4], weights=(1.0, 99.0)), home(), 1)
    assert (found.params["w"][0] - 3).tolist() == pytest.approx([1.5 / 4, 2.0 / 4])
    assert found.weight.tolist() == [1.0] * 4 and not found.metrics
    assert bool((found.params["w"] == found.params["w"][0]).all())
    idle = PLAIN.release(moved([6.0, 8.0], [0.3, 0.4], weights=(0.0, 1.0)), home(), 1)
    assert (idle.params["w"][0] - 3).tolist() == pytest.approx([0.3 / 4, 0.4 / 4])


@pytest.mark.parametrize("seed", range(3))
def test_one_client_moves_the_sum_by_at_most_the_bound(seed: int) -> None:
    """All tensors together, whatever it sends."""
    generator = torch.Generator().manual_seed(seed)
    whole = moved(*(torch.randn(5, 6, generator=generator) * 10.0**seed).tolist())
    whole = replace(
        whole, params={n: whole.params["w"][:, i : i + 3] for n, i in (("a", 0), ("b", 3))},
        received={n: whole.received["w"][:, i : i + 3] for n, i in (("a", 0), ("b", 3))},
    )
    start = {n: v[0] for n, v in whole.received.items()}
    every, less = (PLAIN.release(u, start, 1).params for u in (whole, whole.take([0, 1, 3, 4])))
    gap = torch.cat([every[n][0] - less[n][0] for n in every]).norm() * PLAIN.expected
    assert 0 < float(gap) <= PLAIN.clip * (1 + 1e-12)


@pytest.mark.parametrize(("clip", "noise", "rate"), [(0.5, 2.0, 0.5), (3.0, 0.7, 1.0)])
def test_the_noise_has_the_size_that_epsilon_was_computed_with(
    clip: float, noise: float, rate: float
) -> None:
    """20,000 numbers: the standard deviation is within 2.5 % at four sigmas."""
    dp = ClientPrivacy(clip, noise, 1e-5, rate, 8, 1)
    start = home(20_000)
    found = dp.release(None, start, 1).params["w"][0] - start["w"]
    assert float(found.std()) == pytest.approx(noise * clip / (rate * 8), rel=0.025)
    assert abs(float(found.mean())) < 4 * noise * clip / (rate * 8) / math.sqrt(20_000)
    again, other = (dp.release(None, start, r).params["w"][0] - start["w"] for r in (1, 2))
    assert torch.equal(found, again)
    assert abs(float(torch.corrcoef(torch.stack([found, other]))[0, 1])) < 0.04


def test_clients_that_received_unlike_models_are_refused() -> None:
    unlike = moved([1.0, 0.0], [0.0, 1.0])
    unlike.received["w"][1] += 1
    with pytest.raises(FedvlmError, match="does not cover 'w': clients received unlike"):
        PLAIN.release(unlike, home(), 1)


def test_clients_come_by_coins_of_their_own() -> None:
    dp = replace(PLAIN, rate=0.25, clients=400)
    sizes = [len(dp.draw(r, range(400))) for r in range(1, 41)]
    assert sum(sizes) / 40 == pytest.approx(100, abs=4 * math.sqrt(75 / 40))
    assert len(set(sizes)) > 5  # no fixed number
    assert dp.draw(3, range(400)) == dp.draw(3, range(400)) != dp.draw(4, range(400))
    assert replace(dp, rate=1.0).draw(1, range(400)) == list(range(400))


def test_a_whole_federation_tells_of_no_client_and_goes_on_with_the_same_bits() -> None:
    """No loss, norm or cosine leaves; a round in which nobody came is noised like any other."""
    dp = ClientPrivacy(1.0, 0.5, 1e-5, 0.3, 2, 1)
    fed = quadratic(Quadratic(), 6, dp=dp)
    events: list[RoundFinished] = []
    fed.subscribers.append(lambda e: events.append(e) if isinstance(e, RoundFinished) else None)
    states = [fed.start()]
    for round_ in range(1, 7):
        states.append(fed.round(states[-1], round_))
    nobody = [r for r in range(1, 7) if not dp.draw(r, range(2))]
    assert nobody and len(nobody) < 6
    values = [float(s.server["w"]["w"]) for s in states]
    assert len(set(values)) == 7
    for event in events:
        assert event.telltale.clients == ()
        assert event.updates is None or not (event.updates.params or event.updates.metrics)
    other = quadratic(Quadratic(), 6, dp=dp)
    assert float(other.run(other.run(until=3)).server["w"]["w"]) == values[6]


class Counting(Quadratic):
    """Its server counts the clients of a round, as FedDyn's and FedDecomp's do."""

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        self.seen.append(updates.clients)
        return super().aggregate(ctx, server, updates)


def test_a_server_that_counts_clients_counts_the_expected_ones() -> None:
    trainer = Counting()
    trainer.seen = list[tuple[int, ...]]()
    dp = ClientPrivacy(clip=1e3, noise=0.0, delta=1e-5, rate=1.0, clients=2, seed=1)
    fed, plain = quadratic(trainer, 2, dp=dp), quadratic(Quadratic(), 2)
    private = float(fed.run().server["w"]["w"])
    assert private == pytest.approx(float(plain.run().server["w"]["w"]), rel=1e-12)
    assert trainer.seen == [(0, 1)] * 2


# ---- a bound that follows the moves ------------------------------------------------------------
ADAPTIVE = ClientPrivacy(clip=2.0, noise=1.0, delta=1e-5, rate=0.5, clients=200, seed=1,
                         quantile=0.5)


def test_moves_and_count_together_are_one_mechanism_of_the_whole_noise() -> None:
    """Two Gaussians of noise over sensitivity z_s and 2 s: mu^2 adds up to that of z."""
    for noise, clients in ((1.0, 200), (0.5, 20), (4.0, 30)):
        dp = replace(ADAPTIVE, noise=noise, clients=clients)
        assert dp.move_noise**-2 + (2 * dp.count_noise) ** -2 == pytest.approx(noise**-2)
        assert 1 < dp.move_noise / noise < 1.022
    assert ADAPTIVE.report(3, 3)["epsilon"] == replace(ADAPTIVE, quantile=0).report(3, 3)["epsilon"]
    assert "quantile 0.5: noise 1.005 on the moves and 5 on the count" in (
        ADAPTIVE.report(3, 3)["words"])


def test_the_bound_moves_by_the_share_within_it_and_a_client_counts_a_half() -> None:
    dp = replace(ADAPTIVE, noise=0.0, clients=8)  # four are expected
    rows = ([0.1, 0.0], [0.0, 1.9], [0.3, 0.4], [6.0, 8.0])
    kept = [float(dp.follow(moved(*some), 2.0, 1)["dp"]["bound"]) for some in (rows, rows[:3])]
    for found, inside in zip(kept, (1.0, 1.5), strict=True):
        assert found == pytest.approx(2 * math.exp(-0.2 * inside / 4))
    assert dp.follow(None, 2.0, 1)["dp"]["bound"] == 2.0
    assert replace(dp, quantile=0.0).follow(moved(*rows), 2.0, 1) == {}


def test_the_noise_of_the_count_and_of_the_moves_has_its_size() -> None:
    """4,000 rounds in which nobody came: within 5 % at four sigmas."""
    found = [float(ADAPTIVE.follow(None, 2.0, r)["dp"]["bound"]) for r in range(4000)]
    shares = torch.tensor(found).div(2).log() / -0.2
    assert float(shares.std()) == pytest.approx(ADAPTIVE.count_noise / 100, rel=0.05)
    assert abs(float(shares.mean())) < 4 * ADAPTIVE.count_noise / 100 / math.sqrt(4000)
    start = home(20_000)
    move = ADAPTIVE.release(None, start, 1, 0.3).params["w"][0] - start["w"]
    assert float(move.std()) == pytest.approx(ADAPTIVE.move_noise * 0.3 / 100, rel=0.025)


def test_the_bound_finds_the_quantile() -> None:
    """From ten times too far to within a tenth of the true quantile of lognormal lengths."""
    lengths = torch.randn(100, generator=torch.Generator().manual_seed(1)).exp()
    for quantile in (0.3, 0.7):
        dp, bound = replace(ADAPTIVE, quantile=quantile), 10.0
        for round_ in range(1, 120):
            bound = float(dp.follow(moved(*[[n] for n in lengths.tolist()]), bound, round_)[
                "dp"]["bound"])
        below = float((lengths <= bound).double().mean())
        assert below == pytest.approx(quantile, abs=0.1)


def test_a_bound_that_moved_goes_on_with_the_same_bits() -> None:
    dp = ClientPrivacy(1.0, 0.5, 1e-5, 0.7, 2, 1, 0.5)
    whole, cut = quadratic(Quadratic(), 4, dp=dp), quadratic(Quadratic(), 4, dp=dp)
    reports: list[dict[str, Any]] = []
    whole.subscribers.append(
        lambda e: reports.append(dict(e.report)) if isinstance(e, RoundFinished) else None)
    one, two = whole.run().server, cut.run(cut.run(until=2)).server
    assert float(one["w"]["w"]) == float(two["w"]["w"])
    assert float(one["dp"]["bound"]) == float(two["dp"]["bound"]) != 1.0
    bounds = [r["bound"] for r in reports if r]
    assert bounds[0] == 1.0 and len(set(bounds)) == 4


# ---- accounting -------------------------------------------------------------------------------
def test_the_published_pair_of_epsilons() -> None:
    """q 0.1, z 1, T 100, delta 1e-5: dp-accounting says 7.047 (PLD) and 7.904 (RDP)."""
    assert renyi_epsilon(0.1, 1.0, 100, 1e-5) == pytest.approx(7.904, rel=1e-3)
    tight = loss_epsilon(0.1, 1.0, 100, 1e-5)
    assert tight is not None and 7.047 <= tight <= 7.052


@pytest.mark.parametrize(
    ("rate", "noise", "rounds"), [(0.1, 1.0, 100), (0.02, 0.8, 500), (1.0, 2.0, 10)])
def test_epsilons_are_those_of_dp_accounting(rate: float, noise: float, rounds: int) -> None:
    """Its accountants of loss distributions and of Renyi orders, of a client more or less."""
    dp = pytest.importorskip("dp_accounting", reason="the package of fedvlm[dp] is not installed")
    pld = pytest.importorskip("dp_accounting.pld")
    rdp = pytest.importorskip("dp_accounting.rdp")
    one = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    tight, bound = (
        kind(neighboring_relation=relation).compose(one, rounds).get_epsilon(1e-5)
        for kind in (pld.PLDAccountant, rdp.RdpAccountant)
    )
    found = loss_epsilon(rate, noise, rounds, 1e-5)
    assert found is not None and 0.9999 * tight <= found <= 1.005 * tight  # rounded up to a grid
    assert renyi_epsilon(rate, noise, rounds, 1e-5) == pytest.approx(bound, rel=2e-3)
    if rate == 1:
        assert epsilon_of(noise, rounds, 1e-5) == pytest.approx(tight, rel=1e-3)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (5.0, 100)])
def test_without_sampling_the_loss_gives_the_exact_epsilon(noise: float, rounds: int) -> None:
    exact = epsilon_of(noise, rounds, 1e-5)
    tight = loss_epsilon(1.0, noise, rounds, 1e-5)
    assert tight is not None and exact - 1e-6 <= tight <= exact * 1.001
    assert renyi_epsilon(1.0, noise, rounds, 1e-5) >= exact


@pytest.mark.parametrize("order", [2, 3, 7, 16])
def test_the_divergence_of_a_whole_order_is_the_closed_sum(order: int) -> None:
    rate, noise = 0.2, 1.3
    terms = (
        math.comb(order, k) * (1 - rate) ** (order - k) * rate**k
        * math.exp(k * (k - 1) / (2 * noise**2)) for k in range(order + 1)
    )
    closed = math.log(sum(terms)) / (order - 1)
    assert renyi_divergence(rate, noise, float(order)) == pytest.approx(closed, rel=1e-12)
    assert 2.5 in ORDERS


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta"), [
    (0.1, 1.0, 100, 1e-5), (1.0, 2.6, 70, 1e-5), (0.003, 0.4, 4000, 1e-9), (0.9, 40.0, 3, 1e-3),
])  # fmt: skip
def test_what_the_accountant_leaves_out_moves_no_bit(
    rate: float, noise: float, rounds: int, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is the plain least over all orders, though few of them are looked at; that of
    the loss is the epsilon of plain sums over the grid at every step."""
    plain = min(rounds * renyi_divergence(rate, noise, o) + math.log1p(-1 / o)
                - (math.log(delta) + math.log(o)) / (o - 1) for o in ORDERS)
    seen = set[float]()
    monkeypatch.setattr(accountant, "renyi_divergence", lambda q, z, o: (
        seen.add(o) or renyi_divergence(q, z, o)))
    assert renyi_epsilon(rate, noise, rounds, delta) == plain and len(seen) < len(ORDERS) / 3
    for limit in (plain, math.nextafter(plain, 0), plain * 1.01, plain / 2):
        assert (renyi_epsilon(rate, noise, rounds, delta, limit) > limit) == (plain > limit)
    found = loss_epsilon.__wrapped__(rate, noise, rounds, delta)
    monkeypatch.setattr(accountant, "SURE", 1.0)  # always the plain sum
    assert loss_epsilon.__wrapped__(rate, noise, rounds, delta) == found


def test_noise_for_an_epsilon_is_the_least_of_four_digits() -> None:
    noise = noise_for(4.0, 1e-5, 1.0, 10)
    assert renyi_epsilon(1.0, noise, 10, 1e-5) <= 4.0 < renyi_epsilon(1.0, noise - 1e-3, 10, 1e-5)
    assert noise == float(f"{noise:.4g}")
    assert renyi_epsilon(0.5, 0.0, 3, 1e-5) == math.inf and renyi_epsilon(0.5, 1.0, 0, 1e-5) == 0


def test_tight_noise_spends_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the Renyi bound 7.4 of 8 were spent. A coarse grid is quicker, and a bound as well."""
    monkeypatch.setattr(accountant, "GRID", 1 << 15)
    monkeypatch.setattr(accountant, "loss_epsilon", accountant.loss_epsilon.__wrapped__)
    given = GIVEN | {"noise": 0.0, "epsilon": 8.0, "rate": 1.0}
    dp = make_privacy(**given, tight=True)
    assert dp.noise == float(f"{dp.noise:.4g}") < make_privacy(**given).noise
    assert 7.97 < told_epsilon(1.0, dp.noise, 10, 1e-5) <= 8.0


def test_tight_noise_calls_the_slow_accountant_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[float]()
    monkeypatch.setattr(
        accountant, "loss_epsilon",
        lambda rate, noise, rounds, delta: calls.append(noise) or epsilon_of(noise, rounds, delta))
    for epsilon in (0.1, 0.5, 1.0, 3.0, 8.0, 20.0):
        noise = noise_for(epsilon, 1e-5, 1.0, 30, tight=True)
        assert epsilon_of(noise, 30, 1e-5) <= epsilon < epsilon_of(0.998 * noise, 30, 1e-5)
        assert len(calls) == len(set(calls)) <= 7
        calls.clear()


def test_the_report_says_what_holds_against_whom() -> None:
    dp = ClientPrivacy(0.1, 1.0, 1e-5, 0.1, 100, 1)
    told = dp.report(100, 100)
    assert 7.047 <= told["epsilon"] < 7.06 < 7.8 < told["epsilon_bound"]
    for words in ("delta 1e-05", "the server is trusted", "noise from the seed: a simulation",
                  "each of 100 clients by a coin of 0.1"):
        assert words in told["words"]
    assert "drowns" in drowned(replace(dp, clients=49, rate=1.0), 10)
    assert "drowns" not in drowned(replace(dp, clients=50, rate=1.0), 10)


def test_the_clients_of_a_round_drown_or_do_not() -> None:
    """Three of 60 are expected: noise of length 0.3 beside a sum of at most 0.3."""
    dp = ClientPrivacy(0.1, 1.0, 1e-5, 0.05, 60, 1)
    said = drowned(dp, 9, "PromptFL")
    assert "length 0.3, 1 times the largest sum" in said and "(3 are expected)" in said
    assert said.endswith("(FED.DP.UNIT image covers PromptFL, too)")
    assert "gradients of single images, such as FedAvg; or DP-FPL)" in drowned(dp, 9)
    assert "drowns" not in drowned(replace(dp, clients=1000), 9)


# ---- refusals ---------------------------------------------------------------------------------
GIVEN: dict[str, Any] = {
    "clip": 0.1, "noise": 1.0, "epsilon": 0.0, "delta": 1e-5, "rate": 0.1, "clients": 100,
    "rounds": 10, "seed": 1,
}


@pytest.mark.parametrize(("change", "words"), [
    ({"clip": 0.0}, "FED.DP.CLIP 0"), ({"epsilon": 1.0}, "set one of"), ({"noise": 0.0}, "set one"),
    ({"delta": 0.0}, "FED.DP.DELTA 0: give a delta"), ({"delta": 0.01}, "below 1/100"),
    ({"noise": 0.0, "epsilon": 1e-9}, "no noise up to 10000 reaches it in 10 rounds"),
])
def test_a_mechanism_that_is_incomplete_is_refused(change: dict[str, Any], words: str) -> None:
    assert make_privacy(**GIVEN).noise == 1.0
    with pytest.raises(ConfigError, match=words):
        make_privacy(**(GIVEN | change))


@pytest.mark.parametrize(("change", "words"), [
    ({"beyond": "its clients receive unlike models"}, "does not cover SCAFFOLD: its clients rec"),
    ({"own_privacy": True}, "noise of its own"),
    ({"rule": "clipped_mean"}, "reads single updates, or their median"),
    ({"patience": 5}, "--rounds auto"), ({"proxy": "clients"}, "validation images"),
])
def test_what_the_noise_does_not_cover_is_refused(change: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {
        "rule": "auto", "beyond": "", "own_privacy": False, "patience": 0, "proxy": "",
    }
    check_cover("SCAFFOLD", **usual)
    with pytest.raises(ConfigError, match=words):
        check_cover("SCAFFOLD", **(usual | change))
