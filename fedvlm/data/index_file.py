"""The index file: who holds which images, by relative path, with the hash of it all.

A run writes one; a run given one (FED.INDEX_FILE) uses it instead of drawing a partition.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.partition import Partition, PartitionSpec
from fedvlm.data.split_file import read_json
from fedvlm.errors import ConfigError, DataError, fold

FORMAT = "fedvlm-index/1"
_HASH = "sha256"


def canonical_hash(content: Any) -> str:
    """Return the sha256 of a JSON value, independent of key order and spacing."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with its format and hash."""
    body = {"format": FORMAT, **content}
    return {**body, _HASH: canonical_hash(body)}


def read_index_file(path: str | Path) -> dict[str, Any]:
    """Return the content of an index file, its schema and hash checked.

    Raises:
        DataError: unreadable, another format, changed since it was written, or malformed.
    """
    path = Path(path).expanduser()
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path} is not an index file of format {FORMAT}")
    body = {key: value for key, value in content.items() if key != _HASH}
    if canonical_hash(body) != content.get(_HASH):
        raise DataError(f"{path}: its content does not match its sha256; it was changed or cut")
    named = isinstance(content.get("spec"), dict) and _names(content.get("classnames"))
    clients = content.get("clients")
    if not named or not isinstance(clients, list) or not clients:
        raise DataError(f"{path}: an index file has spec, classnames and a list of clients")
    for number, client in enumerate(clients):
        right = isinstance(client, dict) and all(_names(client.get(part)) for part in PARTS)
        if not right:
            raise DataError(f"{path}: client {number} must have lists of paths {', '.join(PARTS)}")
    return content


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def spec_from(content: Mapping[str, Any], asked: PartitionSpec, where: str) -> PartitionSpec:
    """Return the spec an index file was made with.

    Args:
        asked: what the config says; its classes, number of clients and held-out domain must be
            the file's.

    Raises:
        ConfigError: they are not.
        DataError: the file's spec is malformed.
    """
    try:
        spec = PartitionSpec(**content["spec"])
    except (TypeError, ConfigError) as error:
        raise DataError(f"{where}: its spec cannot be used: {error}") from error
    held = len(content["clients"])
    if asked.clients != held:
        raise ConfigError(
            f"FED.CLIENTS is {asked.clients}, but FED.INDEX_FILE {where} has {held} clients; "
            f"set FED.CLIENTS {held}"
        )
    if asked.half != spec.half:
        raise ConfigError(
            f"DATASET.SUBSAMPLE_CLASSES is {asked.half}, but FED.INDEX_FILE {where} was made with "
            f"{spec.half}; set it to {spec.half}"
        )
    if fold(asked.held_out) != fold(spec.held_out):
        raise ConfigError(
            f"FED.HELD_OUT_DOMAIN is '{asked.held_out}', but FED.INDEX_FILE {where} was made with "
            f"'{spec.held_out}'; set it to that"
        )
    return spec


def partition_from(
    content: Mapping[str, Any],
    parts: Mapping[str, Sequence[Datum]],
    classnames: Sequence[str],
    where: str,
) -> Partition:
    """Return the partition an index file describes, as positions into the set's lists.

    Args:
        parts: the set's images by part, of the run's classes.
        classnames: the run's class names, which must be the file's.

    Raises:
        DataError: made for another set, or an image it names is not in that part of the set.
    """
    if list(classnames) != content["classnames"]:
        raise DataError(
            f"{where} was made for other classes ({len(content['classnames'])}, first "
            f"'{content['classnames'][:1]}') than this set's {len(classnames)}"
        )
    shares: dict[str, list[list[int]]] = {part: [] for part in PARTS}
    for part in PARTS:
        position = {datum.key: i for i, datum in enumerate(parts[part])}
        for number, client in enumerate(content["clients"]):
            unknown = [key for key in client[part] if key not in position]
            if unknown:
                raise DataError(
                    f"{where}: {len(unknown)} {part} image(s) of client {number} are not in the "
                    f"{part} list of this set (first: {unknown[0]})"
                )
            if len(set(client[part])) != len(client[part]):
                raise DataError(f"{where}: client {number} names a {part} image twice")
            shares[part].append([position[key] for key in client[part]])
    return Partition.of(
        {part: [np.asarray(p, dtype=np.int64) for p in shares[part]] for part in PARTS}
    )
