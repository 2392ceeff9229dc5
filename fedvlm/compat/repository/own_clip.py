"""A repository's own ``clip/`` over the run's backbone.

Many repositories change OpenAI's ``clip/model.py``: their image tower returns patches, their blocks
take adapters. Such a package is imported as it is; only its doors are replaced: the table of
weights, the tokenizer, and ``build_model*``, which receive the run's backbone as the state dict
that OpenAI's code reads. What it makes of that is a frozen copy, held by its hash like every frozen
module (``VLModel.freeze``); images go through it as pixels.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.compat import clip as ours
from fedvlm.compat.repository.find import syntax_tree
from fedvlm.compat.world import here
from fedvlm.core.errors import ConfigError

# sha256 of model.py without comments and spaces: CLIPs that fedvlm.compat.towers computes itself
KNOWN = frozenset({
    "ef8186cda0f0fb69",  # OpenAI's, in CoOp, KgCoOp, ProGrad
    "4b70f6c723caab1c",  # with the prompts of MaPLe, IVLP, VPT and PromptSRC
})
HEAD = 64  # OpenAI's build_model: width of an attention head
Builder = Callable[..., nn.Module]


def clip_models(files: Sequence[Path]) -> list[Path]:
    """Return the files that build a CLIP from a state dict and are none of ``KNOWN``."""
    return [f for f in files if _builds(f) and _print_of(f) not in KNOWN]


@cache
def _builds(file: Path) -> bool:
    return any(
        isinstance(node, ast.FunctionDef) and _is_builder(node.name)
        and bool(node.args.args) and node.args.args[0].arg == "state_dict"
        for node in syntax_tree(file).body
    )


@cache
def _print_of(file: Path) -> str:
    text = re.sub(r"\s+", "", re.sub(r"#.*", "", file.read_text(encoding="utf-8")))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_builder(name: str) -> bool:
    return name.startswith("build_model")


def open_doors(module: ModuleType) -> None:
    """Give a module of the repository the run's weights and tokenizer, where it has such doors."""
    names = vars(module)
    mine = {n: v for n, v in names.items() if getattr(v, "__module__", "") == module.__name__}
    if isinstance(mine.get("SimpleTokenizer"), type):
        names["SimpleTokenizer"] = ours.SimpleTokenizer
    if isinstance(names.get("_MODELS"), dict) and "_download" in names:
        names["_MODELS"], names["_download"] = ours.Models(), ours.download
        names["tokenize"] = ours.tokenize
        if "available_models" in names:
            names["available_models"] = ours.available_models
    for name, value in mine.items():
        if _is_builder(name) and callable(value) and not isinstance(value, type):
            names[name] = on_backbone(value)


def on_backbone(build: Builder) -> Builder:
    """Return a ``build_model`` whose first argument is always the run's backbone."""
    @wraps(build)
    def door(state_dict: Any = None, *args: Any, **more: Any) -> nn.Module:
        world = here()
        with _heads_of_backbone():
            model = build(openai_state(), *args, **more)
        _fit(model)
        model = model.to(world.model.device, world.model.dtype)
        frozen = set(openai_state())
        tensors = [*model.named_parameters(), *model.named_buffers()]
        world.towers |= {id(v) for n, v in tensors if n in frozen}
        world.built.append(model)  # ids stay true while it lives
        return model.eval()

    return door


def openai_state() -> dict[str, Tensor]:
    """Return the run's backbone in the names and shapes of OpenAI's state dict."""
    clip = ours.build_model()
    with torch.no_grad():
        state = {n: v.detach() for n, v in clip.state_dict().items() if "attn_mask" not in n}
        for name in [n for n in state if n.endswith("attn.q_proj.weight")]:
            at = name.removesuffix("q_proj.weight")
            for kind in ("weight", "bias"):
                parts = [state.pop(f"{at}{x}_proj.{kind}") for x in "qkv"]
                state[f"{at}in_proj_{kind}"] = torch.cat(parts)
    return {n.replace("visual.tower.", "visual."): v for n, v in state.items()}


@contextmanager
def _heads_of_backbone() -> Iterator[None]:
    """Give attentions that OpenAI's code makes the backbone's heads: width // 64 may be none."""
    clip, before = ours.build_model(), nn.MultiheadAttention.__init__
    blocks = [getattr(tower, "transformer", None) for tower in (clip.visual, clip)]
    heads = {b.width: int(b.resblocks[0].attn.num_heads) for b in blocks if b is not None}

    def init(self: Any, embed_dim: int, num_heads: int, *args: Any, **more: Any) -> None:
        wanted = num_heads if num_heads != embed_dim // HEAD else heads.get(embed_dim, num_heads)
        before(self, embed_dim, wanted, *args, **more)

    nn.MultiheadAttention.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.MultiheadAttention.__init__ = before  # type: ignore[method-assign]


def _fit(model: nn.Module) -> None:
    """Give a CLIP of OpenAI's code the backbone's activation and its number of attention heads.

    ``build_model`` infers all other sizes from the state dict; these two it takes as OpenAI's.

    Raises:
        ConfigError: the number of heads cannot be given.
    """
    backbone = here().model.backbone
    if any(type(module) is nn.GELU for module in backbone.model.modules()):
        places = [(parent, name) for parent in model.modules() for name, module
                  in parent.named_children() if type(module).__name__ == "QuickGELU"]
        for parent, name in places:
            setattr(parent, name, nn.GELU())
    clip = ours.build_model()
    for ours_, theirs in ((clip.visual, model.visual), (clip, getattr(model, "transformer", None))):
        blocks = getattr(ours_, "transformer", None)
        heads = 0 if blocks is None else int(blocks.resblocks[0].attn.num_heads)
        if blocks is None or blocks.width == heads * HEAD:
            continue
        found = [] if not isinstance(theirs, nn.Module) else [
            m for m in theirs.modules() if isinstance(m, nn.MultiheadAttention)]
        if len(found) < blocks.layers:
            raise ConfigError(
                "this repository has its own clip/ with an attention of its own, whose heads have "
                f"{HEAD} numbers, but those of '{backbone.name}' have {blocks.width // heads}: use "
                "--backbone ViT-B/16 or another model of OpenAI's"
            )
        for attention in found:
            attention.num_heads, attention.head_dim = heads, attention.embed_dim // heads
