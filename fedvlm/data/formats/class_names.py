"""Class names from a file, for sets whose folders or labels are codes.

Read are ``code<tab or blank>name`` a line (``words.txt``, ``classnames.txt``), one name a line (for
numbers from 0), and JSON: ``{"code": "name"}``, a list of names, or ImageNet's class index
``{"0": ["n01440764", "tench"]}``. Of WordNet's synonyms the first is taken. A name that two codes
share gets the number of its turn behind it, in the order of the codes, as in ImageNet's list.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold, one_form
from fedvlm.core.files import user_path
from fedvlm.data.locate import read_json_file, read_lines

_CODE = re.compile(r"[A-Za-z]{0,2}[-_]?\d+|(class|cls|label|id)[-_]?\d+", re.IGNORECASE)
_HUMPS = re.compile(r"[A-Z]{2,}(?![a-z])\d*|[A-Z]?[a-z]+\d*")  # MRI, Scan
WORDS = "words"  # DATASET.CLASSNAMES: words of the folders' names


def read_class_names(path: Path, codes: Sequence[str] = ()) -> dict[str, str]:
    """Return name by code, in one Unicode form; where ``codes`` are given, of these.

    Args:
        codes: the set's folders or labels, each of which must have a name.

    Raises:
        DataError: the file cannot be read, or lacks one of ``codes``.
    """
    codes = [*map(one_form, codes)]
    names = _of_json(path) if path.suffix.lower() == ".json" else _of_lines(path, codes)
    if codes:
        absent = [code for code in codes if code not in names]
        if absent:
            raise DataError(
                f"{path} has no name for {len(absent)} of {len(codes)} classes (first: "
                f"'{absent[0]}'{did_you_mean(absent[0], names)})"
            )
        names = {code: names[code] for code in codes}
    return distinct_names(names)


def has_names(path: Path, codes: Sequence[str]) -> bool:
    """Return whether a file names all of these codes."""
    try:
        return bool(codes) and {*map(one_form, codes)} <= set(read_class_names(path))
    except DataError:
        return False


def _of_lines(path: Path, codes: Sequence[str]) -> dict[str, str]:
    lines = [one_form(text) for _, text in read_lines(path)]
    if not lines:
        raise DataError(f"{path} is empty; a line is '<folder> <class name>'")
    pairs = [_pair(line) for line in lines]
    listed = set(codes) & {code for code, name in pairs if name}
    if listed or all(name and is_code(code) for code, name in pairs):
        return {code: name.split(",")[0].strip() if "\t" in line else name
                for line, (code, name) in zip(lines, pairs, strict=True)}
    return {str(number): name for number, name in enumerate(lines)}


def _pair(line: str) -> tuple[str, str]:
    separator = next((mark for mark in "\t:," if mark in line), None)
    code, name = (*line.split(separator, 1), "")[:2]
    return code.strip(), name.strip()


def is_code(word: str) -> bool:
    """Return whether a name says nothing to a text tower: ``n01440764``, ``0``, ``c12``."""
    return bool(_CODE.fullmatch(word))


def _of_json(path: Path) -> dict[str, str]:
    content = read_json_file(path)
    if isinstance(content, list):
        content = {str(number): name for number, name in enumerate(content)}
    if not isinstance(content, dict) or not content:
        raise DataError(f'{path}: class names in JSON are {{"folder": "name"}} or a list of names')
    names: dict[str, str] = {}
    for code, value in content.items():
        pair = _json_pair(code, value)
        if pair is None:
            raise DataError(f"{path}: '{code}' has no class name, but {str(value)[:40]!r}")
        names[one_form(pair[0])] = one_form(pair[1])
    if all(type(v) is int for v in content.values()):  # {"name": 0}, the other way round
        return {str(number): one_form(code) for code, number in content.items()}
    return names


def _json_pair(code: str, value: Any) -> tuple[str, str] | None:
    if isinstance(value, str) and value.strip():
        return code, value.strip()
    if isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value):
        return value[0], value[1]
    return (code, code) if type(value) is int else None


def distinct_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return code -> name by code; the second of one name is ``name (2)``."""
    times: Counter[str] = Counter()
    distinct = {}
    for code in sorted(names):
        name = names[code]
        times[name] += 1
        distinct[code] = name if times[name] == 1 else f"{name} ({times[name]})"
    return distinct


