"""Weights by similarity under privacy of clients: the joint bound, the noise, the ratio."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.aggregation.client_privacy import ClientPrivacy, check_cover
from fedvlm.federation.aggregation.two_sums import weights_of
from fedvlm.federation.aggregation.updates import Updates, similarity_aware

DP = ClientPrivacy(clip=1.0, noise=1.3, delta=1e-5, rate=0.5, clients=200, seed=1, temperature=0.5)


def start(seed: int, lengths: tuple[float, ...], size: int = 3) -> Tree:
    """Tensors of some lengths."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.nn.functional.normalize(torch.randn(len(lengths), size, generator=g).double())
    return {f"t{i}": length * rows[i] for i, length in enumerate(lengths)}


def sent(home: Tree, moves: Tensor) -> Updates:
    """Updates of moves ``[K, tensors, size]``."""
    here = {n: v.expand(len(moves), -1) for n, v in home.items()}
    params = {n: here[n] + moves[:, i] for i, n in enumerate(home)}
    return Updates(tuple(range(len(moves))), params,
                   torch.ones(len(moves), dtype=torch.float64), received=here)


def moved(dp: ClientPrivacy, home: Tree, moves: Tensor) -> Tensor:
    """What the last client moves both sums by, in units of their noise; 1 / z is the bound."""
    weights = dp.weights(home, 1, dp.clip)
    assert weights is not None
    (more, d), (less, e) = (dp.sums(sent(home, m), home, dp.clip, weights)
                            for m in (moves, moves[:-1]))
    vector = torch.cat([(more[n] - less[n]) / (dp.move_noise * dp.clip) for n in home])
    noise = {n: weights.noise(n, dp.noise) for n in home}
    number = torch.stack([(d[n] - e[n]) / noise[n] if noise[n] else d[n] - e[n] for n in home])
    return torch.cat([vector, number]).norm() * dp.noise


