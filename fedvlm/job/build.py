"""From a config to everything a run needs: data, backbone, model, trainer, sources, federation."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import torch
from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.config.federation import ATTACKS
from fedvlm.config.keys import ROLES, default_schema
from fedvlm.config.sections import watches_loss
from fedvlm.core.errors import ConfigError
from fedvlm.core.progress import Progress
from fedvlm.core.threads import keep_freed_memory
from fedvlm.core.transform import TextSpec
from fedvlm.data.datum import refuse_targets
from fedvlm.data.federated import ClientSplit, FederatedData
from fedvlm.data.holdout import ServerImages
from fedvlm.data.images import ImageLoader
from fedvlm.evaluation import ClientMeter, panel_of
from fedvlm.evaluation.scores import Batches
from fedvlm.federation.aggregation.rules import AUTO, AggregateSpec
from fedvlm.federation.aggregation.server_optim import NONE, ServerOptimSpec
from fedvlm.federation.batches import NO_WEIGHTS, Split, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.groups import FAIR
from fedvlm.federation.local.images import Absent
from fedvlm.federation.optim import OptimSpec, RoleSpec, Schedule
from fedvlm.federation.peft_trainer import takes_peft
from fedvlm.federation.plan import (
    Budget,
    Plan,
    Plateau,
    draw_unseen,
    parse_sites,
    plain_work,
)
from fedvlm.federation.reliability.unreliable import Unreliable, parse_absences
from fedvlm.federation.rounds import Federation, check_rounds
from fedvlm.federation.server import Roster
from fedvlm.federation.trainer import Trainer
from fedvlm.federation.workplace import TrainingStart
from fedvlm.job.identity import run_identity
from fedvlm.job.images.packed import check_packs, foreign_origins, pack_notes, packs_of
from fedvlm.job.inputs import Inputs
from fedvlm.job.sources import (
    CLIENTS,
    StreamSource,
    first_inside,
    image_sources,
    images_to_encode,
    pixel_sources,
    refuse_unequal_streams,
    server_images,
    train_images,
)
from fedvlm.models.adapt.peft import role_of
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.sources import SampleSource
from fedvlm.models.towers.vision import PATCHES
from fedvlm.models.vlmodel import VLModel, tower_of
from fedvlm.runs.verify.answer import measure_of

if TYPE_CHECKING:
    import numpy as np

    from fedvlm.federation.aggregation.fairness import Fairness
    from fedvlm.federation.local.balance import Balance

CHUNK_BYTES = 2 << 30  # activations of one chunk of clients; a constant, so that bits do not move
RESNET = re.compile(r"RN\d+.*")  # OpenAI's and open_clip's names of CLIP's ResNets
MAX_CHUNK, FEATURES_CHUNK = 16, 64  # the second where a step is a few small products
CUDA_CHUNK, CUDA_SHARE = 256, 0.3  # on a GPU: clients, and the share of its memory


@dataclass
class Prepared:
    """A run before its images: its data, towers and method, checked, and its whole identity.

    Attributes:
        batcher: batches of pixels; it has no image where the clients are elsewhere.
        proxy: the server's own images.
        identity: everything that changes the run's numbers.
        remarks: on the settings and the server's images.
    """

    cfg: CfgNode
    data: FederatedData
    backbone: Backbone
    model: VLModel
    trainer: Trainer
    start: TrainingStart
    plan: Plan
    batcher: SplitBatcher | Absent
    engine: LocalEngine
    budget: Budget
    proxy: ServerImages | None
    loader: ImageLoader
    identity: dict[str, Any]
    remarks: list[str] = field(default_factory=list)


@dataclass
class Built:
    """A run, ready to go.

    Attributes:
        meter: measures personal models (``federation.meter``), and keeps their logits.
        test: source of every sample's un-augmented view.
        identity: everything that changes the run's numbers.
        notes: all remarks for the log and the results, the data's and the towers' first.
    """

    cfg: CfgNode
    data: FederatedData
    backbone: Backbone
    model: VLModel
    federation: Federation
    meter: ClientMeter
    test: SampleSource
    loader: ImageLoader
    identity: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def pick_device(name: str, fast: bool = False) -> torch.device:
    """Return the device of ``DEVICE``; a CUDA device computes in a fixed order from then on.

    On the CPU the process keeps freed memory for its next tensors.

    Args:
        fast: ``FAST``: in no fixed order.

    Raises:
        ConfigError: it is not there, or is not CUDA's and has no faster kernels.
    """
    device = find_device(name)
    if device.type == "cuda":
        from fedvlm.models.device import compute_in_order  # start-up: on a GPU only

        compute_in_order(device, fast)
    elif fast:
        raise ConfigError(f"--fast (FAST True) is for a CUDA device, but this run computes on "
                          f"{device.type}, which has one kernel for each operation; drop it")
    else:
        keep_freed_memory(os.environ)
    return device


def find_device(name: str, here: bool = True) -> torch.device:
    """Return the device of ``DEVICE`` and set nothing.

    Args:
        here: whether a device that is named must be on this machine (else ``ConfigError``).
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(name)
    if not here:
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        from fedvlm.models.device import lack_of  # start-up: on a GPU only

        raise ConfigError(f"--device {name}: {lack_of(count)}; use --device cpu or auto")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("--device mps: not available on this machine; use --device cpu or auto")
    return device


