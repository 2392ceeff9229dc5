"""Files that vouch for themselves: JSON with a seal over itself, and the hash of what lies beside.

Whoever reads a sealed file gets its contents, or ``Damaged`` with the file's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor


class Damaged(Exception):
    """Why a file does not count: one clause that names it."""


def sealed(record: dict[str, Any]) -> str:
    """Return ``record`` as JSON text with a seal over it."""
    return json.dumps(record | {"seal": sha256(_canonical(record))}, indent=1) + "\n"


def unsealed(path: Path, data: bytes, formats: tuple[int, ...], identity: str) -> dict[str, Any]:
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
    if seal != sha256(_canonical(record)):
        raise Damaged(f"{path.name} is damaged (its seal does not fit)")
    if record.get("identity") != identity:
        raise Damaged(f"{path.name} belongs to another run")
    return dict(record)


def check_file(path: Path, record: Mapping[str, Any]) -> None:
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
        raise Damaged(f"{path.name} is damaged (its hash is not the recorded one)")


def read_tensors(path: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return all tensors of the file beside a sealed record (``Damaged`` as ``check_file``)."""
    check_file(path, record)
    try:
        return safetensors.torch.load(read_bytes(path))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise Damaged(f"{path.name} is not a safetensors file ({error})") from error


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes (``Damaged`` where it cannot be read)."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(_unreadable(path, error)) from error


def storable(keys: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU and contiguous; those that share memory are copied apart."""
    seen: set[int] = set()
    out: dict[str, Tensor] = {}
    for key, tensor in keys.items():
        plain = tensor.detach().to("cpu").contiguous()
        storage = plain.untyped_storage().data_ptr()
        out[key] = plain.clone() if storage in seen else plain
        seen.add(storage)
    return out


def sha256(data: bytes) -> str:
    """Return the hash of ``data`` as hexadecimal text."""
    return hashlib.sha256(data).hexdigest()


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path.name} is missing"
    return f"{path.name} cannot be read ({error.strerror})"


def _canonical(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
