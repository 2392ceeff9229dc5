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


def usage(recipe: ExportRecipe, imports: str, model: str, transform: str, feature: str) -> str:
    """Return a card's code, which runs in the model's folder: from an image's file to logits.

    Args:
        imports: of the format's library.
        model: lines that load ``model``.
        transform: of an image, an expression.
        feature: of ``pixels``, an expression.
    """
    texts = _LOGITS if "text" in recipe.tensors else (
        "z = F.normalize(z, dim=-1)  # times a text's feature of length one: the cosine")
    return (
        f"```python\nimport json\n{imports}\nfrom safetensors.torch import load_file\n"
        "from torch.nn import functional as F\nfrom pixels import decode  # pixels.py of this "
        f"folder\n\n{model}\n"
        f"card = json.load(open('{CARD}', encoding='utf-8'))\n"
        f"pixels = {transform}(decode(open('image.jpg', 'rb').read()))[None]\n"
        f"z = {feature}\n{texts}\n```")


_LOGITS = f"""text = load_file('{WEIGHTS}')['text']  # [classes, d], normalised
logits = card['scale'] * F.normalize(z, dim=-1) @ text.T  # over card['classnames']"""
