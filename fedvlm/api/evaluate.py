"""Trained models on labelled images that their run never saw: another set, or a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from fedvlm.api.model import Model, Predictions
from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import DataError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.data.datasets import load_dataset, templates
from fedvlm.data.datum import DatasetBase, Datum, refuse_targets
from fedvlm.data.federated import number_sets
from fedvlm.data.formats.folders import OWN_CUT
from fedvlm.data.image_records import ImageRecords, records_of
from fedvlm.data.images import ImageLoader, decodable
from fedvlm.data.locate import first_names
from fedvlm.data.own.add import CAPTIONS, COLUMNS, LABELS, OwnSet, understand, without_flags
from fedvlm.data.targets import set_config
from fedvlm.evaluation.label_rows import MEASURE, Fixed, set_row
from fedvlm.evaluation.metrics import accuracy, macro_f1
from fedvlm.evaluation.rankings import HALF, one_against_rest
from fedvlm.job.images.packed import check_packs, packed_features, packs_of
from fedvlm.job.images.texts import refuse_made

CUT = "DATASET.TEST_SHARE"  # of a folder that has no test part of its own


@dataclass(frozen=True)
class Labelled:
    """Images with labels.

    Attributes:
        name: of the set.
        samples: what is looked at.
        classnames: by label; of sets of labels the labels.
        templates: prompts of the set, with ``{}``.
        sets: whether an image has a set of labels.
        captioned: whether images have captions.
        part: whose images these are: ``test``, ``val`` where there is no test part, ``train``
            where there are no parts, so that all are looked at.
        bare: how many more have no label, and are not looked at.
        total: images of all parts.
        left_out: how many of the part do not decode, and are not looked at; ``notes`` say which.
    """

    name: str
    samples: Sequence[Datum]
    classnames: tuple[str, ...]
    templates: tuple[str, ...]
    sets: bool = False
    captioned: bool = False
    part: str = "test"
    bare: int = 0
    total: int = 0
    left_out: int = 0
    notes: tuple[str, ...] = ()


def of_dataset(word: str, cfg: CfgNode, root: str = "") -> Labelled:
    """Return the test images of a data set.

    Args:
        word: its name or config file.
        cfg: of the run, whose root holds unless ``root`` names another.

    Raises:
        ConfigError: an unknown name.
        DataError: it is not there, has no test images, or some do not decode under ``refuse``
            (DATASET.ON_CORRUPT).
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATASET.ROOT = root or cfg.DATASET.ROOT
    node = set_config(word, cfg, "--dataset")
    refuse_targets(
        f"--dataset {word}", sets=node.DATASET.LABELS, captions=node.DATASET.CAPTIONS)
    data = load_dataset(node)
    return _readable(_labelled(data, data.test, templates(node)), cfg)


def of_folder(
    folder: str | Path, labels: str = "", columns: str = "", captions: str = "",
    run: CfgNode | None = None,
) -> Labelled:
    """Return the test images of a folder of your own, else those of val, else all.

    Args:
        labels: columns that hold sets of labels (``DATASET.LABELS``); empty: one class per image.
        columns: what others of a table mean (``DATASET.COLUMNS``).
        captions: columns that hold captions (``DATASET.CAPTIONS``), for a run on captions.
        run: the run's config, which says what is done about images that do not decode.

    Raises:
        DataError: it is no folder of labelled images, or some do not decode under ``refuse``.
    """
    own = read_own(folder, labels, columns, captions)
    part = next(part for part in ("test", "val", "train") if own.data.parts[part])
    cfg, _ = build_config(None, None, own.keys, [], default_schema())
    tests = replace(_labelled(own.data, own.data.parts[part], templates(cfg)), part=part,
                    bare=len(own.data.unlabelled), total=sum(map(len, own.data.parts.values())))
    return _readable(tests, run or cfg)


def _readable(tests: Labelled, cfg: CfgNode) -> Labelled:
    """Return a set without the images that do not decode, as a run does (``DataError``)."""
    kept, notes = decodable(
        tests.name, tests.samples, records_of(tests.samples, cfg), cfg.DATASET.ON_CORRUPT)
    if not kept:
        raise DataError(f"{tests.name}: {notes[0]}: there is no other image")
    return replace(tests, samples=kept, left_out=len(tests.samples) - len(kept),
                   notes=tuple(notes))


