"""Knobs: what may be tuned of a method, and in which range, as its card declares it beforehand.

``Knobs: MU 0.001 to 1 log; TAU 0.1 to 1; PREDICT prototype | head.`` or ``Knobs: none.`` A name is
a key of the method's own node; a full key (``OPTIM.NAME sgd``) with one value fixes that key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedvlm.config.option import Schema
from fedvlm.core.errors import ConfigError, did_you_mean

MOST = 2  # knobs of a method; those with one value are fixed and do not count
NONE = "none"
_RANGE = re.compile(r"(\S+) (?:to|-) (\S+)( log)?")


@dataclass(frozen=True)
class Knob:
    """A config key and the values that a search may give it.

    Attributes:
        key: full config key.
        choices: its values as words; empty for a range.
        low, high: ends of a range, both included.
        log: the range is searched by orders of magnitude.
        whole: whole numbers only.
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.choices) == 1

    def __str__(self) -> str:
        if self.choices:
            return f"{self.key} {' | '.join(self.choices)}"
        return f"{self.key} {self.low:g} to {self.high:g}{' log' if self.log else ''}"


def read_knobs(text: str, method: str, schema: Schema) -> tuple[Knob, ...]:
    """Return the knobs of a card's ``Knobs`` field.

    Args:
        text: the field; empty where a card has none: no knob.
        method: its name, for the node of short keys and for messages.
        schema: every key there is, the method's own included.

    Raises:
        ConfigError: a key that is none, a range that its option refuses, too many knobs.
    """
    body = " ".join(text.split()).rstrip(".")
    if body in ("", NONE):
        return ()
    knobs = tuple(_knob(part.strip(), method, schema) for part in body.split(";"))
    if sum(not knob.fixed for knob in knobs) > MOST:
        raise ConfigError(f"{method}: Knobs in its card declare more than {MOST} knobs: {body}")
    return knobs


def _knob(part: str, method: str, schema: Schema) -> Knob:
    name, _, values = part.partition(" ")
    key = name if "." in name else f"TRAINER.{method.upper()}.{name}"
    option = schema.get(key)
    if option is None:
        own = [k.rpartition(".")[2] for k in schema if k.startswith(f"TRAINER.{method.upper()}.")]
        raise ConfigError(
            f"{method}: Knobs in its card name '{name}', which is not a key"
            f"{did_you_mean(name, [*own, *schema])}"
        )
    span = _RANGE.fullmatch(values)
    if span is None:
        knob = Knob(key, tuple(word.strip() for word in values.split("|")))
        ends: tuple[str, ...] = knob.choices
    else:
        ends = span.group(1), span.group(2)
        try:
            low, high = map(float, ends)
        except ValueError:
            low = high = 0.0
        if not low < high or (span.group(3) and low <= 0):
            raise ConfigError(f"{method}: Knobs in its card have '{part}', which is not a "
                              "range; write KEY LOW to HIGH, with log only above 0")
        knob = Knob(key, (), low, high, bool(span.group(3)), option.kind is int)
    for word in ends:
        try:
            option.parse(word)
        except ValueError as error:
            raise ConfigError(f"{method}: Knobs in its card have '{part}': {key} {error}") from None
    return knob
