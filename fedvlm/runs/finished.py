"""A finished run, read from its folder: what report, API, comparisons and sweeps are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedvlm.config.keys import default_schema
from fedvlm.config.sections import read_keys
from fedvlm.core.errors import DataError
from fedvlm.core.files import read_json
from fedvlm.core.spelling import SIMULATED
from fedvlm.runs.identity import FORMAT, as_written, read_results, whole_results, why_not_whole
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.names import RESULTS, method_name
from fedvlm.runs.verify.answer import COMPARED, goes_around
from fedvlm.runs.verify.check import UNSEALED, check_readable, refuse_damage


@dataclass(frozen=True)
class FinishedRun:
    """One finished run.

    Attributes:
        path: its folder.
        protocol, results, info: sections of the results file (``info`` is ``run_info``).
        digest: the run's identity digest.
        seal: ``sealed``, or ``unsealed`` where nothing vouches for its files (made before that).
        draft: whether it was made with ``--draft``: its method's file may have changed since.
        form: the format that its results were written in; they are here in today's.
    """

    path: Path
    protocol: Mapping[str, Any]
    results: Mapping[str, Any]
    info: Mapping[str, Any]
    digest: str = ""
    seal: str = UNSEALED
    draft: bool = False
    form: int = FORMAT

    @property
    def method(self) -> str:
        """The method's name with trainable set and tag: ``FedAvg [prompt+lora] (tag, draft)``."""
        return method_name(self.protocol, self.draft)

    @property
    def simulated(self) -> bool:
        """Whether its text tower is simulated: such a run is in no ranking."""
        return bool(self.protocol.get("texts") == SIMULATED)

    @property
    def last(self) -> Mapping[str, Any]:
        """The last round's record: the headline."""
        return dict(self.results["last"])

    @property
    def seconds(self) -> float:
        """Wall time of the run, of its last session."""
        return float(self.info.get("seconds_this_session") or 0)

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the results (``zero_shot``); empty where the run has none such.

        Of a run with a privacy guarantee what baselines say is empty, too (``goes_around``).
        """
        section = None if name in COMPARED and goes_around(self.results) else self.results.get(name)
        return section if isinstance(section, Mapping) else {}

    def totals(self) -> Mapping[str, Any]:
        """Return the totals of the whole run; empty where it names none."""
        totals = self.info.get("totals")
        return totals if isinstance(totals, Mapping) else {}

    def notes(self) -> list[str]:
        """Return the run's own notes, ``not comparable with papers`` above all."""
        notes = self.info.get("notes")
        return [str(note) for note in notes] if isinstance(notes, list) else []

    def value(self, metric: str) -> float | None:
        """Return a number: ``personal`` of the last round, or ``zero_shot.personal`` and the like.

        None where the run has none such.
        """
        part, _, rest = metric.partition(".")  # names of the last round may have a dot
        section, name = (part, rest) if part in self.results and rest else ("last", metric)
        number = self.section(section).get(name)
        return float(number) if isinstance(number, int | float) else None

    def rounds(self) -> list[dict[str, Any]]:
        """Return the records of all rounds, round 0 first."""
        return read_metrics(self.path / "metrics.jsonl")[0]

    def manifest(self) -> dict[str, Any]:
        """Return ``manifest.json``.

        Raises:
            DataError: it cannot be read.
        """
        return load_manifest(self.path)

    def identity_config(self) -> dict[str, Any]:
        """Return the config that changes the run's numbers, flat: ``OPTIM.LR`` -> 0.005.

        Of an older run, too, only what counts today.

        Raises:
            DataError: the manifest cannot be read, or names none.
        """
        try:
            return read_keys(dict(self.manifest()["identity"]["config"]), default_schema())
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("the manifest names no config") from error

    def check(self) -> None:
        """Check the files behind the numbers, as ``read_finished`` does.

        Raises:
            DataError: one is damaged; names the file and what to do.
        """
        record = whole_results(read_json(self.path / RESULTS))
        if record is None:
            raise DataError(f"{self.path / RESULTS} is damaged or has another version")
        refuse_damage(self.path, record)


def find_finished(folder: Path) -> FinishedRun | None:
    """Return the finished run in a folder, other files unread; None without whole results."""
    record = read_results(folder / RESULTS)
    return None if record is None else _run(folder, record, UNSEALED)


def read_finished(folder: Path) -> FinishedRun | None:
    """Return the finished run in a folder, checked (``check_readable``); None of an unfinished one.

    Raises:
        DataError: it is damaged, or does not follow from its clients' rows.
    """
    file = folder / RESULTS
    if not file.exists():
        return None
    if not file.is_file():  # a pipe would never end
        raise DataError(f"{file} is not a regular file: the run is skipped")
    written = read_json(file)
    record = whole_results(written)
    good = record is not None and isinstance(record["results"].get("last"), dict)
    if record is None or not good or "trainer" not in record["protocol"]:
        raise DataError(f"{file} {why_not_whole(written)}: it is skipped")
    verdict = check_readable(folder, record)
    if verdict.damage:
        raise DataError(f"{verdict.sentence()}; the run is skipped")
    return _run(folder, record, verdict.seal)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the resolved config of a run folder, nested as in ``config.yaml``.

    Raises:
        DataError: it cannot be read.
    """
    return dict(_load(folder / "config.yaml", yaml.safe_load))


def load_manifest(folder: Path) -> dict[str, Any]:
    """Return ``manifest.json`` of a run folder, finished or not, as it is.

    Raises:
        DataError: it cannot be read.
    """
    return dict(_load(folder / "manifest.json", json.loads))


def _run(folder: Path, record: Mapping[str, Any], seal: str) -> FinishedRun:
    told = read_json(folder / "manifest.json")
    draft = isinstance(told, dict) and told.get("draft") is True
    return FinishedRun(folder, record["protocol"], record["results"], record["run_info"],
                       record["identity_digest"], seal, draft or record.get("draft") is True,
                       int(as_written(record)["format"]))


def _load(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
