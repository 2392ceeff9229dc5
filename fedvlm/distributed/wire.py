"""Frames, ``fedvlm-wire/1``: one safetensors file in memory, no pickle, nothing is executed.

A frame is an op, plain values (``schema``) and named trees. The values and the layout of the trees
are JSON in the file's metadata; tensors travel as they are, in every type that safetensors has.
Equal tensors (the very same memory) travel once. Any carrier takes a frame as bytes, and a checksum
of all of them (CRC-32, in front of that JSON) shows a bit that was flipped on the way. Equal frames
are equal bytes: a second key of the metadata would stand before or behind the first, by chance.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import safetensors.torch
import torch
from safetensors import SafetensorError

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.distributed.schema import ANSWERS, LIMIT, misfit

WIRE = "fedvlm-wire/1"
HEADER = 1 << 26  # bytes of its header
_KEY = "fedvlm"
_MARK, _UNSUMMED = f'"{_KEY}":"'.encode(), "0" * 8  # quotes of the values are escaped: it is unique
_PLACE = 8  # bytes that say how long the header is


class WireError(FedvlmError):
    """A message that is no frame of this version; the message quotes nothing of it."""


class Garbled(WireError):
    """What came is no frame; the same message, sent again, may be."""


@dataclass(frozen=True)
class Frame:
    """An op (or its answer), its plain values, and trees by name."""

    op: str
    values: Mapping[str, Any] = field(default_factory=dict)
    trees: Mapping[str, Tree] = field(default_factory=dict)


def pack(frame: Frame) -> bytes:
    """Return the frame as bytes.

    Raises:
        WireError: it does not fit its op, or is too large.
    """
    tensors: dict[str, torch.Tensor] = {}
    places: dict[tuple[object, ...], str] = {}
    layout: dict[str, dict[str, str]] = {}
    for tree, leaves in frame.trees.items():
        layout[tree] = {}
        for name, value in leaves.items():
            v = value.detach()
            mark = (v.device, v.data_ptr(), v.shape, v.stride(), v.dtype)
            if mark not in places or not v.numel():
                places[mark] = f"t{len(tensors)}"
                tensors[places[mark]] = v.to("cpu", copy=True).contiguous()
            layout[tree][name] = places[mark]
    _fit(frame.op, frame.values, frame.trees)
    head = {"wire": WIRE, "op": frame.op, "values": dict(frame.values), "layout": layout}
    data = checksummed(tensors, json.dumps(head, allow_nan=False))
    _size(data)
    return data


def checksummed(tensors: Mapping[str, torch.Tensor], head: str) -> bytes:
    """Return tensors and a header as bytes with their checksum."""
    data: bytes = safetensors.torch.save(dict(tensors), {_KEY: _UNSUMMED + head})
    at, crc = _crc(data)
    return data[:at] + crc + data[at + len(crc):]


def _crc(data: bytes) -> tuple[int, bytes]:
    """Return where the checksum of a frame stands, and what it has to be: of all other bytes."""
    at = data.find(_MARK, 0, _PLACE + _length(data)) + len(_MARK)
    view = memoryview(data)
    crc = zlib.crc32(view[at + len(_UNSUMMED):], zlib.crc32(view[:at]))
    return at, f"{crc:08x}".encode()


def unpack(data: bytes) -> Frame:
    """Return the frame; its tensors are copies of their own, laid out as new ones are.

    Raises:
        Garbled: no frame, one that was damaged on its way, or one that does not fit its op.
        WireError: one of another version, or too large.
    """
    _size(data)
    try:
        head = _head(data)
        if head["wire"] != WIRE:
            raise WireError(f"this side uses {WIRE}, the other side another version: update one "
                            "of them")
        at, crc = _crc(data)
        if data[at : at + len(crc)] != crc:
            raise Garbled("a message was damaged on its way (its checksum differs)")
        tensors = {key: v.clone() for key, v in safetensors.torch.load(data).items()}
        layout = head["layout"]
        trees = {
            str(tree): {str(name): tensors[key] for name, key in leaves.items()}
            for tree, leaves in layout.items()
        }
        loose = tensors.keys() - {key for leaves in layout.values() for key in leaves.values()}
        op, values = head["op"], head["values"]
        if loose or not isinstance(op, str) or head.keys() != {"wire", "op", "values", "layout"}:
            raise Garbled("a message is not a fedvlm frame (its header does not fit its tensors)")
        _fit(op, values, trees, Garbled)
    except (
        SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
        OverflowError, MemoryError, RuntimeError,
    ) as error:
        raise Garbled(f"a message is not a fedvlm frame ({type(error).__name__})") from None
    _spread(op, trees)
    return Frame(op, values, trees)


def outline(data: bytes) -> tuple[str, dict[str, Any], dict[str, list[str]]]:
    """Return op, values and the names in each tree of a frame; no tensor is looked at.

    Raises:
        WireError: no frame, or one that does not fit its op.
    """
    _size(data)
    try:
        head = _head(data)
        op, values, layout = head["op"], head["values"], head["layout"]
        names = {str(tree): [str(name) for name in leaves] for tree, leaves in layout.items()}
        _fit(op, values, layout)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise WireError(f"a message is not a fedvlm frame ({type(error).__name__})") from None
    return op, values, names


def _head(data: bytes) -> dict[str, Any]:
    """Return the header; JSON that says a key twice, or a number that is none, is refused."""
    outer = _parse(data[_PLACE : _PLACE + _length(data)].decode())
    head = _parse(outer["__metadata__"][_KEY][len(_UNSUMMED):])
    if not isinstance(head, dict):
        raise TypeError("header")
    return head


def _length(data: bytes) -> int:
    """Return how long the header is."""
    size = int.from_bytes(data[:_PLACE], "little")
    if size > min(HEADER, len(data) - _PLACE):
        raise ValueError("header")
    return size


def _parse(words: str) -> Any:
    return json.loads(words, object_pairs_hook=_once, parse_constant=_no_number)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("a key twice")
    return out


def _no_number(word: str) -> NoReturn:
    raise ValueError("not a number")


def _fit(
    op: str, values: Any, trees: Mapping[str, Tree], kind: type[WireError] = WireError
) -> None:
    said = misfit(op, values, trees)
    if said:
        raise kind(f"a frame does not fit {WIRE}: {said}")


def _spread(op: str, trees: Mapping[str, Tree]) -> None:
    """Refuse an answer in which one tensor stands for more than a frame could hold.

    A request names a tensor once for each client that receives it; an answer has no such cause.
    """
    whole = sum(v.numel() * v.element_size() for tree in trees.values() for v in tree.values())
    if op in ANSWERS.values() and whole > LIMIT:
        raise WireError(
            f"the tensors of a message are {whole} bytes one by one, above the limit of {LIMIT}"
        )


def _size(data: bytes) -> None:
    if len(data) > LIMIT:
        raise WireError(f"a message of {len(data)} bytes is above the limit of {LIMIT}")
