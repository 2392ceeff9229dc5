"""When a run reads a key: the keys of a run's identity are those it reads, and no others.

A ``Section`` says of some keys in which configs they are read; a key in none is read always. A
config of an older folder goes through the same sections, so that a key which no longer counts, or
which came later and changes nothing there (``Option.neutral``), does not make it another run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from fedvlm.config.keys import ROLES
from fedvlm.config.option import Schema, Value, present_key

Lookup = Callable[[str], Value]  # key -> its value in a config, the default where it is left out


@dataclass(frozen=True)
class Section:
    """Keys that are read in some runs only.

    Attributes:
        keys: dotted keys.
        read: whether a config reads them.
    """

    keys: tuple[str, ...]
    read: Callable[[Lookup], bool]


def _if(key: str, *values: Value) -> Callable[[Lookup], bool]:
    return lambda get: get(key) in values


def _unless(key: str, *values: Value) -> Callable[[Lookup], bool]:
    return lambda get: get(key) not in values


def _peft(*kinds: str) -> Callable[[Lookup], bool]:
    return lambda get: get("PEFT.TEXT") in kinds or get("PEFT.VISUAL") in kinds


def _optimiser(*kinds: str) -> Callable[[Lookup], bool]:
    """Say whether any tensor's optimiser is one of ``kinds``."""
    keys = ("OPTIM.NAME", *(f"OPTIM.{role}.NAME" for role in ROLES))
    return lambda get: any(get(key) in kinds for key in keys)


def watches_loss(get: Lookup) -> bool:
    """Say whether the end of a run may look at validation losses (``FED.PATIENCE_LOSS``).

    Runs with privacy of images tell no number more than they did. With sets of labels and captions
    the end looks at a ranking.
    """
    return bool(get("FED.PATIENCE")) and not (
        get("FED.DP.CLIP") or get("DATASET.LABELS") or get("DATASET.CAPTIONS"))


