"""The towers of a live backbone as plain open_clip modules again, in float32 on the CPU.

``layers.cast_linears`` remade the image tower's layers and may have folded QuickGELU's constant
into its MLPs; an exported model has open_clip's own names and layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.hf_clip import HUB_NAMES
from fedvlm.models.load.openclip import build_image_side, build_model
from fedvlm.models.load.torchvision import empty_classifier
from fedvlm.models.load.vit import empty_vit
from fedvlm.models.towers.adapters import FACTOR_A, FACTOR_B, sites
from fedvlm.models.towers.clip import is_block, is_trunk
from fedvlm.models.towers.fold import QUICK_GELU
from fedvlm.models.towers.layers import SplitAttention
from fedvlm.models.towers.trunk_blocks import places
from fedvlm.models.vlmodel import VLModel, staged_tower

VISUAL = "visual."
VIT, TRUNK = "transformer.resblocks", "trunk.blocks"  # of open_clip's towers, and timm's
LAYERS = {"o": "attn.out_proj", "fc": "mlp.c_fc", "proj": "mlp.c_proj"}
Places = dict[str, Any]


def plain_clip(model: VLModel) -> nn.Module:
    """Return open_clip's CLIP with the frozen weights, made once per model; not to be changed.

    Raises:
        ConfigError: an image tower without a text tower, or beside one that is not CLIP's.
    """
    if not model.backbone.standard:
        what = "a text tower that is not CLIP's" if model.has_text else "only an image tower"
        raise ConfigError(
            f"backbone '{model.backbone.name}' has {what}, but the format needs open_clip's CLIP: "
            "use --format onnx"
        )
    return model.once("export.plain_clip", lambda: _build(model.backbone))


def plain_visual(model: VLModel) -> nn.Module:
    """Return a new copy of the frozen image tower, open_clip's own module, in eval mode."""
    arch = model.backbone.arch
    if model.backbone.standard:
        return copy.deepcopy(plain_clip(model).get_submodule("visual"))
    visual: Any
    if "torchvision" in arch:
        visual = empty_classifier(arch["torchvision"])
    else:
        visual = build_image_side(arch)[0].visual if "vision_cfg" in arch else empty_vit(arch)
    visual.load_state_dict(visual_state(model.backbone.model.visual), strict=True)
    if getattr(visual, "output_tokens", False):
        visual.output_tokens = False  # CoCa's: the feature alone
    visual.eval().requires_grad_(False)
    return cast(nn.Module, visual)


def _build(backbone: Backbone) -> nn.Module:
    clip, _ = build_model(backbone.arch)
    text = {n: v.detach().cpu() for n, v in backbone.model.state_dict().items()
            if not n.startswith(VISUAL)}
    image = {VISUAL + n: v for n, v in visual_state(backbone.model.visual).items()}
    clip.load_state_dict(text | image, strict=True)
    return clip.eval().requires_grad_(False)


def visual_state(visual: nn.Module) -> Tree:
    """Return a live image tower's tensors under open_clip's names, on the CPU.

    Packed attentions come back from split ones; a folded QuickGELU is taken out again, which moves
    the last bit of some MLP weights.
    """
    state = {n: v.detach().cpu().clone() for n, v in visual.state_dict().items()}
    for name, module in visual.named_modules():
        if isinstance(module, SplitAttention):
            for kind in ("weight", "bias"):
                rows = [state.pop(f"{name}.{part}_proj.{kind}") for part in "qkv"]
                state[f"{name}.in_proj_{kind}"] = torch.cat(rows)
        elif type(getattr(module, "gelu", None)) is nn.SiLU:
            for layer, factor in (("c_fc.weight", 1 / QUICK_GELU), ("c_fc.bias", 1 / QUICK_GELU),
                                  ("c_proj.weight", QUICK_GELU)):
                value = state[f"{name}.{layer}"]
                state[f"{name}.{layer}"] = (value.double() * factor).to(value.dtype)
    return state


