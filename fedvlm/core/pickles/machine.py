"""The machine that reads pickles without trust: no name in a file is ever imported or called.

A pickle is a programme for a small machine. A reader of one kind of file derives from ``Machine``:
it says which instructions run as the standard library's do (``instructions``), gives a mark of its
own for each name that it knows (``find_class``), and replaces what would call something
(``REDUCE``, ``NEWOBJ``, ``BUILD``). Everything else is refused.

This stands on the private ``pickle._Unpickler``, the standard library's machine in Python: on its
dispatch table, stack and memo. There the memo is a dict and the stack a list, so that no index in a
file can reserve memory, as it does in the machine in C. A Python that changes these shows in the
tests of the readers.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable, Collection
from pickle import UnpicklingError
from typing import Any, ClassVar

MAX_MARKS = 1000
Instruction = Callable[[Any], None]
_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


class Machine(pickle._Unpickler):
    """The standard machine, with the instructions replaced that fill lists and dicts."""

    stack: list[Any]
    metastack: list[list[Any]]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    load_mark: Callable[[], None]
    dispatch: ClassVar[dict[int, Instruction]] = {}
    keys: ClassVar[tuple[type, ...]] = (str, int, float)  # of a dict

    def mark(self) -> None:
        if len(self.metastack) >= MAX_MARKS:
            raise UnpicklingError("it is nested too deeply")
        self.load_mark()

    dispatch[pickle.MARK[0]] = mark

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
        self._top(dict).update(self.pairs([key, value]))

    dispatch[pickle.SETITEM[0]] = set_one

    def set_all(self) -> None:
        items = self.pop_mark()
        self._top(dict).update(self.pairs(items))

    dispatch[pickle.SETITEMS[0]] = set_all

    def pairs(self, items: list[Any]) -> dict[Any, Any]:
        """Return a dict; keys are plain, since hashing a deep tuple would overflow the C stack.

        Args:
            items: key, value, key, value, ...

        Raises:
            UnpicklingError: a key that is none of ``keys``.
            ValueError: a key without a value.
        """
        if not all(isinstance(key, self.keys) for key in items[::2]):
            raise UnpicklingError("a dict has keys that are neither text nor numbers")
        return dict(zip(items[::2], items[1::2], strict=True))

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise UnpicklingError(f"it fills a {type(self.stack[-1]).__name__}")
        return self.stack[-1]


def instructions(plain: Collection[str], content: str) -> dict[int, Instruction]:
    """Return a reader's table of instructions, to which it adds its own.

    Args:
        plain: names (``pickletools``) of those that run as they do in the standard library.
        content: what such files hold, for the message that refuses any other instruction.
    """

    def refuse(_machine: Any) -> None:
        raise UnpicklingError(f"it uses an instruction that {content} not need")

    standard = pickle._Unpickler.dispatch
    table: dict[int, Instruction] = {
        code: standard[code] if name in plain else refuse
        for code, name in _NAMES.items() if code in standard
    }
    return table | Machine.dispatch
