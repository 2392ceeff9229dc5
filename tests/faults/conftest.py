"""Files of the tests of faults lie in memory: 50,000 renames, a third of their time on a disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY = Path("/dev/shm")
LEAST = 2**28  # bytes that are free there


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own, in memory where there is room."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < LEAST:
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)
