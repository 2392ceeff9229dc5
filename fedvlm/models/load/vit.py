"""Image towers of timm and ViTs of transformers without a text tower (the head view).

The weights of a plain ViT are renamed into open_clip's VisionTransformer; timm's other models stay
timm's: transformers (registers, rotary positions, attention pooling) are read (``towers.trunk``),
of others (ResNet, ConvNeXt, Swin) only the feature is. Tests hold the features to the libraries'
own.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import user_path
from fedvlm.core.transform import TransformSpec
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.weights import (
    private_rng,
    quiet_hub,
    quiet_transformers,
    read_state_dict,
)
from fedvlm.models.towers.trunk import KINDS, TimmTower
from fedvlm.models.towers.trunk_blocks import is_timm

LOADERS = ("timm", "transformers-vit")
COSINE_SCALE = 16.0  # of the cosine classifier; CLIP's 100 is learned for its own features
_RESAMPLE = {2: "bilinear", 3: "bicubic"}

# their name -> open_clip's; blocks carry a number
_OUTER = {
    "cls_token": "class_embedding", "pos_embed": "positional_embedding",
    "patch_embed.proj.": "conv1.", "norm_pre.": "ln_pre.", "norm.": "ln_post.",
    "embeddings.cls_token": "class_embedding",
    "embeddings.position_embeddings": "positional_embedding",
    "embeddings.patch_embeddings.projection.": "conv1.", "layernorm.": "ln_post.",
}
_INNER = {
    "norm1.": "ln_1.", "norm2.": "ln_2.", "attn.qkv.": "attn.in_proj_", "mlp.fc1.": "mlp.c_fc.",
    "mlp.fc2.": "mlp.c_proj.", "attn.proj.": "attn.out_proj.", "ls1.": "ls_1.", "ls2.": "ls_2.",
    "layernorm_before.": "ln_1.", "layernorm_after.": "ln_2.",
    "attention.o_proj.": "attn.out_proj.", "attention.q_proj.": "q.", "attention.k_proj.": "k.",
    "attention.v_proj.": "v.",
}


class VisionOnly(nn.Module):
    """An image tower where a CLIP is expected, with the logit scale of one that it is part of."""

    def __init__(self, visual: nn.Module, logit_scale: float | None = None) -> None:
        super().__init__()
        self.visual = visual
        if logit_scale is not None:
            self.logit_scale = nn.Parameter(torch.tensor(logit_scale))


class ViTBackbone(Backbone):
    """A frozen image tower alone: ``PEFT.HEAD linear`` classifies, nothing reads a text.

    Of a library's classifier, or of a CLIP whose text tower could not be had (``lack`` says why).
    """

    has_text = standard = False

    def _read_facts(self) -> None:
        self.embed_dim = int(self.arch.get("embed_dim") or self.arch["width"])
        self.image_size = self.transform_spec.size
        self.text_width = self.context_length = 0
        self.causal, self.pool = False, ""
        scale = getattr(self.model, "logit_scale", None)
        self.logit_scale = COSINE_SCALE if scale is None else float(scale.exp())
        self.logit_bias = None


def load(
    name: str, weights: str = "", *, loader: str, random: bool = False, seed: int = 0,
    **place: Any,
) -> Backbone:
    """Load a ViT without text tower; see ``backbones.load_backbone``.

    Args:
        name: timm's name (``vit_tiny_patch16_224``); a hub name or folder for transformers.
        weights: timm: a file (.safetensors, .pth); empty: the library's own pretrained weights.
        place: arguments of ``Backbone``: dtype, device, plain.

    Raises:
        ConfigError: unknown name, or an architecture that cannot be read.
        DataError: weights that cannot be had.
    """
    with private_rng(seed):
        if loader == "timm":
            arch, visual, spec = _from_timm(name, weights, random)
        else:
            arch, state, spec = _from_transformers(name, weights, random)
            visual = build_vit(arch, state, name)
    return ViTBackbone(
        VisionOnly(visual), name=name, arch=arch, spec=spec,
        weights=weights or ("random" if random else loader), **place,
    )


def empty_vit(arch: dict[str, Any]) -> nn.Module:
    """Return the tower of ``arch`` with random weights: open_clip's VisionTransformer, or timm's.

    ``arch`` is ``ViTBackbone``'s; with ``timm`` it names a model that is not renamed.
    """
    if "timm" in arch:
        import timm  # start-up: 1 s

        return TimmTower(timm.create_model(arch["timm"], num_classes=0))
    from open_clip.transformer import LayerNorm, VisionTransformer  # start-up: 3 s

    visual = VisionTransformer(
        image_size=arch["image_size"], patch_size=arch["patch_size"], width=arch["width"],
        layers=arch["layers"], heads=arch["heads"], mlp_ratio=arch["mlp_ratio"],
        ls_init_value=1.0 if arch["layer_scale"] else None, no_ln_pre=not arch["norm_pre"],
        output_dim=arch["width"], norm_layer=partial(LayerNorm, eps=arch["eps"]),
    )
    visual.proj = None  # features are the normalised class token
    return visual


def build_vit(arch: dict[str, Any], state: dict[str, Tensor], name: str) -> nn.Module:
    """Return open_clip's VisionTransformer with the renamed weights.

    Raises:
        ConfigError: tensors that a plain ViT does not have, or lacks.
    """
    visual = empty_vit(arch)
    try:
        visual.load_state_dict(rename_vit(state), strict=True)
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"'{name}' is not a plain ViT with a class token: {reason}") from error
    return visual


def rename_vit(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return timm's or transformers' ViT tensors under open_clip's names; heads are left out.

    open_clip's patch embedding has no bias: it goes into the patches' positions (one rounding).
    """
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        block = re.match(r"(?:blocks|layers)\.(\d+)\.", name)
        rest = name[block.end() :] if block else name
        table = _INNER if block else _OUTER
        if not block and name.startswith(("head.", "fc_norm.", "pooler.")):
            continue
        theirs = next((t for t in table if rest == t or t[-1] == "." and rest.startswith(t)), None)
        if theirs is None:
            raise KeyError(name)
        prefix = f"transformer.resblocks.{block.group(1)}." if block else ""
        out[prefix + table[theirs] + rest[len(theirs) :]] = value.detach().clone()
    for key in [k for k in out if ".q." in k]:
        rows = [out.pop(key.replace(".q.", f".{s}.")) for s in "qkv"]
        out[key.replace("q.", "attn.in_proj_")] = torch.cat(rows)
    out["class_embedding"] = out["class_embedding"].flatten()
    positions = out["positional_embedding"].squeeze(0)
    positions[1:] += out.pop("conv1.bias", torch.zeros(()))
    out["positional_embedding"] = positions
    return out


