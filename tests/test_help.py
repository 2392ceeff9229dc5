"""Every command says what it is for."""

from __future__ import annotations

import pytest

from fedvlm.cli import main as cli


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["help"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in said[:-1]] == list(cli.ABOUT)
    assert set(cli.ABOUT) == set(cli.VERBS)


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_help_of_a_command(verb: str, capsys: pytest.CaptureFixture[str]):
    try:
        code = cli.main([verb, "--help"])
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    said = capsys.readouterr()
    assert code == 0, said.err
    assert verb in said.out or verb == "run"
    assert "--help says more" not in said.out
