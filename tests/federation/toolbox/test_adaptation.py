"""Whose samples are held out."""

from __future__ import annotations

import numpy as np
import torch

from fedvlm.federation.batches import stratify
from tests.trainers.small_clip import Recorded, federation

ADAPTER = {"PEFT.TEXT": "none", "PEFT.VISUAL": "adapter", "PEFT.WIDTH": "4"}


def test_held_out_is_validation_or_a_share_of_training() -> None:
    fed = federation("HEART-PFL", {}, ADAPTER)
    ctx, source = fed.context([0, 1, 2]), fed.batcher.source
    assert isinstance(source, Recorded)
    ctx.whole("val")
    assert sorted(source.seen) == sorted(int(i) for s in fed.batcher.splits for i in s.val)
    parts = []
    for split in fed.batcher.splits:
        train = torch.as_tensor(split.train)
        parts.append(train[stratify(source.labels[train], 0.4, 1)[1]].numpy())
    held = sorted(np.concatenate(parts).tolist())
    assert len(held) == len(set(held)) >= 6
    for part, how in (("val", "fit"), ("train", "held")):
        source.seen.clear()
        ctx.subset(how, 0.4).whole(part)
        assert sorted(source.seen) == held
    source.seen.clear()
    list(ctx.subset("fit", 0.4).batches("w"))
    assert not source.seen & set(held)
    assert source.seen | set(held) == {int(i) for s in fed.batcher.splits for i in s.train}
