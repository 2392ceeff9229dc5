"""The schema: a flat dict ``"FED.ROUNDS" -> Option`` that knows type, range and help of every key.

Dassl's tree (``dassl``) and ours (``keys``) are tables of such options; a trainer
adds ``TRAINER.<NAME>.*`` with ``declare``.
"""

from __future__ import annotations

import ast
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from fedvlm.core.errors import ConfigError, did_you_mean, fold

Value = Any  # bool, int, float, str, or a tuple or list of those: what yacs holds
Schema = dict[str, "Option"]

_WANTED = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list such as (1, 2)",
    list: "a list such as [1, 2]",
}


@dataclass(frozen=True)
class Option:
    """One key of the config: default, help and what it may hold.

    The default's type is the key's type. ``int`` is accepted where ``float`` is asked (yacs is
    stricter), a list where a tuple is asked and the reverse, ``a,b`` where a list of names is (a
    tuple whose default is empty); nothing else is converted.

    Attributes:
        default: value when nobody sets the key.
        help: one sentence for ``fedvlm config``.
        choices: the only values allowed (text is compared ignoring case, dash and underscore).
        low, high: bounds, inclusive unless ``low_open`` / ``high_open``; of a list, each element's.
        never: single values inside the bounds that make no sense.
        length: number of elements of a list; 0 is any.
        pattern: regex that text must match in full, with ``pattern_help`` saying it in words.
        aliases: other spellings of choices, ``{"pathological": "disjoint"}``.
        hints: what to write in the place of words that are no choices, ``{"patient": "group"}``.
        words: words for single numbers, ``{"auto": 0}``; the number is kept, bounds or
            not.
        used: False where nothing reads the key; it exists so that Dassl's YAML files load.
        neutral: of a key that came later: the value that means what runs did before it. At that
            value the key is no part of a run's identity, so that older folders stay theirs.
        moved: values that belong to a key beside this one now, ``{"T": "MODE"}``.
    """

    default: Value
    help: str
    _: KW_ONLY
    choices: tuple[Value, ...] | None = None
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    never: tuple[Value, ...] = ()
    length: int = 0
    pattern: str = ""
    pattern_help: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, int] = field(default_factory=dict)
    used: bool = True
    neutral: Value | None = None
    moved: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> type:
        """Type of the value."""
        return type(self.default)

    def parse(self, raw: Value) -> Value:
        """Return ``raw`` (a YAML value or a word of the command line) as this option's value.

        Raises:
            ValueError: what is wrong, as the end of a sentence that begins with the key.
        """
        if isinstance(raw, str) and fold(raw) in self.words:
            return self.words[fold(raw)]
        value = self._choose(self._coerce(self._decode(raw)))
        self._check_range(value)
        return value

    def _decode(self, raw: Value) -> Value:
        """Text is read as yacs reads it: a Python literal where it is one (``1e-5``, tuples)."""
        if self.kind is str and isinstance(raw, bool) and str(raw) in self.aliases:
            return str(raw)  # YAML takes a bare yes or no for a boolean
        if not isinstance(raw, str) or self.kind is str:
            return raw  # text stays as it was typed, whatever it looks like
        if self.kind is tuple and not self.default and raw.strip()[:1] not in ("(", "["):
            return _names(raw)
        if self.kind is bool and raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        return literal(raw)

    def _coerce(self, value: Value) -> Value:
        kind: type[Value] = self.kind
        if kind is float and type(value) is int:
            value = _float(value)
        elif kind in (tuple, list) and isinstance(value, (tuple, list)):
            return kind(self._item(v, value) for v in value)
        if type(value) is not kind:
            if kind in (int, float) and isinstance(value, tuple):
                raise ValueError(f"expects {_WANTED[kind]}, got several: {short_repr(value)}; one "
                                 "run has one value, fedvlm sweep runs several")
            raise ValueError(
                f"expects {_WANTED[kind]}, got {short_repr(value)} ({type(value).__name__})"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"expects a finite number, got {value}")
        return value

    def _item(self, value: Value, whole: Value) -> Value:
        """Check one element of a list against the first element of the default."""
        kinds = {type(v) for v in self.default} or {bool, int, float, str}
        if kinds == {float} and type(value) is int:
            value = _float(value)
        if type(value) not in kinds:
            wanted = " or ".join(sorted(k.__name__ for k in kinds))
            raise ValueError(f"expects a list of {wanted}, got {short_repr(whole)}")
        return value

    def _choose(self, value: Value) -> Value:
        if isinstance(value, str):
            value = next((to for a, to in self.aliases.items() if fold(a) == fold(value)), value)
            if self.pattern and not re.fullmatch(self.pattern, value):
                raise ValueError(f"must be {self.pattern_help or self.pattern}, got '{value}'")
        if self.choices is None:
            return value
        for choice in self.choices:
            if value == choice or (isinstance(value, str) and fold(value) == fold(str(choice))):
                return choice
        names = [str(c) or "''" for c in self.choices]
        hint = self.hints.get(fold(str(value)), "")
        raise ValueError(
            f"must be one of {', '.join(names)}; got {short_repr(value)}"
            f"{f'; use {hint}' if hint else did_you_mean(str(value), [*names, *self.aliases])}"
        )

    def _check_range(self, value: Value) -> None:
        items = value if self.kind in (tuple, list) else [value]
        if any(isinstance(v, (int, float)) and self._outside(v) for v in items):
            raise ValueError(f"must be {self.limits()}, got {short_repr(value)}")
        if self.length and len(items) != self.length:
            raise ValueError(f"expects {self.length} numbers, got {short_repr(value)}")

    def _outside(self, value: float) -> bool:
        too_low = self.low is not None and (
            value < self.low or (self.low_open and value == self.low)
        )
        too_high = self.high is not None and (
            value > self.high or (self.high_open and value == self.high)
        )
        return too_low or too_high or value in self.never

    def limits(self) -> str:
        """Return the bounds in words: ``above 0 and at most 1``; empty without bounds."""
        parts = []
        if self.low is not None:
            parts.append(f"{'above' if self.low_open else 'at least'} {_plain(self.low)}")
        if self.high is not None:
            parts.append(f"{'below' if self.high_open else 'at most'} {_plain(self.high)}")
        parts += [f"not {v}" for v in self.never]
        return " and ".join(parts)


