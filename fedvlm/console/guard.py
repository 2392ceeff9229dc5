"""Errors become one message and an exit code, never a traceback.

Exit codes: 0 done, 1 a bug of ours, 2 config, usage or a method's own file, 3 data, 4 diverged,
6 below quorum, 130 interrupted (143: SIGTERM, 129: SIGHUP).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence

from fedvlm.console.screen import complain, say
from fedvlm.core.errors import (
    NO_MEMORY,
    NO_MEMORY_ELSEWHERE,
    ConfigError,
    DataError,
    FedvlmError,
    MethodError,
    fold,
    out_of_memory,
    own_line,
)
from fedvlm.core.signals import exit_code


def exit_code_of(call: Callable[[], int], words: Sequence[str]) -> int:
    """Return the exit code of ``call``; every error becomes a message, as in ``main``."""
    try:
        code = call()
        if sys.stdout is not None:  # it is None when started with `>&-`
            sys.stdout.flush()
        return code
    except FedvlmError as error:
        complain(str(error).replace(NO_MEMORY, _no_memory(words)))
        if "--debug" in words and error.__cause__ is not None:
            complain(*"".join(traceback.format_exception(error.__cause__)).rstrip().splitlines())
        return error.exit_code
    except KeyboardInterrupt as stop:
        if sys.stderr is not None and sys.stderr.isatty():  # which shows ^C where its cursor is
            with contextlib.suppress(OSError, ValueError):
                say("", stream=sys.stderr)
        complain(str(stop) or "nothing was lost", prefix="interrupted")
        return exit_code(stop)
    except BrokenPipeError:
        return _reader_is_gone()
    except SyntaxError as error:  # a trainer's file
        line = f":{error.lineno}" if error.lineno else ""
        complain(f"{error.filename}{line}: is not valid Python ({error.msg})")
        return ConfigError.exit_code
    except SystemExit as error:
        place = own_line(error)
        if not place:
            raise
        complain(f"the method's own file ends the program{place}: take that line out")
        return MethodError.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "fedvlm":
            return _bug(error, words)
        complain(_lacks(error))
        return ConfigError.exit_code
    except Exception as error:  # the last resort: a bug gets a message too
        if out_of_memory(error):
            complain(_no_memory(words))
            return ConfigError.exit_code
        lost = _of_the_machine(error)
        if lost:
            complain(lost)
            return DataError.exit_code
        return _bug(error, words)


def _no_memory(words: Sequence[str]) -> str:
    """Return what helps a verb without memory: one that does not train has no chunk or batch."""
    device_alone = ("adapt", "evaluate", "export", "features", "figures", "predict", "verify")
    return NO_MEMORY_ELSEWHERE if words and fold(words[0]) in device_alone else NO_MEMORY


def _reader_is_gone() -> int:
    """``| head`` closed our output: nothing is wrong, but the interpreter must not flush it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _of_the_machine(error: Exception) -> str:
    """Say what no code of ours can help: a full disk, a working folder that is gone; else ''."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free some space and run the same command again"
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the working folder was deleted: go to another one (cd) and run it again"
    return ""


def _lacks(error: ModuleNotFoundError) -> str:
    """Say which package this Python lacks, who asked for it, and how to get it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[:1] != "<"]
    return (
        f"module '{error.name}' is not installed in this Python "
        f"({sys.executable}); {frames[-1].filename}:{frames[-1].lineno} imports it; install "
        "fedvlm's packages with "
        "`make install` (then use .venv/bin/python) or pip install -c constraints.txt -e ."
    )


def _bug(error: Exception, words: Sequence[str]) -> int:
    """Say what happened in one message; the traceback goes to a file, or to stderr on demand."""
    text = "".join(traceback.format_exception(error))
    reason = " ".join(str(error).split())[:200] or "no message"
    place = own_line(error)
    what, whose = f"unexpected {type(error).__name__}: {reason}{place}", "" if place else "a bug; "
    code = MethodError.exit_code if place else 1
    if "--debug" in words:
        complain(what, *text.rstrip().splitlines())
        return code
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fedvlm-", suffix=".traceback", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        complain(f"{what} ({whose}traceback in {file.name}, or shown with --debug)")
    except OSError:
        complain(f"{what} ({whose}--debug shows the traceback)")
    return code
