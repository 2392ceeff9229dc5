"""open_clip's loader: built-in names with tags or files, ``local-dir:`` folders, ``tiny``.

A CLIP from plain tensors in OpenAI's layout: sizes are read off the shapes.

The embedded default backbone: where it lies, its tokenizer, and the check of its weights.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.models.backbone import Backbone, TransformSpec
from fedvlm.models.load import names
from fedvlm.models.load.names import (
    download,
    hub_is_reachable,
    is_torchscript,
    load_file,
    quiet_hub,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_TAG = "openai"
_CONFIG_FILE = "open_clip_config.json"


def load(
    name: str,
    weights: str = "",
    *,
    random: bool = False,
    seed: int = 0,
    **place: Any,
) -> Backbone:
    """Load an open_clip backbone; see ``backbone.load_backbone`` for arguments and errors.

    ``place`` goes to ``Backbone``: dtype, device, plain.
    """
    if name == names.TINY:
        return _load_tiny(weights, **place)
    if name.startswith(names.LOCAL_DIR):
        if weights:
            raise ConfigError(f"--backbone {name} brings its weights: drop --weights '{weights}'")
        return _load_folder(name, None, **place)
    build = names.open_clip_name(name)
    if weights.startswith(names.LOCAL_DIR):
        return _load_folder(weights, build, **place)
    arch = _builtin_config(build)
    _check_supported(arch)
    file: Path | None = None
    extra: dict[str, Any] = {}
    if weights or not random:
        weights, file, extra = _weights_file(name, build, weights, arch)
    tokenizer = _tokenizer(build, arch)
    model, preprocess = build_model(arch, seed)
    if file is not None:
        load_file(model, file)
    return finish(model, arch, _overlay(preprocess, extra), tokenizer, name, weights, **place)


def _weights_file(
    name: str, build: str, weights: str, arch: dict[str, Any]
) -> tuple[str, Path, dict[str, Any]]:
    """Return (weights as named, file, preprocessing of its tag); the activation is checked.

    Raises:
        ConfigError: neither a tag nor a file, or trained with the other activation.
        DataError: a tag that cannot be downloaded.
    """
    tags = names.known_tags(build)
    weights = weights or _default_tag(name, build, tags)
    quick = bool(arch.get("quick_gelu", False))
    if weights in tags:
        names.check_activation(build, quick, weights, bool(tags[weights].get("quick_gelu", False)))
        return weights, download(weights, build, tags[weights]), tags[weights]
    path = Path(weights).expanduser()
    if not path.is_file():
        raise ConfigError(_no_such_weights(weights, build, tags))
    needs = True if is_torchscript(path) or names.looks_like_openai(path) else None
    names.check_activation(build, quick, weights, needs)
    return weights, path, {}


def _no_such_weights(weights: str, build: str, tags: dict[str, Any]) -> str:
    """Say that a weights name is neither tag nor file, and which build has it if another does."""
    hint = did_you_mean(weights, tags)
    base = build.removesuffix("-quickgelu")
    if not hint and base != build and weights in names.known_tags(base):
        hint = f"; it exists for the GELU build: use --backbone {base}"
    listed = ", ".join(tags) or "none"
    return f"--weights '{weights}' is neither a file nor a tag of {build}{hint} (tags: {listed})"


def _default_tag(name: str, build: str, tags: dict[str, Any]) -> str:
    if DEFAULT_TAG in tags:
        return DEFAULT_TAG
    listed = ", ".join(tags) or "none"
    raise ConfigError(f"backbone '{name}' needs --weights: a file or one of its tags ({listed})")


def _builtin_config(build: str) -> dict[str, Any]:
    import open_clip

    arch: dict[str, Any] = copy.deepcopy(open_clip.get_model_config(build))
    return arch


@contextmanager
def _private_rng(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block only."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield


def _check_supported(arch: dict[str, Any]) -> None:
    if "multimodal_cfg" in arch or arch.get("text_cfg", {}).get("hf_model_name"):
        raise ConfigError(
            "backbones with a Hugging Face text encoder or a multimodal decoder (CoCa) are not "
            "supported: choose a CLIP or SigLIP backbone"
        )


def build_model(arch: dict[str, Any], seed: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """Build open_clip's CLIP (or CustomTextCLIP) of a model config, with random weights.

    Returns the model and open_clip's default preprocessing of its image size. ``arch`` holds
    ``embed_dim, vision_cfg, text_cfg`` and optionally ``quick_gelu, custom_text, init_logit_*``.

    Raises:
        ConfigError: a config that open_clip cannot build, or a tower that is not supported.
    """
    from open_clip.model import CLIP, CustomTextCLIP
    from open_clip.transform import PreprocessCfg

    cfg = copy.deepcopy(arch)
    custom = bool(cfg.pop("custom_text", False))
    _check_supported(cfg)
    try:
        with _private_rng(seed):
            model = (CustomTextCLIP if custom else CLIP)(**cfg)
    except (TypeError, AssertionError, KeyError, RuntimeError) as error:
        raise ConfigError(f"open_clip cannot build this model config: {error}") from error
    size = cfg["vision_cfg"].get("image_size", 224)
    return model, asdict(PreprocessCfg(size=size))


def _overlay(preprocess: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    from open_clip.transform import merge_preprocess_dict

    size = preprocess["size"]
    return merge_preprocess_dict(preprocess, more) | {"size": size}


def finish(
    model: nn.Module,
    arch: dict[str, Any],
    preprocess: dict[str, Any],
    tokenizer: Any,
    name: str,
    weights: str,
    **place: Any,
) -> Backbone:
    spec = _spec(preprocess, name)
    return Backbone(
        model, tokenizer, name=name, weights=weights or "random", arch=arch, spec=spec, **place
    )


def _spec(preprocess: dict[str, Any], name: str) -> TransformSpec:
    size = preprocess["size"]
    sides = {size} if isinstance(size, int) else set(size)
    if len(sides) != 1:
        raise ConfigError(f"backbone '{name}' takes {size} images; only square ones are supported")
    return TransformSpec(
        size=int(sides.pop()),
        mean=tuple(float(v) for v in preprocess["mean"]),
        std=tuple(float(v) for v in preprocess["std"]),
        interpolation=str(preprocess["interpolation"]),
        resize_mode=str(preprocess["resize_mode"]),
    )


def _tokenizer(source: str, arch: dict[str, Any]) -> Any:
    import open_clip

    if not arch.get("text_cfg", {}).get("hf_tokenizer_name"):
        return open_clip.get_tokenizer(source)
    local = source.startswith(names.LOCAL_DIR)
    try:
        with quiet_hub(offline=local or not hub_is_reachable()):
            return open_clip.get_tokenizer(source)
    except Exception as error:  # Hugging Face raises many kinds when it cannot download.
        wanted = arch.get("text_cfg", {}).get("hf_tokenizer_name", source)
        raise DataError(
            f"cannot load the tokenizer '{wanted}' of {source} (offline?): "
            f"use a folder that contains it with 'local-dir:FOLDER' ({type(error).__name__})"
        ) from error


def _load_tiny(weights: str, **place: Any) -> Backbone:
    if weights:
        raise ConfigError(f"--backbone tiny brings its weights: drop --weights '{weights}'")
    if not (TINY_DIR / _CONFIG_FILE).is_file():
        raise DataError(f"the embedded backbone is missing from {TINY_DIR}: reinstall fedvlm")
    return _load_folder(
        f"{names.LOCAL_DIR}{TINY_DIR}", None, tokenizer=tiny_tokenizer, alias=names.TINY, **place
    )


def _load_folder(
    source: str, build: str | None, *, tokenizer: Any = None, alias: str = "", **place: Any
) -> Backbone:
    """Load ``local-dir:<folder>``: open_clip_config.json and a weights file beside it."""
    from open_clip.factory import _find_checkpoint_in_dir

    folder = Path(source.removeprefix(names.LOCAL_DIR)).expanduser()
    file = folder / _CONFIG_FILE
    if not file.is_file():
        raise DataError(f"no {_CONFIG_FILE} in '{folder}' (named by '{source}')")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        arch = config["model_cfg"]
        model, preprocess = build_model(arch)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not an open_clip config: {error!r}") from error
    if build is not None and _normal(arch) != _normal(_builtin_config(build)):
        raise ConfigError(
            f"'{source}' holds another architecture than {build}: use --backbone {source}"
        )
    found = _find_checkpoint_in_dir(folder)
    if not found:
        raise DataError(f"no weights file (.safetensors, .bin, .pt) in '{folder}'")
    needs = True if names.looks_like_openai(Path(found)) else None
    names.check_activation(build or source, bool(arch.get("quick_gelu", False)), found, needs)
    load_file(model, Path(found))
    preprocess = _overlay(preprocess, config.get("preprocess_cfg", {}))
    # Its tokenizer is bound to the model's own context length, whatever that is.
    tok = tokenizer(arch["text_cfg"]["context_length"]) if tokenizer else _tokenizer(source, arch)
    name = alias or (source if build is None else build)
    return finish(model, arch, preprocess, tok, name, "embedded" if alias else source, **place)


def _normal(arch: dict[str, Any]) -> tuple[Any, ...]:
    """An architecture with open_clip's defaults filled in, for comparison."""
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg

    vision, text = CLIPVisionCfg(**arch["vision_cfg"]), CLIPTextCfg(**arch["text_cfg"])
    return arch["embed_dim"], bool(arch.get("quick_gelu", False)), repr(vision), repr(text)