def views_of(cfg: CfgNode) -> int:
    """Return the number of training views: ``INPUT.VIEWS``, 0 meaning one per local epoch."""
    return int(cfg.INPUT.VIEWS) or int(cfg.FED.ROUNDS * cfg.FED.LOCAL_EPOCHS)


def check_model(cfg: CfgNode, device: torch.device) -> None:
    """Refuse combinations of ``MODEL`` keys that cannot work (``ConfigError``)."""
    name, weights = cfg.MODEL.BACKBONE.NAME, cfg.MODEL.INIT_WEIGHTS
    brings = weights or name == "tiny" or name.startswith(("local-dir:", "hf-hub:"))
    if not cfg.MODEL.BACKBONE.PRETRAINED and (brings or cfg.MODEL.LOADER == "transformers"):
        raise ConfigError(
            f"MODEL.BACKBONE.PRETRAINED False requests random weights, but backbone '{name}' "
            f"(MODEL.INIT_WEIGHTS '{weights}', MODEL.LOADER {cfg.MODEL.LOADER}) has its own: "
            "drop one of the two settings, or choose an open_clip model without weights"
        )
    if device.type == "mps" and cfg.MODEL.PREC == "fp64":
        raise ConfigError("MODEL.PREC fp64: mps has no float64; use --device cpu or fp32")


def check_tower(cfg: CfgNode, trainer: Trainer) -> None:
    """Refuse what a ResNet lacks by its name, before its weights come (``ConfigError``)."""
    name = str(cfg.MODEL.BACKBONE.NAME)
    if not RESNET.fullmatch(name):
        return
    try:
        streams = trainer.streams(cast(VLModel, None))
    except AttributeError:  # it asks the tower: ``check_streams`` says it once that is there
        return
    inside = [s for s in streams if s not in ("features", "pixels", PATCHES)]
    if inside:
        raise ConfigError(
            f"{trainer.name} reads '{inside[0]}' inside the image tower, but that of {name} is a "
            "ResNet without blocks: use a ViT, such as --backbone ViT-B/16"
        )


