"""Spellings of the federated CoOp family, each mapped to a key of ours or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from yacs.config import CfgNode

from fedvlm.config.dassl import family_options
from fedvlm.config.engines import ENDED
from fedvlm.config.option import Option, Schema, Value, short_repr
from fedvlm.config.read import Assignment

GPA = ("TRAINER.PROMPTSRC.GPA_MEAN", "TRAINER.PROMPTSRC.GPA_STD")


@dataclass(frozen=True)
class Alias:
    """A foreign key: its own type and the one of our keys that it sets.

    Attributes:
        option: what the foreign key may hold.
        target: our key.
        convert: foreign value to ours; ``None`` means that the value sets nothing.
    """

    option: Option
    target: str
    convert: Callable[[Value], Value] = lambda value: value


def family_aliases() -> dict[str, Alias]:
    """Return the federated CoOp family's keys and Dassl's twins of ours."""
    number, share = Option(1, "count"), Option(0.3, "share")
    text, flag = Option("", "name"), Option(False, "switch")
    models = {"last_step": "last", "best_val": "val"}
    final_model = Option("last_step", "model tested at the end", choices=tuple(models))
    return _coop_aliases() | {
        "DATASET.USERS": Alias(number, "FED.CLIENTS"),
        "DATASET.PARTITION": Alias(text, "FED.PARTITION"),
        "DATASET.BETA": Alias(share, "FED.BETA"),
        "DATASET.REPEATRATE": Alias(share, "FED.REPEAT_RATE"),
        "DATASET.IID": Alias(flag, "FED.PARTITION", lambda iid: "iid" if iid else None),
        "DATASET.USEALL": Alias(flag, "DATASET.NUM_SHOTS", lambda every: -1 if every else None),
        "OPTIM.ROUND": Alias(number, "FED.ROUNDS"),
        "OPTIM.MAX_EPOCH": Alias(number, "FED.LOCAL_EPOCHS"),
        "USE_CUDA": Alias(flag, "DEVICE", lambda cuda: None if cuda else "cpu"),
        "TEST.FINAL_MODEL": Alias(final_model, "TEST.SELECT", models.__getitem__),
    }


def _coop_aliases() -> dict[str, Alias]:
    """Return CoOp's own options as ours; what has none may only be as it is."""
    node = "TRAINER.COOP."
    return {
        node + "N_CTX": Alias(Option(16, "context tokens", low=1), "PEFT.N_CTX"),
        node + "CSC": Alias(Option(False, "switch"), "PEFT.CSC"),
        node + "CTX_INIT": Alias(Option("", "words"), "PEFT.CTX_INIT"),
        node + "CLASS_TOKEN_POSITION": Alias(Option("end", "position"), "PEFT.N_CTX", _at_the_end),
        node + "PREC": Alias(Option("fp16", "precision"), "MODEL.PREC", _precision),
    }


def native_aliases() -> dict[str, Alias]:
    """Return keys of authors' YAML files for methods that fedvlm has under the same node.

    They count where the run's method has the target. ``PREC`` sets nothing: towers are in
    ``MODEL.PREC``, and trained tensors are fp32 under any of its values.
    """
    number = Option(1, "count", low=1)
    precision = Option("fp16", "precision", choices=("fp16", "fp32", "amp"))
    nodes = ("COCOOP", "MAPLE", "PROMPTSRC", "IVLP", "VPT")
    nothing = Alias(precision, "MODEL.PREC", lambda given: None)
    return {f"TRAINER.{node}.PREC": nothing for node in nodes} | {
        "TRAINER.VPT.PROMPT_DEPTH_VISION": Alias(number, "TRAINER.VPT.DEPTH"),
        "TRAINER.VPT.N_CTX_VISION": Alias(number, "TRAINER.VPT.TOKENS"),
        "TRAINER.VPT.CTX_INIT": Alias(  # their file never reads it
            Option("", "words"), "TRAINER.VPT.TOKENS", lambda given: None
        ),
        "TRAINER.COOP.W": Alias(Option(8.0, "weight"), "TRAINER.KGCOOP.W"),
        "TRAINER.MAPLE.PROMPT_DEPTH": Alias(number, "TRAINER.MAPLE.DEPTH"),
        "TRAINER.PROMPTSRC.PROMPT_DEPTH_TEXT": Alias(number, "TRAINER.PROMPTSRC.DEPTH"),
        "TRAINER.PROMPTSRC.PROMPT_DEPTH_VISION": Alias(number, "TRAINER.PROMPTSRC.DEPTH"),
        "TRAINER.PROMPTSRC.N_CTX_TEXT": Alias(number, "TRAINER.PROMPTSRC.N_CTX"),
        "TRAINER.PROMPTSRC.N_CTX_VISION": Alias(number, "TRAINER.PROMPTSRC.N_CTX"),
    }


