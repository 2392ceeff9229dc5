"""FedDecomp beside its authors' ``src/client.py``, ``src/server.py`` and ``loralib``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.authors import FrozenCLIP, Names, repository
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "FedDecomp", AUTHORS, "XinghaoWu/FedDecomp", "8d8fbda7ad690a13e231a3958f75a08f95e78eb8",
    ("src/client.py", "src/server.py", "loralib/layers.py", "loralib/utils.py"),
    equal="three rounds: shared and private parts in turn, mean, logits",
    differs="their layer is the classifier on our frozen features, its rows of length 1 (a whole "
            "ResNet there)",
)
RANK, OWN = 2, 2
CASES = {"linear head": Case(
    "FedDecomp", {"RANK": RANK, "PRIVATE_EPOCHS": OWN},
    {"PEFT.TEXT": "none", "PEFT.HEAD": "linear"}, epochs=5, decay=0.0, loss=False,
)}
HEAD = "head.weight"


class Classifier(nn.Module):
    """Frozen features and their layer W + BA, as a network of theirs is called."""

    def __init__(self, world: World, layer: Any) -> None:
        super().__init__()
        clip = FrozenCLIP(world)
        self.encode, self.scale, self.layer = clip.encode_image, clip.logit_scale.exp(), layer

    def forward(self, images: Tensor, mode: str = "all") -> Tensor:
        """Return logits ``[B, C]``."""
        whole = self.layer(torch.eye(self.layer.in_features, dtype=images.dtype), mode).T
        z = F.normalize(self.encode(images), dim=-1)
        return self.scale * z @ F.normalize(whole, dim=-1).T


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their clients and of their mean."""
    case = world.case
    args = SimpleNamespace(optimizer="sgd", lr=case.rate, momentum=case.momentum, local_p_ep=OWN,
                           local_ep=case.epochs, num_users=len(case.sizes), policy=3)
    log = SimpleNamespace(info=lambda *_: None)
    with repository(folder, "matplotlib.pyplot", "tqdm") as load:
        kind, client = load("loralib").Linear, load("src.client").Client
        server_kind = load_server(load)
        server = server_kind.__new__(server_kind)
        server.args, server.logger, server.clients = args, log, []
        tables = []
        for rows in world.rows:
            layer = kind(case.embed, len(world.names), r=RANK, lora_alpha=RANK, bias=False).double()
            tables.append(Names({HEAD: layer.weight, f"{HEAD}.private.left": layer.lora_B,
                                 f"{HEAD}.private.right": layer.lora_A}))
            tables[-1].put(world.start)
            one = client.__new__(client)
            one.args, one.device, one.criterion = args, "cpu", nn.CrossEntropyLoss()
            one.local_model = Classifier(world, layer)
            one.trainloader = [(world.images[rows], world.labels[rows])]
            server.clients.append(one)
        for _ in range(case.rounds):
            for one in server.clients:
                one.train()
            server.send_parameters(server.average_weights())
        with torch.no_grad():
            logits = torch.stack([one.local_model(world.tests) for one in server.clients])
        found = {f"client{k} {n}": v for k, table in enumerate(tables)
                 for n, v in table.get().items() if n != HEAD}
        return found | {f"shared {HEAD}": tables[0].get()[HEAD], "logits": logits}


def load_server(load: Any) -> Any:
    """Return their ``Server``, whose file imports their data sets."""
    reader = ModuleType("utils.get_dataset")
    reader.__dict__["get_dataset"] = None
    sys.modules["utils.get_dataset"] = reader
    return load("src.server").Server
