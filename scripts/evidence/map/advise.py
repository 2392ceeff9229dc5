"""What ``fedvlm advise`` says of six folders of images, and what its own command then reaches.

Makes the folders of cuts of real sets (copies, drawn once), asks for advice, runs the recommended
command on the same clients, and prints the tables of ``docs/advise.md``. Runs that are there are
not run again. Each ``--draws`` has classes, images and clients of its own. ``--partitions`` are
those of known sets and of the demo instead.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import re
import shlex
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from evidence.flags import add_folder, make_folder
from fedvlm.cli import main as cli
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.rng import numpy_stream
from fedvlm.runs.names import RESULTS
from fedvlm.runs.verify.answer import baseline_name

EXAMPLES = ("python scripts/evidence advise --root DATA/ --backbone local-dir:WEIGHTS",
            "python scripts/evidence advise --root DATA/ --backbone local-dir:WEIGHTS --draws 1 2",
            "python scripts/evidence advise --root DATA/ --backbone local-dir:WEIGHTS "
            "--partitions")
EUROSAT, DTD = "eurosat/2750", "dtd/images"
CALTECH, CIFAR = "caltech-101/101_ObjectCategories", "cifar-10/train"
ALL = ("--shots", "-1")  # every training image, each at one client
OPPOSITE = {"federate": -1, "do not federate": 1}  # sign of a clear gain that says the contrary


@dataclass(frozen=True)
class Cut:
    """An own folder.

    Attributes:
        words: for the table.
        source: folder of class folders below DATA.
        classes, train, test: how many classes, and of each how many images.
        flags: how they are dealt.
        sites: of a table, how many values its column ``hospital`` has; 0: class folders.
    """

    words: str
    source: str
    classes: int
    train: int
    test: int
    flags: str = ""
    sites: int = 0


CUTS = {
    "even": Cut("EuroSAT, iid, 5 clients", EUROSAT, 10, 20, 60, "--partition iid --num-users 5"),
    "mixed": Cut("EuroSAT, Dirichlet 0.3, 10 clients", EUROSAT, 10, 60, 60,
                 "--partition dirichlet --beta 0.3 --num-users 10"),
    "textures": Cut("DTD, 10 classes, Dirichlet 1, 6 clients", DTD, 10, 30, 40,
                    "--partition dirichlet --beta 1 --num-users 6"),
    "objects": Cut("Caltech101, 30 classes, Dirichlet 0.5, 20 clients", CALTECH, 30, 20, 20,
                   "--partition dirichlet --beta 0.5 --num-users 20"),
    "own": Cut("CIFAR-10, classes of their own, 5 clients", CIFAR, 10, 60, 60,
               "--partition disjoint --num-users 5"),
    "table": Cut("CIFAR-10, table with hospitals, 8 clients", CIFAR, 10, 40, 60,
                 "--clients-by hospital", 8),
}
FEW = {  # of classes that the backbone knows by name
    "few-two": Cut("CIFAR-10, 2 clients of 10 images, iid", CIFAR, 10, 2, 60,
                   "--partition iid --num-users 2"),
    "few-3-mixed": Cut("Caltech101, 30 classes, 3 images each, Dirichlet 1, 5 clients", CALTECH,
                       30, 3, 20, "--partition dirichlet --beta 1 --num-users 5"),
    "few-3": Cut("Caltech101, 30 classes, 3 images each, iid, 10 clients", CALTECH, 30, 3, 20,
                 "--partition iid --num-users 10"),
    "few-5": Cut("Caltech101, 30 classes, 5 images each, iid, 5 clients", CALTECH, 30, 5, 20,
                 "--partition iid --num-users 5"),
    "few-5-mixed": Cut("Caltech101, 30 classes, 5 images each, Dirichlet 1, 10 clients", CALTECH,
                       30, 5, 20, "--partition dirichlet --beta 1 --num-users 10"),
}
PARTITIONS = (
    "--dataset eurosat --partition iid --num-users 10 --shots 1",
    "--dataset eurosat --partition iid --num-users 10 --shots 4",
    "--dataset eurosat --partition dirichlet --beta 0.1 --num-users 10",
    "--dataset eurosat --partition dirichlet --beta 0.3 --num-users 10",
    "--dataset eurosat --partition dirichlet --beta 0.3 --num-users 10 --data-seed 2",
    "--dataset eurosat --partition dirichlet --beta 1 --num-users 20",
    "--dataset eurosat --partition dirichlet --beta 0.5 --num-users 5 --data-seed 3",
    "--dataset eurosat --partition disjoint --num-users 5 --shots 16",
    "--demo --partition dirichlet --beta 1 --num-users 20",
    "--demo --partition dirichlet --beta 0.3 --num-users 10 --data-seed 2",
    "--demo --partition iid --num-users 5 --shots 4 --data-seed 3",
    "--demo --partition disjoint --num-users 5",
    "--dataset dtd --partition dirichlet --beta 0.3 --num-users 10",
    "--dataset dtd --partition dirichlet --beta 1 --num-users 20",
    "--dataset dtd --partition disjoint --num-users 10 --shots 8",
    "--dataset caltech101 --partition dirichlet --beta 0.3 --num-users 10 --shots 16",
)
IN_WORDS = (("--(dataset )?", ""), (" --partition", ","), (" --beta", ""),
            (r" --num-users (\d+)", r", \1 clients"), (" --shots", ", shots"),
            (" --data-seed", ", data seed"))


def flags(parser: Parser) -> None:
    """Add what the command takes."""
    parser.add_argument("--root", default="", metavar="DATA", help="folder of the data sets")
    parser.add_argument("--backbone", default="", metavar="NAME", help="of advice and runs")
    parser.add_argument("--draws", nargs="+", type=int, default=[0], metavar="N",
                        help="which draws of classes, images and clients, each of six folders (0)")
    parser.add_argument("--few", action="store_true",
                        help="folders of few images of classes that the backbone knows by name")
    parser.add_argument("--partitions", action="store_true",
                        help="partitions of known sets and of the demo instead of own folders")
    add_folder(parser, "--runs", "where folders and runs are (output/advise)", "output/advise")


def main(args: Namespace) -> int:
    """Advise, run, and print the table.

    Raises:
        ConfigError: no data or backbone is given, or a command failed.
        DataError: images are missing.
    """
    if not args.root or not args.backbone:
        raise ConfigError("give --root and --backbone")
    if args.partitions and (args.few or args.draws != [0]):
        raise ConfigError("--draws and --few are of own folders; leave them out with --partitions")
    runs, rows = make_folder(args.runs), []
    cases = partitions(args, runs) if args.partitions else folders(args, runs)
    for words, folder, data in cases:
        rows.append((words, *beside(data, folder)))
        say(table_row(*rows[-1]))
    say("", *table_lines(rows))
    if len(args.draws) > 1:
        say("", *mean_lines(rows))
    return 0


Case = tuple[str, Path, list[str]]  # words for the table, folder of the run, data flags


def folders(args: Namespace, runs: Path) -> Iterator[Case]:
    """Yield the own folders of each draw, after their images are there."""
    for draw, (name, cut) in itertools.product(args.draws, (FEW if args.few else CUTS).items()):
        folder = runs / (f"{name}-{draw}" if draw else name)
        images = make_images(cut, Path(args.root), folder / "images", draw)
        yield cut.words, folder, [
            "--images", str(images), "--backbone", args.backbone, *ALL, *shlex.split(cut.flags),
            *(("--data-seed", str(draw + 1)) if draw else ())]


def partitions(args: Namespace, runs: Path) -> Iterator[Case]:
    """Yield the partitions of known sets, and of the demo, which has a backbone of its own."""
    known = ["--root", args.root, "--backbone", args.backbone]
    for data in PARTITIONS:
        words = data
        for flag, word in IN_WORDS:
            words = re.sub(flag, word, words, count=1)
        yield words, runs / "partitions", [*shlex.split(data),
                                           *([] if data.startswith("--demo") else known)]


def beside(data: Sequence[str], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the advice on the clients of data flags, and the results of the command it prints."""
    advice = json.loads(_told(["advise", "--json", *data]))
    out = folder / sha256(advice["command"].encode()).hexdigest()[:8]
    _told([*shlex.split(advice["command"])[1:], "--output-dir", str(out)])
    (found,) = out.rglob(RESULTS)
    return advice, json.loads(found.read_text(encoding="utf-8"))["results"]


