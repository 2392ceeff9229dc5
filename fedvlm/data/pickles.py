"""Pickles read without trust: numpy arrays, texts, bytes, numbers, lists, tuples and dicts.

A pickle is a programme for a small machine. Here the machine knows no name but those below, and
each stands for a mark, not for a class or function: nothing of what a file names is ever imported
or called. Memory stays within a constant factor of the file's size. Dassl's ``Datum`` (CoOp's
few-shot files) is read on request, as a record of its fields.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedvlm.data import pickles_numpy
from fedvlm.data.pickles_numpy import PlainDtype
from fedvlm.data.pickles_values import Record, check_plain, pairs
from fedvlm.errors import DataError

_MAX_MARKS = 1000


__all__ = ["Record", "load_restricted", "loads_restricted"]


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
_RECORD_NAMES = {  # how protocols 0 and 1 make an object
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
_OPCODES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


def load_restricted(path: Path, *, records: bool = False) -> Any:
    """Return a pickle's content if it holds only arrays, texts, numbers, lists, tuples and dicts.

    Args:
        records: also read objects whose class is called ``Datum``, each as a ``Record``.

    Raises:
        DataError: unreadable, broken, or it asks for any other class or function.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return loads_restricted(raw, str(path), records=records)


def loads_restricted(raw: bytes, where: str, *, records: bool = False) -> Any:
    """Return the content of a pickle in memory, as ``load_restricted`` does.

    Args:
        where: the file, for messages.

    Raises:
        DataError: as ``load_restricted``.
    """
    try:
        content = _Machine(raw, records).load()
        check_plain(content)
    except Exception as error:  # a crafted stream can raise anything
        damaged = isinstance(error, EOFError | LookupError | struct.error)
        said = "it is damaged, or no pickle at all" if damaged else str(error)
        raise DataError(f"{where} is not a plain pickle of arrays and lists: {said}") from error
    return content


def _refuse(machine: _Machine) -> None:
    raise pickle.UnpicklingError("it uses an instruction that plain data does not need")


class _Machine(pickle._Unpickler):
    """The standard library's readable machine, with the instructions that make objects replaced.

    Its memo is a dict and its stack a list, so no index in the file can reserve memory.
    """

    stack: list[Any]
    metastack: list[list[Any]]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    load_mark: Callable[[], None]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code: pickle._Unpickler.dispatch[code] if name in _PLAIN else _refuse
        for code, name in _OPCODES.items() if code in pickle._Unpickler.dispatch
    }

    def __init__(self, raw: bytes, records: bool) -> None:
        super().__init__(io.BytesIO(raw), encoding="latin1")
        self.records = records
        self.left = 16 * len(raw) + 2**20  # bytes that may still be copied out of the stream
        self.calls: dict[_Mark, Callable[..., Any]] = {
            _Mark.DTYPE: PlainDtype,
            _Mark.RECONSTRUCT: _empty_array,
            _Mark.SCALAR: pickles_numpy.scalar,
            _Mark.BUFFER: pickles_numpy.from_buffer,
            _Mark.ENCODE: _latin1,
            _Mark.BYTES: _no_bytes,
            _Mark.NEW: _new_record,
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return the mark of a known name; nothing is looked up anywhere else."""
        mark = _NAMES.get((module, name))
        if mark is None and self.records:
            mark = _Mark.RECORD if name == "Datum" else _RECORD_NAMES.get((module, name))
        if mark is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}"[:99])
        return mark

    def spend(self, size: int) -> None:
        """Count bytes copied; one part of the file copied again and again ends here."""
        self.left -= size
        if self.left < 0:
            raise pickle.UnpicklingError("it unpacks to far more than its size")

    def mark(self) -> None:
        if len(self.metastack) >= _MAX_MARKS:
            raise pickle.UnpicklingError("it is nested too deeply")
        self.load_mark()

    dispatch[pickle.MARK[0]] = mark

    def reduce(self) -> None:
        args = self.stack.pop()
        mark = self.stack[-1]
        if not isinstance(mark, _Mark) or mark not in self.calls or type(args) is not tuple:
            raise pickle.UnpicklingError("it calls what is no function known here")
        value = self.calls[mark](*args)
        self.spend(getattr(value, "nbytes", 0) or (len(value) if type(value) is bytes else 0))
        self.stack[-1] = value

    dispatch[pickle.REDUCE[0]] = reduce

    def new_object(self) -> None:
        args = self.stack.pop()
        if self.stack[-1] is not _Mark.RECORD or args != ():
            raise pickle.UnpicklingError("it makes an object of a class that is not known here")
        self.stack[-1] = Record()

    dispatch[pickle.NEWOBJ[0]] = new_object

    def build(self) -> None:
        state = self.stack.pop()
        value = self.stack[-1]
        if type(value) is np.ndarray:
            self.spend(pickles_numpy.set_array(value, state))
        elif type(value) is Record or type(value) is PlainDtype:
            value.build(state)
        else:
            raise pickle.UnpicklingError(f"it sets the state of a {type(value).__name__}")

    dispatch[pickle.BUILD[0]] = build

    def append_one(self) -> None:
        value = self.stack.pop()
        self._top(list).append(value)

    dispatch[pickle.APPEND[0]] = append_one

    def append_all(self) -> None:
        values = self.pop_mark()
        self._top(list).extend(values)

    dispatch[pickle.APPENDS[0]] = append_all

    def set_one(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._top(dict).update(pairs([key, value]))

    dispatch[pickle.SETITEM[0]] = set_one

    def set_all(self) -> None:
        items = self.pop_mark()
        self._top(dict).update(pairs(items))

    dispatch[pickle.SETITEMS[0]] = set_all

    def make_dict(self) -> None:
        items = self.pop_mark()  # changes what append is bound to
        self.append(pairs(items))

    dispatch[pickle.DICT[0]] = make_dict

    def byte_array(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))  # the standard one reserves what is asked for

    dispatch[pickle.BYTEARRAY8[0]] = byte_array

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise pickle.UnpicklingError(f"it fills a {type(self.stack[-1]).__name__}")
        return self.stack[-1]


def _empty_array(kind: Any = None, *_shape_and_code: Any) -> Any:
    if kind is not _Mark.NDARRAY:
        raise pickle.UnpicklingError("only plain arrays may be rebuilt")
    return np.ndarray(0, dtype=np.int8)  # its state follows in the stream


def _latin1(*args: Any) -> bytes:
    if len(args) != 2 or type(args[0]) is not str or args[1] != "latin1":
        raise pickle.UnpicklingError("only latin1 bytes may be decoded")
    return args[0].encode("latin1")


def _no_bytes(*args: Any) -> bytes:
    if args:
        raise pickle.UnpicklingError("only empty bytes may be made by a call")
    return b""


def _new_record(*args: Any) -> Record:
    if args != (_Mark.RECORD, _Mark.OBJECT, None):
        raise pickle.UnpicklingError("it makes an object of a class that is not known here")
    return Record()
