"""Check that runs are unmodified: checksums, and metrics recomputed.

One line per run: ok, unsealed (made by a version without checksums), unfinished, or damaged with
the file. Checksums detect damage; only --replay detects forgery: it repeats the last rounds from a
saved state and compares bits, and it needs the run's images.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from pathlib import Path

from fedvlm.cli.models._run import add_trust
from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.rows import one_line
from fedvlm.console.screen import complain, say
from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.core.files import read_json, user_path
from fedvlm.report.collect import run_folders
from fedvlm.runs.cells import names_of, runs_below
from fedvlm.runs.identity import whole_results
from fedvlm.runs.names import RESULTS
from fedvlm.runs.seal import sha256
from fedvlm.runs.verify.check import DAMAGED, RunVerdict, equal_seeds, inspect, one_digest_one_seed

EXAMPLES = (
    "fedvlm verify output",
    "fedvlm verify --replay 1 RUN_FOLDER  # the last round, bit for bit",
    "fedvlm verify --replay 1000 RUN_FOLDER --root DATA  # the whole run; the images were moved",
    "fedvlm verify RUN_A --against RUN_B  # first difference of two runs",
    "fedvlm verify docs/results/cells --replay 1000 --sample 10  # ten runs, always the same "
    "sample",
)
ALSO = ("seal", "seals", "check-runs", "replay", "integrity")
REPLAYED_EQUAL = "equal in replay"
REPLAYED = {"root": "DATASET.ROOT", "device": "DEVICE", "weights": "MODEL.INIT_WEIGHTS"}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("folders", nargs="+", metavar="RUN_OR_OUTPUT", help="a run folder, or one with runs at "
        "any depth (OUTPUT_DIR)")
    add("--replay", type=whole_number(1), default=0, metavar="N", help="also repeat the last N "
        "rounds of each finished run and compare; a large N repeats the whole run")
    add("--sample", type=whole_number(1), default=0, metavar="N", help="--replay: only N of the "
        "runs, chosen by their digests")
    add("--against", default="", metavar="RUN", help="compare with this run: settings that "
        "differ, first round with different numbers")
    add("--root", default="", metavar="DATA", help="--replay: where the images are now")
    add("--device", default="", metavar="NAME", help="--replay: where to compute (as the run did)")
    add("--weights", default="", metavar="FILE", help="--replay: where the backbone's weights are")
    add_trust(parser)


def main(args: Namespace) -> int:
    """Print a line for each run; with --against where two runs part.

    Returns:
        0, or 3 where a run is damaged or a replay does not give its numbers.

    Raises:
        ConfigError: wrong flags.
        DataError: no run there.
    """
    if args.against:
        return _against(args)
    rounds = args.replay
    words = [w for w in REPLAYED if getattr(args, w)]
    if words and not rounds:
        raise ConfigError(f"--{words[0]} needs --replay N; add it, or drop --{words[0]}")
    if (args.trainer or args.trust_code) and not rounds:
        raise ConfigError("--trainer and --trust-code need --replay N: without it nothing is run")
    if args.sample and not rounds:
        raise ConfigError("--sample needs --replay N; add it, or drop --sample")
    run_folders(args.folders)  # says what is wrong with a word
    places = {folder: name for word in args.folders
              for folder, name in names_of(user_path(word)).items()}
    names = {path: name / path.relative_to(folder) for folder, name in places.items()
             for path in runs_below(folder)}
    if not names:
        raise DataError(f"no run below {', '.join(args.folders)}; give a run folder or OUTPUT_DIR")
    verdicts = [inspect(path) for path in names]
    doubles, twins = _compared(verdicts)
    chosen = _sample([v.path for v in verdicts if v.finished], args.sample)
    bad, replayed = 0, dict[Path, str]()
    for verdict in verdicts:
        clauses = [*verdict.damage, *([doubles[verdict.path]] if verdict.path in doubles else [])]
        word = DAMAGED if clauses else verdict.word
        about = "; ".join(clauses) or ", ".join(verdict.remarks)
        for folder, name in places.items():  # a pack's runs lie in the cache
            about = about.replace(str(folder), str(name))
        say(one_line(f"{word:<11}{names[verdict.path]}{f': {about}' if about else ''}"))
        bad += bool(clauses)
        if rounds and verdict.path in chosen and not clauses:
            replayed[verdict.path] = _replayed(args, verdict.path, rounds)
            bad += replayed[verdict.path] != REPLAYED_EQUAL
    for clause in twins:
        for folder, name in places.items():
            clause = clause.replace(str(folder), str(name))
        complain(one_line(clause), prefix="note")
    counts = Counter(replayed.get(v.path, DAMAGED if v.path in doubles else v.word)
                     for v in verdicts)
    if len(verdicts) > 1 or rounds:
        runs = "run" if len(verdicts) == 1 else "runs"
        say(f"{len(verdicts)} {runs}: {', '.join(f'{n} {word}' for word, n in counts.items())}")
    return DataError.exit_code if bad else 0


def _against(args: Namespace) -> int:
    if len(args.folders) != 1 or args.replay or args.sample:
        raise ConfigError("--against compares two runs: fedvlm verify RUN_A --against RUN_B")
    from fedvlm.cli.results._pairs import parting_lines  # start-up: NumPy, 0.15 s

    say(*parting_lines([*args.folders, args.against]))
    return 0


def _compared(verdicts: list[RunVerdict]) -> tuple[dict[Path, str], list[str]]:
    """Return the runs whose identity another seed claims, too, and sentences on equal answers.

    Of runs of several seeds with equal answers one may be a copy.
    """
    records = [(v, r) for v in verdicts
               if (r := whole_results(read_json(v.path / RESULTS))) is not None]
    return (
        one_digest_one_seed([(v.path, r["identity_digest"], r["protocol"]) for v, r in records]),
        equal_seeds([(v.path, r["protocol"], r["results"]) for v, r in records if v.finished]))


def _sample(paths: list[Path], number: int) -> set[Path]:
    """Return ``number`` of the runs (0: all), by the hash of their results: nobody chooses."""
    ranked = sorted(paths, key=lambda path: sha256((path / RESULTS).read_bytes()))
    return set(ranked[:number] if number else ranked)


def _replayed(args: Namespace, path: Path, rounds: int) -> str:
    """Replay a run and say what came out; return it in a word."""
    from fedvlm.api.replay import replay  # start-up: PyTorch, 2 s

    changes = {key: getattr(args, word) for word, key in REPLAYED.items() if getattr(args, word)}
    try:
        seen = replay(path, rounds, changes=changes, trainer=args.trainer,
                      trust_code=args.trust_code)
    except FedvlmError as error:
        complain(f"not replayed: {error}")
        return "not replayed"
    say(*(f"{'':<11}{one_line(line)}" for line in seen.lines()))
    return REPLAYED_EQUAL if seen.equal else "NOT EQUAL"
