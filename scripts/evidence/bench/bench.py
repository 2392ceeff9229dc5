"""Speed against the reference recipes.

Both sides of a speed claim, in one process. fedtv: the published FedTV recipe's cost against ours,
on the same weights, batches and initial tensors. methods: every trainer (or those named), with its
own trainable set or others, beside its plain path, on the built-in shapes. scale: what a round
costs beside its training, from ten clients to ten thousand. linear: a round of a linear head,
beside the same round written by hand. engines: the same run by this process, by workers, over
Flower.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence.bench import engines, linear, method_table, methods, report, scale
from evidence.commands import PROGRAM
from fedvlm.config.families import ORDER
from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, say
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.files import user_path, write_json

EXAMPLES = tuple(f"{PROGRAM} bench {words}" for words in (
    "fedtv --backbone ViT-B/16 --classes 50",
    "fedtv --tiny --repeats 1  # seconds, and no verdict",
    "methods FedAvg Ditto --rounds 3",
    "methods --quick  # every method, every trainable set once: 3 minutes",
    "methods --peft all --markdown speed.md  # every method with every set",
    "methods FedAvg --peft text-lora prompt+lora",
    "methods --family visual-prompt adapter",
    "scale --sizes 10 1000 --json scale.json",
    "scale --head --sizes 1000000 --rounds 10 --evaluate 1000",
    "linear --repeats 300",
    "engines FedTV --clients 40 --rounds 4 --workers 2",
    "engines FedAvg --clients 4 --engines local,workers,loopback",
))
BACKBONE = {"fedtv": "ViT-B/16", "methods": "tiny", "scale": "tiny", "linear": "tiny",
            "engines": "tiny"}
METHODS_ONLY = ("family", "fp64", "markdown", "peft", "quick")
METHODS = (*METHODS_ONLY, "backbone", "clients", "repeats", "rounds", "threads", "json")
SCALE = ("cohort", "evaluate", "head", "rounds", "sizes", "threads", "json")
LINEAR = ("cohort", "repeats", "threads", "json")
SCALE_ONLY = ("cohort", "evaluate", "head", "sizes")
ENGINES = ("clients", "engines", "repeats", "rounds", "threads", "workers", "json")
ENGINES_ONLY = ("engines", "workers")
NAMES = ("local", "workers", "loopback")
NOT_FEDTV = ("rounds", *METHODS_ONLY, *SCALE_ONLY, *ENGINES_ONLY)
SIZES = (10, 100, 1000, 10000)
NUMBERS = {
    "classes": (50, "number of classes"),
    "batch": (32, "images per training step"),
    "repeats": (3, "interleaved pairs of training steps; linear: rounds"),
    "threads": (1, "threads; CPU time of one thread is what CI can compare"),
    "stack": (8, "clients stacked in one pass of ours"),
    "clients": (10, "clients of a round (--round, --cold; methods, engines)"),
    "rounds": (2, "timed rounds (methods, engines; scale: all of a run, 6)"),
    "workers": (2, "worker processes (engines only)"),
    "cohort": (50, "clients of a round (scale, linear)"),
    "evaluate": (0, "clients that stand for all at start and end, 0: all (scale only)"),
}
SWITCHES = {
    "bf16": "also our side with bfloat16 linear layers",
    "round": "also a steady round with its evaluation",
    "cold": "also ten rounds from an empty feature cache (composed)",
    "profile": "also where our time goes, by operator",
    "tiny": "a random tiny CLIP: seconds, and no verdict",
    "quick": "every method once and every trainable set once, few clients (methods only)",
    "head": "the linear head alone (scale only)",
    "fp64": "both sides in double precision: what is left of the difference (methods only)",
}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("what", nargs="?", default="", help=f"one of: {', '.join(BACKBONE)}")
    add("trainers", nargs="*", metavar="METHOD",
        help="methods: names or file.py:Class (all)")
    add("--backbone", default="", metavar="NAME", help="a ViT CLIP, random weights (ViT-B/16); for "
        "methods also tiny (their default) and random-small")
    for name, (default, text) in NUMBERS.items():
        add(f"--{name}", type=int, default=default, metavar="N", help=f"{text} ({default})")
    for name, text in SWITCHES.items():
        add(f"--{name}", action="store_true", help=text)
    add("--sizes", type=int, nargs="+", default=list(SIZES), metavar="N",
        help=f"numbers of clients ({' '.join(map(str, SIZES))}; scale only)")
    add("--peft", nargs="+", default=[], metavar="A+B",
        help="what is trained, one row each; all: every set, own: each method's (methods only)")
    add("--family", nargs="+", default=[], metavar="WORD",
        help=f"only rows that train one of: {', '.join(ORDER)} (methods only)")
    add("--markdown", default="", metavar="FILE",
        help="also write the table here, in a page between its markers (methods only)")
    add("--engines", default="local,workers", metavar="A,B",
        help=f"of {', '.join(NAMES)} (the last two by Flower, on this machine); engines only")
    add("--json", default="", metavar="FILE", help="also write the record here")
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    """Return what the benchmark is not, or does not read."""
    if args.what not in BACKBONE:
        known = f" (known: {', '.join(BACKBONE)})"
        if not args.what:
            return [f"name a benchmark{known}"]
        return [f"unknown benchmark '{args.what}'{did_you_mean(args.what, BACKBONE)}{known}"]
    args.backbone = args.backbone or BACKBONE[args.what]
    stray = [f"--family has no '{w}'{did_you_mean(w, ORDER)} ({', '.join(ORDER)})"
             for w in args.family if w not in ORDER]
    read = {"methods": METHODS, "scale": SCALE, "linear": LINEAR,
            "engines": ENGINES}.get(args.what)
    idle = [args.spelling[n] for n in args.spelling
            if (n in NOT_FEDTV if read is None else n not in read)]
    mistakes = [*stray, *(f"{args.what} does not read {flag}" for flag in idle)]
    most = {"methods": None, "engines": 1}.get(args.what, 0)
    if most is not None and len(args.trainers) > most:
        mistakes.append(f"{args.what} takes {'one' if most else 'no'} trainer "
                        f"('{args.trainers[most]}'); methods does")
    stray = [e for e in args.engines.split(",") if e not in NAMES]
    return mistakes + [f"--engines has no '{e}'{did_you_mean(e, NAMES)} ({', '.join(NAMES)})"
                       for e in stray]


def main(args: Namespace) -> int:
    """Run a benchmark and print its report; return the exit code.

    Raises:
        ConfigError: a number or a folder that cannot be.
        DataError: the record cannot be written.
    """
    path = _target("--json", args.json)
    record, lines = {
        "methods": _methods, "scale": _scale, "linear": _linear, "fedtv": _fedtv,
        "engines": _engines,
    }[args.what](args)
    say(*lines)
    if path is not None:
        write_json(path, record)
    return int(bool(record.get("failed")))  # of engines: the others have their rows


def _target(flag: str, word: str) -> Path | None:
    """Return the file that a flag names, None for none; looked at before anything is measured.

    Raises:
        ConfigError: its folder is not there.
    """
    path = user_path(word) if word else None
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder '{path.parent}'; make it first")
    return path


def _fedtv(args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the record of ``bench fedtv`` and its lines."""
    from evidence.bench import fedtv  # start-up: its memory would count in that of scale

    names = [n for n in (*NUMBERS, *SWITCHES, "backbone")
             if n not in ("tiny", *NOT_FEDTV)]
    options = fedtv.Options(**{name: getattr(args, name) for name in names})
    record = fedtv.run(fedtv.tiny(options) if args.tiny else options, _progress)
    return record | {"summary": report.summary(record)}, report.lines(record)


