"""Folders and files: found, or named with what is there instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datasets import load_dataset
from tests.data.miniatures.own import config, write_tree


def folders(root: Path) -> Any:
    return load_dataset(config(root, root / "cache", DATASET__DIR="mine"))


def test_a_closed_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Path.is_dir`` raises there, and ``os.walk`` leaves it out; root is never refused."""
    write_tree(tmp_path / "mine", [""], ["cat", "dog"], 4)
    closed = tmp_path / "mine" / "dog"
    real = Path.stat

    def stat(path: Path, **more: Any) -> Any:
        if closed in (path, *path.parents):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        with pytest.raises(DataError, match="cannot read .*mine/dog: Permission denied; you need"):
            folders(tmp_path)

    scandir = __import__("os").scandir

    def scan(path: Any) -> Any:
        if Path(path) == closed / "below":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    write_tree(closed, [""], ["below"], 1)
    monkeypatch.setattr("os.scandir", scan)
    with pytest.raises(DataError, match="cannot read the folder .*dog/below: Permission denied"):
        folders(tmp_path)
