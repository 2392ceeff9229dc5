"""Methods that no recipe holds go into ONNX as a graph, class features inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.export.formats import onnx_file
from fedvlm.export.recipe import difference, wanted_of
from fedvlm.export.trained import TrainedModel
from fedvlm.export.write import export
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.federation.trainer import Predictor, Trainer
from fedvlm.models.vlmodel import VLModel
from tests.export.models import FACTS, trained

pytestmark = [
    pytest.mark.skipif(bool(onnx_file.missing_packages()), reason="pip install 'fedvlm[onnx]'"),
    pytest.mark.slow,  # ten seconds of tracing each
]


class Twin(Trainer):
    """Two contexts, one of a name that no recipe knows."""

    def predictor(self, model: VLModel, params: Tree) -> Predictor:
        texts = [model.text(params[name]) for name in ("text.ctx", "text.twin")]
        return lambda x: sum(model.logits(model.image(x), text) for text in texts) / 2


class Net(ModuleTrainer):
    """Features and pixels, as a torch module."""

    mixes = False  # images of a batch

    def streams(self, model: VLModel) -> tuple[str, ...]:
        return ("features", "pixels")

    def build(self, model: VLModel) -> nn.Module:
        return nn.ModuleDict({
            "head": nn.Linear(model.embed_dim, len(model.classnames)),
            "conv": nn.Conv2d(3, len(model.classnames), 8, stride=8),
        })

    def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Any:
        parts = {n: {k.partition(".")[2]: v for k, v in params.items() if k.startswith(n)}
                 for n in ("head", "conv")}
        z = functional_call(module["head"], parts["head"], (x["features"],))
        y = functional_call(module["conv"], parts["conv"], (x["pixels"],)).mean((2, 3))
        return z + y + (x["pixels"].mean() if self.mixes else 0)


def own(kind: type[Trainer]) -> TrainedModel:
    """A model of ``kind`` with random tensors, over the classes of the other tests."""
    whole = trained("fedavg", ("--peft", "prompt"))
    trainer = kind(whole.trainer.root)
    gen = torch.Generator().manual_seed(5)
    if issubclass(kind, ModuleTrainer):
        params = trainer.trainables(whole.model, gen)
    else:
        shape = whole.params["text.ctx"].shape
        params = {n: torch.randn(shape, generator=gen) for n in ("text.ctx", "text.twin")}
    return TrainedModel(trainer, whole.model, params, FACTS)


@pytest.mark.parametrize("kind", [Net, Twin])
def test_a_graph_predicts_any_number_of_images(kind: type[Trainer], tmp_path: Path) -> None:
    whole = own(kind)
    assert export(whole, tmp_path / "out", "onnx").difference <= 1e-5
    side = whole.model.backbone.image_size
    pixels = torch.randn(7, 3, side, side, generator=torch.Generator().manual_seed(6))
    predict = onnx_file.read(tmp_path / "out")
    assert difference(predict(pixels), wanted_of(whole, pixels)) <= 1e-5
    assert (tmp_path / "out" / "model.onnx").stat().st_size < 8e6, "the text tower is in it"
    assert "as one graph" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(ConfigError, match="only --format onnx"):
        export(whole, tmp_path / "other", "safetensors")


def test_a_prediction_that_mixes_images_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Net, "mixes", True)
    whole = own(Net)
    with pytest.raises(FedvlmError, match="gives different logits when it is read back"):
        export(whole, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
