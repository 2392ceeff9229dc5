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

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.runs import manifest, metrics, state
from fedvlm.runs.claim import ClaimedFolder
from fedvlm.runs.identity import (
    DEVICE_KEYS,
    FORMAT,
    Present,
    config_text,
    identity_plain,
)
from fedvlm.runs.names import RESULTS
from fedvlm.runs.private import (
    private_values,
    public_facts,
    public_text,
    public_value,
    write_private,
)
from fedvlm.runs.records import RecordStore
from fedvlm.runs.seal import seal_of, sha256
from fedvlm.runs.state import SavedState
from fedvlm.runs.tensors import to_storable
from fedvlm.runs.verify.cover import METRICS, cover

START = "start"  # the untrained tensors, in ``models/``


class RunFolder(ClaimedFolder):
    """A run's files. Made by ``create``.

    Attributes:
        keep: how many states stay on disk (``runs.state``).
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], present: Present = identity_plain
    ) -> None:
        super().__init__(path, identity, present)
        self.keep = state.KEEP
        self._last: str | None = None  # seal of the last line of the metrics, once it is known
        self._seals: dict[Any, str] = {}  # round -> seal of its line

    # ---- paths ------------------------------------------------------------------------------
    @cached_property
    def records(self) -> dict[str, RecordStore]:
        """Clients' rows on disk, by kind."""
        return state.open_records(self.state_dir, self.digest)

    # ---- what is written --------------------------------------------------------------------
    def write_config(self, resolved: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        """Write ``config.yaml``: the resolved config, each value's origin as a comment.

        Values that name folders or hosts of this machine go to ``private.json``.
        """
        shown = {key: public_value(key, value) for key, value in resolved.items()}
        told = {key: public_text(origin) for key, origin in origins.items()}
        files.write_text(self._writable("config.yaml"), config_text(shown, told))
        write_private(self.path, config=private_values(resolved))

    def write_names(self, clients: Sequence[str], notes: Sequence[str]) -> None:
        """Keep clients' names and notes that name images in ``private.json``, and nowhere else."""
        kept = [note for note in notes if public_text(note) != note]
        if clients or kept:
            write_private(self._writable("config.yaml").parent, clients=clients or None, notes=kept)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run, ``partition.csv`` for one."""
        files.write_text(self._writable(name), text)

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a JSON file of the run, ``partition.json`` for one."""
        files.write_json(self._writable(name), data)

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
        ours = sha256(safetensors.torch.save(to_storable(tensors)))
        began = self._manifest.get("facts", {}).get(START)
        if path.exists():
            there = sha256(path.read_bytes())
            if there in (ours, began or there):
                return
            if began != ours:
                raise DataError(
                    f"'{path}' is damaged, and this machine computes other initial tensors than "
                    "the run started with; restore the file, or run again with another --tag"
                )
            self.notes.append(f"models/{path.name} was damaged and is written again")
        if began != ours:
            self.record_facts(**{START: ours})
        self.save_model(START, tensors)

    def save_models(self, number: int, clients: Sequence[int], models: state.TreeView) -> None:
        """Write models ``[K, ...]`` of ``clients`` as ``models/personal<number>``, a record.

        ``runs.records.read_models`` reads all of them.
        """
        record = RecordStore(self._models(), self.digest)
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
        files.write_bytes(path, safetensors.torch.save(to_storable(tensors)))
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
        elsewhere = {k: v for k, v in session["machine"].items() if k in DEVICE_KEYS}
        about |= {
            "ended": manifest.now(), "determinism": manifest.determinism(),
            "device": manifest.device_of(self.identity | elsewhere),
        }
        record: dict[str, Any] = files.json_ready({
            "format": FORMAT, "draft": self.draft, "identity_digest": self.digest,
            "identity": self._manifest["identity"],
            "run_info": public_facts(about | dict(run_info)),
            "protocol": dict(protocol), "results": dict(results), "covers": cover(self.path),
        })
        record["seal"] = seal_of(record)
        files.write_json(self._writable(RESULTS), record)
        self.finished = record
        return record
