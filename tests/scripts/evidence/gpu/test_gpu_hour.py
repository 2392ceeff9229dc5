"""``gpu-hour``: its parts run on the pretend device, and what is wrong shows on the page."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evidence.commands import main
from evidence.gpu import gpu_hour, measure, whole
from evidence.gpu.table import page_of
from fedvlm.console.parser import Parser
from fedvlm.federation.cards import trainer_files
from tests.device.card import pretend_card

FEW = ("--num-users", "2", "--shots", "1", "--batch-size", "5", "--eval-every", "0")
GOOD = {"same_bits": True, "loss": 1e-6, "seconds": 1.0, "cpu_seconds": 2.0}


@pytest.fixture
def least(few_images: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step or two a round: the pretend device is slow."""
    monkeypatch.setattr("fedvlm.data.builtin.sets._PER_CLASS", (2, 1, 2))
    monkeypatch.setattr(measure, "SMALL", FEW)


def test_the_card_and_two_methods(
    least: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("card", "methods"):
        assert main(["gpu-hour", str(tmp_path), "--pretend", "--only", part,
                     "--methods", "FedAvg", "LocalOnly"]) == 0
    rows = json.loads((tmp_path / "methods.json").read_text())["rows"]
    assert list(rows) == ["FedAvg", "LocalOnly"]
    for row in rows.values():
        assert row["same_bits"] and 0 <= row["loss"] < measure.LOSS and row["seconds"] > 0
    assert set(json.loads((tmp_path / "card.json").read_text())["rates"]) == {
        "fp32", "tf32", "bf16"}
    page = capsys.readouterr().out
    assert "2 with equal bits" in page and "mean nothing" in page


def test_a_round_is_counted_and_timed(least: None) -> None:
    size = replace(measure.PRETEND, clients=2, plain=1, shots=1, batch=5)
    with pretend_card():
        row = measure.measure_speed("cuda", "FedAvg", "fp32", size)
    assert row["fast"]["clients"] == 2 and row["plain"]["clients"] == 1
    assert row["fast"]["chunk"] == 256 and row["plain"]["chunk"] == 1
    assert row["any"]["clients"] == 2 and row["any"]["flops"] == row["fast"]["flops"]
    assert row["fast"]["in_order"] and not row["any"]["in_order"]
    assert row["order"] == row["fast"]["seconds"] / row["any"]["seconds"]
    assert 0 < row["fast"]["flops"] < 2 * row["plain"]["flops"]  # packed texts, cached images
    assert row["fast"]["steps"] == 2 * row["plain"]["steps"] > 0
    page, good = page_of({"card": {}, "FedAvg-fp32": row})
    assert good and "| FedAvg | fp32 | 2 | 256 |" in page and f"| x {row['order']:.2f} |" in page


def test_where_time_is_short_the_rest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*how: Any) -> dict[str, Any]:
        return {"clients": 4, "seconds": 2.0, "per_client": 0.5, "flops": 8e12, "chunk": 4,
                "memory": 2**30, "words": how[7:]}

    monkeypatch.setattr(measure, "_speed_of", slow)
    kept: list[dict[str, Any]] = []
    for limit in (5.0, 60.0):
        row = measure.measure_speed(
            "cuda", "FedTV", "bf16", measure.PRETEND, limit, lambda now: kept.append(dict(now)))
        assert ("any" in row) == (limit == 60) and row["ratio"] == 1
    assert [sorted({"fast", "plain", "any"} & now.keys()) for now in kept[:2]] == [
        ["fast"], ["fast", "plain"]]
    for record, cells in ((kept[0], ["2", "-", "-"]), (kept[1], ["2", "-", "-"]), (row, ["2"] * 2)):
        page, _ = page_of({"FedTV-bf16": record})
        shown = next(line for line in page.splitlines() if line.startswith("| FedTV"))
        assert [cell.strip() for cell in shown.split("|")][5:5 + len(cells)] == cells
        assert shown.rstrip().endswith("| - | - |") == ("plain" not in record)