_WANTED = (
    "visual.conv1.weight",
    "visual.positional_embedding",
    "visual.proj",
    "positional_embedding",
    "token_embedding.weight",
    "ln_final.weight",
    "text_projection",
)


def config_of(
    state: dict[str, Tensor], vision_heads: int | None = None, text_heads: int | None = None
) -> dict[str, Any]:
    """Return the open_clip model config of a ViT state dict in OpenAI's layout.

    Heads cannot be read off the shapes: default width / 64, at least 1.

    Raises:
        ConfigError: a tensor is missing (ModifiedResNet files are loaded by name instead).
    """
    missing = [key for key in _WANTED if key not in state]
    if missing:
        raise ConfigError(f"not a ViT CLIP in OpenAI's layout: tensor '{missing[0]}' is missing")
    vision_width, _, patch, _ = state["visual.conv1.weight"].shape
    text_width = state["ln_final.weight"].shape[0]
    grid = round((state["visual.positional_embedding"].shape[0] - 1) ** 0.5)
    return {
        "embed_dim": int(state["text_projection"].shape[1]),
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": patch * grid,
            "layers": _blocks(state, "visual.transformer.resblocks."),
            "width": vision_width,
            "head_width": vision_width // (vision_heads or max(1, vision_width // 64)),
            "patch_size": patch,
        },
        "text_cfg": {
            "context_length": state["positional_embedding"].shape[0],
            "vocab_size": state["token_embedding.weight"].shape[0],
            "width": text_width,
            "heads": text_heads or max(1, text_width // 64),
            "layers": _blocks(state, "transformer.resblocks."),
        },
    }


