"""``completion``: what the shells load, and what bash then offers."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fedvlm.cli import main as cli
from fedvlm.cli.tool.completion import SHELLS
from fedvlm.cli.verbs import verbs
from fedvlm.federation.cards import trainer_files


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]):
    """Return a function that gives the script of a shell."""
    def of(shell: str) -> str:
        assert cli.main(["completion", shell]) == 0
        return capsys.readouterr().out

    return of


def bash(script: str, line: str) -> list[str]:
    """Return what bash offers at the end of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    code = (f"{script}\ncomplete -p fedvlm >&2 || exit 9\n"
            f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
            "$(complete -p fedvlm | sed 's/.*-F \\([^ ]*\\).*/\\1/') fedvlm "
            f"'{words[-1]}' '{words[-2]}'\n"
            'printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "complete" in done.stderr, done.stderr
    return done.stdout.split()


def test_bash_offers_verbs_flags_and_names(script):
    text = script("bash")
    assert set(bash(text, "fedvlm ")) >= set(verbs())
    assert bash(text, "fedvlm ta") == ["table"]
    assert bash(text, "fedvlm table --fo") == ["--format"]
    assert bash(text, "fedvlm table --format t") == ["text", "tex"]
    assert bash(text, "fedvlm run --trainer pf") == [s for s in trainer_files() if s[:2] == "pf"]
    assert bash(text, "fedvlm sweep --num-u") == ["--num-users"]
    assert "eurosat" in bash(text, "fedvlm run --dataset eu")
    assert bash(text, "fedvlm --roun") == ["--rounds"]
    assert bash(text, "fedvlm data pre") == ["prepare"]
    assert bash(text, "fedvlm list fedtv") == ["fedtv"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_every_verb(shell: str, script):
    text = script(shell)
    assert all(name in text for name in verbs())
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr


def test_a_new_verb_is_completed(toy, script):
    toy()
    text = script("bash")
    assert bash(text, "fedvlm toy") == ["toy-verb"]
    assert bash(text, "fedvlm toy-verb --l") == ["--loud"]


def test_an_unknown_shell_gets_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["completion", "zhs"]) == 2
    assert "unknown shell 'zhs'; did you mean 'zsh'?" in capsys.readouterr().err