@pytest.mark.parametrize(("killed", "why"), [
    (True, "not done after 5 minutes"), (False, "error: a bug"),
])
def test_what_a_part_had_measured_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool, why: str
) -> None:
    def run(words: list[str], **_: object) -> Any:
        path = tmp_path / f"{words[words.index('--only') + 1]}.json"
        assert not path.exists()  # what an earlier try left is not taken for this one's
        path.write_text(json.dumps({"rows": {"FedTV": GOOD}, "unreached": ["hermes"],
                                    "failed": gpu_hour.UNDONE}))
        if killed:
            raise gpu_hour.subprocess.TimeoutExpired(words, 1)
        return type("Done", (), {"returncode": 1, "stderr": "error: a bug\n"})()

    monkeypatch.setattr(gpu_hour.subprocess, "run", run)
    for _ in range(2):
        assert main(["gpu-hour", str(tmp_path), "--pretend", "--only", "methods", "card"]) == 1
        for part in ("methods", "card"):
            record = json.loads((tmp_path / f"{part}.json").read_text())
            assert record["failed"] == why and record["rows"] == {"FedTV": GOOD}


def test_whatever_a_method_fails_with_is_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, device: str) -> measure.Trial:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    monkeypatch.setattr(measure, "_run", refuse)
    kept: list[dict[str, Any]] = []
    record = measure.try_methods(
        "cuda", ["FedAvg", "FedTV"], measure.PRETEND, 60, lambda _: None, lambda now: kept.append(
            {"rows": list(now["rows"]), "unreached": list(now["unreached"])}))
    assert kept == [{"rows": ["FedAvg"], "unreached": ["FedTV"]},
                    {"rows": ["FedAvg", "FedTV"], "unreached": []}]
    assert "TypeError: can't convert" in record["rows"]["FedTV"]["failed"]


