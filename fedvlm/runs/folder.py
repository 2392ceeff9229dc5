"""The run folder: one place, one identity, one process, whole files, and the way back in.

``output/<setting>/<dataset>/shots_<k>/<trainer>[-<tag>]/<backbone>/<partition>/seed<s>-data<d>/``
holds ``manifest.json`` (written first: identity, sessions), ``config.yaml``, ``partition.json``,
``log.txt``, ``metrics.jsonl``, ``state/``, ``results.json`` (written last: a run is finished
because it is there) and ``RUNNING`` while a process works on it.

``models/`` has the untrained tensors and, where there was a final fine-tuning, what came of it.

Per round, append metrics first and save the state after: a kill in between repeats the round, and
``restore`` drops the lines that will be written again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import safetensors.torch
from torch import Tensor

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.runs import lock, manifest, metrics, state
from fedvlm.runs.identity import (
    FORMAT,
    Present,
    RunPath,
    config_text,
    earlier_results,
    identity_difference,
    identity_digest,
    identity_plain,
    read_manifest,
    read_results,
    refuse_other,
    shorten,
)
from fedvlm.runs.names import RESULTS
from fedvlm.runs.records import Records
from fedvlm.runs.seal import seal_of, sha256
from fedvlm.runs.state import SavedState
from fedvlm.runs.tensors import storable
from fedvlm.runs.verify.cover import METRICS, cover

START = "start"  # the untrained tensors, in ``models/``


def look_ahead(
    output_dir: str | Path, parts: RunPath, config: Mapping[str, Any],
    present: Present = identity_plain,
) -> None:
    """Refuse at once what ``RunFolder.create`` will refuse; writes nothing.

    Args:
        config: the part ``config`` of the identity, which is known before data and towers.
        present: see ``RunFolder.create``.

    Raises:
        ConfigError, DataError: as ``RunFolder.create``.
    """
    path = Path(output_dir) / parts.relative()
    with explain_place(path):
        there = nearest_there(path)
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        finished = read_results(path / RESULTS) is not None
        if not finished and not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if there != path:
        return
    if not finished:
        lock.refuse_busy(path)
    identity = (read_manifest(path) or {}).get("identity", {})
    if "config" in identity:
        refuse_other(path, {"config": identity["config"]}, {"config": config}, present)


def nearest_there(path: Path) -> Path:
    """Return the path, or the nearest of the folders above it that exists."""
    return next(p for p in (path, *path.parents) if p == Path(p.anchor or ".") or p.exists())


@contextlib.contextmanager
def explain_place(path: Path) -> Iterator[None]:
    """Turn what keeps a folder of runs from being made into a ``ConfigError``."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot make the run folder {str(path)!r}: {why.lower()}; "
            "choose another --output-dir"
        ) from error


