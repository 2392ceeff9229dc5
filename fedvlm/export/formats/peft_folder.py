"""``peft``: LoRA of both towers, written by peft itself for transformers' CLIPModel.

``module_name`` and ``to_peft`` hold the names of that model's layers.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.export.formats.beside import read_classifier, usage, write_classifier
from fedvlm.export.recipe import ExportRecipe
from fedvlm.export.towers import hub_name, plain_clip
from fedvlm.export.trained import TrainedModel
from fedvlm.models.load.hf_clip import hf_model
from fedvlm.models.load.weights import quiet_hub, quiet_transformers
from fedvlm.models.towers.adapters import FACTOR_A, FACTOR_B, sites
from fedvlm.models.vlmodel import VLModel

LIBRARY = "peft"
BASE = "base"
CONFIG = "adapter_config.json"
TOWERS = {"image": "vision_model.encoder.layers", "text": "text_model.encoder.layers"}
LAYERS = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
          "o": "self_attn.out_proj", "fc": "mlp.fc1", "proj": "mlp.fc2"}


def module_name(site: str) -> str:
    """Return the module of CLIPModel that the LoRA of a site, ``image.lora.3.q``, changes."""
    tower, _, block, layer = site.split(".")
    return f"{TOWERS[tower]}.{block}.{LAYERS[layer]}"


def to_peft(tree: Mapping[str, Tensor]) -> Tree:
    """Return the LoRA tensors of ``tree`` (no client axis) under peft's names; no others."""
    out = {}
    for site in sites(tree):
        module = f"base_model.model.{module_name(site)}"
        out[f"{module}.lora_A.weight"] = tree[site + FACTOR_A]
        out[f"{module}.lora_B.weight"] = tree[site + FACTOR_B]
    return out


def base_model(model: VLModel) -> Any:
    """Return transformers' CLIPModel with the frozen weights, made once; not to be changed.

    Raises:
        ConfigError: a backbone that transformers' CLIP does not compute.
    """
    state = plain_clip(model).state_dict()
    return model.once("export.hf", lambda: hf_model(model.backbone.arch, state))


def write(recipe: ExportRecipe, trained: TrainedModel, folder: Path, common: Path) -> str:
    """Write adapter_config.json, adapter_model.safetensors and the classifier; say how to use them.

    Raises:
        ConfigError: no LoRA, prediction that needs more, or another architecture than CLIP.
    """
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict  # start-up: 3 s

    names = sites(recipe.lora)
    if not names:
        raise ConfigError(
            "the model has no LoRA, so there is nothing for a peft adapter: train with --peft "
            "lora, or use --format safetensors"
        )
    if "norms" in recipe.card["adapted"]:
        raise ConfigError(
            "PEFT.LN changed the tower's LayerNorms, which a LoRA adapter cannot hold: use "
            "--format open_clip, safetensors or onnx"
        )
    write_classifier(recipe, folder)
    model, scale = trained.model, float(recipe.card["lora"])
    ranks = {module_name(s): recipe.lora[s + FACTOR_A].shape[0] for s in names}
    most = max(ranks.values())
    other = {m: r for m, r in ranks.items() if r != most}
    base = base_model(model)
    options: dict[str, Any] = {
        "r": most, "lora_alpha": scale * most, "target_modules": sorted(ranks),
        "rank_pattern": other, "alpha_pattern": {m: scale * r for m, r in other.items()},
    }
    config = LoraConfig(**options, lora_dropout=0.0, inference_mode=True)
    with quiet_transformers(), torch.random.fork_rng([]):
        wrapped = get_peft_model(copy.deepcopy(base), config)
        result: Any = set_peft_model_state_dict(wrapped, to_peft(recipe.lora))
        if result.unexpected_keys:
            raise FedvlmError(f"peft does not accept {result.unexpected_keys[:3]}")
        wrapped.peft_config["default"].base_model_name_or_path = _base_name(trained, folder, common)
        with quiet_hub(local=True):
            wrapped.save_pretrained(str(folder), save_embedding_layers=False)
    name = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    return usage(
        recipe, "from open_clip.transform import PreprocessCfg, image_transform_v2\n"
        "from peft import PeftModel\nfrom transformers import CLIPModel",
        f"model = PeftModel.from_pretrained(CLIPModel.from_pretrained('{name}'), '.').eval()",
        "image_transform_v2(PreprocessCfg(**card['transform']), is_train=False)",
        "model.get_image_features(pixel_values=pixels).pooler_output",
    )


def _base_name(trained: TrainedModel, folder: Path, common: Path) -> str:
    """Return the base model's name; one that the Hub does not have is written, once."""
    name = hub_name(trained.model.backbone)
    if name:
        return name
    path, spec = common / BASE, trained.model.backbone.transform_spec
    if not path.exists():
        base_model(trained.model).save_pretrained(str(path))
        files.write_json(path / "preprocessor_config.json", {
            "image_processor_type": "CLIPImageProcessor", "do_resize": True, "do_rescale": True,
            "size": {"shortest_edge": spec.size}, "do_center_crop": True, "do_convert_rgb": True,
            "crop_size": {"height": spec.size, "width": spec.size}, "do_normalize": True,
            "resample": 3 if spec.interpolation == "bicubic" else 2,
            "image_mean": list(spec.mean), "image_std": list(spec.std),
        })
    return Path(os.path.relpath(path, folder)).as_posix()


def read(folder: Path, base: Any = None) -> Callable[[Tensor], Tensor]:
    """Return ``pixels -> logits`` through ``PeftModel.from_pretrained``.

    Args:
        folder: of the adapter.
        base: transformers' CLIPModel; default: the one that the adapter names.
    """
    from peft import PeftModel  # start-up: 3 s
    from transformers import CLIPModel  # start-up: 2 s

    with quiet_transformers():
        if base is None:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            name = config["base_model_name_or_path"]
            base = CLIPModel.from_pretrained(folder / name if (folder / name).is_dir() else name)
        model: Any = PeftModel.from_pretrained(copy.deepcopy(base), str(folder)).eval()
    head = read_classifier(folder)
    return lambda pixels: head(model.get_image_features(pixel_values=pixels).pooler_output)