SKEWED = ("dirichlet", "superclass_dirichlet", "quantity", "domain_dirichlet")
NATURAL = "natural"
SECTIONS = (
    Section(("DATASET.TEST_NEW",), _if("DATASET.SUBSAMPLE_CLASSES", "base")),
    Section(("INPUT.RRCROP_SCALE",), _unless("INPUT.VIEWS", 1)),
    Section(("FED.BETA", "FED.MIN_SIZE"), _if("FED.PARTITION", *SKEWED)),
    Section(("FED.BETA_FINE",), _if("FED.PARTITION", "superclass_dirichlet")),
    Section(("FED.CLASSES_PER_CLIENT",), _if("FED.PARTITION", "n_classes")),
    Section(("FED.REPEAT_RATE", "FED.LEGACY"), _if("FED.PARTITION", "disjoint")),
    Section(("FED.FIRST_ROUND_ALL",), lambda get: get("FED.FRAC") < 1),
    Section(
        ("FED.UNRELIABLE.SLOWDOWN", "FED.UNRELIABLE.SLOW_BY"),
        _unless("FED.UNRELIABLE.STRAGGLERS", 0),
    ),
    Section(
        ("FED.UNRELIABLE.CLOCK", "FED.UNRELIABLE.LATE"), _unless("FED.UNRELIABLE.DEADLINE", 0)
    ),
    Section(("FED.HOSTILE_BY", "FED.ATTACK"), _unless("FED.HOSTILE", 0)),
    Section(
        ("FED.ATTACK_SCALE",),
        lambda get: get("FED.HOSTILE") > 0
        and get("FED.ATTACK") in ("sign", "scale", "constant", "alie"),
    ),
    Section(
        ("FED.ATTACK_TARGET",),
        lambda get: get("FED.HOSTILE") > 0 and get("FED.ATTACK") == "backdoor",
    ),
    Section(
        ("FED.DP.TIGHT",),
        lambda get: get("FED.DP.EPSILON") > 0
        and (get("FED.DP.UNIT") == "client" or get("FED.DP.SAMPLING") == "poisson"),
    ),
    Section(("FED.PATIENCE_LOSS",), watches_loss),
    Section(("FED.CHUNK",), _if("FED.PLAIN", False)),
    Section(("FED.FINETUNE_TRAIN", "FED.FINETUNE_LR"), _unless("FED.FINETUNE_EPOCHS", 0)),
    Section(("FED.FAIR_Q",), _if("FED.WEIGHTING", "q_ffl")),
    Section(("FED.FAIR_LR",), _if("FED.WEIGHTING", "agnostic")),
    Section(("FED.TRIM",), _if("FED.AGGREGATOR", "trimmed_mean")),
    Section(("FED.BYZANTINE",), _if("FED.AGGREGATOR", "krum", "multi_krum")),
    Section(("FED.CLIP_NORM",), _if("FED.AGGREGATOR", "clipped_mean")),
    Section(("FED.SAA_TEMP",), _if("FED.AGGREGATOR", "similarity")),
    Section(("FED.SERVER_LR",), _unless("FED.SERVER_OPTIM", "none")),
    Section(("FED.SERVER_MOMENTUM",), _if("FED.SERVER_OPTIM", "momentum")),
    Section(
        ("FED.SERVER_BETA1", "FED.SERVER_BETA2", "FED.SERVER_TAU"),
        _if("FED.SERVER_OPTIM", "adam", "yogi"),
    ),
    Section(("PEFT.N_CTX",), _if("PEFT.TEXT", "prompt")),
    Section(("PEFT.WIDTH",), _if("PEFT.VISUAL", "feature", "adapter")),
    Section((
        "PEFT.RANK", "PEFT.ALPHA", "PEFT.TARGETS", "PEFT.LORA_AVG", "PEFT.RANKS",
        "PEFT.PRIVATE_RANK",
    ), _peft("lora")),
    Section(
        ("PEFT.LORA_RIDGE",),
        lambda get: _peft("lora")(get) and get("PEFT.LORA_AVG") == "fair",
    ),
    Section(("PEFT.BLOCKS",), _peft("lora", "adapter")),
    Section(
        ("OPTIM.MOMENTUM", "OPTIM.SGD_DAMPNING", "OPTIM.SGD_NESTEROV"), _optimiser("sgd")
    ),
    Section(
        ("OPTIM.ADAM_BETA1", "OPTIM.ADAM_BETA2", "OPTIM.ADAM_EPS"), _optimiser("adam", "adamw")
    ),
    Section(
        ("OPTIM.CLOCK",),
        lambda get: get("OPTIM.LR_SCHEDULER") != "constant" or get("OPTIM.WARMUP_EPOCH") > 0,
    ),
    Section(("OPTIM.STEPSIZE",), _if("OPTIM.LR_SCHEDULER", "single_step", "multi_step")),
    Section(("OPTIM.GAMMA",), _if("OPTIM.LR_SCHEDULER", "single_step", "multi_step")),
    Section(("OPTIM.WARMUP_TYPE",), lambda get: get("OPTIM.WARMUP_EPOCH") > 0),
    Section(
        ("OPTIM.WARMUP_CONS_LR",),
        lambda get: get("OPTIM.WARMUP_EPOCH") > 0 and get("OPTIM.WARMUP_TYPE") == "constant",
    ),
    Section(
        ("OPTIM.WARMUP_MIN_LR",),
        lambda get: get("OPTIM.WARMUP_EPOCH") > 0 and get("OPTIM.WARMUP_TYPE") == "linear",
    ),
)


def read_keys(
    config: Mapping[str, Value], schema: Schema, sections: Collection[Section] = SECTIONS
) -> dict[str, Value]:
    """Return of a flat config what a run reads, without keys at the value that changes nothing.

    Args:
        config: dotted key -> value, tuples or lists; of an older folder some keys may be missing,
            and some be there that ``schema`` does not know: those are kept.
        schema: of all keys.
    """
    config = {present_key(key, value, schema): value for key, value in config.items()}

    def get(key: str) -> Value:
        option = schema[key]
        before = option.default if option.neutral is None else option.neutral
        return config.get(key, before)

    unread = {key for section in sections if not section.read(get) for key in section.keys}
    return {k: v for k, v in config.items() if k not in unread and not _idle(k, v, schema)}


def _idle(key: str, value: Value, schema: Schema) -> bool:
    """Tell whether nothing reads a key, or it came later and stands at its neutral value."""
    option = schema.get(key)
    if option is None:
        return False
    unread = not option.used and not key.startswith("TRAINER.")  # a method's node of Dassl's name
    return unread or (option.neutral is not None and _listed(value) == _listed(option.neutral))


def _listed(value: Value) -> Value:
    return list(value) if isinstance(value, tuple) else value
