"""``python -m fedvlm bench fedtv`` and ``methods``: flags to options, records to lines, JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedvlm.console.screen import complain, say
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.files import write_json

# benchmark -> what it measures; a flag that it does not read is refused
BENCHES = {
    "fedtv": "the published FedTV recipe's cost against ours, on the same weights, batches and "
             "initial tensors",
    "methods": "every trainer (or those named) beside its plain path, on the built-in shapes",
}
BACKBONE = {"fedtv": "ViT-B/16", "methods": "tiny"}
METHODS = ("backbone", "clients", "fp64", "repeats", "rounds", "threads", "json", "help")
METHODS_ONLY = ("fp64", "rounds")
NUMBERS = {
    "classes": (50, "number of classes"),
    "batch": (32, "images per training step"),
    "repeats": (3, "interleaved pairs of training steps"),
    "threads": (1, "threads; CPU time of one thread is what CI can compare"),
    "stack": (8, "clients stacked in one pass of ours"),
    "clients": (10, "clients of a round (--round, --cold; methods)"),
    "rounds": (2, "timed rounds (methods only)"),
}
SWITCHES = {
    "bf16": "also our side with bfloat16 linear layers",
    "round": "also a steady round with its evaluation",
    "cold": "also ten rounds from an empty feature cache (composed)",
    "profile": "also where our time goes, by operator",
    "tiny": "a random tiny CLIP: seconds, and no verdict",
    "fp64": "both sides in double precision: what is left of the difference (methods only)",
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
                   description="Both sides of a speed claim, in one process. "
                   + " ".join(f"{name}: {text}." for name, text in BENCHES.items()))
    made.add_argument("what", nargs="?", default="", help=f"one of: {', '.join(BENCHES)}")
    made.add_argument("trainers", nargs="*", help="methods: names or file.py:Class (all)")
    made.add_argument("--backbone", default="", help="a ViT CLIP, random weights (ViT-B/16); for "
                      "methods also tiny (their default) and random-small")
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
    _check_own(args, words)
    args.backbone = args.backbone or BACKBONE.get(args.what, "")
    return args


def _check_own(args: argparse.Namespace, words: Sequence[str]) -> None:
    """Refuse what the chosen benchmark does not read."""
    used = [w.partition("=")[0].removeprefix("--") for w in words if w.startswith("--")]
    idle = [n for n in used if n in METHODS_ONLY] if args.what == "fedtv" else (
        [n for n in used if n not in METHODS] if args.what == "methods" else [])
    if idle:
        raise ConfigError(f"bench {args.what}: does not read --{idle[0]}")
    if args.what == "fedtv" and args.trainers:
        raise ConfigError(f"bench fedtv: takes no trainer ('{args.trainers[0]}'); methods does")


def main(argv: Sequence[str]) -> int:
    """Run a benchmark and print its report; return the exit code.

    Args:
        argv: the words after ``bench``.

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
    record, shown = _methods(args) if args.what == "methods" else _fedtv(args)
    say(*shown)
    if path is not None:
        write_json(path, record)
    return 0


def _fedtv(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the record of ``bench fedtv`` and its lines."""
    from fedvlm.bench import fedtv, report

    own = [n for n in (*NUMBERS, *SWITCHES, "backbone") if n not in ("tiny", *METHODS_ONLY)]
    chosen = fedtv.Options(**{n: getattr(args, n) for n in own})
    record = fedtv.run(fedtv.tiny(chosen) if args.tiny else chosen, _progress)
    return record | {"summary": report.summary(record)}, report.lines(record)


def _methods(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the record of ``bench methods`` and its lines."""
    from fedvlm.bench import methods

    record = methods.run(
        args.trainers, args.backbone, rounds=args.rounds, repeats=args.repeats,
        clients=args.clients, threads=args.threads, fp64=args.fp64, say=_progress,
    )
    return record, methods.lines(record)


def _dashes(word: str) -> str:
    """``--a_b=c_d`` -> ``--a-b=c_d``."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _progress(text: str) -> None:
    complain(text, prefix="bench")
