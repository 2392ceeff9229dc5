"""A run's folder taken by one process: its lock, its identity, and the sessions in its manifest."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.runs import lock, manifest, metrics, private, state
from fedvlm.runs.identity import (
    DEVICE_KEYS,
    FORMAT,
    Present,
    RunPath,
    device_words,
    earlier_results,
    identity_digest,
    identity_plain,
    read_manifest,
    read_results,
    refuse_other,
    shorten_lines,
)
from fedvlm.runs.names import RESULTS
from fedvlm.runs.seal import seal_of


def look_ahead(
    output_dir: str | Path, parts: RunPath, config: Mapping[str, Any],
    present: Present = identity_plain, draft: bool = False,
) -> None:
    """Refuse at once what ``ClaimedFolder.create`` will refuse; writes nothing.

    Args:
        config: the part ``config`` of the identity, which is known before data and towers.
        present: see ``ClaimedFolder.create``.
        draft: see ``ClaimedFolder.claim``.

    Raises:
        ConfigError, DataError: as ``ClaimedFolder.create``.
    """
    path = Path(output_dir) / parts.relative()
    with explain_place(path):
        there = nearest_there(path)
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        finished = not draft and read_results(path / RESULTS) is not None
        if not finished and not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if there != path:
        return
    if not finished:
        lock.refuse_busy(path)
    earlier = read_manifest(path)
    refuse_other_kind(path, earlier, draft)
    identity = (earlier or {}).get("identity", {})
    if "config" in identity and not draft:
        refuse_other(path, {"config": identity["config"]}, {"config": config}, present)


def refuse_other_kind(path: Path, earlier: Mapping[str, Any] | None, draft: bool) -> None:
    """Refuse a draft where a run lies that is none, and the other way round.

    Args:
        earlier: the manifest of the run that lies there; None for none.

    Raises:
        ConfigError: so.
    """
    there = earlier is not None and earlier.get("draft") is True
    if earlier is not None and there != draft:
        raise ConfigError(
            f"'{path}' holds a draft run: choose another --tag, or add --draft"
            if there else
            f"'{path}' holds a finished or resumable run, which --draft would overwrite: choose "
            "another --tag for the draft"
        )


def nearest_there(path: Path) -> Path:
    """Return the path, or the nearest of the folders above it that exists."""
    return next(p for p in (path, *path.parents) if p == Path(p.anchor or ".") or p.exists())


def tidy_finished(path: Path) -> None:
    """Take away what a kill right after ``results.json`` left, if the folder lets us."""
    if (path / lock.NAME).exists():
        with contextlib.suppress(ConfigError, DataError):
            held = lock.acquire(path)
            try:
                files.remove_leftovers(path)
            finally:
                held.release()


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


class ClaimedFolder:
    """A folder that one process works on; a context manager that gives the lock back.

    Attributes:
        path: the folder.
        digest: the run's identity digest; of a folder that was there, the one recorded in it.
        finished: contents of ``results.json`` where the run is done already, else None.
        notes: what the user should be told (lock taken over, states passed over, ...).
        draft: whether the run's code may still change: manifest and results say so, no table takes
            it, and the next one overwrites it.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], present: Present = identity_plain
    ) -> None:
        self.path, self._present = path, present
        self.identity = identity_plain(identity)
        self.digest = identity_digest(identity)
        self.finished: dict[str, Any] | None = None
        self.notes: list[str] = []
        self.draft = False
        self._lock: lock.RunLock | None = None
        self._manifest: dict[str, Any] = {}
        self._above = self.path  # the nearest folder that was there before

    @property
    def state_dir(self) -> Path:
        """Where states lie."""
        return self.path / "state"

    @property
    def metrics_path(self) -> Path:
        """One JSON object per line."""
        return self.path / "metrics.jsonl"

    @classmethod
    def create(
        cls, output_dir: str | Path, parts: RunPath, identity: Mapping[str, Any], *,
        resume: bool = True, argv: Sequence[str] | None = None, present: Present = identity_plain,
    ) -> Self:
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
        present: Present = identity_plain, draft: bool = False,
    ) -> Self:
        """Take the lock of a run's folder, or refuse it; ``begin`` follows. See ``create``.

        A folder that is closed before it began is as it was: what was made for it goes.

        Args:
            draft: whatever draft lies there, finished or not and of whatever identity, goes when
                the run begins.

        Raises:
            ConfigError, DataError: as ``create``; a draft and a run that is none in one folder.
        """
        run = cls(Path(output_dir) / parts.relative(), identity, present)
        run.draft = draft
        with explain_place(run.path):
            run._above = nearest_there(run.path)
            run.path.mkdir(parents=True, exist_ok=True)
        run.finished = run._earlier()
        if run.finished is not None:
            tidy_finished(run.path)
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

    # ---- manifest ---------------------------------------------------------------------------
    @property
    def facts(self) -> Mapping[str, Any]:
        """What the manifest says of the run beside its identity (``record_facts``)."""
        return self._manifest.get("facts", {})

    def record_facts(self, **facts: Any) -> None:
        """Add facts (digests of backbone and partition, ...) to ``manifest.json``."""
        plain = private.public_facts(files.json_ready(facts))
        self._manifest.setdefault("facts", {}).update(plain)
        self._write_manifest()

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

    def __enter__(self) -> Self:
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
        """Return the results that lie there, and take over their digest; None in a draft."""
        if self.draft:
            return None
        record = earlier_results(self.path, self.identity, self.notes, self._present)
        if record is not None:
            self.digest = record["identity_digest"]
        return record

    def _unmake(self) -> None:
        """Take away the empty folders that ``claim`` made."""
        with contextlib.suppress(OSError):
            for folder in (self.path, *self.path.parents):
                if folder == self._above:
                    return
                folder.rmdir()

    def _checked(self) -> dict[str, Any] | None:
        """Return the manifest that lies there, of a run of this identity; None for none.

        A draft's is of any identity.
        """
        earlier = read_manifest(self.path)
        refuse_other_kind(self.path, earlier, self.draft)
        if earlier is not None and not self.draft:
            refuse_other(self.path, earlier["identity"], self.identity, self._present)
        return earlier

    def begin(self, resume: bool = True, argv: Sequence[str] | None = None) -> None:
        """Enter this session in the manifest of a claimed folder; the arguments of ``create``.

        Raises:
            ConfigError, DataError: as ``create``.
        """
        earlier = self._checked()
        if self.draft:
            self._clear()
            earlier = None
        moved: dict[str, Any] = {}
        if earlier is not None:
            old, new = earlier["identity"], self.identity
            moved = {k: new.get(k) for k in DEVICE_KEYS if new.get(k) != old.get(k)}
            self.identity, self.digest = old, earlier["identity_digest"]
            if earlier.get("seal", seal_of(earlier)) != seal_of(earlier):
                self.notes.append(
                    "manifest.json was changed since the last session; the run's identity in it is "
                    "unchanged"
                )
        files.remove_leftovers(self.path)
        argv = list(sys.argv if argv is None else argv)
        session = manifest.session(argv)
        record = self._upgrade(earlier) or {
            "format": FORMAT, "draft": self.draft, "identity_digest": self.digest,
            "identity": self.identity, "created": manifest.now(), "facts": {}, "sessions": [],
        }
        if record["sessions"]:
            changed = manifest.differences(record["sessions"][0], session)
            if changed and resume:
                self.notes.append(
                    "bit-identical results are not guaranteed: the run started in another "
                    "environment: "
                    + shorten_lines(changed)
                )
        if moved:  # CONTINUE_ELSEWHERE; verify reads it in the session
            session["machine"].update(moved)
            self.notes.append(
                f"begun on {device_words(self.identity)}, continued on "
                f"{device_words(self.identity | moved)}: the numbers agree with an uninterrupted "
                "run within rounding, not to the bit"
            )
        record["sessions"].append(session)
        self._write_manifest(record)
        private.write_private(self.path, private.private_session(argv))
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

    def _clear(self) -> None:
        """Empty the folder of a draft: its results first and its manifest last.

        A kill in between leaves what is still a draft, and no results of files that are gone.
        """
        order = {RESULTS: 0, "manifest.json": 2}
        with files.explain_errors(self.path):
            for path in sorted(self.path.iterdir(), key=lambda p: (order.get(p.name, 1), p)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != lock.NAME:
                    path.unlink()

    def _upgrade(self, earlier: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a manifest in today's form; what it said of its machine goes to private.json."""
        if earlier is None or earlier.get("format") == FORMAT:
            return earlier
        for session in earlier["sessions"]:
            private.write_private(self.path, private.take_private(session))
        facts = private.public_facts(earlier.get("facts", {}))
        return {**earlier, "format": FORMAT, "draft": False, "facts": facts}

    def _write_manifest(self, contents: Mapping[str, Any] | None = None) -> None:
        record: dict[str, Any] = files.json_ready(self._manifest if contents is None else contents)
        record["seal"] = seal_of(record)
        files.write_json(self._writable("manifest.json"), record)

    def _writable(self, name: str) -> Path:
        """Return the path of a file to write; the lock must be held."""
        if self._lock is None:
            raise RuntimeError(f"'{self.path}' is closed or finished: {name} is not written")
        return self.path / name
