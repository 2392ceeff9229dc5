"""transformers' text encoders for open_clip's builds: from a folder or the local cache, offline.

open_clip names an encoder (``roberta-base``) and lets transformers fetch its config, weights and
tokenizer from the Hub. Here nothing is fetched: the config (sizes alone) goes into the model config
as ``hf_config``, the weights are the build's own, and what is not on this machine is told.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError

HUB = "hf-hub:"
CONFIG, CARD = "config.json", "open_clip_config.json"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model",
    "sentencepiece.bpe.model",
)
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_VOLATILE = ("_name_or_path", "transformers_version", "auto_map", "torch_dtype", "dtype",
             "attn_implementation", "_attn_implementation", "quantization_config")
_MOST = {  # what a config may ask for
    "hidden_size": 16_384, "d_model": 16_384, "intermediate_size": 131_072, "d_ff": 131_072,
    "num_hidden_layers": 256, "num_layers": 256, "encoder_layers": 256, "vocab_size": 4_000_000,
    "max_position_embeddings": 100_000, "encoder_ffn_dim": 131_072, "decoder_layers": 256,
    "decoder_ffn_dim": 131_072, "num_decoder_layers": 256, "d_kv": 16_384,
}


def is_repository(name: str) -> bool:
    """Tell whether a name is one of the Hub's, ``model`` or ``owner/model``, and no path."""
    return bool(_REPO.fullmatch(name)) and ".." not in name


def cached(repo: str, file: str) -> Path | None:
    """Return a file of the Hub's local cache; None: it is not there. The network is not asked."""
    from huggingface_hub import try_to_load_from_cache  # start-up: 0.3 s

    found = try_to_load_from_cache(repo, file) if is_repository(repo) else None
    return Path(found) if isinstance(found, str) else None


def hub_folder(source: str) -> Path:
    """Return the folder of the local cache that ``hf-hub:owner/model`` stands for.

    Raises:
        DataError: it is not there.
    """
    repo = source.removeprefix(HUB)
    card = cached(repo, CARD)
    if card is None:
        raise DataError(
            f"{source} is not in this machine's Hugging Face cache (no {CARD} of '{repo}'): run "
            f"'hf download {repo} --local-dir FOLDER' on a machine with network access, copy the "
            "folder, and use --backbone local-dir:FOLDER"
        )
    return card.parent


def with_config(arch: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return a model config whose text encoder's sizes are part of it (``text_cfg.hf_config``).

    Args:
        arch: open_clip's; without ``hf_model_name`` nothing changes.
        folder: where ``config.json`` is looked for first; then in the cache.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    text = dict(arch["text_cfg"])
    repo = str(text.get("hf_model_name") or "")
    if not repo:
        return dict(arch)
    config, file = text.get("hf_config"), Path("hf_config")
    if config is None:
        config, file = _found_config(repo, folder)
    if not isinstance(config, dict) or "model_type" not in config:
        raise DataError(f"'{file}' is not the config of a text encoder of transformers")
    for key, most in _MOST.items():
        number = config.get(key, 1)
        if number is not None and not (isinstance(number, int) and 0 < number <= most):
            raise DataError(f"{file}: {key} is {number}; it must be above 0 and at most {most:,}")
    text["hf_config"] = {k: v for k, v in sorted(config.items()) if k not in _VOLATILE}
    return {**arch, "text_cfg": text}


def _found_config(repo: str, folder: Path | None) -> tuple[Any, Path]:
    """Return an encoder's config and its file: of the folder, else of the local cache."""
    file = folder / CONFIG if folder is not None and (folder / CONFIG).is_file() else None
    file = file or cached(repo, CONFIG)
    if file is None:
        raise DataError(
            f"the text encoder '{repo}' is not on this machine: put the {CONFIG} and the "
            f"tokenizer's files of '{repo}' beside {CARD} and use --backbone local-dir:FOLDER, or "
            f"copy a Hugging Face cache that has them ('hf download {repo}')"
        )
    try:
        return json.loads(file.read_text(encoding="utf-8")), file
    except ValueError as error:
        raise DataError(f"'{file}' is not the config of a text encoder of transformers") from error


@contextmanager
def buildable(text: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a text config that open_clip can build inside the block, with no look elsewhere."""
    plain = {k: v for k, v in text.items() if k != "hf_config"}
    if "hf_config" not in text:
        yield plain
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(text["hf_config"]), encoding="utf-8")
        yield plain | {"hf_model_name": folder, "hf_model_pretrained": False}


def tokenizer_source(arch: Mapping[str, Any], folder: Path) -> str:
    """Return the folder itself if it holds a tokenizer, else the name in the local cache."""
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return str(folder)
    return str(arch["text_cfg"].get("hf_tokenizer_name", ""))
