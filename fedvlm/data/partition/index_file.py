"""The index file: who holds which images, by relative path, with the hash of it all.

A run writes one; a run given one (FED.INDEX_FILE) uses it instead of drawing a partition. It may
hold keyed hashes in the place of the paths; the key lies beside it, for the owner alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.locate import explain_refusals, listing, read_json_file
from fedvlm.data.partition.spec import Partition, PartitionSpec

INDEX_FORMAT = "fedvlm-index/1"
_HASH = "sha256"
NAMES, KEYED = "names", "hmac-sha256"  # in a file whose paths are keyed hashes
KEY = ".key"  # the ending of the file with the key
RUN_FILE = "partition.json"  # as a run writes it
UNLABELLED = "unlabelled"  # of a client: training images without a label, where it has any
FORGOTTEN = "forgotten"  # section of a file from which images were taken away (``api.forget``)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "str": str, "int": int, "bool": bool, "float": (int, float),
}


def canonical_hash(content: Any) -> str:
    """Return the sha256 of a JSON value, independent of key order and spacing."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(content: Mapping[str, Any], kind: str = INDEX_FORMAT) -> dict[str, Any]:
    """Return the content with its format and hash."""
    body = {"format": kind, **content}
    return {**body, _HASH: canonical_hash(body)}


def hide_names(content: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """Return an index file with keyed hashes in the place of its paths, sealed again."""
    body = {k: v for k, v in content.items() if k not in ("format", _HASH)}
    for name in body.keys() - {"dataset", "spec", "classnames", "clients"}:
        body[name] = _hidden(body[name], key)
    body["clients"] = [
        {**client, **{part: _hidden(client[part], key) for part in PARTS}}
        for client in content["clients"]
    ]
    return seal({**body, NAMES: KEYED})


def _hidden(value: Any, key: bytes) -> Any:
    """Return a plain value with every text in it hashed."""
    if isinstance(value, Mapping):
        return {name: _hidden(item, key) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item, key) for item in value]
    return hidden_name(value, key) if isinstance(value, str) else value


