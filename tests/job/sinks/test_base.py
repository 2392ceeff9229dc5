"""Sinks: every round once, also across a resume; what happens where one fails or is missing.

The writers are fakes in the place of the optional packages; the last test is on the real one.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedvlm.core import files
from fedvlm.core.errors import ConfigError
from fedvlm.job.identity import WHERE
from fedvlm.job.sinks.base import Sinks, numbers, spreads
from tests import jobs

TENSORBOARD = "torch.utils.tensorboard"


class Writer:
    """Keeps what a ``SummaryWriter`` would write, and writes a file of that kind."""

    made: list[Writer] = []
    fail_at = -1

    def __init__(self, log_dir: str, purge_step: int | None) -> None:
        self.folder, self.purge = Path(log_dir), purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.histograms: list[tuple[str, list[float], int]] = []
        self.texts: list[str] = []
        self.closed = False
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"events.out.tfevents.{len(self.made)}").touch()
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if step == self.fail_at:
            raise OSError("no space left")
        self.scalars.append((name, value, step))

    def add_histogram(self, name: str, values: Any, step: int) -> None:
        self.histograms.append((name, values.tolist(), step))

    def add_text(self, name: str, text: str, step: int) -> None:
        self.texts.append(text)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def steps(self, name: str = "evaluation/personal") -> list[int]:
        return [step for n, _, step in self.scalars if n == name]


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    class Fresh(Writer):
        made: list[Writer] = []

    monkeypatch.setitem(sys.modules, TENSORBOARD, SimpleNamespace(SummaryWriter=Fresh))
    monkeypatch.setattr(Writer, "fail_at", -1)
    return Fresh.made


def stop_at(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(step: str) -> None:
        if step == point:
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "on_write_point", stop)


def test_every_round_once_and_the_same_numbers_as_without(
    tmp_path: Path, writers: list[Writer]
) -> None:
    assert jobs.run(tmp_path / "with", "--sinks", "tensorboard") == 0
    assert jobs.run(tmp_path / "without") == 0
    jobs.same(tmp_path / "with", tmp_path / "without")
    (writer,) = writers
    assert writer.folder == jobs.folder(tmp_path / "with") / "tensorboard"
    assert writer.purge is None and writer.closed
    assert "TRAINER.NAME: FedTV" in writer.texts[0]
    records = jobs.records(tmp_path / "with")
    told = {(n, step): value for n, value, step in writer.scalars}
    assert len(told) == len(writer.scalars)
    for record in records:
        at = record["round"]
        assert told["evaluation/personal", at] == record["personal"]
        assert told["traffic/bytes_up", at] == sum(record["bytes_up"].values())
        losses = [m["loss"] for m in record["train"].values()]
        if losses:
            assert told["training/loss", at] == sum(losses) / 2
    accuracies = {step: v for n, v, step in writer.histograms if n == "clients/accuracy"}
    assert accuracies == {r["round"]: [c["accuracy"] for c in r["clients"]] for r in records}


def test_a_resumed_run_goes_on_at_its_step(
    tmp_path: Path, writers: list[Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at("before-temp round_0002.safetensors", monkeypatch)  # round 2 is told, not saved
    assert jobs.run(tmp_path, "--sinks", "tensorboard") == 130
    monkeypatch.setattr(files, "on_write_point", None)
    assert jobs.run(tmp_path, "--sinks", "tensorboard") == 0
    first, second = writers
    assert first.closed and first.steps() == [0, 1, 2]
    assert second.purge == 2 and second.steps() == [2] and second.texts == []


def test_a_sink_that_comes_later_gets_the_rounds_before(
    tmp_path: Path, writers: list[Writer]
) -> None:
    done = [{"round": at, "personal": 50.0 + at} for at in (0, 1)]
    sinks = Sinks(["TensorBoard", "tensorboard"])
    sinks.open(tmp_path, "d", {"SEED": 1}, done, [])
    sinks({"round": 2, "personal": 52.0})
    (writer,) = writers
    assert writer.purge is None and writer.steps() == [0, 1, 2] and len(writer.texts) == 1
    assert "SINKS" in WHERE  # so that a run may go on with other sinks


def test_a_sink_that_fails_is_dropped_with_one_note(
    tmp_path: Path, writers: list[Writer], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Writer, "fail_at", 1)
    assert jobs.run(tmp_path, "--sinks", "tensorboard") == 0
    assert writers[0].steps() == [0]
    assert jobs.results(tmp_path)["last"]["round"] == 2
    said = "sink tensorboard failed and is switched off: no space left"
    assert capsys.readouterr().out.count(said) == 1
    assert said in (jobs.folder(tmp_path) / "log.txt").read_text()


def test_one_that_cannot_be_opened_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**options: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setitem(sys.modules, TENSORBOARD, SimpleNamespace(SummaryWriter=broken))
    notes: list[str] = []
    sinks = Sinks(["tensorboard"])
    sinks.open(tmp_path, "d", {}, [], [SimpleNamespace(notes=notes.extend)])
    sinks({"round": 0, "personal": 50.0})
    assert notes == ["sink tensorboard failed and is switched off: read-only"]


def test_wandb_is_offline_unless_asked_and_keeps_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []
    logged: list[tuple[int, float]] = []
    ended: list[bool] = []

    def init(**options: Any) -> Any:
        begun.append(options)
        return SimpleNamespace(
            log=lambda given, step: logged.append((step, given["evaluation/personal"])),
            finish=lambda: ended.append(True),
        )

    fake = SimpleNamespace(init=init, Settings=lambda **options: options)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for mode in ("offline", "online"):
        sinks = Sinks(["wandb"])
        sinks.open(tmp_path, "digest", {"SEED": 3}, [], [])
        sinks({"round": 4, "personal": 50.0})
        sinks.close()
        sinks.close()
        assert begun[-1]["mode"] == mode and begun[-1]["dir"] == str(tmp_path)
        monkeypatch.setenv("WANDB_MODE", "online")
    assert begun[0]["id"] == begun[1]["id"] and begun[0]["config"] == {"SEED": 3}
    assert logged == [(4, 50.0)] * 2 and len(ended) == 2


def test_numbers_of_a_record() -> None:
    record = {
        "round": 1, "personal": 80.0, "new": None, "target.DTD": 40.0, "val": 70.0,
        "seconds": 2.0, "participants": [0, 1], "dropped": {"2": "why"},
        "train": {"0": {"loss": 1.0}, "1": {"loss": 3.0, "own": math.nan}},
        "bytes_up": {"0": 5, "1": 6}, "counters": {"steps": 7},
        "clients": [{"client": 0, "accuracy": 80.0}, {"client": 1, "accuracy": None}],
    }
    assert numbers(record) == {
        "evaluation/personal": 80.0, "evaluation/target.DTD": 40.0, "validation/personal": 70.0,
        "training/loss": 2.0, "traffic/bytes_up": 11.0, "traffic/bytes_down": 0.0,
        "work/steps": 7.0, "work/seconds": 2.0, "work/participants": 2.0, "work/dropped": 1.0,
    }
    assert spreads(record) == {"clients/accuracy": [80.0], "clients/loss": [1.0, 3.0]}
    assert spreads({"round": 0}) == {}


def test_unknown_sinks_and_missing_packages_are_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--sinks", "tensorbord") == 2
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err
    for name, module in (("tensorboard", TENSORBOARD), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
        assert jobs.run(tmp_path, "--sinks", name) == 2
        said = capsys.readouterr().err
        assert f"needs the package '{name}'" in said and f"fedvlm[{name}]" in said
        assert said.splitlines()[-1].startswith("error: ") and "Traceback" not in said
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="unknown sink"):
        Sinks([3])


def test_the_real_tensorboard_reads_every_round_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="the optional package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stop_at("before-temp round_0002.safetensors", monkeypatch)
    assert jobs.run(tmp_path, "--sinks", "tensorboard") == 130
    monkeypatch.setattr(files, "on_write_point", None)
    assert jobs.run(tmp_path, "--sinks", "tensorboard") == 0
    every = {"scalars": 0, "histograms": 0}  # how many to keep: all
    found = EventAccumulator(str(jobs.folder(tmp_path) / "tensorboard"), every).Reload()
    events = found.Scalars("evaluation/personal")
    records = [json.loads(x) for x in
               (jobs.folder(tmp_path) / "metrics.jsonl").read_text().splitlines()]
    assert [e.step for e in events] == [0, 1, 2]
    assert [e.value for e in events] == pytest.approx([r["personal"] for r in records])
    assert [e.step for e in found.Histograms("clients/accuracy")] == [0, 1, 2]
    assert found.Tags()["tensors"] == ["config/text_summary"]
