"""FedTPG beside its authors' ``model/FedTPG.py`` and ``federated/server.py``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.authors import Names, Theirs, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "FedTPG", AUTHORS, "boschresearch/FedTPG", "f141c2994b5a0695ac4667e6c62005b7627540c2",
    ("model/FedTPG.py", "model/prompt_net.py", "clip/model.py"),
    equal="loss, gradients, logits, three rounds with own classes and the mean of the clients",
    differs="widths of the towers in place of 512; a fresh optimiser per client and round (theirs "
            "goes on); the keys' bias is left out, whose gradient is zero",
)
CASES = {"four-tokens": Case("FedTPG"), "all names, by samples": Case(
    "FedTPG", {"CLASSES": "all", "VARIANT": "fixed", "N_CTX": 2})}

ZERO = "attn.k.bias"  # moves every score of a query alike: its gradient is rounding


def attention(blocks: Any, **more: Any) -> dict[str, Any]:
    """Return the parameters of their cross-attention, its MLP and more layers by our names."""
    attend, ff = blocks
    width, found = attend.fn.embed_dim, dict[str, Any]()
    for at, site in enumerate("qkv"):
        rows = slice(at * width, (at + 1) * width)
        found[f"attn.{site}.weight"] = (attend.fn.in_proj_weight, lambda t, r=rows: t[r])
        found[f"attn.{site}.bias"] = (attend.fn.in_proj_bias, lambda t, r=rows: t[r])
    layers = {"attn.o": attend.fn.out_proj, "norm.query": attend.norm, "ff1": ff.net[1],
              "norm.key": attend.norm_context, "norm.ff": ff.net[0], "ff2": ff.net[3], **more}
    return found | {f"{name}.{kind}": getattr(layer, kind) for name, layer in layers.items()
                    for kind in ("weight", "bias")}


def table(net: Any) -> Names:
    """Return the parameters of their ``PromptTranslator`` under our names."""
    found = {"queries": net.soft_prompt} | attention(net.encoder.cross_attend_blocks)
    return Names({f"text.net.{name}": value for name, value in found.items()})


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``FedTPG`` and their server's mean."""
    case = world.case
    tokens = case.options.get("N_CTX", 4)
    own = case.options.get("CLASSES") != "all"
    with repository(folder, "einops") as load:
        setattr(sys.modules["einops"], "repeat", lambda x, _, b: x.expand(b, *x.shape))  # noqa: B010
        clip, module = their_clip(world, load("clip.model")), load("model.FedTPG")
        setattr(module, "PromptTranslator", partial(  # noqa: B010
            module.PromptTranslator, prompt_dim=case.width, textemb_dim=case.embed))
        cfg = settings(MODEL={"N_CTX": tokens, "D_CTX": 1, "DEPTH": 0})
        net = module.FedTPG(cfg, clip, device="cpu").double().train()

        def loss(x: Tensor, y: Tensor, own: bool = False) -> Tensor:
            held = y.unique() if own else torch.arange(len(world.names))
            logits = net(x, [world.names[c] for c in held], "toy")[0]
            return F.cross_entropy(logits, torch.searchsorted(held, y))

        theirs = Theirs(world, loss=loss, logits=lambda x: net(x, world.names, "toy")[0],
                        **table(net.prompt_learner.meta_net).methods())
        found = theirs.gradients()
        theirs.loss = partial(loss, own=own)
        count = len(case.sizes)
        found |= theirs.rounds(world.start, [1 / count] * count if own else None)
        return {name: value for name, value in found.items() if ZERO not in name}
