"""The parser of every command line: argparse declares, formats and completes; the walk is ours.

argparse's own walk over the words stops at the first mistake, takes ``-1e-3`` for a flag and loses
words that follow a flag's value. Here

* every mistake gets a message, all of them at once, with the nearest flag;
* case, dash and underscore do not matter: ``--num_users`` = ``--Num-Users``;
* ``--flag=value`` is ``--flag value``, and a value may begin with one dash;
* words may stand before, between and after flags;
* a flag that is ``required`` and missing is a mistake like any other.

What a flag is stays argparse's: ``add_argument`` with its actions, types, choices and groups. So
its help and shtab's completion come for free.
"""

from __future__ import annotations

import argparse
import copy
import math
import re
import sys
import textwrap
from argparse import Action, Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from fedvlm.core.errors import ConfigError, did_you_mean, fold, nearest

WIDTH = 100  # of a help page
_ONE = (None, "?")  # values of ``nargs`` that take one word
_EMPTY = " got an empty word (a variable of your shell that is not set?)"


class Switch(argparse.Action):
    """On, or with an explicit word on or off: ``--iid``, ``--iid False``, ``--iid=false``."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **{"default": False} | more)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Namespace, values: Any,
        option: str | None = None,
    ) -> None:
        """Store True or False (``ConfigError``: the word is neither)."""
        word = values[0] if values else "true"
        if word.lower() not in ("true", "false"):
            raise ConfigError(f"{option} is a switch: use {option}, {option}=true or "
                              f"{option}=false")
        setattr(namespace, self.dest, word.lower() == "true")


def _filled(why: str, typed: str) -> str:
    """Return a sentence with what was typed in its places ``{word}``."""
    return re.sub(r"\{([^}]+)\}", lambda place: typed or place[1], why)


class Loose(argparse.Action):
    """A flag whose words are as if they stood without it: ``--opts KEY VALUE``."""

    def __call__(self, *_: Any) -> None:
        """Do nothing: the walk puts the words where they belong."""


class BeforePairs(argparse.Action):
    """A flag whose words end where pairs begin: ``--seeds 1 2 DATASET.NUM_SHOTS 16``."""


class MoreNumbers(argparse.Action):
    """A flag of one value that further numbers may follow: ``--lr 0.01 0.1``."""


class Parser(argparse.ArgumentParser):
    """The flags and words of one command; ``parse_args`` raises ``ConfigError``, all mistakes.

    ``prog`` is the command as it is typed; what follows its first word begins a mistake's sentence.
    The namespace has two members of its own: ``words``, the words as typed, and ``spelling``, the
    flags given as ``dest`` -> how each was typed.

    Attributes:
        refused: flag -> why there is none such, for flags that other projects have; ``{N}`` stands
            for the word behind the flag, and is N without one.
        checks: functions of the namespace that return further mistakes.
        examples: command lines for the end of the help page.
        further: flags that the help page names, and ``fedvlm run --help`` describes.
        blank: arguments (``dest``) whose words may be empty; a config key's value always may.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"formatter_class": _Page} | more | {"add_help": False})
        self.refused: dict[str, str] = {}
        self.checks: list[Callable[[Namespace], Iterable[str]]] = []
        self.examples: Sequence[str] = ()
        self.further: list[str] = []
        self.blank: set[str] = set()
        self.compact: set[str] = set()  # titles of groups that are one paragraph of the help page
        self._aliases: dict[str, Action] = {}

    def add_help_flag(self) -> None:
        """Add ``--help`` unless there is one."""
        if "help" not in self.spellings():
            self.add_argument("-h", "--help", action=Switch, help="this page")

    def alias(self, action: Action, names: Iterable[str]) -> None:
        """Take further spellings of a flag, which neither help nor completion shows."""
        self._aliases |= {fold(name): action for name in names}

    def spellings(self) -> dict[str, Action]:
        """Return every flag by its folded spelling, aliases included."""
        shown = {fold(name): a for a in self._actions for name in a.option_strings}
        return self._aliases | shown

    def parse_known_args(  # type: ignore[override]
        self, args: Iterable[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Read all words, none is left over (``ConfigError``: all mistakes, one line each)."""
        words = list(sys.argv[1:] if args is None else args)
        values = self._empty(namespace or Namespace())
        values.words, values.spelling = list(words), {}
        loose, mistakes = self._walk(words, values)
        if loose or not mistakes:  # a word that seems to be missing may have followed a wrong flag
            mistakes += self._place(loose, values)
            mistakes += self._absent(values)
        for check in self.checks:
            mistakes += check(values)
        if mistakes:
            self.error("\n".join(mistakes))
        return values, []

    def error(self, message: str) -> NoReturn:
        """Refuse (``ConfigError``): each line begins with the command's name."""
        lines = message.splitlines()
        raise ConfigError("\n".join(
            line if line.startswith(self.label) else f"{self.label}: {line}" for line in lines
        ))

    @property
    def label(self) -> str:
        """The command without the program's name: ``data prepare``; '' of the main job."""
        return self.prog.partition(" ")[2]

    def format_help(self) -> str:
        """Return the page: usage, what it is for, flags by group, examples."""
        wants = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
        words = [wants[a.nargs].format(a.metavar or a.dest.upper())  # type: ignore[index]
                 for a in self._get_positional_actions()]
        self.usage = " ".join([self.prog, *words, "[flags]"])
        groups = self._action_groups
        self._action_groups = [g for g in groups if g.title not in self.compact]
        page = super().format_help().rstrip()
        self._action_groups = groups
        for group in groups:
            if group.title in self.compact:
                page += _paragraph(group.title, ";  ".join(
                    f"{a.option_strings[0]} {a.help}" for a in group._group_actions))
        if self.further:
            page += _paragraph("flags of a run (explained by fedvlm run --help)",
                               " ".join(self.further))
        examples = ["", "examples:", *(f"  {line}" for line in self.examples)]
        return "\n".join([page, *(examples if self.examples else [])])

    def _empty(self, values: Namespace) -> Namespace:
        """Set every default that the namespace lacks; a list or dict is a fresh one."""
        positional = self._get_positional_actions()
        words: dict[str, Any] = {a.dest: [] for a in positional if a.nargs == "*"}
        flags = {a.dest: a.default for a in self._actions if a.dest not in words}
        for dest, default in (words | flags | self._defaults).items():
            if default is not argparse.SUPPRESS and not hasattr(values, dest):
                setattr(values, dest, copy.copy(default))
        return values

    def _walk(self, words: list[str], values: Namespace) -> tuple[list[str], list[str]]:
        """Store every flag; return the words that belong to none, and the mistakes."""
        table = self.spellings()
        loose: list[str] = []
        mistakes: list[str] = []
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if not _is_flag(word, table):
                dashed = word.startswith("-") and word not in ("-", "--")
                if dashed and not _is_value(word, loose):
                    values_of = next((i for i, w in enumerate(words) if w.startswith("-")),
                                     len(words))
                    mistakes.append(self._unknown(word, (words[:values_of] or [""])[0]))
                    del words[:values_of]  # its values belong to it
                elif word != "--":
                    loose.append(word)
                continue
            following = next((i for i, w in enumerate(words) if w.startswith("--")), len(words))
            action = table.get(fold(name))
            if action is None:
                mistakes.append(self._unknown(name, value or (words[0] if following else "")))
                del words[:following]  # its values belong to it
                continue
            taken = [value] if equals else _taken(action, words[:following])
            del words[: 0 if equals else len(taken)]
            if isinstance(action, Loose):
                loose += taken
            try:
                self._store(action, name, taken, values)
            except ConfigError as error:
                mistakes.append(str(error))
        return loose, mistakes

    def _unknown(self, name: str, typed: str) -> str:
        """Return what to say of a flag that there is not, with the word behind it."""
        why = {fold(n): why for n, why in self.refused.items()}.get(fold(name))
        return f"flag {name} {_filled(why, typed)}" if why else \
            f"unknown flag '{name}'{self._near(name)}"

    def _store(self, action: Action, name: str, words: list[str], values: Namespace) -> None:
        """Convert a flag's words and hand them to its action (``ConfigError``: others wanted)."""
        if not words and action.nargs not in (0, "*"):
            about = f" ({action.help.replace('%%', '%')})" if action.help else ""
            raise ConfigError(f"{name} needs a value{about}")
        if words and action.nargs == 0 and not isinstance(action, Switch):
            raise ConfigError(f"{name} takes no value, got '{words[0]}'")
        if self._blank(action, words):
            raise ConfigError(f"{name}{_EMPTY}; give a value, or drop {name}")
        values.spelling[action.dest] = name
        converted = [_converted(action, name, word) for word in words]
        action(self, values, converted[0] if action.nargs in _ONE else converted, name)

    def _blank(self, action: Action, words: Sequence[str]) -> bool:
        """Whether one of an argument's words is empty and may not be."""
        return action.dest not in self.blank and any(
            not word.strip() and not (i and words[i - 1].isupper()) for i, word in enumerate(words))

    def _place(self, loose: list[str], values: Namespace) -> list[str]:
        """Hand the words without a flag to the arguments that want them; return the mistakes."""
        left, mistakes, wants = list(loose), [], ""
        for action in self._get_positional_actions():
            wants = f"{self.label} needs {action.help}"
            count = len(left) if action.nargs in ("*", "+") else 1
            words, left = left[:count], left[count:]
            if not words and action.nargs in (None, "+"):
                mistakes.append(self._lacks(action))
            elif self._blank(action, words):
                mistakes.append(f"{action.dest.replace('_', ' ')}{_EMPTY}; {wants}")
            elif words:
                try:
                    converted = [_converted(action, "", word) for word in words]
                except ConfigError as error:
                    mistakes.append(str(error))
                else:
                    action(self, values, converted[0] if action.nargs in _ONE else converted)
        more = f"; {wants}" if wants else ""
        return mistakes + [f"unknown word '{word}'{more}" for word in left[:1]]

    def _absent(self, values: Namespace) -> list[str]:
        """Return a mistake for each required flag that was not given."""
        return [
            f"{self.label} needs {a.option_strings[-1]} {a.metavar or a.dest.upper()} ({a.help})"
            for a in self._actions
            if a.required and a.option_strings and a.dest not in values.spelling
        ]

    def _lacks(self, action: Action) -> str:
        example = f": {self.examples[0].partition('  #')[0]}" if self.examples else ""
        return f"{self.label} needs {action.help}{example}"

    def _near(self, name: str) -> str:
        shown = [n for a in self._actions for n in a.option_strings]
        near = nearest(name, [*self._aliases, *shown])
        action = self._aliases.get(near)  # another word for a flag: the flag is named
        flag = action.option_strings[-1] if action is not None else near
        return f"; did you mean '{flag}'?" if near else " (--help lists all)"


def like_a_switch(word: str) -> bool:
    """Whether a word is, or is meant to be, True or False (``Flase``), and not a key."""
    words = ("true", "false")
    return word.lower() in words or ("." not in word and bool(did_you_mean(word, words)))


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a ``type`` of flags: whole numbers of a range."""

    def number(word: str) -> int:
        wanted = f"a whole number from {low} " + ("on" if high is None else f"to {high}")
        digits = word.isascii() and word.removeprefix("-").isdigit()
        if not digits or int(word) < low or (high is not None and int(word) > high):
            raise argparse.ArgumentTypeError(f"expects {wanted}, got '{word}'")
        return int(word)

    return number


def number_words(word: str) -> list[str]:
    """Return the parts of ``1,2`` and of a range such as ``1-3``; other words as they are."""
    parts = []
    for part in filter(None, word.split(",")):
        ends = re.fullmatch(r"(\d{1,6})-(\d{1,6})", part, re.ASCII)
        low, high = (int(ends[1]), int(ends[2])) if ends else (1, 0)
        parts += list(map(str, range(low, high + 1))) or [part]
    return parts


def amount(unit: str, low: float, high: float = math.inf) -> Callable[[str], float]:
    """Return a ``type`` of flags: finite numbers of a range, in words of their unit (``days``)."""

    def number(word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not low <= value <= high or math.isinf(value):
            wanted = f"{unit} from {low} " + ("on" if math.isinf(high) else f"to {high}")
            raise argparse.ArgumentTypeError(f"expects {wanted}, got '{word}'")
        return value

    return number


def asks_help(words: Sequence[str]) -> bool:
    """Whether a command's words ask for its page: a help flag anywhere, or ``help`` first."""
    return bool(words) and words[0] == "help" or any(w in ("-h", "-help", "--help") for w in words)


class _Page(argparse.RawDescriptionHelpFormatter):
    """Lines of at most ``WIDTH``, never broken inside a word."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38, width=WIDTH)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def _is_flag(word: str, table: dict[str, Action]) -> bool:
    short = word in ("-h", "-help") or any(word in a.option_strings for a in table.values())
    return (word.startswith("--") and len(word) > 2) or short


def _is_value(word: str, loose: Sequence[str]) -> bool:
    """Whether a word with one dash is a number, or the value of the config key before it."""
    return bool(loose and loose[-1].isupper()) or _is_number(word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _taken(action: Action, following: list[str]) -> list[str]:
    """Return those of the following words that are a flag's."""
    if action.nargs == 0:
        switch = isinstance(action, Switch) and following and like_a_switch(following[0])
        return following[:1] if switch else []
    if isinstance(action, MoreNumbers):
        others = (i for i, word in enumerate(following) if i and not _is_number(word))
        return following[:next(others, None)]
    if isinstance(action, BeforePairs):
        keys = (i for i, word in enumerate(following) if word.isupper() and "." in word)
        return following[:next(keys, None)]
    return following[: 1 if action.nargs in _ONE else None]


def _converted(action: Action, name: str, word: str) -> Any:
    """Return a word as its argument's type (``ConfigError``: it is none, or not a choice)."""
    kind: Callable[[str], Any] = action.type if callable(action.type) else str
    what = action.dest.replace("_", " ")
    try:
        value = kind(word)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name or what} {error}") from None
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name or what} expects {wanted}, got '{word}'") from None
    if action.choices is not None and value not in action.choices:
        known = [str(choice) for choice in action.choices]
        no_such = f"{name} {word}: no such {what}" if name else f"unknown {what} '{word}'"
        raise ConfigError(f"{no_such}{did_you_mean(word, known)} (known: {', '.join(known)})")
    return value


def _paragraph(title: str, text: str) -> str:
    """Return a heading and a filled paragraph under it."""
    return f"\n\n{title}:\n" + textwrap.fill(
        text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
