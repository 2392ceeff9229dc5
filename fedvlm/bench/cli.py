"""``python -m fedvlm bench fedtv``: flags to options, records to lines and JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fedvlm.atomic import write_json
from fedvlm.console import complain, say
from fedvlm.errors import ConfigError, did_you_mean

BENCHES = ("fedtv",)
NUMBERS = {
    "classes": (50, "number of classes"),
    "batch": (32, "images per training step"),
    "repeats": (3, "interleaved pairs of training steps"),
    "threads": (1, "threads; CPU time of one thread is what CI can compare"),
    "stack": (8, "clients stacked in one pass of ours"),
    "clients": (10, "clients of a round (--round, --cold)"),
}
SWITCHES = {
    "bf16": "also our side with bfloat16 linear layers",
    "round": "also a steady round with its evaluation",
    "cold": "also ten rounds from an empty feature cache (composed)",
    "profile": "also where our time goes, by operator",
    "tiny": "a random tiny CLIP: seconds, and no verdict",
}


class _Parser(argparse.ArgumentParser):
    """argparse with one sentence instead of a usage dump."""

    def error(self, message: str) -> NoReturn:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"bench: {message} (python -m fedvlm bench --help lists the flags)")


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``bench``'s flags."""
    made = _Parser(prog="python -m fedvlm bench", add_help=False, allow_abbrev=False,
                   description="The published FedTV recipe's cost against ours, on the same "
                   "weights, batches and initial tensors, in one process.")
    made.add_argument("what", nargs="?", default="", help=f"one of: {', '.join(BENCHES)}")
    made.add_argument("--backbone", default="ViT-B/16", help="a ViT CLIP, random weights")
    for name, (default, text) in NUMBERS.items():
        made.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    for name, text in SWITCHES.items():
        made.add_argument(f"--{name}", action="store_true", help=text)
    made.add_argument("--json", default="", metavar="PATH", help="also write the record here")
    made.add_argument("-h", "--help", action="store_true", help="this page")
    return made


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the flags given.

    Raises:
        ConfigError: unknown flags or benchmarks, with the nearest known one.
    """
    made = parser()
    words = [_dashes(w) if w.startswith("--") else w for w in argv]
    args, rest = made.parse_known_args(words)
    if rest:
        known = [f"--{n}" for n in (*NUMBERS, *SWITCHES, "backbone", "json", "help")]
        flag = rest[0].partition("=")[0]
        near = did_you_mean(flag, known)
        raise ConfigError(f"bench: unknown flag '{flag}'{near} (known: {', '.join(known)})")
    if not args.help and args.what not in BENCHES:
        given = f"unknown benchmark '{args.what}'" if args.what else "name a benchmark"
        near = did_you_mean(args.what, BENCHES) if args.what else ""
        raise ConfigError(f"bench: {given}{near} (known: {', '.join(BENCHES)})")
    return args


def main(argv: Sequence[str]) -> int:
    """Run a benchmark and print its report; return the exit code.

    Raises:
        ConfigError: wrong flags.
        DataError: the record cannot be written.
    """
    args = parse(argv)
    if args.help:
        say(*parser().format_help().rstrip().splitlines())
        return 0
    path = Path(args.json).expanduser() if args.json else None
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"--json {path}: there is no folder '{path.parent}'; make it first")
    from fedvlm.bench import fedtv, options, report  # torch

    given = {n: getattr(args, n) for n in (*NUMBERS, *SWITCHES, "backbone") if n != "tiny"}
    chosen = options.Options(**given)
    record = fedtv.run(options.tiny(chosen) if args.tiny else chosen, _progress)
    say(*report.lines(record))
    if path is not None:
        write_json(path, record | {"summary": report.summary(record)})
    return 0


def _dashes(word: str) -> str:
    """``--a_b=c_d`` -> ``--a-b=c_d``."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _progress(text: str) -> None:
    complain(text, prefix="bench")
