"""The verbs: one file each, found by listing the folders here. There is no table to keep.

The folder is the section of ``fedvlm --help``, the file's name is the verb (``new_trainer.py`` is
``fedvlm new-trainer``). A verb's file has

* a docstring whose first line is the verb's sentence in the overview; the whole is its help page's
  head. It is read without running the file;
* ``EXAMPLES``: command lines, each with ``  # what it does`` where that helps;
* ``flags(parser)``, which adds what the verb takes to a ``Parser``; imports nothing that is slow;
* ``main(args)``, which does the work with the namespace and returns the exit code; what is wrong is
  a ``FedvlmError``, whose text is shown;
* ``ALSO``, if it likes: other words that people type for it, offered where a verb is unknown.
"""

from __future__ import annotations

import ast
import importlib
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fedvlm.console.parser import Parser
from fedvlm.core.errors import ConfigError

# Of the sections in the help; others follow.
ORDER = ("run", "data", "results", "models", "methods", "tool")
PACKAGE = "fedvlm.cli"


@dataclass(frozen=True)
class Verb:
    """A verb: its name as typed, its section (the folder), and its file."""

    name: str
    section: str
    path: Path

    @property
    def sentence(self) -> str:
        """The first line of the file's docstring."""
        return first_line(self.path)

    def module(self) -> ModuleType:
        """Import the file.

        Raises:
            ConfigError: it wants a part of fedvlm that this installation lacks.
        """
        try:
            return importlib.import_module(f"{PACKAGE}.{self.section}.{self.path.stem}")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("fedvlm."):
                raise
            raise ConfigError(
                f"'{self.name}' is not part of this installation (module {error.name} is missing)"
            ) from None

    def parser(self, prog: str = "") -> Parser:
        """Return the parser of the verb's words; ``prog``: the command as typed."""
        parser = Parser(prog=prog or f"fedvlm {self.name}")
        self.fill(parser)
        return parser

    def fill(self, parser: Parser) -> None:
        """Give a parser the verb's flags, the head of its page, and its examples."""
        module = self.module()
        module.flags(parser)
        parser.add_help_flag()
        parser.description = (module.__doc__ or "").rstrip()
        parser.examples = module.EXAMPLES

    def run(self, words: Sequence[str], prog: str = "") -> int:
        """Do what the words say and return the exit code; ``prog`` as in ``parser``.

        Raises:
            FedvlmError: whatever is wrong.
        """
        args: Namespace = self.parser(prog).parse_args(words)
        return int(self.module().main(args))

    def also(self) -> tuple[str, ...]:
        """Return the other words for the verb, read without running the file."""
        for node in ast.parse(self.path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ALSO":
                return tuple(ast.literal_eval(node.value))
        return ()


def verbs() -> dict[str, Verb]:
    """Return all verbs by name, section by section; first the one that a section is named by."""
    table = {}
    for section in sections():
        folders = importlib.import_module(f"{PACKAGE}.{section}").__path__
        files = [path for folder in folders for path in Path(folder).glob("[!_]*.py")]
        for path in sorted(files, key=lambda path: (path.stem != section, path.stem)):
            name = path.stem.replace("_", "-")
            table[name] = Verb(name, section, path)
    return table


def sections() -> dict[str, str]:
    """Return folder -> heading, in the order of the help."""
    here = Path(__file__).parent
    names = sorted(path.parent.name for path in here.glob("*/__init__.py"))
    names.sort(key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return {name: first_line(here / name / "__init__.py") for name in names}


def first_line(path: Path) -> str:
    """Return the first line of a file's docstring; parsing all files would take 0.1 s."""
    with path.open(encoding="utf-8") as file:
        return file.readline().strip().strip('"').rstrip(".")
