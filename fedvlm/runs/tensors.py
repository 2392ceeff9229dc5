"""Tensors beside sealed records: safetensors, checked before they are read. No pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedvlm.core import files
from fedvlm.runs.seal import Damaged, check_tensor_file, read_bytes, seal_text, sha256


def read_tensors(path: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return all tensors of the file beside a sealed record (``Damaged`` as ``check_file``)."""
    check_tensor_file(path, record)
    try:
        return safetensors.torch.load(read_bytes(path))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise Damaged(f"{path.name} is not a safetensors file ({error})") from error


def write_vouched(path: Path, tensors: Mapping[str, Tensor], record: dict[str, Any]) -> str:
    """Write ``<path>.safetensors``, then ``<path>.json``, which vouches for it; return its hash.

    Args:
        record: its ``sha256`` and ``bytes`` are filled in; a seal is put over it.

    Raises:
        DataError: disk full, folder read-only or deleted.
    """
    data = safetensors.torch.save(to_storable(tensors))
    text = seal_text(record | {"sha256": sha256(data), "bytes": len(data)})
    files.write_bytes(path.with_name(f"{path.name}.safetensors"), data)
    files.write_text(path.with_name(f"{path.name}.json"), text)
    return sha256(text.encode())


def to_storable(keys: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU and contiguous; those that share memory are copied apart."""
    seen: set[int] = set()
    out: dict[str, Tensor] = {}
    for key, tensor in keys.items():
        plain = tensor.detach().to("cpu").contiguous()
        storage = plain.untyped_storage().data_ptr()
        out[key] = plain.clone() if storage in seen else plain
        seen.add(storage)
    return out
