"""transformers' CLIP, loaded by name or folder into the same towers as open_clip's.

The weights are renamed, not wrapped, so everything behind the loader (packed text path, splitting,
counting) is the same code; a test holds the features to transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.names import COOP_NAMES
from fedvlm.models.load.openclip import build_model, finish
from fedvlm.models.load.weights import quiet_hub, quiet_transformers

HUB_NAMES = {
    "ViT-B/32": "openai/clip-vit-base-patch32",
    "ViT-B/16": "openai/clip-vit-base-patch16",
    "ViT-L/14": "openai/clip-vit-large-patch14",
    "ViT-L/14@336px": "openai/clip-vit-large-patch14-336",
}
_ACTIVATIONS = {"quick_gelu": True, "gelu": False}
_RESAMPLE = {2: "bilinear", 3: "bicubic"}
_BPE_VOCABULARY = 49408

# transformers' name -> open_clip's, outside the blocks; "T": transposed.
_OUTER = {
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.": "ln_final.",
    "text_projection.weight": "text_projection T",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.": "visual.ln_pre.",
    "vision_model.post_layernorm.": "visual.ln_post.",
    "visual_projection.weight": "visual.proj T",
    "logit_scale": "logit_scale",
}
_INNER = {
    "layer_norm1.": "ln_1.",
    "layer_norm2.": "ln_2.",
    "self_attn.out_proj.": "attn.out_proj.",
    "mlp.fc1.": "mlp.c_fc.",
    "mlp.fc2.": "mlp.c_proj.",
}
_TOWERS = {
    "text_model.encoder.layers.": "transformer.",
    "vision_model.encoder.layers.": "visual.transformer.",
}


def load_hf(name: str, weights: str = "", **place: Any) -> Backbone:
    """Load a CLIP from transformers; see ``backbones.load_backbone`` for arguments and errors.

    Args:
        name: CoOp's ViT name, a hub name (``openai/clip-vit-base-patch16``) or a folder.
        weights: must be empty: the name brings them.
        place: arguments of ``Backbone``: dtype, device, plain.
    """
    if weights:
        raise ConfigError(f"loader 'transformers' takes its weights by name: drop '{weights}'")
    source = HUB_NAMES.get(name, name)
    folder = Path(source).expanduser()
    if not folder.is_dir() and "/" not in source or name in COOP_NAMES and name not in HUB_NAMES:
        raise ConfigError(
            f"transformers has no CLIP '{name}'{did_you_mean(name, HUB_NAMES)} (known: "
            f"{', '.join(HUB_NAMES)}, a hub name such as openai/clip-vit-base-patch16, a folder)"
        )
    model = _read(source, folder)
    arch = config_of(model.config)
    ours, preprocess = build_model(arch)
    try:
        ours.load_state_dict(rename(model.state_dict()), strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"the weights of '{name}' do not fit a CLIP: {reason}") from error
    preprocess |= _preprocessing(folder)
    tokenizer = _tokenizer(source, folder, model.config.text_config)
    return finish(ours, arch, preprocess, tokenizer, name, f"transformers:{source}", **place)


def _read(source: str, folder: Path) -> Any:
    """transformers' CLIPModel in float32, from a folder, the cache or the network."""
    from transformers import CLIPModel  # start-up: 2 s

    try:
        with (
            quiet_hub(local=folder.is_dir()), quiet_transformers(), torch.random.fork_rng([]),
        ):
            return CLIPModel.from_pretrained(source, dtype=torch.float32)
    except Exception as error:  # transformers raises many kinds
        reason = " ".join(str(error).split())[:160]
        raise DataError(
            f"cannot load '{source}' with transformers ({reason}): "
            "name a folder with config.json and model.safetensors, or use --backbone tiny"
        ) from error


