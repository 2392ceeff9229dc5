"""The parser: where words go, what a flag takes, and every mistake at once."""

from __future__ import annotations

import pytest

from fedvlm.console.parser import Loose, Parser, Switch, amount, asks_help, whole_number
from fedvlm.core.errors import ConfigError


@pytest.fixture
def parser() -> Parser:
    made = Parser(prog="fedvlm toy")
    add = made.add_argument
    add("first", help="a word")
    add("rest", nargs="*")
    add("--rate", type=float)
    add("--how-many", type=whole_number(1, 9), default=3)
    add("--form", choices=["md", "tex"], default="md")
    add("--keys", nargs="+", action="extend")
    add("--off", action=Switch)
    add("--full", action="store_true")
    add("--more", action=Loose, nargs="+")
    made.alias(made.add_argument("--output"), ["--out-dir", "--into"])
    made.refused = {"--old": "is gone; use --form"}
    return made


def mistakes(parser: Parser, line: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parser.parse_args(line.split())
    return str(error.value).splitlines()


def test_words_stand_before_between_and_after_flags(parser: Parser) -> None:
    for line in ("a b c --rate 1 --full", "--rate=1 a --full b c", "--full a b --rate 1 c"):
        args = parser.parse_args(line.split())
        assert (args.first, args.rest, args.rate, args.full) == ("a", ["b", "c"], 1.0, True)
    args = parser.parse_args(["a", "--more", "b", "c", "--rate", "2", "d"])
    assert args.rest == ["b", "c", "d"]
    assert parser.parse_args(["a", "--", "b"]).rest == ["b"]


def test_spellings_and_what_was_typed(parser: Parser) -> None:
    args = parser.parse_args(["a", "--How_Many=4", "--intO", "x"])
    assert (args.how_many, args.output) == (4, "x")
    assert args.spelling == {"how_many": "--How_Many", "output": "--intO"}
    assert args.words == ["a", "--How_Many=4", "--intO", "x"]


def test_values_may_begin_with_one_dash(parser: Parser) -> None:
    assert parser.parse_args(["a", "--rate", "-1e-3"]).rate == -1e-3
    assert parser.parse_args(["a", "--output", "-x"]).output == "-x"
    assert parser.parse_args(["a", "-3", "SEED", "-x", "-.5"]).rest == ["-3", "SEED", "-x", "-.5"]
    assert mistakes(parser, "a b -x") == ["toy: unknown flag '-x' (--help lists all)"]


def test_switches(parser: Parser) -> None:
    assert [parser.parse_args(f"{word} a".split()).off for word in (
        "--off", "--off true", "--off FALSE", "--off=false")] == [True, True, False, False]
    assert mistakes(parser, "a --off=x")[0].startswith("toy: --off is a switch")
    assert mistakes(parser, "a --full=x") == ["toy: --full takes no value, got 'x'"]


def test_many_values_and_defaults_are_fresh(parser: Parser) -> None:
    words = ["a", "--keys", "x", "y", "--full", "--keys=z", "b"]
    assert parser.parse_args(words).keys == ["x", "y", "z"]
    first = parser.parse_args(["a"])
    first.rest.append("b")
    assert parser.parse_args(["a"]).rest == []
    assert first.keys is None


def test_required_flags_are_asked_for_by_name() -> None:
    parser = Parser(prog="fedvlm toy")
    parser.add_argument("--to", required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--of", "--from", dest="of", required=True, help="what is read")
    wants_to, wants_of = "toy needs --to DIR (a new folder)", "toy needs --from OF (what is read)"
    assert mistakes(parser, "") == [wants_to, wants_of]
    assert mistakes(parser, "--from x") == [wants_to]
    assert mistakes(parser, "--of x --two y") == ["toy: unknown flag '--two'; did you mean '--to'?"]
    args = parser.parse_args(["--of", "x", "--to", "y"])
    assert (args.of, args.to) == ("x", "y")


def test_numbers_of_a_range_and_units() -> None:
    parser = Parser(prog="fedvlm toy")
    parser.add_argument("--count", type=whole_number(0), nargs="+")
    parser.add_argument("--width", type=amount("inches", 2, 20))
    parser.add_argument("--age", type=amount("days", 0))
    args = parser.parse_args(["--count", "0", "12", "--width", "2.5", "--age", "0"])
    assert (args.count, args.width, args.age) == ([0, 12], 2.5, 0)
    for word in ("-1", "1.5", "x", "\u0663"):
        assert mistakes(parser, f"--count 1 {word}") == [
            f"toy: --count expects a whole number from 0 on, got '{word}'"
        ]
    for word in ("1.9", "21", "nan", "x"):
        assert mistakes(parser, f"--width {word}") == [
            f"toy: --width expects inches from 2 to 20, got '{word}'"
        ]
    for word in ("-1", "inf", "nan", "soon"):
        assert mistakes(parser, f"--age {word}") == [
            f"toy: --age expects days from 0 on, got '{word}'"
        ]


def test_every_mistake_at_once(parser: Parser) -> None:
    line = "--rte 1 2 --how-many 0 --form tx --rate x --keys --old"
    assert mistakes(parser, line) == [
        "toy: unknown flag '--rte'; did you mean '--rate'?",
        "toy: --how-many expects a whole number from 1 to 9, got '0'",
        "toy: --form tx: no such form; did you mean 'tex'? (known: md, tex)",
        "toy: --rate expects a number, got 'x'",
        "toy: --keys needs a value",
        "toy: flag --old is gone; use --form",
    ]
    parser.examples = ("fedvlm toy fish  # one",)
    assert mistakes(parser, "") == ["toy needs a word: fedvlm toy fish"]


def test_checks_add_to_the_mistakes() -> None:
    parser = Parser(prog="fedvlm")
    parser.add_argument("--a")
    parser.checks.append(lambda args: ["no a"] if args.a is None else [])
    assert mistakes(parser, "--b") == ["unknown flag '--b' (--help lists all)", "no a"]
    assert mistakes(parser, "--a 1 x") == ["unknown word 'x'"]


def test_the_page_fits_and_ends_with_the_examples(parser: Parser) -> None:
    parser.examples = ("fedvlm toy fish", "fedvlm toy fish --full")
    page = parser.format_help().splitlines()
    assert page[0] == "usage: fedvlm toy FIRST [REST ...] [flags]"
    assert page[-3:] == ["examples:", "  fedvlm toy fish", "  fedvlm toy fish --full"]
    assert not any("--into" in line for line in page)  # further spellings are not shown


def test_who_asks_for_help() -> None:
    assert all(asks_help(w.split()) for w in ("help", "-h", "a --help", "a -help", "help b"))
    assert not any(asks_help(w.split()) for w in ("", "a help", "--helper", "a"))
