"""FedMedCLIP's private network is torch's, its loss a written-out one, its masks learn if fixed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.trees import Tree
from tests.trainers.small_world import batch, gradient, method, model, tree


def network(p: Tree, k: int) -> nn.Sequential:
    """Return a client's private part as torch's layers, masks multiplied in."""
    parts: list[nn.Module] = []
    for i in (1, 2, 3, 4):
        w, t = p[f"head.fc{i}.weight"][k], p[f"head.fc{i}.threshold"][k]
        linear = nn.Linear(w.shape[1], w.shape[0], dtype=w.dtype)
        keep = (w.abs().mean(1) - t > 0.01).to(w)
        linear.load_state_dict({"weight": keep[:, None] * w, "bias": p[f"head.fc{i}.bias"][k]})
        parts.append(linear)
        if i < 4:
            norm = nn.BatchNorm1d(w.shape[0], dtype=w.dtype)
            names = {"weight": "weight", "bias": "bias", "running_mean": "mean",
                     "running_var": "var"}
            norm.load_state_dict({n: p[f"head.norm{i}.{o}"][k] for n, o in names.items()} |
                                 {"num_batches_tracked": torch.zeros((), dtype=torch.int64)})
            parts += [norm, nn.ReLU()]
    return nn.Sequential(*parts)


def start(trainer: Any) -> Tree:
    """Return a tree with variances above 0 and thresholds that close some rows."""
    p = tree(trainer)
    return p | {n: v.abs() + 0.1 for n, v in p.items() if n.endswith((".var", ".batches"))}


def features(p: Tree, k: int, x: Tensor) -> Tensor:
    """Return a client's adapted features of length 1, ``[B, d]``."""
    y = x
    for i in (1, 2):
        w, t, b = (p[f"image.adapter.fc{i}.{n}"][k] for n in ("weight", "threshold", "bias"))
        y = y @ (w * (w.abs().mean(1) - t > 0.01)[:, None]).T + b
        if i == 1:
            y = nn.InstanceNorm1d(len(w))(y[None])[0].relu()
    return F.normalize(y.softmax(1) * x, dim=1)


@pytest.mark.parametrize("variant", ["published", "fixed"])
def test_loss_and_kept_statistics_are_torchs_without_padding(variant: str) -> None:
    trainer: Any = method("FedMedCLIP", VARIANT=variant)
    p, b = start(trainer), batch()
    got, kept = trainer.loss(model(), p, b), trainer.follow(model(), p, b)
    text = trainer.text_features(model(), p)[0]
    for k in range(2):
        n = int(b.w[k].sum())
        y, own = b.y[k, :n], network(p, k)
        z = features(p, k, b.x["features"][k, :n])
        out, near = own(z), z @ text.T
        pairs, right = model().scale * z @ text[y].T, torch.arange(n)
        both = [(v / 2).softmax(0) for v in (near, out)]
        gap = sum((a * (a / c).log()).sum(0).mean() for a, c in (both, both[::-1])) / 2
        want = ((F.cross_entropy(pairs, right) + F.cross_entropy(pairs.T, right)) / 2
                + F.cross_entropy(out, y) + 0.04 * gap)
        assert torch.allclose(got[k], want, atol=1e-12)
        for i, at in ((1, 1), (2, 4), (3, 7)):
            norm: Any = own[at]
            assert torch.allclose(kept[f"head.norm{i}.mean"][k], norm.running_mean, atol=1e-12)
            assert torch.allclose(kept[f"head.norm{i}.var"][k], norm.running_var, atol=1e-12)
    assert torch.equal(kept["head.batches"], p["head.batches"] + 1)


@pytest.mark.parametrize("variant", ["published", "fixed"])
def test_prediction_weighs_both_outputs_by_their_entropies(variant: str) -> None:
    trainer: Any = method("FedMedCLIP", VARIANT=variant)
    p, b = start(trainer), batch()
    got = trainer.predict(model(), p, b.x).exp()
    text = trainer.text_features(model(), p)[0]
    for k in range(2):
        z = features(p, k, b.x["features"][k])
        near, own = (model().scale * z @ text.T).softmax(1), network(p, k).eval()(z).softmax(1)
        h = [-(q * (q.log_softmax(1) if variant == "published" else q.log())).sum(1, keepdim=True)
             for q in (near, own)]
        w = [1 / (v + 1e-8) for v in h]
        assert torch.allclose(got[k], (w[0] * near + w[1] * own) / (w[0] + w[1]), atol=1e-12)


def test_the_global_model_is_the_similarities_alone() -> None:
    trainer: Any = method("FedMedCLIP")
    p, b = start(trainer), batch()
    p["head.batches"] = torch.zeros_like(p["head.batches"])
    z, text = trainer.image_features(model(), p, b.x), trainer.text_features(model(), p)
    want = model().logits(z, text).softmax(-1)
    assert torch.allclose(trainer.predict(model(), p, b.x).exp(), want, atol=1e-12)


def test_thresholds_learn_under_fixed_alone() -> None:
    for variant, learns in (("published", False), ("fixed", True)):
        trainer = method("FedMedCLIP", VARIANT=variant)
        found = gradient(trainer, start(trainer), batch())
        for i in (1, 2, 3, 4):
            assert bool(found[f"head.fc{i}.threshold"].any()) is learns


def test_a_batch_of_one_image_moves_nothing() -> None:
    trainer: Any = method("FedMedCLIP")
    p, b = start(trainer), batch(n=2)  # client 1 has one image and padding
    assert trainer.loss(model(), p, b)[1] == 0
    assert all(torch.equal(v[1], p[n][1]) for n, v in trainer.follow(model(), p, b).items())
    assert not any(v[1].any() for v in gradient(trainer, p, b).values())


def test_a_layer_without_rows_gets_thresholds_of_zero() -> None:
    trainer = method("FedMedCLIP")
    p, revived = start(trainer), sys.modules[type(trainer).__module__].revived  # type: ignore[attr-defined]
    p["head.fc2.threshold"][1] = 9.0
    new = revived(p)
    assert not new["head.fc2.threshold"][1].any()
    assert torch.equal(new["head.fc2.threshold"][0], p["head.fc2.threshold"][0])
