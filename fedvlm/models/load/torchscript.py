"""TorchScript archives (OpenAI's own format) read as data: tensors by name, no code.

``torch.jit.load`` runs what an archive's ``__setstate__`` says while it loads it. Here the zip is
opened by Python, its ``data.pkl`` goes through a machine (``core.pickles``) that knows only what
such files need, and every name of a class or function stands for a mark: nothing is imported or
called. From the code in the archive only the two lists of names ``__parameters__`` and
``__buffers__`` are read, as text.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedvlm.core.errors import DataError
from fedvlm.core.pickles.machine import Instruction, Machine, instructions

MAX_DEPTH = 64  # of modules in modules
MAX_TENSORS = 100_000  # names to tensors; a module that lies at two names counts twice
MAX_CODE = 64 << 20  # bytes of all code together, unpacked
MAX_PICKLE = 16 << 20  # bytes of data.pkl; OpenAI's largest has less than one
_MAX_DIMS = 16
_DTYPES = {
    "FloatStorage": torch.float32, "HalfStorage": torch.float16, "DoubleStorage": torch.float64,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")
_PLAIN = {  # instructions that the standard machine may run as it does
    "PROTO", "FRAME", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "EMPTY_LIST", "EMPTY_DICT", "BINGET", "LONG_BINGET", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "GLOBAL", "BINPERSID",
}
_CLASS = re.compile(
    r"^class (\w+)\(Module\):\n  __parameters__ = \[(.*)\]\n  __buffers__ = \[(.*)\]$", re.M
)


def is_torchscript(path: Path) -> bool:
    """Tell whether a file is a TorchScript archive: a zip with code or constants in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False
    return any("/code/" in name or name.endswith("/constants.pkl") for name in members)


def check_archive(path: Path, ratio: int = 1) -> None:
    """Refuse a zip that PyTorch would not have written: packed tensors, or paths that climb.

    PyTorch packs code alone, so that all else together is never larger than the file.

    Args:
        ratio: how much larger than the file its content may be; above 1 it may be packed.

    Raises:
        DataError: such a zip, or one that is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot read '{path}': {error}") from error
    size = path.stat().st_size
    code = [m for m in members if "/code/" in m.filename]
    rest = [m for m in members if "/code/" not in m.filename]
    if ratio == 1 and any(m.compress_type != zipfile.ZIP_STORED for m in rest):
        raise DataError(f"'{path}' contains packed tensors, which PyTorch weights files never do")
    if sum(m.file_size for m in rest) > ratio * size:
        raise DataError(f"'{path}' declares more content than fits into its {size} bytes")
    if sum(m.file_size for m in code) > MAX_CODE:
        raise DataError(f"'{path}' contains more code than a model needs")
    if len({m.filename for m in members}) < len(members):
        raise DataError(f"'{path}' contains two members with the same name")
    for member in members:
        parts = member.filename.replace("\\", "/").split("/")
        if ".." in parts or not parts[0] or not member.filename.isprintable():
            raise DataError(f"'{path}' has a member named {member.filename[:80]!r}")


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Return parameters and buffers of a TorchScript archive by their names, on the CPU.

    Equal, bit for bit, to ``torch.jit.load(path, map_location="cpu").state_dict()``.

    Raises:
        DataError: damaged, or more than modules, numbers, texts and tensors.
    """
    check_archive(path)
    try:
        with zipfile.ZipFile(path) as archive:
            root = _Machine(archive).load()
            listed = _tensor_names(archive)
        return dict(_tensors(root, listed, MAX_TENSORS))
    except (UnpicklingError, EOFError, zipfile.BadZipFile, OSError) as error:
        reason = str(error) or "it ends too soon"
        raise DataError(f"'{path}' is not a plain TorchScript archive: {reason}") from error
    except Exception as error:  # a crafted stream can raise anything
        raise DataError(
            f"'{path}' is not a plain TorchScript archive: it is damaged ({type(error).__name__})"
        ) from error


