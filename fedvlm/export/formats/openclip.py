"""``open_clip``: a CLIP for ``local-dir:``, LoRA and LayerNorms merged, and a classifier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from fedvlm.core import files
from fedvlm.export.formats.beside import read_classifier, usage, write_classifier
from fedvlm.export.recipe import ExportRecipe
from fedvlm.export.towers import merge_lora, plain_clip
from fedvlm.export.trained import TrainedModel

LIBRARY = "open_clip"


def write(recipe: ExportRecipe, trained: TrainedModel, folder: Path, common: Path) -> str:
    """Write open_clip_config.json, open_clip_model.safetensors and the classifier; say how to use.

    Raises:
        ConfigError: prediction needs more than merged weights and class features.
    """
    write_classifier(recipe, folder)
    state = merge_lora(plain_clip(trained.model), recipe.tensors | recipe.lora, recipe.card["lora"])
    look = {k: v for k, v in recipe.card["transform"].items() if k != "size"}
    files.write_json(folder / "open_clip_config.json", {
        "model_cfg": trained.model.backbone.arch, "preprocess_cfg": look,
    })
    tensors = {n: v.contiguous().clone() for n, v in state.items()}
    save_file(tensors, str(folder / "open_clip_model.safetensors"))
    return usage(
        recipe, "import open_clip",
        "model, _, transform = open_clip.create_model_and_transforms('local-dir:.')", "transform",
        "model.eval().encode_image(pixels)",
    )


def read(folder: Path) -> Callable[[Tensor], Tensor]:
    """Return ``pixels -> logits`` through ``open_clip.create_model``."""
    import open_clip  # start-up: 3 s

    model: Any = open_clip.create_model(f"local-dir:{folder}").eval()
    head = read_classifier(folder)
    return lambda pixels: head(model.encode_image(pixels))
