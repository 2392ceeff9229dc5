"""Predict the classes of images with a trained model.

Prints one line per image: file, most likely class, probability. A model over sets of labels prints
the labels at or above their thresholds, and the probability of each.
"""

from __future__ import annotations

import csv
import io
import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedvlm.cli.models._run import add_run, open_run
from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.rows import one_line, table_lines
from fedvlm.console.screen import complain, say
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.spelling import cell_text
from fedvlm.runs.private import client_label

if TYPE_CHECKING:
    from fedvlm.api.model import Predictions
    from fedvlm.api.run import Run

EXAMPLES = (
    "fedvlm predict RUN photo.jpg --client 3",
    "fedvlm predict RUN photos/ --client 3 --csv > said.csv  # probabilities of all classes",
    "fedvlm predict RUN photo.jpg --client 3 --texts captions.txt  # a model trained on captions",
    "fedvlm predict RUN photos/ --json --top 3  # global model, one line of JSON per image",
)
ALSO = ("classify", "infer", "inference", "label")
DIGITS = 6  # of a probability in a file


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add_run(parser)
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="images, or folders of them")
    add("--top", type=whole_number(1), default=1, metavar="N", help="number of classes per image "
        "(1)")
    add("--json", action="store_true", help="JSON lines: image, client, classes, probabilities")
    add("--texts", default="", metavar="FILE", help="of a model trained on captions: the texts "
        "to choose from, one a line")
    add("--csv", action="store_true", help="a table with the probabilities of all classes")


def _cell(text: str) -> str:
    """Return a cell that no spreadsheet runs and no terminal obeys."""
    return str(cell_text(one_line(text)))


def main(args: Namespace) -> int:
    """Print what each chosen model says of each image.

    A file that cannot be read has no row; all of them are named at the end.
    """
    if args.json and args.csv:
        raise ConfigError("give --json or --csv, not both")
    if args.csv and args.texts:
        raise ConfigError("--csv lists classes; with --texts use --json")
    texts = _texts(args.texts) if args.texts else []
    run = open_run(args)
    if texts:
        return _say_texts(run, args, texts)
    rows: list[dict[str, object]] = []
    bad: dict[int, str] = {}
    table = []
    for name, model in run.named(args.client).items():
        said = model.predict(args.images, bad)
        if said.sets and not args.csv:
            _say_sets(said, name, _shown(name, run.client_names), rows, args.json)
            continue
        for image, best in zip(said.names, said.top(args.top), strict=True):
            if args.json:
                say(json.dumps({
                    "image": image, "model": name, "classes": [c for c, _ in best],
                    "probabilities": [round(p, DIGITS) for _, p in best],
                }))
            for place, (label, p) in enumerate(best, 1):
                row: dict[str, object] = {"image": image, "model": _shown(name, run.client_names)}
                row |= {"place": place} if args.top > 1 else {}
                rows.append(row | {"class": label, "probability": f"{p:.3f}"})
        for image, label, probabilities in zip(
            said.names, said.classes, said.probabilities, strict=True
        ):
            table.append([image, name, label, *(f"{p:.{DIGITS}f}" for p in probabilities)])
    if args.csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        head = ["image", "model", "class", *run.classnames]
        writer.writerows([map(_cell, row) for row in [head, *table]])
        say(*text.getvalue().splitlines())
    elif not args.json:
        say(*table_lines(rows))
    return _say_bad(bad)


def _say_bad(bad: Mapping[int, str]) -> int:
    """Name the files that have no row; return the exit code."""
    complain(*bad.values(), prefix="problem")
    if not bad:
        return 0
    complain(f"{len(bad)} file(s) cannot be read and have no row: mend or remove them")
    return DataError.exit_code


def _texts(word: str) -> list[str]:
    """Return the lines of a file that say something."""
    path = user_path(word)
    try:
        lines = [" ".join(line.split()) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--texts {path}: it cannot be read as text in UTF-8 "
                        f"({getattr(error, 'strerror', None) or 'other bytes'})") from error
    if not any(lines):
        raise DataError(f"--texts {path} holds no text: write one a line")
    return [line for line in lines if line]


def _say_texts(run: Run, args: Namespace, texts: Sequence[str]) -> int:
    """Print the nearest texts of each image; return the exit code."""
    rows: list[dict[str, object]] = []
    bad: dict[int, str] = {}
    for name, model in run.named(args.client).items():
        near, images = model.similarities(args.images, texts, bad)
        for image, row in zip(images, near, strict=True):
            order = row.argsort(descending=True, stable=True)[: args.top].tolist()
            rows += [{
                "image": image, "model": _shown(name, run.client_names), "place": place,
                "text": texts[i], "cosine": f"{float(row[i]):.3f}",
            } for place, i in enumerate(order, 1)]
            if args.json:
                say(json.dumps({"image": image, "model": name, "texts": [texts[i] for i in order],
                                "cosines": [round(float(row[i]), DIGITS) for i in order]}))
    if not args.json:
        say(*table_lines(rows))
    return _say_bad(bad)


def _say_sets(
    said: Predictions, name: str, shown: str, rows: list[dict[str, object]], as_json: bool
) -> None:
    """Print JSON lines of sets of labels, or add rows for the table: every label's probability."""
    limits = said.thresholds or (0.5,) * len(said.classnames)
    answers = zip(said.names, said.classes, said.found, said.probabilities, strict=True)
    for image, labels, found, row in answers:
        if as_json:
            say(json.dumps({
                "image": image, "model": name,
                "labels": [c for c, yes in zip(said.classnames, found, strict=True) if yes],
                "probabilities": {c: round(float(p), DIGITS)
                                  for c, p in zip(said.classnames, row, strict=True)},
                "thresholds": dict(zip(said.classnames, limits, strict=True)),
            }))
            continue
        each: dict[str, object] = {
            f"{c} (>= {t:.2f})": f"{p:.3f}"
            for c, t, p in zip(said.classnames, limits, row, strict=True)
        }
        rows.append({"image": image, "model": shown, "labels": labels or "none"} | each)


def _shown(model: str, names: Sequence[str]) -> str:
    """Return a model's name, with the client's where the data said it: ``client-3 (Utrecht)``."""
    number = model.removeprefix("client-")
    label = client_label(int(number), names) if number.isdigit() and names else ""
    return label.replace("client ", "client-", 1) or model
