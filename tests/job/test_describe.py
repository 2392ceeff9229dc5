"""A run's words about itself: its partition's name in the path."""

from __future__ import annotations

from typing import Any

import pytest
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.job.describe import partition_name, peft_choice
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve


def named(server: int = 0, **fed: Any) -> str:
    plain = {
        "CLIENTS": 10, "FRAC": 1.0, "PARTITION": "disjoint", "BETA": 0.3, "BETA_FINE": 10.0,
        "MIN_SIZE": 2, "CLASSES_PER_CLIENT": 2, "REPEAT_RATE": 0.0, "LEGACY": False,
        "HELD_OUT_DOMAIN": "", "INDEX_FILE": "",
    }  # fmt: skip
    data = {"SERVER_HOLDOUT": server, "CORRUPTION": ""}
    return partition_name(CfgNode({"FED": CfgNode(plain | fed), "DATASET": CfgNode(data)}))


@pytest.mark.parametrize(
    ("fed", "name"),
    [({}, "disjoint-K10-f1"), ({"LEGACY": True}, "disjoint-legacy-K10-f1"),
     ({"REPEAT_RATE": 0.2}, "disjoint-repeat0.2-K10-f1"), ({"FRAC": 0.25}, "disjoint-K10-f0.25"),
     ({"BETA": 9.0, "MIN_SIZE": 9, "CLASSES_PER_CLIENT": 9}, "disjoint-K10-f1"),
     ({"PARTITION": "dirichlet"}, "dirichlet-0.3-K10-f1"),
     ({"PARTITION": "dirichlet", "MIN_SIZE": 10}, "dirichlet-0.3-min10-K10-f1"),
     ({"PARTITION": "superclass_dirichlet"}, "superclass_dirichlet-0.3-K10-f1"),
     ({"PARTITION": "superclass_dirichlet", "BETA_FINE": 1.0},
      "superclass_dirichlet-0.3-fine1-K10-f1"),
     ({"PARTITION": "n_classes"}, "n_classes-2-K10-f1"), ({"PARTITION": "iid"}, "iid-K10-f1"),
     ({"PARTITION": "quantity", "BETA": 1.0}, "quantity-1-K10-f1"),
     ({"PARTITION": "domain", "HELD_OUT_DOMAIN": "Real World"},
      "domain-without-Real_World-K10-f1")],
)  # fmt: skip
def test_the_path_shows_what_changes_the_partition(fed: dict[str, Any], name: str) -> None:
    assert named(**fed) == name


def test_the_path_shows_the_servers_images() -> None:
    assert named(server=2) == "disjoint-server2-K10-f1"
    assert named(server=1, PARTITION="domain", HELD_OUT_DOMAIN="art") == (
        "domain-without-art-server1-K10-f1"
    )


@pytest.mark.parametrize(("words", "said"), [
    ("--trainer FedAvg --opts PEFT.LORA_AVG fair", r"PEFT.LORA_AVG fair: FedAvg trains no LoRA here"
     r", only prompt\+feature, so it would have no effect: add lora to --peft"),
    ("--trainer FedAvg --opts PEFT.RANKS 2,4", "PEFT.RANKS 2,4: FedAvg trains no LoRA"),
    ("--trainer FedPGP --opts PEFT.LORA_AVG product_svd", "PEFT.LORA_AVG product_svd: FedPGP "
                                                          "defines"
     ".*use --trainer FedAvg --peft lora, or drop it"),
    ("--trainer HetLoRA", ""), ("--trainer FedAvg --opts PEFT.LORA_AVG factors", ""),
    ("--trainer FedAvg --peft lora --opts PEFT.LORA_AVG fair PEFT.RANKS 2,4", ""),
])
def test_a_rule_of_lora_that_nothing_reads_is_refused(words: str, said: str) -> None:
    job = resolve(parse(["--demo", *words.split()])).jobs[0]
    if not said:
        peft_choice(job.cfg, job.origins)
        return
    with pytest.raises(ConfigError, match=said):
        peft_choice(job.cfg, job.origins)
