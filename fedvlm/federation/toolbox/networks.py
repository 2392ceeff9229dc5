"""A classic method over any network: ``--trainer ./net.py:Net --method FedAS``.

``over(Net, FedAS)`` is FedAS as it stands, with the tensors of ``Net``'s module in the place of
what ``PEFT`` trains in CLIP. The head is what ``Net.head_of`` returns (by default the last layer
with trained parameters), the body all the rest, the representation what enters the head, and the
stages those that the module's own ``stages()`` names. In the class the method comes first, then
the network, then ``OverNetwork`` where ``PeftTrainer`` would stand: a hook of the method that calls
its base reaches the network's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.module_trainer import PURPOSE, ModuleTrainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.toolbox.contrast import SOFTMAX
from fedvlm.federation.toolbox.roles import RoleTrainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.channels import Held, hidden_channels
from fedvlm.models.vlmodel import VLModel

T = TypeVar("T")
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
OWN = (  # hooks that make a network's class a method itself
    "rules", "init_client", "client_update", "personalize", "own_finetune", "finetune", "portion",
    "init_server", "download", "shared", "combine", "aggregate",
)
WAYS_OUT = {
    peft.BODY: "a layer before its head (head_of says which layer is the head)",
    peft.HEAD: "a layer that classifies (head_of says which)",
}


@dataclass
class Taps:
    """What passed the head and the stages in one forward of one client."""

    head: Tensor | None = None
    stages: dict[int, Tensor] = field(default_factory=dict)

    def representation(self, who: str) -> Tensor:
        """Return what entered the head, ``[B, d]``.

        Raises:
            ConfigError: the forward does not call it.
        """
        if self.head is None:
            raise ConfigError(
                f"{who}: the forward does not call the module's head, so what it reads is not "
                "known: call it as a module, or let head_of(module) return the one that is called"
            )
        return self.head.flatten(1)


@dataclass(frozen=True)
class Roles:
    """Names of the trained tensors of a module's head, and of its normalisation layers."""

    head: frozenset[str]
    norms: frozenset[str]
    body: frozenset[str]


