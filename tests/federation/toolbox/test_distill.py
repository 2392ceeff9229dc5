"""Server-side distillation and HEART-PFL's use of it, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, DivergedError
from fedvlm.core.trees import Tree, stack
from fedvlm.federation.rounds import Federation
from fedvlm.federation.server import Held
from fedvlm.federation.toolbox.distill import (
    Distillation,
    ProxyImages,
    distil,
    ensemble,
    symmetric_kl,
)
from fedvlm.models.adapt.attack import PGD
from tests.trainers.small_clip import PROXY, SIZES, OwnImages, Recorded, federation, shares

F64 = torch.float64
PEFT = {"PEFT.VISUAL": "adapter", "PEFT.TEXT": "none", "PEFT.WIDTH": 4}


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def logits(*shape: int, seed: int = 0, size: float = 3.0) -> Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# ---- the loss --------------------------------------------------------------------------------
def test_the_stated_numbers() -> None:
    t, s = row(0, 0), row(math.log(3), 0)
    p, q = t.softmax(-1), s.softmax(-1)
    assert float((p * (p / q).log()).sum()) == pytest.approx(0.1438410, abs=5e-8)
    assert float((q * (q / p).log()).sum()) == pytest.approx(0.1308121, abs=1e-7)
    assert float(symmetric_kl(t, s)) == pytest.approx(0.25 * math.log(3), abs=1e-14)
    assert float(symmetric_kl(t, s)) == pytest.approx(0.2746531, abs=5e-8)
    clean = symmetric_kl(ensemble(torch.stack([row(2, 0, -1), row(0, 2, -1)])), row(2, 0, -1))
    assert float(clean) == pytest.approx(0.4112224 + 0.3183772, abs=1e-7)
    adversarial = symmetric_kl(row(0, 0, 0), row(1, 0, 0))
    assert float(adversarial) == pytest.approx(0.1194991 + 0.1232845, abs=1e-7)
    assert float(clean + adversarial) == pytest.approx(0.9723832, abs=2e-7)


@pytest.mark.parametrize("seed", range(5))
def test_identities(seed: int) -> None:
    a, b = logits(6, 5, seed=seed), logits(6, 5, seed=seed + 50)
    found = symmetric_kl(a, b)
    closed = ((a.softmax(-1) - b.softmax(-1)) * (a - b)).sum(-1)
    assert torch.allclose(found, closed, atol=1e-12)
    assert torch.allclose(found, symmetric_kl(b, a), atol=1e-13)
    assert torch.allclose(found, symmetric_kl(a + 7, b - 3), atol=1e-12)
    assert bool((found >= 0).all())
    assert torch.equal(symmetric_kl(a, a), torch.zeros(6, dtype=F64))


def test_extremes_are_finite_in_value_and_gradient() -> None:
    """Swapped arguments of kl_div give NaN here."""
    a, b = row(50, -50, 0), row(-50, 50, 0).requires_grad_()
    value = symmetric_kl(a, b)
    value.backward()
    assert float(value.detach()) == pytest.approx(200.0, rel=1e-6)
    assert bool(torch.isfinite(b.grad).all())


def test_ensemble() -> None:
    z = torch.stack([row(2, 0), row(0, 0)])
    assert float(ensemble(z).softmax(-1)[0]) == pytest.approx(0.7310586, abs=5e-8)
    assert float(ensemble(z, "probs").softmax(-1)[0]) == pytest.approx(0.6903985, abs=5e-8)
    many = logits(4, 3, 5)
    for kind in ("logits", "probs"):
        assert torch.allclose(ensemble(many, kind), ensemble(many[[2, 0, 3, 1]], kind), atol=1e-12)
        alone = ensemble(many[:1], kind).log_softmax(-1)
        assert torch.allclose(alone, many[0].log_softmax(-1), atol=1e-12)


# ---- the loop, on a linear model of six pixels ---------------------------------------------------
class Counting:
    """logits = w x; counts models times images that ask for the gradient to pixels."""

    def __init__(self) -> None:
        self.attacked = self.calls = 0

    def __call__(self, p: Tree, x: Tensor) -> Tensor:
        self.calls += 1
        if x.requires_grad:
            self.attacked += x.shape[0] * x.shape[1]
        return x.flatten(2) @ p["w"].mT


def tree(seed: int) -> Tree:
    return {"w": logits(4, 12, seed=seed, size=1.0)}


def proxy(n: int = 20) -> ProxyImages:
    x = torch.rand(n, 3, 2, 2, generator=torch.Generator().manual_seed(9)).double()
    return ProxyImages(lambda i: x[i], torch.arange(n) % 4)


HOW = Distillation(steps=30, batch=8, lr=0.05, attack=PGD(steps=3))


def run(student: Tree, teachers: list[Tree], how: Distillation = HOW, **more: Any) -> Any:
    predict = more.get("predict", Counting())
    return distil(student, stack(teachers), predict, more.get("proxy", proxy()), how,
                  torch.Generator().manual_seed(0))


def test_the_student_comes_nearer_and_nothing_else_moves() -> None:
    student, teachers = tree(0), [tree(1), tree(2), tree(3)]
    kept = [t["w"].clone() for t in (student, *teachers)]
    found = run(student, teachers)
    assert found.adopted and found.best > found.initial
    assert all(torch.equal(t["w"], k) for t, k in zip((student, *teachers), kept, strict=True))
    mean = sum(t["w"] for t in teachers) / 3
    assert float((found.tree["w"] - mean).norm()) < float((student["w"] - mean).norm())
    again = run(student, teachers)
    assert torch.equal(again.tree["w"], found.tree["w"])


def test_one_teacher_equal_to_the_student() -> None:
    student = tree(0)
    how = replace(HOW, steps=1, gate="none", attack=PGD(steps=3, random_start=False))
    found = run(student, [tree(0)], how)
    assert found.loss == pytest.approx(0.0, abs=1e-14)
    assert torch.allclose(found.tree["w"], student["w"], atol=1e-7)  # Adam on rounding at most


@pytest.mark.parametrize(("adversary", "models"), [("shared", 1), ("own", 4)])
def test_attack_passes(adversary: str, models: int) -> None:
    """Per image S backward passes, or (N + 1) S: never again for another step."""
    count = Counting()
    how = replace(HOW, adversary=adversary, steps=50)
    found = run(tree(0), [tree(1), tree(2), tree(3)], how, predict=count)
    assert count.attacked == found.attack_passes == 20 * 3 * models


def test_own_adversaries_hurt_their_own_teacher_more() -> None:
    students = [
        run(tree(0), [tree(1), tree(2)], replace(HOW, adversary=a)).tree["w"]
        for a in ("shared", "own")
    ]
    assert not torch.equal(*students)


def test_the_gate_is_strict() -> None:
    for gate in ("kl", "val_acc"):
        found = run(tree(0), [tree(1)], replace(HOW, lr=0.0, gate=gate))
        assert not found.adopted and found.best == found.initial
    assert run(tree(0), [tree(1)], replace(HOW, lr=0.0, gate="none")).adopted


@pytest.mark.parametrize("gate", ["kl", "val_acc"])
@pytest.mark.parametrize("lr", [1e-3, 0.05, 50.0])
def test_what_is_adopted_is_not_worse(gate: str, lr: float) -> None:
    student = tree(0)
    found = run(student, [tree(1), tree(2)], replace(HOW, gate=gate, lr=lr))
    assert found.best >= found.initial
    assert found.adopted is (found.best > found.initial)
    if not found.adopted:
        assert found.tree is student


def test_accuracy_gate_reads_true_labels() -> None:
    perfect = {"w": torch.zeros(4, 12, dtype=F64)}
    perfect["w"][:, :4] = 9 * torch.eye(4, dtype=F64)
    x = torch.zeros(20, 3, 2, 2, dtype=F64)
    labels = torch.arange(20) % 4
    x.flatten(1)[torch.arange(20), labels] = 1
    wrong = {"w": perfect["w"].roll(1, 0)}
    how = replace(HOW, gate="val_acc", lr=0.5)
    found = run(wrong, [perfect], how, proxy=ProxyImages(lambda i: x[i], labels))
    assert (found.initial, found.best, found.adopted) == (0.0, 1.0, True)


def test_pseudo_labels_need_no_labels() -> None:
    given = proxy()
    other = ProxyImages(given.images, (given.labels + 1) % 4)
    ends = [run(tree(0), [tree(1)], proxy=q).tree["w"] for q in (given, other)]
    assert torch.equal(*ends)
    how = replace(HOW, labels="true")
    ends = [run(tree(0), [tree(1)], how, proxy=q).tree["w"] for q in (given, other)]
    assert not torch.equal(*ends)


def test_not_finite_raises() -> None:
    bad = {"w": torch.full((4, 12), torch.nan, dtype=F64)}
    for gate in ("kl", "none"):
        with pytest.raises(DivergedError, match="distillation"):
            run(tree(0), [tree(1), bad], replace(HOW, gate=gate))


def test_too_few_images() -> None:
    with pytest.raises(ConfigError, match="1 proxy image"):
        run(tree(0), [tree(1)], proxy=proxy(1))


# ---- in HEART-PFL ------------------------------------------------------------------------------
def heart(options: dict[str, Any] | None = None, **more: Any) -> tuple[Federation, list[Any]]:
    chosen = {"AKT": True, "AKT_STEPS": 3, "AKT_ATTACK_STEPS": 2, "AKT_GATE": "none"}
    fed = federation("HEART-PFL", chosen | (options or {}), PEFT, **more)
    events: list[Any] = []
    fed.subscribers.append(lambda e: events.append(e) if getattr(e, "updates", ()) else None)
    return fed, events


def test_off_after_the_first_rounds() -> None:
    fed, events = heart({"AKT_ROUNDS": 0.15}, rounds=8)
    fed.run()
    assert [("akt" in e.report) for e in events] == [True, True] + [False] * 6
    off, events = heart({"AKT": False}, rounds=2)
    off.run()
    assert [e.report for e in events] == [{}, {}]


def test_the_proxy_is_the_servers_own_and_nothing_of_the_clients() -> None:
    fed, events = heart({"WEIGHTING": "samples"}, rounds=1)
    found = fed.trainer.proxy(fed.server_context(1, Held()))
    own = fed.proxy
    assert isinstance(own, OwnImages) and torch.equal(found.labels, own.labels)
    pixels = found.images(torch.arange(PROXY))
    assert float(pixels.min()) >= 0 and float(pixels.max()) <= 1
    own.seen.clear()
    fed.run()
    assert own.seen == set(range(PROXY))
    trained = {int(i) for s in shares() for i in s.train}
    assert isinstance(fed.batcher.source, Recorded) and fed.batcher.source.seen == trained
    assert events[0].updates.weight.tolist() == list(SIZES)  # nothing is held out for the server


def test_only_the_servers_own_images_move_the_student() -> None:
    """Clients' validation and test images may be anything; other images of its own are not."""
    fed, _ = heart(rounds=1)
    state = fed.run()
    other, _ = heart(rounds=1)
    away = [int(i) for s in shares() for part in (s.val, s.test) for i in part]
    other.batcher.source.images[away] = torch.nan
    blind = other.run()
    assert all(torch.equal(v, blind.server["w"][n]) for n, v in state.server["w"].items())
    moved, _ = heart(rounds=1)
    moved.proxy.images = moved.proxy.images.flip(-1)
    end = moved.run()
    assert any(not torch.equal(v, end.server["w"][n]) for n, v in state.server["w"].items())


