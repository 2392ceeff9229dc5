"""Which keys a run reads, for every key of the schema: those make its identity, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.config.build import build_config, flat
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Option, Schema, declare
from fedvlm.config.sections import SECTIONS, Section, read_keys
from fedvlm.data.partition.spec import _USES

SCHEMA = default_schema()
# What makes a config read a key that the default one does not, and the reverse.
READS = {
    "DATASET.TEST_NEW": {"DATASET.SUBSAMPLE_CLASSES": "base"},
    "INPUT.RRCROP_SCALE": {"INPUT.VIEWS": 0},
    "FED.BETA": {"FED.PARTITION": "quantity"}, "FED.MIN_SIZE": {"FED.PARTITION": "dirichlet"},
    "FED.BETA_FINE": {"FED.PARTITION": "superclass_dirichlet"},
    "FED.CLASSES_PER_CLIENT": {"FED.PARTITION": "n_classes"},
    "FED.REPEAT_RATE": {"FED.PARTITION": "disjoint"}, "FED.LEGACY": {"FED.PARTITION": "disjoint"},
    "FED.FIRST_ROUND_ALL": {"FED.FRAC": 0.5}, "FED.CHUNK": {"FED.PLAIN": False},
    "FED.DP.TIGHT": {"FED.DP.EPSILON": 8.0}, "FED.PATIENCE_LOSS": {"FED.PATIENCE": 5},
    "FED.FINETUNE_TRAIN": {"FED.FINETUNE_EPOCHS": 2},
    "FED.FINETUNE_LR": {"FED.FINETUNE_EPOCHS": -1},
    "FED.UNRELIABLE.SLOWDOWN": {"FED.UNRELIABLE.STRAGGLERS": 0.5},
    "FED.UNRELIABLE.SLOW_BY": {"FED.UNRELIABLE.STRAGGLERS": 0.5},
    "FED.UNRELIABLE.CLOCK": {"FED.UNRELIABLE.DEADLINE": 1.0},
    "FED.UNRELIABLE.LATE": {"FED.UNRELIABLE.DEADLINE": 1.0},
    "FED.HOSTILE_BY": {"FED.HOSTILE": 0.2}, "FED.ATTACK": {"FED.HOSTILE": 0.2},
    "FED.ATTACK_SCALE": {"FED.HOSTILE": 0.2, "FED.ATTACK": "scale"},
    "FED.ATTACK_TARGET": {"FED.HOSTILE": 0.2, "FED.ATTACK": "backdoor"},
    "FED.FAIR_Q": {"FED.WEIGHTING": "q_ffl"}, "FED.FAIR_LR": {"FED.WEIGHTING": "agnostic"},
    "FED.TRIM": {"FED.AGGREGATOR": "trimmed_mean"}, "FED.BYZANTINE": {"FED.AGGREGATOR": "krum"},
    "FED.CLIP_NORM": {"FED.AGGREGATOR": "clipped_mean"},
    "FED.SAA_TEMP": {"FED.AGGREGATOR": "similarity"},
    "FED.SERVER_LR": {"FED.SERVER_OPTIM": "momentum"},
    "FED.SERVER_MOMENTUM": {"FED.SERVER_OPTIM": "momentum"},
    "FED.SERVER_BETA1": {"FED.SERVER_OPTIM": "adam"},
    "FED.SERVER_BETA2": {"FED.SERVER_OPTIM": "yogi"},
    "FED.SERVER_TAU": {"FED.SERVER_OPTIM": "yogi"},
    "PEFT.N_CTX": {"PEFT.TEXT": "prompt"}, "PEFT.WIDTH": {"PEFT.VISUAL": "adapter"},
    "PEFT.RANK": {"PEFT.TEXT": "lora"}, "PEFT.ALPHA": {"PEFT.VISUAL": "lora"},
    "PEFT.TARGETS": {"PEFT.VISUAL": "lora"}, "PEFT.LORA_AVG": {"PEFT.TEXT": "lora"},
    "PEFT.RANKS": {"PEFT.TEXT": "lora"}, "PEFT.PRIVATE_RANK": {"PEFT.VISUAL": "lora"},
    "PEFT.LORA_RIDGE": {"PEFT.TEXT": "lora", "PEFT.LORA_AVG": "fair"},
    "PEFT.BLOCKS": {"PEFT.VISUAL": "adapter"},
    "OPTIM.MOMENTUM": {"OPTIM.NAME": "sgd"}, "OPTIM.SGD_DAMPNING": {"OPTIM.NAME": "sgd"},
    "OPTIM.SGD_NESTEROV": {"OPTIM.NAME": "sgd"},
    "OPTIM.ADAM_BETA1": {"OPTIM.NAME": "adam"}, "OPTIM.ADAM_BETA2": {"OPTIM.NAME": "adamw"},
    "OPTIM.ADAM_EPS": {"OPTIM.NAME": "adam"},
    "OPTIM.CLOCK": {"OPTIM.WARMUP_EPOCH": 1},
    "OPTIM.STEPSIZE": {"OPTIM.LR_SCHEDULER": "single_step"},
    "OPTIM.GAMMA": {"OPTIM.LR_SCHEDULER": "multi_step"},
    "OPTIM.WARMUP_TYPE": {"OPTIM.WARMUP_EPOCH": 1},
    "OPTIM.WARMUP_CONS_LR": {"OPTIM.WARMUP_EPOCH": 1, "OPTIM.WARMUP_TYPE": "constant"},
    "OPTIM.WARMUP_MIN_LR": {"OPTIM.WARMUP_EPOCH": 1, "OPTIM.WARMUP_TYPE": "linear"},
}
PASSES = {
    "FED.REPEAT_RATE": {"FED.PARTITION": "iid"}, "FED.LEGACY": {"FED.PARTITION": "iid"},
    "FED.CHUNK": {"FED.PLAIN": True},
    "FED.FINETUNE_TRAIN": {"FED.FINETUNE_EPOCHS": 0}, "FED.FINETUNE_LR": {"FED.FINETUNE_EPOCHS": 0},
    "PEFT.N_CTX": {"PEFT.TEXT": "lora"},
    "OPTIM.MOMENTUM": {"OPTIM.NAME": "adam"}, "OPTIM.SGD_DAMPNING": {"OPTIM.NAME": "adamw"},
    "OPTIM.SGD_NESTEROV": {"OPTIM.NAME": "adam"},
    "OPTIM.WARMUP_MIN_LR": {"OPTIM.WARMUP_EPOCH": 1, "OPTIM.WARMUP_TYPE": "constant"},
    "OPTIM.WARMUP_CONS_LR": {"OPTIM.WARMUP_EPOCH": 1, "OPTIM.WARMUP_TYPE": "linear"},
}
ALWAYS = sorted(k for k, option in SCHEMA.items() if option.used and k not in READS)
UNUSED = sorted(k for k, o in SCHEMA.items() if not o.used and not k.startswith("TRAINER."))


def config(**keys: Any) -> dict[str, Any]:
    cfg, _ = build_config(None, None, {}, [], SCHEMA)
    return flat(cfg) | keys


def another(key: str) -> Any:
    """A value of the key that is neither its default nor neutral, and that it may hold."""
    option = SCHEMA[key]
    old = option.default
    if option.choices:
        return next(c for c in option.choices if c not in (old, option.neutral))
    if isinstance(old, bool):
        return not old
    if isinstance(old, (tuple, list)):
        numbers = [2 * v if isinstance(v, (int, float)) else v for v in old]
        return type(old)(numbers) or ("a",)
    words = ("0-1,2", "cuda:3", "x", "jpeg:3")
    values = words if isinstance(old, str) else (old + 1, old / 2, 0.25)
    for value in values:
        try:
            parsed = option.parse(value)
        except ValueError:
            continue
        if parsed not in (old, option.neutral):
            return parsed
    raise AssertionError(f"no other value for {key}")


def moves(key: str, keys: dict[str, Any]) -> bool:
    """Whether the key's value is part of what a run of this config reads."""
    base = config(**keys)
    return read_keys(base, SCHEMA) != read_keys(base | {key: another(key)}, SCHEMA)