def read_own(
    folder: str | Path, labels: str = "", columns: str = "", captions: str = ""
) -> OwnSet:
    """Return images of your own as they are: without a split, all are in ``train``.

    Raises:
        DataError: as ``of_folder``.
    """
    words = {LABELS: labels, COLUMNS: columns, CAPTIONS: captions}
    given = {key: word for key, word in words.items() if word}
    lacking = ("captions",) if labels else ("captions", "labels")
    with without_flags("this run", *lacking):
        own = understand(user_path(folder), given, whole=False)
    if CUT in own.keys or any(note.endswith(OWN_CUT) for note in own.data.notes):
        own.data.parts |= {"train": own.data.all(), "val": [], "test": []}
    return own


def bare_notes(bare: int) -> list[str]:
    """Return what is said of images without a label."""
    return [f"{bare:,} images without a label are not used"] if bare else []


def _answers(model: Model, tests: Labelled) -> Predictions:
    """Return what a model says of the images, or of their features in packs."""
    if not packs_of(tests.samples):
        return model.predict(files_or_arrays(tests.samples))
    backbone = model.model.backbone
    loader = ImageLoader(tests.samples, backbone.transform_spec)
    check_packs(model.trainer, model.model, loader)
    whole = [i for i, d in enumerate(tests.samples) if not d.packed or not d.packed.fault]
    if len(whole) < len(tests.samples):
        raise DataError(f"{tests.name}: {len(tests.samples) - len(whole)} of its test images "
                        "could not be decoded when the pack was made; give the images with --root")
    return model.predict_features(packed_features(loader, whole, None, backbone))


def files_or_arrays(samples: Sequence[Datum]) -> list[Any]:
    """Return images as ``Model`` takes them."""
    return [d.path if d.array is None else d.array for d in samples]


def _labelled(data: DatasetBase, samples: Sequence[Datum], prompts: Sequence[str]) -> Labelled:
    if not samples:
        raise DataError(f"{data.name} has no test images")
    names = data.label_names or data.classnames
    return Labelled(data.name, samples, tuple(names), tuple(prompts), bool(data.label_names),
                    data.captioned)


def same_classes(ours: Sequence[str], theirs: Sequence[str]) -> list[int] | None:
    """Return our label of each of their classes; None unless we have them all."""
    known = {fold(name): label for label, name in enumerate(ours)}
    labels = [known.get(fold(name), -1) for name in theirs]
    return None if -1 in labels else labels


def evaluate(models: Mapping[str, Model], tests: Labelled) -> tuple[list[dict[str, Any]], str]:
    """Return a row of numbers per model, and which classes it chose from, in words.

    A row's ``classes`` has a row for each class with an image: ``images``, and in percent
    ``sensitivity``, ``specificity`` and ``auroc`` against all other classes.

    Where the models know all the set's classes they choose from their own, as in their run;
    otherwise from the set's.

    Raises:
        ConfigError: other classes, and a method that is bound to its own; a feature pack that is
            another backbone's, or lacks what the method looks at.
    """
    first = next(iter(models.values()))
    refuse_made(map(ImageRecords(None).content_key, tests.samples), first.model.backbone)
    if first.facts.captioned:
        return _evaluate_captions(models, tests)
    refuse_targets("this run", captions=tests.captioned)
    if first.model.sets:
        return _evaluate_sets(models, tests)
    refuse_targets("this run", sets=tests.sets)
    table = same_classes(first.classnames, tests.classnames)
    if table is None and len(tests.classnames) < 2:
        raise DataError(f"{tests.name} has one class only, {tests.classnames[0]}, which the run "
                        f"does not know{did_you_mean(tests.classnames[0], first.classnames)}: its "
                        f"classes are {first_names(first.classnames)}")
    own = np.array([d.label for d in tests.samples])
    true = own if table is None else np.array(table)[own]
    rows = []
    for name, model in models.items():
        asked = model
        if table is None:
            asked = model.with_classes(tests.classnames, tests.templates)
        said = _answers(asked, tests)
        labels = said.labels
        rows.append({
            "model": name, "images": len(own), "correct": int((labels == true).sum()),
            "accuracy": accuracy(true, labels), "macro_f1": macro_f1(true, labels),
            "classes": _by_class(said, true),
        })
    classes = (
        f"{tests.name} has other classes: predictions are among its {len(tests.classnames)} "
        "classes, and that set's prompts take the place of the run's"
        if table is None else f"predictions are among the run's {len(first.classnames)} classes"
    )
    return rows, classes


