"""``fedvlm site serve`` refuses what is missing; processes are tested in ``tests/job/sites``."""

from __future__ import annotations

import pytest

from fedvlm.cli.main import main


@pytest.mark.parametrize(("words", "said"), [
    (["srve"], "did you mean 'serve'?"),
    (["serve"], "serve needs the site's file: fedvlm site serve SITE.YAML --federation"),
    (["serve", "--listen", "s", "--demo"], "serve needs the site's file"),
    (["serve", "s.yaml", "--listen", "s", "--to", "t"], "serve does not read --to"),
    (["make", "--listen", "s"], "make does not read --listen"),
    (["serve", "s.yaml"], "serve s.yaml needs --federation INVITATION, written by the "
                          "coordinator's"),
    (["serve", "s.yaml", "--listen", "s", "--token-file", "t"],
     "flag --token-file ended with 0.2"),
    (["serve", "s.yaml", "--listen", "s", "--lr", "1"],
     "serve s.yaml does not read --lr: a run's words come from its coordinator"),
    (["serve", "s.yaml", "--listen", "s", "--demo"], "serve s.yaml does not read --demo"),
    (["serve", "/no/s.yaml", "--listen", "s"], "'/no/s.yaml' does not exist"),
    (["serve", "s.yaml", "--federation", "i.json", "--listen", "s"],
     "--federation INVITATION cannot be combined with --listen: drop one of them"),
    (["serve", "/no/s.yaml", "--federation", "i.json"], "'/no/s.yaml' does not exist"),
    (["serve", "s.yaml", "--name", "a"], "serve does not read --name"),
    (["key", "s.yaml", "--to", "t"], "key does not read --to"),
    (["key"], "key needs one FILE: fedvlm site key FILE"),
    (["key", "/no/s.yaml"], "'/no/s.yaml' does not exist"),
])  # fmt: skip
def test_what_is_missing_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", *words]) in (2, 3)
    assert said in capsys.readouterr().err
