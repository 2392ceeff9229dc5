"""What sweeps say of themselves."""

from __future__ import annotations

from pathlib import Path

from fedvlm.report.pages.journal import journals


def test_damaged_plans_are_named(tmp_path: Path):
    folder = tmp_path / "sweeps" / "x"
    folder.mkdir(parents=True)
    (folder / "plan.yaml").write_text("a: [")
    found, problems = journals([tmp_path])
    assert found[0].name == "x" and found[0].cells == 0
    assert len(problems) == 1 and "plan.yaml" in problems[0]
