"""Command-line words to config keys.

Flags match ignoring case, dash and underscore (``--num-users`` = ``--num_users``), as do the CoOp
family's spellings. argparse is not used for parsing: it guesses abbreviations, stops at the first
mistake and answers with a usage dump; here every mistake gets a sentence, all at once.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from fedvlm.cli_flagtable import FLAGS, REFUSED, Flag
from fedvlm.cli_peft import expand
from fedvlm.errors import ConfigError, did_you_mean, fold


def parse(argv: Sequence[str]) -> Namespace:
    """Return what the user asked for.

    The namespace holds every ``dest`` of the table (``dataset``, ``seeds``, ``dry_run``, ...),
    ``flags`` (config key or ``TRAINER.*.KEY`` to the word typed), ``flag_names`` (the same keys to
    the flag's spelling) and ``opts`` (a list of alternating keys and values).

    Raises:
        ConfigError: unknown flags, missing or surplus values; one line each.
    """
    parser = _Parser(argv)
    parser.run()
    if parser.mistakes:
        raise ConfigError("\n".join(parser.mistakes))
    return parser.found


def by_name() -> dict[str, Flag]:
    """Return the folded spelling of every flag, aliases included."""
    return {fold(name): flag for flag in FLAGS for name in flag.names}


def _like_a_switch(word: str) -> bool:
    """Whether a word is, or is meant to be, True or False (``Flase``), and not a key."""
    words = ("true", "false")
    return word.lower() in words or ("." not in word and bool(did_you_mean(word, words)))


class _Parser:
    """Walks once over the words."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.words = list(argv)
        self.at = 0
        self.table = by_name()
        self.mistakes: list[str] = []
        self.found = Namespace(flags={}, flag_names={}, opts=[])
        for flag in FLAGS:
            if flag.dest:
                setattr(self.found, flag.dest, flag.empty())

    def run(self) -> None:
        """Read all words."""
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            wants_value = len(self.found.opts) % 2 == 1
            if word in ("-h", "-help"):
                self.found.help = True
            elif word.startswith("--") and len(word) > 2:
                self._flag(word)
            elif word.startswith("-") and len(word) > 1 and not wants_value:
                self.mistakes.append(f"unknown flag '{word}'{self._near(word)}")
            elif word != "--":
                self.found.opts.append(word)
        if len(self.found.opts) % 2:
            self._odd()

    def _odd(self) -> None:
        last = self.found.opts[-1]
        self.mistakes.append(
            f"'{last}' stands alone; words without a flag are opts and come in pairs, KEY VALUE"
            f"{did_you_mean(last, self.table) if not last.isupper() else ''}"
        )

    def _flag(self, word: str) -> None:
        name, equals, value = word.partition("=")
        flag = self.table.get(fold(name))
        if flag is None:
            reason = next((why for n, why in REFUSED.items() if fold(n) == fold(name)), "")
            self.mistakes.append(
                f"flag {name} {reason}" if reason else f"unknown flag '{name}'{self._near(name)}"
            )
            self._values()  # its values belong to it, they are not opts
            return
        given = [value] if equals else self._take(flag)
        if flag.kind != "switch" and not given:
            self.mistakes.append(f"{name} wants a value ({flag.help})")
            return
        self._store(flag, name, given)

    def _near(self, name: str) -> str:
        near = did_you_mean(name, [n for f in FLAGS for n in f.names])
        return near or " (--help lists all)"

    def _take(self, flag: Flag) -> list[str]:
        """Return the words that belong to ``flag`` and step over them."""
        if flag.kind in ("many", "opts"):
            return self._values()
        following = self.words[self.at] if self.at < len(self.words) else None
        if following is None or following.startswith("--"):
            return []
        if flag.kind == "switch" and not _like_a_switch(following):
            return []
        self.at += 1
        return [following]

    def _values(self) -> list[str]:
        """Return all words up to the next flag and step over them."""
        start = self.at
        while self.at < len(self.words) and not self.words[self.at].startswith("--"):
            self.at += 1
        return self.words[start : self.at]

    def _store(self, flag: Flag, name: str, given: list[str]) -> None:
        if flag.kind == "opts":
            self.found.opts += given
        elif flag.kind == "many":
            numbers = [part for word in given for part in word.split(",") if part]
            if not all(n.isascii() and n.isdigit() for n in numbers) or not numbers:
                self.mistakes.append(f"{name} wants whole numbers, got '{' '.join(given)}'")
            elif len({int(n) for n in numbers}) < len(numbers):
                self.mistakes.append(f"{name} names a number twice: {' '.join(given)}")
            else:
                setattr(self.found, flag.dest, [int(n) for n in numbers])
        elif flag.dest == "peft":
            self._peft(name, given[0])
        elif flag.key:
            self.found.flags[flag.key] = given[0] if given else "True"
            self.found.flag_names[flag.key] = name
        elif flag.kind == "switch":
            word = given[0] if given else "true"
            if word.lower() not in ("true", "false"):
                self.mistakes.append(f"{name} is on or off: {name}, {name}=true or {name}=false")
            setattr(self.found, flag.dest, word.lower() == "true")
        else:
            setattr(self.found, flag.dest, given[0])

    def _peft(self, name: str, value: str) -> None:
        """One flag, three keys."""
        try:
            keys = expand(value)
        except ConfigError as mistake:
            self.mistakes.append(str(mistake))
            return
        self.found.flags |= keys
        self.found.flag_names |= dict.fromkeys(keys, name)
