"""Backbone names: CoOp's, open_clip's, ``tiny``; and the check that weights and activation agree.

open_clip turns CoOp's ``ViT-B/16`` into ``ViT-B-16``, a plain-GELU model, although OpenAI's weights
were trained with QuickGELU: the features are then wrong, without a warning for a local file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.core.spelling import SIMULATED

TINY = "tiny"
LOCAL_DIR = "local-dir:"
SIMULATED_KEY = "simulated_text"  # of a file's metadata: content keys of the images behind texts
# CoOp's MODEL.BACKBONE.NAME -> the open_clip build with the same activation.
COOP_NAMES = {
    "RN50": "RN50-quickgelu",
    "RN101": "RN101-quickgelu",
    "ViT-B/32": "ViT-B-32-quickgelu",
    "ViT-B/16": "ViT-B-16-quickgelu",
    "ViT-L/14": "ViT-L-14-quickgelu",
    "ViT-L/14@336px": "ViT-L-14-336-quickgelu",
}
# sha256 of the archives that OpenAI published (the digests stand in their download addresses).
OPENAI_SHA256 = frozenset(
    {
        "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762",  # RN50
        "8fa8567bab74a42d41c5915025a8e4538c3bdbe8804a470a72f30b0d94fab599",  # RN101
        "7e526bd135e493cef0776de27d5f42653e6b4c8bf9e0f653bb11773263205fdd",  # RN50x4
        "52378b407f34354e150460fe41077663dd5b39c54cd0bfd2b27167a4a06ec9aa",  # RN50x16
        "be1cfb55d75a9666199fb2206c106743da0f6468c9d327f3e0d0a543a9919d9c",  # RN50x64
        "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af",  # ViT-B/32
        "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f",  # ViT-B/16
        "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836",  # ViT-L/14
        "3035c92b350959924f9f00213499208652fc7ea050643e8b385c2dac08641f02",  # ViT-L/14@336px
    }
)


def open_clip_name(name: str) -> str:
    """Return the open_clip name of a backbone given by CoOp's or open_clip's name.

    Raises:
        ConfigError: neither knows the name.
    """
    import open_clip  # start-up: 3 s

    builds = open_clip.list_models()
    if name in COOP_NAMES:
        return COOP_NAMES[name]
    if name in builds:
        return name
    # CoOp's names win: 'vit-b16' means ViT-B/16, not open_clip's GELU build ViT-B-16.
    plain = {fold(coop).replace("/", ""): coop for coop in (TINY, *COOP_NAMES)}
    coop = plain.get(fold(name).replace("/", ""))
    hint = did_you_mean(coop or name, [coop] if coop else [*plain.values(), *builds])
    raise ConfigError(
        f"unknown backbone '{name}'{hint} (--backbone takes '{TINY}', "
        f"CoOp's {', '.join(COOP_NAMES)}, an open_clip name, '{LOCAL_DIR}<folder>', "
        "'hf-hub:<owner>/<model>' in the local cache, 'timm:<name>' or 'torchvision:<name>')"
    )


def texts_made_from(file: Path, folder: Path | None) -> frozenset[str]:
    """Return the content keys of the images that made a weights file's simulated texts, if any.

    Args:
        folder: in which the file is loaded, ``local-dir:`` style; its name must say the same.

    Raises:
        ConfigError: such a file alone, or in a folder of another name.
        DataError: the file cannot be read.
    """
    if file.suffix != ".safetensors":
        return frozenset()
    keys = frozenset((_metadata(file).get(SIMULATED_KEY) or "").split())
    if keys and folder is None:
        raise ConfigError(f"'{file}' has a simulated text tower: give its folder as "
                          f"{LOCAL_DIR}FOLDER, so that results show it")
    if keys and folder:
        check_simulated_name(folder)
    return keys


def check_simulated_name(folder: Path) -> None:
    """Refuse a folder for a simulated text tower whose name does not say so (``ConfigError``)."""
    name = folder.resolve().name
    if name != SIMULATED and not name.startswith(f"{SIMULATED}-"):
        raise ConfigError(
            f"'{folder}' is for a simulated text tower: call the folder {SIMULATED}, or "
            f"{SIMULATED}-SOMETHING, so that its results can be recognised")


def _metadata(file: Path) -> dict[str, str]:
    try:
        with safe_open(str(file), framework="pt") as opened:
            return opened.metadata() or {}
    except SafetensorError as error:
        raise DataError(f"cannot read weights from '{file}': {error}") from error


def looks_like_openai(path: Path) -> bool:
    """Tell whether a weights file is OpenAI's: by its name, its own metadata or its sha256.

    Raises:
        DataError: a safetensors file that cannot be read.
    """
    if "openai" in path.name.lower():
        return True
    if path.suffix == ".safetensors":
        return "openai" in repr(_metadata(path)).lower()
    with path.open("rb") as archive:
        return hashlib.file_digest(archive, "sha256").hexdigest() in OPENAI_SHA256


def check_activation(name: str, build_quick_gelu: bool, weights: str, needs: bool | None) -> None:
    """Refuse weights on a build with the other activation.

    Args:
        name: open_clip name of the build.
        build_quick_gelu: whether the build uses QuickGELU.
        weights: how the user named the weights, for the message.
        needs: True: trained with QuickGELU; False: with GELU; None: not known (accepted).

    Raises:
        ConfigError: they differ.
    """
    if needs is None or needs == build_quick_gelu:
        return
    base = name.removesuffix("-quickgelu")
    mended = f"{base}-quickgelu" if needs else base
    coop = next((short for short, build in COOP_NAMES.items() if build == mended), mended)
    act = {True: "QuickGELU", False: "GELU"}
    raise ConfigError(
        f"--backbone {name} does not fit the weights '{weights}': they were trained with the "
        f"activation function {act[needs]}, {name} computes {act[build_quick_gelu]}, and its "
        f"features would be wrong. Use --backbone {coop}, which is the same network with "
        f"{act[needs]}{_other_weights(name, build_quick_gelu)}"
    )


def _other_weights(name: str, quick_gelu: bool) -> str:
    """Return weights that fit a build, as the end of a sentence; empty where there are none."""
    fit = [tag for tag, cfg in known_tags(name).items()
           if bool(cfg.get("quick_gelu", False)) == quick_gelu]
    large = [tag for tag in fit if tag.startswith("laion2b")] or fit
    return f"; or keep {name} with weights that fit it, such as --weights {large[0]}" if fit else ""


def known_tags(name: str) -> dict[str, dict[str, Any]]:
    """Return open_clip's pretrained tags for a build: tag -> its config (activation, mean, std)."""
    from open_clip import pretrained  # start-up: 3 s

    tags = pretrained.list_pretrained_tags_by_model(name)
    return {tag: pretrained.get_pretrained_cfg(name, tag) for tag in tags}
