"""What a run says of itself before it begins: where it lies, and its header."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.config.engines import of_parties
from fedvlm.config.families import PEFT_KEYS, peft_words, trained_words
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.files import user_path
from fedvlm.core.trees import numel
from fedvlm.data.federated import FederatedData
from fedvlm.data.partition.index_file import read_index_file
from fedvlm.federation.cards import card, trainer_files
from fedvlm.federation.discovery import framework_of, load_trainer
from fedvlm.federation.peft_trainer import takes_peft
from fedvlm.federation.server import Roster
from fedvlm.job.build import Built
from fedvlm.runs.identity import RunPath
from fedvlm.runs.manifest import device_of

DRAFT = "draft"  # at the end of a draft's tag
_HASH = 8  # digits of an index file's hash
_LISTED = 20  # clients whose number of images is listed
LORA_RULES = ("PEFT.LORA_AVG", "PEFT.RANKS", "PEFT.PRIVATE_RANK")


def partition_name(cfg: CfgNode) -> str:
    """Return the partition as the path has it: ``dirichlet-0.3-K20-f0.25``.

    What the kind uses and is not at its default is appended (``-fine1``, ``-min10``,
    ``-repeat0.2``, ``-legacy``), then ``-without-<domain>`` for a held-out domain and ``-server2``
    for two images per class that no client gets. An index file stands by the first digits of its
    hash: ``index-1a2b3c4d-K20-f0.25``; clients with data of their own as ``sites-K2-f1``.

    Raises:
        DataError: an index file that cannot be read.
    """
    fed = cfg.FED
    held_out = "_".join(fed.HELD_OUT_DOMAIN.split())
    out = f"-without-{held_out}" if held_out else ""
    out += f"-{cfg.DATASET.CORRUPTION.replace(':', '')}" if cfg.DATASET.CORRUPTION else ""
    out += f"-server{cfg.DATASET.SERVER_HOLDOUT}" if cfg.DATASET.SERVER_HOLDOUT else ""
    tail = f"{out}-K{fed.CLIENTS}-f{fed.FRAC:g}"
    if fed.INDEX_FILE:
        return f"index-{read_index_file(fed.INDEX_FILE)['sha256'][:_HASH]}{tail}"
    if of_parties(cfg):
        return f"sites{tail}"
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


def header(built: Built) -> dict[str, object]:
    """Return what a run says about itself first."""
    cfg, groups = built.cfg, built.federation.groups
    shared, personal = (len(groups.names(group)) for group in ("shared", "personal"))
    count = numel(built.federation.p0)
    frozen = sum(p.numel() for p in built.backbone.model.parameters())
    roster = built.federation.roster
    unseen = f", {len(roster.unseen)} of them never train" if roster.unseen else ""
    device = str(built.model.device)
    if built.model.device.type == "cuda":
        device += f" ({device_of(built.identity)['name']})"
    return {
        "method": cfg.TRAINER.NAME,
        "dataset": f"{cfg.DATASET.NAME}, {len(built.data.classnames)} "
                   f"{_kind(built.data)} "
                   f"({cfg.DATASET.SUBSAMPLE_CLASSES}), {_shots(cfg.DATASET.NUM_SHOTS)}",
        "clients": f"{len(roster)}, {partition_name(cfg)}{unseen}",
        "images": images_line(built.data, roster),
        "backbone": f"{cfg.MODEL.BACKBONE.NAME} on {device}, {cfg.MODEL.PREC}",
        "trainable": f"{count:,} of {frozen + count:,} ({100 * count / (frozen + count):.2f} %), "
                     f"{shared} tensor{'s' * (shared != 1)} shared, {personal} personal",
        "seeds": f"model {cfg.SEED}, data {cfg.DATA_SEED}",
    }


def _shots(number: int) -> str:
    return f"shots {number}" if number >= 0 else "all training images"


def _kind(data: FederatedData) -> str:
    if data.captioned:
        return "topics of captions"
    return "classes" if data.label_sets is None else "labels"


def images_line(data: FederatedData, roster: Roster) -> str:
    """Return how many training images each client gets, and how many of the set's that is."""
    sizes = roster.train.tolist()
    used = len({int(i) for client in data.clients for i in client.train})
    each = ", ".join(map(str, sizes))
    if len(sizes) > _LISTED:
        each = f"{min(sizes)} to {max(sizes)}, median {statistics.median(sizes):g}"
    if not used:
        return f"{sum(sizes):,} training images, kept at their sites; per client: {each}"
    bare = sum(len(client.unlabelled) for client in data.clients)
    more = f" and {bare:,} without a label" if bare else ""
    return f"{used:,} of {data.available:,} training images{more}; per client: {each}"


