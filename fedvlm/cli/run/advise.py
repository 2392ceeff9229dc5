"""Whether your clients should federate, and with what; opens no test image.

Takes the data flags of a run (--images, --dataset, --root, --demo, --partition, --num-users, ...),
deals the same clients, and cross-validates linear heads on frozen features within their training
and validation images: each client alone, one round of ridge regression, one shared head, personal
heads, all images in one place. --like reads the published map instead of images.
"""

from __future__ import annotations

import json
import shlex
from argparse import Namespace

from yacs.config import CfgNode

from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError
from fedvlm.job.flags import add_flags, add_opts, find_lone_model

EXAMPLES = (
    "fedvlm advise --images FOLDER --partition dirichlet --num-users 10",
    "fedvlm advise --root DATA/ --dataset eurosat --shots 4 --partition iid --num-users 10",
    "fedvlm advise --demo",
    'fedvlm advise --like "10 clients, 4 images, skew 0.3"',
)
ALSO = ("recommend", "should", "whether", "advice")
# Flags and keys that say how to train or where to write: the advice decides them.
_OURS = ("PEFT.", "OPTIM.", "TRAINER.", "OUTPUT_DIR", "TAG", "RESUME", "FED.ROUNDS",
         "FED.LOCAL_EPOCHS", "FED.FRAC", "FED.FINETUNE", "DRAFT", "SINKS", "TEST.", "SEED")
_OF_LIKE = ("like", "map", "json", "debug")
_UNREAD = ("PEFT.", "OPTIM.", "TRAINER.", "FED.ROUNDS", "FED.LOCAL_EPOCHS", "FED.FRAC",
           "FED.FINETUNE")
_INSTEAD = {  # flag of a run that trains nothing -> who does that
    **dict.fromkeys(("eval_only", "model_dir", "load_epoch"), "fedvlm evaluate RUN judges a model"),
    **dict.fromkeys(("dry_run", "no_train"), "an advice trains no model"),
    "print_config": "fedvlm config shows the settings",
}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("--like", default="", metavar="TEXT", help='a case in words: "10 clients, 4 images, skew '
        '0.3" (skew: the beta of a Dirichlet split, iid or disjoint)')
    add("--map", default="", metavar="FILE", help="--like: the map to read (default: docs/results/"
                                                  "map of the checkout)")
    add("--json", action="store_true", help="the full result as JSON")
    add_flags(parser, shown=False)
    add_opts(parser)
    parser.checks.remove(find_lone_model)
    parser.checks.append(_not_read)


def _not_read(args: Namespace) -> list[str]:
    """Return the mistakes of flags that mean nothing here."""
    several = [f"advise deals the clients once and reads one seed, not {len(args.seeds)}: give the "
               "one that deals them, --data-seed N"] if len(args.seeds) > 1 else []
    if args.like:
        beside = [args.spelling[dest] for dest in args.spelling if dest not in _OF_LIKE]
        beside += args.opts[:1]
        return [f"--like reads the published map and no images: drop {', '.join(beside)}, or drop "
                "--like for an advice on your own images"] if beside else []
    return several + [f"advise does not read {args.spelling[dest]}: {instead}"
                      for dest, instead in _INSTEAD.items() if dest in args.spelling]


def main(args: Namespace) -> int:
    """Judge, and say what follows.

    Raises:
        ConfigError: whatever is wrong with the flags.
        DataError: missing or broken data, or a damaged map.
    """
    if args.like:
        from fedvlm.advise.like import find_map, read_like  # start-up: for the map only

        told = read_like(args.like, find_map(args.map))
        record = {"like": args.like} | told.record
        say(*([json.dumps(record, indent=1)] if args.json else told.lines))
        return 0
    if args.map:
        raise ConfigError("--map needs --like")
    from fedvlm.job.resolve import resolve  # start-up: NumPy, 0.15 s

    progress("loading PyTorch")
    plan = resolve(args)
    from fedvlm.advise.judge import judge_clients  # start-up: PyTorch, 2 s

    result = judge_clients(plan.jobs[0].cfg, words_of_run(args), progress)
    notes = list(dict.fromkeys([
        *plan.data_notes, *result.notes, *unread_notes(args, plan.jobs[0].cfg)]))
    if args.json:
        say(json.dumps(result.record | {"notes": notes}, indent=1))
        return 0
    complain(*notes, prefix="note")
    say(*result.lines)
    return 0


def unread_notes(args: Namespace, cfg: CfgNode) -> list[str]:
    """Return what was asked that the advice does not read."""
    words = [args.spelling[dest] for dest in ("trainer", "trainer_config_file", "peft", "rule")
             if dest in args.spelling]
    pairs = dict(zip(args.opts[::2], args.opts[1::2], strict=False))
    words += [name for key, name in args.flag_names.items() if key.startswith(_UNREAD)]
    words += [key for key in pairs if key.startswith(_UNREAD)]
    notes = [f"advice compares linear heads at the end of training and chooses the method; it "
             f"does not read {', '.join(dict.fromkeys(words))}"] if words else []
    if cfg.FED.DP.CLIP > 0:
        notes.append("the verdict is without the noise and the clipping of FED.DP, which the "
                     "command keeps: with them together reaches less than is said here")
    return notes


def words_of_run(args: Namespace) -> str:
    """Return the command of a run on the same clients, without its method."""
    words = ["fedvlm", "run"]
    for dest in ("dataset", "dataset_config_file", "images"):
        if getattr(args, dest):
            words += [args.spelling[dest], str(getattr(args, dest))]
    words += ["--demo"] if args.demo else []
    words += ["--seeds", str(args.seeds[0])] if args.seeds else []  # it deals the clients
    for key, name in args.flag_names.items():
        if not key.startswith(_OURS) and name not in words:
            words += [name, str(args.flags[key])]
    pairs = zip(args.opts[::2], args.opts[1::2], strict=False)
    words += [w for key, value in pairs if not key.startswith(_OURS) for w in (key, value)]
    return shlex.join(words)
