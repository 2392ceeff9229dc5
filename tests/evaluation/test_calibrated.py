"""Temperatures of one class per image: against scipy, and in a run, its predictions and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedvlm
from fedvlm.cli.main import main
from fedvlm.evaluation.calibrated import HIGHEST, add_calibration, temperature_of
from fedvlm.evaluation.metrics import calibration_error
from fedvlm.federation.server import Row
from tests import jobs

WORDS = ("--trainer", "FedAvg", "--peft", "head", "--partition", "iid")
OWN = ("temperature", "nll_calibrated", "ece_calibrated")


def noisy(n: int = 60, scale: float = 7.0) -> tuple[np.ndarray, np.ndarray]:
    dice = np.random.default_rng(3)
    y = dice.integers(0, 4, n)
    z = dice.normal(size=(n, 4))
    z[np.arange(n), y] += 1.0
    return scale * z, y


def nll(t: float, z: np.ndarray, y: np.ndarray) -> float:
    p = np.exp(z / t)
    return float(-np.log(p[np.arange(len(y)), y] / p.sum(1)).mean())


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.0])
def test_the_temperature_is_that_of_the_least_loss(scale: float) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    z, y = noisy(scale=scale)
    found = optimize.minimize_scalar(
        lambda t: nll(t, z, y), bounds=(0.05, 20.0), method="bounded", options={"xatol": 1e-9})
    assert temperature_of(z, y) == pytest.approx(found.x, rel=1e-5)
    assert temperature_of(z + 100.0, y) == pytest.approx(found.x, rel=1e-5)


def test_where_images_fix_none_it_is_one() -> None:
    z, y = noisy()
    assert temperature_of(z[:0], y[:0]) == 1.0
    assert temperature_of(10 * np.eye(4), np.arange(4)) == 1.0  # all right: no least
    assert temperature_of(np.zeros((4, 4)), np.arange(4)) == 1.0
    assert temperature_of(10 * np.eye(4), np.arange(4)[::-1].copy()) == HIGHEST  # all wrong
    z[0, 0] = np.nan
    assert temperature_of(z, y) == 1.0


def test_lines_say_both_numbers_of_the_test_images() -> None:
    z, y = noisy()
    rows: list[Row] = [{"client": 0}, {"client": 1}]
    add_calibration(rows, [(z[:30], y[:30])] * 2, [(z[30:], y[30:]), (z[:0], y[:0])])
    t = temperature_of(z[:30], y[:30])
    p = np.exp(z[30:] / t)
    p /= p.sum(1, keepdims=True)
    assert rows[0]["temperature"] == t != temperature_of(z[30:], y[30:])
    assert rows[0]["nll_calibrated"] == pytest.approx(nll(t, z[30:], y[30:]))
    assert rows[0]["ece_calibrated"] == pytest.approx(
        calibration_error(p.argmax(1) == y[30:], p.max(1)))
    assert rows[1]["nll_calibrated"] is None and rows[1]["temperature"] == t


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    plain, more = (tmp_path_factory.mktemp(name) for name in ("plain", "more"))
    assert jobs.run(plain, *WORDS) == 0
    assert jobs.run(more, *WORDS, "TEST.CALIBRATE", "True") == 0
    return {"plain": plain, "more": more}


def test_nothing_else_in_the_results_changes(done: dict[str, Path]) -> None:
    plain, more = (jobs.results(done[name]) for name in ("plain", "more"))
    for section in ("last", "untrained"):
        numbers: dict[str, Any] = more[section]
        rows = [[row.pop(name) for name in OWN] for row in numbers["clients"]]
        assert all(isinstance(n, float) for row in rows for n in row)
        for i, name in enumerate(OWN[1:], 1):
            assert numbers.pop(f"personal_{name}") == pytest.approx(np.mean([r[i] for r in rows]))
        assert numbers | {"seconds": 0} == plain[section] | {"seconds": 0}
    assert main(["verify", str(jobs.folder(done["more"])), "--replay", "1"]) == 0


def test_predictions_and_exports_have_it(done: dict[str, Path], tmp_path: Path) -> None:
    row = jobs.results(done["more"])["last"]["clients"][1]
    t = row["temperature"]
    assert t != 1.0
    models = [fedvlm.load(jobs.folder(done[name])).client(1) for name in ("plain", "more")]
    z = np.random.default_rng(0).normal(size=(3, 64, 64, 3))
    images = list((255 * abs(z) % 255).astype(np.uint8))
    plain, more = (model.predict(images) for model in models)
    logits = more.logits.double()
    assert plain.logits.equal(more.logits)
    np.testing.assert_allclose(more.probabilities, (logits / t).softmax(-1).numpy())
    np.testing.assert_array_equal(plain.probabilities, logits.softmax(-1).numpy())
    pytest.importorskip("open_clip")
    for model, name in zip(models, ("plain", "more"), strict=True):
        model.export(tmp_path / name)
    cards = [json.loads((tmp_path / name / "model.json").read_text()) for name in ("plain", "more")]
    assert cards[1].pop("temperature") == t and cards[0] == cards[1]
    sources = [next((tmp_path / name).glob("*.py")).read_text() for name in ("plain", "more")]
    assert "probability" not in sources[0] and '"probability": max(' in sources[1]
    compile(sources[1], "model.py", "exec")
    assert "softmax(logits /" in (tmp_path / "more" / "README.md").read_text()


def test_what_cannot_be_calibrated_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "TEST.CALIBRATE", "True", "FED.ENGINE", "workers")
    assert jobs.run(tmp_path, *words) == 2
    assert "TEST.CALIBRATE: it works in one process" in " ".join(capsys.readouterr().err.split())
