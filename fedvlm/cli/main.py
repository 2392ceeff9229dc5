"""The command line: verbs, exit codes, one human sentence per error.

Exit codes: 0 done, 1 a bug of ours, 2 config or usage, 3 data, 4 diverged, 130 interrupted.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import cast

from fedvlm.cli.run import run
from fedvlm.console.guard import guarded
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError, did_you_mean, fold

# verb -> function that takes the remaining words and returns the exit code
VERBS = {
    "run": "fedvlm.cli.run:run",
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








