"""MOON beside its authors' ``main.py``, run whole."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from parity.figures import AUTHORS, Source, Values
from parity.net import Net, data, net_case, network, outcome, tensors
from parity.script import executed
from parity.world import World

MU, TAU = 5.0, 0.5
SOURCE = Source(
    "MOON", AUTHORS, "QinbinLi/MOON", "8fcba3c4efc9a47eb24687a91ba94cfb2005103f", ("main.py",),
    equal="three rounds, logits",
    differs="a feature adapter and a linear head on both sides, the adapted feature in place of "
    "their projection; in a client's first round they have no previous model, here it is the "
    "common start: the loss is log 2 more, the gradient the same",
)
CASES = {"mu 5": net_case("MOON", {"MU": MU, "TAU": TAU}, momentum=0.9, decay=1e-5, rate=0.05,
                          loss=False)}


class Three(Net):
    """The network with their three outputs: features, what is contrasted, logits."""

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Return features twice, and logits."""
        features = self.base(z)
        return features, features, self.linear(features)


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their script."""
    c, batches, start = world.case, data(world), network(world).state_dict()

    def build(*_: object) -> Three:
        net = Three(world)
        net.load_state_dict(start)
        return net

    given: dict[str, Callable[..., object]] = {
        "partition_data": lambda *_, **__: (None, world.labels.numpy(), None, None,
                                            dict(enumerate(world.rows)), None),
        "get_dataloader": lambda dataset, folder, train, test, rows=(): (
            [batches[int(next((k for k, own in enumerate(world.rows) if len(rows)
                               and own[0] == rows[0]), 0))]], [], [], []),
        "compute_accuracy": lambda net, loader, get_confusion_matrix=False, device="": (
            (0.0, None, 0.0) if get_confusion_matrix else (0.0, 0.0)),
        "mkdirs": lambda path: Path(path).mkdir(parents=True, exist_ok=True),
    }
    words = (f"--alg moon --dataset cifar10 --n_parties {len(c.sizes)} --comm_round {c.rounds} "
             f"--lr {c.rate} --epochs {c.epochs} --reg {c.decay} --mu {MU} --temperature {TAU} "
             "--device cpu --net_config 1 --log_file_name toy")
    kept, handlers, level = sys.argv, logging.root.handlers[:], logging.root.level
    sys.argv = ["main.py", *words.split()]
    try:
        end = executed(world, folder, "main.py", None, network(world), {
            "utils": given, "model": {"ModelFedCon": build},
        })
    finally:
        sys.argv, logging.root.handlers[:] = kept, handlers
        logging.root.setLevel(level)
    net = Net(world)
    net.load_state_dict(end["global_model"].state_dict())
    return outcome(world, tensors(net), [net] * len(batches))
