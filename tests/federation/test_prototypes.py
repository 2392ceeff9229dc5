"""Class means against a plain loop."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.check.world import BASE, EMBED, Setup, World
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.toolbox.prototypes import class_means, membership, of_labels


def features(p: Tree, x: Mapping[str, Tensor]) -> Tensor:
    return x["features"] * p["s"][:, None, None]


def test_means_are_those_of_a_loop_whatever_the_chunk_batch_and_round() -> None:
    world = World()
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
    world = World()
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
    assert of_labels(values, b.y).flatten().tolist() == [1.0, 2.0, 1.0]
