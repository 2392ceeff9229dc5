"""Features out of one step's gradient: a single image's are found, a shuffled gradient tells none.

On the tiny backbone, for a prompt and for an adapter on features.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedvlm.api import audit as room
from fedvlm.api.auditing import inversion, step
from fedvlm.api.auditing.inversion import matched_cosine
from fedvlm.cli.main import main
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.job.build import build_run
from tests import jobs


class Attacked:
    """A run of one kind, and what the attacker of a step has."""

    def __init__(self, output: Path, kind: str) -> None:
        words = ("--trainer", "FedAvg", "--peft", kind, "--partition", "iid", "--shots", "16")
        assert jobs.run(output, *words, "--rounds", "1", "TEST.REFERENCES", "False") == 0
        self.kind, self.folder = kind, jobs.folder(output)
        self.built = build_run(room.plan_audit(self.folder, shadows=0).cfg)
        federation, data = self.built.federation, self.built.data
        assert isinstance(federation.trainer, PeftTrainer)
        self.step = inversion.feature_step(
            federation.trainer, self.built.model, federation.p0, federation.groups.shared)
        tests = np.asarray(data.global_test)
        known = [tests[data.labels[tests] == c] for c in range(len(data.classnames))]
        self.columns = torch.stack([self.seen(one) for one in known])
        self.means = torch.stack([self.features(one).mean(0) for one in known])
        self.train = np.array(data.clients[0].train)
        self.labels = torch.tensor(data.labels)

    def features(self, samples: np.ndarray) -> Tensor:
        return self.built.test.fetch(torch.tensor(samples), view=0)["features"].double()

    def seen(self, samples: np.ndarray) -> Tensor:
        """What the server sees of a step on some images."""
        found = step.gradient_at(self.built, self.built.federation.p0, samples)
        return self.step.seen(torch.cat([g.flatten() for g in found.values()]))


@pytest.fixture(scope="module", params=["prompt", "feature"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    return Attacked(tmp_path_factory.mktemp("run"), request.param)


def test_a_candidate_s_gradient_is_that_of_the_method_s_loss(attacked: Attacked) -> None:
    """Without the text tower, too: the Jacobian of the text features stands in for it."""
    some = attacked.train[:6]
    plain = attacked.seen(some)
    short = attacked.step(attacked.features(some), attacked.labels[some]).detach()
    assert float((short - plain).norm() / plain.norm()) < 0.01, "float32 below the Jacobian"


def test_the_feature_of_one_image_is_found_but_not_from_a_shuffled_gradient(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as much work for both, a quarter of the usual."""
    monkeypatch.setattr(inversion, "FIRST", 25)
    monkeypatch.setattr(inversion, "ITERATIONS", 100)
    one = attacked.train[:1]
    seen, true = attacked.seen(one), attacked.features(one)
    guess = matched_cosine(attacked.means[attacked.labels[one]], true)
    found = step.recover_one(attacked.step, seen, attacked.columns, attacked.means)
    assert matched_cosine(found, true) > 0.99 > guess
    order = torch.randperm(len(seen), generator=torch.Generator().manual_seed(1))
    blind = step.recover_one(attacked.step, seen[order], attacked.columns, attacked.means)
    assert matched_cosine(blind, true) <= guess


def test_numbers_stand_on_screen_and_page_beside_the_guess(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few iterations; twice the same. A prompt of too many classes is named as not tried."""
    monkeypatch.setattr(inversion, "FIRST", 2)
    monkeypatch.setattr(inversion, "ITERATIONS", 3)
    if attacked.kind == "prompt":
        monkeypatch.setattr(inversion, "MOST", 2_000_000)  # 10 classes x 128 x 2048 are more
    assert main(["audit", str(attacked.folder), "--shadows", "0"]) == 0
    told = capsys.readouterr()
    kept = json.loads((attacked.folder / "audit.json").read_text())["step"]["inversion"]
    page = (attacked.folder / "audit.html").read_text()
    (line,) = [one for one in told.out.splitlines() if one.startswith("features by gradient")]
    assert len(told.out.splitlines()) <= 10 and line.split(": ", 1)[1] in page
    if attacked.kind == "prompt":
        assert "not tried: the derivative of 10 text features" in line and "2,621,440" in line
        return
    one, batch = kept["one"], kept["batch"]
    assert f"cosine {one['cosine']:.3f} from 1 image (a guess: {one['guess']:.3f})" in line
    assert f"{batch['cosine']:.3f} from 32 (a guess: {batch['guess']:.3f})" in line
    assert "searches of at most" in told.err, "the cost is said first"
    assert step.step_record(attacked.built, 1)["inversion"] == kept


def test_the_best_order_and_whole_labels() -> None:
    true = F.normalize(torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), dim=-1)
    assert matched_cosine(3 * true[[4, 2, 0, 1, 3]], true) == pytest.approx(1, abs=1e-6)
    assert matched_cosine(-true, true) < 0.9
    assert inversion.labels_of_counts(np.array([1.6, 0.2, 2.2]), 4).tolist() == [0, 0, 2, 2]
