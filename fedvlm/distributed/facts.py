"""What a server and its sites must have in common, and how a difference is told."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedvlm.core.trees import Tree
from fedvlm.core.version import __version__
from fedvlm.federation.rounds import Federation

VERSIONS = ("fedvlm", "torch", "device")  # facts that are told as they are; the others are digests
CLASSES = "class names"
_LISTED = 8


def facts(fed: Federation) -> dict[str, str]:
    """Return what decides a client's bits beside its data and the config, by name."""
    model, engine = fed.model, fed.engine
    spec = getattr(getattr(model, "backbone", None), "transform_spec", None)
    names = getattr(model, "classnames", ())
    return {
        "fedvlm": __version__, "torch": torch.__version__.partition("+")[0],
        "backbone": digest(model.verify_frozen()), "transform": digest(getattr(spec, "digest", "")),
        CLASSES: digest(list(names)),
        "templates": digest(list(getattr(model, "templates", ()))),
        "method": _source(type(fed.trainer)), "trained tensors": _bits(fed.p0),
        "groups": digest(fed.groups.of),
        "layout": digest(engine.chunk),  # sites, where one place has several, are the config's
    }


def likeness(config: Mapping[str, Any], shared: Mapping[str, str]) -> str:
    """Return one digest of config and facts: what every request carries along."""
    return digest([json.loads(json.dumps(dict(config))), dict(shared)])


def digest(value: object) -> str:
    """Return the hash of a JSON value."""
    words = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(words.encode()).hexdigest()


def odd_facts(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Return in which facts the other side differs; empty: in none."""
    odd = [k for k in ours if theirs.get(k) != ours[k]]
    return ", ".join(
        f"{k} ({theirs.get(k)} there, {ours[k]} here)" if k in VERSIONS else k for k in odd
    )


def odd_keys(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return in which config keys the other side differs, with numbers where it can be told.

    Texts are not quoted: one of them may be a path.
    """
    odd = sorted(k for k in theirs.keys() | ours.keys() if _of(theirs, k) != _of(ours, k))
    told = [f"{k} ({_said(theirs, k)} there, {_said(ours, k)} here)" for k in odd[:_LISTED]]
    return ", ".join(told) + (f" and {len(odd) - _LISTED} more" if len(odd) > _LISTED else "")


def _of(config: Mapping[str, Any], key: str) -> str:
    return json.dumps(config[key]) if key in config else ""


def _said(config: Mapping[str, Any], key: str) -> str:
    if key not in config:
        return "absent"
    value = config[key]
    plain = value is None or isinstance(value, (bool, int, float))
    return str(value) if plain else "another value"


def _source(kind: type) -> str:
    """Return the digest of the file in which a method is written."""
    try:
        path = inspect.getsourcefile(kind)
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        return digest(f"{kind.__module__}.{kind.__qualname__}")
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _bits(tree: Tree) -> str:
    """Return the digest of names, types, shapes and bytes of a tree."""
    out = hashlib.sha256()
    for name in sorted(tree):
        v = tree[name].detach().cpu().contiguous()
        out.update(f"{name} {v.dtype} {list(v.shape)}".encode())
        out.update(v.reshape(-1).view(torch.uint8).numpy().tobytes())
    return out.hexdigest()
