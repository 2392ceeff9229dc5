"""A new client: a personal model from a run's shared one, by the method's own final phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from yacs.config import CfgNode

from fedvlm.api.evaluate import bare_notes, files_or_arrays, labels_known, read_own, same_classes
from fedvlm.api.model import Model
from fedvlm.api.rebuild import (
    Rebuilt,
    begin_from,
    rebuild,
    run_digest,
    run_folder,
    whole_argument,
)
from fedvlm.core.errors import ConfigError, DataError, fold, plural
from fedvlm.core.trees import Tree, unstack
from fedvlm.data.columns.label_sets import label_name
from fedvlm.data.datum import Datum, labels_of, refuse_targets
from fedvlm.data.federated import number_sets
from fedvlm.data.image_records import ImageRecords, records_of
from fedvlm.data.images import ImageLoader, find_broken, say_broken
from fedvlm.data.own.add import LABELS, OwnSet
from fedvlm.evaluation.label_rows import fix, set_row
from fedvlm.evaluation.metrics import accuracy
from fedvlm.evaluation.rankings import HALF
from fedvlm.export.trained import Facts
from fedvlm.federation.batches import IndexSplit, SplitBatcher
from fedvlm.federation.discovery import Trust
from fedvlm.federation.rounds import Federation, FedState
from fedvlm.job.build import balance_of, views_of
from fedvlm.job.images.texts import refuse_made
from fedvlm.job.sources import pixel_sources
from fedvlm.models.vlmodel import VLModel
from fedvlm.runs.verify.answer import measure_name

NEW = 0  # the only client there is


def adapt(
    run: str | Path, images: str | Path, *, epochs: int | None = None, device: str = "auto",
    weights: str = "", trainer: str = "", trust_code: str = "", round: int | None = None,
    labels: str = "", columns: str = "",
) -> tuple[Model, list[str]]:
    """Return a personal model for images that the run has never seen, and what is to be said.

    The client is one that never worked: it receives the shared model and is personalised as the
    method personalises after its last round. Nothing of the run changes.

    Args:
        run: a run folder.
        images: a folder or table of labelled images, of classes that the run knows. Where it has
            a test part, else a validation part, that gives the accuracy before and after; without
            parts all images train. Of sets of labels the validation part fixes the thresholds.
        epochs: of fine-tuning; None: as the run's settings say, the method's own by default.
        labels: columns of sets of labels in a table; empty: the run's, where it has such.
        columns: what others of a table mean (``DATASET.COLUMNS``).
        device, weights, trainer, trust_code, round: see ``fedvlm.load``.

    Raises:
        ConfigError: the folder has classes that the run does not know, ``epochs`` is no number
            from 0 on, or the method has no model for a new client.
        DataError: no run folder, or no labelled images.
    """
    changes = {} if epochs is None else {
        "FED.FINETUNE_EPOCHS": str(whole_argument("epochs", epochs, 0))}
    base = rebuild(run_folder(run), device, weights, changes, Trust(trainer, trust_code), round)
    if base.federation.model.client_templates:  # a new client has everybody's
        base.federation.model = base.federation.model.fresh()
    model = base.federation.model
    refuse_targets("fedvlm adapt", captions=base.cfg.DATASET.CAPTIONS)
    asked = labels or str(base.cfg.DATASET.LABELS)
    own = read_own(images, asked, columns)
    table = _table(model, own)
    if not own.data.train_x:
        raise DataError(f"{own.data.name} has no training images to adapt to: its split column "
                        "names no line 'train'; without that column all images train")
    parts, broken = _decodable(own, base.cfg)
    samples = [_renumbered(d, table) for part in parts.values() for d in part]
    refuse_made(map(ImageRecords(None).content_key, samples), model.backbone)
    edges = np.cumsum([0, *(len(part) for part in parts.values())])
    split = IndexSplit(*(np.arange(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)))
    federation, batcher = _alone(base, samples, split)
    state = FedState(federation.plan.rounds, base.state.server)
    rows = _personal(base, federation, state)
    params, shared = unstack(rows, 1)[0], unstack(federation.shared(state), 1)[0]
    notes = [own.sentence, *own.decided, *broken]
    if len(split.train) == len(samples):
        notes.append(f"there is no test part: all {len(samples)} images are training images")
    notes += bare_notes(len(own.data.unlabelled))
    notes += _said(federation, params, shared)
    at = f"round {base.state.round} of {base.cfg.FED.ROUNDS}"
    notes += [f"{at}, as asked for"] if round is not None else []
    words = f"{own.data.name}, {plural(len(split.train), 'training image')}"
    facts = Facts("a new client", words, notes=(f"adapted from {Path(run).name}, {at}",),
                  run=run_digest(run_folder(run)))
    adapted = Model(federation.trainer, model, params, "a new client", facts)
    if model.sets and len(split.val):  # thresholds as a client of the run has them
        fixed = fix(*_said_of(adapted, samples, split.val))
        facts = replace(facts, temperature=fixed.temperature,
                        thresholds=tuple(fixed.thresholds.tolist()))
    elif model.sets:
        notes.append("there are no validation images (a split column): temperature 1 and all "
                     f"thresholds at {HALF:g}")
    said, metrics = _measured(
        Model(federation.trainer, model, shared, "global"), adapted, samples, split)
    facts = replace(facts, metrics=metrics, images=len(split.test) if metrics else 0)
    return Model(federation.trainer, model, params, "a new client", facts), [*notes, *said]


def _decodable(own: OwnSet, cfg: CfgNode) -> tuple[dict[str, list[Datum]], list[str]]:
    """Return each part's images that decode, and a note that names the others, as a run does.

    Raises:
        DataError: no training image does, or some do not under ``refuse`` (DATASET.ON_CORRUPT).
    """
    data = own.data
    places, lines = find_broken(data.parts, records_of(data.all(), cfg))
    notes = say_broken(data.name, lines, cfg.DATASET.ON_CORRUPT)
    parts = {part: [one for i, one in enumerate(items) if i not in set(places[part])]
             for part, items in data.parts.items()}
    if not parts["train"]:
        raise DataError(f"{data.name}: {notes[0]}: there is no other training image")
    return parts, notes


def _table(model: VLModel, own: OwnSet) -> list[int]:
    """Return the run's number of each class, or label, of the images."""
    data = own.data
    if not model.sets:
        refuse_targets("this run", sets=data.label_names)
        table = same_classes(model.classnames, data.classnames)
        if table is not None:
            return table
        known = same_classes(data.classnames, model.classnames) or ()
        strange = [n for n in data.classnames if same_classes(model.classnames, [n]) is None]
        raise ConfigError(
            f"{data.name} has {len(strange)} classes that the run does not know (first: "
            f"{strange[0]}; {len(known)} of {len(data.classnames)} are the same): a new client "
            f"shares the run's classes, {', '.join(model.classnames[:3])}, ..."
        )
    table = labels_known(model.classnames, data.label_names, data.name)
    columns = str(own.keys.get(LABELS, ""))
    flags = "," in columns or [fold(label_name(columns))] == [fold(n) for n in data.label_names]
    if flags and len(table) < len(model.classnames):
        missing = next(n for i, n in enumerate(model.classnames) if i not in table)
        raise DataError(f"{data.name} has no column for the label '{missing}', which the run has: "
                        "without it an image that has the label would be trained as one without")
    return table


