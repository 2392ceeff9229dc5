"""LoRA in peft's own format: its tensor names, ``adapter_model.safetensors``, adapter_config.json.

Two styles of module names: ``open_clip`` (its CLIP after ``layers.split_attention``) and
``transformers`` (its CLIPModel). Reading takes either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.trees import Tree
from fedvlm.models.towers.adapters import FACTOR_A, FACTOR_B, sites

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ROOT = "base_model.model."
TOWERS = {
    "open_clip": {"image": "visual.transformer.resblocks", "text": "transformer.resblocks"},
    "transformers": {"image": "vision_model.encoder.layers", "text": "text_model.encoder.layers"},
}
LAYERS = {
    "open_clip": {"q": "attn.q_proj", "k": "attn.k_proj", "v": "attn.v_proj",
                  "o": "attn.out_proj", "fc": "mlp.c_fc", "proj": "mlp.c_proj"},
    "transformers": {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
                     "o": "self_attn.out_proj", "fc": "mlp.fc1", "proj": "mlp.fc2"},
}  # fmt: skip
_THEIRS = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")


def module_name(site: str, style: str = "open_clip") -> str:
    """Return the module that ``image.lora.3.q`` changes, in a style's words.

    Raises:
        ConfigError: unknown style.
    """
    if style not in TOWERS:
        raise ConfigError(f"unknown style '{style}'{did_you_mean(style, TOWERS)}")
    tower, _, block, layer = site.split(".")
    return f"{TOWERS[style][tower]}.{block}.{LAYERS[style][layer]}"


def to_peft(tree: Mapping[str, Tensor], style: str = "open_clip") -> Tree:
    """Return the LoRA tensors of ``tree`` (no client axis) under peft's names; others are left out.

    Raises:
        ConfigError: unknown style.
    """
    out = {}
    for site in sites(tree):
        module = ROOT + module_name(site, style)
        out[f"{module}.lora_A.weight"] = tree[site + FACTOR_A]
        out[f"{module}.lora_B.weight"] = tree[site + FACTOR_B]
    return out


def from_peft(state: Mapping[str, Tensor], scale: float = 1.0) -> Tree:
    """Return peft's LoRA tensors under our names.

    Args:
        state: as ``peft.get_peft_model_state_dict`` gives it, of either style.
        scale: multiplied into B, where the file's alpha / rank is not the run's.

    Raises:
        DataError: a tensor that is no LoRA factor of a tower's layer.
    """
    places = {
        f"{prefix}.{{}}.{layer}": (tower, site)
        for style, towers in TOWERS.items() for tower, prefix in towers.items()
        for site, layer in LAYERS[style].items()
    }
    tree: Tree = {}
    for name, tensor in state.items():
        match = _THEIRS.fullmatch(name)
        module = match.group(1).removeprefix("text.") if match else ""
        number = re.search(r"\.(\d+)\.", module)
        place = places.get(module.replace(f".{number.group(1)}.", ".{}.", 1)) if number else None
        if match is None or number is None or place is None:
            raise DataError(
                f"'{name}' is no LoRA factor of a tower's q, k, v, out or MLP layer; only plain "
                "LoRA (no DoRA, no biases, no saved modules) on these can be read"
            )
        tower, site = place
        value = tensor * scale if match.group(2) == "B" else tensor.clone()
        tree[f"{tower}.lora.{number.group(1)}.{site}.{match.group(2)}"] = value
    return tree


def save_peft(
    tree: Mapping[str, Tensor], folder: Path, alpha: float, style: str = "open_clip"
) -> None:
    """Write the LoRA tensors of ``tree`` as an adapter that ``PeftModel.from_pretrained`` loads.

    Args:
        tree: no client axis; tensors that are no LoRA factors are left out.
        folder: made if missing.
        alpha: LoRA's alpha.
        style: module names; for ``open_clip`` load it into a model with split attention.

    Raises:
        ConfigError: no LoRA in the tree, ranks that differ, or an unknown style.
    """
    names = sites(tree)
    ranks = {tree[site + FACTOR_A].shape[0] for site in names}
    if len(ranks) != 1:
        raise ConfigError(
            f"LoRA of ranks {sorted(ranks)} is not one peft adapter" if ranks
            else "there is no LoRA to export: train with --peft lora or text-lora"
        )
    # In full: a text block's name is also the end of an image block's.
    modules = "|".join(re.escape(module_name(site, style)) for site in names)
    config = {
        "peft_type": "LORA", "r": ranks.pop(), "lora_alpha": alpha, "lora_dropout": 0.0,
        "bias": "none", "target_modules": modules, "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {n: v.detach().cpu().contiguous().clone() for n, v in to_peft(tree, style).items()}
    save_file(tensors, str(folder / WEIGHTS))


def load_peft(folder: Path, scale: float) -> Tree:
    """Read an adapter that peft or ``save_peft`` wrote.

    Args:
        folder: holds adapter_config.json and adapter_model.safetensors.
        scale: alpha / rank at which the result will run (``PeftSpec.scale``).

    Raises:
        DataError: files missing or broken, or a kind of adapter that is not plain LoRA.
    """
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        state = load_file(str(folder / WEIGHTS))
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"no peft adapter can be read from '{folder}': {error}") from error
    odd = [key for key in ("use_dora", "rank_pattern", "alpha_pattern") if config.get(key)]
    if config.get("peft_type") != "LORA" or odd:
        raise DataError(f"'{folder}' is not plain LoRA ({odd or config.get('peft_type')})")
    try:
        rank, alpha = float(config["r"]), float(config["lora_alpha"])
        theirs = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"'{folder / CONFIG}' has no 'r' above 0 and 'lora_alpha'") from error
    return from_peft(state, theirs / scale)