def _names(raw: str) -> tuple[str, ...]:
    """Return the words of ``a,b``; a comma may end them (``ValueError``: two commas in a row)."""
    words = [word.strip() for word in raw.split(",")]
    if words[-1] == "":
        words.pop()
    if not all(words):
        raise ValueError(f"has a comma too many: {short_repr(raw)}")
    return tuple(words)


def _plain(bound: float) -> str:
    return f"{bound:.0f}" if float(bound).is_integer() and abs(bound) < 1e9 else f"{bound:g}"


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError("must be a finite number; this whole number is too large") from None


def literal(text: str) -> Value:
    """Return the Python literal in ``text``, or ``text`` itself where it is none (never code)."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def short_repr(value: Value) -> str:
    """Return a short ``repr`` for messages; long or deeply nested values are cut."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(value)


def present_key(key: str, value: Value, schema: Schema) -> str:
    """Return the key that holds ``value`` today: another one where it has moved."""
    option = schema.get(key)
    beside = None if option is None else option.moved.get(str(value))
    return key if beside is None else f"{key.rpartition('.')[0]}.{beside}"


def declare(schema: Schema, prefix: str, options: Mapping[str, Option]) -> Schema:
    """Return ``schema`` with ``options`` under ``prefix`` (``"TRAINER.FEDTV"``).

    A trainer's own node replaces a node of the same name that was there for foreign YAML files.

    Raises:
        ConfigError: an option is a bare value, or its default breaks its own rule (mistakes in the
            trainer's file).
    """
    merged = {k: o for k, o in schema.items() if not k.startswith(prefix + ".")}
    for name, option in options.items():
        if not isinstance(option, Option):
            raise ConfigError(
                f"{prefix}.{name} is {option!r} in the method's options, not Option({option!r}, "
                "'what it is'); from fedvlm.config.option import Option"
            )
        try:
            option.parse(option.default)
        except ValueError as error:
            raise ConfigError(f"{prefix}.{name}: its default {error}") from None
        merged[f"{prefix}.{name}"] = option
    return merged


def nodes(schema: Schema) -> set[str]:
    """Return the dotted names of all inner nodes: ``{"FED", "DATALOADER", "DATALOADER.TEST"}``."""
    inner = set()
    for key in schema:
        parts = key.split(".")
        inner |= {".".join(parts[:i]) for i in range(1, len(parts))}
    return inner