def shares_of_epochs(entries: Sequence[Assignment], schema: Schema) -> list[Assignment]:
    """Return a file's entries with PromptSRC's ``GPA_MEAN`` and ``GPA_STD`` as shares.

    The authors' files give both in epochs, of which the same file says ``MAX_EPOCH``; ours are
    shares of the run. A mean of at most 1 is a share already; the authors' own file of the method
    has another schema and reads epochs.
    """
    if GPA[0] not in schema or schema[GPA[0]].high != 1:
        return list(entries)
    values = {e.key: e.value for e in entries}
    epochs, mean = values.get("OPTIM.MAX_EPOCH"), values.get(GPA[0])
    numbers = (int, float)
    if not (isinstance(epochs, numbers) and isinstance(mean, numbers) and 1 < mean <= epochs):
        return list(entries)
    return [
        replace(e, value=e.value / epochs) if e.key in GPA and isinstance(e.value, numbers) else e
        for e in entries
    ]


def _at_the_end(given: Value) -> None:
    """Refuse another place of the class name than CoOp's usual one."""
    if given != "end":
        raise ValueError(f"{short_repr(given)}: the class name ends it; the authors' file has it: "
                         "--trainer ./coop.py:CoOp")


def _precision(given: Value) -> Value:
    """Return our precision for CoOp's."""
    if given not in ("fp32", "fp16", "amp"):
        raise ValueError(f"must be fp32, fp16 or amp, got {short_repr(given)}")
    if given != "fp32":
        raise ValueError(
            f"{given}: trained tensors stay fp32 here; MODEL.PREC bf16 has low-precision towers"
        )
    return given


def notes_on_epochs(cfg: CfgNode, origins: Mapping[str, str]) -> list[str]:
    """Return a note where CoOp's length of a whole training became that of each round.

    What its file says of the schedule counts too, and such a file is written for one long training.
    """
    source, _, key = origins["FED.LOCAL_EPOCHS"].partition(", as ")
    if key != "OPTIM.MAX_EPOCH":
        return []
    schedule = ("OPTIM.LR_SCHEDULER", "OPTIM.WARMUP_EPOCH", "OPTIM.WARMUP_TYPE")
    also = [k for k in schedule if source == origins.get(k)]
    return [
        f"{key} {cfg.FED.LOCAL_EPOCHS} is taken as {cfg.FED.LOCAL_EPOCHS} local epochs in each "
        "round; --local-epochs N sets it"
        + (f" ({source} also sets {', '.join(also)}, in place of the defaults)" if also else "")
    ]


def refused_keys() -> dict[str, str]:
    """Return foreign keys that may only be as they are, and what to say when they are not."""
    whose = {"COCOOP": "CoCoOp", "MAPLE": "MaPLe", "PROMPTSRC": "PromptSRC", "IVLP": "IVLP"}
    family = dict[str, str]()
    for key in family_options():
        name = whose.get(key.split(".")[1], "")
        if name:
            ours = "" if name == "IVLP" else f"; the keys of fedvlm's {name}: fedvlm list {name}"
            family[key] = (
                f"is a key of the authors' {name}; to use it: --trainer ./{name.lower()}.py"
                f"{ours}"
            )
    return family | ENDED | {
        "DATASET.IMBALANCE_TRAIN": "is not supported; FED.PARTITION dirichlet gives unequal shares",
        "DATASET.SPLIT_CLIENT": "is not supported; FED.PARTITION domain gives clients per domain",
    }