def image_blocks(visual: nn.Module) -> str:
    """Return where an image tower keeps its blocks, or would."""
    return TRUNK if is_trunk(visual) else VIT


def places_of(block: Any) -> Places:
    """Return where a plain block keeps what clients change, as plain values.

    ``q, k, v, o, fc, proj``: ``[weight, first row, rows]`` of each weight that has rows of it, one
    after the other; ``1, 2``: the norms; ``attn, mlp``: what a branch goes through last.
    """
    if not is_block(block):
        out: Places = {site: [[f"{r.name}.weight", r.first, r.count] for r in rows]
                       for site, rows in places(block).items()}
        return out | {"1": "norm1", "2": "norm2", "attn": "drop_path1", "mlp": "drop_path2"}
    rows = block.attn.embed_dim
    out = {s: [["attn.in_proj_weight", i * rows, rows]] for i, s in enumerate("qkv")}
    for site, name in LAYERS.items():
        out[site] = [[f"{name}.weight", 0, len(block.get_submodule(name).weight)]]
    return out | {"1": "ln_1", "2": "ln_2", "attn": "ls_1", "mlp": "ls_2"}


def block_places(model: VLModel) -> Places:
    """Return what a card says of a tower whose blocks are changed: ``places_of`` any of them."""
    path = image_blocks(model.backbone.model.visual)
    block = plain_visual(model).get_submodule(path).get_submodule("0")
    return {"blocks": path, "places": places_of(block)}


def stage_places(model: VLModel) -> Places:
    """Return what a card says of a tower with adapters behind its stages.

    ``stages``: what ends each, by its name in the tower; ``channels``: their axis in its output.
    """
    tower = staged_tower(model)
    assert tower is not None  # noqa: S101 (it has adapters behind its stages)
    names = [stage.parts[-1] for stage in tower.blocks]
    return {"blocks": "", "places": {"stages": names, "channels": 3 if tower.last else 1}}


def merge_lora(clip: nn.Module, lora: Mapping[str, Tensor], scale: float) -> Tree:
    """Return a CLIP's tensors with LoRA of both towers, and ``image.ln.*``, added to the weights.

    Args:
        clip: open_clip's CLIP or CustomTextCLIP, which stays as it is.
        lora: ``<tower>.lora.<block>.<site>.A`` and ``.B``, no client axis; other names but
            ``image.ln.*`` are ignored.
        scale: alpha over the rank.
    """
    out = {n: v.clone() for n, v in clip.state_dict().items()}
    text = "text." if hasattr(clip, "text") else ""
    where = {"text": text + VIT, "image": VISUAL + image_blocks(clip.get_submodule("visual"))}
    for site in sites(lora):
        tower, _, index, layer = site.split(".")
        block = f"{where[tower]}.{index}"
        update = scale * lora[site + FACTOR_B].double() @ lora[site + FACTOR_A].double()
        for name, first, count in places_of(clip.get_submodule(block))[layer]:
            part, update = update[:count], update[count:]
            rows = out[f"{block}.{name}"][first : first + count]
            rows.copy_((rows.double() + part).to(rows.dtype))
    for name in (n for n in lora if n.startswith("image.ln.")):
        _, _, index, place, kind = name.split(".")
        block = f"{where['image']}.{index}"
        out[f"{block}.{places_of(clip.get_submodule(block))[place]}.{kind}"] += lora[name]
    return out


def hub_name(backbone: Backbone) -> str:
    """Return the base model's name on the Hub, or an empty string where it has none."""
    source = backbone.weights.removeprefix("transformers:")
    if source != backbone.weights:
        return source if source in HUB_NAMES.values() else ""
    return HUB_NAMES.get(backbone.name, "") if backbone.weights == "openai" else ""


def arch_of(backbone: Backbone) -> dict[str, Any]:
    """Return the open_clip model config without what only builds it (``custom_text``)."""
    return {k: v for k, v in copy.deepcopy(backbone.arch).items() if k != "custom_text"}
