"""Lists in text, one ``path label`` a line: DomainNet's, Dassl's and PACS's folds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from fedvlm.data.datum import PARTS
from fedvlm.data.domain_rows import Row, below, tree_of_rows
from fedvlm.data.facts import Facts
from fedvlm.data.readers import Tree
from fedvlm.errors import DataError

_DIGITS = 6


def read_lists(
    folder: Path,
    facts: Facts,
    *,
    files: Mapping[str, str],
    images: str = "",
    first: int = 0,
) -> Tree:
    """Read a set whose lists are text files; class names are the folders that images lie in.

    Args:
        files: part to list below ``folder``, with ``{}`` for the domain.
        images: what the lists' paths are relative to, below ``folder``.
        first: the number of the first label (PACS counts from 1).

    Raises:
        DataError: a list that cannot be read, a line that is not ``path label``, or rows that do
            not agree.
    """
    rows: list[Row] = []
    anchors = tuple(dict.fromkeys((folder.name, facts.folder, facts.name)))
    for number, domain in enumerate(facts.domains):
        for part in PARTS:
            if part in files:
                path = folder / files[part].format(domain)
                for where, name, label in _lines(path, first):
                    key = below(name, anchors, domain, where)
                    rows.append(Row(key, key.split("/")[-2], label, number, part, where))
    return tree_of_rows(rows, folder / images, facts, [])


def _lines(path: Path, first: int) -> Iterator[tuple[str, str, int]]:
    """Yield (file and line, path, label from 0)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a list in UTF-8: {error.reason}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        name, label = (line.strip().rsplit(None, 1) + [""])[:2]
        if not (label.isascii() and label.isdigit()) or len(label) > _DIGITS:
            raise DataError(f"{where}: a line is 'path label', not '{line.strip()[:60]}'")
        if int(label) < first:
            raise DataError(f"{where}: label {label}, but this list counts from {first}")
        yield where, name, int(label) - first
