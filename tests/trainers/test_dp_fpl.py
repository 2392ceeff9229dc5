"""DP-FPL: single gradients clipped and noised, the personal part factored anew, epsilon said."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedvlm.check.world import Setup
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.core.rng import stream
from fedvlm.distributed.site import _trees as messages
from fedvlm.federation.batches import Moment
from fedvlm.federation.toolbox.privacy import epsilon_of, renyi
from fedvlm.method import Step, Worked, rates
from fedvlm.report.collect import collect
from fedvlm.report.tables.table import Spec, tables
from tests import jobs
from tests.trainers.small_world import batch, gradient, method, model, tree, world

SMALL = {"N_CTX": 4, "RANK": 2}


def step(sigma: float = 0.0, clip: float = 1e9) -> tuple[dict, dict, dict]:
    """Return tensors, the method's gradient of a batch, and autograd's."""
    trainer = method("DP-FPL", SIGMA=sigma, CLIP=clip, **SMALL)
    p, b = tree(trainer), batch()
    ctx = world().federation(type(trainer), Setup()).context([0, 1], 1)
    return p, trainer.gradient(ctx, p, b, "a step"), gradient(trainer, p, b)


def test_without_bound_and_noise_it_is_the_plain_gradient() -> None:
    _, got, want = step()
    assert set(got) == {"text.global", "text.u", "text.v"}
    for n in got:
        assert torch.allclose(got[n], want[n], atol=1e-12)


def test_with_a_bound_it_is_the_mean_over_backward_passes_of_one_sample() -> None:
    clip = 0.05
    p, got, _ = step(clip=clip)
    trainer, b = method("DP-FPL", **SMALL), batch()
    total: dict = {n: torch.zeros_like(v) for n, v in got.items()}
    for k in range(2):
        for i in range(4):
            if not b.w[k, i]:
                continue
            one = type(b)({s: x[k : k + 1, i : i + 1] for s, x in b.x.items()},
                          b.y[k : k + 1, i : i + 1], torch.ones(1, 1, dtype=torch.float64))
            g = gradient(trainer, {n: v[k : k + 1] for n, v in p.items()}, one)
            for part in (("text.u", "text.v"), ("text.global",)):
                size = math.sqrt(sum(float(g[n].square().sum()) for n in part))
                for n in part:
                    total[n][k] += g[n][0] * min(1.0, clip / size) / b.w[k].sum()
    for n in got:
        assert torch.allclose(got[n], total[n], atol=1e-12)
        assert float(got[n].abs().sum()) > 0


OLD = {"FACTORS": "projected", "CLIPPING": "single", "WEIGHTING": "samples"}  # of fedvlm 0.2


@pytest.mark.parametrize(("clip", "sigma"), [(10.0, 1.0), (0.5, 1.0), (0.5, 4.0), (10.0, 0.25)])
def test_the_size_of_the_noise_is_sigma_bounds_over_the_samples(clip: float, sigma: float) -> None:
    """Of what is added to every part: N(0, (SIGMA CLIP / B)^2), B the client's samples."""
    plain, noisy = (method("DP-FPL", SIGMA=s, CLIP=clip, RANK=8) for s in (0.0, sigma))
    p, b = tree(plain), replace(batch(), clients=(0, 1))
    ctx = world().federation(type(plain), Setup()).context([0, 1], 1)
    clean = plain.gradient(ctx, p, replace(b, moment=Moment(1, 1, "w", 0, 0)), "a step")
    drawn = []
    for at in range(12):
        got = noisy.gradient(ctx, p, replace(b, moment=Moment(1, 1, "w", at, 0)), "a step")
        drawn.append({n: got[n] - clean[n] for n in got})
    assert b.w.sum(1).tolist() == [4, 3]
    for name in ("text.global", "text.u", "text.v"):
        each = torch.stack([d[name] for d in drawn], 1).flatten(1)  # [K, steps * numbers]
        units = each * b.w.sum(1)[:, None] / (sigma * clip)
        assert units.shape[1] >= 12 * 128
        for row in units:
            assert float(row.std()) == pytest.approx(1, abs=5 / math.sqrt(2 * len(row)))
            assert float(row.mean()) == pytest.approx(0, abs=5 / math.sqrt(len(row)))
            assert 0.65 < float((row.abs() < 1).double().mean()) < 0.72  # 0.683 of a Gaussian
        assert abs(float(units.corrcoef()[0, 1])) < 5 / math.sqrt(units.shape[1])


def test_the_factors_keep_the_personal_part() -> None:
    new, old = method("DP-FPL", **SMALL), method("DP-FPL", **SMALL, **OLD)
    for trainer in (new, old):
        start = trainer.trainables(model(), stream(1, "init"))
        u, v, rest = (start[f"text.{n}"] for n in "uvr")
        whole = u @ v + rest
        assert torch.allclose(u.mT @ u, torch.eye(2), atol=1e-6)
        assert 0.01 < float(whole.std()) < 0.03
        gap = v @ v.mT - torch.eye(2) if trainer is new else u.mT @ rest
        assert torch.allclose(gap, torch.zeros_like(gap), atol=1e-6)
    cls = type(new)
    assert {n: o.neutral for n, o in cls.options.items() if o.neutral is not None} == OLD
    assert (new.weighting, old.weighting) == ("uniform", "samples")
    with pytest.raises(ConfigError, match="RANK 5 is above 4"):
        method("DP-FPL", N_CTX=4, RANK=5).trainables(model(), stream(1, "init"))


