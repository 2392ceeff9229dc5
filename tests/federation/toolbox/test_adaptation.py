"""Whose samples are held out."""

from __future__ import annotations

import numpy as np

from fedvlm.federation.toolbox.adaptation import client_split, held_out_indices
from tests.trainers.small_clip import federation

ADAPTER = {"PEFT.TEXT": "none", "PEFT.VISUAL": "adapter", "PEFT.WIDTH": "4"}


def test_held_out_is_validation_or_a_share_of_training() -> None:
    batcher = federation("HEART-PFL", {}, ADAPTER).batcher
    assert held_out_indices(batcher, None, 1) == sorted(
        int(i) for s in batcher.splits for i in s.val
    )
    parts = [client_split(batcher, k, 0.4, 1).val for k in range(3)]
    assert held_out_indices(batcher, 0.4, 1) == sorted(np.concatenate(parts).tolist())
