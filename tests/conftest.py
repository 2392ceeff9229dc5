"""Options and paths that all tests share."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from fedvlm.runs import manifest
from tests import process

PARALLEL = {"multiprocessing", "signal", "socket", "subprocess", "threading"}
PASSIVE = {"CalledProcessError", "CompletedProcess", "TimeoutExpired", "PIPE", "STDOUT", "DEVNULL"}
STARTS = {"executable", "fork", "kill", "waitpid"}  # of ``os`` and ``sys``
SHARING = ("fedvlm.job.inputs", "fedvlm.data.federated")
FOLDERS = count()
MANY_FILES = 20  # from here on the slowest are named
SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden", action="append", default=[], metavar="DIR",
        help="also check the golden figures in DIR (fedtv.json, fedtv.npz); may be repeated",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_dir" in metafunc.fixturenames:
        dirs = [SHARED / "golden", *map(Path, metafunc.config.getoption("--golden"))]
        metafunc.parametrize("golden_dir", dirs, ids=[d.name for d in dirs])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the ten files that took longest, where many ran: the suite's time has a limit."""
    spent = Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent[report.nodeid.partition("::")[0]] += report.duration
    if len(spent) < MANY_FILES:
        return
    terminalreporter.section(f"slowest of {len(spent)} files, {spent.total():.0f} s in all")
    for file, seconds in spent.most_common(10):
        terminalreporter.write_line(f"{seconds:6.1f} s  {file}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test of several processes or threads that fails is run once more, and listed (RERUN).

    On a busy machine such a test may fail for lack of time. The others have one chance: what they
    compute does not depend on time. With ``--reruns 0`` none has a second.
    """
    if config.getoption("reruns") == 0:
        return
    known: dict[CodeType, bool] = {}
    for item in items:
        if any(is_parallel(part, known) for part in parts_of(item)):
            item.add_marker(pytest.mark.flaky(reruns=1))


def parts_of(item: pytest.Item) -> Iterator[object]:
    """Yield a test's function and those of its fixtures, but the ones of this file."""
    yield getattr(item, "function", None)
    info = getattr(item, "_fixtureinfo", None)
    for name in () if info is None else info.names_closure:
        for fixture in info.name2fixturedefs.get(name, ())[-1:]:
            if fixture.func.__module__ != __name__:
                yield fixture.func


def is_parallel(part: object, known: dict[CodeType, bool], follow: bool = True) -> bool:
    """Whether a function or class starts something or waits, itself or by what it uses.

    A module that is named and of which only types and numbers are used (``PASSIVE``) starts
    nothing. ``known``: of the code that was looked at. ``follow``: into the tests' own functions,
    and one step into the package's.
    """
    if isinstance(part, type):
        return any(is_parallel(value, known, follow) for value in vars(part).values())
    plain: Any = getattr(part, "__func__", getattr(part, "fget", part))
    code = getattr(plain := inspect.unwrap(plain), "__code__", None)
    if code is None:
        return False
    if code not in known:
        known[code] = False  # where it uses itself
        known[code] = any(_uses(words, plain.__globals__, known, follow) for words in _words(code))
    return known[code]


def _words(code: CodeType) -> Iterator[tuple[str, ...]]:
    yield code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _words(inner)


def _uses(
    words: tuple[str, ...], names: dict[str, Any], known: dict[CodeType, bool], follow: bool
) -> bool:
    for value in (names[word] for word in words if word in names):
        used = [value]
        if isinstance(value, ModuleType):
            held = vars(value)  # no question to the module: a lazy one would load what is asked for
            own = [w for w in words if not isinstance(held.get(w, value), ModuleType)]
            if starting(value.__name__, own):
                return True
            used = [held[word] for word in own] if value.__name__.startswith("tests.") else []
        for one in used:
            place = getattr(one, "__module__", None) or ""
            if starting(place, [getattr(one, "__name__", "")]):
                return True
            ours, theirs = place.startswith("tests."), place.startswith("fedvlm.")
            if follow and (ours or theirs) and is_parallel(one, known, ours):
                return True
    return False


def starting(module: str, used: list[str]) -> bool:
    """Whether what is used of a module starts a process or a thread, or waits for one."""
    if module in PARALLEL:
        return not PASSIVE.issuperset(used)
    return module in ("os", "sys") and not STARTS.isdisjoint(used)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and hide from it what lives to the end anyway.

    A third of the collection's time, and 0.4 s for each run of a test: the objects are 750,000.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def usual_signals() -> None:
    """Ctrl-C and a hang-up reach the tests' processes, also where ``nohup ... &`` began them."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            with contextlib.suppress(ValueError):  # another thread than the main one
                signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Features and rendered sets of a test session lie in a folder of its own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FEDVLM_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def git_asked_once() -> Iterator[None]:
    """Each run asks git three things, in processes of its own; in a session the answer stays."""
    patch = pytest.MonkeyPatch()
    patch.setattr(manifest, "git_revision", cache(manifest.git_revision))
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def hidden_not_counted() -> Iterator[None]:
    """A run asks whether anything is hidden from the collector: here all that was collected is.

    To count it is a walk over a million objects, twice in a run, a tenth of a small run's time.
    """
    patch = pytest.MonkeyPatch()

    def get_freeze_count() -> int:
        return 1

    get_freeze_count.real = gc.get_freeze_count  # type: ignore[attr-defined]
    patch.setattr(gc, "get_freeze_count", get_freeze_count)
    yield
    patch.undo()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hidden from the collector is counted, as outside the tests."""
    monkeypatch.setattr(gc, "get_freeze_count", gc.get_freeze_count.real)  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Nothing here outlives the machine: a file that is whole need not be on the disk.

    50 waits in a small run, a few ms each. A kill loses nothing of what the system holds; the
    order of the syncs has a test of its own (tests/faults/test_kill_points.py).
    """
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda handle: None)
    yield
    patch.undo()


@pytest.fixture(scope="module", autouse=True)
def files_leave_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """A file fails that leaves its process changed: the next one may be any other."""
    before = process.state()
    yield
    process.unchanged(request.node.name, before, process.state())


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own, numbered by a count: pytest's looks through all before it."""
    name = re.sub(r"\W", "_", request.node.name)[:27]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(FOLDERS)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight built-in images of a class for training and for tests, in a cache of their own.

    For tests that encode images, in this process only.
    """
    monkeypatch.setattr("fedvlm.data.builtin.sets._PER_CLASS", (8, 2, 8))
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "few"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same for all tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvlm.data.builtin.sets._PER_CLASS", (8, 2, 8))
        patch.setenv("FEDVLM_CACHE", str(tmp_path_factory.mktemp("few")))
        yield


@pytest.fixture(scope="session")
def quick_run(private_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one finished ``jobs.SMALL``: to look at or to copy, not to change."""
    from tests import jobs  # start-up: PyTorch, for tests without a run

    output = tmp_path_factory.mktemp("quick")
    assert jobs.run(output) == 0
    return output


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a test draw no partition, a third of a small run's time, but with ``pictures``.

    Only in this process, and only once PyTorch is there: a test that loads it later draws.
    """
    job = sys.modules.get("fedvlm.job.run")
    if job is not None and "pictures" not in request.fixturenames:
        monkeypatch.setattr(job, "draw_partition", lambda *_: None)


@pytest.fixture(autouse=True)
def inputs_made_once() -> None:
    """Runs of this process share towers and built-in sets; see ``tests/once.py``."""
    inputs, federated = (sys.modules.get(name) for name in SHARING)
    if inputs is not None and federated is not None:
        from tests import once  # start-up: for tests with runs only

        once.share(inputs, federated)


@pytest.fixture
def pictures() -> None:
    """The test's runs draw their partition as a user's do."""