def make_plan(cfg: CfgNode, sizes: Sequence[int] = ()) -> Plan:
    """Return rounds, participation, optimiser and schedule of a config.

    Args:
        sizes: training images of each client; FED.MIN_IMAGES reads them.
    """
    o, epochs = cfg.OPTIM, int(cfg.FED.LOCAL_EPOCHS)
    spec = OptimSpec(
        o.NAME, o.LR, o.MOMENTUM, o.WEIGHT_DECAY, o.SGD_DAMPNING, o.SGD_NESTEROV,
        (o.ADAM_BETA1, o.ADAM_BETA2), roles_of(cfg), o.CLIP, o.KEEP_STATE,
        o.ADAM_EPS,
    )
    per_round = o.CLOCK == "round"
    schedule = Schedule(
        o.LR, o.LR_SCHEDULER, epochs if per_round else epochs * int(cfg.FED.ROUNDS),
        tuple(int(s) for s in o.STEPSIZE), o.GAMMA, int(o.WARMUP_EPOCH), o.WARMUP_TYPE,
        o.WARMUP_CONS_LR, o.WARMUP_MIN_LR,
    )
    f = cfg.FED
    aggregator = AggregateSpec(f.AGGREGATOR, f.TRIM, int(f.BYZANTINE), f.CLIP_NORM, f.SAA_TEMP)
    server_optim = ServerOptimSpec(
        f.SERVER_OPTIM, f.SERVER_LR, f.SERVER_MOMENTUM, f.SERVER_BETA1, f.SERVER_BETA2,
        f.SERVER_TAU,
    )
    return Plan(
        int(cfg.FED.ROUNDS), int(cfg.FED.CLIENTS), cfg.FED.FRAC, epochs, cfg.FED.FIRST_ROUND_ALL,
        cfg.FED.NONFINITE, int(cfg.SEED), spec, schedule, per_round,
        "auto" if f.WEIGHTING in FAIR else f.WEIGHTING,
        aggregator, server_optim,
        draw_unseen(int(f.CLIENTS), int(f.UNSEEN_CLIENTS), int(cfg.DATA_SEED),
                    int(f.MIN_IMAGES), sizes),
        int(f.LOCAL_STEPS), span_of(f.EPOCHS_RANGE), int(f.EARLY_STOP), unreliable_of(cfg),
        fairness=fairness_of(cfg),
    )


def fairness_of(cfg: CfgNode) -> Fairness | None:
    """Return what ``FED.WEIGHTING`` says of the clients' losses; None: nothing."""
    kind = str(cfg.FED.WEIGHTING)
    if kind not in FAIR:
        return None
    from fedvlm.federation.aggregation.fairness import Fairness  # start-up: such runs only

    return Fairness(kind, cfg.FED.FAIR_Q, cfg.FED.FAIR_LR, 1.0 / max(cfg.OPTIM.LR, 1e-12))


def unreliable_of(cfg: CfgNode) -> Unreliable:
    """Return what ``FED.UNRELIABLE`` says (``ConfigError``: keys that contradict each other)."""
    u = cfg.FED.UNRELIABLE
    if u.BUFFER and cfg.FED.ENGINE != "local":
        raise ConfigError(f"FED.UNRELIABLE.BUFFER {u.BUFFER} is a simulation in one process, and "
                          f"FED.ENGINE is {cfg.FED.ENGINE}: use --engine local")
    return Unreliable(
        int(cfg.SEED), int(cfg.FED.ROUNDS), u.DROPOUT, u.STRAGGLERS, tuple(u.SLOWDOWN), u.SLOW_BY,
        u.DEADLINE, u.CLOCK, u.LATE, u.JOIN, u.LEAVE, parse_absences(u.AWAY, int(cfg.FED.CLIENTS)),
        u.QUORUM, int(u.BUFFER),
    )


def span_of(value: Sequence[object]) -> tuple[int, ...]:
    """Return ``FED.EPOCHS_RANGE``, words where it was typed, as numbers (else ``ConfigError``)."""
    words = [str(n).strip() for n in value]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(
            f"FED.EPOCHS_RANGE {tuple(value)}: expects two whole numbers of epochs, such as (1, 4)"
        )
    return tuple(map(int, words))


def roles_of(cfg: CfgNode) -> dict[str, RoleSpec]:
    """Return what ``OPTIM.<ROLE>`` sets, by role."""
    found = {role.lower(): RoleSpec(n.NAME, n.LR, n.WEIGHT_DECAY)
             for role, n in ((role, cfg.OPTIM[role]) for role in ROLES)}
    return {role: spec for role, spec in found.items() if spec != RoleSpec()}


