"""Supervised ViTs without a text tower: timm's and transformers' features, and the head view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.peft import PeftSpec
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.load.vit import _arch, build_vit
from fedvlm.models.stages import has_stages
from fedvlm.models.vlmodel import VLModel
from tests.models import trunks
from tests.models.toys import relative

F64: dict[str, Any] = {"dtype": torch.float64}


def shaken(model: Any) -> Any:
    """Move every parameter away from its neutral start (zero biases, unit gains)."""
    gen = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=gen))
    return model.eval()


@pytest.mark.parametrize("scale", [None, 0.5])
def test_timm_s_features(scale: float | None) -> None:
    import timm

    with torch.random.fork_rng([]):
        model = shaken(timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, init_values=scale
        )).double()
    arch = _arch(32, 8, 192, 2, 3, 768, 1e-6) | {"layer_scale": scale is not None}
    visual = build_vit(arch, model.state_dict(), "x").double().eval()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        want = model.forward_head(model.forward_features(x), pre_logits=True)
        assert torch.allclose(visual(x), want, 0, 1e-6)  # positions + bias, rounded once


def test_timm_by_name_and_file(tmp_path: Path) -> None:
    import timm

    state = torch.random.get_rng_state()
    name = "vit_tiny_patch16_224"
    one = load_backbone(name, loader="timm", allow_random=True, seed=3)
    assert one.digest == load_backbone(name, loader="timm", allow_random=True, seed=3).digest
    assert torch.equal(state, torch.random.get_rng_state())
    with torch.random.fork_rng([]):
        model = shaken(timm.create_model(name))
    save_file(model.state_dict(), str(tmp_path / "w.safetensors"))
    ours = load_backbone(name, str(tmp_path / "w.safetensors"), loader="timm")
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        want = model.forward_head(model.forward_features(x), pre_logits=True)
    assert float((ours.encode_image(x) - want).norm() / want.norm()) < 1e-5
    assert (ours.embed_dim, ours.image_size, ours.has_text) == (192, 224, False)
    assert ours.verify_frozen() == ours.digest


def hugging(folder: Path) -> Any:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, patch_size=8,
                       intermediate_size=48, image_size=32)  # fmt: skip
    with torch.random.fork_rng([]):
        model = shaken(ViTModel(config, add_pooling_layer=False))
    model.save_pretrained(folder)
    return model.double()


def test_transformers_features(tmp_path: Path) -> None:
    model = hugging(tmp_path)
    ours = load_backbone(str(tmp_path), loader="transformers-vit", **F64)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        want = model(pixel_values=x).last_hidden_state[:, 0]
    assert torch.allclose(ours.encode_image(x), want, 0, 1e-6)
    assert ours.transform_spec.resize_mode == "squash"


@pytest.mark.parametrize("visual", ["none", "feature", "lora", "adapter"])
def test_the_head_view(tmp_path: Path, visual: str) -> None:
    hugging(tmp_path)
    model = VLModel(load_backbone(str(tmp_path), loader="transformers-vit", **F64), ["a", "b"])
    spec = PeftSpec("none", visual, "linear", width=4, rank=2)
    tree = peft.build_tensors(spec, model, torch.Generator().manual_seed(0))
    assert torch.allclose(tree["head.weight"].norm(dim=1), torch.ones(2))
    p = {n: v.double().expand(2, *v.shape) for n, v in tree.items()}
    x = {"pixels": torch.randn(2, 3, 3, 32, 32, dtype=torch.float64)}
    z = peft.image_features(spec, model, p, x)
    assert torch.allclose(z, model.image(x), 0, 1e-12)
    logits = model.logits(z, peft.text_features(spec, model, p))
    assert logits.shape == (2, 3, 2) and float(logits.abs().max()) <= 16.0


def test_refusals(tmp_path: Path) -> None:
    hugging(tmp_path)
    model = VLModel(load_backbone(str(tmp_path), loader="transformers-vit"), ["a", "b"])
    for spec in (PeftSpec("prompt"), PeftSpec("none", "lora")):
        with pytest.raises(ConfigError, match="no text tower for classification: use --peft head"):
            peft.build_tensors(spec, model, torch.Generator())
    with pytest.raises(ConfigError, match="has no text tower"):
        model.anchor("template", 0)
    with pytest.raises(ConfigError, match="timm has no model 'vit_tinny.*vit_tiny"):
        load_backbone("vit_tinny_patch16_224", loader="timm", allow_random=True)
    with pytest.raises(ConfigError, match="torchvision has no classifier 'resnet19'.*resnet18"):
        load_backbone("torchvision:resnet19", allow_random=True)
    with pytest.raises(ConfigError, match="needs weights: --weights FILE"):
        load_backbone("torchvision:resnet18")
    with pytest.raises(ConfigError, match="no linear layer at its end"):
        load_backbone("torchvision:squeezenet1_1", allow_random=True)
    (tmp_path / "other.pth").write_bytes(b"")
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / "other.pth")
    for library in ("timm", "torchvision"):
        with pytest.raises(DataError, match="fit|cannot load"):
            load_backbone(f"{library}:resnet18", str(tmp_path / "other.pth"))
        with pytest.raises(DataError, match="no weights file"):
            load_backbone(f"{library}:resnet18", str(tmp_path / "none.pth"))
    with pytest.raises(DataError, match="PRETRAINED False"):
        load_backbone("vit_tiny_patch16_224", str(tmp_path / "none"), loader="timm")
    with pytest.raises(DataError, match="cannot load"):
        load_backbone(str(tmp_path / "none"), loader="transformers-vit")


def test_timm_s_other_transformers_by_name_and_file(tmp_path: Path) -> None:
    import timm

    name = trunks.small("dinov3")
    ours = load_backbone(name, loader="timm", allow_random=True, seed=3)
    assert ours.digest == load_backbone(name, loader="timm", allow_random=True, seed=3).digest
    with torch.random.fork_rng([]):
        model = shaken(timm.create_model(name))
    save_file(model.state_dict(), str(tmp_path / "w.safetensors"))
    ours = load_backbone(name, str(tmp_path / "w.safetensors"), loader="timm", **F64)
    x = torch.randn(2, 3, trunks.SIDE, trunks.SIDE, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(ours.encode_image(x), model.double()(x), 0, 1e-10)
    assert (ours.embed_dim, ours.image_size, ours.has_text) == (trunks.WIDTH, trunks.SIDE, False)
    tree = peft.build_tensors(
        PeftSpec("none", "lora", "linear", rank=2), VLModel(ours, ["a", "b"]),
        torch.Generator().manual_seed(0),
    )
    assert tree["image.lora.0.q.A"].shape == (2, trunks.WIDTH)


SWIN = f"timm:{trunks.small('swin')}"
TRUNKS = {
    "timm:resnet18": 512, "timm:convnext_atto": 320, SWIN: 96,
    "timm:deit_tiny_distilled_patch16_224": 192, "torchvision:resnet18": 512,
    "torchvision:swin_t": 768,
}
SIDES = {"timm:deit_tiny_distilled_patch16_224": 224, SWIN: trunks.SIDE}  # others take any


def classifier(name: str) -> Any:
    """Return the library's own model, its weights and the module that takes its features."""
    library, _, kind = name.partition(":")
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        if library == "timm":
            import timm

            return timm.create_model(kind).eval()
        import torchvision

        return torchvision.models.get_model(kind, weights=None).eval()


