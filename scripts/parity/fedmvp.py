"""FedMVP beside its authors' ``model/FedMVP.py``, with what is missing there made good."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.authors import Names, Theirs, repository, settings, their_clip
from parity.fedtpg import attention
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "FedMVP", AUTHORS, "mainaksingha01/FedMVP", "246800efae5324f556cdbffe9533e9c574b93c08",
    ("model/FedMVP.py", "clip/model.py"),
    differs="released without model/prompt_net.py (unused), attributes (the template's text here) "
            "and the making of image_encoder (made of the class in its file); widths of the "
            "towers; no random flip; no low-rank phase; a step for each batch; the keys' biases "
            "left out, whose gradient is zero",
)
CASES = {"template": Case("FedMVP", vision_width=64, embed=64, width=64, epochs=1)}
ZERO = ("attn.k.bias", "norm.key.bias")  # they move all scores of a query alike


def table(learner: Any) -> Names:
    """Return the parameters of their network under our names."""
    found = attention(learner.crossattn.cross_attend_blocks, text=learner.linear)
    return Names({f"image.net.{name}": value for name, value in found.items()})


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their ``FedMVP`` and of their server's mean."""
    case = world.case
    with repository(folder, "einops", "matplotlib", "matplotlib.pyplot") as load:
        load("model")
        sys.modules["model.prompt_net"] = ModuleType("model.prompt_net")
        clip, module = their_clip(world, load("clip.model")), load("model.FedMVP")
        kind, said = module.CrossAttention, case.templates[0]
        module.__dict__.update(
            CrossAttention=lambda latent_dim, kv_dim, cross_heads: kind(
                case.vision_width, case.vision_width, cross_heads),
            flip_transform=lambda x: x,
            load_gpt_descriptions=lambda _, names, __: {n: [said.format(n)] for n in names},
        )
        net = module.FedMVP(settings(MODEL={"N_CTX": 4}), clip, device="cpu")
        net.prompt_learner.linear = nn.Linear(case.embed, case.vision_width)
        net.image_encoder = module.ImageEncoder(clip.visual)
        net.double().train()

        def logits(x: Tensor, names: list[str]) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = net(x, names, "UCF101")
            return found

        def loss(x: Tensor, y: Tensor, own: bool = False) -> Tensor:
            held = y.unique() if own else torch.arange(len(world.names))
            found, score = logits(x, [world.names[c] for c in held])
            return F.cross_entropy(found, torch.searchsorted(held, y)) + 10 * score

        theirs = Theirs(world, loss=loss, logits=lambda x: logits(x, world.names)[0],
                        **table(net.prompt_learner).methods())
        found = theirs.gradients()
        theirs.loss = partial(loss, own=True)
        count = len(case.sizes)
        found |= theirs.rounds(world.start, [1 / count] * count)
        return {name: value for name, value in found.items() if not name.endswith(ZERO)}
