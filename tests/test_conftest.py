"""What ``conftest.py`` does to all tests: a second chance for those of several processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.runs import manifest
from tests import process
from tests.conftest import is_parallel, pytest_collection_modifyitems


class Item:
    """A collected test; ``marks``: what it was given."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function, self.marks = function, list[Any]()
        self.add_marker = self.marks.append


class Starter:
    """Starts a process in a method."""

    def begin(self) -> None:
        subprocess.Popen(["true"])


def starts_itself() -> None:
    os.fork()


def starts_in_a_helper() -> None:
    [Starter().begin() for _ in range(1)]


def names_types_only(ended: subprocess.CompletedProcess[str]) -> str:
    assert isinstance(ended, subprocess.CompletedProcess) and os.sep
    return ended.stdout


@pytest.mark.parametrize(("reruns", "chances"), [(None, 1), (2, 1), (0, 0)])
def test_reruns_0_takes_the_second_chance_away(reruns: int | None, chances: int) -> None:
    """Of a test that starts a process; another has none anyway, whatever its module imports."""
    several, other = Item(starts_in_a_helper), Item(names_types_only)
    config: Any = SimpleNamespace(getoption=lambda name: reruns)
    items: list[Any] = [several, other]
    pytest_collection_modifyitems(config, items)
    assert (len(several.marks), len(other.marks)) == (chances, 0)


@pytest.mark.parametrize("part", [starts_itself, starts_in_a_helper, Starter])
def test_what_starts_a_process_is_found_at_any_depth(part: object) -> None:
    assert is_parallel(part, {})


def test_the_collected_suite_counts_as_hidden_from_the_collector() -> None:
    """Without a walk over it, which each run would do twice; it is hidden indeed."""
    assert gc.get_freeze_count() == 1 < gc.get_freeze_count.real()  # type: ignore[attr-defined]


def changed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Change one thing that files of tests share."""
    if name == "os.environ":
        monkeypatch.setenv("FEDVLM_OF_A_TEST", "1")
    elif name == "function":
        monkeypatch.setattr(manifest, "git_revision", len)
    elif name == "module":
        monkeypatch.setitem(sys.modules, manifest.__name__, ModuleType(manifest.__name__))
    elif name == "torch":
        monkeypatch.setattr(torch, "is_grad_enabled", lambda: False)
    else:
        monkeypatch.setattr(gc.get_freeze_count, "real", lambda: 0)


@pytest.mark.parametrize(("what", "named"), [
    ("os.environ", "os.environ\\['FEDVLM_OF_A_TEST'\\]"),
    ("function", "fedvlm.runs.manifest.git_revision"),
    ("module", "fedvlm.runs.manifest"),
    ("torch", "torch's gradients"),
    ("collector", "hidden from the collector"),
])
def test_a_file_that_leaves_something_changed_fails(
    what: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = process.state()
    process.unchanged("test_x.py", before, process.state())
    changed(monkeypatch, what)
    with pytest.raises(AssertionError, match=f"test_x.py leaves changed: {named}"):
        process.unchanged("test_x.py", before, process.state())
