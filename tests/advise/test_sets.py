"""Sets of labels: held-out mAP says what new images would; rare labels are not judged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlm.advise import sets
from fedvlm.advise.gather import Gathered
from fedvlm.advise.page import AdvicePage
from fedvlm.advise.sets import LabelTrial, try_labels
from fedvlm.advise.verdict import Advice, conclude_labels
from fedvlm.advise.ways import (
    AFL,
    DITTO,
    FEDAVG,
    FEDERATE,
    LOGREG,
    POOLED,
    UNKNOWN,
    cost_words,
    method_flags,
)
from fedvlm.core.errors import DataError
from fedvlm.evaluation import rankings
from fedvlm.evaluation.references import heads

WIDTH, CLIENTS = 12, 4
TABLE = np.array(list(product((0, 1), repeat=3)), dtype=np.uint8)


def made_up(
    images: int, shares: Sequence[float] = (0.5, 0.4, 0.3), *, noise: bool = False, seed: int = 0,
    turned: bool = False,
) -> Gathered:
    """Return clients whose images are sums of their labels' directions.

    Args:
        noise: labels say nothing of the features.
        turned: at half of the clients the first label's direction is another.
    """
    draw = torch.Generator().manual_seed(5)
    ways = torch.randn(3, WIDTH, generator=draw)
    draw.manual_seed(seed)
    features, labels = [], []
    for k in range(CLIENTS):
        y = (torch.rand(images, 3, generator=draw) < torch.tensor(shares)).long()
        own = ways * torch.tensor([[-1.0 if turned and k % 2 else 1.0], [1.0], [1.0]])
        x = (0 if noise else 1) * y.float() @ own + torch.randn(images, WIDTH, generator=draw)
        features.append(x.double())
        labels.append(y @ torch.tensor([4, 2, 1]))
    groups = np.arange(CLIENTS * images).reshape(CLIENTS, images)
    trains = [torch.ones(images, dtype=torch.bool)] * CLIENTS
    return Gathered("made up", list("abcd"), ["one", "two", "three"], features, labels, trains,
                    list(groups), None, False, [], TABLE)


@pytest.fixture(scope="module")
def trial() -> LabelTrial:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "fold_count", lambda groups: 6)
        return try_labels(made_up(40))


@pytest.fixture(autouse=True)
def few_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "fold_count", lambda groups: 6)


def mean(trial: LabelTrial, name: str) -> float:
    return float(np.mean([trial.reached(name, k)[0] for k in range(len(trial.ids))]))


def test_it_is_what_new_images_say(trial: LabelTrial) -> None:
    """The shared head, fitted to all training images, on images that are new."""
    old, new = made_up(40), made_up(400, seed=9)
    x = F.normalize(torch.cat(list(new.features)), dim=-1)
    truth, said = TABLE[torch.cat(list(new.labels))], []
    for label in range(3):
        clients = [heads.HeadClient(F.normalize(z, dim=-1), torch.from_numpy(TABLE)[y][:, label]
                                    .long()) for z, y in zip(old.features, old.labels, strict=True)]
        head = heads.shared_heads(clients, 2, heads.common_scale(clients))[2]
        logits = head.logits(x)[0]
        said.append((logits[:, 1] - logits[:, 0]).numpy())
    fresh = 100 * float(rankings.average_precision(truth, np.stack(said, 1)).mean())
    assert mean(trial, FEDAVG) == pytest.approx(fresh, abs=6)
    assert mean(trial, POOLED) == mean(trial, FEDAVG) > mean(trial, LOGREG) + 2
    assert mean(trial, AFL) == pytest.approx(mean(trial, FEDAVG), abs=5)
    assert trial.silent == [] and trial.left_out == 0


def test_labels_that_say_nothing_are_not_learnt() -> None:
    plain = try_labels(made_up(60, noise=True))
    for name in (LOGREG, AFL, FEDAVG, DITTO):
        assert mean(plain, name) == pytest.approx(plain.chance(), abs=8)


def test_validation_images_train_nothing() -> None:
    """A label that is turned round where images only judge raises no number: all are wrong."""
    found = made_up(40)
    trains = [torch.arange(40) < 14] * CLIENTS
    turned = [torch.where(t, y, 7 - y) for t, y in zip(trains, found.labels, strict=True)]
    fooled = try_labels(Gathered(**vars(found) | {"trains": trains, "labels": turned}))
    area = [rankings.auroc(y[14:], s[14:]).mean()
            for y, s in zip(fooled.truth, fooled.scores[FEDAVG], strict=True)]
    assert float(np.mean(area)) < 0.35


def test_clients_unlike_each_other_are_served_by_personal_heads() -> None:
    apart = try_labels(made_up(60, turned=True))
    assert mean(apart, DITTO) > mean(apart, FEDAVG) + 3
    assert conclude_labels(apart).method == DITTO


def test_the_variance_is_that_of_folds_left_out_one_by_one(trial: LabelTrial) -> None:
    gain, variance = trial.gain(FEDAVG, LOGREG, 0)
    plain = []
    for f in (-1, *range(6)):
        keep = trial.held[0] != f
        ap = [rankings.average_precision(trial.truth[0][keep], trial.scores[name][0][keep]).mean()
              for name in (FEDAVG, LOGREG)]
        plain.append(100 * (ap[0] - ap[1]))
    rest = np.array(plain[1:])
    assert gain == pytest.approx(plain[0])
    assert variance == pytest.approx(5 / 6 * ((rest - rest.mean()) ** 2).sum())


@pytest.fixture(scope="module")
def advice(trial: LabelTrial) -> Advice:
    return conclude_labels(trial)


def test_the_page_says_map_and_names_the_command(advice: Advice, trial: LabelTrial) -> None:
    assert advice.verdict == FEDERATE and advice.gaining == [
        k for k in range(4) if advice.gains[k] > advice.margins[k]]
    command = f"fedvlm run X {method_flags(advice.method, sets=True)}"
    lines = AdvicePage(advice, trial, [40] * 4, list("abcd"), command, cost_words(FEDAVG, 12, 3),
                         ["one", "two", "three"]).lines()
    assert len(lines) <= 25 and lines[0].startswith("4 clients, 40 training images each, 3 labels")
    assert any("OPTIM.NAME adam" in line for line in lines)
    assert not any("accuracy" in line or "class" in line for line in lines[:-1])


def test_rare_labels_are_cannot_say() -> None:
    one = try_labels(made_up(40, (0.5, 0.4, 0.01)))
    assert one.silent == [2] and not any(told[2] for told in one.told)
    said = conclude_labels(one)
    lines = AdvicePage(said, one, [40] * 4, list("abcd"), "x", "y", ["one", "two", "three"]).lines()
    assert any(line.startswith("Labels: cannot say of three: ") for line in lines)
    most = conclude_labels(try_labels(made_up(40, (0.5, 0.05, 0.05))))
    assert most.verdict == UNKNOWN and "too rare there to be judged" in most.why
    with pytest.raises(DataError, match="5 images with and 5 without any one label"):
        try_labels(made_up(40, (0.02, 0.02, 0.02)))
