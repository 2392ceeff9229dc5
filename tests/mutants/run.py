"""Mutants: every patch beside this file is one small bug, which the tests it names must notice.

``make mutants`` tries all of them, two at a time; ``python tests/mutants/run.py mean_is_a_sum``
tries one, ``--part 1/3`` every third. A patch begins with ``What:`` (the bug, in a sentence) and
``Caught by:`` (pytest ids or files).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 600  # seconds of one pytest: a bug may make a loop endless
EACH = 60  # seconds for the tests of each mutant, where all are tried without any
FAILS = 1  # pytest's exit code where tests ran and some failed; others say that none ran


@dataclass(frozen=True)
class Mutant:
    """One patch: its file, the bug in words, and the tests that notice it."""

    path: Path
    what: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Outcome:
    """What pytest said: exit code, failing tests, seconds, the end of its output."""

    code: int
    failures: tuple[str, ...]
    seconds: float
    output: str


def read(path: Path) -> Mutant:
    """Return the mutant of a file; ValueError where a header line is missing."""
    head = dict(re.findall(r"^(What|Caught by): (.+)$", path.read_text(), re.MULTILINE))
    if head.keys() != {"What", "Caught by"}:
        raise ValueError(f"{path.name} must begin with lines 'What: ...' and 'Caught by: ...'")
    return Mutant(path, head["What"], tuple(head["Caught by"].split()))


def every() -> list[Mutant]:
    """Return all mutants by name."""
    return [read(path) for path in sorted(HERE.glob("*.patch"))]


def refusal(mutant: Mutant, root: Path, *more: str) -> str:
    """Apply a mutant's patch below ``root``; return why it does not apply, or nothing."""
    command = ["git", "apply", "--recount", *more, str(mutant.path)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True).stderr.strip()


def copy_tree(root: Path) -> None:
    """Copy the working tree to ``root``, with what tests look for beside it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():  # a file that was deleted is still listed
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    link_shared(root)


def link_shared(root: Path) -> None:
    """Make ``../shared`` of a copy that of the repository, if there is one."""
    if (ROOT.parent / "shared").exists():
        (root.parent / "shared").symlink_to(ROOT.parent / "shared")


def run_tests(tests: Sequence[str], root: Path, *more: str, limit: float = LIMIT) -> Outcome:
    """Run ``tests`` of the copy ``root`` in a process of its own, ``limit`` seconds at most."""
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    flags, began = ["-q", "-p", "no:cacheprovider", *more], time.perf_counter()
    command = [sys.executable, "-m", "pytest", *flags, *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return Outcome(-1, (), time.perf_counter() - began, f"no end after {limit:g} s")
    failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    seconds, end = time.perf_counter() - began, (done.stdout + done.stderr)[-2000:]
    return Outcome(done.returncode, tuple(failures), seconds, end)


def verdict(mutant: Mutant, base: Path) -> tuple[bool, str]:
    """Return (whether the mutant is caught, the line that says so)."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder) / "main"
        shutil.copytree(base, root)  # with the bytecode of the files that stay as they are
        link_shared(root)
        reason = refusal(mutant, root)
        if reason:
            return False, f"{mutant.name}: DOES NOT APPLY ({reason})"
        out = run_tests(mutant.tests, root, "-x")
    if out.code == FAILS:
        first = out.failures[0] if out.failures else ""
        return True, f"{mutant.name}: caught by {first} in {out.seconds:.1f} s"
    if out.code == 0:
        return False, f"{mutant.name}: SURVIVED {' '.join(mutant.tests)} ({mutant.what})"
    return False, f"{mutant.name}: NO VERDICT, pytest ended with {out.code}\n{out.output}"


def main(argv: Sequence[str] | None = None) -> int:
    """Try mutants; 0 if every one is caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th, from the K-th on")
    args = parser.parse_args(argv)
    part = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", args.part)
    if part is None or int(part[1]) > int(part[2]):
        parser.error(f"--part wants K/N such as 1/3, got {args.part}")
    chosen = [m for m in every() if not args.names or m.name in args.names]
    strange = set(args.names) - {m.name for m in chosen}
    if strange or not chosen:
        parser.error(f"no mutant is called {', '.join(sorted(strange)) or 'anything'}")
    chosen = chosen[int(part[1]) - 1 :: int(part[2])]
    return try_all(chosen, max(1, args.jobs))


def try_all(chosen: Sequence[Mutant], jobs: int) -> int:
    """Try mutants, ``jobs`` at a time; 0 if every one is caught."""
    began, good = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        base = Path(folder) / "main"
        copy_tree(base)
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        side = ("-n", str(jobs), "--dist", "loadfile") if jobs > 1 and len(tests) > 1 else ()
        whole = run_tests(tests, base, *side, limit=max(LIMIT, EACH * len(chosen)))
        if whole.code not in (0, FAILS):
            print(f"the tests do not run without any mutant, so nothing is tried:\n{whole.output}")
            return 1
        tried = [mutant for mutant in chosen if not fails_without(mutant, whole.failures)]
        for mutant in (mutant for mutant in chosen if mutant not in tried):
            print(f"{mutant.name}: NO VERDICT, its tests fail without it", flush=True)
        print(f"without a mutant {len(whole.failures)} tests fail ({whole.seconds:.0f} s)",
              flush=True)
        with ThreadPoolExecutor(jobs) as pool:
            for caught, line in pool.map(lambda m: verdict(m, base), tried):
                good += caught
                print(line, flush=True)
    minutes = (time.perf_counter() - began) / 60
    print(f"{good} of {len(chosen)} mutants are caught ({minutes:.1f} min, {jobs} at a time)")
    return 0 if good == len(chosen) else 1


def fails_without(mutant: Mutant, failures: Sequence[str]) -> bool:
    """Whether a test of a mutant fails without it, so that it would catch anything."""
    return any(failure == test or failure.startswith((f"{test}[", f"{test}::"))
               for failure in failures for test in mutant.tests)


if __name__ == "__main__":
    sys.exit(main())