def _renumbered(datum: Datum, table: Sequence[int]) -> Datum:
    """Return an image under the run's numbers of classes or labels."""
    if datum.labels is None:
        return replace(datum, label=table[datum.label])
    return replace(datum, labels=tuple(sorted(table[i] for i in datum.labels)))


def _alone(
    base: Rebuilt, samples: Sequence[Datum], split: IndexSplit
) -> tuple[Federation, SplitBatcher]:
    """Return a federation of one client that never worked, over the run's method and towers."""
    cfg, old = base.cfg, base.federation
    model, trainer = old.model, old.trainer
    loader = ImageLoader(
        list(samples), model.backbone.transform_spec, views_of(cfg), int(cfg.DATA_SEED),
        crop_scale=tuple(cfg.INPUT.RRCROP_SCALE),
    )
    labels, sets, held = labels_of(samples), None, None
    if model.sets:
        labels, sets = number_sets(samples, len(model.classnames))
        held = torch.from_numpy(sets.copy()).to(model.device, model.dtype)
    train, test = pixel_sources(loader, torch.from_numpy(labels.copy()))
    batcher = SplitBatcher(
        train, [split], int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE), int(cfg.SEED), loader.views,
        old.plan.epochs, model.device, model.dtype, plain=test, sets=held,
        balance=balance_of(cfg, labels, [split], len(model.classnames), sets),
    )
    plan = replace(old.plan, clients=1, unseen=())
    federation = Federation(trainer, model, batcher, plan, engine=old.engine)
    begin_from(federation, old.p0)  # the run's own, not this machine's
    return federation, batcher


