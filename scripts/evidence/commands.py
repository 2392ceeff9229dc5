"""The commands of ``python scripts/evidence``: from advise and bench to publish.

Each is a file as a verb of ``fedvlm`` is (``fedvlm.cli.verbs``): a docstring that is its help,
``flags`` and ``main``. They stand outside the package because only this repository needs them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fedvlm.cli.verbs import Verb
from fedvlm.console.guard import exit_code_of
from fedvlm.console.parser import Parser, asks_help
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.signals import install_handlers
from fedvlm.core.threads import sleep_while_waiting

PROGRAM = "python scripts/evidence"
# command -> the folder of its file
FOLDERS = {"advise": "map", "bench": "bench", "cost": "cost", "coverage": "results",
           "gpu-hour": "gpu", "map": "map", "methods": "methods", "publish": "results"}


@dataclass(frozen=True)
class Command(Verb):
    """A command: a verb whose file lies here."""

    def module(self) -> ModuleType:
        """Import the file."""
        return importlib.import_module(f"evidence.{self.section}.{self.path.stem}")

    def parser(self, prog: str = "") -> Parser:
        """Return the parser of the command's words; ``prog``: the command as typed."""
        return super().parser(prog or f"{PROGRAM} {self.name}")


def read_commands() -> dict[str, Command]:
    """Return the commands by name."""
    here = Path(__file__).parent
    return {name: Command(name, folder, here / folder / f"{name.replace('-', '_')}.py")
            for name, folder in FOLDERS.items()}


def main(words: Sequence[str]) -> int:
    """Run a command line and return the exit code, as ``fedvlm.cli.main.main`` does."""
    return exit_code_of(lambda: _dispatch(list(words)), words)


def console_script() -> int:
    """Entry point of ``python scripts/evidence``."""
    sleep_while_waiting(os.environ)
    install_handlers()
    return main(sys.argv[1:])


def _dispatch(words: list[str]) -> int:
    table = read_commands()
    if not words or (len(words) == 1 and asks_help(words)):
        say(*(f"{PROGRAM} {command.name}: {command.sentence}" for command in table.values()))
        return 0
    command = table.get(words[0])
    if command is None:
        raise ConfigError(f"unknown command '{words[0]}'{did_you_mean(words[0], table)} "
                          f"(known: {', '.join(table)})")
    if asks_help(words[1:]):
        say(*command.parser().format_help().splitlines())
        return 0
    return command.run(words[1:])