def test_every_key_of_a_section_is_tried() -> None:
    keys = [key for section in SECTIONS for key in section.keys]
    assert sorted(keys) == sorted(READS) and all(SCHEMA[k].used for k in keys)


@pytest.mark.parametrize("key", ALWAYS)
def test_a_key_of_no_section_is_read(key: str) -> None:
    assert moves(key, {})


@pytest.mark.parametrize("key", sorted(READS))
def test_a_key_moves_the_identity_where_it_is_read_and_nowhere_else(key: str) -> None:
    assert moves(key, READS[key])
    assert not moves(key, PASSES.get(key, {}))
    assert key not in read_keys(config(**PASSES.get(key, {})), SCHEMA)


@pytest.mark.parametrize("key", UNUSED)
def test_a_key_that_nothing_reads_is_in_no_identity(key: str) -> None:
    assert not moves(key, {})


def test_partition_keys_are_those_that_the_kinds_use() -> None:
    ours = {"FED.BETA": "beta", "FED.BETA_FINE": "beta_fine", "FED.MIN_SIZE": "min_size",
            "FED.CLASSES_PER_CLIENT": "classes_per_client", "FED.REPEAT_RATE": "repeat_rate",
            "FED.LEGACY": "legacy"}  # fmt: skip
    for kind, uses in _USES.items():
        read = read_keys(config(**{"FED.PARTITION": kind}), SCHEMA)
        assert {word for key, word in ours.items() if key in read} == set(uses), kind


