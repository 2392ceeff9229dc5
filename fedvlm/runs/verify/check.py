"""Is a run folder what its run left? Seals, and numbers computed again.

``check_readable`` looks at what tables, pages and the API read; ``inspect`` at every byte that
counts. A seal shows damage and accidents: whoever edits a number and seals it again is found by
running the rounds again only (``fedvlm verify --replay``).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedvlm.core.errors import DataError, FedvlmError
from fedvlm.core.files import read_json
from fedvlm.runs.bits import bit_problems, place_problems
from fedvlm.runs.identity import identity_digest, seal_fits, whole_results, why_not_whole
from fedvlm.runs.metrics import read_chain, read_metrics, spent, totals
from fedvlm.runs.names import PACKED, RESULTS
from fedvlm.runs.seal import (
    Damaged,
    check_records,
    check_tensor_file,
    open_sealed,
    read_bytes,
    seal_of,
)
from fedvlm.runs.verify.beside import disagreements, repeated_numbers
from fedvlm.runs.verify.cover import BARE, METRICS, TOLD, damage, missing_files
from fedvlm.runs.verify.numbers import problems, protocol_problems, shorter

SEALED, UNSEALED, DAMAGED, UNFINISHED, OK = "sealed", "unsealed", "damaged", "unfinished", "ok"
BEFORE = "no checksum (made by a version without checksums)"
FORMATS = (2, 1)  # of states (``runs.state``)
MOST = 5  # messages on one run
_TAG = re.compile(r"^TAG: .*", re.MULTILINE)
FILES = (RESULTS, "manifest.json", "metrics.jsonl", *TOLD)  # that every reader opens
NO_RESULT = ("seconds", "similarity")  # of a round's record, beside or left out of the results


@dataclass(frozen=True)
class RunVerdict:
    """What was seen of one run folder.

    Attributes:
        seal: ``sealed`` or ``unsealed``: whether the finished run vouches for itself.
        damage: a clause for each thing that is not as the run left it, its file first.
        finished: whether it has results.
        remarks: what was deleted, or is not sealed.
    """

    path: Path
    seal: str
    damage: tuple[str, ...] = ()
    finished: bool = True
    remarks: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """``ok``, ``unsealed``, ``unfinished`` or ``damaged``."""
        if self.damage:
            return DAMAGED
        if not self.finished:
            return UNFINISHED
        return OK if self.seal == SEALED else UNSEALED

    def sentence(self) -> str:
        """Return the damage in one message; empty where there is none."""
        return f"{self.path}: {'; '.join(self.damage)}" if self.damage else ""


def check_readable(folder: Path, record: Mapping[str, Any]) -> RunVerdict:
    """Check what readers read of a finished run: everything but tensors."""
    return _guarded(folder, lambda: _verdict(folder, record, _told(folder, record, whole=False)))


def inspect(folder: Path) -> RunVerdict:
    """Check every file of a run folder that counts, finished or not."""
    return _guarded(folder, lambda: _inspect(folder))


def _guarded(folder: Path, check: Callable[[], RunVerdict]) -> RunVerdict:
    """Return a verdict whatever the files hold: one of them ends no table over many runs."""
    try:
        odd = odd_file(folder)
        return RunVerdict(folder, UNSEALED, (odd,)) if odd else check()
    except FedvlmError as error:  # a file that cannot be read
        return RunVerdict(folder, UNSEALED, (str(error).splitlines()[0],))
    except OSError as error:
        return RunVerdict(folder, UNSEALED, (f"cannot be read ({error.strerror or error})",))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
            RecursionError) as error:
        why = f"a file has content that no run writes ({type(error).__name__})"
        return RunVerdict(folder, UNSEALED, (why,))


def odd_file(folder: Path) -> str:
    """Return a clause on what is no file, but reads like one: a pipe has no end; '' for none.

    Raises:
        OSError: the folder cannot be read.
    """
    for here, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(here) / name
            mode = os.stat(path).st_mode if path.exists() else stat.S_IFREG  # a link to nothing
            if not stat.S_ISREG(mode):
                return f"{path.relative_to(folder).as_posix()} is not a regular file; remove it"
    for name in FILES:
        if (folder / name).is_dir():
            return f"{name} is a folder, not a file"
    return ""


def _inspect(folder: Path) -> RunVerdict:
    path = folder / RESULTS
    written = read_json(path)
    record = whole_results(written)
    if record is not None:
        found = [*_told(folder, record, whole=True), *_states(folder), *_models(folder)]
        found += _rounds(folder, record) if seal_fits(record) else ()
        return _verdict(folder, record, iter(found))
    if path.exists():
        why = why_not_whole(written)
        other = "is damaged (it is not a results file)" if why.startswith("is ") else why
        return RunVerdict(folder, UNSEALED, (f"{RESULTS} {other}",))
    if not (folder / "manifest.json").exists():
        return RunVerdict(folder, UNSEALED, ("manifest.json is missing",))
    chain = read_chain(folder / "metrics.jsonl")
    told = [f"metrics.jsonl: {chain.broken}"] if chain.broken else []
    found = [*_manifest(folder, ""), *told, *_states(folder, chain.seals)]
    remarks = [f"rounds: {len(chain.seals)}", *([chain.cut] if chain.cut else [])]
    return RunVerdict(folder, UNSEALED, tuple(itertools.islice(found, MOST)), False, tuple(remarks))


def refuse_damage(folder: Path, record: Mapping[str, Any]) -> RunVerdict:
    """Return ``check_readable``'s verdict on a run whose numbers are about to be shown.

    Raises:
        DataError: something is damaged; names the file.
    """
    verdict = check_readable(folder, record)
    if verdict.damage:
        raise DataError(
            f"{verdict.sentence()}; restore the file, or repeat the run with another --tag "
            f"(fedvlm verify {folder} checks all files)"
        )
    return verdict


def one_digest_one_seed(runs: Sequence[tuple[Path, str, Mapping[str, Any]]]) -> dict[Path, str]:
    """Return a clause for each run whose identity digest another seed has, too.

    Args:
        runs: folder, identity digest, protocol.
    """
    seeds: dict[str, dict[tuple[Any, Any], Path]] = {}
    for path, digest, protocol in runs:
        seed = (protocol.get("seed"), protocol.get("data_seed"))
        seeds.setdefault(digest, {}).setdefault(seed, path)
    out = {}
    for path, digest, protocol in runs:
        seed = (protocol.get("seed"), protocol.get("data_seed"))
        others = [f"{s[0]} ({p})" for s, p in seeds[digest].items() if s != seed]
        if digest and others:
            out[path] = (
                f"{RESULTS} has seed {seed[0]}, but another run with the same identity "
                f"digest has seed {others[0]}: one of them was edited"
            )
    return out


def equal_seeds(
    runs: Sequence[tuple[Path, Mapping[str, Any], Mapping[str, Any]]]
) -> list[str]:
    """Return a sentence for each pair of runs of other seeds with the same answers and losses.

    A method that trains nothing may give them, if all its clients' images are the same.

    Args:
        runs: folder, protocol, results.
    """
    first: dict[str, tuple[Path, Any]] = {}
    out = []
    for path, protocol, results in runs:
        rows = results["last"].get("clients") if isinstance(results.get("last"), Mapping) else None
        losses = [row.get("nll") for row in rows or () if isinstance(row, Mapping)]
        if not rows or all(loss is None for loss in losses):
            continue
        same = {k: v for k, v in protocol.items() if k not in ("seed", "data_seed", "data_digest")}
        key = _text([same, rows])
        seeds = [protocol.get("seed"), protocol.get("data_seed")]
        path_, other = first.setdefault(key, (path, seeds))
        if other != seeds:
            out.append(f"{path} (seed {seeds[0]}, data seed {seeds[1]}) and {path_} (seed "
                       f"{other[0]}, data seed {other[1]}) have the same answers and losses for "
                       "every client: one may be a copy of the other")
    return out


def _verdict(folder: Path, record: Mapping[str, Any], found: Iterator[str]) -> RunVerdict:
    covers = record.get("covers")
    whole_seal = isinstance(covers, Mapping) and not covers.get(BARE)
    remarks = []
    if isinstance(covers, Mapping):
        if covers.get(BARE):
            remarks.append(f"the first {covers[BARE]} lines of metrics.jsonl have {BEFORE}")
        gone = missing_files(folder, covers)
        remarks += gone if gone == [PACKED] else [f"without {', '.join(gone)}"] if gone else []
    else:
        remarks.append(BEFORE)
    seal = SEALED if whole_seal else UNSEALED
    return RunVerdict(folder, seal, tuple(itertools.islice(found, MOST)), True, tuple(remarks))


def _told(folder: Path, record: Mapping[str, Any], whole: bool) -> Iterator[str]:
    """Yield what is wrong with results, manifest, config, partition, log and the metrics' chain."""
    if not seal_fits(record):
        yield f"{RESULTS} is damaged (its checksum does not match)"
        return
    numbers = record["results"]
    last = numbers.get("last")
    bits = bit_problems(last) if isinstance(last, Mapping) else ()
    for clause in itertools.chain(
            problems(numbers), _last(numbers), disagreements(numbers), repeated_numbers(record),
            (f"last.{one}" for one in bits), place_problems(numbers)):
        yield f"{RESULTS}: {clause}"
    yield from _manifest(folder, str(record["identity_digest"]), record, whole)
    covers = record.get("covers")
    if isinstance(covers, Mapping):
        yield from damage(folder, covers, whole)


