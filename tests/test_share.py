"""``.ci/share.py``: which tests a commit takes, and what a failure of theirs means."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("share", ROOT / ".ci" / "share.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "share", module)  # dataclasses look it up
        spec.loader.exec_module(module)
    return module


share = loaded()


def test_ten_commits_take_every_test_once() -> None:
    tests = [f"tests/test_a.py::test_{n}" for n in range(37)]
    parts = [share.share_of(tests, share.part_of(commits)) for commits in range(830, 840)]
    assert sorted(sum(parts, [])) == sorted(tests)
    assert {len(part) for part in parts} == {3, 4}
    assert share.read_part("3/10") == (3, 10)
    for wrong in ("0/10", "11/10", "3"):
        with pytest.raises(SystemExit, match="wants K/N"):
            share.read_part(wrong)


def test_what_had_begun_when_time_was_up_has_not_ended(tmp_path: Path) -> None:
    lines = [("a.py::one", "began"), ("a.py::one", "ended"), ("a.py::two", "began"),
             ("a.py::two", "failed"), ("a.py::two", "ended"), ("b.py::hangs", "began"),
             ("c.py", "failed")]
    path = tmp_path / "outcomes"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tests = ["a.py::one", "a.py::two", "b.py::hangs", "b.py::never", "c.py::unread"]
    assert share.read_outcomes(path, tests) == (["a.py::two", "c.py"], ["b.py::hangs"],
                                                ["b.py::never"])
    assert share.read_outcomes(tmp_path / "none", tests) == ([], [], tests)


def test_what_the_mutants_runner_prints_is_understood() -> None:
    output = ("one: caught by x in 1.0 s\ntwo: SURVIVED tests/a.py (a bug)\n"
              "three: NO VERDICT, its tests fail without it\n")
    assert share.read_mutants(output, ["one", "two", "three", "four"]) == (
        ["two", "three"], ["four"])


@pytest.mark.parametrize(("alone", "old", "means"), [
    ([True], True, share.AGAIN), ([False, True], True, share.BLOCKS),
    ([False, False], True, share.PARENT), ([False], False, share.BLOCKS),
])
def test_only_what_this_commit_broke_blocks(
    monkeypatch: pytest.MonkeyPatch, alone: list[bool], old: bool, means: str
) -> None:
    here, parent = share.Tree(Path("here")), share.Tree(Path("parent"))
    answers = iter(zip((here, parent), alone, strict=False))

    def good_alone(tree: object, test: str, limit: float) -> bool:
        wanted, answer = next(answers)
        assert tree is wanted and test == "tests/a.py::one" and limit > 0
        return answer

    monkeypatch.setattr(share, "good_alone", good_alone)
    monkeypatch.setattr(share, "is_in", lambda tree, test: old)
    assert share.judge("tests/a.py::one", here, parent, share.Clock()) == means
    assert next(answers, None) is None, "both were asked, or one was enough"
    assert share.judge("x", here, parent, share.Clock(1)) == share.BLOCKS  # no time to look
    assert share.judge("x", here, parent, share.Clock(1), failed=False) == share.NO_TIME
    monkeypatch.setattr(share, "good_alone", lambda *_: False)
    assert share.judge("x", here, None, share.Clock()) == share.BLOCKS  # no parent


TOY = """import os
import time

def test_slow():
    time.sleep(60)

def test_ends_pytest():
    os._exit(3)

def test_good():
    pass

def test_bad():
    assert os.path.exists("good")
"""


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


def test_a_failure_is_looked_for_on_the_parent_commit(tmp_path: Path) -> None:
    """A repository of two commits: the second one loses the file that the test wants."""
    root = tmp_path / "repo"
    (root / "tests").mkdir(parents=True)
    (root / "tests" / "test_toy.py").write_text(TOY)
    (root / "good").write_text("")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    git(root, "rm", "-q", "good")
    git(root, "commit", "-qm", "two")
    tree = share.Tree(root, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})  # starts in half the time
    assert share.count_commits(tree) == 2
    test = "tests/test_toy.py::test_bad"
    report = share.run_tests(tree, "toy", ["tests/test_toy.py::test_good", test], 60)
    assert (report.failed, report.unreached) == ([test], [])
    assert tree.run(["sleep", "60"], 0.2) == (share.STOPPED, "")
    slow, ends = ("tests/test_toy.py::test_slow", "tests/test_toy.py::test_ends_pytest")
    report = share.run_tests(tree, "toy", ["tests/test_toy.py::test_good", slow], 10)
    assert (report.failed, report.cut) == ([], [slow]) and "1 of 2 good" in report.line()
    assert share.run_tests(tree, "toy", [ends], 60).failed == [ends]
    with share.parent_tree(tree) as parent:
        assert parent is not None and (parent.root / "good").exists()
        assert share.judge(test, tree, parent, share.Clock()) == share.BLOCKS
        (parent.root / "good").unlink()
        assert share.judge(test, tree, parent, share.Clock()) == share.PARENT
    assert not parent.root.exists()
    assert subprocess.run(["git", "worktree", "list"], cwd=root, capture_output=True,
                          text=True, check=True).stdout.count("\n") == 1


@pytest.mark.parametrize(("changed", "blocks"), [(0, False), (1, True)])
def test_without_flower_only_a_change_of_its_pins_blocks(
    monkeypatch: pytest.MonkeyPatch, changed: int, blocks: bool
) -> None:
    monkeypatch.setattr(share, "collect", lambda *_: ["tests/a.py::one"])

    def run(tree: object, command: Sequence[str], limit: float, **more: str) -> tuple[int, str]:
        return (2, "no network") if command[0] == "make" else (changed, "")

    monkeypatch.setattr(share.Tree, "run", run)
    report = share.run_flower(share.Tree(ROOT), 1, 10, share.Clock())
    assert report.blocks is blocks and "no network" in report.line()
    assert report.line().startswith("BLOCKS" if blocks else "not run")
