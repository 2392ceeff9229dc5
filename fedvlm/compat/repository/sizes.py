"""Sizes of a backbone that a file writes into its layers as numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedvlm.compat.repository.find import syntax_tree
from fedvlm.models.vlmodel import VLModel

# of OpenAI's models: width of the text tower, of the image tower, of the features
OPENAI: Mapping[str, frozenset[int]] = {
    "ViT-B/32": frozenset({512, 768}), "ViT-B/16": frozenset({512, 768}),
    "ViT-L/14": frozenset({768, 1024}), "RN50": frozenset({512, 1024}),
}  # fmt: skip
LAYERS = frozenset({"Linear", "Conv2d", "Conv1d", "LayerNorm", "empty", "zeros", "ones", "randn",
                    "Adapter", "MultiheadAttention"})


def written_sizes(files: Iterable[Path]) -> frozenset[int]:
    """Return the widths of OpenAI's models that stand as numbers in calls that make layers."""
    widths = frozenset().union(*OPENAI.values())
    found = set[int]()
    for file in files:
        for node in ast.walk(syntax_tree(file)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LAYERS:
                values = [*node.args, *(k.value for k in node.keywords)]
                found |= {a.value for a in values if isinstance(a, ast.Constant)
                          and type(a.value) is int and a.value in widths}
    return frozenset(found)


def wanted_backbone(files: Iterable[Path], model: VLModel) -> str:
    """Return what to say when a file fails on a backbone of other sizes; empty where they fit."""
    visual = getattr(model.backbone.model.visual, "class_embedding", None)
    own = {model.text_width, model.embed_dim, 0 if visual is None else visual.shape[-1]}
    sizes = written_sizes(files)
    if not sizes - own:
        return ""
    fit = [name for name, widths in OPENAI.items() if sizes <= widths]
    words = " and ".join(map(str, sorted(sizes)))
    way = f": use --backbone {' or '.join(fit[:2])}" if fit else ""
    return (f"; its file writes the sizes {words} into its layers, which '{model.backbone.name}' "
            f"does not have{way}")
