"""FedDPA beside its authors' LoRA layer with a second adapter, and their server."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.authors import FrozenCLIP, Names, Theirs, load_file, repository
from parity.figures import AUTHORS, Source, Values
from parity.towers import image_features, scores
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "FedDPA", AUTHORS, "Lydia-yang/FedDPA", "cf638c11ecf931b2a3be841d3062912b855f3a8d",
    ("code/peft/tuners/lora/layer.py", "code/fed_utils/model_aggregation.py"),
    equal="loss, gradients, three rounds of T: both adapters, mean; logits by the paper's formula",
    differs="their layers are put into CLIP's image tower (a language model there); an image is "
            "compared with all images of its client; a fresh optimiser per client and round",
)
RANK, ALPHA = 2, 6.0
CASES = {"T": Case(
    "FedDPA", {"INSTANCES": 6, "WEIGHT": 0.4, "LAMBDA": 0.7},
    {"PEFT.VISUAL": "lora", "PEFT.TEXT": "none", "PEFT.RANK": RANK, "PEFT.ALPHA": ALPHA},
)}
SITES = ("q", "v")
SHARED, OWN = "default", "local"


def layers(load_from: Path, world: World) -> dict[tuple[int, str], Any]:
    """Return their LoRA layers with both adapters, around the tower's frozen ones."""
    names = ("peft", "peft.tuners", "peft.tuners.tuners_utils", "peft.utils", "peft.utils.other")
    for name in names:
        sys.modules[name] = ModuleType(name)
    base = type("BaseTunerLayer", (), {"active_adapter": None, "disable_adapters": False,
                                       "merged": False})
    sys.modules[names[2]].__dict__["BaseTunerLayer"] = base
    sys.modules[names[4]].__dict__["transpose"] = lambda w, turned: w.T if turned else w
    module = load_file(load_from)
    found = {}
    for block in range(world.case.layers):
        for site in SITES:
            width = world.case.vision_width
            layer = module.Linear(SHARED, width, width, r=RANK, lora_alpha=ALPHA)
            layer.update_layer(OWN, RANK, ALPHA, 0.0, True)
            found[block, site] = layer.double()
    return found


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their layers, in their order of training."""
    with repository(folder / "code"):
        lora = layers(folder / "code/peft/tuners/lora/layer.py", world)
        texts = F.normalize(FrozenCLIP(world).encode_text(world.backbone.tokenize(
            [world.case.templates[0].format(name) for name in world.names])), dim=-1)

        def apply(block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            layer = lora.get((block, site))
            if layer is None:
                return F.linear(x, weight, bias)
            layer.weight, layer.bias = (nn.Parameter(t, requires_grad=False)
                                        for t in (weight, bias))
            out: Tensor = layer(x)
            return out

        def use(active: str, beside: str | None = None, weights: Any = None) -> None:
            for layer in lora.values():
                layer.active_adapter, layer.adapter_weight = active, weights
                layer.other_adapter = None if beside is None else [beside]

        def table(adapter: str, name: str) -> Names:
            return Names({
                f"image.{name}.{block}.{site}.{factor}":
                    getattr(layer, f"lora_{factor}")[adapter].weight
                for (block, site), layer in lora.items() for factor in "AB"
            })

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(scores(world, x, texts, apply), y)

        shared, own = table(SHARED, "lora"), table(OWN, "private.lora")
        theirs = Theirs(world, loss=loss, logits=lambda x: scores(world, x, texts, apply),
                        **shared.methods())
        use(SHARED)
        found = theirs.gradients()
        return found | rounds(world, folder, theirs, (shared, own), use, (texts, apply))


def rounds(world: World, folder: Path, theirs: Theirs, tables: tuple[Names, Names], use: Any,
           tower: Any) -> Values:
    """Return what their ``main.py`` leaves: in each round the own adapter, then the shared one."""
    average = averaging(folder)
    shared, own = tables
    common = {n: v for n, v in world.start.items() if ".private." not in n}
    mine = [{n: v for n, v in world.start.items() if ".private." in n} for _ in world.rows]
    weight = world.case.options["WEIGHT"]
    for epoch in range(world.case.rounds):
        sent = []
        for client, rows in enumerate(world.rows):
            shared.put(common)
            own.put(mine[client])
            at = torch.from_numpy(rows)
            if epoch > 0:
                use(OWN, SHARED, [weight, 1 - weight])
                theirs.leaves = own.leaves
                theirs.fit(at)
                mine[client] = {n: v.clone() for n, v in own.get().items()}
            use(SHARED)
            theirs.leaves = shared.leaves
            theirs.fit(at)
            sent.append({n: v.clone() for n, v in shared.get().items()})
        common = average(sent)
    found: Values = {f"shared {n}": v for n, v in common.items()}
    found |= {f"client{k} {n}": v for k, tree in enumerate(mine) for n, v in tree.items()}
    shared.put(common)
    return found | {"logits": torch.stack([
        mixed(world, world.images[rows], own, tree, use, tower)
        for rows, tree in zip(world.rows, mine, strict=True)
    ])}


def mixed(world: World, images: Tensor, own: Names, tree: Any, use: Any, tower: Any) -> Tensor:
    """Return logits of the test images, each with its own share (equation of the paper)."""
    texts, apply = tower
    own.put(tree)
    with torch.no_grad():
        use(OWN)
        z, near = (F.normalize(image_features(world, x, apply), dim=-1)
                   for x in (world.tests, images))
        share = world.case.options["LAMBDA"] * (z @ near.T).mean(1)
        found = []
        for x, a in zip(world.tests, share, strict=True):
            use(OWN, SHARED, [a, 1 - a])
            found.append(scores(world, x[None], texts, apply)[0])
    return torch.stack(found)


def averaging(folder: Path) -> Any:
    """Return their server as a function of the clients' tensors."""
    kept: list[Any] = []
    sys.modules["peft"].__dict__["set_peft_model_state_dict"] = (
        lambda _, tree, __: kept.append(tree))
    module = load_file(folder / "code/fed_utils/model_aggregation.py")

    def average(sent: list[Any]) -> Any:
        files = {str(k): tree for k, tree in enumerate(sent)}
        found = {path: path.split("local_output_")[1].split("/")[0] for path in (
            f"x/0/local_output_{k}/pytorch_model.bin" for k in files)}
        with patch.object(torch, "load", lambda path: files[found[path]]), \
                patch.object(torch, "float32", DTYPE):
            module.FedAvg(None, list(range(len(sent))), "x", {}, 0)
        return kept.pop()

    return average
