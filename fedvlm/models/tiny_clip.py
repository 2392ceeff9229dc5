"""The embedded default backbone: where it lies, its tokenizer, and the check of its weights."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

TINY_DIR: Path = Path(__file__).resolve().parent / "tiny"
TINY_WEIGHTS = "open_clip_model.safetensors"
VOCAB_SIZE = 4096
CONTEXT_LENGTH = 48
# 256 bytes, each also with an end-of-word mark, and two special tokens need no merge.
_UNMERGED = 2 * 256 + 2


@lru_cache(maxsize=1)
def _merge_prefix() -> bytes:
    """Gzipped merge list with the first V-514 merges of the one that open_clip ships."""
    from open_clip.tokenizer import default_bpe

    with gzip.open(default_bpe()) as file:
        lines = file.read().decode("utf-8").split("\n")
    # The first line is a header; a trailing newline would become one merge too many.
    kept = lines[: 1 + VOCAB_SIZE - _UNMERGED]
    return gzip.compress("\n".join(kept).encode("utf-8"))


def tiny_tokenizer(context_length: int = CONTEXT_LENGTH) -> Any:
    """open_clip's SimpleTokenizer with a vocabulary of 4,096: text -> ids [n, context_length].

    SOT and EOT are 4094 and 4095, so CLIP's argmax pooling works. The merge list is handed over
    in memory (gzip.open takes an open file as well), so nothing is written anywhere.
    """
    from open_clip.tokenizer import SimpleTokenizer

    merges: Any = io.BytesIO(_merge_prefix())
    return SimpleTokenizer(bpe_path=merges, context_length=context_length)


def verify_tiny(folder: Path = TINY_DIR) -> str:
    """Checks the weights against the card and returns their sha256.

    Raises ValueError when the file is missing or is not the one that the card describes.
    """
    weights, card = folder / TINY_WEIGHTS, folder / "card.json"
    try:
        expected = json.loads(card.read_text(encoding="utf-8"))["sha256"]
        found = hashlib.sha256(weights.read_bytes()).hexdigest()
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"The tiny model in {folder} is incomplete: {error}") from error
    if found != expected:
        raise ValueError(
            f"{weights} has sha256 {found[:12]}..., but its card says {expected[:12]}...: "
            "restore the file from the repository or run scripts/pretrain_tiny.py."
        )
    return found