def _last(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield numbers of the last row of the table that are not the last round's."""
    table, last = results.get("table"), results.get("last")
    if isinstance(table, list) and table and isinstance(table[-1], dict) and isinstance(last, dict):
        for name, value in table[-1].items():
            if name in last and value != last[name]:
                yield f"table has {name} {value}, last has {last[name]}"


def _manifest(
    folder: Path, digest: str, record: Mapping[str, Any] | None = None, whole: bool = True
) -> Iterator[str]:
    """Yield what is wrong with the manifest, alone and beside the results."""
    path, told = folder / "manifest.json", record or {}
    bound = whole or "covers" in told  # a page of an old run can do without
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("identity"), dict):
        if bound and (path.exists() or "covers" in told):
            yield f"manifest.json is {'not readable' if path.exists() else 'missing'}"
        return
    identity = manifest["identity"]
    if "seal" in manifest and manifest["seal"] != seal_of(manifest):
        yield "manifest.json is damaged (its checksum does not match)"
    elif whole and identity_digest(identity) != manifest.get("identity_digest"):
        yield "manifest.json is damaged (its identity has another digest)"
    elif record is not None and "seal" in manifest and "covers" not in record:
        yield f"{RESULTS} is damaged (its checksum is missing, manifest.json has one)"
    elif "covers" in told and "seal" not in manifest:
        yield "manifest.json is damaged (its checksum is missing)"
    elif digest and manifest.get("identity_digest", None if bound else digest) != digest:
        yield f"{RESULTS} belongs to another run than manifest.json"
    elif identity != told.get("identity", identity):
        yield f"{RESULTS} belongs to another run than manifest.json (its identity differs)"
    elif record is not None:
        for clause in protocol_problems(record["protocol"], identity, _tag(folder)):
            yield f"{RESULTS}: {clause}"


