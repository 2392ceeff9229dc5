"""Texts of others: which can be a name, what is said of a class, how they go into a table file.

Of a class a template speaks, with ``{}`` for its name, or sentences written for it. Sentences are
kept as templates are, as text: the JSON object of the classes' n-th sentences, by name. So they go
wherever a template goes; a class may have fewer than another. Sources: Radford et al. 2021 (several
templates), Pratt et al. 2023 (CuPL: descriptions by class).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from fedvlm.core.errors import DataError, did_you_mean, fold

MAX_NAME = 300  # characters
SIMULATED = "simulated-text"  # a text tower that stands in for weights that are not here
NOT_RANKED = (f"not ranked: the text tower of some of these runs is simulated ({SIMULATED}), so "
              "they say nothing about methods on published weights")
_REFUSED = {"Cc": "a control character", "Cs": "half a surrogate pair", "Zl": "a line separator",
            "Zp": "a paragraph separator"}
# Marks that turn the direction of what follows them.
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and signs that show nothing
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def name_fault(name: str) -> str:
    """Return what keeps a text from being a name, in words; empty where nothing does."""
    kinds = {c: unicodedata.category(c) for c in set(name)}
    for c, kind in sorted(kinds.items()):
        if kind in _REFUSED or c in _TURNS:
            what = _REFUSED.get(kind, "a mark that turns the direction of what follows")
            return f"holds {what} (U+{ord(c):04X})"
    if not any(kind[0] not in "CZ" and c not in _BLANK for c, kind in kinds.items()):
        return "shows nothing"
    return f"is longer than {MAX_NAME} characters" if len(name) > MAX_NAME else ""


def visible_text(text: str, keep: str = "") -> str:
    """Return a text of somebody else's as a terminal, a file of lines or a message can hold it.

    Control characters, marks that turn the direction of text and line separators are written as
    escapes (``\\x1b``); letters of every script stay.

    Args:
        keep: control characters that stay: line ends where lines are meant.
    """
    if text.isprintable() and not _TURNS.intersection(text):
        return text
    return "".join(
        c if c in keep or (c.isprintable() and c not in _TURNS)
        else c.encode("unicode_escape").decode() for c in text
    )


def site_words(name: str) -> str:
    """Return ``site NAME``; of a name that begins with the word the name alone."""
    return name if name.casefold().startswith("site") else f"site {name}"


def show_name(name: str) -> str:
    """Return a faulty name as a message can hold it."""
    return ascii(name if len(name) <= 60 else name[:57] + "...")


def quote_name(name: str) -> str:
    """Return a name of others in quotes, as a message can hold it."""
    return show_name(name) if name_fault(name) else f"'{name}'"


def cell_text(value: Any) -> Any:
    """Return a cell that no spreadsheet runs: a text that begins a formula gets ``'`` before it."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _is_number(value):
        return f"'{value}"
    return value


def text_of_cell(cell: str) -> str:
    """Return what ``cell_text`` was given."""
    quoted = cell.startswith("'") and cell[1:].startswith(_FORMULA) and not _is_number(cell[1:])
    return cell[1:] if quoted else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def described(sentences: Mapping[str, Sequence[str]]) -> list[str]:
    """Return templates, the n-th with the n-th sentence of each class that has so many."""
    most = max(map(len, sentences.values()))
    return [
        json.dumps({c: some[n] for c, some in sentences.items() if n < len(some)},
                   ensure_ascii=False)
        for n in range(most)
    ]


def is_described(template: str) -> bool:
    """Tell whether a template holds sentences by class."""
    return template.startswith('{"')


def fill(template: str, name: str) -> str | None:
    """Return what a template says of a class; None: it has no sentence of this class."""
    if is_described(template):
        return _by_class(template).get(fold(name))
    return template.replace("{}", name.replace("_", " "))


def check_described(templates: Sequence[str], names: Sequence[str], where: str) -> None:
    """Refuse classes that sentences were not written for.

    Args:
        where: what holds the sentences, for the message.

    Raises:
        DataError: names the first such class and the nearest one that is there.
    """
    told = [t for t in templates if is_described(t)]
    if len(told) < len(templates) or not told:
        return
    for name in names:
        if all(fill(t, name) is None for t in told):
            known = list(dict.fromkeys(c for t in told for c in json.loads(t)))
            raise DataError(
                f"{where} has no sentences for the class '{name}'{did_you_mean(name, known)}"
            )


def texts_covered(shared: Sequence[str], own: Mapping[int, Sequence[str]]) -> list[Any]:
    """Return what a digest covers of everybody's templates and of those of single clients."""
    return [*shared, [[c, list(own[c])] for c in sorted(own)]] if own else list(shared)


@lru_cache(maxsize=256)
def _by_class(template: str) -> dict[str, str]:
    return {fold(name): text for name, text in json.loads(template).items()}
