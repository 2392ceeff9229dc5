"""The next tenth of what ``make test`` leaves out: slow tests, Flower's tests and mutants.

    python .ci/share.py             # the tenth of this commit
    python .ci/share.py --part 3/10

Which tenth it is follows from the number of commits, so ten runs of CI on consecutive commits take
all. A test that fails is run once more by itself; one that fails again is run on the parent commit.
What fails there too, or passes by itself, is reported and does not block; nor does a test that was
running when time was up and cannot be looked at any more. Exit code 1: something blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = 10
STEP = 20 * 60  # seconds of one kind of test
WHOLE = 40 * 60  # seconds of everything, looking at the parent included
ALONE = 10 * 60  # seconds of one test by itself
JOBS = "2"
MUTANTS, FLOWER = "tests/mutants/run.py", ".venv-flower"
SLOW, OF_FLOWER = "slow and not flower", "flower"  # pytest's marks
STOPPED = -1  # the exit code of what was stopped because its time was up
AGAIN, PARENT, BLOCKS = "passes by itself", "fails on the parent too", "BLOCKS"
NO_TIME = "no time to look"


@dataclass
class Tree:
    """A commit's files, and what its tests are run with.

    Attributes:
        env: further variables of the tests' processes.
    """

    root: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, command: Sequence[str], limit: float, **more: str) -> tuple[int, str]:
        """Return the exit code and the output of a command; it and its children end in time."""
        path = [self.root, Path(__file__).parent, os.environ.get("PYTHONPATH", "")]
        ours = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST_")}
        env = {**ours, **self.env, **more, "OMP_NUM_THREADS": "1",
               "PYTHONPATH": os.pathsep.join(str(p) for p in path if str(p))}
        process = subprocess.Popen(  # noqa: S603
            command, cwd=self.root, env=env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=limit)
            return process.returncode, out
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return STOPPED, process.communicate()[0]

    def pytest(self, words: Sequence[str], limit: float, **more: str) -> tuple[int, str]:
        """Run pytest on words."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        return self.run(command, limit, **more)


@dataclass
class Report:
    """What became of the tests of one kind.

    Attributes:
        failed: those that failed.
        cut: those that had begun and not ended when time was up.
        unreached: those that time did not suffice for.
        problem: why nothing was run.
        blocks: whether that is this commit's doing.
    """

    kind: str
    tests: Sequence[str] = ()
    failed: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    seconds: float = 0.0
    problem: str = ""
    blocks: bool = False

    def line(self) -> str:
        """Return the report on one line."""
        if self.problem:
            return f"{BLOCKS if self.blocks else 'not run'}: {self.kind}: {self.problem}"
        counts = {"not ended": len(self.cut), "not reached": len(self.unreached)}
        left = "".join(f", {count} {what}" for what, count in counts.items() if count)
        good = len(self.tests) - len(self.failed) - sum(counts.values())
        return (f"{self.kind}: {good} of {len(self.tests)} good, {len(self.failed)} failed{left} "
                f"({self.seconds / 60:.1f} min)")


class Clock:
    """The time for everything."""

    def __init__(self, seconds: float = WHOLE) -> None:
        self.begin = time.monotonic()
        self.end = self.begin + seconds

    def limit(self, seconds: float) -> float:
        """Return ``seconds``, or what is left where that is less; at least one."""
        return max(1.0, min(seconds, self.end - time.monotonic()))

    def minutes(self) -> float:
        """Return the minutes spent."""
        return (time.monotonic() - self.begin) / 60


def part_of(commits: int, parts: int = PARTS) -> int:
    """Return the part of a commit, from 1 on."""
    return commits % parts + 1


def share_of(tests: Sequence[str], part: int, parts: int = PARTS) -> list[str]:
    """Return every ``parts``-th test, from the ``part``-th on."""
    return list(tests[part - 1 :: parts])


