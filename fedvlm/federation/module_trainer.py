"""The easy door: a method whose model is any ``torch.nn.Module``.

``build`` makes the module; its ``named_parameters()`` that require a gradient are the method's
tree, everything else in it is frozen with the backbone. A call puts one client's tensors in their
place (``torch.func.functional_call``), so that peft models, Hugging Face's and plain torch code
train under the same contract as every other method. The price is that clients run one by one.

What a module may not do is what would leak from one client to the next: write a buffer, a
parameter or its input. Submodules with buffers (BatchNorm) stay in eval mode, the others are in
training mode while a client trains. Dropout and whatever else draws from the global generators
draws anew for each client and local step, from seeds of the run: nothing of it has to be saved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.toolbox.row_split import RowSplit, split_rows
from fedvlm.federation.trainer import Predictor, Trainer
from fedvlm.models.towers.vision import INSIDE
from fedvlm.models.vlmodel import VLModel, tower_of

PURPOSE = "module"  # of random streams
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
T = TypeVar("T")


@dataclass(frozen=True)
class FrozenModule:
    """A module whose trained tensors come from outside at every call.

    Attributes:
        module: in eval mode between calls; holds the untrained tensors.
        names: of the trained tensors, in the order of ``named_parameters``.
        homes: where the parameters are, if a submodule has several names: ``functional_call`` puts
            a client's tensor in once a name, and takes it out once too few.
    """

    module: nn.Module
    names: tuple[str, ...]
    homes: tuple[tuple[nn.Module, str, nn.Parameter], ...] = ()

    @staticmethod
    def of(module: nn.Module, names: tuple[str, ...]) -> FrozenModule:
        """Return a module with its ``homes``."""
        several = len(list(module.named_modules(remove_duplicate=False))) > len(
            list(module.modules()))
        homes = ((m, n, p) for m in module.modules() for n, p in m._parameters.items()
                 if several and p is not None)
        return FrozenModule(module, names, tuple(homes))

    def put_back(self, params: Mapping[str, Tensor]) -> None:
        """Take out a client's tensors that ``functional_call`` left behind; nothing else."""
        lent = {id(v) for v in params.values()}
        for module, name, own in self.homes:
            if id(module._parameters[name]) in lent:
                module._parameters[name] = own

    @contextmanager
    def mode(self, train: bool) -> Iterator[None]:
        """Put submodules without buffers into training mode, if ``train``, for a while."""
        changed = [m for m in self.module.modules() if train and not list(m.buffers(recurse=False))]
        for module in changed:
            module.training = True
        try:
            yield
        finally:
            for module in changed:
                module.training = False

    def marks(self, params: Mapping[str, Tensor], x: Mapping[str, Tensor]) -> Marks:
        """Return every tensor that a call must leave alone, and how often it was written."""
        tensors: Tree = {f"the parameter '{n}'": v for n, v in self.module.named_parameters()}
        tensors |= {f"the buffer '{n}'": v for n, v in self.module.named_buffers()}
        tensors |= {f"the trained parameter '{n}'": v for n, v in params.items()}
        tensors |= {f"its input '{n}'": v for n, v in x.items()}
        return {what: (v, v._version) for what, v in tensors.items()}


Marks = dict[str, tuple[Tensor, int]]


