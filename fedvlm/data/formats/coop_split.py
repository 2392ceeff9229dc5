"""CoOp's ``split_zhou_*.json``: ``{"train": [[path, label, class name], ...], "val", "test"}``.

A fourth entry, the domain's name, is accepted for own multi-domain sets. Reading a split touches no
image; every row is checked, since the file comes from outside.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.locate import check_relative


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        DataError: unreadable, not UTF-8 or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number too long
        raise DataError(f"{path} is not a JSON file: {error}") from error


def read_split(path: Path, image_dir: Path, faults: list[str] | None = None) -> DatasetBase:
    """Read a split file.

    Args:
        path: the JSON file.
        image_dir: what its paths are relative to; it need not exist.
        faults: takes a sentence for each wrong row, which is then left out (the doctor's way);
            None ends the reading at the first.

    Raises:
        DataError: wrong schema, a path that is absolute or holds ``..``, a label that is not a
            whole number from 0.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: a split file is an object with lists under train, val and test")
    others = sorted(set(content) - set(PARTS))
    if others:
        near = did_you_mean(others[0], PARTS)
        raise DataError(f"{path}: unknown part '{others[0]}'{near} (known: {', '.join(PARTS)})")
    for part in ("train", "test"):
        if not isinstance(content.get(part), list) or not content[part]:
            raise DataError(f"{path}: '{part}' must be a list of [path, label, class name]")
    domains: dict[str, int] = {}
    lists: dict[str, list[Datum]] = {}
    for part in PARTS:
        rows = content.get(part, [])
        if not isinstance(rows, list):
            raise DataError(f"{path}: '{part}' must be a list of [path, label, class name]")
        where = f"{path}: {part}"
        lists[part] = _data(rows, where, image_dir, domains, faults)
    if "" in domains and len(domains) > 1:
        raise DataError(f"{path}: some rows name a domain and some do not; name it in all or none")
    names = [name for name in domains if name]
    return DatasetBase.of(lists, names)


def _data(
    rows: list[Any], where: str, image_dir: Path, domains: dict[str, int], faults: list[str] | None
) -> list[Datum]:
    items = []
    for i, row in enumerate(rows):
        try:
            items.append(_datum(row, f"{where}[{i}]", image_dir, domains))
        except DataError as error:
            if faults is None:
                raise
            faults.append(str(error))
    return items


def image_key(relative: str) -> str:
    """Return a path as it is compared: ``./a.jpg`` and ``a.jpg`` are one image."""
    return "/".join(p for p in relative.replace("\\", "/").split("/") if p not in ("", "."))


def _datum(row: Any, where: str, image_dir: Path, domains: dict[str, int]) -> Datum:
    if not isinstance(row, list) or len(row) not in (3, 4):
        raise DataError(f"{where}: a row is [path, label, class name], not {_short(row)}")
    relative, label, classname = row[:3]
    if not isinstance(relative, str) or not relative:
        raise DataError(f"{where}: the path must be a string, not {_short(relative)}")
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < 10**6:
        raise DataError(f"{where}: the label must be a whole number from 0, not {_short(label)}")
    if not isinstance(classname, str) or not classname.strip():
        raise DataError(f"{where}: the class name must be a string, not {_short(classname)}")
    check_relative(relative, where)
    domain = row[3] if len(row) == 4 else ""
    if not isinstance(domain, str) or (len(row) == 4 and not domain):
        raise DataError(f"{where}: the domain must be a name, not {_short(domain)}")
    key = image_key(relative)
    number = domains.setdefault(domain, len(domains))
    return Datum(str(image_dir / key), label, number, classname, key)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