@pytest.mark.parametrize("name", TRUNKS)
def test_any_trunk_for_a_head(name: str, tmp_path: Path) -> None:
    """Features are what enters the library's own classifier; nothing else is there."""
    model = classifier(name)
    torch.save(model.state_dict(), tmp_path / "w.pth")
    ours = load_backbone(name, str(tmp_path / "w.pth"))
    assert (ours.embed_dim, ours.has_text) == (TRUNKS[name], False)
    x, seen = torch.randn(2, 3, *2 * (SIDES.get(name, 64),)), []
    last = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
    last.register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(1)))
    with torch.no_grad():
        model(x)
    if "distilled" not in name:  # two classifiers: the mean of both tokens
        assert relative(ours.encode_image(x), seen[0]) < 1e-5
    assert ours.verify_frozen() == ours.digest
    low = load_backbone(name, str(tmp_path / "w.pth"), dtype=torch.bfloat16)
    assert relative(low.encode_image(x), ours.encode_image(x)) < 0.1
    whole = VLModel(ours, ["a", "b"])
    for visual in ("none", "feature"):
        spec = PeftSpec("none", visual, "linear", width=4)
        tree = peft.build_tensors(spec, whole, torch.Generator().manual_seed(0))
        p = {n: v.expand(2, *v.shape) for n, v in tree.items()}
        z = peft.image_features(spec, whole, p, {"pixels": x[:, None]})
        assert whole.logits(z, peft.text_features(spec, whole, p)).shape == (2, 1, 2)
    staged = has_stages(ours)
    assert staged is not ("deit" in name)
    for spec in (PeftSpec("none", "lora", "linear"), PeftSpec("none", "adapter", "linear")):
        if staged and spec.visual == "adapter":
            assert len(peft.build_tensors(spec, whole, torch.Generator())) == 4 * 6 + 1
            continue
        with pytest.raises(ConfigError, match="feature without LN"):
            peft.build_tensors(spec, whole, torch.Generator())
    with pytest.raises(ConfigError, match="has no text tower: use --peft head"):
        _ = whole.text_width


def test_random_trunks_by_seed() -> None:
    for name in ("timm:convnext_atto", "torchvision:mobilenet_v3_small"):
        one, two, other = (load_backbone(name, allow_random=True, seed=s) for s in (1, 1, 2))
        assert one.digest == two.digest != other.digest and one.weights == "random"
