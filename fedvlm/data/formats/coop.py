"""CoOp's ``split_zhou_*.json``: ``{"train": [[path, label, class name], ...], "val", "test"}``.

A fourth entry, the domain's name, is accepted for own multi-domain sets. Reading a split touches no
image; every row is checked, since the file comes from outside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import check_relative, image_key, read_json_file

READER = "coop"


def read_coop(_folder: Path, info: CopyInfo) -> DatasetBase:
    """Read the split file ``info.files``; the image folder need not exist.

    Raises:
        DataError: wrong schema, a path that is absolute or holds ``..``, a label that is not a
            whole number from 0.
    """
    (path,) = info.files
    content = read_json_file(path)
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
        lists[part] = _data(rows, f"{path}: {part}", info, domains)
    if "" in domains and len(domains) > 1:
        raise DataError(f"{path}: some rows name a domain and some do not; name it in all or none")
    names = [name for name in domains if name]
    return DatasetBase.of(lists, names)


def _data(
    rows: list[Any], where: str, info: CopyInfo, domains: dict[str, int]
) -> list[Datum]:
    items = []
    for i, row in enumerate(rows):
        try:
            items.append(_datum(row, f"{where}[{i}]", info.images, domains))
        except DataError as error:
            if info.faults is None:
                raise
            info.faults.append(str(error))
    return items


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
