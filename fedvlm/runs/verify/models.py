"""The tensors of a run that are handed out: each file that is loaded is checked first.

A finished run's ``results.json`` says which state is its last one, and vouches for the untrained
tensors and the personal models. What is damaged is refused; an earlier round is another model and
is loaded only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import read_json
from fedvlm.runs.identity import whole_results, why_not_whole
from fedvlm.runs.metrics import read_chain
from fedvlm.runs.names import RESULTS
from fedvlm.runs.state import SavedState, load_newest_state, rounds_on_disk
from fedvlm.runs.verify.check import refuse_damage
from fedvlm.runs.verify.cover import FILES, METRICS, file_digest

START = "models/start.safetensors"


def covered_files(path: Path) -> dict[str, str]:
    """Return what the results of a run vouch for, name -> SHA-256, after a check of what is read.

    Empty of an unfinished run, and of one of before there were checksums.

    Raises:
        DataError: results, config, partition or metrics are damaged; names the file.
    """
    file = path / RESULTS
    if not file.exists():
        return {}
    written = read_json(file)
    record = whole_results(written)
    if record is None:
        raise DataError(f"{file} {why_not_whole(written)}; restore the file")
    refuse_damage(path, record)
    covers = record.get("covers")
    return dict(covers.get(FILES, {})) if isinstance(covers, Mapping) else {}


def check_covered(path: Path, name: str, wanted: str) -> None:
    """Refuse a file of a run that is not the one its results or its manifest name.

    Args:
        wanted: its SHA-256; empty: nothing names it.

    Raises:
        DataError: it is gone or damaged.
    """
    if wanted and file_digest(path / name) != wanted:
        raise DataError(f"'{path / name}' is damaged (its hash differs from the recorded one); "
                        "restore the file")


def check_models(path: Path, covered: Mapping[str, str]) -> None:
    """Refuse personal models that are not those that the results vouch for.

    Raises:
        DataError: one is gone or damaged, or is one more.
    """
    for name, wanted in covered.items():
        if name.startswith("models/personal"):
            check_covered(path, name, wanted)
    more = [p for p in (path / "models").glob("personal*.*") if f"models/{p.name}" not in covered]
    if covered and more:
        raise DataError(f"'{more[0]}' is not a file of this run (it is not in {RESULTS}); remove "
                        "it")


def load_state(
    path: Path, manifest: Mapping[str, Any], covered: Mapping[str, str], only: int | None = None
) -> SavedState:
    """Return a state of a run folder: the last one, whole, or the one that is asked for.

    Args:
        covered: of ``covered_files``.
        only: the round that is asked for; None: the last.

    Raises:
        DataError: the last state is damaged, names the file; or there is none.
        ConfigError: no state of that round is kept.
    """
    folder, identity = path / "state", str(manifest.get("identity_digest", ""))
    if only is not None:
        return _earlier(path, identity, only)
    names = [name for name in covered if name.startswith("state/")]
    if names and folder.is_dir():
        number = int(names[-1].removeprefix("state/round_").removesuffix(".json"))
        if not (path / names[-1]).exists():
            raise _damaged(path, f"{names[-1]} is missing", identity, number)
        if file_digest(path / names[-1]) != covered[names[-1]]:
            why = f"{names[-1]} is damaged (its hash differs from the one in {RESULTS})"
            raise _damaged(path, why, identity, number)
        saved, notes = load_newest_state(folder, identity=identity, only=number)
    else:
        saved, notes = load_newest_state(folder, identity=identity)
    if saved is None and not notes:
        raise DataError(f"'{path}' has no trained model yet: no state")
    if saved is None or notes:
        number = max(rounds_on_disk(folder), default=0) if saved is None else saved.round + 1
        raise _damaged(path, notes[0], identity, number)
    line = saved.extra.get(METRICS)
    rounds = path / "metrics.jsonl"  # a model alone may be taken elsewhere without it
    if not names and line and rounds.exists() and line not in read_chain(rounds).seals:
        raise _damaged(path, f"metrics.jsonl is not the one that the state of round {saved.round} "
                       "records", identity, saved.round)
    return saved


def _earlier(path: Path, identity: str, only: int) -> SavedState:
    saved, notes = load_newest_state(path / "state", identity=identity, only=only)
    if saved is not None:
        return saved
    kept = sorted(rounds_on_disk(path / "state")) if (path / "state").is_dir() else []
    if only in kept:
        raise DataError(f"'{path}': {notes[0]}; restore the file")
    raise ConfigError(f"--round {only}: '{path}' has no state of that round; it has those of "
                      f"{', '.join(map(str, kept)) or 'none'} (TRAIN.KEEP_STATES keeps more)")


def _damaged(path: Path, why: str, identity: str, number: int) -> DataError:
    """Return the error of a damaged last state, with the earlier one that could be asked for."""
    older = [r for r in sorted(rounds_on_disk(path / "state"), reverse=True) if r < number]
    whole = next((r for r in older if load_newest_state(
        path / "state", identity=identity, only=r)[0] is not None), None)
    way = "" if whole is None else (
        f"; or ask for the model of an earlier round: --round {whole} (in Python round={whole})")
    return DataError(f"'{path}': {why}; restore the file{way}")
