"""Towers x trainable sets, and open_clip's builds: ``python -m tests.models.table`` prints both.

The tables of docs/towers.md. A cell is a round of two clients on a small random tower of that
family (``trunks``): every trained tensor moved, the formats that the model was exported in and read
back from equal logits; or the reason of the refusal.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from fedvlm.core.errors import ConfigError
from fedvlm.export.formats import onnx_file
from fedvlm.export.trained import TrainedModel
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.openclip import build_image_side
from fedvlm.models.stages import has_stages
from fedvlm.models.towers.adapters import TreeEdits, prompt_tree
from fedvlm.models.towers.blocks import Unreadable
from fedvlm.models.towers.trunk import Trunk
from fedvlm.models.vlmodel import VLModel
from tests.export.matrix import try_exports
from tests.export.models import NAMES, federation, tiny, trained
from tests.models import encoders
from tests.models.toys import toy
from tests.models.trunks import FEATURES, WITH_TEXT, alone, paired

BEGIN, END = "<!-- table: {} -->", "<!-- end -->"
LETTERS = {"safetensors": "s", "open_clip": "o", "peft": "p", "onnx": "x"}
# Row -> the small tower that stands for it.
ROWS: Mapping[str, str] = {
    "CLIP's ViT": "tiny", "SigLIP, SigLIP2": "siglip", "PE-Core": "pe", "EVA-01": "eva01",
    "EVA-02": "eva02", "ViT without class token": "gap", "ResNet": "resnet",
    "ConvNeXt": "convnext", "Swin": "swin", "FastViT": "fastvit", "ViT with relative positions":
    "relpos", "CoCa": "coca", "BERT's text tower": "bert", "RoBERTa's": "roberta",
    "XLM-R's": "xlm-roberta", "T5's": "t5", "mT5's": "mt5", "NLLB's": "nllb",
    "DINOv2 with registers": "dinov2", "DINOv2 giant (SwiGLU)": "dinov2g", "DINOv3": "dinov3",
    "DINOv3 plus (SwiGLU)": "dinov3plus", "ViTamin's blocks": "vitamin",
    "EVA-02 E (norms behind)": "postnorm",
    "ResNet, ConvNeXt, Swin, FastViT, EfficientNet, MobileNet": "trunk",
    "any other": "other",
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
    "head": ("fedavg", ("--peft", "head")),
    "head + feature": ("fedavg", ("--peft", "head+feature")),
    "head + adapter": ("fedavg", ("--peft", "head+adapter")),
}
# What the tower itself gives where no method reaches it: there is no text tower to classify by.
DOORS = ("visual prompts (4)", "patches (4)")
DOORS_NOTE = ("at the model's doors (`model.adapted_image`, `model.patches`): every prompt has a "
              "gradient, and patches move with it; methods with these classify by texts")
HEADS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "head": ("fedavg", ("--peft", "head")),
    "head + feature": ("fedavg", ("--peft", "head+feature")),
    "head + LoRA": ("fedavg", ("--peft", "head+lora", *ALL)),
    "head + LN": ("fedavg", ("--peft", "head", "PEFT.LN", "True")),
    "head + adapter": ("fedavg", ("--peft", "head+adapter")),
}


def backbone(kind: str) -> Backbone:
    """Return the small tower of a row."""
    if kind in ("tiny", "resnet"):
        return tiny() if kind == "tiny" else toy("resnet")
    if kind in encoders.KINDS or kind == "coca":
        place = {"dtype": torch.float32}
        return encoders.coca(**place) if kind == "coca" else encoders.encoder(kind, **place)
    if kind in ("trunk", "other"):
        return alone("resnet" if kind == "trunk" else "relpos")
    return (paired if kind in (*WITH_TEXT, *FEATURES) else alone)(kind)


def cell(
    kind: str, trainer: str, words: tuple[str, ...], formats: str = "sopx"
) -> tuple[str, str]:
    """Return a cell's text and, where it was refused, the reason."""
    tower = backbone(kind)
    try:
        start = federation(trainer, words, tower).p0
        whole = trained(trainer, words, noise=0.0, backbone=tower)
    except ConfigError as error:
        why = str(error).replace(f" of {tower.name} (", " (")
        for verb in ("has", "pools"):
            why = why.replace(f"{tower.name} {verb}", f"the tower {verb}")
        return "", re.sub(r" \(it[^)]*\)", "", why)  # the reason is the tower's own
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
        return "refused (1)"
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


def builds() -> Iterator[tuple[str, str, str]]:
    """Yield open_clip's builds, each with what its image and its text tower are.

    Of each the image tower alone is built without memory, and an image goes through it: that is
    what ``head`` and ``feature`` need.
    """
    import open_clip

    seen: dict[str, str] = {}
    for name in open_clip.list_models():
        arch: dict[str, Any] = copy.deepcopy(open_clip.get_model_config(name))
        key = str((arch["embed_dim"], arch["vision_cfg"]))
        if key not in seen:
            seen[key] = _image(arch)
        encoder = arch["text_cfg"].get("hf_model_name")
        text = "CoCa's" if arch["text_cfg"].get("embed_cls") else "CLIP's"
        yield name, seen[key], "of transformers" if encoder else text


def _image(arch: dict[str, Any]) -> str:
    vision = arch["vision_cfg"]
    size = vision["image_size"]
    with torch.device("meta"):
        visual: Any = build_image_side(arch)[0].visual
        out = visual.eval()(torch.zeros(1, 3, size, size))
    out = out[0] if isinstance(out, tuple) else out
    assert out.shape == (1, arch["embed_dim"]), (vision, out.shape)
    if "timm_model_name" not in vision:
        return "open_clip's own" + (" ResNet" * isinstance(vision["layers"], list))
    like: Any = SimpleNamespace(
        image_size=size, feature_dtype=torch.float32, model=SimpleNamespace(visual=visual)
    )
    if has_stages(like):
        return f"timm's, as stages: {type(visual.trunk).__name__}"
    try:
        Trunk(visual, like)
    except Unreadable as reason:
        return f"timm's, the feature only: {reason}"
    return "timm's, read"


def counts() -> str:
    """Return a table of open_clip's builds by what their towers are."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, image, text in builds():
        kinds.setdefault((image, text), []).append(name)
    lines = ["| image tower | text tower | builds | such as |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(kind)} | {len(some)} | "
              f"{', '.join(some[:: max(1, len(some) // 3)][:3])} |"
              for kind, some in sorted(kinds.items())]
    return "\n".join(lines)


def part(page: str, name: str) -> str:
    """Return what a page holds between a table's marks."""
    return page.split(BEGIN.format(name))[1].split(END)[0].strip()


if __name__ == "__main__":
    for title, text in (("towers", towers()), ("builds", counts())):
        print(f"{BEGIN.format(title)}\n{text}\n{END}\n")
