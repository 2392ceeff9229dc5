"""A run's folder is enough: its models predict what was evaluated, without data or command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import fedvlm
from fedvlm.api import rebuild
from fedvlm.api.adapt import adapt
from fedvlm.api.forget import plan_forgetting
from fedvlm.api.replay import replay
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.runs.seal import seal_of
from tests import jobs

METHODS = ("FedTV", "FedAvg", "LocalOnly", "Thorki", "APFL")
TOLERANCE = 1e-5


def finished(output: Path, *words: str) -> Path:
    assert jobs.run(output, "--keep-logits", *words) == 0
    return jobs.folder(output)


def data_of(place: Path) -> FederatedData:
    return build_federation(rebuild.run_config(place, {}))


def images(data: FederatedData, samples: np.ndarray) -> list[Path]:
    return [data.samples[int(i)].path for i in samples]


@pytest.mark.parametrize("method", [
    m if m in ("FedTV", "APFL") else pytest.param(m, marks=pytest.mark.slow) for m in METHODS
])
def test_predictions_are_the_evaluated_ones(tmp_path: Path, method: str) -> None:
    place = finished(tmp_path, "--trainer", method)
    kept = safetensors.torch.load_file(place / "logits.safetensors")
    run, data = fedvlm.load(place), data_of(place)
    for client in (0, 1):
        said = run.client(client).predict(images(data, data.clients[client].test))
        gap = (said.logits - kept[f"personal|{client}"]).abs().max()
        assert gap <= TOLERANCE * kept[f"personal|{client}"].abs().max().clamp_min(1)
    said = run.global_model.predict(images(data, data.global_test))
    right = 100 * np.mean(said.labels == data.labels[data.global_test])
    assert right == pytest.approx(jobs.results(tmp_path)["last"]["global"], abs=1e-9)
    saved = (place / "models" / "personal000000.json").exists()
    assert saved == (method == "Thorki")  # its gate is trained on the client's images


def test_fine_tuned_models_and_a_folder_that_lost_them(tmp_path: Path) -> None:
    place = finished(tmp_path, "--trainer", "FedPer", "--finetune-epochs", "1")
    kept, data = safetensors.torch.load_file(place / "logits.safetensors"), data_of(place)
    said = fedvlm.load(place).client(1).predict(images(data, data.clients[1].test))
    assert torch.allclose(said.logits, kept["personal|1"], atol=1e-4, rtol=0)
    (place / "models" / "personal000000.json").unlink()
    with pytest.raises(DataError, match="lacks the models after the final fine-tuning"):
        fedvlm.load(place).client(1)


@pytest.mark.usefixtures("few_images")
def test_what_is_made_of_images_is_refused_before_the_end(tmp_path: Path) -> None:
    """An unfinished run has the global model, and no personal one that images are needed for."""
    place = finished(tmp_path, "--trainer", "Thorki")
    for file in (place / "results.json", *place.glob("models/personal*")):
        file.unlink()
    run = fedvlm.load(place)
    with pytest.raises(DataError, match="client 0 needs the client's own images"):
        run.client(0)
    assert run.global_model.owner == "global"
    assert run.record is None


def test_a_run_can_be_taken_elsewhere(quick_run: Path, tmp_path: Path) -> None:
    """Another process, another current folder, no data, only what a model needs."""
    place = jobs.folder(quick_run)
    for name in ("config.yaml", "manifest.json", "partition.json", "partition.csv"):
        (tmp_path / "taken").mkdir(exist_ok=True)
        shutil.copy(place / name, tmp_path / "taken" / name)
    for name in ("models", "state"):
        shutil.copytree(place / name, tmp_path / "taken" / name)
    code = (
        "import fedvlm, numpy as np\n"
        "image = np.arange(48 * 48 * 3).reshape(48, 48, 3).astype(np.uint8)\n"
        "print(fedvlm.load('taken').client(1).predict(image).logits.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(jobs.REPOSITORY), "TMPDIR": str(tmp_path / "none")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    image = np.arange(48 * 48 * 3).reshape(48, 48, 3).astype(np.uint8)
    here = fedvlm.load(place).client(1).predict(image).logits
    assert torch.allclose(torch.tensor(json.loads(done.stdout)), here, atol=1e-4, rtol=0)


def test_features_and_other_classes(quick_run: Path) -> None:
    model = fedvlm.load(jobs.folder(quick_run)).client(0)
    image = torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(1))
    assert model.features([image, image]).shape == (2, model.model.embed_dim)
    other = model.with_classes(["a house", "a cat", *model.classnames[:1]])
    said = other.predict(image)
    assert said.classnames[:2] == ("a house", "a cat") and said.logits.shape == (1, 3)
    same = model.predict(image).logits[0, 0]
    assert torch.allclose(said.logits[0, 2], same, atol=1e-4)  # a class is itself anywhere
    assert model.with_classes(model.classnames) is model


def test_a_wrong_word_is_refused_as_the_command_line_refuses_it(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(jobs.folder(quick_run))
    model, folder = fedvlm.load(place), str(tmp_path)
    for words, call in (
        (["predict", place, "x.png", "--round", "-1"], lambda: fedvlm.load(place, round=-1)),
        (["predict", place, "x.png", "--client", "9"], lambda: model.client(9)),
        (["forget", place, "--client", "9"], lambda: model.client(9)),
        (["forget", place, "--client", "north"], lambda: plan_forgetting(place, client="north")),
        (["adapt", place, "--images", folder, "--to", f"{folder}/x", "--epochs", "-1"],
         lambda: adapt(place, folder, epochs=-1)),
        (["verify", place, "--replay", "0"], lambda: replay(place, 0)),
        (["table", f"{folder}/output"], lambda: fedvlm.results(f"{folder}/output")),
        (["report", folder], lambda: fedvlm.results(folder)),
    ):
        with pytest.raises(FedvlmError) as refused:
            call()
        assert main(words) == refused.value.exit_code
        said = str(refused.value).replace("round expects", "--round expects").replace(
            "epochs expects", "--epochs expects").replace("rounds expects", "--replay expects")
        assert said in capsys.readouterr().err


def test_folders_clients_and_weights_that_are_not_there(quick_run: Path, tmp_path: Path) -> None:
    place = jobs.folder(quick_run)
    run = fedvlm.load(place)
    for number in (2, -1, True, "0"):
        with pytest.raises(ConfigError, match="no client .*: clients are numbered 0 to 1"):
            run.client(number)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="; write a number without quotes: 0$"):
        run.client("0")
    with pytest.raises(ConfigError, match="^round='1': write a number without quotes: 1$"):
        fedvlm.load(place, round="1")  # type: ignore[arg-type]
    assert run.clients == 2 and run.classnames == run.global_model.classnames
    with pytest.raises(DataError, match="there is one below it"):
        fedvlm.load(quick_run)
    with pytest.raises(DataError, match="is not a run folder"):
        fedvlm.load(tmp_path / "nowhere")
    for name in ("model.json", "run.py"):
        (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=r"is an exported model, and predicts by: python .*run.py"):
        fedvlm.load(tmp_path)
    with pytest.raises(ConfigError, match="device must be text, not 3"):
        fedvlm.load(place, device=3)  # type: ignore[arg-type]
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["facts"]["backbone_digest"] = "0" * 64
    manifest["seal"] = seal_of(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="the run used other weights of tiny"):
        fedvlm.load(copy).client(0)
    shutil.rmtree(copy / "state")
    manifest["facts"]["backbone_digest"] = fedvlm.load(place).global_model.model.backbone.digest
    manifest["seal"] = seal_of(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="has no trained model yet"):
        fedvlm.load(copy).client(0)
