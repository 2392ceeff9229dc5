"""Every command says what it is for."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

import pytest

from fedvlm.cli import main as cli
from fedvlm.cli.verbs import sections, verbs
from tests.jobs import REPOSITORY

VERBS = verbs()


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h"]])
def test_help_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert cli.main(words) == 0
    page = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in page if line.startswith("  ") and
            line.split()[0] in VERBS]
    assert [name for name, _ in rows] == list(VERBS)
    assert all(text == VERBS[name].sentence for name, text in rows)
    assert [line for line in page if line in sections().values()] == list(sections().values())
    assert len(page) <= 60 and max(map(len, page)) <= 100


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_command(verb: str, capsys: pytest.CaptureFixture[str]):
    code = cli.main([verb, "--help"])
    page = capsys.readouterr()
    assert code == 0, page.err
    assert f"usage: fedvlm {verb} " in page.out
    assert "--help says more" not in page.out
    assert page.out.splitlines()[-len(VERBS[verb].module().EXAMPLES) - 1] == "examples:"
    assert max(map(len, page.out.splitlines())) <= 100
    assert cli.main(["help", verb]) == 0
    assert capsys.readouterr().out == page.out


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_every_example_is_read(verb, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(REPOSITORY)
    examples = verb.module().EXAMPLES
    assert len(examples) >= 2
    for example in examples:
        line = example.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0]
        line = line.replace(')"  #', "  #")
        name, typed, *words = shlex.split(line, comments=True)
        assert (name, typed) == ("fedvlm", verb.name)
        assert verb.parser().parse_args(words)


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_a_verb_s_sentence_is_the_first_line_of_its_file(verb):
    text = ast.get_docstring(ast.parse(verb.path.read_text()))
    assert text is not None
    assert text.splitlines()[0].rstrip(".") == verb.sentence
    assert verb.module().__doc__.splitlines()[0] == text.splitlines()[0]


def test_other_words_for_verbs_are_of_one_verb_each():
    also = [word for verb in VERBS.values() for word in verb.also()]
    assert len(also) == len(set(also)) and not set(also) & set(VERBS)
    assert all(verb.also() == verb.module().ALSO for verb in VERBS.values())


def loaded(commands: Sequence[str], *slow: str) -> str:
    """Run commands in a process of its own; return the first that loads a module of ``slow``."""
    code = ("import sys; from fedvlm.cli.main import main\n"
            f"for words in {[*commands]!r}:\n"
            f"    main(words.split()); found = {{*{slow!r}}} & set(sys.modules)\n"
            "    if found: sys.exit(f'{words} loads {found}')")
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True,
                          text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return "" if done.returncode == 0 else done.stderr.splitlines()[-1]


def test_what_needs_no_torch_does_without() -> None:
    assert loaded(["--help", "help", "list", "list fedtv", "config FED", "show x",
                   "completion bash", "run --help", "sweep --help", "--version",
                   "features --help", "doctor --help", "trian"], "torch") == ""
    assert loaded(["--help"], "torch", "argparse") == "--help loads {'argparse'}"


def test_the_overview_and_the_list_are_there_at_once() -> None:
    """NumPy alone is 0.15 s; what is measured here is 0.1 s of CPU on a quiet machine."""
    assert loaded(["--help", "list"], "numpy", "torch", "yaml", "rich") == ""


def test_a_verb_is_one_file(toy, capsys: pytest.CaptureFixture[str]):
    toy()
    assert cli.main(["help"]) == 0
    page = capsys.readouterr().out.splitlines()
    line = next(line for line in page if "A verb for the tests. And nothing else" in line)
    assert line.split()[0] == "toy-verb"
    assert page.index(line) == max(page.index(x) for x in page if x.startswith("  table  ")) + 1
    assert cli.main(["toy-verb", "--loud", "fish"]) == 7
    assert capsys.readouterr().out == "FISH\n"
    assert cli.main(["toy_verb", "fish", "--luod"]) == 2
    assert "unknown flag '--luod'; did you mean '--loud'" in capsys.readouterr().err
    assert cli.main(["toy-verb", "-h"]) == 0
    page = capsys.readouterr().out
    assert "in capitals" in page and "fedvlm toy-verb fish --loud" in page
    assert cli.main(["plaything"]) == 2
    assert "did you mean 'toy-verb'?" in capsys.readouterr().err


def test_help_of_what_is_none(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["help", "tabel"]) == 2
    assert "did you mean 'table'?" in capsys.readouterr().err
