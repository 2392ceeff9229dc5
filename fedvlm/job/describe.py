"""What a run says of itself: its path, its header, the protocol that a table must not mix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import numel
from fedvlm.data.partition.index_file import read_index_file
from fedvlm.data.targets import DATASET
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.job.build import Built, views_of
from fedvlm.job.flags import words_of
from fedvlm.runs.identity import RunPath

_HASH = 8  # digits of an index file's hash


def partition_name(cfg: CfgNode) -> str:
    """Return the partition as the path has it: ``dirichlet-0.3-K20-f0.25``.

    What the kind uses and is not at its default is appended (``-fine1``, ``-min10``,
    ``-repeat0.2``, ``-legacy``), then ``-without-<domain>`` for a held-out domain. An index file
    stands by the first digits of its hash: ``index-1a2b3c4d-K20-f0.25``.

    Raises:
        DataError: an index file that cannot be read.
    """
    fed = cfg.FED
    held_out = "_".join(fed.HELD_OUT_DOMAIN.split())
    out = f"-without-{held_out}" if held_out else ""
    tail = f"{out}-K{fed.CLIENTS}-f{fed.FRAC:g}"
    if fed.INDEX_FILE:
        return f"index-{read_index_file(fed.INDEX_FILE)['sha256'][:_HASH]}{tail}"
    kind, marks = fed.PARTITION, ""
    if "dirichlet" in kind or kind == "quantity":
        marks = f"-{fed.BETA:g}"
        if kind == "superclass_dirichlet" and _changed(cfg, "BETA_FINE"):
            marks += f"-fine{fed.BETA_FINE:g}"
        if _changed(cfg, "MIN_SIZE"):
            marks += f"-min{fed.MIN_SIZE}"
    elif kind == "n_classes":
        marks = f"-{fed.CLASSES_PER_CLIENT}"
    elif kind == "disjoint" and fed.REPEAT_RATE:
        marks = f"-repeat{fed.REPEAT_RATE:g}"
    legacy = "-legacy" if fed.LEGACY else ""
    return f"{kind}{marks}{legacy}{tail}"


def _changed(cfg: CfgNode, key: str) -> bool:
    return bool(cfg.FED[key] != default_schema()[f"FED.{key}"].default)


def ending(cfg: CfgNode, built: Built) -> list[str]:
    """Return what is to be said of a run that ``FED.BUDGET`` ended (nothing otherwise)."""
    budget, last = built.federation.budget, built.federation.last_round
    if not budget.plain:
        return []
    spent, most = sum(budget.spent.values()), sum(budget.plain)
    return [
        f"FED.BUDGET {budget.unit}: ended after round {last} of at most {cfg.FED.ROUNDS}, "
        f"{spent:,} {budget.unit} of all clients spent, FedAvg's are {most:,}"
    ]


def header(cfg: CfgNode, built: Built) -> dict[str, object]:
    """Return what a run says about itself first."""
    shared, own = (len(built.federation.groups.names(g)) for g in ("shared", "personal"))
    count = numel(built.federation.p0)
    frozen = sum(p.numel() for p in built.backbone.model.parameters())
    return {
        "method": cfg.TRAINER.NAME,
        "dataset": f"{cfg.DATASET.NAME}, {len(built.data.classnames)} classes "
                   f"({cfg.DATASET.SUBSAMPLE_CLASSES}), shots {cfg.DATASET.NUM_SHOTS}",
        "clients": f"{cfg.FED.CLIENTS}, {partition_name(cfg)}, "
                   f"{min(len(c.train) for c in built.data.clients)} to "
                   f"{max(len(c.train) for c in built.data.clients)} training images each",
        "backbone": f"{cfg.MODEL.BACKBONE.NAME} on {built.model.device.type}, {cfg.MODEL.PREC}",
        "trainable": f"{count:,} of {frozen + count:,} ({100 * count / (frozen + count):.2f} %), "
                     f"{shared} tensors shared, {own} personal",
        "seeds": f"model {cfg.SEED}, data {cfg.DATA_SEED}",
    }


def protocol(cfg: CfgNode, built: Built) -> dict[str, Any]:
    """Return what a table must not mix."""
    return {
        "setting": setting(cfg), "dataset": cfg.DATASET.NAME, "trainer": cfg.TRAINER.NAME,
        "tag": cfg.TAG, "shots": int(cfg.DATASET.NUM_SHOTS),
        "subsample": cfg.DATASET.SUBSAMPLE_CLASSES,
        "backbone": cfg.MODEL.BACKBONE.NAME, "weights": built.backbone.weights,
        "backbone_digest": built.backbone.digest, "data_digest": built.data.digest,
        "peft": words_of(cfg.PEFT.TEXT, cfg.PEFT.VISUAL, cfg.PEFT.HEAD)
        if isinstance(built.federation.trainer, PeftTrainer) else "",
        "partition": partition_name(cfg), "held_out": built.data.spec.held_out,
        "targets": ", ".join(o.name for o in built.data.others if o.kind == DATASET),
        "batch_size": int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE), "rounds": int(cfg.FED.ROUNDS),
        "local_epochs": int(cfg.FED.LOCAL_EPOCHS), "views": views_of(cfg), "seed": int(cfg.SEED),
        "data_seed": int(cfg.DATA_SEED), "selection": cfg.TEST.SELECT, "budget": cfg.FED.BUDGET,
        "extra_data": built.federation.trainer.extra_data,
    }


def setting(cfg: CfgNode) -> str:
    """Return the first part of a run's path: what the run is for.

    One run gives every number it can: a base run with targets lies under ``transfer`` and has
    ``new`` as well.
    """
    if cfg.FED.HELD_OUT_DOMAIN:
        return "leave_one_domain_out"
    if cfg.TEST.TARGETS:
        return "transfer"
    return "personal" if cfg.DATASET.SUBSAMPLE_CLASSES == "all" else "base2new"


def peft_choice(cfg: CfgNode, origins: Mapping[str, str]) -> str:
    """Return the trainable set in words, ``-prompt+lora``, where the user chose it; else nothing.

    Raises:
        ConfigError: a choice for a method that brings its own trainable tensors.
    """
    keys = ("PEFT.TEXT", "PEFT.VISUAL", "PEFT.HEAD")
    if all(origins[key] == "default" or origins[key].endswith(".yaml") for key in keys):
        return ""
    if not issubclass(load_trainer(cfg.TRAINER.NAME), PeftTrainer):
        raise ConfigError(
            f"--peft and PEFT.* do not change {cfg.TRAINER.NAME}, which brings its own trainable "
            "tensors; drop them"
        )
    return f"-{words_of(cfg.PEFT.TEXT, cfg.PEFT.VISUAL, cfg.PEFT.HEAD)}"


def run_path(cfg: CfgNode, built: Built, chosen: str = "") -> RunPath:
    """Return where a run lies below ``OUTPUT_DIR`` (DESIGN 7).

    Args:
        chosen: the user's trainable set, see ``peft_choice``.
    """
    return path_of(cfg, built.data.name, built.federation.trainer.name + chosen)


def path_of(cfg: CfgNode, data: str, method: str) -> RunPath:
    """Return ``run_path`` from names alone: of the data set, of the method with its choice."""
    shots = cfg.DATASET.NUM_SHOTS
    return RunPath(
        setting(cfg), data, "all" if shots < 0 else int(shots), method, cfg.MODEL.BACKBONE.NAME,
        partition_name(cfg), int(cfg.SEED), int(cfg.DATA_SEED), cfg.TAG,
    )
