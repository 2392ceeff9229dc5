"""Options and paths that all tests share."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def quick_run(private_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one finished ``jobs.SMALL``: to look at or to copy, not to change."""
    from tests import jobs  # start-up: PyTorch, for tests without a run

    output = tmp_path_factory.mktemp("quick")
    assert jobs.run(output) == 0
    return output
