"""A pytest plugin: writes what becomes of each test to the file ``$OUTCOMES``, a JSON line each.

Lines are written as tests begin and end, so that they say something of a run that was killed.
"""

from __future__ import annotations

import json
import os
from typing import Any


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note that a test began."""
    _write(nodeid, "began")


def pytest_runtest_logreport(report: Any) -> None:
    """Note how a phase of a test ended; a call that passed counts as passed at its teardown."""
    if report.failed:
        _write(report.nodeid, "failed")
    elif report.when == "teardown":
        _write(report.nodeid, "ended")


def pytest_collectreport(report: Any) -> None:
    """Note a file that cannot be read."""
    if report.failed:
        _write(report.nodeid, "failed")


def _write(test: str, what: str) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the controller hears of all
        with open(os.environ["OUTCOMES"], "a", encoding="utf-8") as file:
            file.write(json.dumps([test, what]) + "\n")
