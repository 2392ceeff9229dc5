"""The ``clip`` package as files know it, over the backbone of the run that is being built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.compat.surface import package
from fedvlm.compat.towers import CLIP, ImageTower
from fedvlm.compat.world import here, inside
from fedvlm.core.errors import ConfigError, FedvlmError

USUAL_LENGTH = 77  # CLIP's; another backbone has its own


class Models(Mapping[str, str]):
    """``clip._MODELS``: the run's backbone under every name that stands for it."""

    def __getitem__(self, name: str) -> str:
        """Return the address of a backbone.

        Raises:
            ConfigError: another backbone than the run's.
        """
        own = here().model.backbone.name
        if name not in (own, here().cfg.MODEL.BACKBONE.NAME):
            raise ConfigError(
                f"the trainer's file loads clip model '{name}', but the run's backbone is "
                f"{own}: use --backbone {name}"
            )
        return f"fedvlm://{name}"

    def __iter__(self) -> Iterator[str]:
        """Yield the run's backbone."""
        yield from [here().cfg.MODEL.BACKBONE.NAME] if inside() else []

    def __len__(self) -> int:
        """Return 1 in a run, 0 outside."""
        return int(inside())


class SimpleTokenizer:
    """The run's tokenizer; bound when it is used, since files make theirs while imported."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without marks."""
        return encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(_tokenizer().decode(tokens))

    def __getattr__(self, name: str) -> Any:
        """Return what else the tokenizer has (``encoder``, ``bpe_ranks``)."""
        return getattr(_tokenizer(), name)


def available_models() -> list[str]:
    """Return the run's backbone."""
    return list(Models())


def tokenize(
    texts: str | Sequence[str], context_length: int = USUAL_LENGTH, truncate: bool = False
) -> Tensor:
    """Return ids ``[n, L]``; CLIP's usual length means the backbone's own.

    Raises:
        FedvlmError: a text that does not fit, without ``truncate`` (CLIP's own rule).
    """
    backbone = here().model.backbone
    texts = [texts] if isinstance(texts, str) else list(texts)
    length = backbone.context_length if context_length == USUAL_LENGTH else context_length
    if not truncate:
        marks = 2
        long = [t for t in texts if len(encode(t)) + marks > length]
        if long:
            raise FedvlmError(f"'{long[0]}' is too long for context length {length}")
    return backbone.tokenize(texts, length).to(torch.long)  # on the run's device, as the towers


def encode(text: str) -> list[int]:
    """Return the ids of a text, without marks."""
    backbone = here().model.backbone
    if hasattr(backbone.tokenizer, "encode"):
        return list(backbone.tokenizer.encode(text))
    ids = backbone.tokenize([text])  # a tokenizer that only fills rows
    return list(ids[0, 1 : int(backbone.token_ends(ids)[0])].tolist())


def download(url: str, root: str = "") -> str:
    """Return the path of a placeholder: ``build_model`` knows the weights without it."""
    return str(here().weights())


def build_model(state_dict: Any = None, design_details: Mapping[str, Any] | None = None) -> CLIP:
    """Return a CLIP of the run's backbone; with MaPLe's ``design_details`` one that takes prompts.

    Args:
        state_dict: of the placeholder; not read.
    """
    world = here()
    with torch.no_grad():
        clip = CLIP(world.model, world.share, design_details)
    return clip.to(world.model.device, world.model.dtype).eval()


def load(
    name: str, device: Any = None, jit: bool = False, download_root: str = ""
) -> tuple[CLIP, Any]:
    """Return (CLIP, None): fedvlm prepares the images itself."""
    _ = Models()[name] if not Path(name).exists() else name
    return build_model(), None


def convert_weights(model: nn.Module) -> None:
    """Leave a model in the run's type (OpenAI's: to fp16)."""


def _tokenizer() -> Any:
    return here().model.backbone.tokenizer


def clip_modules() -> dict[str, ModuleType]:
    """Return ``clip``, ``clip.clip``, ``clip.model`` and ``clip.simple_tokenizer``."""
    calls = {
        "available_models": available_models, "load": load, "tokenize": tokenize,
        "_MODELS": Models(), "_download": download, "_Tokenizer": SimpleTokenizer,
        "_tokenizer": SimpleTokenizer(), "build_model": build_model,
    }
    return package("clip", {
        "": {n: v for n, v in calls.items() if n[0] != "_"},
        "clip": calls,
        "model": {"CLIP": CLIP, "VisionTransformer": ImageTower, "build_model": build_model,
                  "convert_weights": convert_weights},
        "simple_tokenizer": {"SimpleTokenizer": SimpleTokenizer},
    })
