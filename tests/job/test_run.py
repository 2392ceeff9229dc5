"""The main job through the command line, on the embedded default."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedvlm.cli.run import run as run_verb
from fedvlm.core.errors import ConfigError
from fedvlm.data.partition.index_file import read_index_file
from fedvlm.job import run as job_run
from fedvlm.runs.state import SavedState
from tests import jobs
from tests.conftest import SHARED


def losses(output: Path) -> list[float]:
    return [t["loss"] for r in jobs.records(output) for t in r["train"].values()]


def close(a: list[float], b: list[float], relative: float) -> None:
    assert len(a) == len(b) > 0
    assert max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True)) < relative


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("words", [
    ["--opts", "MODEL.PREC", "fp64"], pytest.param(["--views", "2"], marks=pytest.mark.slow),
])
def test_plain_path_gives_the_same_losses(tmp_path: Path, words: list[str]) -> None:
    """Pixels per batch, full-length text, client by client, against cache, packing, stacking."""
    seldom = ("--eval-every", "2", "TEST.REFERENCES", "False")
    for name, more in (("plain", ["--plain"]), ("fast", [])):
        assert jobs.run(tmp_path / name, *more, *words, *seldom) == 0
    bound = 1e-10 if "fp64" in words else 1e-5
    close(losses(tmp_path / "plain"), losses(tmp_path / "fast"), bound)


def test_views_change_training_but_not_the_test_images(quick_run: Path, tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--views", "2") == 0
    assert losses(tmp_path) != losses(quick_run)
    assert jobs.records(tmp_path)[0]["personal"] == jobs.records(quick_run)[0]["personal"]


def test_files_of_a_run(quick_run: Path) -> None:
    folder = jobs.folder(quick_run)
    relative = folder.relative_to(quick_run).as_posix()
    assert relative == "base2new/Shapes/shots_2/FedTV/tiny/disjoint-K2-f1/seed1-data1"
    assert {p.name for p in folder.iterdir()} >= {
        "config.yaml", "manifest.json", "log.txt", "metrics.jsonl", "partition.json",
        "results.json", "state", "released.json",
    }
    assert not (folder / "RUNNING").exists()
    log = (folder / "log.txt").read_text()
    accuracy = re.findall(r"\* accuracy: ([\d.]+)%", log.split("Finish training")[1])
    last = jobs.results(quick_run)["last"]
    assert accuracy == [f"{last['personal']:.1f}"]
    assert read_index_file(str(folder / "partition.json"))["dataset"] == "Shapes"


def test_personal_tensors_are_in_no_metric(quick_run: Path) -> None:
    text = (jobs.folder(quick_run) / "metrics.jsonl").read_text()
    sent = {n for r in jobs.records(quick_run) for n in r["bytes_up_by_tensor"]}
    assert sent == {
        "text.sigma", "image.shared_adapter.fc1.weight", "image.shared_adapter.fc2.weight"
    }
    assert not re.search(r"text\.[USV]\b|personal_adapter|image\.fusion", text)


def test_evaluation_does_not_change_training(quick_run: Path, tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--eval-every", "2") == 0
    a, b = jobs.state(quick_run), jobs.state(tmp_path)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert "personal" not in jobs.records(tmp_path)[1]


def test_seeds_vary_model_and_data_and_end_in_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--seeds", "1", "2") == 0
    out = capsys.readouterr().out
    assert "over 2 seeds" in out
    folders = {p.parent.name for p in tmp_path.rglob("results.json")}
    assert folders == {"seed1-data1", "seed2-data2"}
    parts = [json.loads(p.read_text())["clients"] for p in tmp_path.rglob("partition.json")]
    assert parts[0] != parts[1]


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs.run(tmp_path / "none", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "139,264 up and 139,264 down per client in round 1" in out
    assert not (tmp_path / "none").exists()


def test_logits_are_kept_on_request(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--keep-logits") == 0
    logits = load_file(jobs.folder(tmp_path) / "logits.safetensors")
    last = jobs.results(tmp_path)["last"]
    right = logits["global"].argmax(1) == logits["true|global"]
    assert 100 * float(right.double().mean()) == pytest.approx(last["global"])


def test_selection_by_validation_is_an_option(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--opts", "TEST.SELECT", "val") == 0
    records, chosen = jobs.records(tmp_path), jobs.results(tmp_path)["selected"]
    best = max(records, key=lambda r: (r["val"], -r["round"]))
    assert (chosen["round"], chosen["val"]) == (best["round"], best["val"])


def test_partial_participation_evaluates_the_workers_between_the_ends(tmp_path: Path) -> None:
    more = ("--num-users", "5", "--frac", "0.4", "--rounds", "3")
    assert jobs.run(tmp_path, *more) == 0
    records = jobs.records(tmp_path)
    assert [len(r["participants"]) for r in records] == [0, 5, 2, 2]
    assert [len(r["clients"]) for r in records] == [5, 5, 2, 5]
    assert [r.get("personal_clients") for r in records] == [None, None, 2, None]


BAD = [
    (["--root", "/no/such/root", "--dataset", "eurosat", "--backbone", "tiny"], 3, "/no/such/root"),
    (["--demo", "--num-users", "0"], 2, "--num-users"),
    (["--demo", "--opts", "FED.ROUNDZ", "3"], 2, "FED.ROUNDS"),
    (["--demo", "--trainer", "FedTB"], 2, "FedTV"),
    (["--demo", "--partition", "disjoint", "--num-users", "11"], 2, "10 classes"),
    (["--dataset-config-file", "evil.py", "--root", "."], 2, "evil.py"),
    (["--demo", "--device", "cuda:7"], 2, "cuda:7"),
    (["--demo", "--backbone", "ViT-B-61"], 2, "ViT-B-16"),
]


@pytest.mark.parametrize(("words", "code", "says"), BAD)
def test_bad_input_is_one_sentence(
    words: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedvlm.cli.main import main

    assert main([*words, "--output-dir", str(tmp_path)]) == code
    told = capsys.readouterr().err.strip()
    assert says in told
    assert told.startswith("error: ")
    assert "Traceback" not in told
    assert len([line for line in told.splitlines() if line.startswith("error")]) == 1


def test_divergence_names_client_round_and_exits_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--lr", "1e6", "--rounds", "30") == 4
    told = capsys.readouterr().err
    assert re.search(r"round \d+, client \d+", told)


@pytest.mark.parametrize(
    ("dataset", "more"),
    [
        ("eurosat", ["--shots", "2"]),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (
            ("caltech101", ["--subsample-classes", "base", "--num-users", "5", "--shots", "1"]),
            ("cifar10", ["--num-users", "20", "--frac", "0.25", "--shots", "8"]),
        )),
    ],
)
def test_real_images(dataset: str, more: list[str], tmp_path: Path) -> None:
    if not (SHARED / "data").is_dir():
        pytest.skip("no real images at ../shared/data")
    from fedvlm.cli.main import main

    words = ["--root", str(SHARED / "data"), "--dataset", dataset, "--backbone", "tiny",
             "--rounds", "1", "--output-dir", str(tmp_path), *more]
    assert main(words) == 0
    last = jobs.results(tmp_path)["last"]
    assert 0 <= last["personal"] <= 100
    assert ("new" in last) == ("base" in more)


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_left_as_it_was(
    before: bool, counted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is built is hidden from it for a run's time, unless the caller did so with its own."""
    seen: list[int] = []
    monkeypatch.setattr(job_run, "_train", lambda *_: seen.append(gc.get_freeze_count()))
    closing: Any = SimpleNamespace(finish=lambda: None, close=lambda: None)
    gc.freeze() if before else gc.unfreeze()
    try:
        count = gc.get_freeze_count()
        job_run._trained(closing, {}, closing, closing, closing, 0.0, None, False)
        assert seen[0] > 0 and gc.get_freeze_count() == count and (count > 0) == before
    finally:
        gc.freeze()


