"""transformers' CLIP, loaded by name or folder into the same towers as open_clip's.

The weights are renamed, not wrapped, so everything behind the loader (packed text path, splitting,
counting) is the same code; a test holds the features to transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import user_path
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.names import COOP_NAMES
from fedvlm.models.load.openclip import build_model, finish
from fedvlm.models.load.weights import quiet_hub, quiet_transformers, refuse_odd

LOADERS = "transformers"
HUB_NAMES = {
    "ViT-B/32": "openai/clip-vit-base-patch32",
    "ViT-B/16": "openai/clip-vit-base-patch16",
    "ViT-L/14": "openai/clip-vit-large-patch14",
    "ViT-L/14@336px": "openai/clip-vit-large-patch14-336",
}
_ACTIVATIONS = {"quick_gelu": True, "gelu": False}
_RESAMPLE = {2: "bilinear", 3: "bicubic"}
_BPE_VOCABULARY = 49408
# What an open_clip config may hold for transformers' CLIP to compute the same.
_ARCH = {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg"}
_VISION = {"image_size", "patch_size", "width", "layers", "head_width", "mlp_ratio", "norm_kwargs"}
_TEXT = {"context_length", "vocab_size", "width", "layers", "heads", "mlp_ratio", "norm_kwargs"}

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


def load(
    name: str, weights: str = "", *, loader: str = "", random: bool = False, seed: int = 0,
    **place: Any,
) -> Backbone:
    """Load a CLIP from transformers; see ``backbones.load_backbone`` for arguments and errors.

    It has weights always: ``random`` and ``seed`` change nothing.

    Args:
        name: CoOp's ViT name, a hub name (``openai/clip-vit-base-patch16``) or a folder.
        weights: must be empty: the name brings them.
        place: arguments of ``Backbone``: dtype, device, plain.
    """
    if weights:
        raise ConfigError(f"loader 'transformers' loads its weights by name: drop '{weights}'")
    source = HUB_NAMES.get(name, name)
    folder = user_path(source)
    if not folder.is_dir() and "/" not in source or name in COOP_NAMES and name not in HUB_NAMES:
        raise ConfigError(
            f"transformers has no CLIP '{name}'{did_you_mean(name, HUB_NAMES)} (known: "
            f"{', '.join(HUB_NAMES)}, a hub name such as openai/clip-vit-base-patch16, a folder)"
        )
    model = _read(source, folder)
    arch = open_clip_config(model.config)
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

    if folder.is_dir():
        for file in (*folder.glob("*.bin"), *folder.glob("*.safetensors")):
            refuse_odd(file)
    try:
        with (
            quiet_hub(local=folder.is_dir()), quiet_transformers(), torch.random.fork_rng([]),
        ):
            return CLIPModel.from_pretrained(source, dtype=torch.float32)
    except Exception as error:  # transformers raises many kinds
        reason = " ".join(str(error).split())[:160]
        raise DataError(
            f"cannot load '{source}' with transformers ({reason}): "
            "give a folder with config.json and model.safetensors, or use --backbone tiny"
        ) from error


def open_clip_config(config: Any) -> dict[str, Any]:
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


def rename_back(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo ``rename``: open_clip's CLIP tensors under transformers' names."""
    out: dict[str, Tensor] = {}
    outer = {ours: theirs for theirs, ours in _OUTER.items()}
    inner = {ours: theirs for theirs, ours in _INNER.items()}
    towers = {f"{ours}resblocks.": theirs for theirs, ours in _TOWERS.items()}
    for key, value in state.items():
        tower = next((t for t in towers if key.startswith(t)), "")
        if not tower:
            theirs = outer.get(f"{key} T") or outer.get(key)
            prefix = "" if theirs else key.rpartition(".")[0] + "."
            name = theirs or outer[prefix] + key.removeprefix(prefix)
            out[name] = value.T.contiguous() if f"{key} T" in outer else value
            continue
        index, rest = key.removeprefix(tower).split(".", 1)
        block = f"{towers[tower]}{index}."
        if rest.startswith("attn.in_proj_"):
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                kind = rest.removeprefix("attn.in_proj_")
                out[f"{block}self_attn.{part}_proj.{kind}"] = rows.contiguous()
        else:
            ours = next(n for n in inner if rest.startswith(n))
            out[block + inner[ours] + rest.removeprefix(ours)] = value
    return out


def hf_model(arch: dict[str, Any], state: Mapping[str, Tensor]) -> Any:
    """Return transformers' CLIPModel of an open_clip model config and its tensors, in eval mode.

    Raises:
        ConfigError: a CLIP that transformers' class does not compute.
    """
    from transformers import CLIPConfig, CLIPModel  # start-up: 2 s

    vision, text = arch["vision_cfg"], arch["text_cfg"]
    extra = [*(set(arch) - _ARCH), *(set(vision) - _VISION), *(set(text) - _TEXT)]
    if extra or "patch_size" not in vision:
        reason = f"it has '{sorted(extra)[0]}'" if extra else "its image tower is not a ViT"
        raise ConfigError(f"transformers' CLIP cannot run this backbone: {reason}")
    act = "quick_gelu" if arch.get("quick_gelu") else "gelu"

    def tower(part: dict[str, Any], heads: int) -> dict[str, Any]:
        return {
            "hidden_size": part["width"], "num_hidden_layers": part["layers"], "hidden_act": act,
            "num_attention_heads": heads,
            "intermediate_size": int(part["width"] * part.get("mlp_ratio", 4.0)),
            "layer_norm_eps": part.get("norm_kwargs", {}).get("eps", 1e-5),
        }

    config = CLIPConfig(
        text_config=tower(text, text["heads"]) | {
            "max_position_embeddings": text["context_length"], "vocab_size": text["vocab_size"],
            # The mark that ends a text is the last id of CLIP's vocabularies.
            "bos_token_id": text["vocab_size"] - 2, "eos_token_id": text["vocab_size"] - 1,
        },
        vision_config=tower(vision, vision["width"] // vision.get("head_width", 64)) | {
            "image_size": vision["image_size"], "patch_size": vision["patch_size"],
        },
        projection_dim=arch["embed_dim"],
    )
    with torch.random.fork_rng([]):
        model = CLIPModel(config)
    model.load_state_dict(rename_back(state), strict=True)
    return model.eval()


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
