"""Towers x trainable sets, and open_clip's builds: ``python -m tests.models.table`` prints both.

The tables of docs/towers.md. A cell is a round of two clients on a small random tower of that
family (``trunks``): every trained tensor moved, the formats that the model was exported in and read
back from equal logits; or the reason of the refusal.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from fedvlm.core.errors import ConfigError
from fedvlm.export.formats import onnx_file
from fedvlm.export.matrix import try_exports
from fedvlm.export.trained import TrainedModel
from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.adapters import TreeEdits, prompt_tree
from fedvlm.models.towers.blocks import Unreadable
from fedvlm.models.towers.trunk import Trunk
from fedvlm.models.vlmodel import VLModel
from tests.export.models import NAMES, federation, tiny, trained
from tests.models.toys import toy
from tests.models.trunks import WITH_TEXT, alone, paired

BEGIN, END = "<!-- table: {} -->", "<!-- end -->"
LETTERS = {"safetensors": "s", "open_clip": "o", "peft": "p", "onnx": "x"}
# Row -> the small tower that stands for it.
ROWS: Mapping[str, str] = {
    "CLIP's ViT": "tiny", "SigLIP, SigLIP2": "siglip", "PE-Core": "pe", "EVA-01": "eva01",
    "EVA-02": "eva02", "ViT without class token": "gap", "ResNet": "resnet",
    "DINOv2 with registers": "dinov2", "DINOv2 giant (SwiGLU)": "dinov2g", "DINOv3": "dinov3",
    "DINOv3 plus (SwiGLU)": "dinov3plus", "ViTamin's blocks": "vitamin",
    "EVA-02 E (norms behind)": "postnorm",
}
FEW = ("PEFT.N_CTX", "2")
ALL = ("PEFT.TARGETS", "q,k,v,o,mlp")
SETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "prompt": ("promptfl", FEW),
    "feature": ("fedavg", ("--peft", "prompt+feature", *FEW)),
    "LoRA": ("fedavg", ("--peft", "prompt+lora", *FEW, *ALL)),
    "LoRA + LN": ("fedavg", ("--peft", "prompt+lora", "PEFT.LN", "True", *FEW)),
    "adapter": ("fedavg", ("--peft", "prompt+adapter", *FEW)),
    "text LoRA": ("fedavg", ("--peft", "text-lora+lora")),
    "VPT": ("vpt", ()),
    "MaPLe": ("maple", ("TRAINER.MAPLE.DEPTH", "2")),
    "patches": ("fedotp", FEW),
}
# What the tower itself gives where no method reaches it: there is no text tower to classify by.
DOORS = ("visual prompts (3)", "patches (3)")
DOORS_NOTE = ("at the model's doors (`model.adapted_image`, `model.patches`): every prompt has a "
              "gradient, and patches move with it; methods with these classify by texts")
HEADS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "head": ("fedavg", ("--peft", "head")),
    "head + LoRA": ("fedavg", ("--peft", "head+lora", *ALL)),
    "head + LN": ("fedavg", ("--peft", "head", "PEFT.LN", "True")),
    "head + adapter": ("fedavg", ("--peft", "head+adapter")),
}


def backbone(kind: str) -> Backbone:
    """Return the small tower of a row."""
    if kind in ("tiny", "resnet"):
        return tiny() if kind == "tiny" else toy("resnet")
    return (paired if kind in WITH_TEXT else alone)(kind)


def cell(
    kind: str, trainer: str, words: tuple[str, ...], formats: str = "sopx"
) -> tuple[str, str]:
    """Return a cell's text and, where it was refused, the reason."""
    tower = backbone(kind)
    try:
        start = federation(trainer, words, tower).p0
        whole = trained(trainer, words, noise=0.0, backbone=tower)
    except ConfigError as error:
        return "", str(error).replace(f"{tower.name} has", "the tower has")
    still = [n for n, v in whole.params.items() if n in start and v.equal(start[n])]
    assert not still, f"{kind} {trainer} {words}: {still} did not move"
    assert all(bool(v.isfinite().all()) for v in whole.params.values())
    return f"yes {_formats(whole, formats)}".strip(), ""


