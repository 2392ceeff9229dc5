"""``DATASET.TEMPLATES``: a file of templates, or of sentences for each class."""

from __future__ import annotations

import json
from pathlib import Path

from fedvlm.core.errors import DataError, fold
from fedvlm.core.files import user_path
from fedvlm.core.spelling import described

MOST = 64 << 20  # bytes of such a file


def read_templates(word: str) -> list[str]:
    """Return the templates of a file.

    Args:
        word: a text file with one template on each line, ``{}`` for the class name; or JSON with a
            list of sentences for each class name, as CuPL's files are.

    Raises:
        DataError: no such file, or something else in it.
    """
    path = user_path(word)
    if not path.is_file():
        raise DataError(f"DATASET.TEMPLATES '{word}': no such file")
    if path.stat().st_size > MOST:
        raise DataError(f"DATASET.TEMPLATES '{word}' has more than {MOST:,} bytes")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"DATASET.TEMPLATES '{word}' is no UTF-8 text: {error.reason}") from error
    return _by_class(path, text) if text.lstrip()[:1] == "{" and path.suffix == ".json" else (
        _by_line(path, text)
    )


def _by_line(path: Path, text: str) -> list[str]:
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        if line.count("{}") != 1:
            raise DataError(
                f"{path}, line {number}: '{line[:80]}' must hold {{}} once, for the class name "
                "(sentences for each class are a .json file: {\"cat\": [\"a sentence\", ...]})"
            )
    if not lines:
        raise DataError(f"{path} has no template")
    return [line for _, line in lines]


def _by_class(path: Path, text: str) -> list[str]:
    try:
        table = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}") from error
    sentences: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    for name, some in table.items():
        some = [some] if isinstance(some, str) else some
        good = isinstance(some, list) and all(isinstance(s, str) and s.strip() for s in some)
        if not good or not some:
            raise DataError(f"{path}: '{name}' must have a list of sentences")
        if fold(name) in seen:
            raise DataError(f"{path} has '{name}' and '{seen[fold(name)]}': write the class once")
        seen[fold(name)] = name
        sentences[name] = [" ".join(s.split()) for s in some]
    if not sentences:
        raise DataError(f"{path} has no classes")
    return described(sentences)
