"""``config``: the reference of keys."""

from __future__ import annotations

from fedvlm.cli.methods.config import reference_lines
from fedvlm.cli.verbs import verbs
from fedvlm.config.keys import default_schema
from fedvlm.job.flags import FLAGS


def test_help_is_complete_and_has_other_spellings_last():
    page = verbs()["run"].parser().format_help().splitlines()
    assert len(page) <= 100 and max(map(len, page)) <= 100
    at = {f: next(i for i, line in enumerate(page) if f"  {f.names[0]}" in line) for f in FLAGS}
    assert max(i for f, i in at.items() if f.group) < min(i for f, i in at.items() if not f.group)
    reference = reference_lines(default_schema(), "fed.")
    assert any(line.startswith("FED.ROUNDS 10 ") for line in reference)
