"""``show``: the numbers of a run, or what is there instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.cli import main as cli


def test_show_prints_results_or_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["show", str(tmp_path)]) == 3
    assert "is the run finished?" in capsys.readouterr().err
    (tmp_path / "results.json").write_text("{")
    assert cli.main(["show", str(tmp_path)]) == 3
    (tmp_path / "results.json").write_text(json.dumps({"personal": {"accuracy": 81.2, "all": [1]}}))
    assert cli.main(["show", str(tmp_path)]) == 0
    assert "personal.accuracy 81.2" in capsys.readouterr().out