def _methods(args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the record of ``bench methods`` and its lines."""
    given = {n: getattr(args, n) for n in ("clients", "repeats", "rounds") if n in args.spelling}
    base = methods.QUICK if args.quick else methods.Setting()
    setting = replace(
        base, backbone=args.backbone, threads=args.threads, fp64=args.fp64, **given
    )
    page = _target("--markdown", args.markdown)
    if page is not None:
        method_table.check_page(page)
    record = methods.run(
        args.trainers, setting, peft=args.peft, family=args.family, quick=args.quick,
        say=_progress,
    )
    if page is not None:
        method_table.write_page(page, record, shlex.join([*PROGRAM.split(), "bench", *args.words]))
    return record, method_table.lines(record)


def _scale(args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the record of ``bench scale`` and its lines."""
    rounds = args.rounds if "rounds" in args.spelling else scale.ROUNDS
    kinds = (scale.HEAD,) if args.head else (scale.HEAD, scale.FEDTV)
    record = scale.run(
        args.sizes, cohort=args.cohort, methods=kinds, evaluate=args.evaluate, rounds=rounds,
        threads=args.threads, say=_progress,
    )
    return record, scale.lines(record)


def _linear(args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the record of ``bench linear`` and its lines."""
    record = linear.run(args.cohort, args.repeats, args.threads)
    return record, linear.lines(record)


def _engines(args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the record of ``bench engines`` and its lines."""
    record = engines.run(
        *args.trainers, clients=args.clients, rounds=args.rounds, workers=args.workers,
        repeats=args.repeats, threads=args.threads, engines=args.engines.split(","), say=_progress,
    )
    return record, engines.lines(record)


def _progress(text: str) -> None:
    complain(text, prefix="bench")
