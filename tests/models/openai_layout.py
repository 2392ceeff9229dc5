"""A backbone from plain tensors in OpenAI's layout: sizes are read off the shapes."""

from __future__ import annotations

from typing import Any

import open_clip
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.openclip import build_model, finish

_WANTED = (
    "visual.conv1.weight",
    "visual.positional_embedding",
    "visual.proj",
    "positional_embedding",
    "token_embedding.weight",
    "ln_final.weight",
    "text_projection",
)


def config_of(
    state: dict[str, Tensor], vision_heads: int | None = None, text_heads: int | None = None
) -> dict[str, Any]:
    """Return the open_clip model config of a ViT state dict in OpenAI's layout.

    Heads cannot be read off the shapes: default width / 64, at least 1.

    Raises:
        ConfigError: a tensor is missing (ModifiedResNet files are loaded by name instead).
    """
    missing = [key for key in _WANTED if key not in state]
    if missing:
        raise ConfigError(f"not a ViT CLIP in OpenAI's layout: tensor '{missing[0]}' is missing")
    vision_width, _, patch, _ = state["visual.conv1.weight"].shape
    text_width = state["ln_final.weight"].shape[0]
    grid = round((state["visual.positional_embedding"].shape[0] - 1) ** 0.5)
    return {
        "embed_dim": int(state["text_projection"].shape[1]),
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": patch * grid,
            "layers": _blocks(state, "visual.transformer.resblocks."),
            "width": vision_width,
            "head_width": vision_width // (vision_heads or max(1, vision_width // 64)),
            "patch_size": patch,
        },
        "text_cfg": {
            "context_length": state["positional_embedding"].shape[0],
            "vocab_size": state["token_embedding.weight"].shape[0],
            "width": text_width,
            "heads": text_heads or max(1, text_width // 64),
            "layers": _blocks(state, "transformer.resblocks."),
        },
    }


def _blocks(state: dict[str, Tensor], prefix: str) -> int:
    return len({key[len(prefix) :].split(".")[0] for key in state if key.startswith(prefix)})


def from_openai(
    state: dict[str, Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    vision_heads: int | None = None,
    text_heads: int | None = None,
    tokenizer: Any = None,
    name: str = "state-dict",
    **place: Any,
) -> Backbone:
    """Build a QuickGELU ViT CLIP from a complete state dict in OpenAI's layout.

    Args:
        state: name -> tensor; computed with in ``dtype`` (float64 stays float64 throughout).
        dtype: of the towers.
        vision_heads: default width / 64.
        text_heads: default width / 64.
        tokenizer: default open_clip's SimpleTokenizer at the model's context length.
        name: shown in results.
        place: further arguments of ``Backbone``: device, plain.

    Raises:
        ConfigError: a tensor is missing.
        DataError: tensors that do not fit together.
    """
    arch = config_of(state, vision_heads, text_heads)
    model, preprocess = build_model(arch)
    if dtype is torch.float64:
        model.double()
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"the state dict does not fit together: {reason}") from error
    tok = tokenizer or open_clip.SimpleTokenizer(context_length=arch["text_cfg"]["context_length"])
    return finish(model, arch, preprocess, tok, name, "state-dict", dtype=dtype, **place)