def make_images(cut: Cut, root: Path, into: Path, draw: int = 0) -> Path:
    """Copy a cut's images; return the folder, or the table. Each ``draw`` has its own.

    Raises:
        DataError: the set is not there, or has too few images.
    """
    source, rng = root / cut.source, numpy_stream(draw, "advise", cut.words)
    if not source.is_dir():
        raise DataError(f"{source} is no folder")
    each = cut.train + cut.test
    names = sorted(path.name for path in source.iterdir()
                   if path.is_dir() and len(list(path.iterdir())) >= each)
    if len(names) < cut.classes:
        raise DataError(f"{source} has {len(names)} classes with {each} images, not {cut.classes}")
    rows = []
    for label, name in enumerate(sorted(rng.permutation(names)[:cut.classes])):
        files = sorted((source / name).iterdir())
        for at, place in enumerate(rng.permutation(len(files))[:each]):
            part, file = "train" if at < cut.train else "test", files[place]
            path = into / part / name / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file():
                shutil.copyfile(file, path)
            rows.append((path.relative_to(into), name, part, _site(label, cut.sites, rng)))
    if not cut.sites:
        return into
    with (into / "images.csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("file", "class", "split", "hospital"), *rows])
    return into / "images.csv"


def _site(label: int, sites: int, rng: np.random.Generator) -> str:
    """Return a hospital: half of a class lies at one of them, the rest anywhere."""
    if not sites:
        return ""
    return f"H{label % sites if rng.random() < 1 / 2 else int(rng.integers(sites))}"


def _told(words: Sequence[str]) -> str:
    """Return what a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = cli.main(list(words))
    if code:
        raise ConfigError(f"fedvlm {shlex.join(words)} ended with code {code}")
    return told.getvalue()


Judged = tuple[str, dict[str, Any], dict[str, Any]]  # words, advice, results of the run


def differences(advice: dict[str, Any], results: dict[str, Any]) -> tuple[float, float, float]:
    """Return advised less run of "together" and of the gain, and the margin of the latter."""
    answer = results["answer"]
    together = advice["reached"][advice["method"]]["personal"] - answer["together"]["personal"]
    return (together, advice["points"] - answer["points"],
            math.hypot(advice["margin"], answer["margin"]))


def is_opposite(advice: dict[str, Any], results: dict[str, Any]) -> bool:
    """Return whether the run's gain is clear and contrary to the verdict."""
    answer = results["answer"]
    clear = {"pays": 1, "costs": -1}.get(answer["verdict"], 0)
    return clear != 0 and OPPOSITE.get(advice["verdict"]) == clear


def table_row(words: str, advice: dict[str, Any], results: dict[str, Any]) -> str:
    """Return a row of the table."""
    answer, reached = results["answer"], advice["reached"]
    images = [client["images"] for client in advice["clients"]]
    cells = (
        f"{words}, {' to '.join(map(str, sorted({min(images), max(images)})))} images each",
        f"{advice['verdict']} ({baseline_name(advice['method'])})",
        f"{reached[advice['method']]['personal']:.1f}",
        f"{answer['together']['personal']:.1f}", f"{reached[advice['alone']]['personal']:.1f}",
        f"{answer['alone']['personal']:.1f}", f"{advice['points']:+.1f} ± {advice['margin']:.1f}",
        f"{answer['points']:+.1f} ± {answer['margin']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def mean_lines(rows: Sequence[Judged]) -> list[str]:
    """Return a table of means over the draws of each folder.

    Verdicts with their numbers, accuracies and gains of advice and runs, and in how many draws the
    two gains differ by less than their joint interval.
    """
    lines = ["| images and clients | advice | together: advised | run | alone: advised | run "
             "| gain: advised | run | agree |", "|---|---|" + "---|" * 7]
    for words in dict.fromkeys(one[0] for one in rows):
        told = [(advice, results["answer"]) for w, advice, results in rows if w == words]
        verdicts = Counter(advice["verdict"] for advice, _ in told).most_common()
        reached = [advice["reached"] for advice, _ in told]
        means = [
            fmean(r[a["method"]]["personal"] for r, (a, _) in zip(reached, told, strict=True)),
            fmean(answer["together"]["personal"] for _, answer in told),
            fmean(r[a["alone"]]["personal"] for r, (a, _) in zip(reached, told, strict=True)),
            fmean(answer["alone"]["personal"] for _, answer in told)]
        gains = [fmean(a["points"] for a, _ in told), fmean(b["points"] for _, b in told)]
        agree = sum(abs(gain) <= margin for w, advice, results in rows if w == words
                    for _, gain, margin in [differences(advice, results)])
        lines.append(f"| {words} | {', '.join(f'{word} {n}' for word, n in verdicts)} | "
                     f"{' | '.join(f'{v:.1f}' for v in means)} | "
                     f"{' | '.join(f'{v:+.1f}' for v in gains)} | {agree} of {len(told)} |")
    return lines


def table_lines(rows: Sequence[Judged]) -> list[str]:
    """Return the table, and how near advice and runs are."""
    found = [differences(advice, results) for _, advice, results in rows]
    within = sum(abs(gain) <= margin for _, gain, margin in found)
    contrary = [words for words, advice, results in rows if is_opposite(advice, results)]
    mean = fmean(together for together, _, _ in found)
    return [
        "| images and clients | advice | together: advised | run | alone: advised | run "
        "| gain: advised | run |", "|---|---|" + "---|" * 6, *(table_row(*row) for row in rows), "",
        f'Over these {len(rows)} rows "together" is {mean:+.1f} points from the run on average '
        f"({fmean(abs(one[0]) for one in found):.1f} without signs). In {within} of {len(rows)} "
        "the two gains differ by less than their joint 95 % interval. The opposite advice: "
        f"{', '.join(contrary) or 'none'}.",
    ]