def along(home: Tree, length: float) -> Tensor:
    """A move along every tensor's own direction, ``length`` in all."""
    rows = torch.stack([v / v.norm().clamp_min(1e-300) for v in home.values()])
    return length * rows / rows.norm()


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("lengths", [(0.3,), (5.0,), (0.0,), (1.0, 1.0), (0.2, 3.0, 0.0, 40.0)])
def test_no_client_moves_both_sums_by_more_than_the_bound(
    lengths: tuple[float, ...], temperature: float
) -> None:
    """Random moves of all sizes, and a climb from the best of them: below 1; and 1 is reached."""
    dp, home = replace(DP, temperature=temperature), start(3, lengths)
    g, worst = torch.Generator().manual_seed(7), torch.tensor(0.0)
    others = torch.randn(2, len(lengths), 3, generator=g).double()
    best = others[:1]

    def tried(move: Tensor) -> Tensor:
        return moved(dp, home, torch.cat([others, move]))

    for size in (1e-3, 0.3, 1.0, 10.0):
        for _ in range(15):
            move = size * torch.randn(1, len(lengths), 3, generator=g).double()
            if (found := tried(move)) > worst:
                worst, best = found, move
    for step in range(100):
        move = best + 2.0 ** -(step // 20) * torch.randn(best.shape, generator=g).double()
        if (found := tried(move)) > worst:
            worst, best = found, move
    reached = float(tried(along(home, 9.0)[None]))
    assert max(float(worst), reached) <= 1 + 1e-9
    if any(lengths):
        assert reached > 0.999, "the bound is tight"
        assert worst > 0.7
    else:
        assert dp.move_noise / dp.noise * worst > 0.999, "no weight to hide: the moves alone"


def test_the_least_weight_is_that_of_the_worst_move() -> None:
    """Cosines over a grid of moves of length C in the plane, against the closed form."""
    for length, clip in ((2.0, 0.5), (2.0, 1.999), (1.0, 3.0)):
        home = {"w": torch.tensor([length, 0.0], dtype=torch.float64)}
        at = torch.linspace(0, 2 * math.pi, 20001, dtype=torch.float64)
        there = home["w"] + clip * torch.stack([at.cos(), at.sin()], 1)
        least = float(((there[:, 0] / there.norm(dim=1) - 1) / 0.3).exp().min())
        weights = weights_of(home, clip, 0.3)
        assert 1 - 2 * weights.half["w"] == pytest.approx(least, rel=1e-5)


def test_without_noise_it_is_fedtvs_mean_of_the_cut_moves() -> None:
    home = start(5, (1.0, 0.4))
    moves = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(2)).double()
    moves = moves * torch.tensor([0.2, 1, 1, 1, 1, 3])[:, None, None]
    dp = ClientPrivacy(1.5, 0.0, 1e-5, 1.0, 6, 1, temperature=0.2)
    told: dict[str, float] = {}
    found = dp.release(sent(home, moves), home, 1, told=told)
    cut = moves * (1.5 / moves.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
    assert bool((cut != moves).any()) and bool((cut == moves).all((1, 2)).any())
    tree, used = similarity_aware(sent(home, cut), home, 0.2)
    for name in home:
        assert torch.allclose(found.params[name][0], tree[name], rtol=1e-12, atol=1e-12)
        assert max(used[name]) > 1.2 * min(used[name]), "they weigh unlike"
        assert told[name] < 1
    plain = replace(dp, temperature=0.0).release(sent(home, moves), home, 1)
    assert torch.allclose(plain.params["t0"][0], home["t0"] + cut[:, 0].mean(0))
    later = replace(dp, since=2).release(sent(home, moves), home, 1)
    assert torch.equal(later.params["t0"], plain.params["t0"]), "round 1 is a plain mean"


def test_the_noise_of_both_sums_has_its_size() -> None:
    """2,000 rounds in which nobody came: the weights' noise within 6.5 % at four sigmas."""
    home = start(1, (0.5, 0.7), 200)
    weights = DP.weights(home, 1, DP.clip)
    assert weights is not None
    said = list[dict[str, float]]()
    ratio = list[Tensor]()
    for round_ in range(1, 2001):
        told: dict[str, float] = {}
        move = DP.release(None, home, round_, told=told).params["t0"][0] - home["t0"]
        said.append(told)
        ratio.append(move[:10] * told["t0"] * DP.expected)
    for name in home:
        found = torch.tensor([t[name] for t in said], dtype=torch.float64) * DP.expected
        size = weights.noise(name, DP.noise)
        assert size == pytest.approx(5 * 1.3 * math.sqrt(2) * (1 - math.exp(-4)) / 2)
        assert float(found.std()) == pytest.approx(size, rel=0.065)
        assert float(found.mean()) == pytest.approx(
            DP.expected * weights.middle(name), abs=4 * size / math.sqrt(2000))
    both = torch.tensor([[t[n] for n in home] for t in said], dtype=torch.float64)
    assert abs(float(torch.corrcoef(both.T)[0, 1])) < 0.08
    assert float(torch.cat(ratio).std()) == pytest.approx(DP.move_noise * DP.clip, rel=0.025)
    assert 1 < DP.move_noise / DP.noise < 1.022


def test_a_sum_of_weights_near_zero_is_kept_above_its_floor() -> None:
    """With few clients its noise is larger than the sum: the steps are then shorter."""
    home = start(1, (0.5,), 4)
    few = replace(DP, clients=4)
    for round_ in range(1, 51):
        told: dict[str, float] = {}
        few.release(None, home, round_, told=told)
        assert told["t0"] == 1.0
    weights = weights_of(home, 1.0, 0.5)
    size = weights.noise("t0", 1.3)
    for total, kept in ((-5.0, 4 * size), (4 * size + 1, 4 * size + 1), (150.0, 100.0)):
        assert weights.kept("t0", total, 100.0, 1.3) == pytest.approx(kept)


def test_count_and_weights_share_the_noise() -> None:
    dp = replace(DP, quantile=0.5)
    whole = dp.move_noise**-2 + (2 * dp.count_noise) ** -2 + (5 * dp.noise) ** -2
    assert whole == pytest.approx(dp.noise**-2)
    assert dp.report(3, 3)["epsilon"] == replace(DP, temperature=0.0).report(3, 3)["epsilon"]
    assert "weights by similarity as two sums, temperature 0.5" in DP.report(3, 3)["words"]


def test_the_rule_by_name_needs_the_second_sum() -> None:
    with pytest.raises(ConfigError, match="or set FED.DP.SIMILARITY True"):
        check_cover("X", rule="similarity", beyond="", own_privacy=False, patience=0, proxy="")
    check_cover("X", rule="similarity", beyond="", own_privacy=False, patience=0, proxy="",
                two_sums=True)