class OverNetwork(ModuleTrainer, PeftTrainer):
    """The base of ``over``: body, head, representation and stages of a torch module."""

    network = True
    cosine = False
    losses = (SOFTMAX,)

    def note_parts(self, module: nn.Module) -> None:
        """Note which of a module's tensors are its head and its norms, when it is first built.

        Raises:
            ConfigError: a role that the method needs is empty.
        """
        if "_roles" in vars(self):
            return
        names = {id(p): n for n, p in module.named_parameters() if p.requires_grad}
        head = frozenset(names[id(p)] for p in self.head_of(module).parameters() if id(p) in names)
        norms = frozenset(
            names[id(p)] for m in module.modules() if isinstance(m, NORMS)
            for p in m.parameters(recurse=False) if id(p) in names
        )
        self._roles = Roles(head, norms, frozenset(names.values()) - head)
        for role in self.needs:
            self.require(
                bool(self._roles.body if role == peft.BODY else head),
                f"{self.name} needs something to train in the {role} of the network, and "
                f"{type(module).__name__} has nothing there: give it {WAYS_OUT[role]}",
            )

    def role(self, name: str) -> str:
        """Return the role of a tensor; what is not the network's own counts as head."""
        return peft.BODY if name in self._roles.body else peft.HEAD

    def is_norm(self, name: str) -> bool:
        """Return whether a tensor belongs to a normalisation layer."""
        return name in self._roles.norms

    def pattern(self, role: str) -> str:
        """Return a pattern that fits any name: a network's are not known beforehand."""
        return r".+"

    def _group(self, name: str) -> str:
        return self.roles[self.role(name)]

    # ---- what passes through the module ------------------------------------------------------
    def width(self, model: VLModel) -> int:
        """Return how many numbers the head reads.

        Raises:
            ConfigError: the head is no linear layer, which would say so.
        """
        head = self.head_of(self._part(model).module)
        if not isinstance(head, nn.Linear):
            raise ConfigError(
                f"{self.name} reads the representation before the head, and the head is a "
                f"{type(head).__name__}, which does not say how wide that is: let "
                "head_of(module) return an nn.Linear"
            )
        return head.in_features

    def hidden_channels(self, model: VLModel) -> Mapping[str, Held]:
        """Return which channels of which tensors can be removed (``channels``)."""
        part = self._part(model)
        return model.once((self, "channels"), lambda: hidden_channels(part.module, part.names))

    def representation(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return what the head reads, ``[K, B, d]``; the module is in eval mode."""
        return torch.stack(self._seen(
            model, params, x, lambda taps: taps.representation(self.name)
        ))

    def supervised(self, model: VLModel, params: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the criterion ``[K]``, and the representation of the same pass."""
        with self._watched(model) as taps:
            both = self._losses(
                model, params, batch, lambda loss: (loss, taps.representation(self.name))
            )
        return torch.stack([loss for loss, _ in both]), torch.stack([z for _, z in both])

    def stage_indices(self, model: VLModel) -> list[int]:
        """Return all stages that the module names."""
        return list(range(len(self.stages_of(self._part(model).module))))

    def stage_widths(self, model: VLModel, at: Sequence[int]) -> list[int]:
        """Return the widths of the outputs of the stages ``at``, by a forward of one image."""
        def measured() -> dict[int, int]:
            part = self._part(model)
            side = model.backbone.image_size
            blank = torch.zeros(1, 1, 3, side, side, device=model.device, dtype=model.dtype)
            tree = {n: part.module.get_parameter(n)[None] for n in part.names}
            with torch.no_grad():
                (taps,) = self._seen(model, tree, {"pixels": blank}, lambda taps: taps.stages)
            return {j: v.shape[-1] for j, v in taps.items()}

        found = model.once((self, "widths"), measured)
        return [found[j] for j in at]

    def stage_outputs(
        self, model: VLModel, params: Tree, x: Mapping[str, Tensor], at: Sequence[int],
        first: bool = False,
    ) -> list[Tensor]:
        """See ``RoleTrainer.stage_outputs``; the module is in eval mode."""
        self._no_class_token(first)
        each = self._seen(model, params, x, lambda taps: dict(taps.stages))
        return [torch.stack([stages[j] for stages in each]) for j in at]

    def supervised_stages(
        self, model: VLModel, params: Tree, batch: Batch, at: Sequence[int], first: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the criterion ``[K]``, and the stages' outputs of the same pass."""
        self._no_class_token(first)
        with self._watched(model) as taps:
            both = self._losses(model, params, batch, lambda loss: (loss, dict(taps.stages)))
        return torch.stack([loss for loss, _ in both]), [
            torch.stack([stages[j] for _, stages in both]) for j in at
        ]

    def _no_class_token(self, first: bool) -> None:
        self.require(not first, f"{self.name}: a network has no class token; pool over all places "
                     "(patch_mean)")

    def _seen(
        self, model: VLModel, params: Tree, x: Mapping[str, Tensor], then: Callable[[Taps], T]
    ) -> list[T]:
        """Return ``then(taps)`` of each client's forward."""
        streams, seed = self._streams(model, x), rng.seed_of(0, PURPOSE)
        count = len(next(iter(params.values())))
        with self._watched(model) as taps:
            return [
                self._run(model, params, k, streams, seed, False, lambda _: then(taps))
                for k in range(count)
            ]

    @contextmanager
    def _watched(self, model: VLModel) -> Iterator[Taps]:
        """Note in every forward what enters the head and leaves the stages."""
        module, taps = self._part(model).module, Taps()

        def enter(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            taps.head = given[0]

        hooks = [self.head_of(module).register_forward_pre_hook(enter)]
        if callable(getattr(module, "stages", None)) or (
            type(self).stages_of is not ModuleTrainer.stages_of
        ):
            for j, stage in enumerate(self.stages_of(module)):
                hooks.append(stage.register_forward_hook(
                    lambda _m, _x, out, j=j: taps.stages.__setitem__(j, over_places(out))
                ))
        try:
            yield taps
        finally:
            for hook in hooks:
                hook.remove()


def over_places(out: Tensor) -> Tensor:
    """Return the mean over places ``[B, d]`` of maps ``[B, d, H, W]`` or tokens ``[B, n, d]``."""
    return {4: lambda: out.mean((2, 3)), 3: lambda: out.mean(1)}.get(out.dim(), lambda: out)()


_MADE: dict[tuple[type, type], type[OverNetwork]] = {}  # one class, whoever asks


def over(net: type[Trainer], method: type[Trainer]) -> type[OverNetwork]:
    """Return a classic method over a network.

    Args:
        net: a ``ModuleTrainer`` that says ``build`` and, where it has to, ``forward``, ``streams``,
            ``logits``, ``criterion``, ``head_of`` and ``stages_of``.
        method: a method that is ``classic``.

    Raises:
        ConfigError: ``net`` is no such class, ``method`` no such method, or both have an option of
            one name.
    """
    if not issubclass(net, ModuleTrainer):
        raise ConfigError(
            f"{net.name} is no ModuleTrainer, so it has no network for {method.name}: let it "
            "derive from fedvlm.method.ModuleTrainer and say build(self, model)"
        )
    if not (issubclass(method, RoleTrainer) and method.classic):
        raise ConfigError(
            f"{method.name} is defined on CLIP's towers and not on any network: --trainer "
            f"{method.name} runs it on CLIP; over {net.name} run FedAvg, FedPer, FedRep, Ditto or "
            "another classic method (docs/own_method.md)"
        )
    own = [n for n in OWN if getattr(net, n) is not getattr(ModuleTrainer, n)]
    own += ["groups"] if net.groups is not None else []
    if own:
        raise ConfigError(
            f"{net.name} defines {own[0]}, so it is a method itself: drop --method "
            f"{method.name}, or leave {own[0]} to the method"
        )
    twice = sorted(net.options.keys() & method.options.keys())
    if twice:
        raise ConfigError(f"{net.name} and {method.name} both have an option {twice[0]}: rename "
                          f"that of {net.name}")
    if (net, method) not in _MADE:
        _MADE[net, method] = _make(net, method)
    return _MADE[net, method]


def _make(net: type[ModuleTrainer], method: type[RoleTrainer]) -> type[OverNetwork]:
    name = f"{net.name}-{method.name}"
    made: type[OverNetwork] = type(name.replace("-", ""), (method, net, OverNetwork), {
        "__module__": method.__module__, "__doc__": f"{method.name} over {net.name}.", "name": name,
        "title": name, "options": {**net.options, **method.options},
        "exempt": {**net.exempt, **method.exempt}, "losses": (SOFTMAX,),
    })
    return made
