"""On CUDA a run computes in a fixed order, says on what, and says what to do without memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedvlm.api.replay import replay
from fedvlm.cli.main import main
from fedvlm.cli.verbs import verbs
from fedvlm.console.guard import exit_code_of
from fedvlm.core.errors import (
    NO_MEMORY,
    NO_MEMORY_ELSEWHERE,
    MethodError,
    out_of_memory,
)
from fedvlm.data.packs.lists import read_pack_lists
from fedvlm.data.packs.pack import open_pack
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.build import build_run, chunk_of
from fedvlm.job.engines import workers
from fedvlm.job.engines.workers import Workers
from fedvlm.job.flags import parse
from fedvlm.job.images.packed import foreign_origins
from fedvlm.job.resolve import resolve
from fedvlm.job.workers import processes
from fedvlm.models.backbone import Backbone
from fedvlm.models.device import compute_in_order
from fedvlm.models.features.encode import batch_size
from fedvlm.models.features.inventory import list_stores
from fedvlm.models.features.store import default_dir
from fedvlm.models.load.backbones import load_backbone
from tests import jobs
from tests.device.card import GIB, pretend_card
from tests.device.methods import ALONE, SMALL
from tests.device.tensor import host_of

pytestmark = pytest.mark.usefixtures("few")


def test_a_run_says_on_what_and_leaves_a_cpu_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*SMALL, *ALONE, "--rounds", "1", "--device", "cuda:1")
    with pretend_card(cards=2):
        assert jobs.run(tmp_path, "--trainer", "LocalOnly", *words) == 0
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    assert "tiny on cuda:1 (pretend 1), fp32" in capsys.readouterr().out
    results = json.loads((jobs.folder(tmp_path) / "results.json").read_text())
    assert results["run_info"]["device"] == {"type": "cuda", "name": "pretend 1"}
    told = json.loads((jobs.folder(tmp_path) / "manifest.json").read_text())["identity"]
    assert told["device"] == "cuda" and told["cuda"]["name"] == "pretend 1"
    assert told["cuda"]["algorithms"] is True and told["cuda"]["cudnn_tf32"] is False
    assert told["chunk"] > 16


@pytest.mark.parametrize("memory", [80 * GIB, GIB // 256])
def test_chunks_are_the_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: int
) -> None:
    with pretend_card(memory=memory):
        assert jobs.run(tmp_path, *SMALL, "--dry-run") == 0
    said = capsys.readouterr().out
    assert ("256 clients" in said) == (memory > GIB), said


def test_no_memory_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(load_trainer("FedAvg"), "loss", full)
    with pretend_card():
        assert jobs.run(tmp_path, "--trainer", "FedAvg", *SMALL) == 2
    said = capsys.readouterr().err
    assert "FED.CHUNK" in said and "Traceback" not in said and not list(tmp_path.rglob("round_1*"))


def test_no_memory_names_what_a_verb_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Backbone, "encode_image", full)
    with pretend_card():
        assert main(["features", "--dataset", "new_nouns", "--backbone", "tiny", "--device",
                     "cuda"]) == 2
    said = capsys.readouterr().err
    assert "--device cpu" in said and "FED.CHUNK" not in said and "--batch-size" not in said
    for verb in ("adapt", "evaluate", "export", "features", "figures", "predict", "verify"):
        assert "--device" in verbs()[verb].parser().format_help()
        failed = MethodError(f"FedAvg, predict: {NO_MEMORY}")
        assert exit_code_of(raiser(failed), [verb, "x"]) == 2
        said = capsys.readouterr().err
        assert "FedAvg, predict: " in said and NO_MEMORY_ELSEWHERE in said
    assert exit_code_of(raiser(failed), ["run"]) == 2 and NO_MEMORY in capsys.readouterr().err


@pytest.mark.parametrize("error", [
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
])
def test_a_card_full_of_others_work_is_no_bug(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """A context or a library's workspace without memory is not PyTorch's own error."""
    assert exit_code_of(raiser(error), ["run"]) == 2 and NO_MEMORY in capsys.readouterr().err
    assert not out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not out_of_memory(ValueError(str(error)))


def test_a_fixed_order_loads_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cost 1.2 s at each start (PyTorch 2.15) and lines about leaks at each end."""
    with pretend_card():
        monkeypatch.setitem(sys.modules, "torch._inductor", None)
        for fast in (False, True):
            compute_in_order(torch.device("cuda"), fast)
            assert torch.are_deterministic_algorithms_enabled() != fast
            assert not torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.parametrize("error", [
    RuntimeError("The NVIDIA driver on your system is too old (found version 12020). Please"),
    AssertionError("Torch not compiled with CUDA enabled"),
])
def test_a_card_that_is_not_there_has_a_reason(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", raiser(error))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert main(["run", "--demo", "--device", "cuda"]) == 2
    said = capsys.readouterr().err
    assert str(error).removesuffix(". Please") + "; CUDA_VISIBLE_DEVICES is '7'" in said
    with pretend_card(cards=8):
        assert main(["run", "--demo", "--device", "cuda:8"]) == 2
    assert "8 CUDA device(s), cuda:0 to cuda:7; use" in capsys.readouterr().err


def raiser(error: Exception) -> Callable[[], int]:
    def call() -> int:
        raise error

    return call


def test_a_folder_goes_on_elsewhere_only_on_purpose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trainer", "FedAvg", *SMALL, *ALONE)
    for place in ("stopped", "whole"):
        assert jobs.run(tmp_path / place, *words, "--device", "cpu") == 0
    path = jobs.folder(tmp_path / "stopped")
    (path / "results.json").unlink()
    for file in path.glob("state/round_*2.*"):
        file.unlink()
    capsys.readouterr()
    with pretend_card():
        assert jobs.run(tmp_path / "stopped", *words) == 2
        said = capsys.readouterr().err
        assert "holds another run" in said and "--continue-elsewhere" in said
        assert jobs.run(tmp_path / "stopped", *words, "--batch-size", "4",
                        "--continue-elsewhere") == 2
        assert "BATCH_SIZE" in capsys.readouterr().err
        assert jobs.run(tmp_path / "stopped", *words, "--continue-elsewhere") == 0
    said = capsys.readouterr()
    assert "begun on cpu, 16 clients at once, continued on cuda (pretend), 256" in said.out
    assert "resuming after round 1" in said.out
    told = json.loads((path / "manifest.json").read_text())
    results = json.loads((path / "results.json").read_text())
    assert results["run_info"]["device"] == {"type": "cuda", "name": "pretend"}
    assert told["identity"]["device"] == "cpu"
    assert told["sessions"][1]["machine"]["cuda"]["name"] == "pretend"
    ours, theirs = jobs.state(tmp_path / "stopped"), jobs.state(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    for name, v in theirs.items():
        torch.testing.assert_close(ours[name], v, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("size", "parts"), [(49, 8), (16, 5), (7, 7), (3, 5)])
def test_pooling_by_a_product(size: int, parts: int) -> None:
    mean = sys.modules[load_trainer("FedMVP").__module__].mean_in_parts
    x = torch.randn(2, 3, size, dtype=torch.float64)
    with pretend_card() as tally:
        there = host_of(mean(x.to("cuda"), parts))
    assert torch.allclose(there, F.adaptive_avg_pool1d(x, parts), atol=1e-14)
    assert not tally.unsure


def test_fast_leaves_the_order_open_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trainer", "LocalOnly", *SMALL, *ALONE, "--rounds", "1")
    with pretend_card():
        assert jobs.run(tmp_path, *words, "--fast") == 0
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.allow_tf32
        assert "in no fixed order (--fast)" in capsys.readouterr().out
        path = jobs.folder(tmp_path)
        told = json.loads((path / "manifest.json").read_text())["identity"]
        assert told["cuda"]["algorithms"] is False
        assert "in no fixed order (--fast)" in (path / "results.json").read_text()
        assert jobs.run(tmp_path, *words) == 2  # in order it is another run
        assert "cuda.algorithms: false -> true" in capsys.readouterr().err.lower()
        assert torch.are_deterministic_algorithms_enabled()


def test_a_replay_of_a_fast_run_counts_images(tmp_path: Path) -> None:
    with pretend_card():
        assert jobs.run(tmp_path, "--trainer", "LocalOnly", *SMALL, "--fast", "--rounds", "1") == 0
        again = replay(jobs.folder(tmp_path))
    assert "FAST: kernels in no fixed order" in again.elsewhere and not again.differences


def test_features_of_a_card_are_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the cache and in a pack; those of a CPU have the key that they always had."""
    words = ("features", "--dataset", "new_nouns", "--backbone", "tiny")
    pack = tmp_path / "one.pack.safetensors"
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    with pretend_card():
        assert main([*words, "--device", "cuda", "--pack", str(pack)]) == 0
        capsys.readouterr()
        assert main(["features", "--show", str(pack)]) == 0
        shown = capsys.readouterr().out
        assert "(pretend, fixed order, no TF32, CUDA " in shown
        backbone = load_backbone("tiny", device="cuda")
        samples = read_pack_lists(open_pack(pack)).all()
        assert foreign_origins(samples, backbone) == []
        here = backbone.numerics
        with monkeypatch.context() as other:  # ended before the card is: it puts back the real one
            other.setattr(torch.cuda, "get_device_name", lambda *_: "another")
            assert foreign_origins(samples, backbone) == [f"{here}, batch {batch_size(backbone)}"]
            torch.use_deterministic_algorithms(False)
            assert "(another, no fixed order, " in backbone.numerics
            stores = len(list_stores(default_dir()))
            assert main([*words, "--device", "cuda"]) == 0
            assert len(list_stores(default_dir())) == stores + 1
    chip = torch.backends.cpu.get_cpu_capability()
    assert load_backbone("tiny").numerics == (
        f"torch.float32 fast cpu {chip} torch {torch.__version__}")


def test_fast_is_for_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs.run(tmp_path, *SMALL, "--device", "cpu", "--fast") == 2
    said = capsys.readouterr().err
    assert "--fast" in said and "computes on cpu" in said and "Traceback" not in said


def test_workers_on_one_gpu_share_its_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    words = (*SMALL, "--trainer", "PromptFL", "--engine", "workers", "--workers", "4")
    with pretend_card(memory=GIB // 4):
        assert jobs.run(tmp_path, *words, "--dry-run") == 0
        said = capsys.readouterr().out
        built = build_run(resolve(parse(jobs.argv(tmp_path, *words))).jobs[0].cfg)

        def chunk(*more: object) -> int:
            cfg = built.cfg.clone()
            cfg.merge_from_list(list(more))
            return chunk_of(cfg, built.model, built.federation.trainer)

        shared, alone = built.identity["chunk"], chunk("FED.ENGINE", "local")
        assert f"{shared} clients computed at once (FED.CHUNK), by the memory of a GPU for 4" in (
            " ".join(said.split()))
        assert 4 <= 4 * shared <= alone < 4 * (shared + 1)
        assert chunk("FED.WORKERS", 1) == alone and chunk("FED.CHUNK", 9) == 9
        with monkeypatch.context() as other:  # ended before the card is, as above
            other.setattr(torch.cuda, "device_count", lambda: 4)  # one for each
            assert chunk() == alone and chunk("DEVICE", "cuda:1") == shared
            other.setattr(torch.cuda, "device_count", lambda: 3)  # one has two of them
            assert chunk() == alone // 2
        # A worker sees one card: the driver tells how many clients a chunk has.
        side = Workers(built.cfg)
        side.built, told = built, list[str]()
        monkeypatch.setattr(workers, "WorkerProcesses", lambda command, *_: told.extend(
            command(0, 7)))
        side.workers_of(tmp_path, print)
        assert told[-2:] == ["--chunk", str(shared)]


def test_each_worker_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    any_, one = (resolve(parse(["--demo", "--device", d])).jobs[0].cfg for d in ("cuda", "cuda:1"))

    def seen(cfg: Any) -> list[str | None]:
        return [processes.worker_environment(cfg, 1, slot).get("CUDA_VISIBLE_DEVICES")
                for slot in range(3)]

    with pretend_card(cards=2):
        assert processes.size_of(any_)[0] == 2 and seen(any_) == ["0", "1", "0"]
        assert seen(one) == [None] * 3  # all on the one that was asked for
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,GPU-b")  # a part of a card, a UUID
        assert seen(any_) == ["MIG-a", "GPU-b", "MIG-a"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3,-1,4")  # CUDA, too, reads up to the -1
        assert seen(any_) == ["5", "3", "5"]
