"""The loss of captions and images against a plain sum over pairs; ranks against sorting."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.federation.batches import Batch
from fedvlm.federation.toolbox import retrieval
from fedvlm.federation.toolbox.retrieval import STREAM, caption_loss, ranks, recall

SCALE = 14.0


def drawn(counts: list[list[int]], width: int, seed: int = 0) -> tuple[Tensor, Batch]:
    """Random features of clients with so many captions of each image, padded to ``width``."""
    draw = torch.Generator().manual_seed(seed)
    k, most = len(counts), max(max(row) for row in counts)
    z = torch.randn(k, width, 6, generator=draw, dtype=torch.float64)
    texts = F.normalize(torch.randn(k, width, most, 6, generator=draw, dtype=torch.float64), dim=-1)
    w = torch.zeros(k, width, dtype=torch.float64)
    for i, row in enumerate(counts):
        w[i, : len(row)] = 1
        for j, n in enumerate(row):
            texts[i, j, n:] = 0
    return z, Batch({STREAM: texts}, torch.zeros(k, width, dtype=torch.int64), w)


def by_hand(z: Tensor, texts: Tensor, counts: list[int]) -> float:
    """The loss of one client, pair by pair."""
    unit = [[float(v) / math.sqrt(sum(float(a) ** 2 for a in row)) for v in row]
            for row in z[: len(counts)]]
    pairs = [(j, [float(v) for v in texts[j, m]]) for j, n in enumerate(counts) for m in range(n)]

    def s(i: int, text: list[float]) -> float:
        return SCALE * sum(a * b for a, b in zip(unit[i], text, strict=True))

    total = 0.0
    for i, n in enumerate(counts):
        own = 0.0
        for _, text in (pair for pair in pairs if pair[0] == i):
            mine = math.exp(s(i, text))
            foreign = sum(math.exp(s(i, other)) for j, other in pairs if j != i)
            images = sum(math.exp(s(j, text)) for j in range(len(counts)))
            own -= (math.log(mine / (mine + foreign)) + math.log(mine / images)) / 2
        total += own / n
    return total / len(counts)


@pytest.mark.parametrize("counts", [[[1, 1, 1, 1]], [[3, 1, 2], [2, 2, 2, 1, 1], [1]]])
def test_the_loss_is_that_of_all_pairs(counts: list[list[int]]) -> None:
    z, batch = drawn(counts, 5)
    loss = caption_loss(z, batch, SCALE)
    for k, row in enumerate(counts):
        expected = by_hand(z[k], batch.x[STREAM][k], row)
        assert float(loss[k]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_with_one_caption_each_it_is_clips_loss() -> None:
    z, batch = drawn([[1] * 5], 5)
    logits = SCALE * F.normalize(z[0], dim=-1) @ batch.x[STREAM][0, :, 0].mT
    at = torch.arange(5)
    clip = (F.cross_entropy(logits, at) + F.cross_entropy(logits.mT, at)) / 2
    assert float(caption_loss(z, batch, SCALE)[0]) == pytest.approx(float(clip), rel=1e-12)


def test_padding_is_neither_pair_nor_negative() -> None:
    counts = [[2, 1, 2], [1, 1, 1, 1, 1, 1]]
    z, batch = drawn(counts, 6)
    z.requires_grad_()
    loss = caption_loss(z, batch, SCALE)
    loss.sum().backward()
    assert float(z.grad[0, 3:].abs().max()) == 0 < float(z.grad[0, :3].abs().min())
    short, own = drawn(counts, 6)
    short[0, 3:], own.x[STREAM][0, 3:] = 99.0, F.normalize(torch.ones(3, 2, 6).double(), dim=-1)
    torch.testing.assert_close(caption_loss(short, own, SCALE), loss.detach(), rtol=0, atol=0)
    alone, single = drawn([[2, 1, 2]], 3)
    alone, single.x[STREAM][:] = z.detach()[:1, :3], batch.x[STREAM][:1, :3]
    torch.testing.assert_close(caption_loss(alone, single, SCALE), loss.detach()[:1])


def test_a_batch_of_one_image_teaches_nothing_and_is_finite() -> None:
    z, batch = drawn([[3], [1, 1]], 2)
    z.requires_grad_()
    loss = caption_loss(z, batch, SCALE)
    loss.sum().backward()
    assert float(loss.detach()[0]) == pytest.approx(0, abs=1e-12)
    assert float(z.grad[0].abs().max()) < 1e-12
    assert torch.isfinite(z.grad).all() and float(z.grad[1].abs().max()) > 0


def test_the_order_of_images_changes_nothing() -> None:
    z, batch = drawn([[3, 1, 2, 2]], 4)
    turn = torch.tensor([2, 0, 3, 1])
    other = Batch({STREAM: batch.x[STREAM][:, turn]}, batch.y, batch.w)
    torch.testing.assert_close(caption_loss(z[:, turn], other, SCALE),
                               caption_loss(z, batch, SCALE))


def test_ranks_are_those_of_sorting() -> None:
    draw = torch.Generator().manual_seed(3)
    owner = torch.tensor([0, 0, 0, 1, 2, 2, 3, 4, 4])
    z, t = torch.randn(5, 4, generator=draw), torch.randn(9, 4, generator=draw)
    to_texts, to_images = ranks(z, t, owner)
    s = (F.normalize(z.double(), dim=1) @ F.normalize(t.double(), dim=1).mT).tolist()
    for i in range(5):
        order = sorted(range(9), key=lambda j: -s[i][j])
        first = next(place for place, j in enumerate(order) if owner[j] == i)
        assert int(to_texts[i]) == first
    for j in range(9):
        order = sorted(range(5), key=lambda i: -s[i][j])
        assert int(to_images[j]) == order.index(int(owner[j]))
    assert recall(torch.tensor([0, 1, 4, 9]), (1, 5, 10)) == [25.0, 75.0, 100.0]


@pytest.mark.parametrize("rows", [1024, 7])
def test_equal_captions_and_images_are_exact_ties(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from similarities of the different ones alone, whatever a matrix product's edges do."""
    monkeypatch.setattr(retrieval, "_ROWS", rows)
    draw = torch.Generator().manual_seed(0)
    for d, n, each in ((32, 29, 2), (64, 29, 2), (64, 30, 2), (128, 61, 1)):
        texts, images = (torch.randn(k, d, generator=draw) for k in (9, 11))
        text, image = torch.arange(n * each) % 9, torch.arange(n) % 11
        owner = torch.arange(n).repeat_interleave(each).tolist()
        s = (F.normalize(images.double(), dim=1) @ F.normalize(texts.double(), dim=1).mT).tolist()
        near = [[s[i][t] for t in text] for i in image]
        best = [max(near[i][j] for j in range(n * each) if owner[j] == i) for i in range(n)]
        to_texts, to_images = ranks(images[image], texts[text], torch.tensor(owner))
        assert to_texts.tolist() == [
            sum(near[i][j] >= best[i] for j in range(n * each) if owner[j] != i)
            for i in range(n)]
        assert to_images.tolist() == [
            sum(near[i][j] >= near[owner[j]][j] for i in range(n) if i != owner[j])
            for j in range(n * each)]


def test_own_captions_do_not_push_each_other_back() -> None:
    """Both captions of image 0 are nearer than image 1's; one of them is enough."""
    z = torch.tensor([[1.0, 0], [0, 1]])
    t = torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.3, 1]])
    assert [r.tolist() for r in ranks(z, t, torch.tensor([0, 0, 1]))] == [[0, 0], [0, 0, 0]]


def test_ties_and_broken_features_find_nothing() -> None:
    t, owner = torch.ones(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    to_texts, to_images = ranks(torch.ones(3, 3), t, owner)
    assert to_texts.tolist() == [4, 4, 4] and to_images.tolist() == [2] * 6
    z = torch.eye(3)
    z[1] = torch.nan
    to_texts, to_images = ranks(z, torch.eye(3), torch.arange(3))
    assert to_texts.tolist()[1] == 2 and to_images.tolist()[1] == 2
    assert to_texts.tolist()[0] == 0 == to_images.tolist()[0]