def make_budget(cfg: CfgNode, plan: Plan, batcher: SplitBatcher | Absent) -> Budget:
    """Return what the run may spend: FedAvg's work under the same config (``FED.BUDGET``)."""
    unit = cfg.FED.BUDGET
    lengths, sizes = (batcher.lengths(range(plan.clients), 1), batcher.sizes(range(plan.clients)))
    cohorts = [] if unit == "rounds" else [
        plan.answering(r + 1, lengths) for r in range(plan.rounds)
    ]
    return Budget(unit, plain_work(unit, cohorts, sizes, plan.effort, batcher.batch_size))


def make_plateau(cfg: CfgNode, plan: Plan, roster: Roster) -> Plateau:
    """Return where a run ends whose validation accuracy and loss are flat (``FED.PATIENCE``).

    A check asks everybody, so there is one for each time that everybody has worked, at most every
    second round.
    """
    panel = panel_of(roster, cohort=int(cfg.TEST.COHORT), data_seed=int(cfg.DATA_SEED))
    return Plateau(
        int(cfg.FED.PATIENCE), [c for c in panel.clients if roster.val[c]],
        max(2, math.ceil(panel.members / plan.cohort)), measure_of(cfg),
        loss=bool(cfg.FED.PATIENCE_LOSS) and watches_loss(flat(cfg).__getitem__),
    )


