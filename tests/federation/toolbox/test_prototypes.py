"""Class means against a plain loop; HEART-PFL's alignment with them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.check.world import BASE, EMBED, CheckWorld, Setup
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.optim import SGD
from fedvlm.federation.toolbox import prototypes as alignment
from fedvlm.federation.toolbox.prototypes import (
    batch_targets,
    class_means,
    hda,
    membership,
    select_by_label,
    squared_distance,
)


def features(p: Tree, x: Mapping[str, Tensor]) -> Tensor:
    return x["features"] * p["s"][:, None, None]


def test_means_are_those_of_a_loop_whatever_the_chunk_batch_and_round() -> None:
    world = CheckWorld()
    scale = torch.tensor([2.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    found = {}
    for batch in (1, 4, 100):
        fed = world.federation(load_trainer("PromptFL"), Setup(batch=batch))
        ctx = fed.context([0, 1, 2, 3], 5)
        found[batch] = class_means(ctx, features, {"s": scale}, len(BASE), EMBED)
        assert ctx.counters["prototype_samples"] == sum(len(s.train) for s in world.splits)
        alone = fed.context([2], 1)
        one = class_means(alone, features, {"s": scale[2:3]}, len(BASE), EMBED)
        assert torch.allclose(one.mean[0], found[batch].mean[2], atol=1e-14)
    for k, split in enumerate(world.splits):
        for c in range(len(BASE)):
            own = [i for i in split.train if int(world.labels[i]) == c]
            want = torch.zeros(EMBED, dtype=torch.float64)
            if own:
                want = scale[k] * sum(world.features[i] for i in own) / len(own)
            for protos in found.values():
                assert torch.allclose(protos.mean[k, c], want, atol=1e-13)
                assert int(protos.count[k, c]) == len(own)


def test_clients_without_samples_have_no_class() -> None:
    world = CheckWorld()
    empty = [type(s)(s.train[:0], s.val, s.test) for s in world.splits]
    ctx = world.federation(load_trainer("PromptFL"), Setup(splits=empty)).context([0, 1], 1)
    p = expand({"s": torch.ones((), dtype=torch.float64)}, 2)
    found = class_means(ctx, features, p, 3, EMBED)
    assert found.mean.shape == (2, 3, EMBED)
    assert not found.mean.any() and not found.count.any()


def test_padding_is_in_no_class() -> None:
    b = Batch({}, torch.tensor([[0, 1, 0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    assert membership(b, 2).sum(1).tolist() == [[1.0, 1.0]]
    values = torch.tensor([[[1.0], [2.0]]])
    assert select_by_label(values, b.y).flatten().tolist() == [1.0, 2.0, 1.0]


PEFT = {"PEFT.VISUAL": "adapter", "PEFT.TEXT": "none", "PEFT.WIDTH": 4}
F64 = torch.float64


def stages(*values: list[float]) -> list[Tensor]:
    return [torch.tensor(v, dtype=F64).view(1, 1, -1) for v in values]


def random_stages(seed: int, k: int = 2, b: int = 3) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(k, b, d, generator=draw, dtype=F64) for d in (4, 5, 6, 7)]


ONE = torch.ones(1, 1, dtype=F64)


# ---- alignment -------------------------------------------------------------------------------
def test_the_stated_numbers() -> None:
    f = stages([1, 0], [3, 4], [1, 2], [0, 0, 0])
    p = stages([1, 1], [4, 3], [3, 2], [1, 1, 1])
    each = [float(hda([a], [b], ONE, early=int(j < 2))) for j, (a, b) in enumerate(zip(f, p,
                                                                                strict=True))]
    assert each == pytest.approx([0.292893, 0.04, 2.0, 1.0], abs=5e-7)
    assert float(hda(f, p, ONE)) == pytest.approx(0.833223, abs=5e-7)
    assert 0.1 * float(hda(f, p, ONE)) == pytest.approx(0.0833223, abs=5e-8)


def test_the_stated_gradient() -> None:
    f, (p,) = stages([1, 0]), stages([1, 1])
    p.requires_grad_()
    hda(f, [p], ONE, early=1).sum().backward()
    assert p.grad.flatten().tolist() == pytest.approx([-0.353553, 0.353553], abs=5e-7)


def test_zero_range_and_scaling() -> None:
    f, p, has = random_stages(0), random_stages(1), torch.ones(2, 3, dtype=F64)
    assert hda(f, f, has).tolist() == pytest.approx([0, 0], abs=1e-15)
    early = hda(f[:2], p[:2], has)
    assert bool(((early >= 0) & (early <= 2)).all())
    assert hda(f[:1], [-f[0]], has).tolist() == pytest.approx([2, 2])
    for scaled in ([3 * v for v in f[:2]], [0.1 * v for v in f[:2]]):
        assert torch.allclose(hda(scaled, p[:2], has), early)
        assert torch.allclose(hda(p[:2], scaled, has), early)
    deep = hda(f[2:], p[2:], has, early=0)
    assert torch.allclose(hda([3 * v for v in f[2:]], [3 * v for v in p[2:]], has, 0), 9 * deep)


def test_vectors_equal_loops_and_classes_without_prototype_are_out() -> None:
    f, p = random_stages(0), random_stages(1)
    has = torch.tensor([[1, 0, 1], [1, 1, 1]], dtype=F64)
    for k in range(2):
        total, pairs = 0.0, 0
        for i in range(3):
            for j in range(4):
                if has[k, i]:
                    a, b = f[j][k, i], p[j][k, i]
                    total += float(1 - F.cosine_similarity(a, b, 0) if j < 2
                                   else F.mse_loss(a, b))
                    pairs += 1
        assert float(hda(f, p, has)[k]) == pytest.approx(total / pairs, abs=1e-12)
    moved = [v.clone() for v in f]
    for v in moved:
        v[0, 1] += 5
    assert torch.equal(hda(moved, p, has), hda(f, p, has))
    assert hda(f, p, torch.zeros_like(has)).tolist() == [0, 0]


def batch(y: Tensor) -> Batch:
    return Batch({}, y, torch.ones(y.shape, dtype=F64))


def cached(stage: list[Tensor], has: Tensor | None = None) -> Tree:
    """Cached prototypes ``stage [K, C, width]``; by default every class has one."""
    proto = {f"stage.{j}": v for j, v in enumerate(stage)}
    proto["has"] = torch.ones(stage[0].shape[:2], dtype=F64) if has is None else has
    return proto


def test_straight_through() -> None:
    """The cache's value; the exact gradient where the cache is the batch's own means."""
    y = torch.tensor([[0, 1, 0], [1, 1, 1]])
    f, own, other = random_stages(0), random_stages(1), random_stages(2)
    own = [v.requires_grad_() for v in own]
    b, proto = batch(y), cached([v[:, :2] for v in other])
    got, plain = batch_targets(own, b, proto), alignment.targets(b, proto)
    assert all(torch.equal(a, c) for a, c in zip(got, plain, strict=True))

    def means(v: Tensor) -> Tensor:
        rows = [[v[k][y[k] == c].mean(0) if bool((y[k] == c).any()) else v[k][0] * 0
                 for c in range(2)] for k in range(2)]
        return torch.stack([torch.stack(row) for row in rows])

    exact = [means(v) for v in own]
    has, clients = torch.ones(2, 3, dtype=F64), torch.arange(2)[:, None]
    loss = hda(f, [m[clients, y] for m in exact], has).sum()
    wanted = torch.autograd.grad(loss, own, retain_graph=True)
    proto = cached([m.detach() for m in exact])
    ours = hda(f, batch_targets(own, b, proto), alignment.presence(b, proto)).sum()
    assert float(ours.detach()) == pytest.approx(float(loss.detach()), abs=1e-14)
    for one, two in zip(torch.autograd.grad(ours, own), wanted, strict=True):
        assert torch.allclose(one, two, atol=1e-12) and float(one.abs().max()) > 0


# ---- proximal term ---------------------------------------------------------------------------
def test_prox_value_and_gradient() -> None:
    p = {"a": torch.tensor([[1.0, 2.0]], dtype=F64, requires_grad=True)}
    value = squared_distance(p, {"a": torch.zeros(1, 2, dtype=F64)})
    assert value.tolist() == [5.0]
    (g,) = torch.autograd.grad(value.sum(), p["a"])
    assert g.tolist() == [[2.0, 4.0]]


def test_prox_alone_shrinks_the_distance() -> None:
    p: Tree = {"a": torch.ones(1, 1, dtype=F64)}
    home, sizes = {"a": torch.zeros(1, 1, dtype=F64)}, [1.0]
    for t in range(1, 11):
        leaf = {"a": p["a"].detach().requires_grad_()}
        (g,) = torch.autograd.grad(squared_distance(leaf, home).sum(), leaf["a"])
        p = SGD().step(p, {"a": g}, {}, [0.01], t)[0]
        sizes.append(float(p["a"]))
    assert [b / a for a, b in zip(sizes[:-1], sizes[1:], strict=True)] == pytest.approx([0.98] * 10)
    assert sizes[-1] == pytest.approx(0.8170728, abs=5e-8)


# ---- the real model --------------------------------------------------------------------------
