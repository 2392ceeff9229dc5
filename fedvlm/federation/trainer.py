"""The base of every method: FedAvg over whatever the groups share.

A method overrides what differs. It is straight-line logic over plain data: trees with a leading
client axis inside (``[K, ...]``), no client axis in ``init``, ``down`` and ``server``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.config.option import Option
from fedvlm.core.errors import ConfigError
from fedvlm.core.registry import Registry
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregate import Update, weighted_mean
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.groups import TAG, Finetune, Rule

Predictor = Callable[[Mapping[str, Tensor]], Tensor]


class Trainer:
    """FedAvg (McMahan et al. 2017) over the shared group; personal tensors stay with the client.

    Attributes:
        groups: rules that give every trainable tensor its group.
        options: what the method adds to the config as ``TRAINER.<NAME>.*``.
        batched: False makes the engine call ``local`` client by client (K = 1).
        extras: full-match patterns of what an upload may carry beside the shared group.
        exempt: invariants of ``fedvlm.check.invariants`` that do not hold, with the reason.
    """

    name: ClassVar[str] = ""
    groups: ClassVar[Sequence[Rule]] = ((r".*", "shared"),)
    options: ClassVar[dict[str, Option]] = {}
    batched: ClassVar[bool] = True
    extras: ClassVar[tuple[str, ...]] = ()
    exempt: ClassVar[dict[str, str]] = {}

    def __init__(self, cfg: Any) -> None:
        """Keep the config; ``self.cfg`` is the method's own node, ``self.root`` the whole tree."""
        self.root = cfg
        self.cfg: Any = cfg.TRAINER.get(self.name.upper()) if self.name else None
        self.report: dict[str, Any] = {}  # what the last aggregation has to tell the log

    @property
    def extra_data(self) -> str:
        """What is used beside the clients' training images, in words for results; empty: nothing.

        A subclass may set a plain class attribute of this name.
        """
        return ""

    def rules(self, names: Sequence[str]) -> Sequence[Rule]:
        """Return the group rules for the tensors called ``names``; by default ``groups``."""
        return self.groups

    def require(self, holds: bool, sentence: str) -> None:
        """Refuse a setting of the method's own options.

        Raises:
            ConfigError: ``sentence``, if it does not hold.
        """
        if not holds:
            raise ConfigError(sentence)

    # ---- model ----------------------------------------------------------------------------
    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        """Return the initial trainable tensors (no client axis), equal for all clients."""
        raise ConfigError(
            f"trainer {self.name or type(self).__name__} does not say what is trained: define "
            "trainables(self, model, generator)"
        )

    def text_features(self, model: Any, p: Tree) -> Tensor:
        """Return the classifier: normalised text features ``[K, C, d]``."""
        return model.text(p["text.ctx"])

    def image_features(self, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return image features ``[K, B, d]``, not normalised."""
        return model.image(x)

    def predictor(self, model: Any, p: Tree) -> Predictor:
        """Return ``x -> logits [K, B, C]`` with the text features computed once."""
        text = self.text_features(model, p)
        return lambda x: model.logits(self.image_features(model, p, x), text)

    def predict(self, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return logits ``[K, B, C]``."""
        return self.predictor(model, p)(x)

    def loss(
        self, model: Any, p: Tree, b: Batch
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return the mean cross-entropy of each client, ``[K]``."""
        return cross_entropy(self.predict(model, p, b.x), b)

    # ---- client ---------------------------------------------------------------------------
    def init(self, ctx: Context, p0: Tree) -> State:
        """Return a new client's state."""
        return {"w": p0}

    def local(self, ctx: Context, c: State, d: Tree) -> tuple[State, Upload]:
        """Do one round's work of K clients on download ``d``; return new states and the upload."""
        w = ctx.fit(c["w"] | d, self.loss)
        return c | {"w": w}, ctx.upload(w)

    def personal(self, ctx: Context, c: State, d: Tree) -> Tree:
        """Return the model that is evaluated for each client after aggregation."""
        return c["w"] | d

    def own_finetune(self) -> Finetune:
        """Return the final personalisation that belongs to the method; by default none.

        Its ``train`` and ``lr`` hold also where the user asks for one (``--finetune-epochs``).
        """
        return Finetune()

    def finetune(self, ctx: Context, c: State, d: Tree, how: Finetune) -> Tree:
        """Return the models evaluated after the last round: ``personal``, trained on a copy.

        Called instead of ``personal`` if ``how.epochs`` is above 0. State and random streams of
        the run stay as they are.
        """
        return ctx.fit(
            self.personal(ctx, c, d), self.loss, train=how.train, epochs=how.epochs,
            lr=how.lr or ctx.optim.lr, tag=TAG,
        )

    # ---- server ---------------------------------------------------------------------------
    def init_server(self, ctx: Context, p0: Tree) -> State:
        """Return the server's state before round 1."""
        return {"w": {n: p0[n] for n in ctx.groups.shared}}

    def down(self, server: State, client: int) -> Tree:
        """Return what client ``client`` receives: shared tensors only."""
        return server["w"]

    def server(self, ctx: Context, server: State, updates: Sequence[Update]) -> State:
        """Return the server's state after a round."""
        return server | {"w": weighted_mean(updates)}


TRAINER_REGISTRY: Registry[type[Trainer]] = Registry("trainer")


def cross_entropy(logits: Tensor, b: Batch) -> Tensor:
    """Return the mean cross-entropy per client ``[K]`` of ``logits [K, B, C]``; padding is out."""
    k, n, c = logits.shape
    each = F.cross_entropy(logits.reshape(k * n, c), b.y.reshape(-1), reduction="none")
    return (each.reshape(k, n) * b.w).sum(1) / b.w.sum(1)
