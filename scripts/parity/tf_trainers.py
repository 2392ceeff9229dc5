"""Trainers of the ``flearn`` family (TensorFlow 1), run as they are with a network of PyTorch.

Their servers, clients and optimiser work on lists of arrays; TensorFlow's part, the network and
its gradient, is ``Learner``. The few functions of TensorFlow that they call otherwise work on
arrays here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.authors import repository
from parity.net import NAMES, Net, data, network
from parity.pfllib import NEVER, quiet
from parity.world import World

Arrays = list[np.ndarray]
TF = ("", ".python", ".python.ops", ".python.ops.control_flow_ops", ".python.ops.math_ops",
      ".python.ops.state_ops", ".python.framework", ".python.framework.ops", ".python.training",
      ".python.training.optimizer")


class Slots:
    """TensorFlow's ``Optimizer``: a place beside each variable."""

    def __init__(self, *_: Any) -> None:
        self.places: dict[int, Any] = {}

    def get_slot(self, variable: Any, name: str) -> Any:
        """Return what lies beside a variable."""
        return self.places.setdefault(variable.at, Place())


class Place:
    """A variable's neighbour; arithmetic reads its value."""

    value: Any = None

    def load(self, value: Any, session: Any) -> None:
        """Set the value."""
        self.value = np.array(value)

    def __rsub__(self, other: Any) -> Any:
        return other.value - self.value


class Variable:
    """A trained array."""

    def __init__(self, at: int, value: np.ndarray) -> None:
        self.at, self.value = at, value
        self.dtype = SimpleNamespace(base_dtype=value.dtype)

    def __sub__(self, other: Place) -> Any:
        return self.value - other.value


class Learner:
    """The network as their clients use it; its step is ``inner_opt``'s, or plain descent."""

    size, flops = 0, 0

    def __init__(self, world: World, inner_opt: Any, rate: float) -> None:
        self.net: Net = network(world)
        self.inner_opt, self.rate = inner_opt, rate
        self.graph, self.sess = SimpleNamespace(as_default=nullcontext), None

    def get_params(self) -> Arrays:
        """Return copies of all arrays."""
        return [p.detach().numpy().copy() for p in self.net.parameters()]

    def set_params(self, values: Arrays) -> None:
        """Set all arrays."""
        for p, value in zip(self.net.parameters(), values, strict=True):
            p.data = torch.from_numpy(np.array(value))

    def grads(self, x: Any, y: Any) -> Arrays:
        """Return the gradient of the mean cross-entropy."""
        out = self.net(torch.from_numpy(np.asarray(x)))
        loss = F.cross_entropy(out, torch.from_numpy(np.asarray(y)))
        return [g.numpy() for g in torch.autograd.grad(loss, list(self.net.parameters()))]

    def step(self, grads: Arrays) -> None:
        """Take a step."""
        values = self.get_params()
        for at, (value, grad) in enumerate(zip(values, grads, strict=True)):
            if hasattr(self.inner_opt, "_apply_dense"):
                self.inner_opt._prepare()
                self.inner_opt._apply_dense(grad, Variable(at, value))
            else:
                value -= self.rate * grad
        self.set_params(values)

    def solve_sgd(self, batch: tuple[Any, Any]) -> tuple[Arrays, float, Arrays]:
        """Return the gradient and the arrays after a step."""
        grads = self.grads(*batch)
        self.step(grads)
        return grads, 0.0, self.get_params()

    def solve_inner(self, data: dict[str, Any], epochs: int, batch: int) -> tuple[Arrays, int]:
        """Take a step with all images per epoch."""
        for _ in range(epochs):
            self.step(self.grads(data["x"], data["y"]))
        return self.get_params(), 0

    def get_gradients(self, data: dict[str, Any], size: int) -> tuple[int, np.ndarray]:
        """Return a flat gradient, of which they print a figure."""
        return len(data["y"]), np.zeros(size)

    def get_loss(self, data: Any) -> float:
        """Return a number that nothing depends on."""
        return 0.0

    def test(self, data: Any) -> tuple[int, float]:
        """Return nothing: the test is left out."""
        return 0, 0.0

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def tensorflow() -> Iterator[None]:
    """Put functions on arrays where TensorFlow's are imported from."""
    for end in TF:
        name = f"tensorflow{end}"
        module = sys.modules[name] = ModuleType(name)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    root, ops = sys.modules["tensorflow"], sys.modules["tensorflow.python.ops"]

    def assign(variable: Variable, change: Any) -> None:
        variable.value -= change

    vars(root).update(
        train=SimpleNamespace(GradientDescentOptimizer=lambda rate: None),
        reset_default_graph=lambda: None,
        trainable_variables=lambda: [Variable(at, np.zeros(0)) for at in range(len(NAMES))],
    )
    vars(ops).update(
        math_ops=SimpleNamespace(cast=lambda value, kind: value),
        state_ops=SimpleNamespace(assign_sub=assign),
        control_flow_ops=SimpleNamespace(group=lambda *_: None),
    )
    sys.modules["tensorflow.python.framework.ops"].__dict__["convert_to_tensor"] = (
        lambda value, name="": value)
    sys.modules["tensorflow.python.training.optimizer"].__dict__["Optimizer"] = Slots
    yield


def flearn_server(world: World, folder: Path, module: str, **params: Any) -> Any:
    """Return their server after the case's rounds.

    Args:
        module: of its ``Server``.
        params: further parameters of its constructor.
    """
    c = world.case
    batches = {k: {"x": z.numpy(), "y": y.numpy()} for k, (z, y) in enumerate(data(world))}
    given = {
        "model_params": (), "learning_rate": c.rate, "batch_size": max(c.sizes), "seed": 0,
        "num_epochs": c.epochs, "clients_per_round": len(c.sizes), "eval_every": NEVER,
        "num_rounds": c.rounds, "drop_percent": 0.0, "dataset": "", **params,
    }
    with repository(folder, "PIL", "PIL.Image") as load, tensorflow(), quiet():
        metrics = load("flearn.utils.model_utils")
        metrics.Metrics = lambda *_: SimpleNamespace(update=lambda **_: None, accuracies=[],
                                                     train_accuracies=[])
        theirs = load(module)
        server = theirs.Server(
            given, lambda *opt: Learner(world, next((o for o in opt if isinstance(o, Slots)), None),
                                        c.rate),
            (list(batches), [], batches, batches),
        )
        np_state = np.random.get_state()
        with suppress(StopIteration):  # Ditto's begins a round more than it has batches for
            server.train()
        np.random.set_state(np_state)
    return server
