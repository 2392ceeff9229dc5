"""``fedvlm site serve`` refuses what is missing; processes are tested in ``tests/job/engines``."""

from __future__ import annotations

import pytest

from fedvlm.cli.main import main


@pytest.mark.parametrize(("words", "said"), [
    (["srve"], "did you mean 'serve'?"),
    (["serve", "--listen", "a:1", "--token-file", "t", "--demo"], "--states FOLDER: say where"),
    (["serve", "--states", "s", "--demo"], "say one of --listen ADDRESS and --handle N"),
    (["serve", "--states", "s", "--listen", "a:1", "--demo"], "--listen wants --token-file FILE"),
    (["serve", "--states", "s", "--handle", "7", "--run", "r", "--lr", "1"], "drop '--lr'"),
    (["serve", "--states", "s", "--handle", "7", "--to", "t"], "serve does not read --to"),
    (["make", "--states", "s"], "make does not read --states"),
    (["serve", "--states", "s", "--handle", "7", "--run", "/no/run"], "names no method"),
    (["serve", "--states", "s", "--handle", "999", "--demo"], "--handle 999 is no socket"),
    (["serve", "s.yaml"], "serve s.yaml wants --listen ADDRESS and --token-file FILE"),
    (["serve", "s.yaml", "--listen", "a:1", "--token-file", "t", "--lr", "1"],
     "serve s.yaml does not read --lr: a run's words come from its coordinator"),
    (["serve", "s.yaml", "--listen", "a:1", "--token-file", "t", "--demo"],
     "serve s.yaml does not read --demo"),
    (["serve", "/no/s.yaml", "--listen", "a:1", "--token-file", "t"], "there is no '/no/s.yaml'"),
    (["serve", "s.yaml", "--federation", "i.json", "--listen", "a:1"],
     "--federation INVITATION has its own way to the coordinator: drop --listen"),
    (["serve", "/no/s.yaml", "--federation", "i.json"], "there is no '/no/s.yaml'"),
    (["serve", "s.yaml", "--name", "a"], "serve does not read --name"),
    (["key", "s.yaml", "--to", "t"], "key does not read --to"),
    (["key"], "key wants one FILE: fedvlm site key FILE"),
    (["key", "/no/s.yaml"], "there is no '/no/s.yaml'"),
])  # fmt: skip
def test_what_is_missing_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", *words]) in (2, 3)
    assert said in capsys.readouterr().err