@pytest.mark.parametrize(
    ("akt", "proxy", "holdout", "distils"),
    [("auto", "holdout", 0, False), ("auto", "holdout", 3, True), ("auto", "folder:x", 0, True),
     ("yes", "holdout", 0, True), ("no", "holdout", 3, False), ("no", "clients", 0, False)],
)
def test_auto_distils_where_the_server_has_images(
    akt: str, proxy: str, holdout: int, distils: bool
) -> None:
    keys = PEFT | {"DATASET.SERVER_HOLDOUT": holdout}
    fed = federation("HEART-PFL", {"AKT": akt, "AKT_PROXY": proxy}, keys, rounds=10)
    assert fed.trainer.distils is distils and fed.trainer.last_akt == 2 * distils
    assert (proxy in fed.trainer.extra_data) is distils


def test_no_proxy_is_told_before_training() -> None:
    fed, events = heart(proxy=0)
    with pytest.raises(ConfigError, match=r"has no images of its own.*SERVER_HOLDOUT.*AKT no"):
        fed.run()
    empty, more = heart()
    empty.proxy = OwnImages(torch.zeros(0, 3, 32, 32), torch.zeros(0).long())
    with pytest.raises(ConfigError, match="has no images of its own.*SERVER_HOLDOUT above 0"):
        empty.run()
    assert events == more == []
    assert not fed.batcher.source.seen and not empty.batcher.source.seen


