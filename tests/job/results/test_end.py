"""Totals of a run, from its records; extra data is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedvlm.job import run as job_run
from fedvlm.job.results import end
from fedvlm.runs.metrics import sentence, totals
from tests import jobs

RECORDS = [
    {"round": 0, "seconds": 0.0, "participants": [], "bytes_up": {}, "bytes_down": {},
     "counters": {}},
    {"round": 1, "seconds": 1.5, "participants": [0, 1], "bytes_up": {"0": 8, "1": 8},
     "bytes_down": {"0": 12, "1": 12}, "bytes_up_by_tensor": {"a": 16},
     "bytes_down_by_tensor": {"a": 16, "b": 8},
     "counters": {"steps": 4, "samples": 40, "image_forwards": 7, "text_passes": 2}},
    {"round": 2, "seconds": 0.5, "participants": [1], "bytes_up": {"1": 8},
     "bytes_down": {"1": 12}, "bytes_up_by_tensor": {"a": 8},
     "bytes_down_by_tensor": {"a": 8, "b": 4}, "finetune": {"samples": 30, "epochs": 3, "steps": 3},
     "counters": {"steps": 2, "samples": 20, "text_passes": 1, "text_tokens": 9,
                  "image_blocks": 5}},
]


def test_totals_add_up_over_the_records() -> None:
    assert totals(RECORDS) == {
        "rounds": 2, "client_rounds": 3, "local_steps": 6, "samples": 60, "image_forwards": 7,
        "text_passes": 3, "text_tokens": 9, "image_blocks": 5, "seconds": 2.0, "bytes_up": 24,
        "bytes_down": 36, "bytes_up_by_tensor": {"a": 24},
        "bytes_down_by_tensor": {"a": 24, "b": 12}, "finetune_samples": 30, "finetune_steps": 3,
    }
    assert "2 rounds, 6 local steps, 60 samples" in sentence(totals(RECORDS))
    assert totals([])["local_steps"] == 0


FILE = '''"""Extra."""
from fedvlm.method import PeftTrainer

class Extra(PeftTrainer):
    name = "Extra"
    extra_data = "a proxy set of mine"
'''


def test_a_run_counts_its_work_and_names_extra_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "extra.py").write_text(FILE)
    assert jobs.run(tmp_path / "out", "--trainer", f"{tmp_path}/extra.py:Extra") == 0
    assert "extra data: a proxy set of mine" in capsys.readouterr().out
    record = json.loads((jobs.folder(tmp_path / "out") / "results.json").read_text())
    assert record["protocol"]["extra_data"] == "a proxy set of mine"
    info = record["run_info"]
    assert "extra data: a proxy set of mine" in info["notes"]
    found = info["totals"]
    assert info["peak_mib"].keys() == {"resident"} and 100 < info["peak_mib"]["resident"] < 50_000
    # 2 rounds x 2 clients, 10 base classes x 2 shots in all, one epoch: one batch each
    assert (found["rounds"], found["client_rounds"], found["local_steps"]) == (2, 4, 4)
    assert found["samples"] == 2 * 20
    assert found["text_tokens"] > 0 and found["image_forwards"] == 0  # cached features
    for way in ("up", "down"):
        assert sum(found[f"bytes_{way}_by_tensor"].values()) == found[f"bytes_{way}"] > 0
        assert info[f"bytes_{way}"] == found[f"bytes_{way}"]


@pytest.mark.usefixtures("few_images")
def test_images_through_the_tower_are_counted(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--trainer", "FedAvg", "--plain") == 0
    record = json.loads((jobs.folder(tmp_path) / "results.json").read_text())
    found = record["run_info"]["totals"]
    # A client's batch is padded to nobody on the plain path: one forward per sample.
    assert found["image_forwards"] == found["samples"] == 2 * 20
    assert record["protocol"]["extra_data"] == ""


def test_who_is_away_at_the_end_is_in_no_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in what the clients reach together nor in what they reach alone."""
    def away(built: Any, zero: Any, records: Any, *more: Any, **named: Any) -> Any:
        last = records[-1]
        (gone, here) = last["clients"]
        rows = [{"client": gone["client"], "n": 0, "correct": 0, "accuracy": None,
                 "macro_f1": None, "balanced": None, "absent": 1}, here]
        records = [*records[:-1], last | {"clients": rows, "personal": here["accuracy"]}]
        return end.results_of(built, zero, records, *more, **named)

    monkeypatch.setattr(job_run, "results_of", away)
    assert jobs.run(tmp_path) == 0
    record = json.loads((jobs.folder(tmp_path) / "results.json").read_text())
    found, answer = record["results"]["references"], record["results"]["answer"]
    assert all([row["client"] for row in one["clients"]] == [1] for one in found.values())
    assert answer["alone"]["personal"] == found[answer["alone"]["reference"]]["clients"][0][
        "accuracy"]
    assert answer["of"] == 1
    assert ("the baselines leave out 1 client (0), too: both sides are of the same clients"
            in record["run_info"]["notes"])
