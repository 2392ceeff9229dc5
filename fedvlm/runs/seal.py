"""Files that vouch for themselves: JSON with a seal over itself, and the hash of what lies beside.

Whoever reads a sealed file gets its contents, or ``Damaged`` with the file's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RECORD = 1  # format of the records of clients' rows (``runs.records``)


class Damaged(Exception):
    """Why a file does not count: one clause that names it."""


def seal_text(record: dict[str, Any]) -> str:
    """Return ``record`` as JSON text with a seal over it."""
    return json.dumps(record | {"seal": seal_of(record)}, indent=1) + "\n"


def seal_of(record: Mapping[str, Any]) -> str:
    """Return the seal over a JSON record: the hash of its values, however they are spaced."""
    body = {k: v for k, v in record.items() if k != "seal"}
    return sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def open_sealed(path: Path, data: bytes, formats: tuple[int, ...], identity: str) -> dict[str, Any]:
    """Return the record in a sealed file.

    Raises:
        Damaged: it is cut, changed, of another format or of another run.
    """
    try:
        record = json.loads(data)
        seal = record.pop("seal")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Damaged(f"{path.name} is not readable") from error
    if record.get("format") not in formats:
        known = " or ".join(map(str, formats))
        raise Damaged(f"{path.name} has format {record.get('format')}, not {known}")
    if seal != seal_of(record):
        raise Damaged(f"{path.name} is damaged (its checksum does not match)")
    if record.get("identity") != identity:
        raise Damaged(f"{path.name} belongs to another run")
    return dict(record)


def check_tensor_file(path: Path, record: Mapping[str, Any]) -> None:
    """Check the tensor file beside a sealed record, without holding it in memory.

    Raises:
        Damaged: it is missing, cut or changed.
    """
    try:
        size = path.stat().st_size
        if size != record["bytes"]:
            raise Damaged(f"{path.name} has {size} bytes instead of {record['bytes']}")
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Damaged(_unreadable(path, error)) from error
    if digest != record["sha256"]:
        raise Damaged(f"{path.name} is damaged (its hash differs from the recorded one)")


def checked_record(folder: Path, name: str, digest: str, identity: str) -> dict[str, Any]:
    """Return the JSON of a record of clients' rows.

    Raises:
        Damaged: it is missing, changed, or not the one that ``digest`` is of.
    """
    record, here = lone_record(folder, name, identity)
    if here != digest:
        raise Damaged(f"{folder.name}/{name}.json is not the record that the state names")
    return record


def lone_record(folder: Path, name: str, identity: str) -> tuple[dict[str, Any], str]:
    """Return the JSON of a record that no checkpoint has to name, and its digest.

    Raises:
        Damaged: it is missing or changed.
    """
    path = folder / f"{name}.json"
    try:
        data = read_bytes(path)
        return open_sealed(path, data, (RECORD,), identity), sha256(data)
    except Damaged as error:
        raise Damaged(f"{folder.name}/{error}") from error


def check_records(folder: Path, named: Iterable[Iterable[str]], identity: str) -> None:
    """Check every record that a checkpoint names, tensors included.

    Raises:
        Damaged: names the first that does not count.
    """
    for name, digest in named:
        record = checked_record(folder, name, digest, identity)
        try:
            check_tensor_file(folder / f"{name}.safetensors", record)
        except Damaged as error:
            raise Damaged(f"{folder.name}/{error}") from error


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes (``Damaged`` where it cannot be read)."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(_unreadable(path, error)) from error


def sha256(data: bytes) -> str:
    """Return the hash of ``data`` as hexadecimal text."""
    return hashlib.sha256(data).hexdigest()


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path.name} is missing"
    return f"{path.name} cannot be read ({error.strerror})"
