"""``config``: the reference of keys."""

from __future__ import annotations

from fedvlm.cli.methods.config import reference_lines
from fedvlm.cli.verbs import verbs
from fedvlm.config.keys import default_schema
from fedvlm.job.flags import FLAGS


def test_help_is_short_and_complete():
    page = verbs()["run"].parser().format_help().splitlines()
    assert len(page) <= 60 and max(map(len, page)) <= 100
    assert all(any(f.names[0] in line for line in page) for f in FLAGS if f.group)
    reference = reference_lines(default_schema(), "fed.")
    assert any(line.startswith("FED.ROUNDS 10 ") for line in reference)
