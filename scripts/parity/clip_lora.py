"""CLIP-LoRA beside its authors' ``loralib`` and the loss of their ``lora.py``."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from parity.authors import Theirs, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "CLIP-LoRA", AUTHORS, "MaxZanella/CLIP-LoRA", "358f0d7361f59e66c0b2d0b672a3dafb143a759b",
    ("loralib/layers.py", "loralib/utils.py", "lora.py", "clip/model.py"),
    differs="their dropout in front of A (0.25) draws nothing, in the branch that they run with it "
            "(their branch for a rate of 0 sends gradients through the frozen weights alone, 1.5 % "
            "off here); clients train by themselves, three rounds of SGD (there AdamW once)",
)
KEYS = {"PEFT.TEXT": "lora", "PEFT.VISUAL": "lora", "PEFT.RANK": 2, "PEFT.ALPHA": 1.0,
        "PEFT.TARGETS": "q,k,v"}
CASES = {
    "rank 2": Case("CLIP-LoRA", keys=KEYS, rate=0.5),
    "rank 4, alpha 3": Case("CLIP-LoRA", keys=KEYS | {"PEFT.RANK": 4, "PEFT.ALPHA": 3.0},
                            rounds=0),
}
PLACE = {"image": "visual.transformer", "text": "transformer"}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of CLIP with the authors' LoRA layers."""
    c, spec = world.case, world.trainer.root.PEFT
    with repository(folder, "tqdm") as load, redirect_stdout(StringIO()):
        clip = their_clip(world, load("clip.model"))
        lora, every = load("loralib.utils"), list(range(c.layers))
        lora.INDEX_POSITIONS_TEXT["all"] = lora.INDEX_POSITIONS_VISION["ViT-B/16"]["all"] = every
        args = settings(
            encoder="both", position="all", backbone="ViT-B/16", params=["q", "k", "v"],
            r=spec.RANK, alpha=spec.ALPHA, dropout_rate=0.25,
        )
        lora.apply_lora(args, clip)
        for module in clip.double().modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        lora.mark_only_lora_as_trainable(clip)
        texts = [c.templates[0].format(name) for name in world.names]
        ids, scale = load("clip.clip").tokenize(texts), clip.logit_scale.exp()
        leaves = {name: their_factor(clip, name) for name in world.start}

        def forward(x: Tensor) -> Tensor:
            text, image = clip.encode_text(ids), clip.encode_image(x)
            unit = image / image.norm(dim=-1, keepdim=True)
            return scale * unit @ (text / text.norm(dim=-1, keepdim=True)).t()

        def logits(x: Tensor) -> Tensor:  # eval() adds the products to their weights
            found = (clip.eval(), forward(x))[1]
            clip.train()
            return found

        theirs = Theirs.of(world, leaves, lambda x, y: F.cross_entropy(forward(x), y), logits)
        return theirs.gradients() | (theirs.rounds([]) if c.rounds else {})


def their_factor(clip: nn.Module, name: str) -> nn.Parameter:
    """Return their parameter of ``<tower>.lora.<block>.<site>.<A|B>``."""
    tower, _, block, site, factor = name.split(".")
    layer = clip.get_submodule(f"{PLACE[tower]}.resblocks.{block}.attn.{site}_proj")
    return layer.get_parameter(f"w_lora_{factor}")
