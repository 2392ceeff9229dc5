"""Units that add nothing are taken out of an export, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree, expand
from fedvlm.export import pruned as pruning
from fedvlm.export.pruned import costs, without_pruned
from fedvlm.export.recipe import Unheld, difference
from fedvlm.export.traced import trace
from fedvlm.export.trained import TrainedModel
from fedvlm.export.write import export
from tests.export.models import trained
from tests.federation.toolbox.nets import method, world

KINDS = {
    "feature": (("image.adapter.down", 0), ("image.adapter.up", 1)),
    "lora": (("image.lora.1.q.A", 0), ("image.lora.1.q.B", 1)),
    "adapter": (("image.adapter.1.mlp.down.weight", 0), ("image.adapter.1.mlp.down.bias", 0),
                ("image.adapter.1.mlp.up.weight", 1)),
}


def pruned(visual: str) -> tuple[TrainedModel, list[int]]:
    """Return a model of which a half of one site's units are zero, and those that are left."""
    whole = trained("fedavg", ("--peft", f"prompt+{visual}"))
    params: Tree = {n: v.clone() for n, v in whole.params.items()}
    left: list[int] = []
    for name, axis in KINDS[visual]:
        units = params[name].shape[axis]
        left = list(range(1, units, 2))
        gone = torch.arange(0, units, 2)
        params[name].index_fill_(axis, gone, 0.0)
    return replace(whole, params=params), left


@pytest.mark.parametrize("visual", KINDS)
def test_zero_units_leave_and_predictions_stay(visual: str) -> None:
    model, left = pruned(visual)
    slim = without_pruned(model)
    for name, axis in KINDS[visual]:
        assert torch.equal(slim.params[name], model.params[name].index_select(
            axis, torch.tensor(left))), name
    changed = {name for name, _ in KINDS[visual]}
    assert all(torch.equal(slim.params[n], v) for n, v in model.params.items() if n not in changed)
    x = {"pixels": torch.randn(1, 3, 3, *(2 * (model.model.backbone.image_size,)))}
    before, after = (m.trainer.predict(m.model, expand(m.params, 1), x) for m in (model, slim))
    assert (before - after).abs().max() < 1e-5
    was, now = costs(model)[0], costs(slim)[0]
    assert now.numbers < was.numbers and now.flops < was.flops and now.ms > 0
    assert slim.facts.notes[-1].startswith("Pruned: ")
    assert f"{was.numbers:,} and {now.numbers:,} numbers" in slim.facts.notes[-1]


def test_what_is_not_pruned_stays_as_it_is() -> None:
    """A unit with one side left, like LoRA's fresh B of zeros, is no pruned one."""
    whole = trained("fedavg", ("--peft", "prompt+feature"))
    assert without_pruned(whole) is whole
    half = replace(whole, params=whole.params | {
        "image.adapter.up": torch.zeros_like(whole.params["image.adapter.up"])})
    assert without_pruned(half) is half
    none = replace(half, params=half.params | {
        "image.adapter.down": torch.zeros_like(whole.params["image.adapter.down"])})
    assert without_pruned(none).params["image.adapter.down"].shape[0] == 1


@pytest.mark.parametrize("form", ["safetensors", "peft"])
def test_an_export_has_the_smaller_tensors_and_says_so(form: str, tmp_path: Path) -> None:
    model, left = pruned("lora")
    export(model, tmp_path / "out", form)
    files = [load_file(f) for f in (tmp_path / "out").glob("*.safetensors")]
    shapes = {tuple(v.shape) for tree in files for n, v in tree.items() if "lora" in n.lower()}
    assert any(len(left) in shape for shape in shapes)
    assert "Pruned: " in (tmp_path / "out" / "README.md").read_text()


def test_a_network_loses_its_hidden_channels() -> None:
    """Those behind the group norm, too: it goes on counting them as zeros."""
    w = world("Hermes")
    fed = w.federation(method("Hermes"))
    params = {n: v.clone() for n, v in fed.p0.items()}
    for name in ("two.0.weight", "two.0.bias", "one.0.weight", "one.0.bias", "one.1.weight",
                 "one.1.bias"):
        params[name][0] = 0
    params["two.0.weight"][:, 0] = 0
    params["hidden.weight"][:, :4] = 0
    slim = without_pruned(TrainedModel(fed.trainer, fed.model, params))
    assert slim.params["two.0.weight"].shape == (7, 5, 3, 3)
    assert slim.params["hidden.weight"].shape == (10, 28)
    assert {len(slim.params[f"one.{n}"]) for n in ("0.weight", "0.bias", "1.bias")} == {5}
    x = {"pixels": w.pixels[None, :4]}
    before, after = (t.predict(fed.model, expand(p, 1), x)
                     for t, p in ((fed.trainer, params), (slim.trainer, slim.params)))
    assert (before - after).abs().max() < 1e-12
    recipe = trace(slim, Unheld("Hermes", "no recipe"))  # what ONNX writes
    with torch.no_grad():
        again = recipe.module(slim.model)(recipe.pixels)
    assert difference(again, recipe.logits) < 1e-5


def test_what_would_predict_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = pruned("feature")
    kept = pruning._alive(model.params, pruning._held(model))
    wrong = {site: mask.flip(0) for site, mask in kept.items()}
    monkeypatch.setattr(pruning, "_alive", lambda params, held: wrong)
    with pytest.raises(FedvlmError, match="without its pruned units predicts otherwise"):
        without_pruned(model)
