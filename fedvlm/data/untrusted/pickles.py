"""Pickles read without trust: numpy arrays, texts, bytes, numbers, lists, tuples and dicts.

A pickle is a programme for a small machine. Here the machine (``core.pickles``) knows no name but
those below, and each stands for a mark, not for a class or function: nothing of what a file names
is ever imported or called. Memory stays within a constant factor of the file's size. Dassl's
``Datum`` (CoOp's few-shot files) is read on request, as the plain dict of its fields.

Arrays are checked part by part before numpy sees them. ``numpy.dtype`` and ``numpy.ndarray`` set
their own state without checking that it fits together: flags of one dtype over the bytes of another
make numbers into pointers, and a list that is too short is read past its end. So an allowlist of
classes is not enough (the usual one crashes the interpreter on a file of our tests); only a few
dtypes are known, and sizes are compared first.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import DataError
from fedvlm.core.pickles.machine import Instruction, Machine, instructions

MAX_NESTING = 100  # of lists in lists, in the result
_CODE = re.compile(r"[|<>=]?(?:b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,8}|O[48]?)")
_MAX_CODE_POINT = 0x10FFFF
_MAX_DIMS = 32
_MAX_FIELDS = 64
_KEYS = (str, bytes, bool, int, float, np.generic, type(None))  # of a dict; items of an array
_VALUES = (*_KEYS, bytearray, np.ndarray)


def load_restricted(path: Path, *, objects: bool = False) -> Any:
    """Return a pickle's content if it holds only arrays, texts, numbers, lists, tuples and dicts.

    Args:
        objects: also read objects whose class is called ``Datum``, each as a ``PickledObject``.

    Raises:
        DataError: unreadable, broken, or it asks for any other class or function.
    """
    return loads_restricted(read_raw(path), str(path), objects=objects)


def read_raw(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def loads_restricted(raw: bytes, where: str, *, objects: bool = False) -> Any:
    """Return the content of a pickle in memory, as ``load_restricted`` does.

    Raises:
        DataError: as ``load_restricted``.
    """
    try:
        content = _Machine(raw, objects).load()
        _check_plain(content)
    except Exception as error:  # a crafted stream can raise anything
        damage = isinstance(error, EOFError | LookupError | struct.error)
        reason = "it is damaged or not a pickle" if damage else str(error)
        raise DataError(f"{where} is not a plain pickle of arrays and lists: {reason}") from error
    return content


class PickledObject:
    """An object of another project, as the plain dict of its fields.

    Attributes:
        fields: what the pickle gave; CoOp's have ``_impath, _label, _domain, _classname``.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def build(self, state: Any) -> None:
        """Take the fields.

        Raises:
            UnpicklingError: the state is not a dict of a few named values.
        """
        fields = isinstance(state, dict) and all(type(name) is str for name in state)
        if not fields or len(state) > _MAX_FIELDS:
            raise UnpicklingError("a record's state is not a dict of its fields")
        self.fields = dict(state)


def _check_plain(content: Any) -> None:
    """Refuse marks left in the result, and nesting that would trap who walks it.

    Raises:
        UnpicklingError: anything but texts, numbers, arrays, objects, lists, tuples and dicts.
    """
    level, ids = [content], set[int]()
    for _ in range(MAX_NESTING):
        next_level: list[Any] = []
        for value in level:
            if type(value) in (list, tuple, dict, PickledObject):
                if id(value) in ids:
                    continue
                ids.add(id(value))
                inner = value.fields if type(value) is PickledObject else value
                next_level += inner.values() if type(inner) is dict else inner
            elif not isinstance(value, _VALUES):
                raise UnpicklingError(f"it holds a {type(value).__name__}")
        if not next_level:
            return
        level = next_level
    raise UnpicklingError("it is nested too deeply")


class _Mark(Enum):
    """What a name in a pickle becomes."""

    DTYPE = auto()
    NDARRAY = auto()
    RECONSTRUCT = auto()
    SCALAR = auto()
    BUFFER = auto()
    ENCODE = auto()
    BYTES = auto()
    OBJECT = auto()
    NEW = auto()
    RECORD = auto()


