"""The clients of a run with the same flags, as frozen features; no test image is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.advise.judges import Dealt
from fedvlm.config.engines import of_parties
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.progress import Progress
from fedvlm.core.trees import in_double
from fedvlm.data.datasets import untested_words
from fedvlm.data.datum import IntArray, refuse_client_texts, refuse_targets
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.data.images import ImageLoader
from fedvlm.federation.plan import draw_unseen
from fedvlm.job.build import check_model, pick_device
from fedvlm.job.inputs import Inputs
from fedvlm.job.sources import features_of
from fedvlm.models.features.decode import Throughput
from fedvlm.models.vlmodel import VLModel

# Partitions that deal images whatever they show, but for their class.
SIMULATED = ("iid", "quantity", "disjoint", "n_classes", "dirichlet", "superclass_dirichlet")
IN_DOMAINS = "domain_dirichlet"


@dataclass(frozen=True)
class Gathered:
    """Training and validation images of clients, as one tower sees them.

    Attributes:
        name: of the data set.
        ids: of each client, its name in the data, that of its domain, or its number in a run.
        classnames: by label.
        features: of each client ``[n, d]``, float64, as the tower gives them.
        labels: of each client ``[n]`` int64.
        trains: of each client ``[n]`` bool: a training image; the others are for validation.
        groups: of each client, numbers ``[n]``; an image without a group is alone in its own, with
            others of the same bytes.
        names: logits ``[n, C]`` of the class names in the set's template; None without text tower.
        grouped: whether the data say which images belong together.
        notes: of the data.
        sets: where an image has a set of labels, the sets that occur ``[S, C]``; ``classnames``
            are then the labels, and ``labels`` numbers of sets.
        bare: names of clients that have only images without a label; nothing is judged of them.
        anchor: what scores an image of unit length by class names ``[C, d]``, as ``names`` does;
            None without text tower, and of sets of labels.
        dealt: how a simulation deals images; None of clients that the data name.
        named: whether the data name the clients; else a simulation deals images to them.
    """

    name: str
    ids: Sequence[str]
    classnames: Sequence[str]
    features: Sequence[Tensor]
    labels: Sequence[Tensor]
    trains: Sequence[Tensor]
    groups: Sequence[IntArray]
    names: Sequence[Tensor] | None
    grouped: bool
    notes: Sequence[str]
    sets: NDArray[np.uint8] | None = None
    dealt: Dealt | None = None
    bare: Sequence[str] = ()
    anchor: Tensor | None = None
    named: bool = False


def gather_clients(cfg: CfgNode, progress: Progress | None = None) -> Gathered:
    """Return the clients of the run of a config; what is not in the feature cache is encoded.

    Raises:
        ConfigError: images that are at their sites, or whatever of the config cannot work.
        DataError: missing or broken data.
    """
    if of_parties(cfg):
        raise ConfigError(
            f"advise needs the images of all clients in one place; drop --engine {cfg.FED.ENGINE}"
        )
    refuse_targets("fedvlm advise", captions=cfg.DATASET.CAPTIONS)
    data = build_federation(cfg, progress, tested=False)
    refuse_client_texts("fedvlm advise", data.client_templates)
    device = pick_device(cfg.DEVICE)
    check_model(cfg, device)
    backbone = Inputs().backbone(cfg, device)
    model = VLModel(backbone, data.classnames, templates=data.templates,
                    sets=data.label_sets is not None)
    loader = ImageLoader(
        data.samples, backbone.transform_spec, 1, int(cfg.DATA_SEED), records=data.records
    )
    if backbone.text_images:
        from fedvlm.job.images import texts  # start-up: for a simulated text tower only

        texts.check_simulated(cfg, map(loader.content_key, range(len(loader))), backbone)
    away = set(draw_unseen(
        len(data.clients), int(cfg.FED.UNSEEN_CLIENTS), int(cfg.DATA_SEED),
        int(cfg.FED.MIN_IMAGES), [len(c.train) for c in data.clients],
    ))
    there = [k for k in range(len(data.clients)) if k not in away]
    names = _names(data)
    here = [data.clients[k] for k in there]
    own = [np.concatenate([c.train, c.val]) for c in here]
    every = np.unique(np.concatenate(own))
    if len(every) < 2:
        raise DataError(f"{data.name}: there are fewer than two training images")
    notes = [f"in the run that is proposed, {words}" for words in [
        untested_words(data.untested, data.client_names)] if words]
    rows = features_of(
        cfg, backbone, loader, progress, Throughput(), notes, every.tolist(), None
    )
    said = [data.samples[i].group for i in every]
    keys = [("group", one) if one is not None else ("image", loader.content_key(int(i)))
            for i, one in zip(every, said, strict=True)]
    numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    groups = np.array([numbers[key] for key in keys], dtype=np.int64)
    at = [np.searchsorted(every, some) for some in own]
    logits = _name_logits(model, rows) if backbone.has_text else None
    anchor = None
    if logits is not None and data.label_sets is None:
        anchor = _name_logits(model, torch.eye(rows.shape[1])).mT
    return Gathered(
        data.name, [names[k] for k in there],
        data.classnames,
        [in_double(rows[torch.from_numpy(a)].cpu()) for a in at],
        [torch.from_numpy(data.labels[some].copy()) for some in own],
        [torch.arange(len(a)) < len(c.train) for a, c in zip(at, here, strict=True)],
        [groups[a] for a in at],
        None if logits is None else [logits[torch.from_numpy(a)] for a in at],
        any(one is not None for one in said), [*data.notes, *notes], data.label_sets,
        _dealt(data, there), [names[k] for k in data.without_labels], anchor,
        data.spec.kind == "natural",
    )


def _names(data: FederatedData) -> list[str]:
    """Return the clients' names in the data, else of a domain for each, else their numbers."""
    domains = [c.domain for c in data.clients]
    apart = all(domains) and len(set(domains)) == len(domains)
    return data.client_names or (domains if apart else [str(k) for k in range(len(domains))])


def _dealt(data: FederatedData, there: Sequence[int]) -> Dealt | None:
    """Return ``Gathered.dealt``: test images are counted by class, none is opened."""
    kind = data.spec.kind
    if kind not in (*SIMULATED, IN_DOMAINS) or data.label_sets is not None:
        return None
    clients = [data.clients[k] for k in there]
    counts = np.stack([np.bincount(data.labels[c.test if len(c.test) else c.train],
                                   minlength=len(data.classnames)) for c in clients])
    return Dealt(counts / counts.sum(1, keepdims=True).clip(min=1), [
        c.domain if kind == IN_DOMAINS else "" for c in clients])


def _name_logits(model: VLModel, rows: Tensor) -> Tensor:
    """Return the logits ``[n, C]`` of the template prompt, on the host."""
    with torch.no_grad():
        anchor = model.anchor("template", n_ctx=0).unsqueeze(0)
        parts = [model.logits(z.to(anchor.device, anchor.dtype).unsqueeze(0), anchor)[0]
                 for z in rows.split(4096)]
    return torch.cat(parts).double().cpu()
