"""The folder with configs, and a verb that is one file in another folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedvlm.cli import results
from tests.job.house import make_house

house = pytest.fixture(make_house, name="house")

TOY = '''"""A verb for the tests. And nothing else."""

from fedvlm.console.screen import say

EXAMPLES = ("fedvlm toy-verb fish", "fedvlm toy-verb fish --loud")
ALSO = ("plaything",)


def flags(parser):
    parser.add_argument("what", help="a word")
    parser.add_argument("--loud", action="store_true", help="in capitals")


def main(args):
    say(args.what.upper() if args.loud else args.what)
    return 7
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that adds a verb to the section of the results: one file of this text."""
    monkeypatch.setattr(results, "__path__", [*results.__path__, str(tmp_path)])

    def add(text: str = TOY) -> None:
        (tmp_path / "toy_verb.py").write_text(text)
        monkeypatch.delitem(sys.modules, "fedvlm.cli.results.toy_verb", raising=False)

    return add
