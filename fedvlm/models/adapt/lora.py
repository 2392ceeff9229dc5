"""Averaging LoRA: of factors, with A frozen, or of products (``personalized_fl.md`` 2.3).

mean(B) mean(A) is not mean(BA); for two clients the gap is (B1 - B2)(A1 - A2) / 4. All functions
take trees without client axis and weights of any scale, and compute in float64.

LoRA in peft's own format: its tensor names, ``adapter_model.safetensors``, adapter_config.json.

Two styles of module names: ``open_clip`` (its CLIP after ``attention.split_attention``) and
``transformers`` (its CLIPModel). Reading takes either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError, FedvlmError, did_you_mean
from fedvlm.core.trees import Tree
from fedvlm.models.towers.blocks import FACTOR_A, FACTOR_B, is_factor, sites

RULES = ("factors", "freeze_a", "product_svd")


def average_peft(
    trees: Sequence[Mapping[str, Tensor]], weights: Sequence[float], rule: str = "factors"
) -> Tree:
    """Return the weighted average of the clients' trees.

    Args:
        trees: equal names; plain tensors are averaged under every rule.
        weights: one per tree, normalised here.
        rule: ``factors``: mean of A and mean of B (published practice). ``freeze_a``: the same for
            B, and A (equal for all, never trained) is as it was: exact. ``product_svd``: the best
            approximation of rank r of mean(BA).

    Raises:
        ConfigError: unknown rule.
        FedvlmError: ``freeze_a`` with factors A that differ; weights that sum to nothing.
    """
    if rule not in RULES:
        raise ConfigError(f"PEFT.LORA_AVG has no '{rule}' ({', '.join(RULES)})")
    if not sum(weights) > 0:
        raise FedvlmError("no update has a weight above zero; there is nothing to average")
    share = [float(w) / float(sum(weights)) for w in weights]
    first, out = trees[0], {}
    for name in first:
        if rule == "freeze_a" and is_factor(name) and name.endswith(FACTOR_A):
            if any(not torch.equal(t[name], first[name]) for t in trees):
                raise FedvlmError(f"'{name}' differs between clients: freeze_a needs one common A")
            out[name] = first[name].clone()
        else:
            out[name] = _mean([t[name] for t in trees], share)
    if rule == "product_svd":
        for site in sites(first):
            pairs = [(t[site + FACTOR_A], t[site + FACTOR_B]) for t in trees]
            out[site + FACTOR_A], out[site + FACTOR_B] = product_svd(pairs, share)
    return out


def _mean(tensors: Sequence[Tensor], share: Sequence[float]) -> Tensor:
    total = torch.zeros_like(_double(tensors[0]))
    for tensor, part in zip(tensors, share, strict=True):
        total.add_(_double(tensor), alpha=part)
    return total.to(tensors[0].dtype).to(tensors[0].device)


def _double(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float64, on the CPU where its device has none (Apple's mps)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def product_svd(
    pairs: Sequence[tuple[Tensor, Tensor]], share: Sequence[float], rank: int = 0
) -> tuple[Tensor, Tensor]:
    """Return (A ``[r, in]``, B ``[out, r]``) nearest to sum_k p_k B_k A_k in Frobenius norm.

    Of all factors of that product those are taken whose A is nearest to the mean of the A_k: so
    equal clients stay as they are, differences of factors keep their meaning from round to round,
    and components of size zero (all of them before the first step) can still learn. No
    ``[out, in]`` matrix is made.

    Args:
        pairs: (A_k ``[r_k, in]``, B_k ``[out, r_k]``); ranks may differ.
        share: p_k, summing to 1.
        rank: of the result; 0: of the first pair.
    """
    first = pairs[0][0]
    kept, dtype = rank or first.shape[0], first.dtype
    if kept == first.shape[0] and all(torch.equal(a, first) for a, _ in pairs):
        return first.clone(), _mean([b for _, b in pairs], share)  # exact as it is
    a = torch.cat([_double(pair[0]) for pair in pairs])
    b = torch.cat([p * _double(pair[1]) for pair, p in zip(pairs, share, strict=True)], dim=1)
    q_b, r_b = torch.linalg.qr(b)
    q_a, r_a = torch.linalg.qr(a.mT)
    u, s, vh = torch.linalg.svd(r_b @ r_a.mT, full_matrices=False)
    left, right = q_b @ u[:, :kept] * s[:kept], vh[:kept] @ q_a.mT
    if all(pair[0].shape[0] == kept for pair in pairs):
        near = _mean([_double(pair[0]) for pair in pairs], share)
        right, left = _near(left, right, int((s[:kept] > 1e-12 * s[0]).sum()), near)
    return right.to(dtype).to(first.device), left.to(dtype).to(first.device)


def _near(left: Tensor, right: Tensor, live: int, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of ``left right`` whose A is ``mean`` projected on the rows they must span.

    The rows: the ``live`` orthonormal ones of ``right`` and, for the rest of the rank, what of
    ``mean`` is orthogonal to them. Where ``mean`` hardly reaches them (clients' A cancel out), B
    would be huge: then A = ``right`` and B = ``left``.
    """
    rows = right[:live]
    if live < len(mean):
        rest = torch.linalg.svd(mean - mean @ rows.mT @ rows, full_matrices=False).Vh
        rows = torch.cat([rows, rest[: len(mean) - live]])
    reach = mean @ rows.mT
    sizes = torch.linalg.svdvals(reach)
    if not float(sizes[-1]) > 1e-3 * float(sizes[0]):
        return right, left
    scores = torch.cat([left[:, :live], left.new_zeros(len(left), len(mean) - live)], dim=1)
    return reach @ rows, torch.linalg.solve(reach, scores, left=False)


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
    known = {
        f"{prefix}.{{}}.{layer}": (tower, site)
        for style, towers in TOWERS.items() for tower, prefix in towers.items()
        for site, layer in LAYERS[style].items()
    }
    tree: Tree = {}
    for name, tensor in state.items():
        found = _THEIRS.fullmatch(name)
        module = found.group(1).removeprefix("text.") if found else ""
        number = re.search(r"\.(\d+)\.", module)
        place = known.get(module.replace(f".{number.group(1)}.", ".{}.", 1)) if number else None
        if found is None or number is None or place is None:
            raise DataError(
                f"'{name}' is no LoRA factor of a tower's q, k, v, out or MLP layer; only plain "
                "LoRA (no DoRA, no biases, no saved modules) on these can be read"
            )
        tower, site = place
        value = tensor * scale if found.group(2) == "B" else tensor.clone()
        tree[f"{tower}.lora.{number.group(1)}.{site}.{found.group(2)}"] = value
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
    rank = float(config["r"])
    theirs = float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)
    return from_peft(state, theirs / scale)
