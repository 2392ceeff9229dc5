"""The table of ``docs/faults.md`` is what its script writes."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, NUMBER
from tests.jobs import REPOSITORY


@pytest.mark.slow
def test_the_table_of_faults_is_made_by_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers aside: norms are of this machine."""
    spec = importlib.util.spec_from_file_location(
        "fault_table", REPOSITORY / "scripts" / "fault_table.py"
    )
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)  # where its dataclasses look
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the script lengthens
    spec.loader.exec_module(script)
    page = shutil.copy(DOCS / "faults.md", tmp_path / "faults.md")
    script.main(page)
    ours, theirs = (re.sub(NUMBER, "N", path.read_text()) for path in (page, DOCS / "faults.md"))
    assert ours == theirs and ours.count("\n| ") > 25