def test_bits_that_differ_are_found(least: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = measure._run, []

    def second_differs(name: str, device: str) -> measure.Trial:
        calls.append(device)
        trial = run(name, "cpu")
        key = next(iter(trial.fingerprint))
        moved = trial.fingerprint | {key: trial.fingerprint[key] + (len(calls) == 2) * 1e-6}
        return replace(trial, fingerprint=moved)

    monkeypatch.setattr(measure, "_run", second_differs)
    record = measure.try_methods("cuda", ["FedAvg"], measure.PRETEND, 60, lambda _: None)
    assert calls == ["cuda", "cuda", "cpu"] and not record["rows"]["FedAvg"]["same_bits"]
    page, good = page_of({"methods": record})
    assert not good and "Bits differ: FedAvg." in page


@pytest.mark.parametrize(("record", "word"), [
    ({"part": "methods", "failed": "not done after 10 minutes"}, "not done after 10 minutes"),
    ({"part": "methods", "rows": {"FedTV": {"failed": "RuntimeError: x"}}, "unreached": []},
     "FedTV failed: RuntimeError: x"),
])
def test_failures_are_on_the_page(record: dict[str, Any], word: str) -> None:
    page, good = page_of({"methods": record})
    assert not good and word in page


def test_what_is_far_or_unreached_is_named() -> None:
    rows = {"FedAvg": GOOD, "Ditto": GOOD | {"loss": 3e-3}}
    page, good = page_of({"methods": {"rows": rows, "unreached": ["hermes"]}})
    assert good and "1 above 0.0001: Ditto 3.0e-03" in page and "Not reached" in page


def test_parts_that_are_there_are_kept_and_failures_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def run(words: list[str], **_: object) -> Any:
        ran.append(words[words.index("--only") + 1])
        return type("Done", (), {"returncode": 4, "stderr": "no\nerror: no memory\n"})()

    monkeypatch.setattr(gpu_hour.subprocess, "run", run)
    (tmp_path / "card.json").write_text(json.dumps({"part": "card"}))
    (tmp_path / "methods.json").write_text(json.dumps({"part": "methods", "failed": "x"}))
    assert main(["gpu-hour", str(tmp_path), "--pretend", "--only", "card", "methods"]) == 1
    assert ran == ["methods"]
    assert "error: no memory" in capsys.readouterr().out


def test_methods_go_on_with_those_that_were_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stop, twice, and where time was short."""
    path, asked, stop = tmp_path / "methods.json", list[list[str]](), True

    def run(words: list[str], **_: object) -> Any:
        asked.append(words[words.index("--methods") + 1:])
        if stop:
            raise KeyboardInterrupt
        path.write_text(json.dumps({"part": "methods", "rows": {asked[-1][0]: GOOD},
                                    "unreached": asked[-1][1:]}))
        return type("Done", (), {"returncode": 0, "stderr": ""})()

    monkeypatch.setattr(gpu_hour.subprocess, "run", run)
    path.write_text(json.dumps({"part": "methods", "rows": {"FedTV": GOOD}, "failed":
                                gpu_hour.UNDONE, "unreached": ["hermes", "ditto"]}))
    words = ["gpu-hour", str(tmp_path), "--pretend"]
    monkeypatch.setattr(gpu_hour, "PARTS", ("methods",))
    assert [main(words), main(words)] == [130, 130]
    stop = False
    assert [main(words), main(words), main(words)] == [0, 0, 0]
    assert asked == [["hermes", "ditto"]] * 3 + [["ditto"]]
    record = json.loads(path.read_text())
    assert list(record["rows"]) == ["FedTV", "hermes", "ditto"]
    assert not record["unreached"] and "failed" not in record


@pytest.mark.slow
def test_a_whole_job(tmp_path: Path) -> None:
    with pretend_card():
        row = whole.try_job("job-tiny", "cuda", whole.TINY, tmp_path)
    assert row["same_bits"] and "failed" not in row
    assert list(row["steps"]) == [
        "run", "stop", "resume", "replay", "stop before the move", "to the processor",
        "back to the card", "evaluate", "predict", "export"]
    page, good = page_of({"job-tiny": row})
    assert good and "Whole job (job-tiny)" in page


def test_a_job_that_fails_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(words: list[str]) -> int:
        print("error: no such card", file=sys.stderr)
        return 2

    monkeypatch.setattr(whole, "main", refuse)
    row = whole.try_job("job-vit", "cuda", whole.TINY, tmp_path)
    assert row["failed"] == "FedvlmError: run: exit code 2, not 0: error: no such card"
    page, good = page_of({"job-vit": row})
    assert not good and "- job-vit: FedvlmError: run" in page


def test_other_bits_after_a_stop_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_used", lambda job: None)
    for same in (True, False):
        monkeypatch.setattr(whole, "_trained", lambda job, same=same: same)
        row = whole.try_job("job-tiny", "cuda", whole.TINY, tmp_path)
        assert page_of({"job-tiny": row})[1] == same


def test_a_part_that_is_stopped_is_lost_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_hour, "_measure", stop)
    assert main(["gpu-hour", str(tmp_path), "--pretend", "--only", "card"]) == 130
    said = capsys.readouterr().err
    assert "the part under way is lost" in said and "nothing was lost" not in said


def test_help_counts_methods_and_minutes() -> None:
    parser = Parser()
    gpu_hour.flags(parser)
    assert f"(all {len(trainer_files())})" in " ".join(parser.format_help().split())
    assert f"at most {len(gpu_hour.PARTS) * gpu_hour.LIMIT // 60} minutes" in gpu_hour.EXAMPLES[0]


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--only", "cart"], "did you mean 'card'"), (["--beside", "FLiP"], "NAME=COMMAND"),
        *([([], "no CUDA device")] if not torch.cuda.is_available() else []),
    ):
        assert main(["gpu-hour", str(tmp_path), *words]) == 2
        assert said in capsys.readouterr().err
