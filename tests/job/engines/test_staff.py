"""Runs whose clients are computed by workers: bits, folders and refusals of the ordinary job.

The workers are in this process here, behind real frames; ``test_processes`` has real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.distributed.carriers import InProcess
from fedvlm.distributed.pool.site import PoolSite
from fedvlm.distributed.pool.store import PoolStore, new_letters
from fedvlm.distributed.wire import unpack
from fedvlm.job.build import build
from fedvlm.job.engines import staff
from fedvlm.job.inputs import SharedInputs
from tests import jobs

MORE = ("--num-users", "3", "--frac", "0.7", "--opts", "FED.CHUNK", "1")
INPUTS = SharedInputs()


class Pool(InProcess):
    """Two workers in this process; at a given request the driver stops, or a worker is gone."""

    def __init__(self, cfg: Any, folder: Path, stop: tuple[str, int] = ("", 0)) -> None:
        super().__init__({})
        self.stop, self.asked = stop, list[tuple[str, str, int]]()
        plain = staff.plain_config(cfg)
        for i in range(2):
            site = PoolSite(build(cfg, inputs=INPUTS).federation, folder / staff.PLACE, plain)
            self.answers[f"worker{i}"] = site.answer

    def open(self, seconds: float) -> None:
        """Be there."""

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

    def workers_of(cfg: Any, folder: Path, tell: Any) -> Pool:
        pools.append(Pool(cfg, folder, stop if not pools else ("", 0)))
        return pools[-1]

    patch.setattr(staff, "workers_of", workers_of)
    return jobs.run(output, "--engine", "workers", *more), pools


def rows(output: Path) -> dict[str, torch.Tensor]:
    """The clients' newest tensors as the workers of a run have them, named as in a local state."""
    (place,) = [p for p in (jobs.folder(output) / staff.PLACE).iterdir() if p.is_dir()]
    store = PoolStore(place.parent, place.name, torch.device("cpu"), new_letters())
    newest = dict(sorted(store.records.rows()))
    found = {}
    for client, version in newest.items():
        ((_, state),) = store.get([client], [version])
        found |= {f"clients|{client}|{version}|{slot}|{name}": v[0]
                  for slot, tree in state.items() for name, v in tree.items()}
    return found


@pytest.mark.parametrize(("trainer", "stop"), [
    ("FedTV", ("evaluate", 2)), ("SCAFFOLD", ("work", 2)),
    pytest.param("APFL", ("evaluate", 1), marks=pytest.mark.slow),
])
def test_a_run_by_workers_is_the_local_run_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, stop: tuple[str, int]
) -> None:
    """The driver stops between a request and the next checkpoint, and goes on."""
    words = ("--trainer", trainer, *MORE)
    assert jobs.run(tmp_path / "local", *words) == 0
    assert with_workers(tmp_path / "away", monkeypatch, *words, stop=stop)[0] == 130
    code, (pool,) = with_workers(tmp_path / "away", monkeypatch, *words)
    assert code == 0 and {site for site, op, _ in pool.asked if op == "work"} == {*pool.answers}
    assert jobs.records(tmp_path / "away") == jobs.records(tmp_path / "local")
    ours, theirs = jobs.results(tmp_path / "away"), jobs.results(tmp_path / "local")
    for said in (ours, theirs):
        said.pop("spent"), said["last"].pop("seconds"), said["last"].pop("seal", None)
    assert ours == theirs
    left, right = jobs.state(tmp_path / "away") | rows(tmp_path / "away"), jobs.state(
        tmp_path / "local")
    assert {n for n in right if n.startswith("clients|")} and left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in right)