def config_of(config: Any) -> dict[str, Any]:
    """Return the open_clip model config of a transformers ``CLIPConfig``.

    Raises:
        ConfigError: an activation that open_clip's CLIP does not have, or two different ones.
    """
    text, vision = config.text_config, config.vision_config
    if text.hidden_act != vision.hidden_act or text.hidden_act not in _ACTIVATIONS:
        raise ConfigError(
            f"activations '{vision.hidden_act}' and '{text.hidden_act}' are not supported: "
            "both towers must use quick_gelu, or both gelu"
        )
    return {
        "embed_dim": config.projection_dim,
        "quick_gelu": _ACTIVATIONS[text.hidden_act],
        "vision_cfg": {
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "width": vision.hidden_size,
            "layers": vision.num_hidden_layers,
            "head_width": vision.hidden_size // vision.num_attention_heads,
            "mlp_ratio": vision.intermediate_size / vision.hidden_size,
            "norm_kwargs": {"eps": vision.layer_norm_eps},
        },
        "text_cfg": {
            "context_length": text.max_position_embeddings,
            "vocab_size": text.vocab_size,
            "width": text.hidden_size,
            "layers": text.num_hidden_layers,
            "heads": text.num_attention_heads,
            "mlp_ratio": text.intermediate_size / text.hidden_size,
            "norm_kwargs": {"eps": text.layer_norm_eps},
        },
    }


def rename(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return transformers' CLIP tensors under open_clip's names; in_proj rows are [q; k; v]."""
    out: dict[str, Tensor] = {}
    for key, value in state.items():
        for theirs, ours in _OUTER.items():
            if key == theirs or (theirs.endswith(".") and key.startswith(theirs)):
                plain = ours.removesuffix(" T")
                out[plain + key[len(theirs) :]] = value if plain == ours else value.T.contiguous()
        for theirs, tower in _TOWERS.items():
            if key.startswith(theirs):
                index, rest = key[len(theirs) :].split(".", 1)
                block = f"{tower}resblocks.{index}."
                for theirs_in, ours_in in _INNER.items():
                    if rest.startswith(theirs_in):
                        out[block + ours_in + rest[len(theirs_in) :]] = value
                if rest.startswith("self_attn.q_proj."):
                    kind = rest.rsplit(".", 1)[1]
                    rows = [state[key.replace("q_proj", f"{p}_proj")] for p in "qkv"]
                    out[f"{block}attn.in_proj_{kind}"] = torch.cat(rows)
    return out


def _preprocessing(folder: Path) -> dict[str, Any]:
    """Mean, std and interpolation of a folder's preprocessor_config.json, where it has one."""
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        return {}
    config = json.loads(file.read_text(encoding="utf-8"))
    look = {
        "mean": config.get("image_mean"), "std": config.get("image_std"),
        "interpolation": _RESAMPLE.get(config.get("resample")),
    }
    return {key: value for key, value in look.items() if value is not None}


class HFTokenizer:
    """A transformers tokenizer with open_clip's calling convention."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, texts: Sequence[str], context_length: int) -> Tensor:
        """Token ids [n, context_length], padded, cut where too long."""
        ids = self.tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=context_length,
            return_tensors="pt",
        ).input_ids
        return torch.as_tensor(ids, dtype=torch.long)


def _tokenizer(source: str, folder: Path, config: Any) -> Any:
    import open_clip  # start-up: 3 s
    from transformers import AutoTokenizer  # start-up: 2 s

    files = ("tokenizer.json", "vocab.json")
    if folder.is_dir() and not any((folder / name).is_file() for name in files):
        if config.vocab_size == _BPE_VOCABULARY:
            # CLIP's own byte pairs, which open_clip brings along.
            return open_clip.SimpleTokenizer(context_length=config.max_position_embeddings)
        raise DataError(f"no tokenizer in '{folder}': add tokenizer.json, or vocab.json and merges")
    try:
        with quiet_hub(local=folder.is_dir()):
            return HFTokenizer(AutoTokenizer.from_pretrained(source))
    except Exception as error:  # transformers raises many kinds
        raise DataError(f"cannot load the tokenizer of '{source}': {error}") from error