def read_outcomes(path: Path, tests: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return (failed, begun and not ended, never begun) of tests, by ``.ci/outcomes.py``."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    seen: dict[str, list[str]] = {}
    for test, what in map(json.loads, lines):
        seen.setdefault(test, []).append(what)
    failed = [test for test, what in seen.items() if "failed" in what]
    cut = [test for test, what in seen.items() if "failed" not in what and "ended" not in what]
    never = [test for test in tests if test not in seen and not _file_in(test, failed)]
    return failed, cut, never


def _file_in(test: str, failed: Sequence[str]) -> bool:
    """Whether a test's file could not be read."""
    return test.partition("::")[0] in failed


def collect(tree: Tree, mark: str, limit: float) -> list[str]:
    """Return the ids of all tests with a mark."""
    code, out = tree.pytest(["--collect-only", "-m", mark], limit)
    if code not in (0, 5):  # 5: no test has the mark
        why = [line for line in out.splitlines() if line.startswith(("ERROR", "E  "))]
        raise SystemExit("\n".join(["the tests cannot be collected:", *(why or [out[-2000:]])]))
    return [line for line in out.splitlines() if re.match(r"tests/.+\.py::", line)]


def run_tests(tree: Tree, kind: str, tests: Sequence[str], limit: float, *more: str) -> Report:
    """Run tests of a tree and report."""
    report, began = Report(kind, tests), time.monotonic()
    if tests:
        with tempfile.TemporaryDirectory(prefix="share-") as folder:
            path = Path(folder) / "outcomes.jsonl"
            words = ["-p", "outcomes", *more, *tests]
            code, out = tree.pytest(words, limit, OUTCOMES=str(path))
            report.failed, report.cut, report.unreached = read_outcomes(path, tests)
        if code not in (0, STOPPED):
            print(out[-6000:])
            report.failed, report.cut = [*report.failed, *report.cut], []  # a test ended pytest
        if code not in (0, 1, STOPPED) and not report.failed:
            report.failed, report.unreached = list(tests), []
    report.seconds = time.monotonic() - began
    return report


def read_mutants(output: str, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (not caught, not reached) of mutants, by what ``tests/mutants/run.py`` printed."""
    said = dict(re.findall(r"^(\w+): (caught|SURVIVED|DOES NOT APPLY|NO VERDICT)", output, re.M))
    return ([name for name in names if said.get(name, "caught") != "caught"],
            [name for name in names if name not in said])


def run_mutants(tree: Tree, names: Sequence[str], limit: float) -> Report:
    """Try mutants of a tree and report."""
    report, began = Report("mutants", names), time.monotonic()
    if names:
        command = [sys.executable, "-u", MUTANTS, "--jobs", JOBS, *names]
        code, out = tree.run(command, limit)
        report.failed, report.unreached = read_mutants(out, names)
        if code != STOPPED and report.unreached:  # the runner gave up
            report.failed, report.unreached = [*report.failed, *report.unreached], []
        if report.failed:
            print(out[-6000:])
    report.seconds = time.monotonic() - began
    return report


def good_alone(tree: Tree, test: str, limit: float) -> bool:
    """Whether a test passes, or a mutant is caught, by itself."""
    if "::" not in test and not test.endswith(".py"):
        return not run_mutants(tree, [test], limit).failed
    return tree.pytest([test], limit)[0] == 0


@contextlib.contextmanager
def parent_tree(tree: Tree) -> Iterator[Tree | None]:
    """Yield the tree of the parent commit; None where there is none, as in a shallow clone."""
    with tempfile.TemporaryDirectory(prefix="parent-") as folder:
        root = Path(folder) / "main"
        shared = tree.root.parent / "shared"
        if shared.exists():
            (Path(folder) / "shared").symlink_to(shared)
        code, _ = tree.run(["git", "worktree", "add", "--detach", str(root), "HEAD^1"], ALONE)
        try:
            yield None if code else Tree(root, tree.env)
        finally:
            tree.run(["git", "worktree", "remove", "--force", str(root)], ALONE)


def judge(
    test: str, tree: Tree, parent: Tree | None, clock: Clock, failed: bool = True
) -> str:
    """Return what a failure, or a test that did not end, means: AGAIN, PARENT, BLOCKS, NO_TIME."""
    if clock.limit(ALONE) < ALONE / 2:
        return BLOCKS if failed else NO_TIME
    if good_alone(tree, test, clock.limit(ALONE)):
        return AGAIN
    old = parent is not None and is_in(parent, test)
    if parent is None or not old or good_alone(parent, test, clock.limit(ALONE)):
        return BLOCKS
    return PARENT


def is_in(tree: Tree, test: str) -> bool:
    """Whether a tree has a test or a mutant at all: what is new cannot have failed before."""
    if "::" not in test and not test.endswith(".py"):
        return (tree.root / "tests" / "mutants" / f"{test}.patch").is_file()
    return tree.pytest(["--collect-only", test], ALONE)[0] == 0


def install_flower(tree: Tree, limit: float) -> str:
    """Install Flower's environment where it is missing; return what went wrong, or nothing."""
    code, out = tree.run(["make", f"{FLOWER}/.installed"], limit)
    return f"{FLOWER} cannot be installed:\n{out[-1500:]}" if code else ""


def run_flower(tree: Tree, part: int, parts: int, clock: Clock) -> Report:
    """Run the share of Flower's tests."""
    wanted = share_of(collect(tree, OF_FLOWER, clock.limit(ALONE)), part, parts)
    problem = install_flower(tree, clock.limit(STEP)) if wanted else ""
    if problem:
        command = ["git", "diff", "--quiet", "HEAD^1", "--", "constraints-flower.txt"]
        changed, _ = tree.run(command, ALONE)
        return Report("Flower", wanted, problem=problem, blocks=changed == 1)
    return run_tests(tree, "Flower", wanted, clock.limit(STEP))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a share; 0 if nothing blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="", metavar="K/N", help="which part (by the commits)")
    args = parser.parse_args(argv)
    flower = {"FEDVLM_FLOWER": str(ROOT / FLOWER), "FEDVLM_RAY": "1"}
    tree, clock = Tree(ROOT, flower), Clock()
    part, parts = read_part(args.part) if args.part else (part_of(count_commits(tree)), PARTS)
    slow = share_of(collect(tree, SLOW, clock.limit(ALONE)), part, parts)
    patches = sorted(path.stem for path in (ROOT / "tests" / "mutants").glob("*.patch"))
    mutants = share_of(patches, part, parts)
    print(f"share {part}/{parts}: {len(slow)} slow tests, Flower's, {len(mutants)} mutants",
          flush=True)
    reports = []
    for step in (
        lambda: run_tests(tree, "slow", slow, clock.limit(STEP), "-n", JOBS),
        lambda: run_flower(tree, part, parts, clock),
        lambda: run_mutants(tree, mutants, clock.limit(STEP)),
    ):
        reports.append(step())
        print(reports[-1].line(), flush=True)
    look = {test: True for report in reports for test in report.failed}
    look.update({test: False for report in reports for test in report.cut})
    found: dict[str, str] = {}
    if look:
        with parent_tree(tree) as parent:
            for test, failed in look.items():
                found[test] = judge(test, tree, parent, clock, failed)
                print(f"{found[test]}: {test}", flush=True)
    blocking = BLOCKS in found.values() or any(report.blocks for report in reports)
    print(f"share {part}/{parts}: {'something blocks' if blocking else 'nothing blocks'} "
          f"({clock.minutes():.0f} min)")
    return int(blocking)


def read_part(word: str) -> tuple[int, int]:
    """Return (K, N) of ``K/N``."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", word)
    if match is None or int(match[1]) > int(match[2]):
        raise SystemExit(f"--part wants K/N such as 1/10, got {word}")
    return int(match[1]), int(match[2])


def count_commits(tree: Tree) -> int:
    """Return how many commits lead to this one, merged branches not counted."""
    command = ["git", "rev-list", "--count", "--first-parent", "HEAD"]
    code, out = tree.run(command, ALONE)
    if code:
        raise SystemExit(f"the commits cannot be counted; give --part K/N:\n{out}")
    return int(out)


if __name__ == "__main__":
    sys.exit(main())
