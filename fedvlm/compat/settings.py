"""Config: which keys a foreign file reads, and the run's config in Dassl's words."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.aliases import family_aliases
from fedvlm.config.build import flat
from fedvlm.config.dassl import dassl_options, family_options
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Option, Schema, Value, literal, nodes
from fedvlm.core.errors import ConfigError
from fedvlm.models.vlmodel import VLModel

PREC = "fp32"
UNSET = "(not set)"
# What the authors' own train.py adds to Dassl's tree, with its defaults.
EXTRAS = {
    "TRAINER.COOP.W": 8.0,  # KgCoOp
    "LOSS.NAME": "prograd", "LOSS.GM": False, "LOSS.ALPHA": 0.0, "LOSS.T": 1.0,  # ProGrad
    "LOSS.LAMBDA": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class AnyValue(Option):
    """A key that only the file knows: any value is taken as it is written."""

    def parse(self, raw: Value) -> Value:
        """Return ``raw``, a Python literal where it is one."""
        return literal(raw) if isinstance(raw, str) else raw


def neighbours(path: Path) -> list[Path]:
    """Return a file and those beside it that it imports (``from .other import x``), in order."""
    files, waiting = list[Path](), [path.resolve()]
    while waiting:
        file = waiting.pop(0)
        if file in files or not file.is_file():
            continue
        files.append(file)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                names = [node.module] if node.module else [a.name for a in node.names]
                waiting += [file.parent / f"{n.partition('.')[0]}.py" for n in names if n]
    return files


def keys_read(texts: Iterable[str]) -> list[str]:
    """Return the config keys (``TRAINER.COOP.N_CTX``) that Python texts read, sorted."""
    keys = set()
    for node in (n for text in texts for n in ast.walk(ast.parse(text))):
        names = list(_chain(node))[::-1]
        if "cfg" in names[:2]:
            words = names[names.index("cfg") + 1 :]
            upper = [w for i, w in enumerate(words) if all(v.isupper() for v in words[: i + 1])]
            keys.add(".".join(upper))
    return sorted(k for k in keys if k and not any(o.startswith(f"{k}.") for o in keys))


def _chain(node: ast.AST) -> Iterator[str]:
    """Yield the names of ``a.b.c`` from the last one; nothing for anything else."""
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def schema_of(texts: Iterable[str], node: str) -> tuple[dict[str, Option], Schema]:
    """Return a file's options below ``TRAINER.<node>`` and its keys elsewhere.

    Defaults are Dassl's, CoOp's or those of the authors' ``train.py``; a key that none of them
    knows has to be set.
    """
    usual = default_schema()
    foreign = {k: o.default for k, o in dassl_options().items() if k.startswith("TRAINER.")}
    usual_nodes: dict[str, Value] = foreign | family_options()
    known = usual_nodes | EXTRAS
    inner, aliases = nodes(usual), family_aliases()
    every = [k for k in keys_read(texts)
             if k not in inner and (k not in aliases or k.startswith("TRAINER."))]
    whole = {k for k in every if any(o.startswith(f"{k}.") for o in known)}  # a node by itself
    read = [k for k in every if k not in whole]
    own_node = f"TRAINER.{node}."
    own: dict[str, Option] = {}
    other: Schema = {}
    heads = whole | {k.rpartition(".")[0] for k in read}
    wanted = {*read, *(k for k in usual_nodes if k.rpartition(".")[0] in heads)}
    for key in sorted(wanted):
        if key in usual and key not in foreign:
            continue
        help_ = "read by the trainer's file"
        if key.endswith(".PREC"):
            help_ = "accepted; the file computes in MODEL.PREC, its trained tensors never use fp16"
        option = Option(known[key], help_) if key in known else AnyValue(UNSET, help_)
        (own if key.startswith(own_node) else other)[key.removeprefix(own_node)] = option
    return own, other


def check_set(root: CfgNode, keys: Iterable[str], file: Path) -> None:
    """Refuse keys that only the file knows and nobody set (``ConfigError``)."""
    values = flat(root)
    bare = [k for k in keys if values.get(k) == UNSET]
    if bare:
        raise ConfigError(
            f"{file.name} reads {', '.join(bare)}, which have no default in fedvlm: set them, "
            f"for example --opts {bare[0]} VALUE"
        )


def dassl_cfg(root: CfgNode, model: VLModel) -> CfgNode:
    """Return the run's config as a file of the CoOp family reads it.

    ``MAX_EPOCH`` is the local epochs, ``INPUT.SIZE`` the backbone's; ``MODEL.INIT_WEIGHTS`` is
    empty, since ours names the backbone's weights and theirs a trained prompt's.
    """
    cfg = root.clone()
    cfg.defrost()
    side = model.backbone.image_size
    cfg.INPUT.SIZE = (side, side)
    cfg.OPTIM.MAX_EPOCH = int(root.FED.LOCAL_EPOCHS)
    cfg.USE_CUDA = model.device.type == "cuda"
    cfg.MODEL.INIT_WEIGHTS = ""
    cfg.TEST.FINAL_MODEL = "last_step"
    for node in cfg.TRAINER.values():
        if isinstance(node, CfgNode) and "PREC" in node:
            node.PREC = PREC
    cfg.freeze()
    return cfg


def default_cfg() -> CfgNode:
    """Return Dassl's tree with its defaults, not frozen, for scripts outside of a run."""
    aliases: dict[str, Any] = {k: a.option.default for k, a in family_aliases().items()}
    values = {k: o.default for k, o in default_schema().items()} | aliases | family_options()
    root = CfgNode()
    for key in sorted(values):
        *path, name = key.split(".")
        node = root
        for part in path:
            node = node.setdefault(part, CfgNode())
        node[name] = values[key]
    return root
