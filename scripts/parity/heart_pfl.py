"""HEART-PFL beside its authors' ``AL``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedvlm.core.trees import Tree
from fedvlm.models.load.openclip import build_model
from parity.authors import Theirs, repository
from parity.figures import AUTHORS, Source, Values
from parity.net import Cosine, arguments, net_case
from parity.pfllib import NEVER, quiet
from parity.world import World

SOURCE = Source(
    "HEART-PFL", AUTHORS, "danny0628/HEART-PFL", "d90e395d213621df6e794a7b2fd99e9ee563fe7b",
    ("optim/ours.py", "optim/base_al.py", "aggregation/averaging.py"),
    differs="LoRA in open_clip's image tower and a linear head in the place of a ResNet's "
    "adapters; HDA_GRAD none, since their alignment term has no gradient; no server distillation "
    "(its loss is not a number in the released code); the end of base_al.py, a test that does not "
    "parse, is cut off",
)
CASES = {
    f"prox {prox}": net_case(
        "HEART-PFL", {"HDA_GRAD": "none", "AKT": "no", "PROX": prox},
        {"PEFT.VISUAL": "lora", "PEFT.RANK": 2}, rate=0.02,
    ) for prox in (1.0, 0.02)
}
SITES = ("q", "v")  # rows of in_proj: the first third and the last


class Tower(nn.Module):
    """open_clip's image tower with LoRA under a linear head."""

    def __init__(self, world: World) -> None:
        super().__init__()
        c = world.case
        whole, _ = build_model(c.architecture, 0)
        whole.double().load_state_dict(world.weights, strict=False)
        self.frozen = [whole.eval().requires_grad_(False)]  # a list: no part of the state
        self.scale = world.trainer.spec.scale  # type: ignore[attr-defined]
        self.adapter = nn.ParameterDict({
            name.replace(".", "_"): nn.Parameter(value.clone())
            for name, value in world.start.items() if name != "head.weight"
        })
        self.fc = Cosine(len(world.names), c.embed, float(world.weights["logit_scale"].exp()))
        self.fc.weight.data = world.start["head.weight"].clone()
        self.layers = c.layers

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of pixels."""
        visual: nn.Module = getattr(self.frozen[0], "visual")  # noqa: B009
        new: dict[str, Tensor] = {}
        for block in range(self.layers):
            at = f"transformer.resblocks.{block}.attn.in_proj_weight"
            q, v = (self.scale * self.adapter[f"image_lora_{block}_{site}_B"]
                    @ self.adapter[f"image_lora_{block}_{site}_A"] for site in SITES)
            new[at] = visual.get_parameter(at) + torch.cat([q, torch.zeros_like(q), v])
        out: Tensor = self.fc(functional_call(visual, new, (x,)))
        return out

    def extract_features(self, x: Tensor) -> Tensor:
        """Return what no gradient passes."""
        return torch.ones(len(x), 1)

    def extract_features_all(self, x: Tensor) -> list[Tensor]:
        """Return four stages of it."""
        return [self.extract_features(x)] * 4

    def named(self) -> dict[str, nn.Parameter]:
        """Return the trained tensors under our names."""
        return {n.replace("_", "."): p for n, p in self.adapter.items()} | {
            "head.weight": self.fc.weight}

    def put(self, tree: Tree) -> None:
        """Set tensors from ours."""
        for name, own in self.named().items():
            own.data = tree[name].clone()


@contextmanager
def without_gpu() -> Iterator[None]:
    """Let ``to("cuda")`` do nothing."""
    old = {kind: kind.to for kind in (Tensor, nn.Module)}
    for kind, to in old.items():
        kind.to = lambda self, *a, to=to, **k: self if "cuda" in a else to(self, *a, **k)
    try:
        yield
    finally:
        for kind, to in old.items():
            kind.to = to


def package(folder: Path) -> None:
    """Import their ``optim`` without the end of ``base_al.py``, a test that does not parse."""
    root, base = ModuleType("optim"), ModuleType("optim.base_al")
    root.__path__, base.__package__ = [str(folder)], "optim"
    sys.modules.update({"optim": root, "optim.base_al": base})
    text = (folder / "base_al.py").read_text(encoding="utf-8").split("    def test(self")[0]
    exec(compile(text, "base_al.py", "exec"), vars(base))  # noqa: S102


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server and clients."""
    c, net = world.case, Tower(world)
    found = Theirs.of(world, net.named(), lambda x, y: F.cross_entropy(net(x), y), net).gradients()
    net.put(world.start)
    users = range(len(world.rows))
    args = arguments(
        net="fix_adapter", lr=c.rate, load_checkpoint=None, aggregation="mean", kd_max_round=0,
        lmbda=c.options["PROX"], clients_per_round=len(users), num_epochs=c.epochs,
        eval_every=NEVER, nologging=True, log_online=False,
    )
    images = [{"indices": rows, "dataloader": [(world.images[rows], world.labels[rows])]}
              for rows in world.rows]
    with repository(folder, "wandb", "torchattacks", "pandas") as load, without_gpu(), quiet():
        package(folder / "optim")
        server: Any = load("optim.ours").AL(args, {"train_users": users, "test_users": users},
                                            images, images, net, None, None, None)
        server.test = lambda *_: (0.0, 0.0)
        for round_ in range(c.rounds):
            server.run_one_round(round_)
    found |= {f"shared {n}": p.detach() for n, p in server.global_model.named().items()}
    for k, model in enumerate(server.personalized_model_list):
        found |= {f"client{k} {n}": p.detach() for n, p in model.named().items()}
    with torch.no_grad():
        return found | {"logits": torch.stack([
            model(world.tests) for model in server.personalized_model_list
        ])}
