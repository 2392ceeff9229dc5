"""What ``conftest.py`` does to all tests: a second chance for those of several processes."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems


class Item:
    """A collected test; ``marks``: what it was given."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.marks = module, list[Any]()
        self.add_marker = self.marks.append


@pytest.mark.parametrize(("reruns", "chances"), [(None, 1), (2, 1), (0, 0)])
def test_reruns_0_takes_the_second_chance_away(reruns: int | None, chances: int) -> None:
    """Of a test whose module (this one) knows of processes; another has none anyway."""
    assert subprocess.__name__ in vars(sys.modules[__name__])
    several, other = Item(sys.modules[__name__]), Item(ModuleType("other"))
    config: Any = SimpleNamespace(getoption=lambda name: reruns)
    items: list[Any] = [several, other]
    pytest_collection_modifyitems(config, items)
    assert (len(several.marks), len(other.marks)) == (chances, 0)
