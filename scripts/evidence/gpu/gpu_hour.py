"""An hour on a GPU: does it work, are the bits equal, how fast is it.

Runs on the machine that has the card and needs nothing but this repository. Kinds of parts, each
a process of its own of at most five minutes that leaves a JSON file: what the card can do; every
method twice on the card and once on the processor; whole jobs by the verbs of fedvlm; FedTV,
PromptFL, CLIP-LoRA and HEART-PFL at ViT-B/16 with 100 clients in fp32 and bf16. Parts that are
there are not run again, and of the methods those that were not reached are. Ends with a table, also
in FOLDER/README.md.
"""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from evidence.commands import PROGRAM
from evidence.flags import add_folder, add_names, make_folder
from evidence.gpu import measure
from evidence.gpu.table import page_of
from evidence.gpu.whole import TINY, try_job
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import write_json, write_text
from fedvlm.core.signals import saying
from fedvlm.federation.cards import trainer_files
from fedvlm.models.device import lack_of

SPEED = ("FedTV", "PromptFL", "CLIP-LoRA", "HEART-PFL")
PRECISIONS = ("fp32", "bf16")
LIMIT = 300  # seconds of a part
MISSING = "it was not run"
UNDONE = "it ended before all was measured"
JOBS = {"job-tiny": TINY, "job-vit": measure.REAL.backbone}
PARTS = ("card", "methods", *JOBS, *(f"{name}-{p}" for name in SPEED for p in PRECISIONS))
EXAMPLES = tuple(f"{PROGRAM} gpu-hour {words}" for words in (
    f"build/gpu  # everything, at most {len(PARTS) * LIMIT // 60} minutes",
    "build/gpu --only card FedTV-bf16",
    "build/gpu --beside 'FLiP=python /code/flip/main.py --rounds 1'  # wall time of other code",
    "build/gpu-pretend --pretend  # the whole way without a card: numbers of no meaning",
))


def flags(parser: Parser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add_folder(parser, "folder", "where the JSON files and the table go")
    add("--device", default="cuda", metavar="NAME", help="which card (cuda)")
    add_names(parser, "--only", PARTS, "PART")
    add("--methods", nargs="+", default=[], metavar="NAME",
        help=f"of the part 'methods' (all {len(trainer_files())})")
    add("--beside", nargs="+", default=[], metavar="NAME=COMMAND",
        help="commands of other projects to time as they are")
    add("--pretend", action="store_true",
        help="use the pretend device of tests/device, small: shows that the parts run")
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    return [f"--beside '{word}': NAME=COMMAND" for word in args.beside
            if not all(word.partition("=")[::2])]


def main(args: Namespace) -> int:
    """Run the parts that are missing and write the table; 1 where one failed or bits differ.

    Raises:
        ConfigError: there is no such card.
    """
    into = make_folder(args.folder)
    try:
        _do_parts(args, into)
    except KeyboardInterrupt as stop:
        raise saying(stop, "the part under way is lost and begins anew; those that are done are "
                     f"kept in {into}, of the methods each") from None
    records = {path.stem: json.loads(path.read_text(encoding="utf-8"))
               for path in sorted(into.glob("*.json"))}
    page, good = page_of(records, args.pretend)
    write_text(into / "README.md", page)
    say(*page.splitlines(), f"wrote {into}/README.md")
    return 0 if good else 1


def _do_parts(args: Namespace, into: Path) -> None:
    if len(args.only) == 1 and not args.beside:
        with _card(args):
            path = into / f"{args.only[0]}.json"
            write_json(path, _measure(
                args.only[0], args, lambda now: write_json(path, now | {"failed": UNDONE})))
    else:
        with _card(args):
            pass  # refused before anything is run
        for part in args.only or PARTS:
            _run_part(part, args, into)
        for word in args.beside:
            name, _, command = word.partition("=")
            write_json(into / f"beside-{name}.json", _time_other(name, command))


@contextmanager
def _card(args: Namespace) -> Iterator[None]:
    if args.pretend:
        root = str(Path(__file__).resolve().parents[3])
        if root not in sys.path:
            sys.path.append(root)
        card = importlib.import_module("tests.device.card")  # not part of what is installed
        with card.pretend_card():
            yield
        return
    if not torch.cuda.is_available():
        raise ConfigError(f"{lack_of(0)}: no CUDA device that PyTorch can use; --pretend walks "
                          "through the parts without one")
    yield


def _measure(
    part: str, args: Namespace, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    size = measure.PRETEND if args.pretend else measure.REAL
    if part == "card":
        return measure.measure_card(args.device, size)
    if part == "methods":
        names = args.methods or sorted(trainer_files())
        return measure.try_methods(args.device, names, size, LIMIT - 30, say, keep)
    if part in JOBS:
        with TemporaryDirectory() as place:
            return try_job(part, args.device, TINY if args.pretend else JOBS[part], Path(place))
    method, _, precision = part.rpartition("-")
    return measure.measure_speed(args.device, method, precision, size, LIMIT - 30, keep)


def _run_part(part: str, args: Namespace, into: Path) -> None:
    """Run a part in a process of its own, unless its file is there; a failure is a file, too.

    Methods that an earlier try has compared stay: it goes on with those that it did not reach.
    """
    path = into / f"{part}.json"
    before = _read(path)
    if "failed" not in before and not before.get("unreached"):
        say(f"{part}: already there")
        return
    path.unlink(missing_ok=True)
    methods = before.get("unreached") or args.methods
    words = [sys.executable, str(Path(__file__).resolve().parents[1]), "gpu-hour", args.folder,
             "--only", part, "--device", args.device, *(["--pretend"] if args.pretend else []),
             *(["--methods", *methods] if methods else [])]
    say(f"{part}: running (at most {LIMIT // 60} minutes)")
    began = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)  # noqa: S603
        whole = _read(path).get("failed", "") not in (MISSING, UNDONE)
        problem = "" if whole and done.returncode in (0, 1) else _last(done.stderr)
    except subprocess.TimeoutExpired:
        problem = f"not done after {LIMIT // 60} minutes"
    finally:
        if before.get("unreached"):
            now = {k: v for k, v in before.items() if k != "failed"} | _read(path)
            write_json(path, now | {"rows": before["rows"] | now["rows"]})
    if problem:
        write_json(path, _read(path) | {"part": part, "failed": problem})
    say(f"{part}: {problem or 'done'} ({time.monotonic() - began:.0f} s)")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"failed": MISSING}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _time_other(name: str, command: str) -> dict[str, Any]:
    began = time.monotonic()
    try:
        code = subprocess.run(shlex.split(command), timeout=LIMIT, check=False).returncode  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"part": name, "failed": str(error)}
    out = {"part": name, "command": command, "seconds": time.monotonic() - began}
    return out | ({"failed": f"exit code {code}"} if code else {})


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it ended without a word"])[-1]
