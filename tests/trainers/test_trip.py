"""TRIP: clusters token by token, pairings by trying all, the loss written out, the average."""

from __future__ import annotations

import sys
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.models.towers.vision import stream_name
from tests.trainers.small_world import batch, method, model, tree, world

CTX, KEYS = "text.ctx.experts", "route.keys"
LAST = 1  # block of the small tower


def part(name: str) -> Any:
    return getattr(sys.modules[type(method("TRIP")).__module__], name)


def one_by_one(x: Tensor, count: int, room: float) -> tuple[Tensor, list[int], int]:
    """Return centres, sizes and the number of steps of one image's clusters ``[N, width]``."""
    n = len(x)
    most = [int(n // count * room) + (m < n % count) for m in range(count)]
    centres = [x[m * n // count] for m in range(count)]
    price = [0.0] * count
    step = 0
    while step < 100:
        step += 1
        gap = [[float((row - c).norm()) for c in centres] for row in x]
        wish = [min((g[m] + price[m], m) for m in range(count)) for g in gap]
        taken: list[list[int]] = [[] for _ in range(count)]
        for i in sorted(range(n), key=lambda i: wish[i][0]):
            m = wish[i][1]
            if len(taken[m]) < most[m]:
                taken[m].append(i)
        far = max(range(n), key=lambda i: min(gap[i]))
        new = [x[rows].mean(0) if rows else x[far] for rows in taken]
        price = [p + 1e-4 * (len(rows) - most[m]) if rows else 0.0
                 for m, (p, rows) in enumerate(zip(price, taken, strict=True))]
        moved = sum(float((a - b).norm()) for a, b in zip(new, centres, strict=True)) / count
        if moved < 1e-4:
            break
        centres = new
    return torch.stack(centres), [len(rows) for rows in taken], step


@pytest.mark.parametrize(("count", "room"), [(4, 1.0), (4, 2.0), (3, 1.0), (1, 1.0), (5, 1.5)])
def test_clusters_are_those_of_one_image_at_a_time(count: int, room: float) -> None:
    draw = torch.Generator().manual_seed(count)
    x = torch.randn(2, 6, 23, 3, generator=draw, dtype=torch.float64)
    x[0, 0, 5:] += 4  # most tokens want the same cluster
    x[1, 2, ::2] = x[1, 2, 0]  # equal tokens: clusters that nobody wants
    x[1, 2] += 1e-3 * torch.randn(23, 3, generator=draw, dtype=torch.float64)
    centres, sizes = part("clusters")(x, count, room)
    steps, left = set(), 0.0
    for k in range(2):
        for i in range(6):
            want, counts, step = one_by_one(x[k, i], count, room)
            assert torch.allclose(centres[k, i], want, atol=1e-12)
            assert sizes[k, i].tolist() == counts
            steps.add(step)
            left += 23 - sum(counts)
    assert count == 1 or len(steps) > 1  # images settle at different steps
    assert (left > 0) == (count > 1 and room == 1.0) or room > 1


def test_keys_get_the_cluster_of_the_best_pairing() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 23, 6, generator=draw, dtype=torch.float64)
    keys = torch.randn(2, 1, 4, 6, generator=draw, dtype=torch.float64)
    got = part("route")(x, keys, 1.5)
    centres, sizes = part("clusters")(x, 4, 1.5)
    greedy = 0
    for k in range(2):
        for i in range(3):
            near = F.cosine_similarity(centres[k, i, :, None], keys[k], dim=-1)
            best = max(permutations(range(4)), key=lambda p: sum(
                float(near[m, j]) for m, j in enumerate(p)))
            for m, j in enumerate(best):
                assert torch.allclose(got[k, i, j], sizes[k, i, m] / sizes[k, i].sum())
            greedy += tuple(near.argmax(1).tolist()) != best
    assert greedy  # each cluster's nearest key would be another answer


def tokens(index: Tensor) -> Tensor:
    """Return what enters the last block of the world's images ``[..., n, width]``."""
    entered = model().vision.compute(world().pixels[index.flatten()], stream_name(LAST))
    return entered.unflatten(0, index.shape)


def test_loss_and_prediction_are_written_out() -> None:
    trainer: Any = method("TRIP", N_CTX=2, EXPERTS=3, ALPHA=0.5)
    p, b = tree(trainer), batch(names=("features", "pixels"))
    got, parts = trainer.loss(model(), p, b)
    logits = trainer.predict(model(), p, b.x)
    text0 = F.normalize(model().anchor("raw", 0), dim=-1)
    rows = tokens(torch.arange(8).view(2, 4) % len(world().labels))
    out = model().vision.blocks[LAST](rows, part("blocks").NoEdits())
    for k in range(2):
        losses = []
        for i in range(int(b.w[k].sum())):
            z = F.normalize(b.x["features"][k, i], dim=-1)
            found = []
            for room in (1.0, 2.0):
                share = part("route")(out[k, i], p[KEYS][k], room)
                text = model().text(sum(s * c for s, c in zip(share, p[CTX][k], strict=True)))
                found.append(model().scale * text @ z)
            assert torch.allclose(logits[k, i], found[1], atol=1e-9)
            teacher = (model().scale * text0 @ z).softmax(0)
            losses.append(F.cross_entropy(found[0], b.y[k, i])
                          + 0.5 * F.cross_entropy(found[0][None], teacher[None]))
        assert torch.allclose(got[k], torch.stack(losses).mean(), atol=1e-9)
    assert torch.allclose(got, torch.stack(list(parts.values())).sum(0), atol=1e-12)
    assert trainer.prompt_sets(32) == 32


@pytest.mark.parametrize("variant", ["published", "fixed"])
def test_the_global_model_is_a_weighted_mean_of_all_rounds(variant: str) -> None:
    trainer: Any = method("TRIP", VARIANT=variant)
    rounds, start = 4, torch.tensor(7.0)
    models = [torch.tensor(float(v)) for v in (1, -2, 5, 3)]
    average = start
    for round_, one in enumerate(models, 1):
        average = part("moved")(average, one, trainer.share(round_, rounds))
    beta = torch.distributions.Beta(0.2, 0.2)
    b = [float(beta.log_prob(torch.tensor((i + 0.5) / (rounds + 1))).exp())
         for i in range(rounds + 1)]
    b = b if variant == "fixed" else [b[0], b[0], b[1], b[2], b[3]]
    want = torch.tensor(b) @ torch.stack([start, *models]) / sum(b)
    assert torch.allclose(average, want, atol=1e-5)
