"""What the system asks of a process: stop (Ctrl-C, SIGTERM, SIGHUP) or save now (SIGUSR1).

A stop is a ``KeyboardInterrupt`` that knows its signal, so that everything written for Ctrl-C holds
for a batch system's SIGTERM and a closed terminal too. Nothing here changes a process that did not
call ``install_handlers``: a library's handlers are its user's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Iterator
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVE = signal.SIGUSR1


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or another signal that means the same.

    Attributes:
        signum: the signal; the exit code is 128 more.
    """

    def __init__(self, text: str = "", signum: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.signum = int(signum)


class _Asked:
    """What was asked of this process and is not done yet."""

    def __init__(self) -> None:
        self.save, self.holding, self.stop = False, False, 0


_asked = _Asked()


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return 128 and the signal: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + (stop.signum if isinstance(stop, Interrupted) else int(signal.SIGINT))


def saying(stop: KeyboardInterrupt, text: str) -> Interrupted:
    """Return the same stop with a message."""
    return Interrupted(text, exit_code(stop) - 128)


def install_handlers() -> None:
    """Turn the signals of this process into ``Interrupted`` and ``save_asked``.

    What it was started to ignore (``nohup``), it goes on to ignore.
    """
    for signum in STOPS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, _stop)
    signal.signal(SAVE, _save)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SAVE})


def save_asked() -> bool:
    """Tell whether a save was asked for since the last call."""
    asked, _asked.save = _asked.save, False
    return asked


@contextlib.contextmanager
def delay_stops() -> Iterator[None]:
    """Let the block end before a stop does: the first one waits for it, a second one does not.

    Raises:
        Interrupted: after the block, if a stop came within it.
    """
    _asked.holding, _asked.stop = True, 0
    try:
        yield
    finally:
        _asked.holding = False
    if _asked.stop:
        stop, _asked.stop = _asked.stop, 0
        raise Interrupted(signum=stop)


@contextlib.contextmanager
def shield_children() -> Iterator[None]:
    """Let Ctrl-C at the terminal reach no process that the block begins, and this one after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(signum: int, _frame: FrameType | None) -> None:
    if signum == signal.SIGHUP:
        _leave_terminal()
    if _asked.holding and not _asked.stop:
        _asked.stop = signum
        return
    raise Interrupted(signum=signum)


def _save(_signum: int, _frame: FrameType | None) -> None:
    _asked.save = True


def _leave_terminal() -> None:
    """Write no more to a terminal that is gone: each try would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for handle in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(handle).st_mode):
                os.dup2(nowhere, handle)
    os.close(nowhere)
