"""The base of every method: FedAvg over whatever the groups share.

A method overrides what differs. It is straight-line logic over plain data: trees with a leading
client axis on the client's side (``[K, ...]``), no client axis in ``init_client``, ``download`` and
the server's state. Everything that the driver reads is declared here.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.config.option import Option
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.plugins import Registry
from fedvlm.core.trees import State, Tree, matching
from fedvlm.federation.aggregation.rules import EVERY, combine
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import FIT, SAMPLES, Context, Upload
from fedvlm.federation.groups import (
    BASELINE_SUMS,
    FAIR,
    OF_ALL,
    OF_CLIENT,
    PERSONAL,
    RECEIVED,
    SERVER,
    SHARED,
    TAG,
    Finetune,
    Groups,
    Releases,
    Rule,
)
from fedvlm.federation.local.effort import Worked
from fedvlm.federation.local.sent import WHOLE, Portion
from fedvlm.federation.server import Proxy, ServerContext
from fedvlm.federation.toolbox.contrast import SIGMOID, SOFTMAX, sigmoid_pairs
from fedvlm.models.adapt import peft
from fedvlm.models.vlmodel import VLModel

Predictor = Callable[[Mapping[str, Tensor]], Tensor]
ServerRule = Callable[[Any], Tensor | str] | str  # see ``Trainer.server_rules``
RENAMED = {  # a hook's name before -> now
    "local": "client_update", "down": "download", "server": "aggregate",
    "personal": "personalize", "init": "init_client", "extras": "extras_up",
    "token_block": "streams",
}
BINDING = ("G1", "G3", "G9")  # privacy and order: no method may exempt itself


class Trainer:
    """FedAvg (McMahan et al. 2017) over the shared group; personal tensors stay with the client.

    Attributes:
        name: key of the config node ``TRAINER.<NAME>``, the registry and the run's folder.
        title: shown beside numbers; empty: the name.
        options: what the method adds to the config as ``TRAINER.<NAME>.*``.
        foreign: keys of other nodes that it reads, by their full names.
        groups: rules that give every trainable tensor its group; None: all are shared.
        extras_up: full-match patterns of what an upload may carry beside the shared group.
        extras_down: of what a download may carry beside it.
        metrics: of the numbers per client that travel with an upload.
        reads_old: the client keeps the shared part of slot ``w`` between rounds. Without it that
            slot has personal and frozen tensors only: the rest comes with the next download.
        batched: False makes the engine call ``client_update`` client by client (K = 1).
        weighting: ``samples``, ``uniform``, or ``own`` where ``client_update`` gives a weight;
            ``published_weighting``: the same under VARIANT published.
        aggregators: values of ``FED.AGGREGATOR`` beside ``auto`` that mean something; others are
            refused when the federation is built.
        server_optim: ``FED.SERVER_OPTIM`` may stand behind the aggregate. A class with an
            ``aggregate`` or ``combine`` of its own declares both of these itself; where it does
            not, it allows none, so that nothing that a user asks for is passed over in silence.
        linear: the weighted mean of a round's updates is all that the server takes from them
            (``FED.SECURE_SUM``); a class with an ``aggregate`` or ``combine`` of its own says so
            itself.
        similarity: temperature of weights by similarity that its server gives each tensor from
            round 2 on (``FED.SECURE_SUM`` and ``FED.DP.SIMILARITY`` sum them, too); 0: none.
        phases: a round has phases that are counted in epochs: no ``FED.LOCAL_STEPS``, no
            ``FED.EPOCHS_RANGE``.
        losses: values of ``OPTIM.LOSS`` that mean something; where a class has a ``loss``,
            ``predictor`` or ``client_update`` of its own and declares none, ``softmax`` alone.
        trains_by: ``fit``; ``loop``, of its own with ``optimise``: no ``FED.EARLY_STOP``, no
            ``OPTIM.KEEP_STATE``; or ``descent``, plain steps: no ``OPTIM.CLIP``, no roles either.
        open_vocabulary: unseen classes stay defined.
        extra_data: what is used beside the clients' training images, in words for results.
        label_sets: it trains on sets of labels, too: its loss is ``cross_entropy`` and nothing in
            it reads ``Batch.y``. A class says so itself; it is not inherited.
        unweighted: why ``OPTIM.CLASS_WEIGHTS`` cannot be used; empty where the loss of an image is
            ``cross_entropy``, which reads them.
        captions: it trains on captions of images, too: its loss is ``loss`` of this class, on
            ``image_features``; texts stay frozen. A class says so itself; it is not inherited.
        unlabelled: it trains on images without a label, too: they are among the training images of
            its batches, with -1 in ``Batch.y``, and no other method gets them.
        figure: what ``maps`` gives, as the figure of a run is called: ``transport``, ``attention``;
            empty: the method has no maps.
        tells_classes: its uploads tell how many images of each class a client has, or sums that
            this follows from.
        tells_single: which image's feature and class follow from its uploads, as a sentence without
            a full stop; empty: of none exactly.
        exempt: invariants of ``fedvlm check`` that do not hold, with the reason; not those of
            privacy and order.
    """

    name: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Option]] = {}
    foreign: ClassVar[Mapping[str, Option]] = {}
    groups: Sequence[Rule] | None = None
    extras_up: Sequence[str] = ()
    extras_down: Sequence[str] = ()
    metrics: Sequence[str] = (r"(.+/)?loss",)
    reads_old: bool = False
    batched: bool = True
    published_weighting: ClassVar[str] = SAMPLES
    similarity: float = 0.0
    phases: bool = False
    losses: Sequence[str] = (SOFTMAX, SIGMOID)
    label_sets: ClassVar[bool] = False
    unweighted: ClassVar[str] = ""
    captions: ClassVar[bool] = False
    unlabelled: ClassVar[bool] = False
    figure: ClassVar[str] = ""
    tells_classes: ClassVar[bool] = False
    tells_single: str = ""
    exempt: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse names and signatures that the contract does not have.

        Raises:
            ConfigError: hooks under their old names or misspelt, or an invariant that cannot be
                exempted.
        """
        super().__init_subclass__(**options)
        rule = _depth(cls, "aggregate", "combine")  # of its own, or by a mixin
        for name, nothing in (("aggregators", ()), ("server_optim", False), ("linear", False)):
            if _depth(cls, name) > rule:
                setattr(cls, name, nothing)
        if _depth(cls, "losses") > _depth(cls, "loss", "predictor", "client_update"):
            cls.losses = (SOFTMAX,)
        old = [n for n in RENAMED if hasattr(cls, n)]  # by a mixin, too
        if old:
            raise ConfigError(
                f"trainer {cls.__name__} defines {_listed(old)}, now called "
                f"{_listed(RENAMED[n] for n in old)} (see CONTRIBUTING.md)"
            )
        if not cls.__module__.startswith("fedvlm."):
            _refuse_misspelt(cls)
        if len(inspect.signature(cls.download).parameters) != 4:
            raise ConfigError(f"trainer {cls.__name__}: download takes (self, ctx, server, client)")
        bound = [n for n in BINDING if n in cls.exempt]
        if bound:
            raise ConfigError(
                f"trainer {cls.__name__} exempts itself from {_listed(bound)}: privacy and "
                "independence of the order of clients are required of every method"
            )

    def __init__(self, cfg: CfgNode) -> None:
        """Keep the config; ``self.cfg`` is the method's own node, ``self.root`` the whole tree."""
        self.root = cfg
        self.cfg: Any = cfg.TRAINER.get(self.name.upper()) if self.name else None
        dp = getattr(getattr(cfg, "FED", None), "DP", None)
        if dp is not None and dp.UNIT != "client" and dp.CLIP:
            self.metrics = ()  # a training loss is an exact function of images
        own = self.groups is not None or type(self).rules is not Trainer.rules
        self.require(
            not (own and self._personal()), f"FED.PERSONAL '{self._personal()}': {self.name} "
            "defines which of its tensors are personal; drop it"
        )

    def seal(self) -> None:
        """Let nothing be kept on this object from now on; the driver calls it before round 0."""
        self.__dict__["_sealed"] = True

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, while the trainer is being built.

        Raises:
            FedvlmError: during a run.
        """
        if self.__dict__.get("_sealed"):
            raise FedvlmError(
                f"trainer {self.name or type(self).__name__} sets self.{name} during the run: it "
                "would be neither saved nor restored; store it in a slot of the client's or the "
                "server's state"
            )
        super().__setattr__(name, value)

    @property
    def title(self) -> str:
        """What the method is called beside numbers; a subclass may set a plain attribute."""
        return self.name

    @property
    def published(self) -> bool:
        """Whether the option VARIANT asks for what the authors' code computes."""
        return bool(getattr(self.cfg, "VARIANT", "") == "published")

    @property
    def weighting(self) -> str:
        """How clients weigh: the option WEIGHTING, if any; a subclass may set a plain attribute."""
        usual = self.published_weighting if self.published else SAMPLES
        return str(getattr(self.cfg, "WEIGHTING", usual))

    @property
    def image_fits(self) -> Sequence[int]:
        """Of each ``ctx.fit`` of a client's round its epochs (0: as many as the run says).

        A method that has it can be trained with noise on every image's gradient (``FED.DP.UNIT
        image``): its loss is a mean over images, and a client reads images by these fits alone. A
        subclass sets a plain attribute of this name, each for itself: it is not inherited.
        """
        return ()

    @property
    def server_rules(self) -> Mapping[str, ServerRule]:
        """What the server's tensors are that are no mean by ``weighting``; a class may set it.

        For ``fedvlm check`` (G16), which compares with what ``aggregate`` returns. A key is a
        pattern of ``slot/tensor``, its value a function of ``check.weights.ServerRound`` that
        returns the tensor after the round, or in words why plain arithmetic cannot say it::

            server_rules = {"w/.*": lambda s: s.old + 0.5 * (s.mean() - s.old)}

        The key ``weight`` says in words of which samples the clients' weights are, if not of all.
        """
        return {}

    @property
    def aggregators(self) -> Sequence[str]:
        """Rules by name that mean something; a subclass may set a plain class attribute."""
        return EVERY

    @property
    def server_optim(self) -> bool:
        """Whether a server optimiser may be used; a subclass may set a plain class attribute."""
        return True

    @property
    def linear(self) -> bool:
        """Whether a round's weighted mean is enough; a subclass may set a plain class attribute."""
        return True

    @property
    def trains_by(self) -> str:
        """How clients step; a subclass may set a plain class attribute of this name."""
        return FIT

    @property
    def open_vocabulary(self) -> bool:
        """Whether unseen classes stay defined; a subclass may set a plain class attribute."""
        return True

    @property
    def reads_templates(self) -> bool:
        """Whether clients' work reads ``DATASET.TEMPLATES``, so that a client may have its own.

        A start that all clients share is no reason. A subclass may set a plain class attribute.
        """
        return False

    @property
    def extra_data(self) -> str:
        """What is used beside the clients' training images; empty: nothing.

        A subclass may set a plain class attribute of this name.
        """
        return ""

    @property
    def proxy_source(self) -> str:
        """Where the server's own images (``ServerContext.proxy``) come from; empty: it has none.

        ``holdout`` (``DATASET.SERVER_HOLDOUT``), ``dataset:NAME``, ``folder:DIR``, or ``clients``:
        their validation images, which no federation could use. A subclass may set a plain class
        attribute of this name.
        """
        return ""

    def check_proxy(self, proxy: Proxy | None) -> None:
        """Refuse server images that the method cannot use (``ConfigError``); by default none.

        Called before the first image is encoded.
        """

    def rules(self, names: Sequence[str]) -> Sequence[Rule]:
        """Return the group rules for the tensors called ``names``; by default ``groups``.

        Without any, all are shared but those that ``FED.PERSONAL`` matches.

        Raises:
            ConfigError: it is no regular expression, or matches nothing.
        """
        if self.groups is not None:
            return self.groups
        personal = self._kept(names)
        return [(re.escape(name), PERSONAL if name in personal else SHARED) for name in names]

    def _kept(self, names: Sequence[str]) -> set[str]:
        """Return the tensors that ``FED.PERSONAL`` matches (``ConfigError``: none)."""
        try:
            personal = set(matching(names, [self._personal()]))
        except re.error as error:
            raise ConfigError(f"FED.PERSONAL '{self._personal()}': {error}") from None
        self.require(
            bool(personal) or not self._personal(),
            f"FED.PERSONAL '{self._personal()}' matches none of the trained tensors in full "
            f"({', '.join(names)})",
        )
        return personal

    def role(self, name: str) -> str:
        """Return ``body`` or ``head`` for a trained tensor."""
        return peft.role(name)

    def _personal(self) -> str:
        return str(getattr(getattr(self.root, "FED", None), "PERSONAL", ""))

    def require(self, holds: bool, sentence: str) -> None:
        """Refuse a setting of the method's own options.

        Raises:
            ConfigError: ``sentence``, if it does not hold.
        """
        if not holds:
            raise ConfigError(sentence)

    # ---- model ----------------------------------------------------------------------------
    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return what a batch carries, one or several of them.

        ``features``, ``patches``, ``tokens.<block>`` (what enters a block of the image tower) and
        ``pixels``; ``model.image``, ``patches`` and ``adapted_image`` take what is there.
        """
        return ("features",)

    def prompt_sets(self, batch_size: int) -> int:
        """Return the prompt sets that a client's step sends through the text tower.

        It sizes the chunk of clients that are computed at once: 0 for a method that trains on
        image features alone, one for each image for prompts that depend on it.
        """
        return 1

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the initial trainable tensors (no client axis), equal for all clients."""
        raise ConfigError(
            f"trainer {self.name or type(self).__name__} does not define what is trained: add "
            "trainables(self, model, generator)"
        )

    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        """Return the classifier: normalised text features ``[K, C, d]``."""
        return model.text(params["text.ctx"])

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return image features ``[K, B, d]``, not normalised."""
        return model.image(x)

    def predictor(self, model: VLModel, params: Tree) -> Predictor:
        """Return ``x -> logits [K, B, C]`` with the text features computed once."""
        text = self.text_features(model, params)
        return lambda x: model.logits(self.image_features(model, params, x), text)

    def predict(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return logits ``[K, B, C]``."""
        return self.predictor(model, params)(x)

    def maps(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what the method weighs in images, for ``fedvlm figures --images``.

        By the names that the figure writes: ``[K, B, M]``, a weight for each patch, row by row of
        the image; ``[K, B, C, M]``, one for each class too; or ``[K, B]``, one number.

        Args:
            x: ``pixels [K, B, 3, H, W]``.
        """
        return {}

    def forms(self) -> Mapping[str, str]:
        """Return how tensors are applied where names leave it open (``export.recipe.FORMS``)."""
        return {}

    def loss(
        self, model: VLModel, params: Tree, batch: Batch
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return the mean cross-entropy of each client, ``[K]``, or SigLIP's loss of pairs.

        Where a batch has captions, the contrastive loss of images and captions.
        """
        if "captions" in batch.x:
            from fedvlm.federation.toolbox import retrieval  # start-up: for captions only

            z = self.image_features(model, params, batch.x)
            return retrieval.caption_loss(z, batch, model.scale)
        logits = self.predict(model, params, batch.x)
        if self.loss_kind == SIGMOID:
            return sigmoid_pairs(logits, batch.y, batch.w, model.backbone.logit_bias or 0.0)
        return cross_entropy(logits, batch)

    @property
    def loss_kind(self) -> str:
        """``OPTIM.LOSS``."""
        return str(getattr(getattr(self.root, "OPTIM", None), "LOSS", SOFTMAX))

    def check_loss(self, model: VLModel) -> None:
        """Refuse an ``OPTIM.LOSS`` that the method or the backbone does not have (``ConfigError``).

        Called before the first image is encoded.
        """
        kind = self.loss_kind
        self.require(
            kind in self.losses, f"OPTIM.LOSS {kind}: {self.name or type(self).__name__} has "
            "its own loss; drop the key, or train with --trainer PromptFL or FedAvg"
        )
        self.require(
            kind == SOFTMAX or model.backbone.logit_bias is not None,
            f"OPTIM.LOSS {kind}: the backbone has no logit_bias, which SigLIP's loss adds to every "
            "logit: use a SigLIP backbone, or OPTIM.LOSS softmax",
        )

    def check_weights(self, kind: str) -> None:
        """Refuse class weights where nothing would read them.

        Called before the first image is encoded.

        Args:
            kind: ``OPTIM.CLASS_WEIGHTS``, not none.

        Raises:
            ConfigError: the method has no loss that they could change.
        """
        self.require(
            not self.unweighted, f"OPTIM.CLASS_WEIGHTS {kind}: {self.name or type(self).__name__} "
            f"{self.unweighted}; leave it at none, or train with --trainer FedAvg or PromptFL",
        )
        self.require(
            self.loss_kind == SOFTMAX, f"OPTIM.CLASS_WEIGHTS {kind}: OPTIM.LOSS {self.loss_kind} "
            "is a sum over pairs of image and class and has no class weights; use OPTIM.LOSS "
            f"{SOFTMAX}",
        )

    def check_templates(self) -> None:
        """Refuse clients with templates of their own where no client's work would read them.

        Called before the first image is encoded.

        Raises:
            ConfigError: the method reads none here.
        """
        self.require(
            self.reads_templates,
            f"DATASET.TEMPLATES has templates of single clients, and {self.name} does not read "
            "templates in a client's work with these settings (it learns prompts or a head, has "
            "texts of its own, or its server needs the same ones of everybody): choose ZeroShot, "
            "CLIP-Adapter, FedAvg --peft feature or KgCoOp, or leave 'clients' out of the file",
        )

    def check_sets(self) -> None:
        """Refuse images with sets of labels where the method needs one class of each.

        Called before the first image is encoded.

        Raises:
            ConfigError: it does.
        """
        who = self.name or type(self).__name__
        self.require(
            bool(vars(type(self)).get("label_sets")),
            f"{who} needs one class for each image (its loss, its prototypes or its aggregation "
            "are defined by classes), and DATASET.LABELS gives sets of labels: take a method whose "
            "loss is a plain cross-entropy, such as FedAvg, FedPer, Ditto, PromptFL or CLIP-LoRA",
        )
        self.require(
            self.loss_kind == SOFTMAX,
            f"OPTIM.LOSS {self.loss_kind} pairs images with classes; with DATASET.LABELS leave it "
            "out: the loss of a set of labels is a binary cross-entropy for each label",
        )

    # ---- client ---------------------------------------------------------------------------
    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the state of the new client ``ctx.clients[0]``, without client axis."""
        return {"w": start}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Do one round's work of K clients; return their new states and their upload."""
        w = ctx.fit(state["w"] | received, self.loss).params
        return state | {"w": w}, ctx.upload(w)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the model that is evaluated for each client after aggregation."""
        return state["w"] | received

    def own_finetune(self) -> Finetune:
        """Return the final personalisation that belongs to the method; by default none.

        Its ``train`` and ``lr`` hold also where the user asks for one (``--finetune-epochs``).
        """
        return Finetune()

    def finetune(self, ctx: Context, state: State, received: Tree, how: Finetune) -> Tree:
        """Return the models evaluated after the last round: ``personalize``, trained on a copy.

        Called instead of ``personalize`` if ``how.epochs`` is above 0. State and random streams of
        the run stay as they are.
        """
        return ctx.fit(
            self.personalize(ctx, state, received), self.loss, train=how.train,
            epochs=how.epochs, lr=how.lr or ctx.optim.lr, tag=TAG,
        ).params

    def portion(self, round_: int, groups: Groups) -> Portion:
        """Return what of the shared tensors clients train and send in a round; by default all.

        ``ctx.fit``, ``grad`` and ``upload`` keep to it, so that ``client_update`` need not.
        """
        return WHOLE

    def releases(self, groups: Groups) -> Releases:
        """Return what leaves a client of this method in a run.

        By default the shared group, ``extras_up`` and ``metrics``, the clients' losses where
        ``FED.WEIGHTING`` reads them, and each site's own sums for baselines but under
        ``FED.SECURE_SUM`` and ``FED.DP``. What a round brings beside it ends the run. A list of
        one's own has what it names and no default of this one: ``Releases(groups.shared)``.
        """
        fed = getattr(self.root, "FED", None)
        fair = (RECEIVED,) if getattr(fed, "WEIGHTING", "") in FAIR else ()
        secret = getattr(fed, "SECURE_SUM", False) or getattr(getattr(fed, "DP", None), "CLIP", 0)
        single = self.tells_single
        if getattr(fed, "SECURE_SUM", False):
            single = single.replace(OF_CLIENT, OF_ALL)
        return Releases(groups.shared, tuple(self.extras_up), (*self.metrics, *fair),
                        sums=() if secret else BASELINE_SUMS, single=single)

    def extra_forms(self, ctx: Context, start: Tree) -> Tree | None:
        """Return of which names, shapes and types a client's extras are in a round.

        Tensors without client axis; their numbers do not count, so they may be of the device
        ``meta``. A server holds what comes from other places against it, and every engine does so
        with what the method sends. None: not known beforehand, the extras of a round are only
        compared with each other.

        Args:
            ctx: of the round, of any of its clients.
            start: the trained tensors, of the device ``meta``.
        """
        return None if self.extras_up else {}

    def summands(self, extras: Tree) -> Tree:
        """Return what a client's extras add to sums that are all its server takes of the round.

        With it ``FED.SECURE_SUM`` covers the method, in a run of one round: only their sums over
        clients leave the sites. ``from_sums`` is the way back. By default {}: there is no such sum.

        Args:
            extras: ``[K, ...]``, perhaps of the device ``meta``.

        Returns:
            ``[K, ...]`` float64, under the names of the extras; each client counts once.
        """
        return {}

    def from_sums(self, sums: Tree) -> Tree:
        """Return extras of which these are the summands; no client axis on either."""
        return {}

    def privacy(self, work: Sequence[Worked]) -> Mapping[str, Any]:
        """Return what is guaranteed of clients' images, for results and tables; {}: nothing is.

        ``epsilon`` (None: without bound), ``delta`` and ``words`` (``toolbox.privacy``).

        Args:
            work: of every client that was drawn.
        """
        return {}

    # ---- server ---------------------------------------------------------------------------
    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the server's state before round 1."""
        return {"w": {n: start[n] for n in ctx.groups.names(SHARED, SERVER)}}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return what a client receives: shared tensors, and what ``extras_down`` declares.

        All tensors of the group ``server`` are among it, as ``shared`` has them. A shared tensor
        may be left out where the client neither needs nor sends it; ``ctx.cut`` sends some rows.
        """
        return server["w"]

    def shared(self, server: State) -> Tree:
        """Return the global model, shared and server's tensors: the server's, never a client's.

        Raises:
            FedvlmError: the server keeps no slot ``w``.
        """
        if "w" not in server:
            raise FedvlmError(
                f"trainer {self.name or type(self).__name__}: the server's state has no slot 'w': "
                "define shared(self, server), which returns the global model"
            )
        return server["w"]

    def combine(self, ctx: ServerContext, updates: Updates) -> Tree:
        """Return the aggregate of the uploads: by ``FED.AGGREGATOR``, else their weighted mean.

        Raises:
            DivergedError: it is not finite.
            FedvlmError: too few updates for the rule.
        """
        tree, report = combine(updates, ctx.aggregator)
        for name, value in report.items():
            ctx.log(name, value)
        return tree

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Return the server's state after a round: a step of its optimiser to the aggregate."""
        return ctx.server_step(server, self.combine(ctx, updates))


TRAINER_REGISTRY: Registry[type[Trainer]] = Registry("trainer")


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy per client ``[K]`` of ``logits [K, B, C]``; padding is out.

    Of sets of labels (``Batch.sets``) the binary cross-entropy, summed over the labels: minus the
    log probability of the set, labels being independent. With class weights (``Batch.costs``) each
    term counts by its class before the mean is taken.
    """
    k, n, c = logits.shape
    costs = batch.costs(logits.dtype)
    if batch.sets is not None:
        truth = batch.sets[batch.y].to(logits.dtype)
        both = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        both = (both if costs is None else both * costs).sum(-1)
        return (both * batch.w).sum(1) / batch.w.sum(1)
    each = F.cross_entropy(logits.reshape(k * n, c), batch.y.reshape(-1), reduction="none")
    each = each.reshape(k, n) if costs is None else each.reshape(k, n) * costs
    return (each * batch.w).sum(1) / batch.w.sum(1)


def _refuse_misspelt(cls: type) -> None:
    """Refuse a function nearly called as a hook that no other function of the class names.

    The usual hook would be used without a word.
    """
    hooks = {n for n, hook in vars(Trainer).items()  # a short name may be meant as it is: share
             if inspect.isfunction(hook) and n[0] != "_" and len(n) > 7}
    known = {n for base in cls.__mro__[1:] for n in vars(base)}
    functions = {n: one for n, one in vars(cls).items() if inspect.isfunction(one)}
    own = [n for n in functions if n[0] != "_"]
    called = {n for one in functions.values() for n in one.__code__.co_names}
    for name in {*own} - known - called:
        if near := difflib.get_close_matches(name, hooks - {*own}, n=1, cutoff=0.9):
            raise ConfigError(
                f"trainer {cls.__name__} defines {name}, which fedvlm does not call; did you mean "
                f"'{near[0]}'? (a name of your own may begin with _)"
            )


def _depth(cls: type, *names: str) -> int:
    """Return how far up the bases the first class lies that defines one of ``names``."""
    return next(i for i, base in enumerate(cls.__mro__) if vars(base).keys() & set(names))


def _listed(names: Any) -> str:
    return " and ".join(f"'{name}'" for name in names)
