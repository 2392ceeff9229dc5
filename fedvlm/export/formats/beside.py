"""What stands beside a tower that another library computes: class features, names, scale."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedvlm.core import files
from fedvlm.core.errors import ConfigError
from fedvlm.export.recipe import ExportRecipe

WEIGHTS, CARD = "classifier.safetensors", "classifier.json"


def write_classifier(recipe: ExportRecipe, folder: Path) -> None:
    """Write the class features ``text [C, d]``, and what belongs to them.

    They are normalised; of sets of labels the neutral prompt's feature is taken from each. A model
    trained on captions has none: the tower's own feature is what it says.

    Raises:
        ConfigError: prediction needs more than a tower and class features.
    """
    if recipe.beyond:
        raise ConfigError(
            f"prediction needs {recipe.beyond}, which the format cannot hold: use --format "
            "safetensors or onnx"
        )
    names = ("method", "classnames", "scale", "transform", "sets")
    keys = [name for name in names if name in recipe.card]
    files.write_json(folder / CARD, {k: recipe.card[k] for k in keys})
    if "text" in recipe.tensors:
        save_file({"text": recipe.tensors["text"]}, str(folder / WEIGHTS))


def read_classifier(folder: Path) -> Callable[[Tensor], Tensor]:
    """Return ``image features [n, d] -> logits [n, C]``, without classes their directions."""
    if not (folder / WEIGHTS).exists():
        return lambda z: F.normalize(z, dim=-1)
    scale = json.loads((folder / CARD).read_text(encoding="utf-8"))["scale"]
    text = load_file(folder / WEIGHTS)["text"]
    return lambda z: scale * F.normalize(z, dim=-1) @ text.T


def usage(recipe: ExportRecipe) -> str:
    """Return what a card says of the way from image features to what the model says."""
    return _USAGE if "text" in recipe.tensors else (
        "z = F.normalize(z, dim=-1)  # times a text's feature of length one: the cosine")


_USAGE = """text = load_file('classifier.safetensors')['text']  # [classes, d], normalised
card = json.load(open('classifier.json'))
logits = card['scale'] * F.normalize(z, dim=-1) @ text.T  # over card['classnames']"""
