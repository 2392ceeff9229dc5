"""PromptSRC: its three guides vanish on CLIP's own features; the average over rounds."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F

from fedvlm.check.world import Setup
from fedvlm.federation.discovery import load_trainer
from fedvlm.models.vlmodel import VLModel
from tests.trainers.small_world import batch, method, model, tree, world


def test_parts_of_the_loss() -> None:
    p, b = tree(method("PromptSRC", N_CTX=2)), batch(names=("pixels",))
    both = {v: method("PromptSRC", N_CTX=2, VARIANT=v) for v in ("published", "fixed")}
    loss, parts = both["published"].loss(model(), p, b)
    _, fixed = both["fixed"].loss(model(), p, b)
    k, n = 1, int(b.w[1].sum())
    z0 = F.normalize(model().image(b.x)[k, :n], dim=-1)
    z = F.normalize(both["fixed"].image_features(model(), p, b.x)[k, :n], dim=-1)
    text, zero = both["fixed"].text_features(model(), p)[k], model().anchor("template", 0)
    log_p, log_q = ((model().scale * a @ t.T).log_softmax(-1) for a, t in ((z, text), (z0, zero)))
    want = {
        "text_loss": 25 * F.l1_loss(text, zero), "image_loss": 10 * F.l1_loss(z, z0),
        "logit_loss": F.kl_div(log_p, log_q, reduction="batchmean", log_target=True),
    }
    for name, value in want.items():
        assert torch.allclose(fixed[name][k], value, atol=1e-9), name
    assert torch.allclose(parts["logit_loss"] * 4, fixed["logit_loss"], atol=1e-9)  # four classes
    assert torch.allclose(loss, torch.stack(list(parts.values())).sum(0), atol=1e-12)


def test_last_round_is_a_weighted_mean_of_all() -> None:
    opts = {"N_CTX": 2, "DEPTH": 1, "GPA_MEAN": 0.5, "GPA_STD": 0.5}
    cls = load_trainer("PromptSRC")
    plain, gpa = (world().record(cls, Setup(rounds=2, opts=opts | {"GPA": g}))
                  for g in (False, True))
    bell = sys.modules[cls.__module__].bell
    assert [bell(t, 20, 0.75, 0.05) for t in (15, 16)] == [1.0, 0.6065306597126334]
    g = [bell(t, 2, 0.5, 0.5) for t in (1, 2)]
    for name, v in gpa.states[2].server["w"].items():
        one, two = (plain.states[t].server["w"][name] for t in (1, 2))
        assert torch.allclose(v, (g[0] * one + g[1] * two) / sum(g), atol=1e-12)
        assert torch.equal(gpa.states[1].server["w"][name], one)


def test_the_teacher_averages_raw_features_or_unit_ones() -> None:
    texts = ("a photo of a {}.", "many {}.", "the {} of us.")
    two = VLModel(model().backbone, model().classnames, templates=texts)
    ends = [two.with_classes(two.classnames, (t,)).anchor("raw", 0) for t in texts]
    one = two.with_classes(two.classnames, texts[:1]).anchor("template", 0)
    assert torch.allclose(ends[0], one, atol=1e-12)
    unit = F.normalize(torch.stack(ends).sum(0), dim=-1)
    assert torch.allclose(two.anchor("template", 0), unit, atol=1e-12)
    assert float((two.anchor("raw", 0) - unit).abs().max()) > 1e-6
    p, b = tree(method("PromptSRC", N_CTX=2)), batch(names=("pixels",))
    losses = {}
    for teacher, kind in (("raw", "raw"), ("unit", "template")):
        trainer = method("PromptSRC", N_CTX=2, TEACHER=teacher)
        _, parts = trainer.loss(two, p, b)
        gap = (trainer.text_features(two, p) - two.anchor(kind, 0)).abs().mean((-2, -1))
        assert torch.allclose(parts["text_loss"], 25 * gap, atol=1e-12)
        losses[teacher] = parts["text_loss"]
    assert not torch.allclose(losses["raw"], losses["unit"], atol=1e-9)
    old = {n: o.neutral for n, o in load_trainer("PromptSRC").options.items() if o.neutral}
    assert old == {"WORDS": "cut", "TEACHER": "unit"}