class _Name:
    """Stands for a class or function that a pickle names."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Module:
    """A module of the archive: its class and its attributes."""

    def __init__(self, kind: str) -> None:
        self.kind, self.attributes = kind, dict[str, Any]()


class _Storage:
    """The bytes of a storage, of one type."""

    def __init__(self, dtype: torch.dtype, raw: bytes) -> None:
        self.length = len(raw) // dtype.itemsize
        self.values = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(
            0, dtype=dtype
        )


class _Machine(Machine):
    """The machine with the instructions that make modules and tensors."""

    dispatch: ClassVar[dict[int, Instruction]] = instructions(_PLAIN, "tensors do")

    def __init__(self, archive: zipfile.ZipFile) -> None:
        pickles = [n for n in archive.namelist() if n.endswith("/data.pkl") and n.count("/") == 1]
        if len(pickles) != 1:
            raise UnpicklingError("it has no data.pkl, or several")
        if archive.getinfo(pickles[0]).file_size > MAX_PICKLE:
            raise UnpicklingError("its data.pkl is larger than any model's")
        self.archive, self.top = archive, pickles[0].partition("/")[0]
        order = f"{self.top}/byteorder"
        if order in archive.NameToInfo and archive.read(order) != b"little":
            raise UnpicklingError("its numbers are not little-endian")
        self.storages: dict[str, _Storage] = {}
        super().__init__(io.BytesIO(archive.read(pickles[0])), encoding="utf-8")

    def find_class(self, module: str, name: str) -> Any:
        """Return a mark; nothing is looked up."""
        return _Name(module, name)

    def persistent_load(self, pid: Any) -> _Storage:
        """Return ('storage', type, key, device, length); the device does not matter.

        Raises:
            UnpicklingError: another thing, a type without tensors, or a length that is not the
                member's.
        """
        plain = isinstance(pid, tuple) and len(pid) == 5 and isinstance(pid[1], _Name)
        if not plain or pid[0] != "storage" or pid[1].module != "torch":
            raise UnpicklingError("it names something that is not a storage")
        dtype, key, length = _DTYPES.get(pid[1].name), pid[2], pid[4]
        if dtype is None or type(key) is not str or type(length) is not int:
            raise UnpicklingError(f"it has a storage of the kind {pid[1].name}"[:99])
        if key not in self.storages:
            member = f"{self.top}/data/{key}"
            if member not in self.archive.NameToInfo:
                raise UnpicklingError(f"it lacks the member {member}"[:99])
            self.storages[key] = _Storage(dtype, self.archive.read(member))
        found = self.storages[key]
        if found.values.dtype != dtype or found.length != length:
            raise UnpicklingError(f"storage {key} has another size or type"[:99])
        return found

    def reduce(self) -> None:
        args, called = self.stack.pop(), self.stack.pop()
        if not isinstance(called, _Name) or type(args) is not tuple:
            raise UnpicklingError("it calls something that is not a function")
        self.stack.append(_call(called, args))

    dispatch[pickle.REDUCE[0]] = reduce

    def new_object(self) -> None:
        args, kind = self.stack.pop(), self.stack.pop()
        ours = isinstance(kind, _Name) and kind.module.split(".")[0] == "__torch__"
        if not ours or args != ():
            raise UnpicklingError("it creates an object that is not one of its own modules")
        self.stack.append(_Module(f"{kind.module}.{kind.name}"))

    dispatch[pickle.NEWOBJ[0]] = new_object

    def build(self) -> None:
        state, module = self.stack.pop(), self.stack[-1]
        if not isinstance(module, _Module) or type(state) is not dict or module.attributes:
            raise UnpicklingError("it sets the state of a module by its own code")
        module.attributes = state

    dispatch[pickle.BUILD[0]] = build


def _call(called: _Name, args: tuple[Any, ...]) -> Any:
    """Return what one of the few known functions makes; anything else is refused."""
    where = called.module, called.name
    if where == ("torch._utils", "_rebuild_tensor_v2"):
        return _tensor(*args)
    if where == ("collections", "OrderedDict") and args == ():
        return {}
    if called.module == "torch.jit._pickle" and called.name in _LISTS and len(args) == 1:
        return args[0]
    raise UnpicklingError(f"it calls {called.module}.{called.name}"[:99])


def _tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, *more: Any
) -> Tensor:
    """Return a view of a storage, once it is certain to lie inside it."""
    whole = isinstance(shape, tuple) and isinstance(stride, tuple) and len(shape) == len(stride)
    if more or not isinstance(storage, _Storage) or not whole or len(shape) > _MAX_DIMS:
        raise UnpicklingError("a tensor is not (storage, offset, shape, stride, ...)")
    if any(type(n) is not int or n < 0 for n in (offset, *shape, *stride)):
        raise UnpicklingError("a tensor's shape has an entry that is not a whole number")
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if math.prod(shape) > storage.length or (0 not in shape and last >= storage.length):
        raise UnpicklingError(f"a tensor of shape {shape} lies outside its storage"[:99])
    return storage.values.as_strided(shape, stride, offset)


def _tensor_names(archive: zipfile.ZipFile) -> dict[str, set[str]]:
    """Return class -> names of its parameters and buffers, as far as the code lists both."""
    found = {}
    for member in archive.namelist():
        _, _, inner = member.partition("/code/")
        if inner.endswith(".py"):
            module = inner.removesuffix(".py").replace("/", ".")
            for name, *lists in _CLASS.findall(archive.read(member).decode("utf-8")):
                found[f"{module}.{name}"] = set(re.findall(r'"([^"]*)"', " ".join(lists)))
    return found


def _tensors(
    root: Any, listed: Mapping[str, set[str]], left: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors below a module by their names; ``left``: how many names may be walked."""
    if not isinstance(root, _Module):
        raise UnpicklingError("it holds no module")
    todo: list[tuple[str, _Module, int]] = [("", root, 0)]
    while todo:
        prefix, module, depth = todo.pop()
        names = listed.get(module.kind)
        left -= 1 + len(module.attributes)
        if left < 0 or depth > MAX_DEPTH:
            raise UnpicklingError("its modules are nested too deeply")
        for name, value in module.attributes.items():
            if not isinstance(name, str):
                raise UnpicklingError("a module has an attribute without a name")
            if isinstance(value, _Module):
                todo.append((f"{prefix}{name}.", value, depth + 1))
            elif isinstance(value, Tensor) and (names is None or name in names):
                yield prefix + name, value
