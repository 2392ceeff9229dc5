"""Weights files that want to run code, to fill the memory, or to read past their end."""

from __future__ import annotations

import io
import json
import linecache
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

PWNED = "PWNED"  # what a file that runs would leave beside itself
State = Mapping[str, torch.Tensor]
Maker = Callable[[Path, State], None]


class Call:
    """Calls ``open(PWNED, "w")`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path.parent / PWNED), "w"))


def script(path: Path, state: State) -> None:
    """Write tensors as OpenAI does: a TorchScript module with three extra entries."""
    root = torch.nn.Module()
    sizes = {"input_resolution": 32, "context_length": 40, "vocab_size": 4096}
    for key, value in {**state, **{k: torch.tensor(v) for k, v in sizes.items()}}.items():
        owner = root
        *parts, leaf = key.split(".")
        for part in parts:
            if not hasattr(owner, part):
                owner.add_module(part, torch.nn.Module())
            owner = getattr(owner, part)
        owner.register_buffer(leaf, value)
    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(torch.jit.script(root), str(path))


def script_with_code(path: Path, _state: State) -> None:
    """TorchScript whose ``__setstate__`` writes a file (the review's own)."""
    source = f'''
import torch
class Evil(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.zeros(3))
    def forward(self, x):
        return x
    @torch.jit.export
    def __getstate__(self):
        return (self.w, self.training)
    @torch.jit.export
    def __setstate__(self, s: tuple[torch.Tensor, bool]):
        self.training = s[1]
        t = torch.from_file({str(path.parent / PWNED)!r}, True, 16, dtype=torch.uint8)
        t.fill_(65)
        self.w = t.float()
'''
    made = path.with_suffix(".py")
    made.write_text(source)
    space: dict[str, Any] = {"__name__": "evil", "__file__": str(made)}
    linecache.cache[str(made)] = (len(source), None, source.splitlines(True), str(made))
    exec(compile(source, str(made), "exec"), space)
    with warnings.catch_warnings(action="ignore"):
        torch.jit.script(space["Evil"]()).save(str(path))
    (path.parent / PWNED).unlink(missing_ok=True)
    made.unlink()


def rezip(path: Path, change: Callable[[dict[str, bytes]], None], packed: bool = False) -> None:
    """Write a zip again with other members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)


def _pickled(raw: Callable[[Path], bytes]) -> Maker:
    """A TorchScript archive with another data.pkl."""

    def make(path: Path, state: State) -> None:
        script(path, state)
        rezip(path, lambda members: members.update({f"{path.stem}/data.pkl": raw(path)}))

    return make


def _edited(change: Callable[[bytes], bytes]) -> Maker:
    def make(path: Path, state: State) -> None:
        script(path, state)
        name = f"{path.stem}/data.pkl"
        rezip(path, lambda members: members.update({name: change(members[name])}))

    return make


def _with(member: str, raw: bytes, packed: bool = False) -> Maker:
    def make(path: Path, state: State) -> None:
        script(path, state)
        rezip(path, lambda members: members.update({member: raw}), packed)

    return make


def _without_storages(path: Path, state: State) -> None:
    script(path, state)

    def cut(members: dict[str, bytes]) -> None:
        for name in [n for n in members if "/data/" in n]:
            members[name] = members[name][:4]

    rezip(path, cut)


def _bomb(path: Path, state: State) -> None:
    torch.save(dict(state), path)
    name = f"{path.stem}/data/0"
    rezip(path, lambda members: members.update({name: bytes(64 << 20)}), packed=True)


def _twice(path: Path, state: State) -> None:
    script(path, state)
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{path.stem}/data.pkl", b"\x80\x02N.")


def _tar(path: Path, _state: State) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("../" + PWNED, "storages", "tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"AAAA"))


def _raw(path: Path, _state: State) -> None:
    path.write_bytes(pickle.dumps(Call(path)))


def _new(path: Path, _state: State) -> None:
    torch.save({"w": Call(path)}, path)


def _old(path: Path, _state: State) -> None:
    torch.save({"w": Call(path)}, path, _use_new_zipfile_serialization=False)


def _numpy(path: Path, _state: State) -> None:
    np.save(path, np.array([Call(path)], dtype=object), allow_pickle=True)


def _numpys(path: Path, _state: State) -> None:
    np.savez(path, w=np.array([Call(path)], dtype=object))


def _header(header: Any, size: int | None = None, body: bytes = b"\0" * 16) -> Maker:
    """A safetensors file of one header, whose length may lie."""

    def make(path: Path, _state: State) -> None:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(raw) if size is None else size) + raw + body)

    return make


def _tensor(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


def _deep(_path: Path) -> bytes:
    return b"\x80\x02" + b"(" * 100_000 + b"l."


def _cycle(_path: Path) -> bytes:
    """A module that contains itself."""
    return (b"\x80\x02c__torch__\nA\n)\x81q\x00}(X\x01\x00\x00\x00ah\x00u" + b"b.")


def _wide(_path: Path) -> bytes:
    """Forty modules, each holding the one before twice: 2^40 names."""
    module, text = b"c__torch__\nA\n)\x81}(", b"X\x01\x00\x00\x00"
    out = b"\x80\x02" + module + text + b"0" + module + text + b"wK\x01ubq\x00"
    for i in range(1, 40):
        link = b"h" + bytes([i - 1])
        out += text + bytes([64 + i]) + module + text + b"a" + link + text + b"b" + link
        out += b"ubq" + bytes([i])
    return out + b"ub."


FILES: dict[str, Maker] = {
    "script_code.pt": script_with_code,
    "script_reduce.pt": _pickled(lambda path: pickle.dumps(Call(path), 2)),
    "script_setstate.pt": _pickled(lambda _: b"\x80\x02c__torch__\nA\n)\x81K\x01b."),
    "script_instance.pt": _pickled(lambda _: b"(ios\nsystem\n."),
    "script_stack_global.pt": _pickled(
        lambda _: b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R."
    ),
    "script_deep.pt": _pickled(_deep),
    "script_cycle.pt": _pickled(_cycle),
    "script_wide.pt": _pickled(_wide),
    "script_empty.pt": _pickled(lambda _: b""),
    "script_none.pt": _pickled(lambda _: b"\x80\x02N."),
    "script_other_types.pt": _edited(lambda raw: raw.replace(b"FloatStorage", b"QInt8Storage")),
    "script_other_call.pt": _edited(
        lambda raw: raw.replace(b"_rebuild_tensor_v2", b"_rebuild_from_type_v2")
    ),
    "script_cut_storages.pt": _without_storages,
    "script_climbs.pt": _with("../" + PWNED, b"A"),
    "script_absolute.pt": _with("/tmp/" + PWNED, b"A"),
    "script_control.pt": _with("a/\x1b[2J", b"A"),
    "script_packed.pt": _with("script_packed/data/0", bytes(1 << 20), packed=True),
    "script_twice.pt": _twice,
    "big_endian.pt": _with("big_endian/byteorder", b"big"),
    "bomb.pt": _bomb,
    "tar.pt": _tar,
    "raw.pt": _raw,
    "new.pt": _new,
    "old.pt": _old,
    "array.npy": _numpy,
    "arrays.npz": _numpys,
    "noise.pt": lambda path, _: path.write_bytes(bytes(range(256)) * 8) and None,
    "empty.pt": lambda path, _: path.write_bytes(b"") and None,
    "half_a_zip.pt": lambda path, _: path.write_bytes(b"PK\x03\x04" + bytes(40)) and None,
    "offsets_past_the_end.safetensors": _header(_tensor([4], 0, 1 << 40)),
    "offsets_reversed.safetensors": _header(_tensor([4], 16, 0)),
    "offsets_negative.safetensors": _header(_tensor([4], -16, 0)),
    "shape_larger.safetensors": _header(_tensor([1 << 30, 1 << 30], 0, 16)),
    "shape_overflows.safetensors": _header(_tensor([1 << 62, 4], 0, 16)),
    "other_dtype.safetensors": _header(_tensor([4], 0, 16, "X32")),
    "length_huge.safetensors": _header(_tensor([4], 0, 16), size=(1 << 63) - 1),
    "length_past_the_end.safetensors": _header(_tensor([4], 0, 16), size=4096),
    "no_json.safetensors": _header(b"{]"),
    "json_deep.safetensors": _header(b'{"w":' + b"[" * 100_000),
    "json_nan.safetensors": _header(b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}'),
    "overlap.safetensors": _header(
        {n: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} for n in ("a", "b")}
    ),
}