def _personal(base: Rebuilt, federation: Federation, state: FedState) -> Tree:
    """Return the new client's model ``[1, ...]``."""
    try:
        ((_, rows),) = federation.personal(state, [NEW])
    except KeyError as error:
        if not base.state.held:
            raise
        raise ConfigError(
            f"{federation.trainer.name}: its server keeps tensors for each client ({error}) "
            "and has none for a new client: only clients of the run have a model"
        ) from error
    return rows


def _said(federation: Federation, params: Tree, shared: Tree) -> list[str]:
    """Return what the personal phase was, in a sentence."""
    epochs = federation.finetuning.epochs
    if epochs:
        return [f"{epochs} epochs of fine-tuning, as after the last round"]
    same = params.keys() == shared.keys() and all(
        torch.equal(v, shared[n]) for n, v in params.items()
    )
    if same:
        return [
            f"{federation.trainer.name} has no final phase: the model is the shared one; "
            "fine-tune it with --epochs N"
        ]
    return [f"personalised as {federation.trainer.name} does after the last round"]


def _measured(
    shared: Model, adapted: Model, samples: Sequence[Datum], split: IndexSplit
) -> tuple[list[str], dict[str, float]]:
    """Return what both models reach on the test images, else on those of validation, in words.

    A model's facts name what it reaches on test images only.
    """
    part, held = ("test", split.test) if len(split.test) else ("validation", split.val)
    sets = adapted.model.sets
    if not len(held):
        return [], {}
    if sets and not any(samples[int(i)].labels for i in held):
        return [f"{len(held)} {part} images: none has a label, so there is no mAP"], {}
    what = measure_name(sets)
    before, after = _accuracy(shared, samples, held), _accuracy(adapted, samples, held)
    return [f"{len(held)} {part} images: {f'{what} ' if sets else ''}{before:.1f} before, "
            f"{after:.1f} after"], {what: after} if part == "test" else {}


def _accuracy(model: Model, samples: Sequence[Datum], at: np.ndarray) -> float:
    """Return the accuracy of images in percent, of sets of labels mAP."""
    if model.model.sets:
        value = set_row(-1, *_said_of(model, samples, at))["accuracy"]
    else:
        chosen = [samples[int(i)] for i in at]
        value = accuracy(labels_of(chosen), model.predict(files_or_arrays(chosen)).labels)
    if value is None:
        raise DataError("there are no images with a label to measure on")
    return float(value)


def _said_of(
    model: Model, samples: Sequence[Datum], at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sets of labels of images and the model's logits, both ``[n, C]``."""
    chosen = [samples[int(i)] for i in at]
    numbers, sets = number_sets(chosen, len(model.classnames))
    return sets[numbers], model.predict(files_or_arrays(chosen)).logits.double().numpy()
