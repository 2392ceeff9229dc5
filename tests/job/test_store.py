"""Checkpoints, clients' rows and models of a whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedvlm.job import run as job_run
from fedvlm.job.record import Recorder
from fedvlm.runs.records import read_models
from tests import jobs
from tests.runs.format1 import save_format_1

DITTO = ("--trainer", "Ditto", "--rounds", "4")


def rounds(output: Path) -> list[int]:
    return [r["round"] for r in jobs.records(output)]


def test_a_checkpoint_every_n_rounds_and_at_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    real = job_run.RunFolder.save_state
    monkeypatch.setattr(job_run.RunFolder, "save_state", lambda self, r, *rest: (
        saved.append(r), real(self, r, *rest))[1])
    words = (*DITTO, "TRAIN.CHECKPOINT_FREQ", "3")
    assert jobs.run(tmp_path / "three", *words) == 0
    assert saved == [0, 3, 4] and rounds(tmp_path / "three") == [0, 1, 2, 3, 4]
    saved.clear()
    assert jobs.run(tmp_path / "each", *DITTO) == 0
    assert saved == [0, 1, 2, 3, 4]
    jobs.same(tmp_path / "three", tmp_path / "each")


def test_clients_keep_no_shared_tensor_of_theirs_on_disk(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, *DITTO) == 0
    names = {name for name in jobs.state(tmp_path) if name.startswith("clients|")}
    slots = {name.split("|")[3] for name in names}
    assert slots == {"v"} and len(names) >= 2
    assert all(name.split("|")[2] == "4" for name in names)


def test_auto_is_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []
    real = job_run.restore

    def restore(built: Any, folder: Any) -> Any:
        kinds.append(type(built.federation.clients.store).__name__)
        return real(built, folder)

    monkeypatch.setattr(job_run, "restore", restore)
    assert jobs.run(tmp_path / "a", *DITTO) == 0
    monkeypatch.setattr(job_run, "MEMORY_BYTES", 100)
    assert jobs.run(tmp_path / "b", *DITTO) == 0
    assert jobs.run(tmp_path / "c", *DITTO, "FED.STORE", "memory") == 0
    assert kinds == ["MemoryStore", "RecordStore", "MemoryStore"]
    jobs.same(tmp_path / "a", tmp_path / "b")


def test_fine_tuned_models_and_the_untrained_start_are_saved_by_name(tmp_path: Path) -> None:
    words = ("--trainer", "FedPer", "--finetune-epochs", "1")
    assert jobs.run(tmp_path / "tuned", *words) == 0
    place = jobs.folder(tmp_path / "tuned") / "models"
    start = safetensors.torch.load_file(place / "start.safetensors")
    tuned = read_models(place)
    assert set(tuned) == {0, 1} and all(p.keys() == start.keys() for p in tuned.values())
    server = jobs.state(tmp_path / "tuned")
    shared = [n for n in start if f"server|w|{n}" in server]
    personal = sorted(set(start) - set(shared))
    assert shared and personal
    for client, p in tuned.items():
        assert p[personal[0]].shape == start[personal[0]].shape
        assert not torch.equal(p[personal[0]], start[personal[0]])
        own = server[f"clients|{client}|2|w|{personal[0]}"]
        assert not torch.equal(p[personal[0]], own)  # trained once more
    assert jobs.run(tmp_path / "plain", "--trainer", "FedPer") == 0
    plain = jobs.folder(tmp_path / "plain") / "models"
    assert [p.name for p in plain.iterdir()] == ["start.safetensors"]
    again = safetensors.torch.load_file(plain / "start.safetensors")
    assert all(torch.equal(v, start[n]) for n, v in again.items())


class Stop(BaseException):
    """As sudden as a kill."""


def test_a_folder_of_format_1_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients' tensors beside the server's, whole models, as they were written before."""
    whole, old = tmp_path / "whole", tmp_path / "old"
    assert jobs.run(whole, *DITTO) == 0
    real = job_run.RunFolder.save_state
    federations: list[Any] = []
    monkeypatch.setattr(job_run, "Recorder", lambda built, *rest: (
        federations.append(built.federation), Recorder(built, *rest))[1])

    def save(self: Any, r: int, server: Any, *more: Any, **named: Any) -> None:
        if r < 2:
            return real(self, r, server, *more, **named)
        fed = federations[0]
        versions = dict.fromkeys((0, 1), 2)
        clients = {
            c: state | {"w": state["w"] | server["w"]}
            for c, state in fed.clients.read([0, 1], versions).items()
        }
        both = {"client": torch.tensor([0, 1]), "round": torch.tensor([2, 2])}
        save_format_1(self.state_dir, 2, server | {"worked": both}, clients, {},
                      identity=self.digest)
        raise Stop

    monkeypatch.setattr(job_run.RunFolder, "save_state", save)
    with pytest.raises(Stop):
        jobs.run(old, *DITTO)
    monkeypatch.undo()
    assert json.loads(
        (jobs.folder(old) / "state" / "round_0002.json").read_text())["format"] == 1
    assert jobs.run(old, *DITTO) == 0
    jobs.same(whole, old)
