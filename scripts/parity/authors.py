"""The authors' side: their copy of CLIP with our weights, and a few rounds of FedAvg around it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.trees import Tree
from parity.world import CONTEXT, DTYPE, PATCH, VOCABULARY, World

DASSL = ("engine", "engine.trainer", "metrics", "utils", "optim", "data", "data.transforms",
         "data.transforms.transforms", "data.datasets", "config", "modeling", "modeling.ops",
         "data.data_manager", "evaluation", "data.datasets.base_dataset")
NO_OPERATION = ("cuda", "half", "float", "to")


class _Registry:
    def register(self, *_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda item: item


class _Anything(ModuleType):
    """A module whose every name exists: classes are ``object``, functions do nothing."""

    __path__: list[str] = []  # noqa: RUF012 - an attribute of modules

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "REGISTRY" in name:
            return _Registry()
        return object if name[:1].isupper() else (lambda *a, **k: None)


def shell(name: str) -> ModuleType:
    """Return a module whose every name exists and does nothing."""
    return _Anything(name)


def _but_to_a_gpu(move: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``to``, which does nothing where a GPU is named."""
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = any(str(a).startswith("cuda") for a in (*args, *kwargs.values()))
        return self if named else move(self, *args, **kwargs)

    return to


@contextmanager
def repository(folder: Path, *stubs: str) -> Iterator[Callable[[str], Any]]:
    """Give a function that imports modules of a repository, with Dassl replaced by empty shells.

    Moves to a GPU and to half precision do nothing inside. All modules that were imported, and
    what was replaced, are as before at the end.

    Args:
        folder: the repository's root (or the folder that its scripts run in).
        stubs: further packages that its files import and that what is compared does not need.
    """
    kept, path = dict(sys.modules), list(sys.path)
    old = {(kind, n): getattr(kind, n) for kind in (Tensor, nn.Module) for n in NO_OPERATION}
    names = [f"{p}.{s}" for p in ("dassl", "Dassl.dassl") for s in DASSL]
    for name in ("dassl", "Dassl", "Dassl.dassl", *names, *stubs):
        sys.modules[name] = _Anything(name)
    for name in [n for n in sys.modules if n.split(".")[0] in ("clip", "trainers", "utils",
                                                              "datasets", "models", "model")]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    for kind, name in old:
        if name == "to":
            setattr(kind, name, _but_to_a_gpu(old[kind, name]))
        elif (kind, name) != (Tensor, "float"):
            setattr(kind, name, lambda self, *a, **k: self)
    try:
        yield importlib.import_module
    finally:
        for (kind, name), value in old.items():
            setattr(kind, name, value)
        sys.path[:] = path
        for name in set(sys.modules) - set(kept):
            del sys.modules[name]
        sys.modules.update(kept)


def in_double(folder: Path, name: str, word: str = "float32") -> ModuleType:
    """Return a repository's module, computing in float64: its words for float32 are replaced.

    Args:
        word: what stands for another type in its text.
    """
    path = folder / f"{name}.py"
    text = path.read_text(encoding="utf-8").replace(word, "float64")
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    exec(compile(text.replace(".float()", ".double()"), str(path), "exec"), vars(module))  # noqa: S102
    return module