def _evaluate_captions(
    models: Mapping[str, Model], tests: Labelled
) -> tuple[list[dict[str, Any]], str]:
    """Return ``evaluate`` of models trained on captions: recall both ways, over all the images."""
    from fedvlm.evaluation.caption_rows import recalls  # start-up: for captions only
    from fedvlm.models.features.texts import encode_captions  # start-up: for captions only

    if not tests.captioned:
        raise DataError(f"{tests.name} has no captions, and the run was trained on captions "
                        "(DATASET.CAPTIONS): give a table, and its column with --captions")
    texts = [text for d in tests.samples for text in d.captions]
    counts = torch.tensor([len(d.captions) for d in tests.samples])
    place = {text: i for i, text in enumerate(dict.fromkeys(texts))}  # equal texts: equal bits
    known = encode_captions(next(iter(models.values())).model.backbone, list(place)).float()
    known = known[[place[text] for text in texts]]
    rows = []
    for name, model in models.items():
        found = recalls(model.features(files_or_arrays(tests.samples)), known, counts)
        rows.append({"model": name, "images": len(counts), "captions": len(texts),
                     "recall@1": found.pop("accuracy"), **found})
    return rows, (f"each image is searched among all {len(texts):,} captions, each caption among "
                  f"all {len(counts):,} images; recall@1 is the mean of i2t_r1 and t2i_r1. Fewer "
                  "are easier to search: compare models on one table")


def _by_class(said: Predictions, true: np.ndarray) -> list[dict[str, Any]]:
    """Return a row for each class that an image has."""
    numbers = one_against_rest(true, said.labels, said.probabilities)
    return [
        {"class": name, "images": int((true == c).sum())} | {
            what: None if np.isnan(each[c]) else 100.0 * float(each[c])
            for what, each in zip(("sensitivity", "specificity", "auroc"), numbers, strict=True)}
        for c, name in enumerate(said.classnames) if (true == c).any()
    ]


def labels_known(ours: Sequence[str], theirs: Sequence[str], name: str) -> list[int]:
    """Return our number of each of their labels.

    Raises:
        DataError: a label that the run does not know.
    """
    for label in theirs:
        if same_classes(ours, [label]) is None:
            raise DataError(f"{name} has the label '{label}', which the run does not know"
                            f"{did_you_mean(label, ours)}: its labels are {', '.join(ours)}")
    return same_classes(ours, theirs) or []


def _evaluate_sets(
    models: Mapping[str, Model], tests: Labelled
) -> tuple[list[dict[str, Any]], str]:
    """Return ``evaluate`` of models over sets of labels, on the labels that the set has."""
    first = next(iter(models.values()))
    if not tests.sets:
        raise DataError(f"{tests.name} has one class for each image, and the run sets of labels "
                        "(DATASET.LABELS): give a table, and its columns with --labels")
    at = labels_known(first.classnames, tests.classnames, tests.name)
    truth = number_sets(tests.samples, len(at))
    held = truth[1][truth[0]]
    rows = []
    for name, model in models.items():
        said, facts = _answers(model, tests), model.facts
        thresholds = facts.thresholds or (HALF,) * len(first.classnames)
        row = set_row(-1, held, said.logits.double().numpy()[:, at],
                      Fixed(facts.temperature, np.array(thresholds)[at]))
        rows.append({"model": name, "images": len(held), MEASURE: row["accuracy"],
                     **{what: row[what] for what in ("auroc", "macro_f1", "sensitivity")}})
    rare = [name for name, n in zip(tests.classnames, held.sum(0), strict=True) if not n]
    none = f" ({first_names(rare)}: on no image, so in no mean)" if rare else ""
    return rows, (f"over {len(at)} of the run's {len(first.classnames)} labels{none}; F1 at the "
                  "thresholds of the client's validation images (0.5 for the global model)")