def _from_timm(
    name: str, weights: str, random: bool
) -> tuple[dict[str, Any], nn.Module, TransformSpec]:
    """Return arch, tower and transform; a plain ViT is renamed, another transformer stays timm's.

    Raises:
        ConfigError: unknown to timm, or no image classifier.
        DataError: weights that cannot be had.
    """
    import timm  # start-up: 1 s

    if not timm.is_model(name.split(".")[0]):
        hint = did_you_mean(name, timm.list_models())
        raise ConfigError(f"timm has no model '{name}'{hint}")
    try:
        with quiet_hub():
            model: Any = timm.create_model(name, pretrained=not (random or weights))
        if weights:
            model.load_state_dict(read_state_dict(user_path(weights)))
    except (OSError, RuntimeError, SafetensorError, DataError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(
            f"cannot load '{name}' with timm ({reason}): give its state dict with --weights FILE, "
            "or set MODEL.BACKBONE.PRETRAINED False for random weights"
        ) from error
    return from_model(model, name)


def from_model(model: Any, name: str) -> tuple[dict[str, Any], nn.Module, TransformSpec]:
    """Return arch, tower and transform of a model of timm's.

    Raises:
        ConfigError: a model that gives no feature vector of a square image.
    """
    import timm  # start-up: 1 s

    data = timm.data.resolve_model_data_config(model)
    look = tuple(data["mean"]), tuple(data["std"]), data["interpolation"]
    if not _is_plain(model):
        # The classifier goes: features are what stands before it.
        patches = getattr(model, "patch_embed", None)
        size = int((getattr(patches, "img_size", None) or data["input_size"][1:])[0])
        model.reset_classifier(0)
        arch = {"timm": name, "width": _width(model, size, name), "image_size": size}
        mode = "squash" if data.get("crop_mode") == "squash" else "shortest"
        return arch, TimmTower(model), TransformSpec(size, *look, mode)
    block = model.blocks[0]
    arch = _arch(
        data["input_size"][-1], model.patch_embed.patch_size[0], model.embed_dim,
        len(model.blocks), block.attn.num_heads, block.mlp.fc1.out_features, model.norm.eps,
    ) | {
        "layer_scale": not isinstance(block.ls1, nn.Identity),
        "norm_pre": not isinstance(model.norm_pre, nn.Identity),
    }
    spec = TransformSpec(int(data["input_size"][-1]), *look)
    return arch, build_vit(arch, model.state_dict(), name), spec


def _width(model: Any, size: int, name: str) -> int:
    """Return how wide a feature is: of a transformer as it says, else as one image shows."""
    if is_timm(model, *KINDS):
        return int(model.num_features)
    with torch.no_grad():
        out = model.eval()(torch.zeros(1, 3, size, size))
    if not isinstance(out, Tensor) or out.dim() != 2:
        raise ConfigError(f"timm's '{name}' gives no feature vector of an image")
    return int(out.shape[1])


def _is_plain(model: Any) -> bool:
    """Tell whether open_clip's VisionTransformer computes a model of timm's."""
    if not is_timm(model, "VisionTransformer") or not is_timm(model.patch_embed, "PatchEmbed"):
        return False
    block = model.blocks[0]
    if not is_timm(block, "Block"):
        return False
    attn, mlp = block.attn, block.mlp
    if not (is_timm(attn, "Attention") and is_timm(mlp, "Mlp") and attn.qkv.bias is not None):
        return False
    bare = (attn.q_norm, attn.k_norm, attn.norm, mlp.norm)
    return (
        type(mlp.act) is nn.GELU and all(isinstance(n, nn.Identity) for n in bare)
        and model.global_pool == "token" and model.num_prefix_tokens == 1
        and not model.no_embed_class and model.pos_embed is not None
        and type(model.norm) is type(block.norm1) and isinstance(model.norm, nn.LayerNorm)
    )


def _from_transformers(
    name: str, weights: str, random: bool
) -> tuple[dict[str, Any], dict[str, Tensor], TransformSpec]:
    from transformers import AutoConfig, ViTImageProcessor, ViTModel  # start-up: 2 s

    if weights:
        raise ConfigError(f"loader 'transformers-vit' loads its weights by name: drop '{weights}'")
    folder = user_path(name)
    try:
        with quiet_hub(local=folder.is_dir()), quiet_transformers():
            config: Any = AutoConfig.from_pretrained(name)
            if config.model_type != "vit" or config.hidden_act != "gelu" or not config.qkv_bias:
                raise ConfigError(f"'{name}' is a {config.model_type}, not a plain ViT with GELU")
            model: Any = ViTModel(config) if random else ViTModel.from_pretrained(
                name, dtype=torch.float32, add_pooling_layer=False
            )
            there = not folder.is_dir() or (folder / "preprocessor_config.json").is_file()
            process: Any = (
                ViTImageProcessor.from_pretrained(name) if there else ViTImageProcessor()
            )
    except OSError as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(
            f"cannot load '{name}' with transformers ({reason}): give a folder with config.json "
            "and model.safetensors"
        ) from error
    arch = _arch(
        config.image_size, config.patch_size, config.hidden_size, config.num_hidden_layers,
        config.num_attention_heads, config.intermediate_size, config.layer_norm_eps,
    )
    spec = TransformSpec(config.image_size, tuple(process.image_mean), tuple(process.image_std),
                         _RESAMPLE.get(int(process.resample), "bilinear"), "squash")
    return arch, model.state_dict(), spec


def _arch(
    image: int, patch: int, width: int, layers: int, heads: int, hidden: int, eps: float
) -> dict[str, Any]:
    return {
        "image_size": image, "patch_size": patch, "width": width, "layers": layers,
        "heads": heads, "mlp_ratio": hidden / width, "eps": eps, "layer_scale": False,
        "norm_pre": False,
    }
