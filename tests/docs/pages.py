"""A page of ``docs/`` as something that runs: its blocks, in order, in a folder of their own.

``sh`` and ``python`` blocks are run, but for those behind ``<!-- not run: why -->``: of these,
every fedvlm command is read by its parser. A block with ``title="file"`` is written to that file. A
``text`` block shows what the block before it printed: each of its lines must be there, numbers
aside; ``...`` stands for any lines. Behind a block that is not run it is not compared.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from evidence import commands as evidence
from fedvlm.cli import main as cli
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import fold
from tests.jobs import REPOSITORY

DOCS = REPOSITORY / "docs"
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>.*?) -->\n)?^```(?P<language>\w+)"
    r"(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL,
)
EVIDENCE = evidence.PROGRAM.split()
PROGRAMS = (["fedvlm"], ["python", "-m", "fedvlm"], ["python", "federated_main.py"], EVIDENCE)
SHELL = re.compile(r"[|<>;&`]|\$\(")  # what only a shell does
FUNCTIONS = (
    f'fedvlm() {{ "{sys.executable}" -m fedvlm "$@"; }}\npython() {{ "{sys.executable}" "$@"; }}\n'
)
OPERATORS = (">", "<", "|", "||", "&", "&&", "2>", "2>&1")
NUMBER = r"\d[\d,.]*(?:e-?\d+)?"


@dataclass(frozen=True)
class Block:
    """A fenced block; ``why``: why it is not run, ``line``: where its text begins."""

    language: str
    text: str
    title: str
    why: str
    line: int

    @property
    def commands(self) -> list[str]:
        """The command lines of a shell block, continued ones joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(path: Path) -> list[Block]:
    """Return a page's blocks."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(m["language"], m["text"], m["title"] or "", m["why"] or "",
              text.count("\n", 0, m.start("text")) + 1)
        for m in BLOCK.finditer(text)
    ]


def words_of(command: str) -> list[str] | None:
    """Return the words behind ``fedvlm`` of a command that is one, comments taken off."""
    words = shlex.split(command, comments=True)
    for program in PROGRAMS:
        if words[: len(program)] == program:
            return words[len(program):]
    return None


def read(command: str) -> None:
    """Read a fedvlm command by its parser, which refuses what it does not know."""
    words = words_of(command)
    if words is None:
        return
    words = list(takewhile(lambda word: word not in OPERATORS, words))
    if shlex.split(command)[: len(EVIDENCE)] == EVIDENCE:
        evidence.read_commands()[words[0]].parser().parse_args(words[1:])
        return
    table = verbs()
    name = next((n for n in table if words and fold(n) == fold(words[0])), "")
    table[name or "run"].parser().parse_args(words[1:] if name else words)


class Session:
    """What runs the blocks of a page: variables of the shell, names of Python, what was said."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.said: str | None = ""  # None: of a block that is not run

    def run(self) -> None:
        """Run every block in the current folder."""
        for block in blocks(self.page):
            where = f"{self.page.name}:{block.line}"
            if block.title:
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "text" and self.said is not None:
                missing = [line for line in shown(block.text) if line not in shown(self.said)]
                assert not missing, f"{where}: was not said: {missing[0]}\n{self.said[-3000:]}"
            elif block.language in ("sh", "python") and block.why:
                self.said = None
            elif block.language in ("sh", "python"):
                self.said = ""
                for step in [block.text] if block.language == "python" else block.commands:
                    self._step(block.language, step, where)

    def _step(self, language: str, step: str, where: str) -> None:
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                if language == "python":
                    exec(compile(step, where, "exec"), self.names)
                else:
                    self._command(step, out)
        except BaseException as error:
            error.add_note(f"{where}: {step}\n{out.getvalue()[-3000:]}")
            raise
        self.said = (self.said or "") + out.getvalue()

    def _command(self, line: str, out: io.StringIO) -> None:
        """Run one line: fedvlm in this process, whatever else in a shell."""
        name, equals, _ = line.partition("=")
        if equals and name.isidentifier():
            os.environ[name] = self._shell(f'{line}\nprintf %s "${name}"')
            return
        if words_of(line) is None or SHELL.search(shlex.join(words_of(line) or [])):
            out.write(self._shell(line))
            return
        bare = line.partition("  #")[0]
        words = self._shell(f"printf '%s\\0' {bare}").split("\0")[:-1]
        program = next(p for p in PROGRAMS if words[: len(p)] == p)
        main = evidence.main if program == EVIDENCE else cli.main
        code = main(words[len(program):])
        assert code == 0, f"exit code {code}"

    def _shell(self, text: str) -> str:
        env = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            ["bash", "-euc", FUNCTIONS + text], env=env, capture_output=True, text=True,
            timeout=300, check=False,
        )
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
        return done.stdout


def shown(text: str) -> list[str]:
    """Return the lines of an output as they are compared: numbers and blanks aside."""
    marks = r"</?u>|\*\*"  # the best of a column
    plain = [re.sub(marks, "", re.sub(NUMBER, "N", line)) for line in text.splitlines()]
    return [" ".join(line.split()) for line in plain if line.strip() not in ("", "...")]


def pages() -> Iterator[Path]:
    """Yield the pages that are written by hand and hold commands."""
    for path in sorted(DOCS.glob("*.md")):
        if any(b.language in ("sh", "python") for b in blocks(path)):
            yield path
