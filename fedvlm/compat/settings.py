"""Config: which keys a foreign file reads, and the run's config in Dassl's words."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.compat.repository.defaults import MISSING
from fedvlm.compat.repository.find import syntax_tree
from fedvlm.config.aliases import family_aliases
from fedvlm.config.build import flat, nest_keys
from fedvlm.config.dassl import dassl_options, family_options
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Option, Schema, Value, literal, nodes
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.models.vlmodel import VLModel

PREC = "fp32"
UNSET = "(not set)"
CFG = "cfg"
IDLE = "of the repository; the trainer's file does not read it"
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


def keys_read(texts: Iterable[str], leaves: Container[str] = ()) -> list[str]:
    """Return the config keys (``TRAINER.COOP.N_CTX``) that Python texts read, sorted.

    A key may have any case behind ``cfg`` and ``self.cfg``; behind another object's ``cfg``, which
    may be no config, it is in capitals.

    Args:
        leaves: keys that hold values: what follows them is the value's own.
    """
    keys = set()
    for tree in map(ast.parse, texts):
        called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        said = {id(n) for r in ast.walk(tree) if isinstance(r, ast.Raise) for n in ast.walk(r)}
        for node in ast.walk(tree):
            if id(node) in said:  # a message is no use of a key
                continue
            names = list(_chain(node))[::-1]
            if CFG not in names[:2]:
                continue
            words = names[names.index(CFG) + 1 : -1 if id(node) in called else None]
            if names[0] not in (CFG, "self"):
                words = [w for i, w in enumerate(words) if all(v.isupper() for v in words[: i + 1])]
            ends = [i for i in range(1, len(words)) if ".".join(words[:i]) in leaves]
            keys.add(".".join(words[: ends[0]] if ends else words))
    return sorted(k for k in keys if k and not any(o.startswith(f"{k}.") for o in keys))


def _chain(node: ast.AST) -> Iterator[str]:
    """Yield the names of ``a.b.c`` from the last one; nothing for anything else."""
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def schema_of(
    texts: Iterable[str], node: str, assigned: Mapping[str, Any] | None = None
) -> tuple[dict[str, Option], Schema]:
    """Return a file's options below ``TRAINER.<node>`` and its keys elsewhere.

    Defaults are those of the repository's own scripts, then Dassl's and CoOp's; a key that none of
    them knows has to be set. Keys that the repository assigns and the file does not read are taken
    and have no effect, so that its YAML files load.
    """
    usual, given = default_schema(), dict(assigned or {})
    foreign = {k: o.default for k, o in dassl_options().items() if k.startswith("TRAINER.")}
    usual_nodes: dict[str, Value] = foreign | family_options()
    known = usual_nodes | EXTRAS
    leaves = {*usual, *known, *given}
    inner, aliases = nodes(usual), family_aliases()
    every = [k for k in keys_read(texts, leaves)
             if k not in inner and (k not in aliases or k.startswith("TRAINER."))]
    whole = {k for k in every if any(o.startswith(f"{k}.") for o in leaves)}  # a node by itself
    read = {k for k in every if k not in whole}
    heads = whole | {k.rpartition(".")[0] for k in read}
    read |= {k for k in usual_nodes if k.rpartition(".")[0] in heads}
    near = {h for h in heads if h.startswith("TRAINER.")} | whole
    read |= {k for k, v in given.items() if k.rpartition(".")[0] in near and v is not MISSING}
    idle = {k for k in given if k not in aliases or k.startswith("TRAINER.")} - read
    own_node = f"TRAINER.{node}."
    own: dict[str, Option] = {}
    other: Schema = {}
    for key in sorted({*read, *idle}):
        if (key in usual and key not in foreign) or key in inner:
            continue
        option = _option(key, known.get(key, MISSING), given.get(key, MISSING))
        if key in idle:
            option = replace(option, used=False, help=IDLE, neutral=option.default)
        (own if key.startswith(own_node) else other)[key.removeprefix(own_node)] = option
    return own, other


def _option(key: str, known: Any, given: Any) -> Option:
    """Return the option of a key: the repository's default, in its usual type if it has one."""
    help_, used = "read by the trainer's file", not key.endswith(".PREC")
    if not used:
        help_ = "accepted; the file computes in MODEL.PREC, its trained tensors never use fp16"
    default = known if given is MISSING else given
    if default is MISSING:
        return AnyValue(UNSET, help_, used=used)
    usual = known if type(known) is type(default) else MISSING
    return (AnyValue if usual is MISSING else Option)(default, help_, used=used)


def check_set(root: CfgNode, keys: Mapping[str, Option], files: Sequence[Path]) -> None:
    """Refuse keys that only a trainer's files know and nobody set (``ConfigError``)."""
    values = flat(root)
    bare = [k for k, option in keys.items() if option.used and values.get(k) == UNSET]
    if bare:
        known = {k for k, option in keys.items() if k not in bare}
        raise ConfigError(
            f"{_line_of(bare[0], files)} reads {', '.join(bare)}, which have no default in "
            f"fedvlm: set them, for example --opts {bare[0]} VALUE{did_you_mean(bare[0], known)}"
        )


def _line_of(key: str, files: Sequence[Path]) -> str:
    """Return the first place that reads a key: ``x.py:12``; the first file's name for none."""
    for file in files:
        for node in ast.walk(syntax_tree(file)):
            names = list(_chain(node))[::-1]
            if CFG in names[:2] and f"{'.'.join(names[names.index(CFG) + 1:])}.".startswith(
                    f"{key}."):
                return f"{file.name}:{getattr(node, 'lineno', 1)}"
    return files[0].name


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
    cfg.USE_CUDA, cfg.DEVICE = model.device.type == "cuda", str(model.device)
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
    return nest_keys(values)