def load_file(path: Path) -> ModuleType:
    """Return a repository's file as a module, by itself."""
    spec = importlib.util.spec_from_file_location("their_file", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def their_clip(world: World, model_module: ModuleType, details: Mapping[str, Any] | None = None,
               *more: Any) -> Any:
    """Return a repository's ``clip.model.CLIP`` in float64 with our weights, frozen.

    Args:
        model_module: its ``clip.model``; its ``LayerNorm`` computes in the type it is given.
        details: ``design_details`` where its constructor has them.
        more: further positional arguments.
    """
    c = world.case

    def norm(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    model_module.LayerNorm.forward = norm  # theirs goes through float32
    sizes = [c.embed, c.image, c.layers, c.vision_width, PATCH, CONTEXT, VOCABULARY, c.width,
             c.width // 64, c.layers]
    model: nn.Module = model_module.CLIP(*sizes, *([] if details is None else [details]), *more)
    missing = model.load_state_dict(world.weights, strict=False)
    strange = [k for k in missing.unexpected_keys if "mask" not in k]
    if strange:
        raise KeyError(f"their CLIP has no {strange[:3]}")
    model = model.double()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def no_prompts(trainer: str) -> dict[str, Any]:
    """Return the ``details`` of a CLIP without learned tokens inside."""
    return {"trainer": trainer, "vision_depth": 0, "language_depth": 0, "vision_ctx": 0,
            "language_ctx": 0}


def check_start(world: World, name: str, theirs: Tensor) -> None:
    """Compare a start that is not drawn, such as the embeddings of words.

    Raises:
        ValueError: ours is another.
    """
    ours = world.start[name]
    gap = float((ours - theirs.detach()).abs().max()) if ours.shape == theirs.shape else 1.0
    if gap > 1e-12:
        raise ValueError(f"{name} starts {gap:.1e} from ours {tuple(ours.shape)}")


def settings(**nodes: Any) -> Any:
    """Return nested dicts as a config that is read by attributes."""
    return SimpleNamespace(**{
        k: settings(**v) if isinstance(v, dict) else v for k, v in nodes.items()
    })


class Theirs:
    """A method as its authors' module computes it; subclass it, or give functions.

    Attributes:
        world: the case.
        put: sets their tensors from ours, ``{our name: value}`` without a client axis.
        get: returns their tensors under our names.
        loss: ``(images [B, 3, H, W], labels [B]) -> scalar``.
        logits: ``images -> [B, C]`` as in evaluation.
        leaves: their parameters that train, a function (tensors may be replaced by ``put``).
        grads: returns the gradients under our names after ``backward``.
    """

    def __init__(
        self, world: World, *, put: Callable[[Tree], None], get: Callable[[], Tree],
        loss: Callable[[Tensor, Tensor], Tensor], logits: Callable[[Tensor], Tensor],
        leaves: Callable[[], Iterable[Tensor]], grads: Callable[[], Tree],
    ) -> None:
        self.world, self.put, self.get = world, put, get
        self.loss, self.logits, self.leaves, self.grads = loss, logits, leaves, grads

    @classmethod
    def of(
        cls, world: World, tensors: Mapping[str, nn.Parameter],
        loss: Callable[[Tensor, Tensor], Tensor], logits: Callable[[Tensor], Tensor],
    ) -> Self:
        """Return a side whose parameters are ours one by one, ``{our name: parameter}``."""

        def put(tree: Tree) -> None:
            for name, parameter in tensors.items():
                parameter.data = tree[name]

        return cls(
            world, put=put, get=lambda: {n: p.data for n, p in tensors.items()}, loss=loss,
            logits=logits, leaves=lambda: list(tensors.values()),
            grads=lambda: {n: p.grad for n, p in tensors.items() if p.grad is not None},
        )

    def gradients(self) -> dict[str, Tensor]:
        """Return loss and gradients at the world's ``params``, as ours are named."""
        w, params, batch = self.world, self.world.params(), min(self.world.case.sizes[:2])
        losses, grads = [], []
        for client, rows in enumerate(w.rows[:2]):
            at = torch.from_numpy(rows[:batch])
            self.put({n: v[client].clone() for n, v in params.items()})
            for leaf in self.leaves():
                leaf.requires_grad_(True)
                leaf.grad = None
            loss = self.loss(w.images[at], w.labels[at])
            loss.backward()
            losses.append(loss.detach())
            grads.append({n: g.clone() for n, g in self.grads().items()})
        found = {"loss": torch.stack(losses)}
        return found | {f"grad {n}": torch.stack([g[n] for g in grads]) for n in grads[0]}

    def rounds(self, shared: Iterable[str], weights: Iterable[float] | None = None,
               server: Callable[[int, list[Tensor], Tensor], Tensor] | None = None,
               ) -> dict[str, Tensor]:
        """Return shared and personal tensors and logits after the case's rounds of FedAvg.

        Args:
            shared: our names of the tensors that are averaged; others stay with their client.
            weights: of the clients in the mean (default: shares of the images).
            server: its rule in the place of the mean, ``(round from 0, what came, last)``.
        """
        w, c = self.world, self.world.case
        names, parts = list(shared), list(weights or w.shares)
        start = {n: v.clone() for n, v in w.start.items()}
        common = {n: start[n] for n in names}
        own = [{n: v for n, v in start.items() if n not in common} for _ in c.sizes]
        for round_ in range(c.rounds):
            sent = []
            for client, rows in enumerate(w.rows):
                self.put({n: v.clone() for n, v in (common | own[client]).items()})
                self.fit(torch.from_numpy(rows))
                tree = {n: v.detach().clone() for n, v in self.get().items()}
                sent.append({n: tree[n] for n in names})
                own[client] = {n: tree[n] for n in own[client]}
            common = {
                n: server(round_, [s[n] for s in sent], common[n]) if server else
                sum((p * s[n] for p, s in zip(parts, sent, strict=True)),
                    torch.zeros((), dtype=DTYPE)) for n in names
            }
        found, logits = {f"shared {n}": v for n, v in common.items()}, []
        for tree in own:
            self.put({n: v.clone() for n, v in (common | tree).items()})
            with torch.no_grad():
                logits.append(self.logits(w.tests))
        found["logits"] = torch.stack(logits)
        return found | {f"client{k} {n}": v for k, tree in enumerate(own) for n, v in tree.items()}

    def fit(self, rows: Tensor) -> None:
        """Train one client for the case's local epochs, all its images in each step."""
        w, c = self.world, self.world.case
        leaves = list(self.leaves())
        for leaf in leaves:
            leaf.requires_grad_(True)
        optimiser: torch.optim.Optimizer = (
            torch.optim.SGD(leaves, c.rate, c.momentum, weight_decay=c.decay)
            if c.optimiser == "sgd" else torch.optim.Adam(leaves, c.rate)
        )
        for _ in range(c.epochs):
            loss = self.loss(w.images[rows], w.labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


class Names:
    """Their parameters under our names: what ``Theirs`` wants as put, get, leaves and grads.

    Args:
        table: our name -> their parameter, or ``(parameter, view)`` where ours is a part of it or
            is transposed; ``view`` takes a tensor and returns a view.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]] = {
            name: entry if isinstance(entry, tuple) else (entry, lambda t: t)
            for name, entry in table.items()
        }

    def put(self, tree: Tree) -> None:
        """Write our values into theirs."""
        for name, (parameter, view) in self.table.items():
            view(parameter.data).copy_(tree[name])

    def get(self) -> Tree:
        """Return their values under our names."""
        return {name: view(parameter.data) for name, (parameter, view) in self.table.items()}

    def leaves(self) -> list[Tensor]:
        """Return each of their parameters once."""
        return list({id(parameter): parameter for parameter, _ in self.table.values()}.values())

    def grads(self) -> Tree:
        """Return their gradients under our names, of those that have one."""
        return {name: view(parameter.grad) for name, (parameter, view) in self.table.items()
                if parameter.grad is not None}

    def methods(self) -> dict[str, Any]:
        """Return the four arguments of ``Theirs``."""
        return {"put": self.put, "get": self.get, "leaves": self.leaves, "grads": self.grads}


class FrozenCLIP:
    """Our frozen towers as a model of OpenAI's ``clip`` package, for files that import it.

    What a repository computes with features alone needs no more.
    """

    def __init__(self, world: World) -> None:
        self.backbone, self.dtype = world.backbone, DTYPE
        self.logit_scale = world.weights["logit_scale"]
        self.visual = self.encode_image = world.backbone.encode_image

    def encode_text(self, ids: Tensor) -> Tensor:
        """Return text features ``[n, d]``, not normalised."""
        return self.backbone.encode_embeddings(
            self.backbone.embed_tokens(ids), self.backbone.eot(ids)
        )

    def train(self) -> None:
        """Do nothing: the towers are frozen."""

    eval = train

    def parameters(self) -> list[Tensor]:
        """Return none: nothing of it trains."""
        return []

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return none."""
        return []

    def install(self) -> None:
        """Make ``import clip`` find a package with this tokenizer (inside ``repository``)."""
        names = ("clip", "clip.clip", "clip.simple_tokenizer")
        package, module, tokenizer = (_Anything(name) for name in names)
        for kind in (package, module):
            setattr(kind, "tokenize", lambda texts: self.backbone.tokenize(  # noqa: B010
                [texts] if isinstance(texts, str) else texts))
        setattr(package, "clip", module)  # noqa: B010
        sys.modules.update(zip(names, (package, module, tokenizer), strict=True))