# ---- names for folders that are words run together, and names that the user gives ---------------
def folder_words(name: str) -> str:
    """Return a folder's name as words: ``AnnualCrop`` annual crop, ``MRI_scan`` MRI scan.

    Words in capitals stay; others that were joined lose their capitals. Codes stay as they are, and
    so do names of one word, and those with a piece of one letter (``iPhone``).
    """
    spaced = " ".join(name.replace("_", " ").split())
    if is_code(name):
        return name
    return " ".join(_split_humps(word) for word in spaced.split(" "))


def _split_humps(word: str) -> str:
    pieces = _HUMPS.findall(word)
    if len(pieces) < 2 or "".join(pieces) != word or any(len(p) < 2 for p in pieces):
        return word
    return " ".join(p if p.isupper() else p[0].lower() + p[1:] for p in pieces)


def runs_together(names: Sequence[str]) -> list[str]:
    """Return those of the names that ``folder_words`` takes apart at capitals."""
    return [name for name in names if folder_words(name) != " ".join(name.split("_"))
            and not is_code(name)]


def read_given(word: str) -> str:
    """Return what ``--classnames`` says as DATASET.CLASSNAMES has it: of a file its names, as JSON.

    Raises:
        DataError: the file cannot be read.
    """
    path = user_path(word)
    if not word or "," in word or not (path.is_file() or path.suffix in (".txt", ".json")):
        return word
    names = read_class_names(path)
    in_order = list(names) == [str(n) for n in range(len(names))]
    return json.dumps(list(names.values()) if in_order else names, ensure_ascii=False)


def given_names(text: str, present: Sequence[str]) -> list[str]:
    """Return the names of DATASET.CLASSNAMES, by label.

    Args:
        text: ``words``; ``a,b,c`` for all classes in their order; ``folder=name,...`` or JSON
            ``{"folder": "name"}`` for some, where a number is a label.
        present: the names as folders or tables have them, by label; a key may spell one's words
            in another way (the column ``has_tumor`` of the label "has tumor").

    Raises:
        ConfigError: too few names or too many, or a class that is not there.
    """
    text = one_form(text)
    if text == WORDS:
        return _without_twins([folder_words(name) for name in present], present)
    if text[:1] in ("{", "["):
        found = _json_names(text)
    else:
        parts = [part.strip() for part in text.split(",")]
        pairs = [part.partition("=") for part in parts]
        found = {k.strip(): n.strip() for k, _, n in pairs} if "=" in text else parts
        if len(found) < len(parts):
            keys = [key.strip() for key, _, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConfigError(f"--classnames names the class '{twice}' twice; keep one")
    if isinstance(found, list):
        if len(found) != len(present):
            raise ConfigError(
                f"--classnames gives {len(found)} names for {len(present)} classes; give one for "
                f"each, in this order: {', '.join(present)} (or some: {present[0]}=NAME)"
            )
        return found
    names = list(present)
    for key, name in found.items():
        label = _label_of(key, present)
        if not 0 <= label < len(present):
            raise ConfigError(f"--classnames: there is no class '{key}'"
                              f"{did_you_mean(key, present)} (classes: {', '.join(present)})")
        names[label] = name
    return names


def _label_of(key: str, present: Sequence[str]) -> int:
    """Return the label that a key means, a name or a number; -1 for none.

    A number is no other spelling of a name: 10 is not the folder ``1_0``.
    """
    if key in present:
        return present.index(key)
    if key.isdecimal():
        return int(key)
    alike = [i for i, name in enumerate(present) if fold(name) == fold(key)]
    return alike[0] if len(alike) == 1 else -1


def _without_twins(names: Sequence[str], present: Sequence[str]) -> list[str]:
    """Return the names; where words make two classes one, they stay as they were."""
    times = Counter(map(fold, names))
    return [name if times[fold(name)] == 1 else old
            for name, old in zip(names, present, strict=True)]


def _json_names(text: str) -> dict[str, str] | list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, list):
        return [str(name) for name in found]
    if not isinstance(found, dict):
        raise ConfigError('DATASET.CLASSNAMES: JSON class names are {"folder": "name"} or a list')
    return {str(key): str(name) for key, name in found.items()}