def test_a_key_that_came_later_counts_where_it_is_set_to_something_else() -> None:
    schema: Schema = SCHEMA | {
        "FED.LATER": Option(3, "x", neutral=0), "FED.RARE": Option(1, "x"),
    }
    rare = Section(("FED.RARE",), lambda get: get("FED.LATER") > 3)
    old = config()

    def read(**more: Any) -> dict[str, Any]:
        return read_keys(old | more, schema, [*SECTIONS, rare])

    assert read() == read(**{"FED.LATER": 0}) == read(**{"FED.LATER": 0, "FED.RARE": 7})
    assert read() != read(**{"FED.LATER": 3})
    assert read(**{"FED.LATER": 4}) != read(**{"FED.LATER": 4, "FED.RARE": 7})
    often = Section(("FED.RARE",), lambda get: get("FED.LATER") == 3)  # its default
    assert "FED.RARE" not in read_keys(old | {"FED.RARE": 7}, schema, [*SECTIONS, often])


def test_older_configs_have_other_keys_and_lists() -> None:
    assert read_keys({"GONE.KEY": 1, "OPTIM.MOMENTUM": 0.5}, SCHEMA) == {
        "GONE.KEY": 1, "OPTIM.MOMENTUM": 0.5,  # OPTIM.NAME is the default's, sgd
    }
    assert read_keys({"OPTIM.MOMENTUM": 0.5, "OPTIM.NAME": "adam"}, SCHEMA) == {
        "OPTIM.NAME": "adam"
    }
    schema = SCHEMA | {"FED.PAIR": Option((0, 0), "x", neutral=(0, 0))}
    assert read_keys({"FED.PAIR": [0, 0]}, schema) == {}


def test_a_method_may_have_a_node_of_dassls_name() -> None:
    schema = declare(SCHEMA, "TRAINER.COOP", {"N_CTX": Option(4, "x")})
    assert read_keys({"TRAINER.COOP.N_CTX": 8}, schema) == {"TRAINER.COOP.N_CTX": 8}
    assert read_keys({"TRAINER.COOP.N_CTX": 8}, SCHEMA) == {"TRAINER.COOP.N_CTX": 8}


def test_a_role_with_a_rule_of_its_own_reads_that_rules_keys() -> None:
    assert moves("OPTIM.MOMENTUM", {"OPTIM.NAME": "adam", "OPTIM.HEAD.NAME": "sgd"})
    assert moves("OPTIM.ADAM_BETA1", {"OPTIM.LORA.NAME": "adamw"})
