"""Regression tests of a review of the core: each held a defect once."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvlm.core import trees
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.federation import aggregate
from fedvlm.federation.batches import FeatureSource, step_slices
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.context import Context, Means
from fedvlm.job import run as cli_run
from fedvlm.models.towers import fold, text_path
from fedvlm.models.vlmodel import VLModel
from tests import jobs
from tests.federation.toys import Quadratic, quadratic
from tests.models.toys import NAMES, context, loss_and_grad, relative, toy


@given(st.integers(1, 200), st.integers(2, 40), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_steps_of_several_batches_drop_no_sample(n: int, batch: int, per_step: int) -> None:
    steps = step_slices(n, batch, per_step)
    used = Counter(i for step in steps for start, stop in step for i in range(start, stop))
    assert set(used) == set(range(n))
    assert n < per_step or set(used.values()) == {1}
    assert all(0 < stop - start <= batch for step in steps for start, stop in step)


def test_a_sample_without_cached_features_is_refused() -> None:
    source = FeatureSource.of(torch.zeros(1, 2, 3), torch.tensor([0, 2]), torch.zeros(4).long())
    with pytest.raises(FedvlmError, match="sample 1 has no cached features"):
        source.fetch(torch.tensor([0, 1]), 0)


def test_stacking_loses_no_slot_and_no_tensor() -> None:
    one = torch.zeros(2)
    with pytest.raises(FedvlmError, match="'v'"):
        trees.stack_states([{"w": {"a": one}}, {"w": {"a": one}, "v": {"a": one}}])
    with pytest.raises(FedvlmError, match="'b'"):
        trees.stack([{"a": one}, {"a": one, "b": one}])


def test_logged_losses_are_means_over_the_clients_own_steps() -> None:
    means = Means(2)
    means.add({"loss": torch.tensor([2.0, 3.0])})
    means.add({"loss": torch.tensor([4.0])})
    assert means.values()["loss"].tolist() == [3.0, 3.0]


def test_another_projects_trainers_folder_hides_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "coop.py").write_text("import dassl\n")
    monkeypatch.chdir(tmp_path)
    assert "fedtv" in trainer_files() and "coop" not in trainer_files()


class NoAxis(Quadratic):
    """Keeps a leaf without the clients' axis."""

    def local(self, ctx: Context, c: trees.State, d: trees.Tree) -> Any:
        state, upload = super().local(ctx, c, d)
        return state | {"seen": {"rounds": torch.ones(3)}}, upload


def test_state_without_client_axis_is_refused() -> None:
    with pytest.raises(FedvlmError, match="'rounds' in slot 'seen'"):
        quadratic(NoAxis(), 1).run()


def test_float64_happens_on_the_cpu_for_devices_without_it(monkeypatch: Any) -> None:
    """Stands in for Apple's mps: ``double`` works only on what ``cpu`` returned."""

    class Apple:
        type = "mps"

    moved: set[int] = set()
    double, cpu = Tensor.double, Tensor.cpu

    def to_cpu(self: Tensor) -> Tensor:
        out = cpu(self).clone()
        moved.add(out.data_ptr())
        return out

    def checked(self: Tensor) -> Tensor:
        assert self.data_ptr() in moved, "Cannot convert a MPS Tensor to float64"
        return double(self)

    source = torch.ones(2)
    monkeypatch.setattr(Tensor, "cpu", to_cpu)
    monkeypatch.setattr(Tensor, "double", checked)
    Means(2).add({"loss": source})
    monkeypatch.setattr(Tensor, "device", Apple())
    assert fold._double(source).dtype is torch.float64
    assert aggregate._accurate(source).dtype is torch.float64


@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_plain_text_in_pieces_is_the_same(kind: str, monkeypatch: Any) -> None:
    backbone = toy(kind, dtype=torch.float64)
    ctx = context(backbone, 2, 2)
    whole = loss_and_grad(VLModel(backbone, NAMES, packed=False), ctx)
    monkeypatch.setattr(text_path, "PLAIN_BYTES", 4 << 20)
    calls = []
    plain = text_path.plain_text

    def counted(*args: Any) -> Tensor:
        calls.append(len(args[1].ids) * len(args[2]))
        return plain(*args)

    monkeypatch.setattr(text_path, "plain_text", counted)
    pieces = loss_and_grad(VLModel(backbone, NAMES, packed=False), ctx)
    assert len(calls) > 2 and max(calls) < 4 * len(NAMES)
    assert relative(pieces[0], whole[0]) < 1e-12 and relative(pieces[1], whole[1]) < 1e-12


def test_restored_state_keeps_its_types(tmp_path: Path, monkeypatch: Any) -> None:
    class Folder:
        metrics_path = tmp_path / "metrics.jsonl"
        notes: list[str] = []

        def restore(self) -> Any:
            w = {"w": {"a": torch.ones(1, dtype=torch.float64), "n": torch.ones(1).long()}}
            return type("Saved", (), {"round": 0, "server": w, "clients": {0: w}})

    Folder.metrics_path.write_text('{"round": 0}\n')
    model = type("Model", (), {"dtype": torch.float32, "device": torch.device("cpu")})
    found = cli_run.restore(type("Built", (), {"model": model}), Folder())  # type: ignore[arg-type]
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


def test_selection_does_not_depend_on_test_evaluations(tmp_path: Path) -> None:
    more = ("--opts", "TEST.SELECT", "val")
    assert jobs.run(tmp_path, "--eval-every", "9", "--rounds", "3", *more) == 0
    assert all("personal" in r and r["val"] is not None for r in jobs.records(tmp_path))


LATE = [
    (["TEST.SELECT", "val", "DATASET.VAL_SHOTS", "0"], "no validation images"),
    (["TRAINER.FEDTV.RANK", "99"], "TRAINER.FEDTV.RANK 99"),
    (["MODEL.BACKBONE.PRETRAINED", "False"], "brings its own"),
]


@pytest.mark.parametrize(("opts", "said"), LATE)
def test_mistakes_are_told_before_images_are_encoded(
    opts: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise AssertionError("encoded images first")

    monkeypatch.setattr("fedvlm.job.build.image_sources", no)
    assert jobs.run(tmp_path, "--opts", *opts) == ConfigError.exit_code
    assert said in capsys.readouterr().err


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
    assert "trainer" in capsys.readouterr().err


def test_dry_run_counts_the_images_that_a_run_encodes(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(cli_run, "progress", lambda *said: seen.append(said))
    own = ("--opts", "CACHE_DIR", str(tmp_path / "cache"))
    assert jobs.run(tmp_path / "a", "--dry-run", *own) == 0
    told = re.search(r"([\d,]+)\s+images\s+to\s+encode", capsys.readouterr().out)
    assert jobs.run(tmp_path / "a", *own) == 0
    encoded = max(of for what, _, of in seen if what.startswith("encoding"))
    assert told and int(told[1].replace(",", "")) == encoded


@pytest.mark.parametrize("more", [(), ("--plain",)])
def test_validation_samples_come_unaugmented(more: tuple[str, ...], tmp_path: Path) -> None:
    from fedvlm.job.build import build
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    words = [*jobs.argv(tmp_path, *more), "--opts", "INPUT.VIEWS", "2"]
    built = build(resolve(parse(words)).jobs[0].cfg)
    batch = built.federation.batcher.held_out([0])
    assert batch is not None
    (stream, values), = batch.x.items()
    own = torch.from_numpy(built.data.clients[0].val.copy())
    assert torch.equal(values[0], built.test.fetch(own, 0)[stream])