def door(kind: str) -> str:
    """Return what a tower's own doors say to visual prompts and to patches: yes, or refused."""
    model = VLModel(backbone(kind), NAMES)
    side, gen = model.backbone.image_size, torch.Generator().manual_seed(1)
    x = {"pixels": torch.randn(2, 3, 3, side, side, generator=gen).to(model.dtype)}
    try:
        tree = prompt_tree(model.vision.blocks, 2, gen, 0.3)
    except ConfigError:
        return "refused (2)"
    p = {n: torch.stack([v, 2 * v]).to(model.dtype).requires_grad_() for n, v in tree.items()}
    edits = TreeEdits("image", p)
    features, patches = model.adapted_image(x, edits)[0], model.patches(x, edits)
    assert features.shape[:2] == patches.shape[:2] == (2, 3) and patches.dim() == 4
    plain = model.patches(x)
    assert plain.shape == patches.shape and not torch.allclose(plain, patches)
    for out in (features, patches):
        grads = torch.autograd.grad(out.square().sum(), list(p.values()), retain_graph=True)
        assert all(bool(g.isfinite().all()) and bool(g.any()) for g in grads), kind
    return "yes"


def _formats(whole: TrainedModel, letters: str) -> str:
    formats = [f for f, letter in LETTERS.items() if letter in letters
               and (f != "onnx" or not onnx_file.missing_packages())]
    cells = try_exports({"": whole}, formats)
    return "".join(LETTERS[c.format] for c in cells if c.difference is not None)


def towers() -> str:
    """Return both tables, with text tower and without, and the reasons below them."""
    notes: list[str] = []
    out = []
    for sets in (SETS, HEADS):
        heads = [*sets, *(DOORS if sets is HEADS else ())]
        lines = [f"| tower | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
        for row, kind in ROWS.items():
            if backbone(kind).has_text is (sets is SETS):
                texts = []
                for trainer, words in sets.values():
                    text, why = cell(kind, trainer, words)
                    if why and why not in notes:
                        notes.append(why)
                    texts.append(text or f"refused ({notes.index(why) + 1})")
                    sys.stderr.write(f"{row} {trainer} {words}: {texts[-1]}\n")
                texts += [door(kind)] * len(DOORS) if sets is HEADS else []
                lines.append(f"| {row} | {' | '.join(texts)} |")
        out.append("\n".join(lines))
    notes.append(DOORS_NOTE)
    return "\n\n".join([*out, "\n".join(f"{i}. {note}" for i, note in enumerate(notes, 1))])


def builds() -> Iterator[tuple[str, str]]:
    """Yield open_clip's builds, each with what its towers are; built without memory."""
    import open_clip
    from open_clip.timm_model import TimmModel

    seen: dict[str, str] = {}
    for name in open_clip.list_models():
        arch: dict[str, Any] = copy.deepcopy(open_clip.get_model_config(name))
        vision = arch["vision_cfg"]
        if "multimodal_cfg" in arch or arch["text_cfg"].get("hf_model_name"):
            yield name, "refused: a Hugging Face text encoder or a multimodal decoder"
        elif "timm_model_name" not in vision:
            yield name, "open_clip's own" + (" ResNet" * isinstance(vision["layers"], list))
        else:
            key = vision["timm_model_name"]
            if key not in seen:
                seen[key] = _trunk(TimmModel, arch)
            yield name, seen[key]


def _trunk(made: Any, arch: dict[str, Any]) -> str:
    vision = arch["vision_cfg"]
    size = vision["image_size"]
    with torch.device("meta"):
        visual = made(
            vision["timm_model_name"], embed_dim=arch["embed_dim"], image_size=size,
            pool=vision.get("timm_pool", "avg"), proj=vision.get("timm_proj", "linear"),
        )
    like: Any = SimpleNamespace(image_size=size, feature_dtype=torch.float32)
    try:
        Trunk(visual, like)
    except Unreadable as reason:
        return f"timm's, not read: {reason}"
    return "timm's, read"


def counts() -> str:
    """Return a table of open_clip's builds by what their towers are."""
    kinds: dict[str, list[str]] = {}
    for name, kind in builds():
        kinds.setdefault(kind, []).append(name)
    lines = ["| image tower | builds | such as |", "|---|---|---|"]
    lines += [f"| {kind} | {len(some)} | {', '.join(some[:: max(1, len(some) // 3)][:3])} |"
              for kind, some in sorted(kinds.items())]
    return "\n".join(lines)


def part(page: str, name: str) -> str:
    """Return what a page holds between a table's marks."""
    return page.split(BEGIN.format(name))[1].split(END)[0].strip()


if __name__ == "__main__":
    for title, text in (("towers", towers()), ("builds", counts())):
        print(f"{BEGIN.format(title)}\n{text}\n{END}\n")
