"""One line that says what is going on before the first round: redrawn on a terminal, rare in a log.

On a terminal the line is rewritten in place on stderr and wiped before anything else is written.
In a file a long step says how far it is every half minute, and a short one says nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

REDRAW, REPORT = 0.25, 30.0  # seconds between two drawings, and between two lines of a log


def wants_live(stream: TextIO | None) -> bool:
    """Return whether ``stream`` is a terminal that can redraw (``TERM=dumb`` cannot)."""
    try:
        return (
            stream is not None
            and stream.isatty()
            and os.environ.get("TERM", "") not in ("", "dumb")
        )
    except (ValueError, AttributeError):  # closed
        return False


class ProgressLine:
    """The line; ``console`` holds the only one."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self.shown = False
        self._step = ""
        self._began = self._last = 0.0

    def __call__(self, what: str, done: int = 0, of: int = 0) -> None:
        """Say how far a step is; never raises.

        Args:
            what: the step in words: ``checking images``.
            done, of: how far it is; without ``of`` only the step is named.
        """
        now = time.monotonic()
        if what != self._step:
            self._step, self._began, self._last = what, now, now - REDRAW
        try:
            if wants_live(sys.stderr):
                self._redraw(what, done, of, now)
            elif of and sys.stderr is not None and now - self._last >= REPORT:
                self._last = now
                sys.stderr.write(f"note: {self._text(what, done, of, now)}\n")
                sys.stderr.flush()
        except (OSError, ValueError):  # the reader is gone
            self.shown = False

    def clear(self) -> None:
        """Wipe the line: something else is about to be written."""
        if not self.shown:
            return
        self.shown, self._step = False, ""
        try:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            return

    def _redraw(self, what: str, done: int, of: int, now: float) -> None:
        if of and done >= of:
            self.clear()
            return
        if now - self._last < REDRAW:
            return
        self._last, self.shown = now, True
        width = max(shutil.get_terminal_size().columns - 1, 10)
        sys.stderr.write(f"\r\x1b[K{self._text(what, done, of, now)[:width]}")
        sys.stderr.flush()

    def _text(self, what: str, done: int, of: int, now: float) -> str:
        if not of:
            return f"{what} ..."
        spent = now - self._began
        left = f", about {spent / done * (of - done):.0f} s left" if done and spent > 1 else ""
        return f"{what}: {done:,} of {of:,}{left}"
