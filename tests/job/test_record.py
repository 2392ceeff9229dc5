"""What a run records of its evaluation: selection on validation, and the final fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedvlm.job.build import build
from fedvlm.job.flags import parse
from fedvlm.job.record import validation_evaluator
from fedvlm.job.resolve import resolve
from tests import jobs


def test_selection_does_not_depend_on_test_evaluations(tmp_path: Path) -> None:
    more = ("--opts", "TEST.SELECT", "val")
    assert jobs.run(tmp_path, "--eval-every", "9", "--rounds", "3", *more) == 0
    assert all("personal" in r and r["val"] is not None for r in jobs.records(tmp_path))


@pytest.mark.parametrize("trainer", ["FedAvg", "FedTV"])
def test_on_the_command_line(tmp_path: Path, trainer: str) -> None:
    """The flag leaves training alone; both numbers are in the results, with what it cost."""
    words = ("--trainer", trainer, "--lr", "0.1")
    assert jobs.run(tmp_path / "without", *words) == 0
    assert jobs.run(tmp_path / "with", *words, "--finetune-epochs", "8") == 0
    a, b = jobs.state(tmp_path / "without"), jobs.state(tmp_path / "with")
    assert all(torch.equal(a[name], b[name]) for name in a)
    plain, tuned = (jobs.results(tmp_path / name)["last"] for name in ("without", "with"))
    assert tuned["personal_before_ft"] == plain["personal"]
    assert [c["accuracy_before_ft"] for c in tuned["clients"]] == [
        c["accuracy"] for c in plain["clients"]
    ]
    assert [c["correct"] for c in tuned["clients"]] != [c["correct"] for c in plain["clients"]]
    assert tuned["finetune"]["epochs"] == 8 and tuned["finetune"]["samples"] > 0
    assert "personal_before_ft" not in plain and "finetune" not in plain
    assert jobs.run(tmp_path / "again", *words, "--finetune-epochs", "8") == 0
    again, first = (json.dumps(jobs.records(tmp_path / name)) for name in ("again", "with"))
    assert again == first


KILLED = """
import os
from fedvlm.job import record
call = record.Recorder.__call__
def stop(self, event):
    if getattr(event, "finetuning", {}):
        os._exit(9)
    return call(self, event)
record.Recorder.__call__ = stop
"""


@pytest.mark.parametrize(
    "words",
    [("FedRep", "--local-epochs", "2"), ("LG-FedAvg", "--finetune-epochs", "2", "--opts",
                                         "TRAINER.LG-FEDAVG.WARMUP_ROUNDS", "1")],
    ids=lambda words: words[0],
)
def test_killed_before_the_fine_tuning_and_resumed(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The same bits as an uninterrupted run, in states and in both numbers."""
    line = ("--trainer", *words)
    assert jobs.run(tmp_path / "whole", *line) == 0
    assert jobs.spawn(tmp_path / "cut", *line, before=KILLED).returncode == 9
    assert [r["round"] for r in jobs.records(tmp_path / "cut")] == [0, 1]
    assert jobs.run(tmp_path / "cut", *line) == 0
    jobs.same(tmp_path / "whole", tmp_path / "cut")
    assert jobs.results(tmp_path / "cut")["last"]["personal_before_ft"] is not None


def test_the_round_is_selected_by_validation_images(tmp_path: Path) -> None:
    built = build(resolve(parse(jobs.argv(tmp_path))).jobs[0].cfg)
    judge = validation_evaluator(built)
    val = {int(i) for c in built.data.clients for i in c.val}
    assert val and set(judge.data.global_test.tolist()) == val
    assert [c.test.tolist() for c in judge.data.clients] == [
        c.val.tolist() for c in built.data.clients
    ]
