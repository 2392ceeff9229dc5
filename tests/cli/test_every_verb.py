"""What holds for the flags of every verb: asked for where required, named where mistyped."""

from __future__ import annotations

import argparse

import pytest

from fedvlm.cli import main as cli
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import ConfigError

VERBS = verbs()
INTERNAL: dict[str, set[str]] = {}  # flags of processes that fedvlm starts itself
every_verb = pytest.mark.parametrize("name", sorted(VERBS))


def required(name: str) -> list[argparse.Action]:
    return [a for a in VERBS[name].parser()._actions if a.required and a.nargs not in ("*", "?")]


def test_some_verbs_require_flags_and_some_words() -> None:
    flags = {name: sorted(a.option_strings[0] for a in required(name) if a.option_strings)
             for name in VERBS}
    assert {n: f for n, f in flags.items() if f} == {
        "adapt": ["--images", "--to"], "export": ["--format", "--to"],
    }
    assert any(not a.option_strings for name in VERBS for a in required(name))


@every_verb
def test_what_is_required_is_asked_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = required(name)
    if not wanted:
        return
    assert cli.main([name]) == 2
    said = capsys.readouterr().err
    for action in wanted:
        flag = f"{action.option_strings[-1]} {action.metavar} " if action.option_strings else ""
        assert f"{name} needs {flag}" in said and str(action.help) in said.replace("\n", " ")
    assert "Traceback" not in said and "unexpected" not in said


@every_verb
def test_a_flag_without_its_value_and_a_mistyped_flag_are_named(name: str) -> None:
    parser = VERBS[name].parser()
    flags = [a for a in parser._actions if a.option_strings]
    assert flags
    valued = [a for a in flags if a.nargs not in (0, "*")]
    for action in valued:
        flag = action.option_strings[-1]
        with pytest.raises(ConfigError, match=f"{flag} needs a value"):
            parser.parse_args([flag])
    with pytest.raises(ConfigError, match=r"unknown flag '--no-such-flag-zzz'"):
        parser.parse_args(["--no-such-flag-zzz"])


@every_verb
def test_an_empty_word_is_refused(name: str) -> None:
    """An unset variable of a shell names no folder, method or patient: nothing stands in for it."""
    parser = VERBS[name].parser()
    valued = [a for a in parser._actions if a.dest not in parser.blank and a.nargs != 0]
    for action in valued:
        flag = action.option_strings[-1:]
        for empty in ("", "  "):
            with pytest.raises(ConfigError, match=f"{(flag or [''])[0]}.* got an empty word"):
                parser.parse_args([*flag, empty])
    assert parser.blank <= {"opts", "TRAINER.*.CTX_INIT", "DATASET.SOURCE_DOMAINS",
                            "DATASET.TARGET_DOMAINS"}


@every_verb
def test_numbers_of_a_verb_refuse_words(name: str) -> None:
    parser = VERBS[name].parser()
    typed = [a for a in parser._actions if a.option_strings and (
        a.type in (int, float)
        or getattr(a.type, "__qualname__", "").startswith(("whole.", "amount."))
    )]
    for action in typed:
        with pytest.raises(ConfigError, match=f"{action.option_strings[-1]} expects "):
            parser.parse_args([action.option_strings[-1], "no number"])


@every_verb
def test_a_verb_s_help_has_all_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Described, or named where ``fedvlm run --help`` describes them; ``INTERNAL`` are not."""
    assert cli.main([name, "--help"]) == 0
    words = set(capsys.readouterr().out.replace(",", " ").split())
    flags = [a for a in VERBS[name].parser()._actions if a.option_strings]
    shown = {a.option_strings[0] for a in flags} - INTERNAL.get(name, set())
    assert shown - words == set()
    if name == "run":  # all of them with a line of what they do
        assert [a.option_strings[0] for a in flags if a.help == argparse.SUPPRESS] == []
        assert len(flags) > 60
