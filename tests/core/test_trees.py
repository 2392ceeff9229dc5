"""Trees and states: what must not get lost."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core import trees
from fedvlm.core.errors import FedvlmError


def test_stacking_loses_no_slot_and_no_tensor() -> None:
    one = torch.zeros(2)
    with pytest.raises(FedvlmError, match="'v'"):
        trees.stack_states([{"w": {"a": one}}, {"w": {"a": one}, "v": {"a": one}}])
    with pytest.raises(FedvlmError, match="'b'"):
        trees.stack([{"a": one}, {"a": one, "b": one}])