class ModuleTrainer(Trainer):
    """FedAvg over the trainable parameters of a torch module; say ``groups`` for anything else.

    A subclass gives ``build``, and ``forward`` where the module does not take the batch's streams
    as a dict. Every other hook is there as for any method. With dropout two methods of
    ``fedvlm check`` cannot hold and are to be exempted: G5 and G6 compare runs with other draws.

    ``open_vocabulary`` is off: set it where ``build`` works for any class list and no trainable
    shape depends on it.
    """

    batched = False
    open_vocabulary = False
    _split = RowSplit()

    # ---- what a method says ------------------------------------------------------------------
    def build(self, model: VLModel) -> nn.Module:
        """Return the module; what requires a gradient is trained, the rest is frozen.

        Called once per model, with the global generators seeded by the run's ``init`` stream. The
        tower of ``model.backbone`` may be part of it as it is; whoever changes it copies it first.
        """
        raise ConfigError(
            f"trainer {self.name or type(self).__name__} does not define which module is "
            "trained: add build(self, model)"
        )

    def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Any:
        """Return the module's output for one client.

        Args:
            params: trained tensors by name, for ``torch.func.functional_call``.
            x: streams ``[B, ...]`` (see ``streams``).
        """
        return functional_call(module, dict(params), (x,))

    def logits(self, out: Any) -> Tensor:
        """Return logits ``[B, C]`` from what ``forward`` gave: itself, or its ``logits``."""
        return out if isinstance(out, Tensor) else out.logits

    def criterion(self, out: Any, y: Tensor, w: Tensor) -> Tensor:
        """Return one client's loss, 0-d: the mean cross-entropy of the samples.

        Args:
            out: of ``forward``.
            y: labels ``[B]``.
            w: 1 for a sample, 0 for padding, ``[B]``.
        """
        each = F.cross_entropy(self.logits(out), y, reduction="none")
        return (each * w).sum() / w.sum()

    def check_weights(self, kind: str) -> None:
        """See ``Trainer.check_weights``; a criterion of the method's own is refused as well."""
        self.require(
            type(self).criterion is ModuleTrainer.criterion, f"OPTIM.CLASS_WEIGHTS {kind}: "
            f"{self.name or type(self).__name__} has a criterion of its own, which does not read "
            "class weights; leave it at none",
        )
        super().check_weights(kind)

    def head_of(self, module: nn.Module) -> nn.Module:
        """Return the part of the module that classifies; all others are the body.

        By default its last layer with parameters. Methods that split body and head ask for it
        (``fedvlm.federation.toolbox.networks``).
        """
        return [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))][-1]

    def stages_of(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the stages of the module in the order of its forward: its own ``stages()``.

        Methods that compare layers of two models ask for them.

        Raises:
            ConfigError: it has none.
        """
        stages = getattr(module, "stages", None)
        if not callable(stages):
            raise ConfigError(
                f"{self.name or type(self).__name__} compares the stages of two networks, and "
                f"{type(module).__name__} does not name its own: give it stages(self), which "
                "returns its stages in order"
            )
        return list(stages())

    # ---- the contract ------------------------------------------------------------------------
    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the module's parameters that require a gradient.

        Raises:
            ConfigError: there are none, a name holds ``|``, or ``build`` changed the backbone.
            FedvlmError: this trainer has served a run of another seed.
        """
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        if "_seed" not in vars(self):
            self._seed = seed  # of the run, set before the driver seals this object
        if self._seed != seed:
            raise FedvlmError(
                f"a {type(self).__name__} can be used for one run only: create another one for "
                "another seed"
            )
        part = self._part(model)
        return self._cut({n: part.module.get_parameter(n).detach().clone() for n in part.names})

    def _cut(self, start: Tree) -> Tree:
        """Return the leaves of a run's trained tensors: rows apart where ``FED.PERSONAL`` says."""
        split = split_rows(self._personal(), start)
        if split != self._split:
            self._split = split
        return split.cut(start)

    def _kept(self, names: Sequence[str]) -> set[str]:
        return set(self._split.personal) or super()._kept(names)

    def predictor(self, model: VLModel, params: Tree) -> Predictor:
        """See ``Trainer.predictor``; the module is in eval mode."""
        def predict(x: Mapping[str, Tensor]) -> Tensor:
            streams, seed = self._streams(model, x), rng.seed_of(0, PURPOSE)
            return torch.stack([
                self._run(model, params, k, streams, seed, False, self.logits)
                for k in range(len(next(iter(params.values()))))
            ])

        return predict

    def loss(
        self, model: VLModel, params: Tree, batch: Batch
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return ``criterion`` of each client, ``[K]``; the module is in training mode."""
        return torch.stack(self._losses(model, params, batch, lambda loss: loss))

    def export(self, model: VLModel, params: Tree) -> dict[str, Any]:
        """Return the whole module for ``load_state_dict``: trained and frozen tensors, buffers.

        Args:
            params: one client's tensors, without client axis.
        """
        part, params = self._part(model), self._split.join(params)
        state = part.module.state_dict(keep_vars=True)  # a tied tensor has several names here
        ours = {id(part.module.get_parameter(n)): params[n] for n in part.names}
        return {
            name: ours.get(id(v), v).detach().clone() if isinstance(v, Tensor) else v
            for name, v in state.items()
        }

    # ---- inside ------------------------------------------------------------------------------
    def _part(self, model: VLModel) -> FrozenModule:
        return model.once((self, PURPOSE), lambda: self._make(model))

    def _make(self, model: VLModel) -> FrozenModule:
        """Build the module, and freeze it with the backbone."""
        who = self.name or type(self).__name__
        if "_seed" not in vars(self):
            raise FedvlmError(f"trainer {who}: trainables must be called before anything is "
                              "computed")
        before = _forms(model.backbone.model)
        with rng.fork_generators(self._seed, model.device):
            module = self.build(model)
        names = tuple(n for n, p in module.named_parameters() if p.requires_grad)
        bad = [n for n in names if "|" in n]
        self.require(bool(names), f"trainer {who}: no parameter of its module requires a gradient")
        self.require(
            not bad, f"trainer {who}: parameter '{''.join(bad[:1])}' has a '|' in its name, which "
            "separates the parts of keys in saved states"
        )
        self.note_parts(module)
        model.freeze(module)
        self.require(
            _forms(model.backbone.model) == before,
            f"trainer {who}: build changed the frozen backbone: give it copy.deepcopy of a tower",
        )
        return FrozenModule.of(module, names)

    def note_parts(self, module: nn.Module) -> None:
        """Note what a base of methods needs to know of the module, before it is frozen."""

    def _streams(self, model: VLModel, x: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return ``x`` with the declared streams, computed from pixels where a run has no cache."""
        more = {}
        for name in self.streams(model):
            if name in x:
                continue
            if name == "features":
                more[name] = model.image(x)
            elif name.startswith(INSIDE) and "pixels" in x:
                with torch.no_grad():
                    pixels = x["pixels"]
                    rows = tower_of(model, name).compute(pixels.flatten(0, 1), name)
                    more[name] = rows.unflatten(0, pixels.shape[:2])
        return {**x, **more}

    def _losses(
        self, model: VLModel, params: Tree, batch: Batch, then: Callable[[Tensor], T]
    ) -> list[T]:
        """Return ``then(criterion)`` of each client; the module is in training mode."""
        x, values = self._streams(model, batch.x), []
        costs = batch.costs(batch.w.dtype)
        each = batch.w if costs is None else batch.w * costs

        def criterion(out: Any, k: int) -> Tensor:
            loss = self.criterion(out, batch.y[k], each[k])
            return loss if costs is None else loss * (each[k].sum() / batch.w[k].sum())

        for k in range(len(batch.y)):
            seed = batch.seed(PURPOSE, k)
            values.append(self._run(
                model, params, k, x, rng.seed_of(0, PURPOSE) if seed is None else seed, True,
                lambda out, k=k: then(criterion(out, k)),  # type: ignore[misc]
            ))
        return values

    def _run(
        self, model: VLModel, params: Tree, k: int, x: Mapping[str, Tensor], seed: int, train: bool,
        then: Callable[[Any], T],
    ) -> T:
        """Return ``then(forward)`` of client ``k`` in a world that is left as it was.

        Raises:
            FedvlmError: the module wrote a parameter, a buffer or its input in place.
        """
        part = self._part(model)
        ours = self._split.join({n: v[k] for n, v in params.items()})
        ours = {n: ours[n] for n in part.names}
        data = {n: v[k] for n, v in x.items()}
        with rng.fork_generators(seed, model.device), part.mode(train):
            before = part.marks(ours, data)
            try:
                out = then(self.forward(part.module, ours, data))
                part.put_back(ours)
            except RuntimeError as error:
                part.put_back(ours)
                if "in-place" not in str(error):
                    raise
                # Autograd stops before the counter moves; without a graph the write shows.
                ours = {n: v.detach().clone() for n, v in ours.items()}
                before = part.marks(ours, data)
                with torch.no_grad():
                    self.forward(part.module, ours, data)
                part.put_back(ours)
                self._refuse(before, part.marks(ours, data))
                raise
        self._refuse(before, part.marks(ours, data))
        return out

    def _refuse(self, before: Marks, after: Marks) -> None:
        for what in before.keys() | after.keys():
            old, new = before.get(what), after.get(what)
            if old is None or new is None or old[0] is not new[0] or old[1] != new[1]:
                raise FedvlmError(
                    f"the module of {self.name or type(self).__name__} modifies {what} in "
                    "its forward, which would affect the next client; compute a new tensor instead"
                )


@cache
def train_network(kind: type[nn.Module]) -> type[ModuleTrainer]:
    """Return FedAvg over a plain torch network, which is built with the number of classes.

    It reads pixels ``[B, 3, S, S]`` and returns logits ``[B, C]``, or an object that has them.
    Its ``build`` refuses a network that does not return a logit for each class.

    Raises:
        ConfigError: its constructor wants more.
    """
    name = kind.__name__
    given = list(inspect.signature(kind).parameters.values())
    more = [p.name for p in given[1:] if p.default is p.empty and p.kind not in _MANY]
    if more or not given or given[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise ConfigError(
            f"{name} is a torch network whose constructor does not take the number of classes "
            f"alone (it takes {', '.join(p.name for p in given) or 'nothing'}): write a "
            "ModuleTrainer, whose build(self, model) returns it (docs/own_method.md)"
        )

    class Network(ModuleTrainer):
        """FedAvg over the network."""

        def streams(self, model: VLModel) -> tuple[str, ...]:
            return ("pixels",)

        def build(self, model: VLModel) -> nn.Module:
            module = kind(len(model.classnames))
            _check_network(module, kind(len(model.classnames)), model)
            return module

        def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Any:
            return functional_call(module, dict(params), (x["pixels"],))

    Network.name = Network.__name__ = Network.__qualname__ = name
    Network.__module__ = kind.__module__
    return Network


def _check_network(module: nn.Module, other: nn.Module, model: VLModel) -> None:
    """Let ``other``, built as ``module``, look at two black images.

    Raises:
        ConfigError: it does not take images alone, or does not return a logit for each class.
    """
    name, classes, size = type(module).__name__, len(model.classnames), model.backbone.image_size
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise ConfigError(f"{name} has lazy layers, whose sizes are not known before images are "
                          "seen: write their sizes")
    needed = [p.name for p in inspect.signature(module.forward).parameters.values()
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1:
        raise ConfigError(f"{name}.forward has to take one batch of images alone, and wants "
                          f"{', '.join(needed)}")
    with torch.no_grad():
        out = other.eval()(torch.zeros(2, 3, size, size))
    logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(out).__name__
    if shape != (2, classes):
        raise ConfigError(
            f"{name}({classes}) returns {shape} for two images, and the {classes} classes of this "
            f"run need logits (2, {classes}): the first argument of its constructor has to be the "
            "number of classes"
        )


def _forms(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return what identifies each tensor of a module, its numbers left out."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {n: (id(v), v.dtype, v.device, v._version, v.requires_grad) for n, v in tensors.items()}
