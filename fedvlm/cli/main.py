"""The command line: which verb the words name, or the main job without one.

Exit codes: 0 done, 1 a bug of ours, 2 config, usage or a method's own file, 3 data, 4 diverged,
6 below quorum, 130 interrupted (143: SIGTERM, 129: SIGHUP).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from fedvlm.cli.verbs import verbs
from fedvlm.console.guard import exit_code_of
from fedvlm.console.parser import asks_help
from fedvlm.console.screen import say
from fedvlm.core.errors import fold
from fedvlm.core.signals import STOPS, install_handlers
from fedvlm.core.threads import sleep_while_waiting


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; never raises, never shows a traceback.

    Words without a verb are the main job: ``federated_main.py --root ...`` = ``fedvlm run ...``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code_of(lambda: _dispatch(words), words)


def console_script() -> int:
    """Entry point of the command: ``fedvlm``, ``python -m fedvlm``, ``federated_main.py``."""
    sleep_while_waiting(os.environ)
    install_handlers()
    code = main(sys.argv[1:])
    if code > 128:  # a second one, while Python ends, kills at once and shows no traceback
        for signum in STOPS:
            signal.signal(signum, signal.SIG_DFL)
    return code


def _dispatch(words: list[str]) -> int:
    table = verbs()
    if len(words) == 1 and asks_help(words):
        return table["help"].run([])
    first = fold(words[0]) if words and not words[0].startswith("-") else None  # -data is no verb
    name = next((name for name in table if fold(name) == first), "")
    of_a_run = words and (words[0].startswith("-") or words[0].isupper())  # a flag, a config key
    if not name and words and not of_a_run:
        from fedvlm.cli.unknown import unknown_verb  # start-up: NumPy, for a mistake only

        raise unknown_verb(words[0], table)
    verb, rest = (table[name], words[1:]) if name else (table["run"], words)
    if asks_help(rest):
        say(*verb.parser().format_help().splitlines())
        return 0
    return verb.run(rest, prog="" if name else "fedvlm")