def first_step(**options: object) -> tuple[dict, dict, dict, float]:
    """Return tensors before and after a step of two clients, their gradient before it, the rate."""
    trainer = method("DP-FPL", **SMALL, SIGMA=0.0, CLIP=1e9, **options)
    p, seen = tree(trainer), []
    ctx = world().federation(type(trainer), Setup()).context([0, 1], 1)

    def body(slots: dict, batches: tuple, step: Step) -> dict:
        out = trainer.step(ctx, slots, batches, step)
        seen.append((slots["w"], out["w"], gradient(trainer, slots["w"], batches[0]),
                     float(rates(ctx, step))))
        return out

    ctx.loop({"w": p}, body)
    return seen[0]


@pytest.mark.parametrize("residual", [True, False])
def test_projected_factors_step_themselves_as_older_runs_did(residual: bool) -> None:
    p, out, grads, rate = first_step(**OLD, RESIDUAL=residual)
    u, v = (p[n] - rate * grads[n] for n in ("text.u", "text.v"))
    whole = u @ v + p["text.r"]
    q, _ = torch.linalg.qr(whole @ v.mT)
    want = {"text.u": q, "text.v": q.mT @ whole,
            "text.r": whole - q @ q.mT @ whole if residual else p["text.r"],
            "text.global": p["text.global"] - rate * grads["text.global"]}
    for name, value in want.items():
        assert torch.allclose(out[name], value, atol=1e-12), name


@pytest.mark.parametrize("residual", [True, False])
def test_orthonormal_factors_follow_the_whole_personal_part(residual: bool) -> None:
    """The step is ``test_parity``'s; here what holds for any draw, and r without RESIDUAL."""
    p, out, _, _ = first_step(RESIDUAL=residual)
    moved = [x["text.u"] @ x["text.v"] + x["text.r"] for x in (p, out)]
    change = moved[1] - moved[0]
    assert [int(torch.linalg.matrix_rank(x, rtol=1e-9)) for x in change] == [4, 4]
    for x in (out["text.u"].mT @ out["text.u"], out["text.v"] @ out["text.v"].mT):
        assert torch.allclose(x, torch.eye(2).double().expand(2, 2, 2), atol=1e-12)
    trainer = method("DP-FPL", **SMALL, RESIDUAL=residual)
    own = out["text.u"] @ out["text.v"] + out["text.r"] * float(residual)
    assert torch.equal(trainer.text_features(model(), out), model().text(out["text.global"] + own))


@pytest.mark.parametrize("clip", [1e-3, 1e9])
def test_the_gradient_of_a_batch_is_clipped_tensor_by_tensor(clip: float) -> None:
    trainer = method("DP-FPL", SIGMA=0.0, CLIP=clip, CLIPPING="batch", **SMALL)
    p, b = tree(trainer), batch()
    ctx = world().federation(type(trainer), Setup()).context([0, 1], 1)
    got, want = trainer.gradient(ctx, p, b, "a step"), gradient(trainer, p, b)
    for name in ("text.global", "text.u", "text.v"):
        for k in range(2):
            size = float(want[name][k].norm())
            assert torch.allclose(got[name][k], want[name][k] * min(1.0, clip / size), atol=1e-15)
    noised = method("DP-FPL", SIGMA=4.0, CLIPPING="batch", **SMALL)
    said = noised.privacy([Worked((2,), 2, 8, 4)])
    assert said["epsilon"] is None and "no bound on epsilon" in said["words"]


@pytest.mark.parametrize(("sigma", "told"), [(0.5, set()), (0.0, {"metric/loss"})])
def test_with_noise_a_message_has_p_g_and_a_weight(sigma: float, told: set[str]) -> None:
    """A loss is an exact number of private images, which no epsilon counts."""
    cls = type(method("DP-FPL"))
    fed = world().federation(cls, Setup(opts=SMALL | {"SIGMA": sigma}))
    state = fed.start()
    given = fed.downloads(state, 1, [0, 1])
    done = fed.engine.run(
        fed.trainer, lambda ids: fed.context(ids, 1), given, fed.clients, {0: 0, 1: 0})
    for part in done.uploads:
        trees = messages(part)
        assert {kind: set(tree) for kind, tree in trees.items() if tree} == {
            "up": {"text.global"}, "told": {"weight", *told}}
        assert part.weight.tolist() == [1.0] * len(part.clients)  # uniform


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--finetune-epochs", "1"], "it trains without noise"),
        (["TRAINER.DP-FPL.ACCOUNTANT", "sampled"], "set FED.LOCAL_STEPS 1"),
    ],
)
def test_what_the_accounting_would_not_cover_is_refused(
    tmp_path: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--trainer", "DP-FPL", *words) == 2
    assert sentence in capsys.readouterr().err


def test_epsilon_and_delta_are_in_results_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--trainer", "DP-FPL", "--rounds", "1", "TRAINER.DP-FPL.N_CTX", "2",
                    "TRAINER.DP-FPL.RANK", "1") == 0
    record = json.loads((jobs.folder(tmp_path) / "results.json").read_text())
    rounds = jobs.records(tmp_path)
    assert all(not numbers for line in rounds for numbers in line["train"].values()), (
        "no loss: epsilon does not count it")
    assert [len(line["train"]) for line in rounds[1:]] == [len(rounds[1]["participants"])]
    said = record["results"]["privacy"]
    screen = capsys.readouterr().out
    assert f"privacy: {said['words']}" in screen
    assert "whether one image was used" in screen and "protects nobody" in screen  # epsilon 15
    assert said["epsilon"] == pytest.approx(epsilon_of(1 / math.sqrt(8), 1, 1e-5))
    assert record["protocol"]["privacy"] == said["words"]
    notes = tables(collect([tmp_path]), Spec())[0].notes
    assert any(n.startswith("privacy (DP-FPL; ") and said["words"] in n for n in notes)
    assert main(["verify", str(tmp_path)]) == 0


def test_the_package_is_asked_for_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedvlm\[dp\]'"):
        renyi()
