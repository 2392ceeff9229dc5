"""Clipping, noise and accounting against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.federation.batches import Batch, Moment
from fedvlm.federation.local.effort import Worked
from fedvlm.federation.toolbox.privacy import (
    Mechanism,
    add_noise,
    clip_by_part,
    epsilon_of,
    gaussian_delta,
    mean_gradient,
    multiplier,
    renyi,
    report_spending,
    sampled_epsilon,
    sigma_for,
)

K, B, BOUND, DELTA = 2, 6, 0.7, 1e-5
PARTS = (("u", "v"), ("g",))


def grads(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"u": (3, 2), "v": (4,), "g": (5,), "free": (2,)}
    scale = 10 ** (4 * torch.rand(K, B, generator=draw, dtype=torch.float64) - 2)
    return {n: torch.randn(K, B, *s, generator=draw, dtype=torch.float64)
            * scale.reshape(K, B, *([1] * len(s))) for n, s in shapes.items()}


def batch(k: int = K, width: int = B, step: int = 1, clients: tuple[int, ...] = ()) -> Batch:
    w = torch.ones(k, width, dtype=torch.float64)
    w[-1, -2:] = 0
    y = torch.zeros(k, width, dtype=torch.int64)
    moment = Moment(1, 1, "w", step, 0)
    return Batch({}, y, w, clients=clients or tuple(range(k)), moment=moment)


@pytest.mark.parametrize("seed", range(5))
def test_no_sample_moves_a_sum_by_more_than_two_bounds(seed: int) -> None:
    """One sample replaced by any other: each part of the sum moves by at most 2 CLIP."""
    here, other = grads(seed), grads(seed + 100)
    swapped = {n: torch.cat([other[n][:, :1], v[:, 1:]], 1) for n, v in here.items()}
    b = batch()
    one, two = (mean_gradient(clip_by_part(g, BOUND, PARTS), b) for g in (here, swapped))
    count = b.w.sum(1)
    for part in PARTS:
        moved = sum((one[n] - two[n]).flatten(1).square().sum(1) for n in part).sqrt() * count
        assert bool((moved <= 2 * BOUND * (1 + 1e-12)).all())
    sizes = sum(clip_by_part(here, BOUND, PARTS)[n].flatten(2).square().sum(2) for n in ("u", "v"))
    whole = sum(here[n].flatten(2).square().sum(2) for n in ("u", "v"))
    assert torch.allclose(sizes.sqrt(), whole.sqrt().clamp(max=BOUND))
    assert torch.equal(clip_by_part(here, BOUND, PARTS)["free"], here["free"])


def test_an_infinite_bound_and_a_zero_gradient_change_nothing() -> None:
    here = grads(1)
    here["g"][0, 0] = 0
    for n, v in clip_by_part(here, math.inf, PARTS).items():
        assert torch.equal(v, here[n])
    assert torch.equal(clip_by_part(here, BOUND, PARTS)["g"][0, 0], torch.zeros(5).double())


def test_noise_has_the_bounds_std_over_the_samples_and_a_stream_of_its_own() -> None:
    zero = {"a": torch.zeros(K, 20_000).double(), "b": torch.zeros(K, 10).double()}
    b = batch()
    out = add_noise(zero, b, 3.0, "dp")
    for k, count in enumerate((6, 4)):
        assert float(out["a"][k].std()) == pytest.approx(3.0 / count, rel=0.03)
        assert abs(float(out["a"][k].mean())) < 0.03
    assert torch.equal(add_noise(zero, b, 3.0, "dp")["a"], out["a"])
    others = [add_noise(zero, batch(step=2), 3.0, "dp"), add_noise(zero, b, 3.0, "other"),
              add_noise(zero, batch(clients=(7, 8)), 3.0, "dp")]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([out["a"][0], other["a"][0]]))[0, 1])) < 0.03
    alone = add_noise({n: v[1:] for n, v in zero.items()}, b.take([1]), 3.0, "dp")
    assert torch.equal(alone["a"][0], out["a"][1])  # whoever else is in the chunk
    assert add_noise(zero, b, 0.0, "dp") is zero
    with pytest.raises(ValueError, match="only within a step of a loop"):
        add_noise(zero, Batch({}, b.y, b.w, clients=(0, 1)), 3.0, "dp")


def test_epsilon_of_one_gaussian_step_is_the_closed_form() -> None:
    """Balle and Wang 2018, theorem 8, written out by erf; n releases have one's form."""
    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    for noise in (0.5, 1.0, 4.0):
        for epsilon in (0.1, 1.0, 5.0):
            want = phi(0.5 / noise - epsilon * noise) - math.exp(epsilon) * phi(
                -0.5 / noise - epsilon * noise)
            assert gaussian_delta(epsilon, noise) == pytest.approx(want, rel=1e-6, abs=1e-15)
            if want > 1e-12:
                assert epsilon_of(noise, 1, want) == pytest.approx(epsilon, rel=1e-6)
        assert epsilon_of(noise, 9, DELTA) == pytest.approx(epsilon_of(noise / 3, 1, DELTA))
    assert epsilon_of(1.0, 1, DELTA) == pytest.approx(4.377178095681, rel=1e-9)  # dp-accounting
    assert epsilon_of(1.0, 0, DELTA) == 0 and epsilon_of(100.0, 1, 0.5) == 0
    assert math.isinf(epsilon_of(0.0, 1, DELTA))


def test_sigma_for_an_epsilon_is_the_least() -> None:
    sigma = sigma_for(2.0, DELTA, 10, parts=2)
    assert epsilon_of(multiplier(sigma, 2), 10, DELTA) == pytest.approx(2.0, rel=1e-9)


def test_the_client_that_spent_most_is_said() -> None:
    few, many = Worked((3,), 3, 90, 32), Worked((3, 4), 3, 90, 32)  # 1 pass; 1 and a begun second
    how = Mechanism(2.0, 10.0, DELTA, parts=2)
    assert (few.passes, many.passes) == (1, 3)
    said = report_spending(how, [few, many])
    noise = 2.0 / (2 * math.sqrt(2))
    assert said["epsilon"] == pytest.approx(epsilon_of(noise, 3, DELTA))
    assert (said["delta"], said["releases"]) == (DELTA, 3) and "epsilon 1" in said["words"]
    assert "no bound on epsilon" in report_spending(Mechanism(0.0, 10.0, DELTA), [few])["words"]
    assert report_spending(how, [])["epsilon"] == 0
    whole = Mechanism(1.0, 10.0, DELTA, sampled=True)  # a batch of all images is no draw
    said = report_spending(whole, [Worked((1,), 1, 10, 10)])
    assert "(sigma 1, clip 10, no gain" in said["words"]
    with pytest.raises(ConfigError, match="several steps in a round"):
        Mechanism(2.0, 10.0, DELTA, sampled=True).epsilon(few)


def test_sampling_without_replacement_gains() -> None:
    pytest.importorskip("dp_accounting.rdp", reason="fedvlm[dp]")
    gain = sampled_epsilon(4.0, 320, 16, 20, DELTA)
    assert 0 < gain < epsilon_of(4.0, 20, DELTA)
    one = Mechanism(4.0, 10.0, DELTA, sampled=True).epsilon(Worked((1,) * 20, 20, 320, 16))
    assert one == sampled_epsilon(2.0, 320, 16, 20, DELTA)
    package, _ = renyi()
    for noise in (0.5, 2.0):
        assert epsilon_of(noise, 1, DELTA) == pytest.approx(
            package.get_epsilon_gaussian(noise, DELTA), rel=1e-9)
