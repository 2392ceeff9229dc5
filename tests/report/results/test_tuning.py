"""Which runs have tuned values: by their configs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedvlm.report.collect import Run
from fedvlm.report.results.tuning import kind_of

ENTRY = {"label": "FedProx", "trainer": "FedProx",
         "settings": {"PEFT.VISUAL": "feature", "FED.LOCAL_EPOCHS": "2"},
         "values": {"OPTIM.LR": "1e-3", "TRAINER.FEDPROX.MU": "0.5"}}
RECORD = {"plan": {"common": {"MODEL.BACKBONE.NAME": "local-dir:../shared/realfeat"}},
          "entries": [ENTRY]}


@pytest.mark.parametrize(("changes", "kind"), [
    ({}, "tuned"),
    ({"FED.LOCAL_EPOCHS": 7}, "tuned"),  # not among what was chosen
    ({"TRAINER.FEDPROX.MU": 1.0}, "in part"),
    ({"OPTIM.LR": 0.002}, "as they come"),
    ({"PEFT.VISUAL": "none"}, "as they come"),
    ({"MODEL.BACKBONE.NAME": "tiny"}, "as they come"),
])
def test_a_run_is_tuned_when_its_config_has_the_values(changes: dict[str, Any], kind: str) -> None:
    config = {"OPTIM.LR": 0.001, "TRAINER.FEDPROX.MU": 0.5, "PEFT.VISUAL": "feature",
              "MODEL.BACKBONE.NAME": "local-dir:/data/realfeat"} | changes
    run = SimpleNamespace(protocol={"trainer": "FedProx"}, identity_config=lambda: config)
    assert kind_of(cast(Run, run), RECORD) == kind
