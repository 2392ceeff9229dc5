"""The command line: verbs, exit codes, one human sentence per error.

Exit codes: 0 done, 1 a bug of ours, 2 config or usage, 3 data, 4 diverged, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import cast

from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError, FedvlmError, did_you_mean, fold

# verb -> function that takes the remaining words and returns the exit code
VERBS = {
    "run": "fedvlm.cli.main:run",
    "bench": "fedvlm.cli.bench:main",
    "check": "fedvlm.cli.check:main",
    "list": "fedvlm.cli.list:main",
    "show": "fedvlm.cli.list:show",
    "config": "fedvlm.cli.list:config",
    "table": "fedvlm.cli.table:main",
    "compare": "fedvlm.cli.compare:main",
    "figures": "fedvlm.cli.figures:main",
    "report": "fedvlm.cli.report:main",
    "new-trainer": "fedvlm.cli.new_trainer:main",
    "data": "fedvlm.cli.data:main",
    "doctor": "fedvlm.cli.doctor:main",
    "features": "fedvlm.cli.features:main",
    "sweep": "fedvlm.cli.sweep:main",
}
ABOUT = {
    "run": "the main job, also without the word: --root DATA/ --dataset NAME --trainer NAME",
    "sweep": "methods x data sets x seeds, resumable cell by cell",
    "table": "mean and spread over seeds in md, csv, tex or html",
    "figures": "PNG, SVG and CSV of one run or of many",
    "report": "one HTML page of a run or of a sweep",
    "compare": "two runs: settings, paired differences, where they part",
    "show": "the numbers of finished runs",
    "doctor": "what is below --root, what is missing, what is wrong",
    "data": "list, download or prepare data sets",
    "features": "encode a set's images beforehand; list and clean the stores",
    "list": "all methods, or a method's card",
    "config": "all settings, or what given flags come to",
    "new-trainer": "the two files of a method of your own",
    "check": "which invariants a method keeps",
    "bench": "speed against the reference recipes",
}
USAGES = {  # of the verbs that have no --help of their own
    "list": "fedvlm list: all methods; fedvlm list METHOD ...: the method's card",
    "check": "fedvlm check METHOD [KEY VALUE ...], or ./my.py:MyMethod: the invariants one by one",
    "show": "fedvlm show RUN_FOLDER ...: the numbers of finished runs",
    "sweep": "fedvlm sweep PLAN.yaml (or --trainers A B --datasets X Y --seeds 1 2 3): all cells, "
             "resumable; --list --dry-run --jobs N --retry-failed --only I-J --slurm FILE",
    "config": "fedvlm config: all settings; fedvlm config WORD: those that hold the word; "
              "fedvlm config --dataset X ...: the config that these flags give",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; never raises, never shows a traceback.

    Words without a verb are the main job: ``federated_main.py --root ...`` = ``fedvlm run ...``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _dispatch(words), words)


def guarded(call: Callable[[], int], words: Sequence[str]) -> int:
    """Return the exit code of ``call``; every error becomes a sentence, as in ``main``."""
    try:
        code = call()
        if sys.stdout is not None:  # it is None when started with `>&-`
            sys.stdout.flush()
        return code
    except FedvlmError as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt as stop:
        complain(str(stop) or "nothing was lost", prefix="interrupted")
        return 130
    except BrokenPipeError:
        return _reader_is_gone()
    except SyntaxError as error:  # a trainer's file
        complain(f"{error.filename}:{error.lineno}: is not valid Python ({error.msg})")
        return ConfigError.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "fedvlm":
            return _bug(error, words)
        complain(_lacks(error))
        return ConfigError.exit_code
    except Exception as error:  # the last resort: a bug gets a sentence too
        return _bug(error, words)


def console_script() -> int:
    """Entry point of the command: ``fedvlm``, ``python -m fedvlm``, ``federated_main.py``."""
    code = main(sys.argv[1:])
    if code == 130:  # a second Ctrl-C, while Python ends, kills at once and shows no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0].startswith("-") or "." in words[0] or words[0].isupper():
        return run(words)
    verb, rest = words[0], words[1:]
    if verb == "help" or (verb in USAGES and rest and fold(rest[0]) in ("help", "h")):
        say(*([USAGES[verb]] if verb in USAGES else _about()))
        return 0
    if verb not in VERBS:
        raise ConfigError(
            f"unknown command '{verb}'{did_you_mean(verb, VERBS)} (known: {', '.join(VERBS)})"
        )
    return _function(verb)(rest)


def _about() -> list[str]:
    return [*(f"fedvlm {verb:<12} {line}" for verb, line in ABOUT.items()),
            "fedvlm VERB --help says more"]


def _function(verb: str) -> Callable[[list[str]], int]:
    module, _, name = VERBS[verb].partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ConfigError(f"'{verb}' is not part of this installation ({module})") from None
    return cast(Callable[[list[str]], int], found)


def run(words: Sequence[str]) -> int:
    """Do the main job: ``fedvlm run [flags] [KEY VALUE ...]``.

    Raises:
        FedvlmError: whatever is wrong; ``main`` turns it into a sentence and an exit code.
    """
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    args = parse(words)
    if args.version:
        say(f"fedvlm {importlib.import_module('fedvlm').__version__}")
        return 0
    if args.help:
        from fedvlm.cli.parser import help_lines

        say(*help_lines())
        return 0
    progress("loading PyTorch")  # with the trainer, and with the run itself
    asked = resolve(args)
    if args.print_config:
        from fedvlm.config.build import config_lines

        for job in asked.jobs:
            head = [f"# seed {job.cfg.SEED}"] if len(asked.jobs) > 1 else []
            say(*head, *config_lines(job.cfg, job.origins, asked.schema))
        complain(*asked.notes, prefix="note")
        return 0
    complain(*asked.notes, prefix="note")
    from fedvlm.job import run as cli_run

    for job in asked.jobs:
        code = int(cli_run.run_job(job.cfg, job.origins, args))
        if code:
            return code
    if len(asked.jobs) > 1:
        return int(cli_run.report_seeds([job.cfg for job in asked.jobs], args))
    return 0


def _reader_is_gone() -> int:
    """``| head`` closed our output: nothing is wrong, but the interpreter must not flush it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _lacks(error: ModuleNotFoundError) -> str:
    """Say which package this Python lacks, who asked for it, and how to get it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[:1] != "<"]
    return (
        f"this Python ({sys.executable}) has no module '{error.name}', which "
        f"{frames[-1].filename}:{frames[-1].lineno} imports; `make install` and .venv/bin/python, "
        "or pip install -c constraints.txt -e . bring fedvlm's own"
    )


def _bug(error: Exception, words: Sequence[str]) -> int:
    """Say what happened in one sentence; the traceback goes to a file, or to stderr on demand."""
    text = "".join(traceback.format_exception(error))
    reason = " ".join(str(error).split())[:200] or "no message"
    what = f"unexpected {type(error).__name__}: {reason}"
    if "--debug" in words:
        complain(what, *text.rstrip().splitlines())
        return 1
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fedvlm-", suffix=".traceback", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        complain(f"{what} (a bug; traceback in {file.name}, or shown with --debug)")
    except OSError:
        complain(f"{what} (a bug; --debug shows the traceback)")
    return 1
