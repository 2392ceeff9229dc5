"""A foreign trainer class as a method of fedvlm (what its words mean: ``fedvlm.compat``)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from fedvlm.compat.repository.find import Checkout
from fedvlm.compat.repository.imports import Imports
from fedvlm.compat.repository.loop import Kept
from fedvlm.compat.repository.sizes import wanted_backbone
from fedvlm.compat.session import BatchPosition, ClientStep, Container, Learned, Session, padded_out
from fedvlm.compat.settings import check_set, dassl_cfg
from fedvlm.compat.world import FileEnvironment, active
from fedvlm.config.option import Option
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, FedvlmError, failure_text, own_line
from fedvlm.core.spelling import is_described
from fedvlm.core.trees import State, Tree
from fedvlm.federation import context
from fedvlm.federation.batches import Batch, step_slices
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.groups import PERSONAL, SHARED
from fedvlm.federation.local.streams import prove_streams
from fedvlm.federation.module_trainer import PURPOSE, FrozenModule, ModuleTrainer
from fedvlm.federation.trainer import Predictor
from fedvlm.models.features.sources import FeatureSource, PixelSource
from fedvlm.models.vlmodel import VLModel

FEATURES, PIXELS = "features", "pixels"
ALL_SHARED = "none"  # FED.PERSONAL: nothing stays, whatever a fork's own loop does
TEMPLATES = "CUSTOM_TEMPLATES"  # of CoOp's files: data set -> template
SETS = frozenset({"OxfordPets", "EuroSAT", "Food101"})  # keys of every such table


class DasslTrainer(ModuleTrainer):
    """FedAvg over what a file's optimiser trains; ``files.load_foreign`` makes the subclass.

    Attributes:
        file: path of the file.
        sources: it and what it imports from beside it: part of a run's identity.
        inner: its class.
        module: the loaded file.
        imports: its ``dassl`` and ``clip``, and modules of its repository.
        home: the repository.
        own_clip: files of the repository that build a CLIP of their own.
        kept: what its own federated loop keeps with a client.
        foreign: config keys outside of its own node that it reads.
    """

    unweighted = "trains by the loss in its own file"
    file: ClassVar[Path]
    sources: ClassVar[Sequence[Path]]
    inner: ClassVar[type]
    module: ClassVar[ModuleType]
    imports: ClassVar[Imports]
    home: ClassVar[Checkout]
    own_clip: ClassVar[Sequence[Path]] = ()
    kept: ClassVar[Kept | None] = None
    foreign: ClassVar[Mapping[str, Option]] = {}
    metrics: Sequence[str] = (r"(.+/)?[\w.]*loss[\w.]*",)

    @property
    def open_vocabulary(self) -> bool:  # type: ignore[override]
        """Whether no trained tensor's shape depends on the classes; asked of two class lists."""
        return bool(vars(self).get("_open", False))

    # ---- the module ---------------------------------------------------------------------------
    def build(self, model: VLModel) -> nn.Module:
        """Return the modules that the file's ``build_model`` made.

        Raises:
            ConfigError: it cannot be built on this run's data or backbone.
        """
        keys = {f"TRAINER.{self.name.upper()}.{key}": o for key, o in self.options.items()}
        check_set(self.root, {**keys, **self.foreign}, self.sources)
        seed = torch.initial_seed()
        session = self._session(model, share=True)
        if session.trains_towers:  # then they cannot be one for all CLIPs that it built
            session.world.folder.cleanup()
            torch.manual_seed(seed)
            session = self._session(model, share=False)
            self._check_trainable(session)
        session.container.session = session  # type: ignore[assignment]
        return session.container

    def _session(self, model: VLModel, share: bool) -> Session:
        cfg = dassl_cfg(self.root, model)
        world = FileEnvironment(model, cfg, self.imports, share)
        self._add_template(cfg.DATASET.NAME, model)
        self._say(cfg, model)
        try:
            with active(world), contextlib.chdir(self.home.root if self.home.mains else Path()):
                inner = self.inner(cfg)  # its scripts start in the repository's folder
                return Session(inner, world)
        except FedvlmError:
            raise
        except Exception as error:
            said = failure_text(error)
            paths = isinstance(error, FileNotFoundError) or "./" in said
            raise ConfigError(
                f"{self.file.name}: {self.name} cannot be built on backbone "
                f"{model.backbone.name} and {cfg.DATASET.NAME}: {said}"
                f"{own_line(error)}{wanted_backbone(self._own_files, model)}"
                + f"; relative paths begin in {self.home.root}" * (paths and bool(self.home.mains))
                + " (--debug shows the traceback)"
            ) from error

    def _say(self, cfg: CfgNode, model: VLModel) -> None:
        """Say what a user should know of a repository's code, once."""
        notes = []
        if self.home.mains:
            more = len({*self.sources} - {*self.home.mains}) - 1
            notes.append(f"this runs code of {self.home.root.name}: {self.file.name}"
                         + (f" and {more} files that it imports" if more else ""))
        if self.own_clip:
            notes.append("images go through the repository's own clip/ at every step; its frozen "
                         "weights are the backbone's, kept by their hash")
        if int(cfg.DATALOADER.K_TRANSFORMS) > 1:
            notes.append(f"DATALOADER.K_TRANSFORMS {cfg.DATALOADER.K_TRANSFORMS}: all views of an "
                         "image are the same one")
        model.notes += [note for note in notes if note not in model.notes]

    @property
    def _own_files(self) -> list[Path]:
        """Its files, without those that build a CLIP: their sizes come from the state dict."""
        return [file for file in self.sources if file not in self.own_clip]

    def _say_kept(self, model: VLModel) -> None:
        """Say what stays with a client because the fork's own loop keeps it."""
        if self.kept is None or super()._personal() or not self._split.personal:
            return
        rule = f"; it aggregates by {self.kept.rule}, fedvlm by FED.AGGREGATOR" * bool(
            self.kept.rule)
        names = ", ".join(sorted(self._split.personal))
        model.notes.append(f"personal: {names}, as in {self.kept.where}{rule} (to share all: "
                           f"FED.PERSONAL {ALL_SHARED})")

    def _add_template(self, dataset: str, model: VLModel) -> None:
        """Give the file's tables of templates the run's data set, where they lack it."""
        template = model.templates[0]
        self.require(
            not is_described(template),
            f"{self.name} has tables of templates, one for each data set, and cannot take the "
            "sentences of DATASET.TEMPLATES: give one prompt with DATASET.TEMPLATE",
        )
        for module in (self.module, *self.imports.modules.values()):
            for name, table in list(vars(module).items()):
                if not _is_template_table(name, table) or dataset in table:
                    continue
                table[dataset] = template
                file = Path(str(getattr(module, "__file__", self.file))).name
                model.notes.append(f"{name} of {file} has no {dataset}: '{template}' is used")

    def _check_trainable(self, session: Session) -> None:
        fast = [n for n in session.params if "visual" in n or "image_encoder" in n]
        self.require(
            not fast or bool(self.root.FED.PLAIN) or self.root.MODEL.PREC == "fp64",
            f"{self.name} trains '{''.join(fast[:1])}' of the image tower, whose fast layers "
            "compute no gradients of their weights: add --plain",
        )

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what its optimisers train; the first draws are those of the run's own methods."""
        if vars(self).get("_seed") != generator.initial_seed():
            self._seed = generator.initial_seed()
        part = self._part(model)
        start = {n: part.module.get_parameter(n).detach().clone() for n in part.names}
        if "_open" not in vars(self):
            self._open = self._is_open(model, start)
            self._from_loop = self._kept_by_loop(start)
            self._cut(start)
            self._say_kept(model)
            self._stream = self._choose(model, self._split.cut(start))
        return self._split.cut(start)

    def _personal(self) -> str:
        """Return what stays with a client: ``FED.PERSONAL``, or what the fork's own loop keeps."""
        own = super()._personal()
        if own == ALL_SHARED:
            return ""
        return own or str(vars(self).get("_from_loop", ""))

    def _kept_by_loop(self, start: Tree) -> str:
        """Return what the fork's loop keeps, as ``FED.PERSONAL`` has it; it names state dicts."""
        found = []
        for name in self.kept.names if self.kept is not None else ():
            tensor, bracket, rows = name.partition("[")
            found += [re.escape(n) + bracket + rows for n in start
                      if n == tensor or n.endswith(f".{tensor}")]
        return ",".join(found)

    def _is_open(self, model: VLModel, start: Tree) -> bool:
        """Build it on other classes and compare the shapes of what is trained."""
        names = model.classnames[:2] if len(model.classnames) > 2 else (*model.classnames, "thing")
        other = VLModel(model.backbone, names, templates=model.templates, packed=model.packed)
        try:
            module = self._make(other).module
            return all(module.get_parameter(n).shape == v.shape for n, v in start.items())
        except (ConfigError, AttributeError, FedvlmError):
            return False  # bound to its classes, one way or another

    def _part(self, model: VLModel) -> FrozenModule:
        return model.once((self, PURPOSE, self._seed), lambda: self._make(model))

    def _of(self, model: VLModel) -> Session:
        module = self._part(model).module
        session = vars(module)["session"] if isinstance(module, Container) else None
        if not isinstance(session, Session):
            raise FedvlmError(f"trainer {self.name} has no session")
        return session

    # ---- streams ------------------------------------------------------------------------------
    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return features where the file only sends images through the frozen tower; or pixels."""
        if "_stream" not in vars(self):
            self.trainables(model, rng.stream(int(self.root.SEED), "init"))
        return (self._stream,)

    def _choose(self, model: VLModel, start: Tree) -> str:
        """Try two random images both ways, with random values in all that is trained."""
        if self.own_clip:
            return PIXELS
        counters = model.counters.copy()
        side, n = model.backbone.image_size, len(model.classnames)
        pixels = torch.randn(2, 3, side, side, generator=rng.stream(0, "compat-pixels"))
        labels, at = torch.tensor([0, n - 1]), torch.arange(2)
        with torch.no_grad():
            features = model.backbone.encode_image(pixels.to(model.device, model.dtype))
        plain = PixelSource(lambda i, view: pixels[i].to(model.dtype), labels)
        cached = FeatureSource.of([features], at, labels)
        try:
            holds = prove_streams(self, model, start, start, cached, plain, at, 0).holds
        except ConfigError:
            # It may also be broken: then pixels fail as well, and the sentence is the file's.
            prove_streams(self, model, start, start, plain, plain, at, 0)
            holds = False
        finally:
            model.counters.clear()
            model.counters.update(counters)
        if not holds:
            model.notes.append(
                f"{self.name} changes the image tower: images go through the file's own tower "
                "at every step, nothing is cached"
            )
        return FEATURES if holds else PIXELS

    # ---- prediction and loss ------------------------------------------------------------------
    def predictor(self, model: VLModel, params: Tree) -> Predictor:
        """See ``Trainer.predictor``."""
        def predict(x: Mapping[str, Tensor]) -> Tensor:
            session, images = self._of(model), _images(model, x)
            with rng.fork_generators(rng.seed_of(0, PURPOSE), model.device):
                try:
                    return torch.stack([
                        session.predict(self._split.join(_client(params, k)), images[k])
                        for k in range(len(images))
                    ])
                except RuntimeError as error:
                    self._refuse_sizes(error, model)
                    raise

        return predict

    def loss(
        self, model: VLModel, params: Tree, batch: Batch
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the file's loss ``[K]``, whose gradient is what its optimiser would step with.

        For one step on its own (a trial, the final fine-tuning): the file's parameters stay.
        """
        values, parts = [], []
        for k in range(len(batch.y)):
            given = self._split.join(_client(params, k))
            session = self._of(model)
            session.restore()
            learned = self._learn(session, model, given, batch, k, ClientStep(), BatchPosition())
            session.restore()
            values.append(_surrogate(given, learned))
            parts.append(learned.parts)
        return torch.stack(values), {n: torch.stack([p[n] for p in parts]) for n in parts[0]}

    def _learn(
        self, session: Session, model: VLModel, given: Tree, batch: Batch, k: int, step: ClientStep,
        place: BatchPosition,
    ) -> Learned:
        images = padded_out(_images(model, batch.x)[k], batch.w[k])
        labels = padded_out(batch.y[k], batch.w[k])
        views = int(self.root.DATALOADER.K_TRANSFORMS)  # Dassl: then "img" is a list of them
        data: dict[str, Any] = {
            "img": [images] * views if views > 1 else images, "label": labels,
            "domain": torch.zeros_like(labels),
        }
        seed = batch.seed(PURPOSE, k)
        seed = rng.seed_of(0, PURPOSE) if seed is None else seed
        try:
            return session.learn(given, data, step, place, seed)
        except RuntimeError as error:
            self._refuse_sizes(error, model)
            raise

    def _refuse_sizes(self, error: RuntimeError, model: VLModel) -> None:
        """Say which backbone a file wants that has other sizes (``ConfigError``)."""
        why = wanted_backbone(self._own_files, model)
        if why:
            raise ConfigError(
                f"{self.name}: {failure_text(error)}{own_line(error)}{why}"
            ) from error

    # ---- the client ---------------------------------------------------------------------------
    def client_update(
        self, ctx: Context, state: State, received: Tree
    ) -> tuple[State, Upload]:
        """Run the client's local epochs of ``forward_backward``; see ``fedvlm.compat``."""
        start = state["w"] | received
        session = self._of(ctx.model)
        rule, names = ctx.optim.build(), ctx.trained(start, (SHARED, PERSONAL))
        usual = self.root.DATALOADER.TRAIN_X.BATCH_SIZE
        size = int(getattr(ctx._batcher, "batch_size", usual))
        per_epoch = len(step_slices(int(ctx.sizes[0]), size, 1))
        steps = 0

        def body(slots: State, batches: tuple[Batch, ...], at: context.Step) -> State:
            nonlocal steps
            batch, out = batches[0], list[Learned]()
            rates = torch.as_tensor(context.rates(ctx, at), dtype=torch.float64)
            rate = float(rates.flatten()[0])
            rules = {s: {n: v[0][None] for n, v in t.items()} for s, t in slots.items() if s != "p"}
            step = ClientStep(rule, rules, rate, steps)
            epoch = at.epochs[0]
            place = BatchPosition(epoch, (at.index - 1) - epoch * per_epoch, per_epoch, ctx.epochs)

            def loss(
                model: VLModel, params: Tree, b: Batch
            ) -> tuple[Tensor, Mapping[str, Tensor]]:
                given = self._split.join(_client(params, 0))
                learned = self._learn(session, model, given, b, 0, step, place)
                out.append(learned)
                return (_surrogate(given, learned)[None],
                        {n: v[None] for n, v in learned.parts.items()})

            value, _, grads = ctx.grad(slots["p"], loss, batch, names)
            what = f"of {self.name} at local step {at.index}"
            ctx.check(value, f"loss {what}", batch)
            ctx.check_tree(grads, f"gradient {what}", batch)
            steps = out[0].steps
            after = self._split.cut(out[0].params)
            return {"p": {n: v[None] for n, v in after.items()}, **out[0].state}

        session.restore()
        try:
            w = ctx.loop({"p": start}, body)["p"]
        finally:
            session.restore()
        return state | {"w": w}, ctx.upload(w)


def _is_template_table(name: str, value: object) -> bool:
    """Tell whether a module's value maps data sets to templates (``a photo of a {}.``)."""
    if not isinstance(value, dict):
        return False
    return name == TEMPLATES or (value.keys() >= SETS and all(
        isinstance(value[n], str) and "{}" in value[n] for n in SETS))


def _client(params: Tree, k: int) -> Tree:
    """Return one client's tensors of a tree with the client axis."""
    return {n: v[k] for n, v in params.items()}


def _images(model: VLModel, x: Mapping[str, Tensor]) -> Tensor:
    return x[FEATURES if FEATURES in x else PIXELS].to(model.device, model.dtype)


def _surrogate(params: Tree, learned: Learned) -> Tensor:
    """Return the loss as a function of ``params`` with the recorded gradients."""
    value = learned.value
    for name, grad in learned.grads.items():
        p = params[name]
        value = value + ((p - p.detach()) * grad).sum()
    return value
