"""open_clip's loader: built-in names with tags or files, ``local-dir:`` folders, plain tensors."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import user_path
from fedvlm.core.transform import TransformSpec
from fedvlm.models.backbone import Backbone
from fedvlm.models.encoders import CocaBackbone, EncoderBackbone
from fedvlm.models.load import names
from fedvlm.models.load.hf_text import (
    HUB,
    buildable,
    hub_folder,
    is_repository,
    tokenizer_source,
    with_config,
)
from fedvlm.models.load.torchscript import is_torchscript
from fedvlm.models.load.vit import VisionOnly, ViTBackbone
from fedvlm.models.load.weights import download, load_file, private_rng, quiet_hub

LOADERS = "open_clip"
DEFAULT_TAG = "openai"
_CONFIG_FILE = "open_clip_config.json"
_BOUNDS = {  # what a folder's config may ask for; the largest known CLIP has 48 layers of 6144
    "layers": 256, "width": 16_384, "embed_dim": 16_384, "image_size": 4096, "patch_size": 512,
    "context_length": 8192, "vocab_size": 4_000_000, "heads": 512, "head_width": 4096,
    "mlp_ratio": 64,
}


def load(
    name: str,
    weights: str = "",
    *,
    loader: str = "",
    random: bool = False,
    seed: int = 0,
    **place: Any,
) -> Backbone:
    """Load an open_clip backbone; see ``backbones.load_backbone`` for arguments and errors.

    ``place`` goes to ``Backbone``: dtype, device, plain.
    """
    if name.startswith((names.LOCAL_DIR, HUB)):
        if weights:
            raise ConfigError(f"--backbone {name} has its own weights: drop --weights '{weights}'")
        return _load_folder(name, None, **place)
    build = names.open_clip_name(name)
    if weights.startswith(names.LOCAL_DIR):
        return _load_folder(weights, build, **place)
    arch = _builtin_config(build)
    file: Path | None = None
    extra: dict[str, Any] = {}
    if weights or not random:
        weights, file, extra = _weights_file(name, build, weights, arch)
    return _loaded(arch, file, extra, None, build, name, weights, seed, **place)


def _loaded(
    arch: dict[str, Any], file: Path | None, extra: dict[str, Any], folder: Path | None,
    source: str, name: str, weights: str, seed: int = 0, **place: Any,
) -> Backbone:
    """Return both towers, or the image tower alone where the text tower cannot be had.

    Args:
        arch: model config.
        file: weights; None: random ones from ``seed``.
        extra: preprocessing that goes over open_clip's default.
        folder: where the text encoder's files are looked for first.
        source: what open_clip finds the tokenizer by.
        name, weights: as the user gave them.
    """
    try:
        whole = with_config(arch, folder)
        tokenizer = _tokenizer(source, arch, folder)
    except DataError as lack:
        model, preprocess = build_image_side(arch, seed)
        if file is not None:
            load_file(model, file, ("visual.", "logit_scale"))
        side = ViTBackbone(
            model, name=name, weights=weights or "random", arch=arch,
            spec=_spec(_overlay(preprocess, extra), name), **place,
        )
        side.lack = lack
        side.notes = (f"the text tower of '{name}' is left out ({lack}): zero-shot accuracy is not "
                      "known, and a linear head starts at random",)
        return side
    made = names.texts_made_from(file, folder) if file is not None else frozenset()
    model, preprocess = build_model(whole, seed)
    if file is not None:
        load_file(model, file)
    out = finish(model, whole, _overlay(preprocess, extra), tokenizer, name, weights, **place)
    if made:
        out.text_images = made
        out.notes = (*out.notes, f"{names.SIMULATED}: this text tower was fitted to class means of "
                     "images, in place of published weights: results are not ranked, new classes "
                     "cannot be tested, and nothing follows for published weights")
    return out


def _weights_file(
    name: str, build: str, weights: str, arch: dict[str, Any]
) -> tuple[str, Path, dict[str, Any]]:
    """Return (weights as named, file, preprocessing of its tag); the activation is checked.

    Raises:
        ConfigError: neither a tag nor a file, or trained with the other activation.
        DataError: a tag that cannot be downloaded.
    """
    tags = names.known_tags(build)
    weights = weights or _default_tag(name, tags)
    quick = bool(arch.get("quick_gelu", False))
    if weights in tags:
        names.check_activation(build, quick, weights, bool(tags[weights].get("quick_gelu", False)))
        return weights, download(weights, build, tags[weights]), tags[weights]
    path = user_path(weights)
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


def _default_tag(name: str, tags: dict[str, Any]) -> str:
    if DEFAULT_TAG in tags:
        return DEFAULT_TAG
    listed = ", ".join(tags) or "none"
    raise ConfigError(f"backbone '{name}' needs --weights: a file or one of its tags ({listed})")


def _builtin_config(build: str) -> dict[str, Any]:
    import open_clip  # start-up: 3 s

    arch: dict[str, Any] = copy.deepcopy(open_clip.get_model_config(build))
    return arch


@contextmanager
def _building(seed: int) -> Iterator[None]:
    """Let open_clip draw random weights from ``seed``, and say what it cannot build."""
    try:
        with private_rng(seed):
            yield
    except (TypeError, AssertionError, KeyError, RuntimeError) as error:
        raise ConfigError(f"open_clip cannot build this model config: {error}") from error


def build_model(arch: dict[str, Any], seed: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """Build open_clip's CLIP (or CustomTextCLIP) of a model config, with random weights.

    Returns the model and open_clip's default preprocessing of its image size. ``arch`` holds
    ``embed_dim, vision_cfg, text_cfg`` and optionally ``quick_gelu, custom_text, init_logit_*``.

    Raises:
        ConfigError: a config that open_clip cannot build, or a tower that is not supported.
    """
    from open_clip.model import CLIP, CustomTextCLIP  # start-up: 3 s
    from open_clip.transform import PreprocessCfg  # start-up: 3 s

    cfg = copy.deepcopy(arch)
    custom = bool(cfg.pop("custom_text", False)) or bool(cfg["text_cfg"].get("hf_model_name"))
    kind: Any = CustomTextCLIP if custom else CLIP
    if "multimodal_cfg" in cfg:
        from open_clip.coca_model import CoCa  # start-up: 3 s, for CoCa only

        kind = CoCa
    with _building(seed), buildable(cfg["text_cfg"]) as text:
        model = kind(**cfg | {"text_cfg": text})
    size = cfg["vision_cfg"].get("image_size", 224)
    return model, asdict(PreprocessCfg(size=size))


def build_image_side(arch: dict[str, Any], seed: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """Build the image tower of a model config alone, with its logit scale; see ``build_model``.

    Raises:
        ConfigError: a config that open_clip cannot build.
    """
    from open_clip.model import _build_vision_tower  # start-up: 3 s
    from open_clip.transform import PreprocessCfg  # start-up: 3 s

    with _building(seed):
        visual = _build_vision_tower(
            arch["embed_dim"], copy.deepcopy(arch["vision_cfg"]),
            bool(arch.get("quick_gelu", False)),
        )
    side = VisionOnly(visual, logit_scale=math.log(1 / 0.07))  # open_clip's own start
    size = arch["vision_cfg"].get("image_size", 224)
    return side, asdict(PreprocessCfg(size=size))


def _check_folder_config(arch: Any, card: Path) -> None:
    """Refuse the config of a folder that names a place to download from, or absurd sizes.

    Raises:
        DataError: names the key.
    """
    if not isinstance(arch, dict):
        raise DataError(f"{card} is not an open_clip config: model_cfg is not a mapping")
    parts = {"": arch, "vision_cfg.": arch.get("vision_cfg"), "text_cfg.": arch.get("text_cfg")}
    for place, part in parts.items():
        for key, value in part.items() if isinstance(part, dict) else ():
            if isinstance(value, str) and (
                    key == "timm_model_name" and (":" in value or "/" in value)
                    or value and key in ("hf_model_name", "hf_tokenizer_name")
                    and not is_repository(value)):
                raise DataError(f"{card}: {place}{key} '{value}' names another place: a folder "
                                "brings its own weights, and nothing is downloaded for it")
            if key == "timm_model_pretrained" and value:
                raise DataError(f"{card}: {place}{key} asks for a download; set it to false")
            for number in value if isinstance(value, list) else [value]:
                if key in _BOUNDS and isinstance(number, int | float) and not (
                        0 < number <= _BOUNDS[key]):
                    raise DataError(f"{card}: {place}{key} is {number}; it must be above 0 and at "
                                    f"most {_BOUNDS[key]:,}")


def _check_amount(arch: dict[str, Any], file: Path) -> None:
    """Refuse a config whose layers have far more numbers than the weights file has bytes.

    Raises:
        DataError: names both.
    """
    numbers = 0
    for part in (arch.get("vision_cfg"), arch.get("text_cfg")):
        layers, width = (part or {}).get("layers", 0), (part or {}).get("width", 0)
        if isinstance(layers, int) and isinstance(width, int):
            numbers += layers * 4 * width**2  # attention alone
    if numbers > max(2 * file.stat().st_size, 10**7):
        raise DataError(f"{_CONFIG_FILE} describes at least {numbers:,} weights, but '{file}' has "
                        f"only {file.stat().st_size:,} bytes")


def _overlay(preprocess: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    from open_clip.transform import merge_preprocess_dict  # start-up: 3 s

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
    """Return the backbone of a built model; ``place`` goes to ``Backbone``.

    Raises:
        ConfigError: its images are not square.
    """
    spec, kind = _spec(preprocess, name), Backbone
    if type(getattr(model, "text", None)).__name__ == "HFTextEncoder":
        kind = EncoderBackbone
    elif "multimodal_cfg" in arch:
        kind = CocaBackbone
    return kind(
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


def _tokenizer(source: str, arch: dict[str, Any], folder: Path | None = None) -> Any:
    """Return the tokenizer of a build; an encoder's is looked for on this machine only.

    Raises:
        DataError: it cannot be loaded.
    """
    import open_clip  # start-up: 3 s

    wanted = arch.get("text_cfg", {}).get("hf_tokenizer_name")
    if not wanted:
        return open_clip.get_tokenizer(source)
    encoder = bool(arch["text_cfg"].get("hf_model_name"))
    if folder is not None and tokenizer_source(arch, folder) == wanted:
        source = ""  # the folder has none: by its name, from the local cache
    try:
        with quiet_hub(local=encoder or folder is not None):
            return open_clip.get_tokenizer(source, trust_remote_code=False) if source else (
                open_clip.tokenizer.HFTokenizer(
                    wanted, arch["text_cfg"].get("context_length", 77), trust_remote_code=False,
                    **arch["text_cfg"].get("tokenizer_kwargs", {}),
                )
            )
    except Exception as error:  # Hugging Face raises many kinds when it cannot download.
        raise DataError(
            f"cannot load the tokenizer '{wanted}' of {source or folder} (offline?): "
            f"use a folder that contains it with 'local-dir:FOLDER' ({type(error).__name__})"
        ) from error


def _load_folder(source: str, build: str | None, **place: Any) -> Backbone:
    """Load ``local-dir:<folder>``: open_clip_config.json and a weights file beside it."""
    from open_clip.factory import _find_checkpoint_in_dir  # start-up: 3 s

    hub = source.startswith(HUB)
    folder = hub_folder(source) if hub else user_path(source.removeprefix(names.LOCAL_DIR))
    card = folder / _CONFIG_FILE
    if not card.is_file():
        raise DataError(f"no {_CONFIG_FILE} in '{folder}' (named by '{source}')")
    try:
        config = json.loads(card.read_text(encoding="utf-8"))
        arch = config["model_cfg"]
        _check_folder_config(arch, card)
        file = _find_checkpoint_in_dir(folder)
        if not file:
            raise DataError(f"no weights file (.safetensors, .bin, .pt) in '{folder}'")
        _check_amount(arch, Path(file))
        if build is not None and _normal(arch) != _normal(_builtin_config(build)):
            raise ConfigError(
                f"'{source}' has another architecture than {build}: use --backbone {source}"
            )
        needs = True if names.looks_like_openai(Path(file)) else None
        names.check_activation(build or source, bool(arch.get("quick_gelu", False)), file, needs)
        with quiet_hub(local=True):
            return _loaded(
                arch, Path(file), config.get("preprocess_cfg", {}), folder,
                f"{names.LOCAL_DIR}{folder}", source if build is None else build, source, **place,
            )
    except (ConfigError, DataError):
        raise
    except Exception as error:  # open_clip and timm each have kinds of their own
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(f"{card} is not an open_clip config that can be built: {reason}") from error


def _normal(arch: dict[str, Any]) -> tuple[Any, ...]:
    """An architecture with open_clip's defaults filled in, for comparison."""
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg  # start-up: 3 s

    vision, text = CLIPVisionCfg(**arch["vision_cfg"]), CLIPTextCfg(**arch["text_cfg"])
    return arch["embed_dim"], bool(arch.get("quick_gelu", False)), repr(vision), repr(text)