def setting_name(cfg: CfgNode) -> str:
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
        ConfigError: a choice for a method that defines its own trainable tensors, one without what
            the method is about, or a rule of LoRA where none is trained.
    """
    _refuse_idle_lora(cfg, origins)
    method, words = load_trainer(cfg.TRAINER.NAME), peft_words(
        cfg.PEFT.TEXT, cfg.PEFT.VISUAL, cfg.PEFT.HEAD
    )
    fixed = method.must_train if takes_peft(method) else ""
    if fixed and fixed not in words.split("+"):
        raise ConfigError(
            f"--peft {words}: {cfg.TRAINER.NAME} trains a {fixed}, which --peft {words} does not"
            f" include; use --trainer FedAvg --peft {words}, or keep the {fixed} "
            f"(--peft {fixed}, {fixed}+feature, {fixed}+lora)"
        )
    if all(origins[key] == "default" or origins[key].endswith(".yaml") for key in PEFT_KEYS):
        return ""
    if not takes_peft(method):
        raise ConfigError(
            f"--peft and PEFT.* do not change {cfg.TRAINER.NAME}, which defines its own "
            "trainable tensors; drop them"
        )
    return f"-{words}"


def _refuse_idle_lora(cfg: CfgNode, origins: Mapping[str, str]) -> None:
    """Refuse a rule of LoRA that the user set and nothing would read (``ConfigError``)."""
    method, name = load_trainer(cfg.TRAINER.NAME), cfg.TRAINER.NAME
    takes = takes_peft(method)
    if takes and "lora" in (cfg.PEFT.TEXT, cfg.PEFT.VISUAL):
        return
    schema = default_schema()
    for key in LORA_RULES:
        value, origin = flat(cfg)[key], origins[key]
        asked = origin != "default" and not origin.endswith(".yaml")
        if asked and value != schema[key].default:
            said = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
            why = f"trains no LoRA here, only {trained_words(flat(cfg))}" if takes else (
                "defines its own trainable tensors")
            ways = "add lora to --peft (--peft prompt+lora)" if takes else (
                "use --trainer FedAvg --peft lora")
            raise ConfigError(f"{key} {said}: {name} {why}, so it would have no effect: {ways}, "
                              "or drop it")


def run_path(cfg: CfgNode, data: str, method: str) -> RunPath:
    """Return where a run lies below ``OUTPUT_DIR`` (docs/files.md).

    Args:
        data: the data set's own name.
        method: the trainer's name, with the user's trainable set (``peft_choice``) after it. A file
            of another framework with the name of a method of fedvlm gets ``.py`` behind it.
    """
    if framework_of(user_path(cfg.TRAINER.NAME.partition(":")[0])) and fold(method) in {
        fold(card(path).partition(":")[0]) for path in trainer_files().values()
    }:
        method = f"{method}.py"
    shots = cfg.DATASET.NUM_SHOTS
    tag = "-".join(filter(None, [cfg.TAG, DRAFT if cfg.DRAFT else ""]))
    return RunPath(
        setting_name(cfg), data, "all" if shots < 0 else int(shots), method,
        cfg.MODEL.BACKBONE.NAME, partition_name(cfg), int(cfg.SEED), int(cfg.DATA_SEED), tag,
    )
