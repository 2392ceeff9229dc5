"""numpy values out of a pickle's parts, each part checked before numpy sees it.

``numpy.dtype`` and ``numpy.ndarray`` set their own state without checking that it fits together:
flags of one dtype over the bytes of another make numbers into pointers, and a list that is too
short is read past its end. So only a few dtypes are known here, and sizes are compared first.
"""

from __future__ import annotations

import math
import re
from pickle import UnpicklingError
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CODE = re.compile(r"[|<>=]?(?:b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,8}|O[48]?)")
_ITEMS = (str, bytes, bool, int, float, np.generic, type(None))  # of an array of objects
_MAX_DIMS = 32
_MAX_CODE_POINT = 0x10FFFF


class PlainDtype:
    """Stands for a ``numpy.dtype`` while the stream is read; never part of the result.

    Args:
        args: what the pickle calls ``numpy.dtype`` with: (code, align, copy).

    Raises:
        UnpicklingError: any dtype but numbers, texts, bytes and objects.
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


def set_array(array: NDArray[Any], state: Any) -> int:
    """Give an array just made its content from the pickle; returns the bytes it takes.

    Args:
        array: an empty int8 array.
        state: (version, shape, dtype, column order, bytes or list of objects).

    Raises:
        UnpicklingError: content that does not fit shape and type, or an array built twice.
    """
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], PlainDtype):
        raise UnpicklingError("an array's state is not (version, shape, type, order, content)")
    if array.size or array.dtype != np.int8:
        raise UnpicklingError("an array is built twice")
    _, shape, kind, columns, content = state
    dtype, count = kind.dtype, _count(shape)
    if dtype.kind == "O":
        if type(content) is not list or len(content) != count:
            raise UnpicklingError(f"an array of shape {shape} has not that many objects")
        if not all(isinstance(item, _ITEMS) for item in content):
            raise UnpicklingError("an array holds objects that are no text or number")
    else:
        content = _raw(content, dtype, count)
    checked: Any = (1, shape, dtype, bool(columns), content)
    array.__setstate__(checked)
    return array.nbytes


def scalar(*args: Any) -> np.generic:
    """Return a numpy number or text from its dtype and bytes.

    Raises:
        UnpicklingError: bytes that do not fit the type.
    """
    if len(args) != 2 or not isinstance(args[0], PlainDtype) or args[0].dtype.kind == "O":
        raise UnpicklingError("a numpy scalar is not (type, bytes)")
    dtype = args[0].dtype
    value = np.frombuffer(_raw(args[1], dtype, 1), dtype)[0]
    return value  # type: ignore[no-any-return]


def from_buffer(*args: Any) -> NDArray[Any]:
    """Return an array from the parts that protocol 5 writes.

    Args:
        args: (bytes, dtype, shape, order), and the order of axes where order is ``K``.

    Raises:
        UnpicklingError: content that does not fit shape and type.
    """
    if len(args) not in (4, 5) or not isinstance(args[1], PlainDtype) or args[1].dtype.kind == "O":
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
            raise UnpicklingError("an array of texts holds what is no character")
    return bytes(content)