_NAMES = {
    ("numpy", "dtype"): _Mark.DTYPE,
    ("numpy", "ndarray"): _Mark.NDARRAY,
    ("numpy.core.multiarray", "_reconstruct"): _Mark.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Mark.RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _Mark.SCALAR,
    ("numpy._core.multiarray", "scalar"): _Mark.SCALAR,
    ("numpy.core.numeric", "_frombuffer"): _Mark.BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _Mark.BUFFER,
    ("_codecs", "encode"): _Mark.ENCODE,
    ("__builtin__", "bytes"): _Mark.BYTES,  # of no length, in protocols 0 to 2
    ("builtins", "bytes"): _Mark.BYTES,
}
_OBJECT_NAMES = {  # how protocols 0 and 1 make an object
    ("copy_reg", "_reconstructor"): _Mark.NEW,
    ("copyreg", "_reconstructor"): _Mark.NEW,
    ("__builtin__", "object"): _Mark.OBJECT,
    ("builtins", "object"): _Mark.OBJECT,
}
_PLAIN = {  # instructions that the standard machine may run as it does: they make plain values
    "PROTO", "FRAME", "STOP", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "INT",
    "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "EMPTY_LIST", "LIST", "EMPTY_DICT", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL",
}


class _Machine(Machine):
    """The machine with the instructions that make arrays and records."""

    keys = _KEYS
    dispatch: ClassVar[dict[int, Instruction]] = instructions(_PLAIN, "plain data does")

    def __init__(self, raw: bytes, objects: bool) -> None:
        super().__init__(io.BytesIO(raw), encoding="latin1")
        self.objects = objects
        self.left = 16 * len(raw) + 2**20  # bytes that may still be copied out of the stream
        self.calls: dict[_Mark, Callable[..., Any]] = {
            _Mark.DTYPE: _PlainDtype,
            _Mark.RECONSTRUCT: _empty_array,
            _Mark.SCALAR: _scalar,
            _Mark.BUFFER: _from_buffer,
            _Mark.ENCODE: _latin1,
            _Mark.BYTES: _no_bytes,
            _Mark.NEW: _new_object,
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return the mark of a known name; nothing is looked up anywhere else."""
        mark = _NAMES.get((module, name))
        if mark is None and self.objects:
            mark = _Mark.RECORD if name == "Datum" else _OBJECT_NAMES.get((module, name))
        if mark is None:
            raise UnpicklingError(f"it asks for {module}.{name}"[:99])
        return mark

    def spend(self, size: int) -> None:
        """Count bytes copied; one part of the file copied again and again ends here."""
        self.left -= size
        if self.left < 0:
            raise UnpicklingError("it unpacks to far more than its size")

    def reduce(self) -> None:
        args = self.stack.pop()
        mark = self.stack[-1]
        if not isinstance(mark, _Mark) or mark not in self.calls or type(args) is not tuple:
            raise UnpicklingError("it calls an unknown function")
        value = self.calls[mark](*args)
        self.spend(getattr(value, "nbytes", 0) or (len(value) if type(value) is bytes else 0))
        self.stack[-1] = value

    dispatch[pickle.REDUCE[0]] = reduce

    def new_object(self) -> None:
        args = self.stack.pop()
        if self.stack[-1] is not _Mark.RECORD or args != ():
            raise UnpicklingError("it makes an object of an unknown class")
        self.stack[-1] = PickledObject()

    dispatch[pickle.NEWOBJ[0]] = new_object

    def build(self) -> None:
        state = self.stack.pop()
        value = self.stack[-1]
        if type(value) is np.ndarray:
            self.spend(_set_array(value, state))
        elif type(value) is PickledObject or type(value) is _PlainDtype:
            value.build(state)
        else:
            raise UnpicklingError(f"it sets the state of a {type(value).__name__}")

    dispatch[pickle.BUILD[0]] = build

    def make_dict(self) -> None:
        items = self.pop_mark()  # changes what append is bound to
        self.append(self.pairs(items))

    dispatch[pickle.DICT[0]] = make_dict

    def byte_array(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))  # the standard one reserves what is asked for

    dispatch[pickle.BYTEARRAY8[0]] = byte_array


def _empty_array(kind: Any = None, *_shape_and_code: Any) -> Any:
    if kind is not _Mark.NDARRAY:
        raise UnpicklingError("only plain arrays may be rebuilt")
    return np.ndarray(0, dtype=np.int8)  # its state follows in the stream


def _latin1(*args: Any) -> bytes:
    if len(args) != 2 or type(args[0]) is not str or args[1] != "latin1":
        raise UnpicklingError("only latin1 bytes may be decoded")
    return args[0].encode("latin1")


def _no_bytes(*args: Any) -> bytes:
    if args:
        raise UnpicklingError("only empty bytes may be made by a call")
    return b""


def _new_object(*args: Any) -> PickledObject:
    if args != (_Mark.RECORD, _Mark.OBJECT, None):
        raise UnpicklingError("it makes an object of an unknown class")
    return PickledObject()


class _PlainDtype:
    """Stands for a ``numpy.dtype`` while the stream is read; never part of the result.

    Args:
        args: what the pickle calls ``numpy.dtype`` with: (code, align, copy).
    """

    def __init__(self, *args: Any) -> None:
        code = args[0] if args else None
        if not isinstance(code, str) or not _CODE.fullmatch(code) or len(args) > 3:
            raise UnpicklingError(f"it asks for the array type {str(code)[:40]!r}")
        self.dtype = np.dtype(object if "O" in code else code)

    def build(self, state: Any) -> None:
        """Take the byte order from the state of a plain dtype.

        Raises:
            UnpicklingError: a state that is not (version, byte order, None, None, None, ...).
        """
        plain = isinstance(state, tuple) and 6 <= len(state) <= 9 and state[2:5] == (None,) * 3
        if not plain or not isinstance(state[1], str) or state[1] not in tuple("|<>="):
            raise UnpicklingError("an array type is not a plain one")
        if state[1] in "<>":
            self.dtype = self.dtype.newbyteorder("<" if state[1] == "<" else ">")


def _set_array(array: NDArray[Any], state: Any) -> int:
    """Give an array just made its content from the pickle; returns the bytes it takes.

    Args:
        array: an empty int8 array.
        state: (version, shape, dtype, column order, bytes or list of objects).
    """
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], _PlainDtype):
        raise UnpicklingError("an array's state is not (version, shape, type, order, content)")
    if array.size or array.dtype != np.int8:
        raise UnpicklingError("an array is built twice")
    _, shape, kind, columns, content = state
    dtype, count = kind.dtype, _count(shape)
    if dtype.kind == "O":
        if type(content) is not list or len(content) != count:
            raise UnpicklingError(f"an array of shape {shape} has not that many objects")
        if not all(isinstance(item, _KEYS) for item in content):
            raise UnpicklingError("an array holds objects that are not texts or numbers")
    else:
        content = _raw(content, dtype, count)
    checked: Any = (1, shape, dtype, bool(columns), content)
    array.__setstate__(checked)
    return array.nbytes


def _scalar(*args: Any) -> np.generic:
    """Return a numpy number or text from its dtype and bytes."""
    if len(args) != 2 or not isinstance(args[0], _PlainDtype) or args[0].dtype.kind == "O":
        raise UnpicklingError("a numpy scalar is not (type, bytes)")
    dtype = args[0].dtype
    value = np.frombuffer(_raw(args[1], dtype, 1), dtype)[0]
    return value  # type: ignore[no-any-return]


def _from_buffer(*args: Any) -> NDArray[Any]:
    """Return an array from the parts that protocol 5 writes.

    Args:
        args: (bytes, dtype, shape, order), and the order of axes where order is ``K``.
    """
    if len(args) not in (4, 5) or not isinstance(args[1], _PlainDtype) or args[1].dtype.kind == "O":
        raise UnpicklingError("an array is not (bytes, type, shape, order)")
    buffer, kind, shape, order, *rest = args
    axes = rest[0] if rest else None
    array = np.frombuffer(_raw(buffer, kind.dtype, _count(shape)), kind.dtype)
    if order == "K" and isinstance(axes, tuple) and sorted(axes) == list(range(len(shape))):
        return array.reshape(shape).transpose(axes).copy()
    if order not in ("C", "F"):
        raise UnpicklingError("an array's order is neither rows nor columns")
    return array.reshape(shape, order=order).copy(order)


def _count(shape: Any) -> int:
    """Return the number of items of a shape.

    An empty array may have one axis only, since the others' lengths cost no byte in the file.
    """
    whole = isinstance(shape, tuple) and len(shape) <= _MAX_DIMS
    if not whole or any(type(n) is not int or n < 0 for n in shape):
        raise UnpicklingError("an array's shape is not a tuple of whole numbers")
    if 0 in shape and shape != (0,):
        raise UnpicklingError(f"an empty array has the shape {shape}"[:99])
    return math.prod(shape)


def _raw(content: Any, dtype: np.dtype[Any], count: int) -> bytes:
    """Return the bytes of ``count`` items (Python 2 wrote them as text)."""
    if isinstance(content, str):
        content = content.encode("latin1")
    if not isinstance(content, bytes | bytearray) or len(content) != count * dtype.itemsize:
        raise UnpicklingError(f"an array of {count} items of type {dtype.str} has other content")
    if dtype.kind == "U" and count:
        points = np.frombuffer(content, np.dtype("u4").newbyteorder(dtype.byteorder))
        if points.max() > _MAX_CODE_POINT:
            raise UnpicklingError("an array of texts holds invalid characters")
    return bytes(content)
