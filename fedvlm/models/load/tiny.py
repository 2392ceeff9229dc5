"""The embedded default backbone: its files, its tokenizer and the check of its weights.

Read without open_clip (3 s of CPU at start-up); tests hold model and tokenizer to open_clip's own.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.transform import TransformSpec
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.names import TINY
from fedvlm.models.towers.clip import Clip

BACKBONES = "tiny"
TINY_DIR: Path = Path(__file__).resolve().parents[1] / "tiny"
TINY_WEIGHTS = "open_clip_model.safetensors"
_CONFIG_FILE = "open_clip_config.json"

VOCAB_SIZE = 4096
CONTEXT_LENGTH = 48
_BYTES = 256
_WORD_END = "</w>"
_MERGES = VOCAB_SIZE - 2 * _BYTES - 2  # bytes, bytes that end a word, and two marks need no merge
_FIRST_BYTE = ord("!")  # CLIP numbers the bytes from here on
# Letters, single digits, other marks; English clitics stay whole (CLIP's rule, on ASCII).
_PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[a-z]+|[0-9]|[^\sa-z0-9]+")


def load(
    name: str = TINY, weights: str = "", *, loader: str = "", random: bool = False, seed: int = 0,
    **place: Any,
) -> Backbone:
    """Load the embedded backbone, whatever ``loader``, ``random`` and ``seed`` are.

    Args:
        weights: must be empty.
        place: arguments of ``Backbone``: dtype, device, plain.

    Raises:
        ConfigError: weights are named.
        DataError: its files are missing or damaged.
    """
    if weights:
        raise ConfigError(f"--backbone tiny has its own weights: drop --weights '{weights}'")
    verify_tiny()
    config = json.loads((TINY_DIR / _CONFIG_FILE).read_text(encoding="utf-8"))
    arch, look = config["model_cfg"], config["preprocess_cfg"]
    model = Clip(arch)
    model.load_state_dict(load_file(TINY_DIR / TINY_WEIGHTS))
    spec = TransformSpec(
        arch["vision_cfg"]["image_size"], tuple(look["mean"]), tuple(look["std"]),
        look["interpolation"], look["resize_mode"],
    )
    tokenizer = TinyTokenizer(arch["text_cfg"]["context_length"])
    return Backbone(
        model, tokenizer, name=TINY, weights="embedded", arch=arch, spec=spec, **place
    )


class TinyTokenizer:
    """CLIP's byte pairs with a vocabulary of 4,096, the first of the merges that open_clip ships.

    Source: Sennrich et al. 2016 (byte pair encoding). SOT and EOT are 4094 and 4095, so CLIP's
    argmax pooling works. Text that is not plain ASCII goes to open_clip's tokenizer, which mends
    encodings and knows Unicode's classes.

    Args:
        context_length: ids per text where a call names no other number.
    """

    sot_token_id, eot_token_id = VOCAB_SIZE - 2, VOCAB_SIZE - 1

    def __init__(self, context_length: int = CONTEXT_LENGTH) -> None:
        self.context_length = context_length

    def __call__(self, texts: Sequence[str] | str, context_length: int | None = None) -> Tensor:
        """Ids [n, context_length], filled up with 0; a longer text is cut and ends with EOT."""
        texts = [texts] if isinstance(texts, str) else texts
        length = context_length or self.context_length
        ids = torch.zeros(len(texts), length, dtype=torch.long)
        for row, text in zip(ids, texts, strict=True):
            marked = [self.sot_token_id, *self.encode(text), self.eot_token_id]
            if len(marked) > length:
                marked = [*marked[: length - 1], self.eot_token_id]
            row[: len(marked)] = torch.tensor(marked)
        return ids

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without SOT and EOT."""
        plain = text.isascii() and text.isprintable() and not {"&", "<"} & set(text)
        if not plain:
            ids: list[int] = open_clip_tokenizer().encode(text)
            return ids
        return [i for piece in _PIECES.findall(text.lower()) for i in _byte_pairs(piece)]


@cache
def _byte_pairs(word: str) -> tuple[int, ...]:
    """Ids of one piece of ASCII text: the merge of lowest rank first, at all its places."""
    ranks = _ranks()
    parts = [*word[:-1], word[-1] + _WORD_END]
    while len(parts) > 1:
        best = min(zip(parts, parts[1:], strict=False), key=lambda p: ranks.get(p, _MERGES))
        if best not in ranks:
            break
        merged: list[str] = []
        for part in parts:
            if merged and (merged[-1], part) == best:
                merged[-1] += part
            else:
                merged.append(part)
        parts = merged
    return tuple(_number(part) for part in parts)


def _number(part: str) -> int:
    letter = part.removesuffix(_WORD_END)
    if len(letter) == 1:
        return ord(letter) - _FIRST_BYTE + (_BYTES if part != letter else 0)
    return _numbers()[part]


@cache
def _ranks() -> dict[tuple[str, str], int]:
    """The merges, each with its rank from 0."""
    pairs = (line.split() for line in _merge_lines()[1:])
    return {(first, second): rank for rank, (first, second) in enumerate(pairs)}


@cache
def _numbers() -> dict[str, int]:
    """The id of each merged part."""
    return {first + second: 2 * _BYTES + rank for (first, second), rank in _ranks().items()}


@cache
def _merge_lines() -> list[str]:
    """A header and the first merges of open_clip's list; its file is found without importing it."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise DataError("open_clip_torch is not installed: reinstall fedvlm")
    path = Path(spec.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in islice(file, 1 + _MERGES)]


@cache
def open_clip_tokenizer() -> Any:
    """open_clip's own tokenizer with the same vocabulary.

    The merge list is handed over in memory (gzip.open takes an open file as well), so nothing is
    written anywhere.
    """
    from open_clip.tokenizer import SimpleTokenizer  # start-up: 3 s, only for text beyond ASCII

    merges: Any = io.BytesIO(gzip.compress("\n".join(_merge_lines()).encode("utf-8")))
    return SimpleTokenizer(bpe_path=merges, context_length=CONTEXT_LENGTH)


def verify_tiny(folder: Path = TINY_DIR) -> str:
    """Check the weights against the card and return their sha256.

    Raises:
        DataError: a file is missing, or the weights are not those that the card describes.
    """
    weights, card = folder / TINY_WEIGHTS, folder / "card.json"
    try:
        expected = json.loads(card.read_text(encoding="utf-8"))["sha256"]
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise DataError(
            f"the embedded backbone in {folder} is incomplete ({error}): reinstall fedvlm"
        ) from error
    if digest != expected:
        raise DataError(
            f"{weights} has sha256 {digest[:12]}..., but its card says {expected[:12]}...: "
            "reinstall fedvlm, restore the file from the repository or run scripts/pretrain_tiny.py"
        )
    return digest
