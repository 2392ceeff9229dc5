"""Clients, groups and classes out of an image's path: ``{client}/{class}/*``, ``patient{group}``.

A pattern with a ``/`` is the whole path below the image folder; one without is any one part of it,
a folder's name or the file's. ``{word}`` stands for a text without ``/`` and is as short as it can
be, ``*`` for anything without ``/``; ``{client}``, ``{group}``, ``{class}`` and ``{split}`` are
read, other words are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from fedvlm.core.errors import DataError, one_form
from fedvlm.data.datum import Datum
from fedvlm.data.locate import image_files

_READ = ("client", "group", "class", "split")


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern, and no list of columns."""
    return "{" in text


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    words = re.split(r"(\{[^{}]*\}|\*)", pattern)
    seen: set[str] = set()
    out = []
    for word in words:
        name = word[1:-1] if word.startswith("{") and word.endswith("}") else ""
        if name in _READ and name not in seen:
            seen.add(name)
            out.append(f"(?P<{name}>[^/]+?)")
        elif name:
            out.append("[^/]+?")
        else:
            out.append("[^/]*" if word == "*" else re.escape(word))
    return re.compile("".join(out))


def read_path(pattern: str, key: str) -> dict[str, str]:
    """Return what a path says by a pattern; nothing where it is not of that form."""
    form = _compiled(pattern)
    for text in [key] if "/" in pattern else key.split("/"):
        found = form.fullmatch(text)
        if found:
            return {k: v for k, v in found.groupdict().items() if v}
    return {}


def mark(items: Sequence[Datum], clients_by: str, groups: str) -> list[Datum]:
    """Return images with the clients and groups that patterns read off their paths.

    Raises:
        DataError: a path that is not of a pattern's form.
    """
    done = list(items)
    if is_pattern(clients_by):
        done = [replace(d, client=_said(clients_by, d.key, "client", "--clients-by")) for d in done]
    if is_pattern(groups):
        done = [replace(d, group=_said(groups, d.key, "group", "--groups")) for d in done]
    return done


def _said(pattern: str, key: str, word: str, flag: str) -> str:
    value = read_path(pattern, key).get(word, "")
    if not value:
        raise DataError(f"{flag} '{pattern}': '{key}' is not of that form, or the pattern has no "
                        f"{{{word}}}; write {{{word}}} for what names it, * for anything else")
    return one_form(value)


def files_of(folder: Path, pattern: str, drop: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """Return (path, class, part) of every image below a folder, by a pattern with ``{class}``.

    Raises:
        DataError: a path that is not of the form, or no image.
    """
    rows = []
    for key in image_files(folder):
        if {*map(one_form, key.split("/"))} & {*drop}:
            continue
        said = read_path(pattern, key)
        if "class" not in said:
            raise DataError(f"--clients-by '{pattern}': '{key}' is not of that form; write "
                            "{class} and {client} for the folders that name them, * for anything "
                            "else, or leave a folder out with DATASET.LEAVE_OUT")
        rows.append((key, one_form(said["class"]), said.get("split", "")))
    if not rows:
        raise DataError(f"{folder} holds no image")
    return rows
