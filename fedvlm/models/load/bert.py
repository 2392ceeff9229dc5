"""A text encoder of transformers as the one tower of a run whose samples are texts.

From a folder, or a name in the local cache, with its tokenizer. Only a head, or what lies inside
the tower, can be trained: there is no second tower to compare with.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.transform import TextSpec
from fedvlm.models.load.hf_text import HUB
from fedvlm.models.load.vit import VisionOnly, ViTBackbone
from fedvlm.models.load.weights import private_rng, quiet_hub, quiet_transformers
from fedvlm.models.towers.encoder import EncoderTower

LOADERS = ("transformers-text",)
LENGTH = 128  # tokens of a text
KINDS = ("bert", "roberta", "xlm-roberta")
_OFFSET = ("roberta", "xlm-roberta")  # their first position is the one behind padding's
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")


class TextTrunk(ViTBackbone):
    """A frozen encoder of texts: ``Backbone.encode_image`` takes token numbers ``[n, L]``."""

    def draw_input(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random texts ``[count, L]``: token numbers, padding behind the first half."""
        encoder, length = self.model.visual.encoder, self.image_size
        most = int(encoder.config.vocab_size)
        ids = torch.randint(most, (count, length), generator=generator)
        ids[:, max(1, length // 2):] = self.model.visual.pad
        return ids.float()


def load(
    name: str, weights: str = "", *, loader: str, random: bool = False, seed: int = 0,
    length: int = LENGTH, **place: Any,
) -> TextTrunk:
    """Load an encoder and its tokenizer; see ``backbones.load_backbone``. Nothing is downloaded.

    Args:
        name: a folder with config.json, model.safetensors and the tokenizer's files, or a name in
            the local cache (``bert-base-uncased``).
        weights: none; they lie in the folder.
        random: random weights from ``seed``; config and tokenizer are still read.
        length: tokens of a text that are read, the marks at both ends among them.
        place: arguments of ``Backbone``: dtype, device, plain.

    Raises:
        ConfigError: another kind of encoder, weights named, more tokens than it has positions.
        DataError: something is not on this machine or cannot be read.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer  # start-up: 2 s

    if weights:
        raise ConfigError(f"loader '{loader}' loads its weights by name: drop '{weights}'")
    folder = user_path(name)
    source = str(folder) if folder.is_dir() else name.removeprefix(HUB)
    try:
        with quiet_hub(local=True), quiet_transformers():
            config: Any = AutoConfig.from_pretrained(source)
            if config.model_type not in KINDS:
                raise ConfigError(
                    f"'{name}' is a {config.model_type}, and samples that are texts are read by "
                    f"{', '.join(KINDS)} only: choose such an encoder"
                )
            size = {"config": config, "add_pooling_layer": False}
            if random:
                with private_rng(seed):
                    encoder = AutoModel.from_config(**size)
            else:
                encoder = AutoModel.from_pretrained(
                    source, dtype=torch.float32, use_safetensors=True, **size)
            tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(
            f"cannot load '{name}' with transformers ({reason}): give a folder with config.json, "
            "model.safetensors and the tokenizer's files as --backbone transformers-text:FOLDER "
            "(nothing is downloaded)"
        ) from error
    _check_tokenizer(tokenizer, config, name, folder)
    places = int(config.max_position_embeddings)
    places -= (int(config.pad_token_id) + 1) * (config.model_type in _OFFSET)
    if length > places:
        raise ConfigError(f"INPUT.TEXT_LENGTH {length}: '{name}' has {places} positions; set it to "
                          f"at most {places}")
    sizes = {k: v for k, v in sorted(config.to_dict().items()) if k not in _VOLATILE}
    arch = {"encoder": sizes, "width": int(config.hidden_size), "pool": "mean"}
    out = TextTrunk(
        VisionOnly(EncoderTower(encoder)), name=name, arch=arch,
        weights="random" if random else loader, spec=_spec(tokenizer, length), **place,
    )
    out.notes = (f"samples are texts, of which {name} reads the first {length} tokens "
                 "(INPUT.TEXT_LENGTH); there is no zero-shot reference",)
    return out


def _check_tokenizer(tokenizer: Any, config: Any, name: str, folder: Path) -> None:
    """Refuse a tokenizer that is not the encoder's (``DataError``)."""
    highest = max(tokenizer.get_vocab().values(), default=0)
    if tokenizer.pad_token_id != config.pad_token_id or highest >= config.vocab_size:
        raise DataError(
            f"the tokenizer of '{name}' does not belong to its encoder (padding "
            f"{tokenizer.pad_token_id} and {config.pad_token_id}, highest token {highest:,} of "
            f"{config.vocab_size:,}): put the encoder's own tokenizer's files into {folder}"
        )


def _spec(tokenizer: Any, length: int) -> TextSpec:
    """Return how texts are read; safe for several threads."""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    fast = getattr(tokenizer, "backend_tokenizer", None)
    told = fast.to_str() if fast is not None else json.dumps(
        [sorted(tokenizer.get_vocab().items()), tokenizer.init_kwargs], default=str)
    lock = Lock()  # a fast tokenizer keeps how it pads and cuts

    def tokenize(text: str) -> list[int]:
        with lock:
            ids: list[int] = tokenizer(
                text, truncation=True, max_length=length, padding="max_length")["input_ids"]
        return ids

    digest = hashlib.sha256(f"{type(tokenizer).__name__} {told}".encode()).hexdigest()
    return TextSpec(length, (), (), vocabulary=digest, tokenize=tokenize)
