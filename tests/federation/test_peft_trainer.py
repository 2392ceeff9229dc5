"""Methods that compare tensors of two rounds want one basis."""

from __future__ import annotations

import pytest

from fedvlm.check.world import World
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer

LORA = {"PEFT.TEXT": "none", "PEFT.VISUAL": "lora", "PEFT.RANK": "2"}


@pytest.mark.parametrize("name", ["FedALA", "HEART-PFL"])
def test_factors_of_two_rounds_are_not_compared_under_product_svd(name: str) -> None:
    """FedALA blends them number by number, HEART-PFL pulls v to w: both need one basis."""
    words = [w for key, value in LORA.items() for w in (key, value)]
    with pytest.raises(ConfigError, match="LORA_AVG.*factors or freeze_a"):
        World([*words, "PEFT.LORA_AVG", "product_svd"]).federation(load_trainer(name))
    World([*words, "PEFT.LORA_AVG", "factors"]).federation(load_trainer(name))