def test_modules_are_loaded_without_the_collector_and_hidden_from_it(counted: None) -> None:
    gc.unfreeze()
    try:
        with run_verb._uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > 0
        with run_verb._uncollected():  # again in this process: nothing is left to spare
            assert gc.isenabled()
        gc.unfreeze()
        with pytest.raises(KeyError), run_verb._uncollected():
            raise KeyError
        assert gc.isenabled() and gc.get_freeze_count() == 0
    finally:
        gc.freeze()


def test_restored_state_keeps_its_types(tmp_path: Path, monkeypatch: Any) -> None:
    class Folder:
        metrics_path = tmp_path / "metrics.jsonl"
        notes: list[str] = []

        def restore(self) -> Any:
            w = {"w": {"a": torch.ones(1, dtype=torch.float64), "n": torch.ones(1).long()}}
            return SavedState(0, w, {0: w})  # of format 1

    class Federation:
        class engine:  # noqa: N801
            @staticmethod
            def recall(memory: Any) -> None:
                assert memory == {}

        @staticmethod
        def adopt(whole: Any) -> Any:
            return whole

    Folder.metrics_path.write_text('{"round": 0}\n')
    model = type("Model", (), {"dtype": torch.float32, "device": torch.device("cpu")})
    built = type("Built", (), {"model": model, "federation": Federation})
    found: Any = job_run.restore(built, Folder())  # type: ignore[arg-type]
    assert found is not None and found.clients[0]["w"]["a"].dtype is torch.float64
    assert found.server["w"]["n"].dtype is torch.int64


def test_a_state_without_its_metrics_is_no_beginning(tmp_path: Path) -> None:
    whole, broken = tmp_path / "a", tmp_path / "b"
    assert jobs.run(whole) == 0 and jobs.run(broken) == 0
    (jobs.folder(broken) / "results.json").unlink()
    (jobs.folder(broken) / "metrics.jsonl").unlink()
    assert jobs.run(broken) == 0
    jobs.same(whole, broken)
    assert [r["round"] for r in jobs.records(broken)] == [0, 1, 2]


def test_identity_knows_the_trainers_file(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "mine.py"
    code = (
        "from fedvlm.federation.discovery import load_trainer\n"
        "class Mine(load_trainer('FedTV')):\n    name = 'FedTV'\n"
    )
    file.write_text(code)
    spec = ("--trainer", f"{file}:Mine", "--rounds", "1")
    assert jobs.run(tmp_path / "out", *spec) == 0
    manifest = json.loads((jobs.folder(tmp_path / "out") / "manifest.json").read_text())
    assert len(manifest["identity"]["images"]) == 64
    file.write_text(code + "    batched = False\n")
    assert jobs.run(tmp_path / "out", *spec) == ConfigError.exit_code
    assert "your file mine.py" in capsys.readouterr().err