def chunk_of(cfg: CfgNode, model: VLModel, trainer: Trainer) -> int:
    """Return how many clients are stacked: ``FED.CHUNK``, or by a fixed budget of memory.

    Workers on one GPU share it.
    """
    if cfg.FED.PLAIN:
        return 1
    if cfg.FED.CHUNK:
        return int(cfg.FED.CHUNK)
    batch = int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
    sets = trainer.prompt_sets(batch)
    if sets and cfg.FED.DP.CLIP and cfg.FED.DP.UNIT != "client":  # a gradient for each image
        sets = max(sets, batch)
    # Tokens of two prompt sets, roughly: packed, or one full-length text per class.
    packed = 24 + 6 * len(model.classnames)
    if cfg.PEFT.CSC or getattr(trainer.cfg, "CSC", False):  # a context of its own for each class
        packed += int(cfg.PEFT.N_CTX) * len(model.classnames)
    backbone = model.backbone
    tokens = packed if backbone.causal else 2 * len(model.classnames) * backbone.context_length
    blocks = len(backbone.text_blocks)
    # Two sets at least: a step and the images' side of it.
    per_client = 16 * backbone.text_width * 4 * max(2, sets) * tokens * blocks if sets else 0
    first = first_inside(trainer.streams(model))
    if first is not None:  # the adapted blocks' activations of a batch of images
        per_client += 24 * 4 * batch * tower_of(model, first).numbers(int(first.partition(".")[2]))
    most, room = MAX_CHUNK if sets or first is not None else FEATURES_CHUNK, CHUNK_BYTES
    if model.device.type == "cuda":  # all of its memory, not what is free: bits do not move
        most, room = CUDA_CHUNK, int(CUDA_SHARE * torch.cuda.mem_get_info(model.device)[1])
        if cfg.FED.ENGINE == "workers":
            from fedvlm.job.workers.processes import sharing  # start-up: such runs only

            room //= sharing(cfg)
    return max(1, min(most, room // max(1, per_client)))


def build_run(
    cfg: CfgNode, progress: Progress | None = None, *, pixels: bool = False,
    inputs: Inputs | None = None,
) -> Built:
    """Build a run: ``prepare_run``, then ``complete_run``.

    Args:
        progress: called with (what, done, of) while images are encoded.
        pixels: encode images batch by batch, without the cache (dry run).
        inputs: makes data and towers; by default anew.

    Raises:
        ConfigError, DataError: whatever of the config cannot work.
    """
    return complete_run(prepare_run(cfg, progress, inputs=inputs), progress, pixels=pixels)


def prepare_run(
    cfg: CfgNode, progress: Progress | None = None, *, inputs: Inputs | None = None
) -> Prepared:
    """Make all of a run but its images: config mistakes come first, then data, then weights.

    Mistakes that only show with data and towers there (no validation images, a rank above the
    prompt's length, tensors without a group) come here, before the first image is encoded; and
    the identity is complete, so that a folder of another run is refused before it too.

    Raises:
        ConfigError, DataError: as ``build_run``.
    """
    inputs = inputs or Inputs()
    trainer = _load_method(cfg)
    data, splits = _as_trained(cfg, trainer, inputs.data(cfg, progress))
    known = inputs.counts
    blind = not any(len(c.val) for c in data.clients) if known is None else not known.val.any()
    if cfg.TEST.SELECT == "val" and inputs.serves and blind:
        raise ConfigError(
            "TEST.SELECT val: this split has no validation images; set DATASET.VAL_SHOTS above 0, "
            "or TEST.SELECT last"
        )
    device = pick_device(cfg.DEVICE, cfg.FAST)
    check_model(cfg, device)
    check_tower(cfg, trainer)
    backbone = inputs.backbone(cfg, device)
    model = VLModel(
        backbone, data.classnames, templates=data.templates, packed=not cfg.FED.PLAIN,
        client_templates=data.client_templates, bf16_text=cfg.MODEL.PREC == "bf16",
        sets=data.label_sets is not None,
    )
    check_targets(cfg, trainer, data, model)
    loader = ImageLoader(
        data.samples, backbone.transform_spec, views_of(cfg), int(cfg.DATA_SEED),
        crop_scale=tuple(cfg.INPUT.RRCROP_SCALE), records=data.records,
    )
    check_packs(trainer, model, loader, cfg.FED.PLAIN)
    train, test = pixel_sources(loader, torch.from_numpy(data.labels.copy()))
    sizes = [len(c.train) for c in splits] if known is None else known.train.tolist()
    plan, chunk = make_plan(cfg, sizes), chunk_of(cfg, model, trainer)
    sites = parse_sites(cfg.FED.SITES, plan.clients)
    size = int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
    batcher: SplitBatcher | Absent = SplitBatcher(
        train, splits, size, int(cfg.SEED), loader.views, plan.epochs, model.device,
        model.dtype, plain=test, sets=label_table(data, model),
        groups=getattr(data, "groups", None), grouped=cfg.FED.DP.UNIT == "group",
        drawn=cfg.FED.DP.SAMPLING == "poisson" and cfg.FED.DP.UNIT != "client",
        balance=balance_of(
            cfg, data.labels, data.clients, len(data.classnames), data.label_sets),
    ) if inputs.counts is None else Absent(inputs.counts, size, "the server")
    source = trainer.proxy_source if inputs.serves else ""
    if source == CLIENTS and inputs.counts is not None:
        raise ConfigError(
            f"{trainer.name} would train the server on validation images of its clients, which are "
            "at their sites: give the server its own images (AKT_PROXY folder:DIR or dataset:NAME)"
        )
    proxy, proxy_notes = server_images(source, cfg, data, loader, progress, plan.unseen)
    _check_texts(cfg, loader, proxy, backbone)
    if inputs.serves:
        trainer.check_proxy(proxy)
    start = TrainingStart.of(trainer, model, batcher, plan, sites)  # may refuse
    plan, said = _with_threats(cfg, plan, start, sites, backbone, trainer, inputs, batcher)
    if plan.hostile is not None and isinstance(batcher, SplitBatcher):
        batcher = replace(batcher, poison=plan.hostile.poison)
    check_rounds(trainer, model, batcher, plan, start.roster, start.groups)
    identity = run_identity(
        cfg, data, backbone, loader, chunk, device.type, proxy.digest if proxy else "",
        foreign_origins(data.samples, backbone),
    )
    if device.type == "cuda":
        from fedvlm.models.device import cuda_identity  # start-up: on a GPU only

        identity["cuda"] = cuda_identity(device)
    if cfg.FED.SITES:
        model.notes.append(f"clients of {len(set(sites))} site(s) are computed site by site")
    return Prepared(
        cfg, data, backbone, model, trainer, start, plan, batcher, LocalEngine(chunk, sites),
        make_budget(cfg, plan, batcher), proxy, loader, identity,
        [*_marks(cfg, loader, trainer, start.p0), *said, *proxy_notes],
    )


def _check_texts(
    cfg: CfgNode, loader: ImageLoader, server: ServerImages | None, backbone: Backbone
) -> None:
    """Refuse images, of the clients or the server, that made a simulated text tower."""
    if backbone.text_images:
        from fedvlm.job.images import texts  # start-up: for a simulated text tower only

        keys = (loader.content_key(i) for i in range(len(loader)))
        texts.check_simulated(cfg, chain(keys, server.keys if server else ()), backbone)


def _as_trained(
    cfg: CfgNode, trainer: Trainer, data: FederatedData
) -> tuple[FederatedData, Sequence[ClientSplit]]:
    """Return the data as the method trains on them, and all that each client trains on."""
    if not any(len(c.unlabelled) for c in data.clients):
        return data, data.clients
    from fedvlm.job.images import unlabelled  # start-up: for images without a label only

    attack = cfg.FED.ATTACK if cfg.FED.HOSTILE else ""
    data = unlabelled.for_method(data, trainer.unlabelled, trainer.name, attack)
    return data, unlabelled.taught(data.clients)


def _load_method(cfg: CfgNode) -> Trainer:
    """Return the method, refused where it does not train on captions that the config gives."""
    trainer = load_trainer(cfg.TRAINER.NAME)(cfg)
    if cfg.DATASET.CAPTIONS:
        from fedvlm.job.images import texts  # start-up: for captions only

        texts.check_captions(cfg, trainer)
    return trainer


def _with_threats(
    cfg: CfgNode, plan: Plan, start: TrainingStart, sites: Sequence[int], backbone: Backbone,
    trainer: Trainer, inputs: Inputs, batcher: SplitBatcher | Absent,
) -> tuple[Plan, list[str]]:
    """Return the plan with attackers, differential privacy and secure sums, and remarks on them."""
    fed, dp = cfg.FED, cfg.FED.DP
    if not (
        fed.HOSTILE or ATTACKS[0] != fed.ATTACK or fed.ATTACK_SCALE or fed.ATTACK_TARGET
        or fed.SECURE_SUM or dp.UNIT != "client" or dp.SAMPLING != "shuffle"
        or any((dp.CLIP, dp.NOISE, dp.EPSILON, dp.DELTA, dp.QUANTILE, dp.SIMILARITY))
    ):
        return plan, []
    from fedvlm.job.settings.threats import add_threats  # start-up: such runs only

    return add_threats(cfg, plan, start, sites, backbone, trainer, inputs, batcher)


def complete_run(
    prepared: Prepared, progress: Progress | None = None,
    tell: Callable[[str], None] | None = None, *, pixels: bool = False,
) -> Built:
    """Return a run whose images come from the feature cache; what is missing is encoded.

    Args:
        tell: told, before it begins, what will be kept beside features, and what that takes.
        pixels: encode images batch by batch, without the cache, as a plain config does; a feature
            pack has no pixels.

    Raises:
        ConfigError, DataError: as ``build_run``.
    """
    run, cfg, data, model = prepared, prepared.cfg, prepared.data, prepared.model
    labels = torch.from_numpy(data.labels.copy())
    images = pixel_sources(run.loader, labels)
    train: StreamSource = images[0]
    test: StreamSource = images[1]
    plain: StreamSource = images[0]
    packed = bool(packs_of(data.samples))
    cached = bool(images_to_encode(data, 1)) and (packed or not (pixels or cfg.FED.PLAIN))
    if cached:
        device = pick_device(cfg.DEVICE, cfg.FAST)
        train, test = (source.on(device) for source in image_sources(
            cfg, data, model, run.loader, labels, run.trainer, progress, tell
        ))
    if data.captioned:
        from fedvlm.job.images import texts  # start-up: for captions only

        plain, train, test = texts.with_captions(
            cfg, data, run.backbone, [plain, train, test], model.notes, progress)
    batcher = run.batcher
    if isinstance(batcher, SplitBatcher):
        batcher = replace(batcher, source=train, plain=test)
    size = int(cfg.DATALOADER.TEST.BATCH_SIZE)
    meter = ClientMeter(
        model, run.trainer, test, data, batch_size=size, fold=not cfg.FED.PLAIN,
    )
    meter.calibrate = bool(cfg.TEST.CALIBRATE)
    if run.plan.hostile is not None and run.plan.hostile.trigger is not None:
        from fedvlm.evaluation import backdoor  # start-up: runs with attackers only

        trigger = run.plan.hostile.trigger
        stamped = Batches(backdoor.Stamped(test, trigger.stamp), size, model.device)
        meter.backdoor = backdoor.Backdoor(stamped, data.labels, trigger.target)
    federation = Federation(
        run.trainer, model, batcher, run.plan, engine=run.engine, meter=meter, proxy=run.proxy,
        budget=run.budget, plateau=make_plateau(cfg, run.plan, run.start.roster), start=run.start,
    )
    if cached:
        refuse_unequal_streams(cfg, federation, train, plain, train_images(data))
    notes = [
        *data.notes, *pack_notes(data.samples, run.backbone), *model.notes, *run.remarks,
    ]
    return Built(
        cfg, data, run.backbone, model, federation, meter, test, run.loader, run.identity, notes
    )


def check_targets(
    cfg: CfgNode, trainer: Trainer, data: FederatedData, model: VLModel
) -> None:
    """Refuse targets or class weights that the method or engine cannot use (``ConfigError``)."""
    if cfg.OPTIM.CLASS_WEIGHTS != NO_WEIGHTS:
        trainer.check_weights(cfg.OPTIM.CLASS_WEIGHTS)
    if data.captioned:
        from fedvlm.job.images import texts  # start-up: for captions only

        texts.check_text_tower(model.backbone)
    if data.client_templates:
        check_client_texts(cfg, trainer)
    if model.has_text:
        model.check_texts()
    if isinstance(model.backbone.transform_spec, TextSpec):
        _check_passages(cfg, trainer, model)
    if data.label_sets is None:
        return
    trainer.check_sets()
    if cfg.FED.ENGINE != "local":
        raise ConfigError(
            f"FED.ENGINE {cfg.FED.ENGINE}: what another process tells of its clients is checked "
            "as counts of right answers, which sets of labels (DATASET.LABELS) do not have: use "
            "--engine local")
    if cfg.FED.HOSTILE and cfg.FED.ATTACK in ("label_flip", "backdoor"):
        raise ConfigError(
            f"FED.ATTACK {cfg.FED.ATTACK} changes the class of an image, and these images have "
            "sets of labels (DATASET.LABELS): choose sign, scale, constant or alie")


def check_client_texts(cfg: CfgNode, trainer: Trainer) -> None:
    """Refuse templates of clients that method or engine cannot use (``ConfigError``)."""
    trainer.check_templates()
    if cfg.FED.ENGINE != "local":
        raise ConfigError(
            f"FED.ENGINE {cfg.FED.ENGINE}: another process would read the same templates for all "
            "clients, and DATASET.TEMPLATES has those of single clients: use --engine local")
    refuse_targets("DATASET.TEMPLATES with the key 'clients'", captions=cfg.DATASET.CAPTIONS)


def _check_passages(cfg: CfgNode, trainer: Trainer, model: VLModel) -> None:
    """Refuse what needs pixels where samples are texts (``ConfigError``)."""
    trainer.require(
        "pixels" not in trainer.streams(model),
        f"{trainer.name} with these settings reads pixels, and the samples are texts: choose a "
        "setting or a method that works on features (fedvlm list METHOD), or images",
    )
    if cfg.FED.HOSTILE and cfg.FED.ATTACK == "backdoor":
        raise ConfigError("FED.ATTACK backdoor draws a mark into images, and the samples are "
                          "texts: choose another attack, such as label_flip")


def balance_of(
    cfg: CfgNode, labels: np.ndarray, clients: Sequence[Split], classes: int,
    sets: np.ndarray | None = None,
) -> Balance | None:
    """Return what classes count in clients' losses (``OPTIM.CLASS_WEIGHTS``); None: the same."""
    if cfg.OPTIM.CLASS_WEIGHTS == NO_WEIGHTS:
        return None
    from fedvlm.federation.local.balance import Balance  # start-up: for class weights only

    return Balance(cfg.OPTIM.CLASS_WEIGHTS, labels, clients, classes, sets)


def label_table(data: FederatedData, model: VLModel) -> torch.Tensor | None:
    """Return the sets of labels ``[S, C]`` where the model works; None: one class per image."""
    if data.label_sets is None:
        return None
    return torch.from_numpy(data.label_sets.copy()).to(model.device, model.dtype)


def _marks(
    cfg: CfgNode, loader: ImageLoader, trainer: Trainer, names: Iterable[str]
) -> list[str]:
    marks = [f"training views per image: {loader.views}"]
    if cfg.MODEL.BACKBONE.NAME == "tiny":
        marks.append("embedded tiny backbone: not comparable with papers")
    if not cfg.MODEL.BACKBONE.PRETRAINED:
        marks.append("random backbone weights: accuracies are meaningless")
    if cfg.TEST.TARGETS and not trainer.open_vocabulary:
        marks.append(f"{trainer.name} cannot predict unseen classes: TEST.TARGETS does not apply")
    if cfg.FED.UNSEEN_CLIENTS:
        marks.append(f"{cfg.FED.UNSEEN_CLIENTS} clients never train (FED.UNSEEN_CLIENTS)")
    if cfg.FED.MIN_IMAGES:
        marks.append(f"clients with fewer than {cfg.FED.MIN_IMAGES} training images never train "
                     "(FED.MIN_IMAGES)")
    words = unreliable_of(cfg).words()
    if words:
        marks.append(f"simulated unreliable clients: {words} (docs/unreliable.md)")
    if cfg.FED.PATIENCE and cfg.OPTIM.LR_SCHEDULER != "constant" and cfg.OPTIM.CLOCK == "run":
        marks.append(f"OPTIM.LR_SCHEDULER {cfg.OPTIM.LR_SCHEDULER} counts on {cfg.FED.ROUNDS} "
                     "rounds: a run that --rounds auto stops earlier has not come to its end")
    if cfg.FAST:
        marks.append("CUDA kernels in no fixed order (--fast): a repeated or resumed run is equal "
                     "within rounding, not to the bit")
    used = {role_of(name) for name in names}
    marks += [f"OPTIM.{role.upper()} is set, but no tensor is of this role: it has "
              f"{', '.join(sorted(used)) or 'none'}" for role in roles_of(cfg) if role not in used]
    if cfg.FED.AGGREGATOR != AUTO:
        marks.append(f"aggregation: {cfg.FED.AGGREGATOR}")
    if cfg.FED.SERVER_OPTIM != NONE:
        marks.append(f"server optimiser: {cfg.FED.SERVER_OPTIM}")
    if trainer.extra_data:
        marks.append(f"extra data: {trainer.extra_data}")
    usual = {k: o.default for k, o in default_schema().items() if k.startswith("PEFT.")}
    if not takes_peft(type(trainer)) and any(flat(cfg)[k] != v for k, v in usual.items()):
        marks.append(f"{trainer.name} defines its own trainable tensors: PEFT (--peft) has no "
                     "effect")
    return marks
