"""What a pickle that is read without trust may hold, and what it may not."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

MAX_DEPTH = 100
_MAX_FIELDS = 64
_KEYS = (str, bytes, bool, int, float, np.generic, type(None))
_VALUES = (*_KEYS, bytearray, np.ndarray)


class Record:
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
        named = isinstance(state, dict) and all(type(name) is str for name in state)
        if not named or len(state) > _MAX_FIELDS:
            raise pickle.UnpicklingError("a record's state is not a dict of its fields")
        self.fields = dict(state)


def pairs(items: list[Any]) -> dict[Any, Any]:
    """Return a dict; keys are plain, since hashing a deep tuple would overflow the C stack.

    Args:
        items: key, value, key, value, ...

    Raises:
        UnpicklingError: a key that is no text or number, or one without a value.
    """
    if not all(isinstance(key, _KEYS) for key in items[::2]):
        raise pickle.UnpicklingError("a dict has keys that are no text or number")
    return dict(zip(items[::2], items[1::2], strict=True))


def check_plain(content: Any) -> None:
    """Refuse marks left in the result, and nesting that would trap who walks it.

    Raises:
        UnpicklingError: anything but texts, numbers, arrays, records, lists, tuples and dicts.
    """
    level, seen = [content], set[int]()
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if type(value) in (list, tuple, dict, Record):
                if id(value) in seen:
                    continue
                seen.add(id(value))
                inner = value.fields if type(value) is Record else value
                below += inner.values() if type(inner) is dict else inner
            elif not isinstance(value, _VALUES):
                raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
        if not below:
            return
        level = below
    raise pickle.UnpicklingError("it is nested too deeply")