class RunFolder:
    """A run's files. Made by ``create``; a context manager that gives the lock back.

    Attributes:
        path: the folder.
        digest: the run's identity digest; of a folder that was there, the one recorded in it.
        finished: contents of ``results.json`` where the run is done already, else None.
        notes: what the user should be told (lock taken over, states passed over, ...).
        keep: how many states stay on disk (``runs.state``).
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], present: Present = identity_plain
    ) -> None:
        self.path, self._present = path, present
        self.identity = identity_plain(identity)
        self.digest = identity_digest(identity)
        self.finished: dict[str, Any] | None = None
        self.notes: list[str] = []
        self.keep = state.KEEP
        self._lock: lock.RunLock | None = None
        self._manifest: dict[str, Any] = {}
        self._above = self.path  # the nearest folder that was there before
        self._last: str | None = None  # seal of the last line of the metrics, once it is known
        self._seals: dict[Any, str] = {}  # round -> seal of its line

    @classmethod
    def create(
        cls, output_dir: str | Path, parts: RunPath, identity: Mapping[str, Any], *,
        resume: bool = True, argv: Sequence[str] | None = None, present: Present = identity_plain,
    ) -> RunFolder:
        """Open the folder of a run, new or left behind; the same identity only.

        Args:
            output_dir: taken as text: ``~``, ``$x`` and ``..`` mean what the system makes of them.
            identity: everything that changes the run's numbers (JSON values).
            resume: False drops unfinished work and begins again; a finished run is always kept.
            argv: the command line for the manifest.
            present: what of an identity counts today; the folder's own may be older.

        Raises:
            ConfigError: another identity lies there (the difference is shown), another process
                works there, or the path cannot be a folder.
            DataError: the folder holds files without a readable manifest, or cannot be written.
        """
        run = cls.claim(output_dir, parts, identity, present=present)
        if run.finished is None:
            try:
                run.begin(resume, argv)
            except BaseException:
                run.close()
                raise
        return run

    @classmethod
    def claim(
        cls, output_dir: str | Path, parts: RunPath, identity: Mapping[str, Any], *,
        present: Present = identity_plain,
    ) -> RunFolder:
        """Take the lock of a run's folder, or refuse it; ``begin`` follows. See ``create``.

        A folder that is closed before it began is as it was: what was made for it goes.

        Raises:
            ConfigError, DataError: as ``create``.
        """
        run = cls(Path(output_dir) / parts.relative(), identity, present)
        run._make()
        run.finished = run._earlier()
        if run.finished is not None:
            run._tidy()
            return run
        run._lock = lock.acquire(run.path)
        try:
            run.notes = list(run._lock.notes)
            run.finished = run._earlier()
            if run.finished is None:
                run._checked()
        except BaseException:
            run.close()
            raise
        if run.finished is not None:
            run._lock.release()
            run._lock = None
        return run

    # ---- paths ------------------------------------------------------------------------------
    @property
    def log_path(self) -> Path:
        """Where the console writes its Dassl-style log."""
        return self.path / "log.txt"

    @property
    def metrics_path(self) -> Path:
        """One JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def state_dir(self) -> Path:
        """Where states lie."""
        return self.path / "state"

    @property
    def results_path(self) -> Path:
        """Written last."""
        return self.path / RESULTS

    @cached_property
    def records(self) -> dict[str, Records]:
        """Clients' rows on disk, by kind."""
        return state.open_records(self.state_dir, self.digest)

    # ---- what is written --------------------------------------------------------------------
    def write_config(self, resolved: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        """Write ``config.yaml``: the resolved config, each value's origin as a comment."""
        files.write_text(self._writable("config.yaml"), config_text(resolved, origins))

    def write_partition(self, index: Mapping[str, Any]) -> None:
        """Write ``partition.json``: the index file of the partition."""
        files.write_json(self._writable("partition.json"), index)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run, ``partition.csv`` for one."""
        files.write_text(self._writable(name), text)

    def record_facts(self, **facts: Any) -> None:
        """Add facts (digests of backbone and partition, ...) to ``manifest.json``."""
        self._manifest.setdefault("facts", {}).update(files.json_ready(facts))
        self._write_manifest()

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``; see ``runs.metrics``."""
        path = self._writable("metrics.jsonl")
        self._last = metrics.append_metrics(path, record, self._last)
        self._seals[record.get("round")] = self._last

    def truncate_metrics(self, after_round: int) -> None:
        """Drop lines after a round, and cut ones; what went is told in ``notes``."""
        self._last, self._seals = None, {}
        self.notes += metrics.truncate_metrics(self._writable("metrics.jsonl"), after_round)

    def save_state(
        self, round: int, server: state.StateView,
        records: Mapping[str, Sequence[Sequence[str]]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the state after ``round``, which names ``records``; see ``runs.state``.

        It vouches for the metrics up to its round.
        """
        line = {METRICS: self._seals[round]} if round in self._seals else {}
        state.save_state(
            self._writable("state"), round, server, records or {}, line | dict(extra or {}),
            identity=self.digest, keep=self.keep,
        )

    def save_model(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write ``models/<name>.safetensors``: tensors by their own names."""
        self._models()
        self.save_tensors(f"models/{name}", tensors)

    def save_start(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the untrained tensors as ``models/start``; in a run that goes on, check them.

        Raises:
            DataError: they are there, damaged, and this machine does not make the same ones.
        """
        path = self.path / "models" / f"{START}.safetensors"
        ours = sha256(safetensors.torch.save(storable(tensors)))
        began = self._manifest.get("facts", {}).get(START)
        if path.exists():
            there = sha256(path.read_bytes())
            if there in (ours, began or there):
                return
            if began != ours:
                raise DataError(
                    f"'{path}' is damaged, and this machine makes other untrained tensors than the "
                    "run began with; put it back, or run the same under another --tag"
                )
            self.notes.append(f"models/{path.name} was damaged: it is written again")
        if began != ours:
            self.record_facts(**{START: ours})
        self.save_model(START, tensors)

    def save_models(self, number: int, clients: Sequence[int], models: state.TreeView) -> None:
        """Write models ``[K, ...]`` of ``clients`` as ``models/personal<number>``, a record.

        ``runs.records.read_models`` reads all of them.
        """
        record = Records(self._models(), self.digest)
        versions = [0] * len(clients)
        record.write(f"personal{number:06d}", [(clients, versions, {"w": dict(models)})])

    def _models(self) -> Path:
        folder = self._writable("models")
        with files.explain_errors(folder):
            folder.mkdir(exist_ok=True)
        return folder

    def load_newest_state(self) -> SavedState | None:
        """Return the newest valid state, or None; what was passed over is told in ``notes``.

        A state that vouches for other metrics than are there does not count.
        """
        chain = metrics.read_chain(self.metrics_path)
        there = set(chain.seals)

        def refuse(saved: SavedState) -> str:
            seal = saved.extra.get(METRICS)  # states of before have none
            fits = seal is None or seal in there
            what = chain.broken or chain.cut or "lines are missing or were changed"
            return "" if fits else f"{self.metrics_path.name}: {what}"

        newest, notes = state.load_newest_state(
            self.state_dir, identity=self.digest, refuse=refuse
        )
        self.notes += notes
        return newest

    def restore(self) -> SavedState | None:
        """Return the state to go on from (None: the beginning) and cut the metrics to fit it."""
        newest = self.load_newest_state()
        if newest is not None:
            state.settle(self._writable("state"), newest.round, self.digest, self.keep)
            for kind, named in (newest.records or {}).items():
                self.records[kind].load(named)
        self.truncate_metrics(newest.round if newest is not None else -1)
        self._manifest["sessions"][-1]["from_round"] = newest.round if newest is not None else None
        self._write_manifest()
        return newest

    def save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> Path:
        """Write ``<name>.safetensors`` (kept logits, exported models) and return its path."""
        path = self._writable(f"{name}.safetensors")
        files.write_bytes(path, safetensors.torch.save(storable(tensors)))
        return path

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write another file of the run, whole or not at all."""
        files.write_bytes(self._writable(name), data)

    def write_results(
        self, run_info: Mapping[str, Any], protocol: Mapping[str, Any], results: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write ``results.json``, which makes the run finished, and return its contents.

        It is sealed, and ``covers`` what else says what the run was (``runs.verify.cover``).

        Args:
            run_info: seconds, counters and the like; this session's command, versions and machine
                are added.
            protocol: setting, dataset, seeds, budget: what a table must not mix.
            results: the numbers, named as in the design.
        """
        session = self._manifest["sessions"][-1]
        about = {k: session[k] for k in ("command", "started", "versions", "git", "machine")}
        record: dict[str, Any] = files.json_ready({
            "format": FORMAT, "identity_digest": self.digest,
            "run_info": about | {"ended": manifest.now()} | dict(run_info),
            "protocol": dict(protocol), "results": dict(results), "covers": cover(self.path),
        })
        record["seal"] = seal_of(record)
        files.write_json(self._writable(RESULTS), record)
        self.finished = record
        return record

    # ---- closing ----------------------------------------------------------------------------
    def close(self, how: str = "finished") -> None:
        """Note the session's end in the manifest and give the lock back; twice is harmless."""
        if self._lock is None:
            return
        try:
            if self._manifest:
                manifest.end_session(self._manifest["sessions"][-1], how)
                self._write_manifest()
        finally:
            self._lock.release()
            self._lock = None
            if not self._manifest:
                self._unmake()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close("finished" if self.finished is not None else "stopped")
            return
        with contextlib.suppress(DataError):  # the first error is the one to tell
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else kind.__name__)

    # ---- opening ----------------------------------------------------------------------------
    def _earlier(self) -> dict[str, Any] | None:
        """Return the results that lie there, and take over their digest."""
        record = earlier_results(self.path, self.identity, self.notes, self._present)
        if record is not None:
            self.digest = record["identity_digest"]
        return record

    def _make(self) -> None:
        with explain_place(self.path):
            self._above = nearest_there(self.path)
            self.path.mkdir(parents=True, exist_ok=True)

    def _unmake(self) -> None:
        """Take away the empty folders that ``_make`` made."""
        with contextlib.suppress(OSError):
            for folder in (self.path, *self.path.parents):
                if folder == self._above:
                    return
                folder.rmdir()

    def _checked(self) -> dict[str, Any] | None:
        """Return the manifest that lies there, of a run of this identity; None for none."""
        earlier = read_manifest(self.path)
        if earlier is not None:
            refuse_other(self.path, earlier["identity"], self.identity, self._present)
        return earlier

    def _tidy(self) -> None:
        """Take away what a kill right after ``results.json`` left, if the folder lets us."""
        if (self.path / lock.NAME).exists():
            with contextlib.suppress(ConfigError, DataError):
                held = lock.acquire(self.path)
                try:
                    files.remove_leftovers(self.path)
                finally:
                    held.release()

    def begin(self, resume: bool = True, argv: Sequence[str] | None = None) -> None:
        """Enter this session in the manifest of a claimed folder; the arguments of ``create``.

        Raises:
            ConfigError, DataError: as ``create``.
        """
        earlier = self._checked()
        if earlier is not None:
            self.identity, self.digest = earlier["identity"], earlier["identity_digest"]
            if earlier.get("seal", seal_of(earlier)) != seal_of(earlier):
                self.notes.append(
                    "manifest.json was changed since the last session; the run's identity in it is "
                    "whole"
                )
        files.remove_leftovers(self.path)
        session = manifest.session(argv)
        record = earlier or {
            "format": FORMAT, "identity_digest": self.digest,
            "identity": self.identity, "created": manifest.now(), "facts": {}, "sessions": [],
        }
        if record["sessions"]:
            changed = manifest.differences(record["sessions"][0], session)
            if changed and resume:
                self.notes.append(
                    "bit-equal numbers are not promised, since the run began elsewhere: "
                    + shorten(changed)
                )
        record["sessions"].append(session)
        self._write_manifest(record)
        with files.explain_errors(self.state_dir):
            self.state_dir.mkdir(exist_ok=True)
        for folder in (self.state_dir, self.path / "models"):
            files.remove_leftovers(folder)
        for kind in state.KINDS:
            files.remove_leftovers(self.state_dir / kind)
        if not resume:
            state.clear_states(self.state_dir)
            self.notes += metrics.truncate_metrics(self.metrics_path, -1)
        self._manifest = record

    def _write_manifest(self, contents: Mapping[str, Any] | None = None) -> None:
        record: dict[str, Any] = files.json_ready(self._manifest if contents is None else contents)
        record["seal"] = seal_of(record)
        files.write_json(self._writable("manifest.json"), record)

    def _writable(self, name: str) -> Path:
        """Return the path of a file to write; the lock must be held."""
        if self._lock is None:
            raise RuntimeError(f"'{self.path}' is closed or finished: {name} is not written")
        return self.path / name


__all__ = [
    "RunFolder", "RunPath", "SavedState", "identity_difference", "identity_digest", "read_results",
]
