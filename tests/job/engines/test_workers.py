"""Runs whose clients are computed by workers: bits, folders and refusals of the ordinary job.

The workers are in this process here, behind real frames; ``test_processes`` has real ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.api.rebuild import rebuild
from fedvlm.core.errors import DataError
from fedvlm.distributed.store import SiteStore
from fedvlm.distributed.wire import unpack
from fedvlm.job.build import build_run
from fedvlm.job.engines import workers
from fedvlm.job.flags import parse
from fedvlm.job.inputs import SharedInputs
from fedvlm.job.resolve import resolve
from fedvlm.job.workers import processes
from fedvlm.job.workers.serving import worker_of
from tests import jobs
from tests.distributed.in_process import InProcess

MORE = ("--num-users", "3", "--frac", "0.7", "--opts", "FED.CHUNK", "1")


class Pool(InProcess):
    """Two workers in this process; at a given request the driver stops, or a worker is gone."""

    def __init__(self, cfg: Any, folder: Path, stop: tuple[str, int] = ("", 0)) -> None:
        super().__init__({})
        self.stop, self.asked = stop, list[tuple[str, str, int]]()
        inputs = SharedInputs()  # not of several tests: one of them may change the weights
        for i in range(2):
            site = worker_of(build_run(cfg, inputs=inputs), folder / processes.PLACE)
            self.answers[f"worker{i}"] = site.answer

    def open(self, seconds: float) -> None:
        """Be there."""

    def absent(self) -> list[str]:
        """Nobody is."""
        return []

    def close(self) -> None:
        """Be gone."""

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        out = dict(super().ask(frames, seconds))
        heads = {site: unpack(data) for site, data in frames.items()}
        told = [(site, f.op, int(f.values.get("round", 0))) for site, f in heads.items()]
        self.asked += told
        if self.stop in [(op, round_) for _, op, round_ in told]:
            self.stop = ("", 0)
            raise KeyboardInterrupt
        return out


def with_workers(
    output: Path, patch: pytest.MonkeyPatch, *more: str, stop: tuple[str, int] = ("", 0)
) -> tuple[int, list[Pool]]:
    pools: list[Pool] = []

    def workers_of(side: workers.Workers, folder: Path, tell: Any) -> Pool:
        pools.append(Pool(side.cfg, folder, stop if not pools else ("", 0)))
        return pools[-1]

    patch.setattr(workers.Workers, "workers_of", workers_of)
    return jobs.run(output, "--engine", "workers", *more), pools


def rows(output: Path) -> dict[str, torch.Tensor]:
    """The clients' tensors as whoever opens a run's folder finds them, named as in a local state.

    They lie with the workers.
    """
    run = rebuild(jobs.folder(output), "cpu")
    store, found = run.federation.clients.store, {}
    assert isinstance(store, SiteStore)
    for client, version in run.state.versions.items():
        ((_, state),) = store.get([client], [version])
        found |= {f"clients|{client}|{version}|{slot}|{name}": v[0]
                  for slot, tree in state.items() for name, v in tree.items()}
    return found


def files_of(output: Path) -> dict[str, bytes]:
    """What is left of personal models and logits, byte for byte."""
    top = jobs.folder(output)
    return {str(p.relative_to(top)): p.read_bytes()
            for p in [*top.glob("models/*"), *top.glob("logits.safetensors")]}


@pytest.mark.parametrize(("trainer", "stop", "more"), [
    ("FedTV", ("personalize", 2), ("FED.FINETUNE_EPOCHS", "1")),
    pytest.param("SCAFFOLD", ("work", 2), (), marks=pytest.mark.slow),
    pytest.param("APFL", ("evaluate", 1), (), marks=pytest.mark.slow),
    pytest.param("Thorki", ("evaluate", 2), (), marks=pytest.mark.slow),
    pytest.param("FedPer", ("evaluate", 2),
                 ("FED.FINETUNE_EPOCHS", "1", "OPTIM.KEEP_STATE", "True"), marks=pytest.mark.slow),
])
def test_a_run_by_workers_is_the_local_run_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, stop: tuple[str, int],
    more: tuple[str, ...],
) -> None:
    """The driver stops between a request and the next checkpoint, and goes on."""
    words = ("--trainer", trainer, "--keep-logits", *MORE, *more)
    assert jobs.run(tmp_path / "local", *words) == 0
    assert with_workers(tmp_path / "away", monkeypatch, *words, stop=stop)[0] == 130
    code, (pool,) = with_workers(tmp_path / "away", monkeypatch, *words)
    assert code == 0 and {site for site, op, _ in pool.asked if op == "work"} == {*pool.answers}
    assert jobs.records(tmp_path / "away") == jobs.records(tmp_path / "local")
    ours, theirs = jobs.results(tmp_path / "away"), jobs.results(tmp_path / "local")
    for said in (ours, theirs):
        said.pop("spent"), said["last"].pop("seconds"), said["last"].pop("seal", None)
    assert ours == theirs
    kept = files_of(tmp_path / "local")
    assert files_of(tmp_path / "away") == kept and "logits.safetensors" in kept
    made = {name for name in kept if "/personal" in name}
    assert bool(made) == (trainer in ("FedTV", "FedPer", "Thorki"))
    left, right = jobs.state(tmp_path / "away") | rows(tmp_path / "away"), jobs.state(
        tmp_path / "local")
    assert {n for n in right if n.startswith("clients|")} and left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in right)


@pytest.mark.parametrize(("words", "said"), [
    (("--workers", "2"), "--workers 2 has no effect with --engine local: use --engine workers"),
    (("--engine", "workers", "--workers-at", "a:1"),
     "flag --workers-at ended with 0.2: one run works on one machine (--workers N)"),
    (("--engine", "workers", "FED.WORKERS_AT", "a:1"),
     "FED.WORKERS_AT ended with 0.2: one run works on one machine"),
    (("--engine", "worker"), "workers"),
])  # fmt: skip
def test_what_an_engine_cannot_do_is_said_before_data_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert jobs.run(tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error and not [*tmp_path.iterdir()]


def test_workers_are_as_many_as_the_cores_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a number each has the threads of the local engine: the same bits."""
    monkeypatch.setattr(processes, "core_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cfg = resolve(parse(["--demo"])).jobs[0].cfg
    large = resolve(parse(["--demo", "--backbone", "ViT-B/16"])).jobs[0].cfg
    two = resolve(parse(["--demo", "--backbone", "ViT-B/16", "--engine", "workers",
                         "--workers", "2"])).jobs[0].cfg
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [processes.size_of(c) for c in (cfg, large, two)] == [(8, 1), (1, 8), (2, 4)]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert [processes.size_of(c) for c in (cfg, large, two)] == [(2, 4), (2, 4), (2, 4)]


def test_the_name_of_a_run_at_its_workers_is_its_own_and_stays(tmp_path: Path) -> None:
    """Folders with the same end may have one place for states; older runs keep their name."""
    def folder(name: str) -> Any:
        path = tmp_path / name / "a/b/c/d/e/f/g"
        path.mkdir(parents=True)
        return SimpleNamespace(path=path, digest="same")

    one, two, older, third = (folder(name) for name in ("one", "two", "older", "third"))
    assert processes.run_id(one) == processes.run_id(one) != processes.run_id(two)
    for run in (older, third):
        (run.path / "state").mkdir()
        (run.path / "state" / "round_0001.json").touch()
    assert processes.run_id(older) == processes.run_id(third) != processes.run_id(two)
    (two.path / processes.PLACE / processes.NAME).write_text("../../other")
    with pytest.raises(DataError, match="is damaged"):
        processes.run_id(two)


def test_a_run_goes_on_with_the_engine_that_began_it(
    quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(quick_run, tmp_path, dirs_exist_ok=True)
    folder = jobs.folder(tmp_path)
    (folder / "results.json").unlink()
    for path in (folder / "state").glob("round_0002.*"):
        path.unlink()
    monkeypatch.setattr(workers.Workers, "workers_of", lambda *given: Pool.__new__(Pool))
    assert jobs.run(tmp_path, "--engine", "workers") == 2
    assert "was started with --engine local" in capsys.readouterr().err
    assert jobs.run(tmp_path) == 0
