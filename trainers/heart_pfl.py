"""HEART-PFL: personal adapters aligned to global features; adversarial distillation.

Paper: HEART-PFL (hierarchical directional alignment, adversarial knowledge transfer), WACV 2026,
    arXiv 2603.24209 (its tables were not available).
Equations:
    v (personal): CE + PROX |v - w_t|^2 + HDA_WEIGHT L_HDA; w (to be sent): CE. L_HDA is the mean
        over samples i and four stages of 1 - cos(f_w(x_i), p_{y_i}) (first two stages) and
        MSE(f_w(x_i), p_{y_i}) (last two); p_c the class mean of v's features, f the mean over
        patch tokens, f_w that of the whole model received. HDA_GRAD proto: value from the means
        over all data, gradient through those of the batch; global: in w's loss instead, towards
        fixed means; none: a constant, as released.
    server: theta = mean_k w_k; for the first AKT_ROUNDS of the rounds a student from theta:
        KL(T||S) + KL(S||T) on proxy images and on adversarial ones, T the mean logits; adopted if
        its loss on held-out proxy images is below theta's.
Shared: all of PEFT (w)
Personal: a copy v of all of PEFT; it is what is evaluated. It starts as the first model received.
Frozen: both towers, the logit scale.
Defaults: AdamW 1e-3 (YAML), PROX 0.02 (no half), HDA 0.1, attacks of 8/255 by 2/255 in pixels;
    uniform mean. AKT auto: distils where the server has images of its own, none by default; the
    YAML has 20 steps of 64 images and 5-step attacks. As published: SGD 0.001 or 0.01, PROX 1; 20
    clients, 8 per round, 200 rounds x 10 epochs, batch 16; AKT_STEPS 500, AKT_BATCH 2048,
    AKT_ATTACK_STEPS 20, AKT_ADV own.
Knobs: PROX 0.002 to 1 log; HDA_WEIGHT 0.01 to 1 log.
Departures from the paper: two bottleneck adapters per ViT block for its 1x1 convolutions, no
    dropout in them, text features as classifier, stages at the quarters of the adapted blocks;
    MSE stages are layer-normalised (outlier channels). Pseudo-labels for attacks, gate by
    that loss; attacks are made once per round and image, not once per step. AdamW and a pull 50
    times weaker: in few rounds SGD 0.01 leaves the adapters where they start, and PROX 1 holds v at
    a global model that is no good yet (EuroSAT, 20 steps: 24.5, with AdamW 51.3, with both 56.3).
Departures from the authors' code: it implements the described method; HDA_GRAD none with AKT no is
    what the released client and server rules compute. There HDA carries no gradient; the reverse
    KL swaps its arguments, gives NaN, and the gate then adopts nothing; base_al.py does not parse;
    attacks clamp normalised images to [0, 1]; teachers run in training mode. Published numbers
    are therefore no target. A loss that is not finite stops the run.
Extra data: none, unless AKT distils (no labels unless asked): then images that no client gets
    (AKT_PROXY holdout, DATASET.SERVER_HOLDOUT per class; give it to every method of a table),
    another data set's (dataset:NAME) or a folder's (folder:DIR). AKT_PROXY clients takes the
    clients' validation images, which no federation could do; results and tables name it.
Cost: w and v trained, one more pass per step for f_w, one for the prototypes; AKT per image and
    round: AKT_ATTACK_STEPS forward and backward passes (times teachers + 1 for AKT_ADV own).
Claim: personal is higher than FedAvg's in setting vit.
Command: python federated_main.py --demo --trainer HEART-PFL --opts DATASET.SERVER_HOLDOUT 4
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    CfgNode,
    ConfigError,
    Context,
    Option,
    PeftTrainer,
    Proxy,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    VLModel,
    attack,
    distill,
    fill_newcomers,
    peft,
    pick,
    prototypes,
    rules,
    trees,
    weighting,
)

STAGES = prototypes.STAGES
FIXED = "fixed"  # server slot: tensors nobody trains (PEFT.LORA_AVG freeze_a), for distillation


@TRAINER_REGISTRY.register("HEART-PFL")
class HeartPFL(PeftTrainer):
    """See the module's card. Slots: w, and the private v."""

    name = "HEART-PFL"
    classic = True
    metrics = (r"loss", r"ce", r"hda", r"v/(loss|ce|prox|hda)")
    needs = (peft.BODY,)
    same_basis = True
    lora_refused = {"share_a": "distils whole models at the server, but B would be missing"}
    options = {
        "PROX": Option(0.02, "weight of |v - w|^2 in the personal loss (paper: 1)", low=0.0),
        "HDA_WEIGHT": Option(0.1, "weight of the feature alignment", low=0.0),
        "HDA_GRAD": Option("proto", "what its gradient updates: personal prototypes, the "
                           "global model, or nothing", choices=("proto", "global", "none")),
        "HDA_INDICES": Option((), "four block indices (from 0) whose outputs are aligned; "
                              "(): at the quarters of the adapted blocks", low=0),
        "HDA_POOL": Option("patch_mean", "how a block's output is pooled",
                            choices=("patch_mean", "class")),
        "HDA_NORM": Option("layernorm", "before the squared error", choices=("layernorm", "none")),
        "WEIGHTING": weighting("uniform"),
        "AKT": Option("auto", "distil on the server over a proxy set; auto: if there is one",
                      choices=("auto", "yes", "no"), aliases={"True": "yes", "False": "no"}),
        "AKT_PROXY": Option(
            "holdout", "the server's images: DATASET.SERVER_HOLDOUT's, dataset:NAME, folder:DIR, "
            "or the clients' validation images (clients), which is impossible in a real federation",
            pattern="holdout|clients|dataset:.+|folder:.+",
            pattern_help="holdout, dataset:NAME, folder:DIR or clients",
        ),
        "AKT_ROUNDS": Option(0.15, "share of the rounds with distillation, counted from the first",
                             low=0.0, high=1.0),
        "AKT_STEPS": Option(500, "student steps per round", low=1),
        "AKT_BATCH": Option(64, "proxy images per step", low=1),
        "AKT_LR": Option(1e-3, "Adam's learning rate, cosine schedule over the steps", low=0.0),
        "AKT_TEMPERATURE": Option(1.0, "of both softmaxes", low=0.0, low_open=True),
        "AKT_EPS": Option(8 / 255, "largest change of a pixel in [0, 1]", low=0.0),
        "AKT_ALPHA": Option(2 / 255, "change per attack step", low=0.0),
        "AKT_ATTACK_STEPS": Option(20, "attack steps", low=0),
        "AKT_RANDOM_START": Option(True, "attacks start at a random point"),
        "AKT_ADV": Option("shared", "adversarial images: the student's for all, or each "
                          "teacher's own", choices=("shared", "own")),
        "AKT_LABELS": Option("pseudo", "labels that attacks move away "
                                       "from", choices=("pseudo", "true")),
        "AKT_ENSEMBLE": Option("logits", "mean of", choices=("logits", "probs")),
        "AKT_GATE": Option("kl", "adopt by", choices=("kl", "val_acc", "none")),
        "AKT_HOLDOUT": Option(0.2, "share of the proxy images held out for the "
                                   "gate", low=0.0, high=1.0,
                              low_open=True, high_open=True),
        "AKT_CHECK_EVERY": Option(10, "student steps between evaluations of the gate (paper: "
                                      "1)", low=1),
    }

    def check_peft(self) -> None:
        """Refuse what has no blocks to align (``ConfigError``)."""
        self.require(
            self.spec.visual in peft.IN_TOWER,
            "HEART-PFL aligns block outputs that adapters change: set PEFT.VISUAL adapter (or "
            f"lora; --peft adapter), not {self.spec.visual}",
        )

    def __init__(self, cfg: CfgNode) -> None:
        """Read what is aligned."""
        super().__init__(cfg)
        self.node = f"TRAINER.{self.name.upper()}"
        self.require(
            len(self.cfg.HDA_INDICES) in (0, STAGES),
            f"{self.node}.HDA_INDICES needs {STAGES} blocks, got {len(self.cfg.HDA_INDICES)}",
        )
        self.aligns = self.cfg.HDA_WEIGHT > 0

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the trainable tensors of one model; a tower without blocks is refused."""
        tree = super().trainables(model, generator)
        if self.aligns:
            self.stage_indices(model)
        return tree

    # ---- features -------------------------------------------------------------------------
    def stages(self, model: VLModel) -> list[int]:
        """Return the four blocks that are aligned.

        Raises:
            ConfigError: a block that is not there, or that lies below the adapted ones.
        """
        blocks = self.stage_indices(model)
        chosen = list(self.cfg.HDA_INDICES)
        wrong = [b for b in chosen if b not in blocks]
        if wrong:
            raise ConfigError(
                f"{self.node}.HDA_INDICES {wrong[0]}: the adapted blocks are "
                f"{blocks[0]} to {blocks[-1]}"
            )
        return chosen or [blocks[-(-len(blocks) * q // STAGES) - 1] for q in range(1, STAGES + 1)]

    def stage_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the stages' outputs ``[K, B, width]``, as they are compared."""
        return self.normed(self.stage_outputs(model, p, x, self.stages(model), self.by_class))

    def staged_loss(self, model: VLModel, p: Tree, b: Batch) -> tuple[Tensor, list[Tensor]]:
        """Return the cross-entropy ``[K]``, and ``stage_features`` of the same pass."""
        ce, found = self.supervised_stages(model, p, b, self.stages(model), self.by_class)
        return ce, self.normed(found)

    @property
    def by_class(self) -> bool:
        """Whether a block's output is pooled by its class token."""
        return bool(self.cfg.HDA_POOL == "class")

    def normed(self, stages: list[Tensor]) -> list[Tensor]:
        """Return the stages as they are compared: the late ones normalised, if so."""
        if self.cfg.HDA_NORM == "none":
            return stages
        early = prototypes.EARLY
        return [*stages[:early], *(F.layer_norm(f, f.shape[-1:]) for f in stages[early:])]

    def prototypes(self, ctx: Context, v: Tree) -> Tree:
        """Return the class means of each stage ``[K, C, width]``, and ``has [K, C]``."""
        widths = self.stage_widths(ctx.model, self.stages(ctx.model))
        means = prototypes.class_means(
            ctx, lambda p, x: torch.cat(self.stage_features(ctx.model, p, x), -1), v,
            len(ctx.model.classnames), sum(widths),
        )
        parts = means.mean.split(widths, -1)
        has = {"has": (means.count > 0).to(means.mean.dtype)}
        return {f"stage.{j}": part for j, part in enumerate(parts)} | has

    # ---- client ---------------------------------------------------------------------------
    def personal_loss(
        self, model: VLModel, p: Tree, b: Batch, *, received: Tree, joined: Tree, proto: Tree
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return v's loss ``[K]`` near what was received, with the prototypes of v.

        Args:
            joined: the whole model received: features are its (under ``freeze_a`` LoRA's A is not
                in ``received``).
        """
        ce, own = self.staged_loss(model, p, b)
        prox = prototypes.squared_distance(p, b.cut(received))
        total, parts = ce + self.cfg.PROX * prox, {"ce": ce, "prox": prox}
        if self.aligns and self.cfg.HDA_GRAD != "global":
            with torch.no_grad():
                aligned = self.stage_features(model, b.cut(joined), b.x)
            if self.cfg.HDA_GRAD == "none":
                own = [f.detach() for f in own]
            here = b.cut(proto)
            goal = prototypes.batch_targets(own, b, here)
            parts["hda"] = prototypes.hda(aligned, goal, prototypes.presence(b, here))
            total = total + self.cfg.HDA_WEIGHT * parts["hda"]
        return total, parts

    def shared_loss(
        self, model: VLModel, p: Tree, b: Batch, *, proto: Tree
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return w's loss ``[K]`` under HDA_GRAD global, with the prototypes of v."""
        ce, own = self.staged_loss(model, p, b)
        here = b.cut(proto)
        aligned = prototypes.hda(own, prototypes.targets(b, here), prototypes.presence(b, here))
        return ce + self.cfg.HDA_WEIGHT * aligned, {"ce": ce, "hda": aligned}

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return both models at the common start."""
        return {"w": start, "v": start}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train v against the model received, then w."""
        v, joined = fill_newcomers(ctx, state["v"], received), state["w"] | received
        proto = self.prototypes(ctx, v) if self.aligns else {}
        near = partial(self.personal_loss, received=received, joined=joined, proto=proto)
        v = ctx.fit(v, near, tag="v").params
        towards = self.aligns and self.cfg.HDA_GRAD == "global"
        loss = partial(self.shared_loss, proto=proto) if towards else self.loss
        w = ctx.fit(joined, loss).params
        return state | {"v": v, "w": w}, ctx.upload(w)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return v; the model received where the client never worked."""
        return fill_newcomers(ctx, state["v"], received)

    # ---- server ---------------------------------------------------------------------------
    @property
    def extra_data(self) -> str:
        """What is used beside the clients' training images, for the summary; empty: nothing."""
        source = self.proxy_source
        words = {
            "": "",
            "holdout": "the server distils with images that no client has "
                       f"(holdout, {int(self.root.DATASET.SERVER_HOLDOUT)} per class)",
            "clients": "the server distils with the clients' validation images (clients), which is "
                       "impossible in a real federation",
        }
        return words.get(source, f"the server distils with the images of {source}")

    @property
    def proxy_source(self) -> str:
        """Where the server's images come from, where it distils."""
        return str(self.cfg.AKT_PROXY) if self.last_akt else ""

    @property
    def distils(self) -> bool:
        """Whether AKT is on: ``auto`` is yes where the configured proxy has images."""
        if self.cfg.AKT == "auto":
            return self.cfg.AKT_PROXY != "holdout" or int(self.root.DATASET.SERVER_HOLDOUT) > 0
        return bool(self.cfg.AKT == "yes")

    @property
    def last_akt(self) -> int:
        """Last round with distillation; 0: none."""
        return math.ceil(self.cfg.AKT_ROUNDS * int(self.root.FED.ROUNDS)) if self.distils else 0

    server_rules = {
        "w/.*": lambda s: s.mean() if s.round > s.trainer.last_akt else "distilled from the mean"
    }

    @property
    def aggregators(self) -> Sequence[str]:
        """All; with distillation the mean: every client's model teaches, whatever the rule."""
        return (rules.MEAN,) if self.last_akt else super().aggregators

    @property
    def server_optim(self) -> bool:
        """Whether a server optimiser may be used: not beside distillation."""
        return super().server_optim and not self.last_akt

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the server's state.

        Raises:
            ConfigError: as ``check_proxy``.
        """
        self.check_proxy(ctx.proxy)
        fixed = pick(start, ctx.groups.names("frozen")) if self.last_akt else {}
        return super().init_server(ctx, start) | ({FIXED: fixed} if fixed else {})

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Average, then distil in the first rounds."""
        mean = self.combine(ctx, updates)
        if ctx.round > self.last_akt:
            return ctx.server_step(server, mean)
        space = attack.PixelSpace.of(ctx.model.backbone.transform_spec)

        def predict(p: Tree, pixels: Tensor) -> Tensor:
            whole = p | trees.expand(server.get(FIXED, {}), len(pixels))
            return self.predict(ctx.model, whole, {"pixels": space.normalise(pixels)})

        distillate = distill.distil(
            mean, updates.params, predict, self.proxy(ctx), self.distillation(), ctx.stream("akt")
        )
        ctx.log("akt", {
            "adopted": int(distillate.adopted), "initial": distillate.initial,
            "best": distillate.best, "loss": distillate.loss,
            "attack_passes": distillate.attack_passes,
        })
        return server | {"w": distillate.tree}

    def distillation(self) -> distill.Distillation:
        """Return what AKT_* say."""
        c = self.cfg
        steps = attack.PGD(c.AKT_EPS, c.AKT_ALPHA, c.AKT_ATTACK_STEPS, c.AKT_RANDOM_START)
        return distill.Distillation(
            c.AKT_STEPS, c.AKT_BATCH, c.AKT_LR, c.AKT_TEMPERATURE, steps, c.AKT_ADV,
            c.AKT_LABELS, c.AKT_ENSEMBLE, c.AKT_GATE, c.AKT_HOLDOUT, c.AKT_CHECK_EVERY,
        )

    def check_proxy(self, proxy: Proxy | None) -> None:
        """Refuse to distil without images, or by labels that they do not have.

        Raises:
            ConfigError: says what to set.
        """
        if not self.last_akt:
            return
        node, source = self.node, self.cfg.AKT_PROXY
        if proxy is None or not len(proxy):
            raise ConfigError(
                f"{node}.AKT {self.cfg.AKT}: the server has no images of its own (AKT_PROXY "
                f"{source}); set DATASET.SERVER_HOLDOUT above 0, AKT_PROXY dataset:NAME or "
                f"folder:DIR, or {node}.AKT no"
            )
        distill.holdout_size(len(proxy), self.distillation())
        unknown = int((proxy.labels < 0).sum())
        for key, value, instead in (
            ("LABELS", distill.TRUE, distill.PSEUDO), ("GATE", distill.VAL_ACC, distill.KL),
        ):
            if self.cfg[f"AKT_{key}"] == value and unknown:
                raise ConfigError(
                    f"{node}.AKT_{key} {value}: {unknown:,} of the server's {len(proxy):,} images "
                    f"(AKT_PROXY {source}) have no label of the run's classes; set it to {instead}"
                )

    def proxy(self, ctx: ServerContext) -> distill.ProxyImages:
        """Return the server's images, as pixels in [0, 1].

        Raises:
            ConfigError: as ``check_proxy``.
        """
        self.check_proxy(ctx.proxy)
        assert ctx.proxy is not None  # noqa: S101 (just checked)
        space = attack.PixelSpace.of(ctx.model.backbone.transform_spec)
        return distill.image_proxy(ctx.proxy, space, ctx.model)
