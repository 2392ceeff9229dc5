"""Evaluate a trained model on other images.

Uses a data set's test images, or a folder with labels. If the run knows all their classes, the
model chooses among the run's classes; otherwise among those of the set, which only methods with
prompts can do.
"""

from __future__ import annotations

import json
from argparse import Namespace

from fedvlm.cli.models._run import add_run, open_run
from fedvlm.console.parser import Parser
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError

EXAMPLES = (
    "fedvlm evaluate RUN --dataset dtd --root DATA/",
    "fedvlm evaluate RUN --images photos/ --client all  # class folders",
    "fedvlm evaluate RUN --images photos/ --client 3 --json",
)
_PARTS = {
    "test": [],
    "val": ["there is no test part: the validation images count"],
    "train": ["there is no test part: all images count, also any that the run trained on"],
}
MOST = 20  # classes of a table on the screen, for one model; --json has all
ALSO = ("eval", "test", "score")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add_run(parser)
    add = parser.add_argument
    add("--dataset", default="", metavar="NAME", help="name of a data set: use its test images")
    add("--root", default="", metavar="DATA/", help="folder that contains the data sets "
                                                    "(default: the run's)")
    add("--images", default="", metavar="FOLDER", help="your own images: a folder, or a table of "
                                                       "files")
    add("--labels", default="", metavar="COLUMN", help="columns of sets of labels in that table "
                                                       "(default: the run's)")
    add("--captions", default="", metavar="COLUMN", help="columns of captions in that table "
                                                         "(default: the run's)")
    add("--columns", default="", metavar="A=B", help="what others of that table mean: path=file")
    add("--json", action="store_true", help="one line of JSON per model")


def main(args: Namespace) -> int:
    """Print accuracy and macro F1 of each chosen model, of sets of labels mAP, of captions recall.

    Of classes also sensitivity, specificity and AUROC of each, against all others, where one model
    is chosen; JSON has them for each model.
    """
    if bool(args.dataset) == bool(args.images):
        raise ConfigError("choose the images: --dataset NAME, or --images FOLDER")
    for word in ("labels", "columns", "captions"):
        if getattr(args, word) and not args.images:
            raise ConfigError(f"--{word} needs --images: it names columns of a table")
    if args.root and args.images:
        raise ConfigError("--root needs --dataset: --images FOLDER already gives the place; drop "
                          "--root")
    run = open_run(args)
    from fedvlm.api import evaluate as api  # start-up: PyTorch, 2 s

    own = run.config.DATASET
    if bool(own.CAPTIONS) < bool(args.captions) or (own.CAPTIONS and not args.images):
        raise ConfigError(
            f"--captions {args.captions}: this run was not trained on captions" if args.captions
            else "a run on captions is evaluated on a table with captions: --images TABLE")
    tests = api.of_folder(
        args.images, args.labels or str(own.LABELS), args.columns,
        args.captions or str(own.CAPTIONS), run.config,
    ) if args.images else api.of_dataset(args.dataset, run.config, args.root)
    progress(f"{len(tests.samples):,} images of {tests.name}")
    rows, classes = api.evaluate(run.named(args.client), tests)
    if args.json:
        say(*(json.dumps(row | {"set": tests.name, "left_out": tests.left_out}) for row in rows))
        return 0
    each = [row.pop("classes", []) for row in rows]
    say(*table_lines(rows))
    if len(each) == 1 and len(each[0]) <= MOST:
        say(*table_lines(each[0]))
    if tests.part == "test" and tests.total > (part := len(tests.samples) + tests.left_out):
        classes = (f"{part:,} of the {tests.total:,} images of {tests.name} are its "
                   f"test part, and only these count\n{classes}")
    complain(classes, *tests.notes, *_PARTS[tests.part], *api.bare_notes(tests.bare), prefix="note")
    return 0