def test_clients_never_train_for_the_proxy() -> None:
    """AKT_SHARE held clients' training images out for the server; there is no such option."""
    with pytest.raises(ConfigError, match="AKT_SHARE"):
        heart({"AKT_SHARE": 0.4})
    for part in ("val", "train"):  # were a way to the clients' images
        with pytest.raises(ConfigError, match=rf"AKT_PROXY must be holdout, .*got '{part}'"):
            heart({"AKT_PROXY": part})


def test_teachers_answer_twice_alike_and_the_backbone_stays() -> None:
    fed, events = heart({"AKT_ROUNDS": 1.0})
    fed.run()  # verifies the backbone's digest
    sent = {n: v[:1] for n, v in events[0].updates.params.items()}
    x = {"pixels": fed.batcher.source.images[:5][None]}
    one, two = (fed.trainer.predict(fed.model, sent, x) for _ in range(2))
    assert torch.equal(one, two)
    assert not any(m.training for m in fed.model.backbone.model.modules())


def test_the_student_is_what_clients_receive() -> None:
    on, _ = heart({"AKT_ROUNDS": 1.0}, rounds=1)
    off, _ = heart({"AKT": False}, rounds=1)
    a, b = on.run(), off.run()
    assert any(not torch.equal(v, b.server["w"][n]) for n, v in a.server["w"].items())
    for c in a.clients:  # clients of round 1 did the same work
        assert all(torch.equal(v, b.clients[c]["v"][n]) for n, v in a.clients[c]["v"].items())
    assert set(a.server["w"]) == set(on.groups.shared)
