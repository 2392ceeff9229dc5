"""Small random towers of timm's: the shapes of SigLIP, PE-Core, DINOv2, DINOv3, EVA-02, ViTamin.

Each is registered with timm under ``small_<kind>``: timm's own model of that family with two narrow
blocks and 32-pixel images. Those with a text tower are built by open_clip around them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.models import register_model
from timm.models.vitamin import GeGluMlp

from fedvlm.models.backbone import Backbone
from fedvlm.models.load.openclip import build_model, finish
from fedvlm.models.load.tiny import TinyTokenizer
from fedvlm.models.load.vit import VisionOnly, ViTBackbone, from_model
from tests.models.toys import TEXT

SIDE, WIDTH = 32, 48
SMALL: dict[str, Any] = {
    "embed_dim": WIDTH, "depth": 2, "num_heads": 3, "patch_size": 8, "img_size": SIDE,
}
# kind -> timm's model, what differs from ``SMALL``, and open_clip's pool and projection where a
# text tower stands beside it.
KINDS: Mapping[str, tuple[str, dict[str, Any], tuple[str, Any] | None]] = {
    "siglip": ("vit_base_patch16_siglip_224", {}, ("map", "none")),
    "pe": ("vit_pe_core_tiny_patch16_384", {}, ("map", None)),
    "eva02": ("eva02_base_patch16_clip_224", {}, ("token", None)),
    "eva01": ("eva_giant_patch14_224", {}, ("token", None)),
    "gap": ("vit_medium_patch16_gap_256", {}, ("", "linear")),
    "vitamin": ("vit_medium_patch16_gap_256", {"mlp_layer": GeGluMlp, "qk_norm": True}, None),
    "dinov2": ("vit_small_patch14_reg4_dinov2", {}, None),
    "dinov2g": ("vit_giant_patch14_reg4_dinov2", {}, None),
    "dinov3": ("vit_small_patch16_dinov3", {}, None),
    "dinov3plus": ("vit_small_plus_patch16_dinov3_qkvb", {}, None),
    "mixed": ("vit_small_patch16_rope_mixed_224", {}, None),
    "postnorm": ("eva02_enormous_patch14_clip_224", {}, None),
    "rms": ("vit_base_patch16_siglip_224", {"norm_layer": "rmsnorm"}, None),
    "parallel": ("vit_base_patch16_xp_224", {}, None),
}
# Trunks of which only the feature is read, as for ``KINDS``, without ``SMALL``.
FEATURES: Mapping[str, tuple[str, dict[str, Any], tuple[str, Any] | None]] = {
    "convnext": ("convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 12, 16, 24)},
                 ("", "linear")),
    "swin": ("swin_tiny_patch4_window7_224", {
        "patch_size": 2, "window_size": 2, "embed_dim": 12, "depths": (1, 1, 1, 1),
        "num_heads": (1, 2, 2, 3), "img_size": SIDE}, ("", "linear")),
    "fastvit": ("fastvit_t8", {"layers": (1, 1, 1, 1), "embed_dims": (12, 12, 24, 24)},
                ("avg", None)),
    "relpos": ("vit_relpos_small_patch16_224", {
        "embed_dim": WIDTH, "depth": 2, "num_heads": 3, "patch_size": 8, "img_size": SIDE},
               ("", "linear")),
    "resnet": ("resnet10t", {}, None),
    "mobilenetv2": ("mobilenetv2_035", {}, None),
    "mobilenetv3": ("mobilenetv3_small_050", {}, None),
}
REFUSED = ("postnorm", "rms", "parallel")
READ = tuple(k for k in KINDS if k not in REFUSED)
WITH_TEXT = tuple(k for k in READ if KINDS[k][2] is not None)


def small(kind: str) -> str:
    """Return the name that timm knows it by."""
    return f"small_{kind}"


def _entry(kind: str) -> Any:
    base, more, _ = (FEATURES if kind in FEATURES else KINDS)[kind]
    first = SMALL if kind in KINDS else {}

    def build(pretrained: bool = False, **given: Any) -> Any:
        return timm.create_model(base, **(first | more | given))

    build.__name__ = small(kind)
    return register_model(build)


for _kind in (*KINDS, *FEATURES):
    setattr(sys.modules[__name__], small(_kind), _entry(_kind))


def shake(model: Any, seed: int = 0) -> None:
    """Move every parameter away from its neutral start."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not name.startswith("logit"):
                p.add_(0.05 * torch.randn(p.shape, generator=gen))


def alone(kind: str, **place: Any) -> Backbone:
    """Return a backbone without text tower."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = timm.create_model(small(kind))
    shake(model)
    arch, visual, spec = from_model(model, small(kind))
    return ViTBackbone(
        VisionOnly(visual), name=kind, weights="random", arch=arch, spec=spec, **place
    )


def paired(kind: str, **place: Any) -> Backbone:
    """Return an open_clip backbone with this image tower and a small text tower."""
    pooling = (FEATURES if kind in FEATURES else KINDS)[kind][2]
    assert pooling is not None
    pool, proj = pooling
    # SigLIP's features are as wide as its tower, and its text tower is not causal.
    text = {"no_causal_mask": True, "pool_type": "last", "proj_bias": True}
    arch: dict[str, Any] = {
        "embed_dim": WIDTH if proj == "none" else 24, "custom_text": True,
        "vision_cfg": {"image_size": SIDE, "timm_model_name": small(kind), "timm_pool": pool,
                       "timm_proj": proj},
        "text_cfg": TEXT | (text if kind == "siglip" else {}),
    } | ({"init_logit_bias": -10} if kind == "siglip" else {})
    model, preprocess = build_model(arch)
    shake(model)
    tokenizer = TinyTokenizer(TEXT["context_length"])
    return finish(model, arch, preprocess, tokenizer, kind, "", **place)