def hidden_name(name: str, key: bytes) -> str:
    """Return the keyed hash of a path: whoever lacks the key can test no guess."""
    return hmac.new(key, name.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def read_names_key(path: Path) -> bytes:
    """Return the key of an index file with hashed paths; empty where it is not beside it.

    Raises:
        DataError: it is no key.
    """
    place = path.with_suffix(KEY)
    try:
        return bytes.fromhex(place.read_text(encoding="ascii"))
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        raise DataError(f"{place} is not the key of {path.name} ({error})") from None


def read_sealed(path: Path, name: str, what: str, kind: str) -> dict[str, Any]:
    """Return the content of a file that ``seal`` made, its format and hash among it.

    Args:
        name: of the file, for messages.
        what: it should be (``an index file``).
        kind: its format.

    Raises:
        DataError: unreadable, another format, or changed since it was written.
    """
    content = read_json_file(path)
    if not isinstance(content, dict) or content.get("format") != kind:
        raise DataError(f"{name} is not {what} of format {kind}")
    body = {key: value for key, value in content.items() if key != _HASH}
    if canonical_hash(body) != content.get(_HASH):
        raise DataError(f"{name}: its content does not match its sha256; it was changed or cut")
    return content


@explain_refusals()
def read_index_file(path: str | Path) -> dict[str, Any]:
    """Return the content of an index file, its schema and hash checked.

    Raises:
        DataError: unreadable, another format, changed since it was written, or malformed.
    """
    path = user_path(path)
    if not path.is_file():
        raise DataError(f"FED.INDEX_FILE {path} {_absent(path)}")
    content = read_sealed(path, str(path), "an index file", INDEX_FORMAT)
    header = isinstance(content.get("spec"), dict) and _is_names(content.get("classnames"))
    clients = content.get("clients")
    if FORGOTTEN in content and not _is_forgotten(content[FORGOTTEN]):
        raise DataError(f"{path}: its section '{FORGOTTEN}' cannot be used; make the file again "
                        "with fedvlm forget")
    if not header or not isinstance(clients, list) or not clients:
        raise DataError(f"{path}: an index file has spec, classnames and a list of clients")
    for number, client in enumerate(clients):
        right = isinstance(client, dict) and all(_is_names(client.get(part)) for part in PARTS)
        if not right or not _is_names(client.get(UNLABELLED, [])):
            raise DataError(f"{path}: client {number} must have lists of paths {', '.join(PARTS)}")
    return content


def _absent(path: Path) -> str:
    """Return why a path is no index file, and what may be meant."""
    if path.is_dir():
        hint = f": give {path / RUN_FILE}" if (path / RUN_FILE).is_file() else ""
        return f"is a folder, not a file{hint}"
    near = did_you_mean(path.name, listing(path.parent)) if path.parent.is_dir() else ""
    return f"does not exist{near}; each run writes one, {RUN_FILE}"


def _is_forgotten(value: Any) -> bool:
    """Tell whether a value has the two lists of the section ``FORGOTTEN``."""
    if not isinstance(value, dict) or not isinstance(value.get("clients"), list):
        return False
    return _is_names(value.get("tests")) and all(type(c) is int for c in value["clients"])


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def spec_from(content: Mapping[str, Any], run: PartitionSpec, where: str) -> PartitionSpec:
    """Return the spec an index file was made with.

    Args:
        run: what the config says; its classes, shots, number of clients, held-out domain and
            images of the server must be the file's.

    Raises:
        ConfigError: they are not.
        DataError: the file's spec is malformed.
    """
    spec = _spec(content["spec"], where)
    clients = len(content["clients"])
    if run.clients != clients:
        raise ConfigError(
            f"FED.CLIENTS is {run.clients}, but FED.INDEX_FILE {where} has {clients} clients; "
            f"set FED.CLIENTS {clients}"
        )
    for key, said, made in (
        ("DATASET.NUM_SHOTS", run.shots, spec.shots),
        ("DATASET.SUBSAMPLE_CLASSES", run.half, spec.half),
        ("DATASET.SERVER_HOLDOUT", run.server_holdout, spec.server_holdout),
    ):
        if said != made:
            raise ConfigError(f"{key} is {said}, but FED.INDEX_FILE {where} was made with {made}; "
                              f"set it to {made}")
    if fold(run.held_out) != fold(spec.held_out):
        raise ConfigError(
            f"FED.HELD_OUT_DOMAIN is '{run.held_out}', but FED.INDEX_FILE {where} was made with "
            f"'{spec.held_out}'; set it to that"
        )
    return spec


def _spec(fields: Mapping[str, Any], where: str) -> PartitionSpec:
    for field in dataclasses.fields(PartitionSpec):
        value = fields.get(field.name)
        whole = not isinstance(value, bool) or field.type == "bool"  # True is an int in Python
        if field.name in fields and not (isinstance(value, _KINDS[str(field.type)]) and whole):
            raise DataError(
                f"{where}: its spec cannot be used: {field.name} is {str(value)[:40]!r}, not of "
                f"type {field.type}"
            )
    try:
        return PartitionSpec(**fields)
    except (TypeError, ConfigError) as error:
        raise DataError(f"{where}: its spec cannot be used: {error}") from error


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
            f"FED.INDEX_FILE {where} was made for {content.get('dataset', 'another set')} with "
            f"{_summary(content['classnames'])}; this run has {_summary(classnames)}"
        )
    shares: dict[str, list[list[int]]] = {part: [] for part in PARTS}
    gone = content.get(FORGOTTEN, {}).get("clients", ())
    name_of = name_in(content, Path(where))
    for part in PARTS:
        position = {name_of(datum.key): i for i, datum in enumerate(parts[part])}
        for number, client in enumerate(content["clients"]):
            others = [key for key in client[part] if key not in position]
            if others:
                raise DataError(
                    f"{where}: {len(others)} {part} image(s) of client {number} are not in the "
                    f"{part} list of this set (first: {others[0]})"
                )
            if part == "train" and not client[part] and number not in gone and (
                    UNLABELLED not in client):
                raise DataError(f"{where}: client {number} has no train image")
            if len(set(client[part])) != len(client[part]):
                raise DataError(f"{where}: client {number} names a {part} image twice")
            shares[part].append([position[key] for key in client[part]])
    return Partition.of(
        {part: [np.asarray(p, dtype=np.int64) for p in shares[part]] for part in PARTS}
    )


def name_in(content: Mapping[str, Any], path: Path) -> Callable[[str], str]:
    """Return how an index file names an image of a path.

    Raises:
        DataError: by a hash, and its key is not there.
    """
    if content.get(NAMES) != KEYED:
        return str
    key = read_names_key(path)
    if not key:
        raise DataError(f"{path} has keyed hashes instead of file names: put its key beside it, "
                        f"{path.with_suffix(KEY).name}; the owner of the images has it")
    return lambda name: hidden_name(name, key)


def _summary(classnames: Sequence[str]) -> str:
    first = f", first '{classnames[0]}'" if classnames else ""
    return f"{len(classnames)} classes{first}"
