"""Options and paths that all tests share."""

from __future__ import annotations

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
