"""Whole folders: what is damaged is named with its file, what is of before is called so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.core.errors import DataError
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import RunPath, read_results
from fedvlm.runs.metrics import append_metrics, read_metrics
from fedvlm.runs.verify.check import (
    BEFORE,
    check_readable,
    inspect,
    one_digest_one_seed,
    refuse_damage,
)
from tests.attacks.forge import edit

PARTS = RunPath("personal", "Pets", 16, "FedAvg", "tiny", "iid-K2-f1", 1, 1)
IDENTITY = {"config": {"SEED": 1, "FED.ROUNDS": 2}, "data": "d"}
ROWS = [{"client": 0, "n": 4, "correct": 2, "accuracy": 50.0},
        {"client": 1, "n": 4, "correct": 3, "accuracy": 75.0}]


def record(round_: int) -> dict[str, Any]:
    return {"round": round_, "personal": 62.5, "clients": ROWS, "seconds": 0.5}


def begin(root: Path, rounds: int = 2) -> RunFolder:
    run = RunFolder.create(root, PARTS, IDENTITY)
    run.write_config({"SEED": 1}, {})
    run.write_json("partition.json", {"clients": []})
    run.write_text("partition.csv", "client,images\n")
    run.save_start({"w": torch.zeros(3)})
    for round_ in range(rounds + 1):
        run.append_metrics(record(round_))
        run.save_state(round_, {"w": {"x": torch.full((3,), float(round_))}})
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with begin(tmp_path) as run:
        protocol = {"trainer": "FedAvg", "seed": 1, "rounds": 2}
        results = {"untrained": {"personal": 62.5}, "last": record(2),
                   "table": [{"": "FedAvg, round 2", "personal": 62.5}]}
        run.write_results({"totals": {"rounds": 2}}, protocol, results)
    return run.path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_run_that_ended_well_is_sealed(folder: Path) -> None:
    verdict = inspect(folder)
    assert (verdict.word, verdict.seal, verdict.remarks) == ("ok", "sealed", ())
    results = read_results(folder / "results.json")
    assert results is not None and refuse_damage(folder, results).word == "ok"


@pytest.mark.parametrize(("name", "spoil", "words"), [
    ("results.json", lambda p: change(p, "62.5", "924.5"), "its checksum does not match"),
    ("results.json", lambda p: change(p, '"seal"', '"sael"'), "its checksum does not match"),
    ("results.json", lambda p: p.write_text("{"), "it is not a results file"),
    ("metrics.jsonl", lambda p: change(p, "62.5", "77.7"), "line 1 is damaged"),
    ("metrics.jsonl", lambda p: p.write_bytes(p.read_bytes()[:-1]), r"the last line \(3\) is "
                                                                    r"truncated"),
    ("metrics.jsonl", lambda p: p.write_text(""), "lines are missing"),
    ("metrics.jsonl", lambda p: p.unlink(), "is missing"),
    ("config.yaml", lambda p: change(p, "1", "2"), "its hash differs from the one in results.json"),
    ("partition.json", lambda p: p.unlink(), "is missing"),
    ("partition.csv", lambda p: change(p, "images", "image5"), "its hash"),
    ("manifest.json", lambda p: change(p, "started", "strated"), "its checksum does not match"),
    ("manifest.json", lambda p: p.unlink(), "is missing"),
    ("state/round_0002.safetensors", lambda p: p.write_bytes(p.read_bytes()[:-1]), "bytes"),
    ("state/round_0002.json", lambda p: p.unlink(), "is missing"),
    ("state/round_0001.json", lambda p: change(p, "round", "ruond"), "round_0001.json"),
    ("models/start.safetensors", lambda p: p.write_bytes(p.read_bytes()[:-1] + b"x"), "its hash"),
])  # fmt: skip
def test_what_is_damaged_is_named(
    folder: Path, name: str, spoil: Callable[[Path], Any], words: str
) -> None:
    spoil(folder / name)
    verdict = inspect(folder)
    assert verdict.word == "damaged" and name in verdict.sentence()
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(verdict.sentence())


@pytest.mark.parametrize(("name", "spoil", "words"), [
    ("results.json", lambda r: r["results"]["last"].update(personal=70.0), "rows give 62.5"),
    ("results.json", lambda r: r["results"]["table"][0].update(personal=70.0),
     "table has personal"),
    ("results.json", lambda r: r["results"]["untrained"].update(personal=70.0),
     "untrained.personal differs from metrics.jsonl"),
    ("results.json", lambda r: r["run_info"]["totals"].update(rounds=3), "totals.rounds is 3"),
    ("results.json", lambda r: r["results"].update(spent={"samples": 9}),
     "spent.samples is 9, metrics.jsonl gives 0"),
    ("results.json", lambda r: r["protocol"].update(seed=2), "the manifest says 1"),
    ("results.json", lambda r: r.update(identity_digest="f" * 64), "to another run"),
    ("manifest.json", lambda r: r["identity"].update(data="e"), "its identity has another digest"),
])  # fmt: skip
def test_numbers_that_disagree_are_named_though_their_seals_fit(
    folder: Path, name: str, spoil: Callable[[dict[str, Any]], Any], words: str
) -> None:
    edit(folder / name, spoil)
    assert words in inspect(folder).sentence()


def test_readers_refuse_with_the_file(folder: Path) -> None:
    change(folder / "metrics.jsonl", "62.5", "77.7")
    results = read_results(folder / "results.json")
    assert results is not None
    with pytest.raises(DataError, match=r"metrics\.jsonl: line 1 is damaged.*fedvlm verify"):
        refuse_damage(folder, results)


def test_folders_may_be_thinned_out_but_not_in_part(folder: Path) -> None:
    shutil.rmtree(folder / "state")
    shutil.rmtree(folder / "models")
    verdict = inspect(folder)
    assert verdict.word == "ok" and verdict.remarks == ("without models, state",)


def test_a_run_of_before_is_unsealed_and_its_numbers_are_checked(folder: Path) -> None:
    for name in ("results.json", "manifest.json"):
        data = json.loads((folder / name).read_text())
        data.pop("covers", None)
        del data["seal"]
        (folder / name).write_text(json.dumps(data))
    path = folder / "metrics.jsonl"
    records = read_metrics(path)[0]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    verdict = inspect(folder)
    assert (verdict.word, verdict.remarks) == ("unsealed", (BEFORE,))
    change(folder / "results.json", '"personal": 62.5', '"personal": 162.5')
    results = json.loads((folder / "results.json").read_text())
    assert "162.5: not a percentage" in check_readable(folder, results).sentence()


def test_a_sealed_run_whose_seal_was_taken_off_is_damaged(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    del results["seal"], results["covers"]
    (folder / "results.json").write_text(json.dumps(results))
    for verdict in (inspect(folder), check_readable(folder, results)):
        assert "results.json is damaged (its checksum is missing" in verdict.sentence()


@pytest.mark.parametrize("spoil", [
    lambda r: r["results"]["last"]["clients"][0].update(client=[1]),
    lambda r: r["results"]["last"]["clients"][0].update(correct=10**400),
    lambda r: r["results"]["last"].update(clients={"0": [[]]}),
    lambda r: r["results"].update({"target.x": {}, "targets": [10**400]}),
    lambda r: r["run_info"].update(totals={"rounds": [10**400]}),
    lambda r: r["covers"].update(rounds="x", metrics=3),
    lambda r: r["covers"].update(files=[1]),
])  # fmt: skip
def test_whatever_a_file_holds_there_is_a_verdict(
    folder: Path, spoil: Callable[[dict[str, Any]], Any]
) -> None:
    """One hostile file does not end the table over all runs."""
    edit(folder / "results.json", spoil)
    assert inspect(folder).word == "damaged"
    check_readable(folder, json.loads((folder / "results.json").read_text()))


def test_a_run_that_began_before_stays_unsealed(tmp_path: Path) -> None:
    with begin(tmp_path) as run:
        lines = [json.dumps(r) + "\n" for r in read_metrics(run.metrics_path)[0]]
        run.metrics_path.write_text("".join(lines))
        append_metrics(run.metrics_path, record(3))
        run.write_results({}, {"seed": 1}, {"last": record(3)})
    verdict = inspect(run.path)
    assert verdict.word == "unsealed" and "first 3 lines of metrics.jsonl" in verdict.remarks[0]


def test_an_unfinished_run_is_looked_at_too(tmp_path: Path) -> None:
    begin(tmp_path).close()
    (path,) = [p.parent for p in tmp_path.rglob("manifest.json")]
    assert inspect(path).word == "unfinished"
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "per')  # as a kill leaves it
    verdict = inspect(path)
    assert verdict.word == "unfinished" and "the last line (4) is truncated" in verdict.remarks
    change(path / "metrics.jsonl", "62.5", "77.7")
    assert "metrics.jsonl: line 1 is damaged" in inspect(path).sentence()


def test_a_state_that_vouches_for_other_metrics_does_not_count(tmp_path: Path) -> None:
    begin(tmp_path).close()
    with RunFolder.create(tmp_path, PARTS, IDENTITY) as run:
        lines = run.metrics_path.read_text().splitlines(keepends=True)
        run.metrics_path.write_text("".join(lines[:2]) + lines[2].replace("62.5", "77.7"))
        state = run.restore()
        assert state is not None and state.round == 1  # the state before is vouched for
        assert "line 3 is damaged" in " ".join(run.notes)
        assert [r["round"] for r in read_metrics(run.metrics_path)[0]] == [0, 1]
        run.metrics_path.write_text(lines[0].replace("62.5", "77.7") + lines[1])
        assert run.restore() is None and "restarts from round 1" in run.notes[-2]


def test_the_start_is_made_again_or_refused(tmp_path: Path) -> None:
    begin(tmp_path).close()
    with RunFolder.create(tmp_path, PARTS, IDENTITY) as run:
        path = run.path / "models" / "start.safetensors"
        good = path.read_bytes()
        path.write_bytes(good[:-1] + b"x")
        run.save_start({"w": torch.zeros(3)})
        assert path.read_bytes() == good and "written again" in run.notes[-1]
        run.save_start({"w": torch.ones(3)})  # another machine's: what is there is whole
        assert path.read_bytes() == good
        path.write_bytes(good[:-1] + b"x")
        with pytest.raises(DataError, match=r"start\.safetensors' is damaged"):
            run.save_start({"w": torch.ones(3)})


def test_one_digest_is_one_seed() -> None:
    a, b, c = Path("a"), Path("b"), Path("c")
    runs = [(a, "x", {"seed": 1, "data_seed": 1}), (b, "x", {"seed": 2, "data_seed": 1}),
            (c, "y", {"seed": 1, "data_seed": 1})]
    out = one_digest_one_seed(runs)
    assert set(out) == {a, b} and "seed 2 (b)" in out[a]
    assert one_digest_one_seed([runs[0], (b, *runs[0][1:])]) == {}  # a copy
