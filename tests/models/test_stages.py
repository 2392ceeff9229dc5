"""Adapters behind the stages of a trunk equal plain torch modules, one per client."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import convnext, resnet, swin_transformer

from fedvlm.check.invariants import INVARIANTS
from fedvlm.check.world import RESNET, CheckWorld
from fedvlm.core.errors import ConfigError
from fedvlm.core.transform import TransformSpec
from fedvlm.core.trees import expand
from fedvlm.federation.discovery import load_trainer
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.peft import PeftSpec
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.sources import check_streams
from fedvlm.models.load import torchvision
from fedvlm.models.load.vit import VisionOnly, ViTBackbone
from fedvlm.models.stages import has_stages
from fedvlm.models.towers.blocks import Edits
from fedvlm.models.vlmodel import VLModel, tower_of
from tests.models.toys import toy
from tests.models.trunks import alone, paired, shake

K, N, HIDDEN = 2, 2, 4
WITH_PROJECTION = ("convnext", "swin", "fastvit")
SPEC = PeftSpec("none", "adapter", "linear", width=HIDDEN)
# Kind -> what ends a stage, counted in the tower itself.
ENDS: Mapping[str, tuple[str, ...]] = {
    "resnet": tuple(f"layer{i}" for i in (1, 2, 3, 4)),
    "timm resnet": tuple(f"trunk.layer{i}" for i in (1, 2, 3, 4)),
    "timm convnext": tuple(f"trunk.stages.{i}" for i in range(4)),
    "timm swin": tuple(f"trunk.layers.{i}" for i in range(4)),
    "timm fastvit": tuple(f"trunk.stages.{i}" for i in range(4)),
    "timm mobilenetv2": tuple(f"trunk.blocks.{i}" for i in range(7)),
    "timm mobilenetv3": tuple(f"trunk.blocks.{i}" for i in range(6)),
    "torchvision resnet": tuple(f"layer{i}" for i in (1, 2, 3, 4)),
    "torchvision convnext": tuple(f"features.{i}" for i in (1, 3)),
    "torchvision swin": tuple(f"features.{i}" for i in (1, 3)),
}
SMALL = {
    "resnet": lambda: resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1]),
    "convnext": lambda: convnext.ConvNeXt(
        [convnext.CNBlockConfig(8, 12, 1), convnext.CNBlockConfig(12, None, 2)]),
    "swin": lambda: swin_transformer.SwinTransformer([2, 2], 12, [1, 2], [2, 2], [2, 2]),
}


def backbone(kind: str, dtype: torch.dtype = torch.float64) -> Backbone:
    library, _, name = kind.rpartition(" ")
    if not library:
        return toy(name, dtype=dtype)
    if library == "timm":
        tower = (paired if name in WITH_PROJECTION else alone)(name, dtype=dtype)
        tower.image_size = 32  # convolutions take any size
        return tower
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model: nn.Module = SMALL[name]()
    shake(model)
    width = torchvision._without_classifier(model.eval(), name)
    spec = TransformSpec(32, torchvision.MEAN, torchvision.STD, "bilinear")
    return ViTBackbone(
        VisionOnly(model), name=name, weights="random", spec=spec, dtype=dtype,
        arch={"torchvision": name, "width": width, "image_size": 32},
    )


def start(model: VLModel, spec: PeftSpec = SPEC) -> dict[str, Tensor]:
    tree = peft.build_tensors(spec, model, torch.Generator().manual_seed(1))
    return {n: v.to(model.dtype) for n, v in tree.items()}


def images(model: VLModel) -> Tensor:
    gen, side = torch.Generator().manual_seed(2), model.backbone.image_size
    return torch.randn(K, N, 3, side, side, generator=gen).to(model.dtype)


class Adapted(nn.Module):
    """One client: a 1x1 convolution down, GELU, one up, added to what leaves a stage."""

    def __init__(self, p: Mapping[str, Tensor], last: bool) -> None:
        super().__init__()
        hidden, width = p["down.weight"].shape
        self.norm = nn.LayerNorm(width).to(torch.float64)
        self.down = nn.Conv2d(width, hidden, 1).to(torch.float64)
        self.up = nn.Conv2d(hidden, width, 1).to(torch.float64)
        self.last = last
        self.norm.load_state_dict({"weight": p["ln.weight"], "bias": p["ln.bias"]})
        for layer, name in ((self.down, "down"), (self.up, "up")):
            layer.load_state_dict({"weight": p[f"{name}.weight"][:, :, None, None],
                                   "bias": p[f"{name}.bias"]})

    def forward(self, x: Tensor) -> Tensor:
        grid = x if self.last else x.permute(0, 2, 3, 1)
        h = self.norm(grid).permute(0, 3, 1, 2)
        out: Tensor = self.up(nn.functional.gelu(self.down(h)))
        return x + (out.permute(0, 2, 3, 1) if self.last else out)


def part(p: Mapping[str, Tensor], stage: int) -> dict[str, Tensor]:
    mark = f"image.adapter.{stage}.stage."
    return {n.removeprefix(mark): v for n, v in p.items() if n.startswith(mark)}


@pytest.mark.parametrize("kind", ENDS)
def test_each_client_equals_a_plain_module_with_gradients(kind: str) -> None:
    model = VLModel(backbone(kind), ["a", "b"])
    gen, pixels = torch.Generator().manual_seed(3), images(model)
    p = {n: (v + 0.3 * torch.randn(K, *v.shape, generator=gen).to(v)).requires_grad_()
         for n, v in start(model).items() if "adapter" in n}
    z = peft.image_features(SPEC, model, p, {"pixels": pixels})
    weights = torch.randn(z.shape, generator=gen).to(z)
    grads = dict(zip(p, torch.autograd.grad((z * weights).sum(), list(p.values())), strict=True))
    assert len(p) == 6 * len(ENDS[kind])
    for k in range(K):
        visual = copy.deepcopy(model.backbone.model.visual)
        own: list[Adapted] = []
        for stage, name in enumerate(ENDS[kind]):
            own.append(Adapted(part({n: v[k].detach() for n, v in p.items()}, stage),
                               "swin" in kind))
            visual.get_submodule(name).register_forward_hook(
                lambda _, __, out, client=own[-1]: client(out))
        plain = visual(pixels[k])
        assert torch.allclose(z[k], plain.detach(), 0, 1e-12 * float(plain.detach().abs().max()))
        (plain * weights[k]).sum().backward()
        for stage, adapted in enumerate(own):
            for n, grad in part({n: g[k] for n, g in grads.items()}, stage).items():
                layer, _, kept = n.partition(".")
                want: Any = getattr(adapted.get_submodule({"ln": "norm"}.get(layer, layer)), kept)
                want = want.grad.view_as(grad)
                assert torch.allclose(grad, want, 0, 1e-12 * float(want.abs().max())), n


@pytest.mark.parametrize("kind", ENDS)
def test_the_start_is_the_frozen_trunk_from_pixels_and_from_stored_stages(kind: str) -> None:
    model = VLModel(backbone(kind, torch.float32), ["a", "b"])
    pixels, p = images(model), expand(start(model), K)
    frozen = model.image({"pixels": pixels})
    with torch.no_grad():
        assert peft.image_features(SPEC, model, p, {"pixels": pixels}).equal(frozen)
        for stage in range(len(ENDS[kind])):
            stream = f"stage.{stage}"
            tower = tower_of(model, stream)
            rows = tower.compute(pixels.flatten(0, 1), stream)
            assert rows.shape[1:] == tower.shape(stream)
            x = {stream: rows.unflatten(0, (K, N))}
            assert torch.allclose(model.image(x), frozen, 0, 1e-5 * float(frozen.abs().max()))
    before = {n: v.clone() for n, v in model.backbone.model.named_buffers()}
    peft.image_features(SPEC, model, {n: v.clone().requires_grad_() for n, v in p.items()},
                        {"pixels": pixels}).sum().backward()
    assert all(v.equal(before[n]) for n, v in model.backbone.model.named_buffers())
    assert model.backbone.verify_frozen() == model.backbone.digest


def test_only_the_last_stages_and_what_they_read() -> None:
    model = VLModel(backbone("timm resnet"), ["a", "b"])
    spec = PeftSpec("none", "adapter", "linear", width=HIDDEN, blocks=2)
    assert [peft.common_stream(s, model) for s in (SPEC, spec)] == ["stage.0", "stage.2"]
    assert {n.split(".")[2] for n in start(model, spec) if "adapter" in n} == {"2", "3"}
    with pytest.raises(ConfigError, match="the image tower has 4 blocks"):
        start(model, PeftSpec("none", "adapter", "linear", blocks=5))
    assert tower_of(model, "stage.2").numbers(2) == 2 * 2 * 256 + 512
    with_names = model.with_classes(["c"])
    assert tower_of(with_names, "stage.0") is tower_of(model, "stage.0")


def test_what_a_trunk_cannot_hold_is_refused() -> None:
    for kind in ("timm resnet", "resnet"):
        model = VLModel(backbone(kind), ["a", "b"])
        for visual, ln in (("lora", False), ("none", True), ("adapter", True)):
            with pytest.raises(ConfigError, match="need a ViT image tower"):
                start(model, PeftSpec("none", visual, "linear", ln=ln))
    model = VLModel(alone("postnorm"), ["a"])
    assert not has_stages(model.backbone)
    with pytest.raises(ConfigError, match="Adapters in the image tower need a ViT, ResNet"):
        start(model)
    with pytest.raises(ConfigError, match="need a ViT image tower"):
        tower_of(model, "stage.0")
    assert Edits().staged is False
    with pytest.raises(ConfigError, match="needs patches of a ViT, and .* has none") as said:
        check_streams(("patches",), VLModel(backbone("timm resnet"), ["a"]))
    assert "text-lora" not in str(said.value) and "EfficientNet" not in str(said.value)


def test_methods_train_on_it_from_stored_stages_as_from_pixels_and_resume() -> None:
    """FedPer: adapters are shared, the head is personal."""
    opts = ("PEFT.TEXT", "none", "PEFT.VISUAL", "adapter", "PEFT.HEAD", "linear", "PEFT.WIDTH", "3")
    world, kind = CheckWorld(opts, RESNET), load_trainer("FedPer")
    run = world.trajectory(kind)
    names = {n for n in run.fed.p0 if "adapter" in n}
    assert len(names) == 24 and set(run.states[-1].server["w"]) == names
    moved = [n for n in names if not run.states[-1].server["w"][n].equal(run.fed.p0[n])]
    assert len(moved) == 24
    for name in ("G8", "G13"):
        INVARIANTS[name](world, kind)
