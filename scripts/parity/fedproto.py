"""FedProto beside its authors' ``FedProto_taskheter``."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.authors import repository
from parity.figures import AUTHORS, Source, Values
from parity.net import NAMES, Net, arguments, data, encode, gradients, net_case, network, outcome
from parity.pfllib import quiet
from parity.world import World

SOURCE = Source(
    "FedProto", AUTHORS, "yuetan031/FedProto", "97e42e2741e1ae2e2fce2465e80f38f6997f8836",
    ("exps/federated_main.py", "lib/update.py", "lib/utils.py"),
    differs="a feature adapter and a linear head on both sides; VARIANT published; a client's "
    "means are of its trained model (theirs: of the last local epoch, while it trains); no client "
    "drops its last batch; distances to all classes (theirs: to the client's own)",
)
CASES = {"published": net_case("FedProto", {"VARIANT": "published", "LAMBDA": 3.0}, epochs=2,
                               momentum=0.5, rate=0.2)}


class Two(Net):
    """The network with their two outputs: log probabilities and features."""

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return log probabilities and features."""
        features = self.base(z)
        return F.log_softmax(self.linear(features), -1), features


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their training function."""
    c, batches, ends = world.case, data(world), dict[str, Any]()
    start = Two(world)
    start.load_state_dict(network(world).state_dict())
    args = arguments(dataset="", ways=0, shots=0, stdev=0, num_users=len(batches), rounds=c.rounds,
                     local_bs=1, device="cpu", optimizer="sgd", lr=c.rate, train_ep=c.epochs,
                     ld=c.options["LAMBDA"], num_classes=len(world.names), verbose=False)
    paths = [str(folder / "lib"), str(folder / "lib" / "models")]
    kept = list(sys.path)
    stubs = ("tensorboardX", "models", "resnet", "options")
    with repository(folder / "exps", *stubs) as load, quiet():
        sys.modules["models"] = sys.modules["tensorboardX"]
        sys.path[:0] = paths
        main, update = load("federated_main"), load("update")
        train = update.LocalUpdate.update_weights_het

        def trained(self: Any, args: Any, idx: int, protos: Any, model: Any, global_round: int
                    ) -> Any:
            out = train(self, args, idx, protos, model, global_round)
            still = arguments(**{**vars(self.args), "lr": 0.0, "train_ep": 1})
            self.args, own = still, self.args
            means = train(self, still, idx, protos, copy.deepcopy(model), global_round)[3]
            self.args = own
            return *out[:3], means

        def test(args: Any, models: Any, *rest: Any) -> tuple[list[float], ...]:
            ends.update(models=models, protos=rest[-1])
            return [0.0], [0.0], [0.0]

        update.LocalUpdate.update_weights_het = trained
        update.LocalUpdate.train_val_test = lambda self, dataset, idxs: [batches[idxs[0]]]
        main.test_inference_new_het_lt = test
        main.SummaryWriter = lambda *_: arguments(add_scalar=lambda *_: None)
        main.FedProto_taskheter(args, None, None, {k: [k] for k in range(len(batches))}, None,
                                [copy.deepcopy(start) for _ in batches], None)
    sys.path[:] = kept
    means = torch.stack([ends["protos"][j][0] for j in range(len(world.names))])
    z = encode(world, world.tests)
    with torch.no_grad():
        logits = [-(net.base(z)[:, None] - means).square().mean(-1) for net in ends["models"]]
    nets = [copy.deepcopy(network(world)) for _ in ends["models"]]
    for net, end in zip(nets, ends["models"], strict=True):
        net.load_state_dict(end.state_dict())
    return gradients(world) | outcome(world, {}, nets, NAMES) | {"logits": torch.stack(logits)}
