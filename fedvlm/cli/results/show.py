"""Print the results of finished runs."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from fedvlm.console.nearest import nearest_path
from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, say
from fedvlm.core.errors import DataError
from fedvlm.core.files import read_json, user_path
from fedvlm.runs.bits import BITS, PLACES
from fedvlm.runs.identity import whole_results, why_not_whole
from fedvlm.runs.names import RESULTS, method_name
from fedvlm.runs.verify.answer import answer_lines, has_baselines
from fedvlm.runs.verify.check import BEFORE, SEALED, refuse_damage

EXAMPLES = (
    "fedvlm show RUN_FOLDER",
    "fedvlm show RUN_A RUN_B",
)
ALSO = ("results", "numbers", "print", "cat")
OURS = {"seal", "format", "identity_digest", "run_info", "covers"}  # parts that runs write


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("folders", nargs="+", metavar="RUN_FOLDER", help="a run folder")


def main(args: Namespace) -> int:
    """Print the headline numbers by name.

    Raises:
        DataError: a folder without readable results, or a damaged run.
    """
    for word in args.folders:
        folder = user_path(word)
        results = read_record(folder)
        if whole_results(results) is None:
            if OURS & set(results):  # one of ours, whose seal cannot be checked
                raise DataError(f"{folder / RESULTS} {why_not_whole(results)}; restore the file")
            complain(f"{word} has {BEFORE}", prefix="note")
        elif refuse_damage(folder, results).seal != SEALED:
            complain(f"{word} has {BEFORE}", prefix="note")
        numbers = flat_numbers({k: v for k, v in results.items() if k not in ("covers", "seal")})
        say(word, *(f"  {key} {value}" for key, value in numbers.items()))
        say(*_answer(results))
    return 0


def _answer(record: dict[str, Any]) -> list[str]:
    """Return whether federation paid, as the run's screen said it; [] of a run without baselines.
    """
    whole = whole_results(record)
    if whole is None or not has_baselines(whole["results"]) or "trainer" not in whole["protocol"]:
        return []
    return answer_lines(whole["results"], method_name(whole["protocol"]))


def read_record(folder: Path) -> dict[str, Any]:
    """Return a run's ``results.json``.

    Raises:
        DataError: there is none, or it is damaged; with what the folder is instead.
    """
    path = folder / RESULTS
    if not folder.is_dir():
        raise DataError(f"{folder} is not a run folder{nearest_path(folder)}")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read ({error.strerror}); is the run finished?"
        raise DataError(f"{path}: {why}{_describe(folder)}") from None
    except ValueError:
        raise DataError(f"{path}: is not valid JSON; the run folder is damaged") from None
    if not isinstance(results, dict):
        raise DataError(f"{path}: contains no results; the run folder is damaged")
    return results


def _describe(folder: Path) -> str:
    """Return what a folder without ``results.json`` is, and the command for it; '' for none."""
    if (folder / "plan.yaml").is_file():
        return f"; this is a sweep's journal: fedvlm table {folder.parent.parent} reads its runs"
    if (folder / "manifest.json").is_file():
        told = read_json(folder / "manifest.json")
        command = told.get("command") if isinstance(told, dict) else ""
        return f"; to resume it: {command}" if command else ""
    finished = sorted(path.parent for path in folder.rglob(RESULTS))
    if not finished:
        return ""
    what = "a run" if len(finished) == 1 else f"{len(finished)} runs"
    return f"; {what} below it: fedvlm show {finished[0]}, or fedvlm table {folder}"


def flat_numbers(results: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return numbers and words by dotted name; without lists (per client, per round) and bits."""
    numbers: dict[str, Any] = {}
    for key, value in results.items():
        if key in (BITS, PLACES):
            continue
        if isinstance(value, dict):
            numbers |= flat_numbers(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            numbers[prefix + key] = value
    return numbers