def _tag(folder: Path) -> str | None:
    """Return ``TAG`` of a run's ``config.yaml``, of which one line is read; None without it."""
    try:
        text = (folder / "config.yaml").read_text(encoding="utf-8")
        line = _TAG.search(text)
        return str(yaml.safe_load(line[0])["TAG"]) if line else None
    except (OSError, ValueError, yaml.YAMLError):
        return None


def _states(folder: Path, seals: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the states that do not count, with the file.

    Args:
        seals: of the metrics' chain, for an unfinished run: a state vouches for one of them.
    """
    place = folder / "state"
    if not place.is_dir():
        return
    manifest = read_json(folder / "manifest.json")
    identity = str(manifest.get("identity_digest", "")) if isinstance(manifest, dict) else ""
    names = sorted(place.glob("round_*.json"), key=lambda p: (len(p.name), p.name))
    for path in names:
        try:
            record = open_sealed(path, read_bytes(path), FORMATS, identity)
            check_tensor_file(path.with_suffix(".safetensors"), record)
            for kind, named in record.get("records", {}).items():
                check_records(place / kind, named, identity)
        except Damaged as error:
            yield f"state/{error}"
            continue
        line = record.get("extra", {}).get(METRICS)
        if seals is not None and line is not None and line not in seals:
            yield f"metrics.jsonl is not the one that state/{path.name} records"
    index = read_json(place / "index.json")
    stems = [p.stem for p in names]
    good = [{"format": number, "states": stems} for number in FORMATS]
    if seals is None and names and index not in good:  # a kill may come between
        yield "state/index.json is damaged (it does not list the existing states)"


def _models(folder: Path) -> Iterator[str]:
    """Yield damaged personal models of the last round."""
    for path in sorted((folder / "models").glob("personal*.json")):
        try:
            told = read_json(path)
            identity = str(told.get("identity")) if isinstance(told, dict) else ""
            check_tensor_file(
                path.with_suffix(".safetensors"),
                open_sealed(path, read_bytes(path), (1,), identity),
            )
        except Damaged as error:
            yield f"models/{error}"


def _rounds(folder: Path, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield rounds whose numbers are none, and results that are not those of the rounds."""
    records, notes = read_metrics(folder / "metrics.jsonl")
    if not records:
        return
    yield from notes
    for at, record in enumerate(records):
        yield from (f"metrics.jsonl, line {at + 1}: {clause}" for clause in problems(record))
    by_round = {record.get("round"): record for record in records}
    told = results["results"]
    for section, round_ in (("untrained", 0), ("last", _round(told, "last", records)),
                            ("selected", _round(told, "selected", records))):
        numbers, row = told.get(section), by_round.get(round_)
        if not isinstance(numbers, Mapping) or row is None:
            continue
        for name, value in numbers.items():
            if name in row and name not in NO_RESULT and _text(row[name]) != _text(value):
                yield f"{RESULTS}: {section}.{name} differs from metrics.jsonl"
    for section, costs, again in (("totals", results["run_info"].get("totals"), totals(records)),
                                  ("spent", told.get("spent"), spent(records))):
        for name, value in costs.items() if isinstance(costs, Mapping) else ():
            if name in again and name != "seconds" and _text(again[name]) != _text(value):
                yield (f"{RESULTS}: {section}.{name} is {shorter(value)}, metrics.jsonl "
                       f"gives {again[name]}")


def _round(results: Mapping[str, Any], section: str, records: Sequence[Mapping[str, Any]]) -> Any:
    numbers = results.get(section)
    usual = records[-1].get("round") if section == "last" else None
    return numbers.get("round", usual) if isinstance(numbers, Mapping) else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