def _blocks(state: dict[str, Tensor], prefix: str) -> int:
    return len({key[len(prefix) :].split(".")[0] for key in state if key.startswith(prefix)})


def from_openai(
    state: dict[str, Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    vision_heads: int | None = None,
    text_heads: int | None = None,
    tokenizer: Any = None,
    name: str = "state-dict",
    **place: Any,
) -> Backbone:
    """Build a QuickGELU ViT CLIP from a complete state dict in OpenAI's layout.

    Args:
        state: name -> tensor; computed with in ``dtype`` (float64 stays float64 throughout).
        dtype: of the towers.
        vision_heads: default width / 64.
        text_heads: default width / 64.
        tokenizer: default open_clip's SimpleTokenizer at the model's context length.
        name: shown in results.
        place: further arguments of ``Backbone``: device, plain.

    Raises:
        ConfigError: a tensor is missing.
        DataError: tensors that do not fit together.
    """
    import open_clip

    arch = config_of(state, vision_heads, text_heads)
    model, preprocess = build_model(arch)
    if dtype is torch.float64:
        model.double()
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"the state dict does not fit together: {reason}") from error
    tok = tokenizer or open_clip.SimpleTokenizer(context_length=arch["text_cfg"]["context_length"])
    return finish(model, arch, preprocess, tok, name, "state-dict", dtype=dtype, **place)


TINY_DIR: Path = Path(__file__).resolve().parents[1] / "tiny"
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
