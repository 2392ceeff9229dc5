"""One step of gradient descent of a finished run's method, attacked as its server would see it.

A step on all images of a client, and one on a single image, from the untrained start (a run with
FED.LOCAL_STEPS 1): labels, a head's feature in closed form (``leaks``), and features by a search
(``inversion``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedvlm.api.auditing.inversion import (
    FIRST,
    ITERATIONS,
    FeatureStep,
    feature_step,
    labels_of_counts,
    matched_cosine,
    not_inverted,
    seek_features,
)
from fedvlm.api.leaks import counts_of_step, feature_of
from fedvlm.console.screen import progress
from fedvlm.core import rng
from fedvlm.core.trees import Tree, TreeView
from fedvlm.federation.batches import Batch
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.trainer import Trainer
from fedvlm.job.build import Built
from fedvlm.job.record import make_panel
from fedvlm.job.results.private import promises_privacy

HEAD = "head.weight"
STEPS = 8  # clients whose labels are read, and images whose features are
SINGLES = 2  # images that are sought by a search, each in a step of its own
BATCH_STARTS = 2  # searches of a batch; of a single image there are four
DISTURBED = 0.3  # of the standard deviation of features, added to a batch's starts
COST = (f"one step: {SINGLES + 1} searches of at most {4 * FIRST + ITERATIONS} iterations, and for "
        "a prompt as many passes back through the text tower as a feature has numbers")


def step_record(built: Built, seed: int) -> dict[str, Any]:
    """Return what one step of the run's method gives away, ready for JSON; or ``why`` not."""
    federation, data = built.federation, built.data
    why = _no_step(built)
    if why:
        return {"why": why}
    classes, tests = range(len(data.classnames)), np.asarray(data.global_test)
    known = [tests[data.labels[tests] == c] for c in classes]
    if not all(map(len, known)):
        return {"why": "the attacker needs test images of every class"}
    columns = torch.stack([_gradient(built, one) for one in known])
    wrong, guess, images = 0.0, 0.0, 0
    clients = list(make_panel(built).clients)[:STEPS]
    for c in clients:
        train = np.asarray(data.clients[c].train)
        true = np.bincount(data.labels[train], minlength=len(classes))
        found = counts_of_step(_gradient(built, train), columns, len(train))
        wrong += float(np.abs(found - true).sum()) / 2
        guess += float(np.abs(len(train) / len(classes) - true).sum()) / 2
        images += len(train)
    out = {"label_error": wrong / images, "guess_error": guess / images, "clients": len(clients)}
    every = np.concatenate([data.clients[c].train for c in clients])
    chosen = every[rng.numpy_stream(seed, "audit-steps").permutation(len(every))[:STEPS]]
    if list(federation.p0) == [HEAD]:
        cosines = [matched_cosine(_in_closed_form(built, one), _features(built, one))
                   for one in chosen[:, None]]
        out |= {"cosine": min(cosines), "images": len(cosines)}
    largest = max((data.clients[c].train for c in clients), key=len)
    size = int(built.cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
    order = rng.numpy_stream(seed, "audit-batch").permutation(len(largest))[:size]
    return out | {"inversion": _inversion(
        built, known, columns, chosen[:SINGLES], np.asarray(largest)[order], seed)}


def _in_closed_form(built: Built, one: np.ndarray) -> Tensor:
    """Return the feature ``[1, d]`` of the one image of a step of a head."""
    head = built.federation.p0[HEAD].cpu()
    gradient = _gradient(built, one).view_as(head)
    return feature_of(gradient, head, float(built.model.scale))[None]


def _inversion(
    built: Built, known: Sequence[np.ndarray], columns: Tensor, single: np.ndarray,
    batch: np.ndarray, seed: int,
) -> dict[str, Any]:
    """Return the cosines of recovered features to true ones, and of a guess; or ``why`` not.

    The guess is the mean feature of the public images of each image's true class: more than anybody
    knows without the gradient.

    Args:
        known: public images of each class.
        columns: their mean gradients as they are sent, ``[C, P]``.
        single: images that are sought one by one.
        batch: images of one step.
    """
    federation = built.federation
    shared = federation.groups.shared
    why = not_inverted(federation.trainer, shared, federation.p0, built.model)
    if why:
        return {"why": why}
    trainer = cast(PeftTrainer, federation.trainer)
    progress("gradient inversion", 0, SINGLES + 1)
    step = feature_step(trainer, built.model, federation.p0, shared)
    device = built.model.device
    columns = torch.stack([step.seen(one.to(device)) for one in columns]).cpu()
    means = torch.stack([_features(built, one).mean(0) for one in known])
    spread = _features(built, np.concatenate(known)).std(0)
    labels = torch.tensor(built.data.labels)
    out: dict[str, Any] = {"iterations": ITERATIONS}
    found, guesses = [], []
    for number, one in enumerate(single[:, None]):
        progress("gradient inversion", number, SINGLES + 1)
        seen, true = step.seen(_gradient(built, one).to(device)).cpu(), _features(built, one)
        if list(federation.p0) == [HEAD]:
            best = _in_closed_form(built, one)
        else:
            best = recover_one(step, seen, columns, means)
        found.append(matched_cosine(best, true))
        guesses.append(matched_cosine(means[labels[one]], true))
    out["one"] = {"images": 1, "tries": len(found), "cosine": float(np.mean(found)),
                  "guess": float(np.mean(guesses))}
    progress("gradient inversion", SINGLES, SINGLES + 1)
    dice = rng.stream(seed, "audit-inversion")
    seen = step.seen(_gradient(built, batch).to(device)).cpu()
    best = recover_batch(step, seen, columns, means, spread, len(batch), dice)
    true = _features(built, batch)
    out["batch"] = {"images": len(batch), "tries": 1, "cosine": matched_cosine(best, true),
                    "guess": matched_cosine(means[labels[batch]], true)}
    return out


def recover_one(step: FeatureStep, seen: Tensor, columns: Tensor, means: Tensor) -> Tensor:
    """Return the feature ``[1, d]`` of a step on one image.

    Its label is one of the two whose public images have the most similar gradients.

    Args:
        seen: the gradient, as ``FeatureStep.seen`` has it.
        columns: mean gradient of each class over public images, seen so, too, ``[C, ...]``.
        means: their mean features, ``[C, d]``.
    """
    near = F.cosine_similarity(columns, seen[None]).argsort(descending=True, stable=True)[:2]
    middle = means.mean(0, keepdim=True)
    pairs = [(start, c[None]) for c in near for start in (means[c][None], middle)]
    return _search(step, seen, pairs)


def recover_batch(
    step: FeatureStep, seen: Tensor, columns: Tensor, means: Tensor, spread: Tensor, n: int,
    dice: torch.Generator,
) -> Tensor:
    """Return features ``[n, d]``, in no order, of a step on n images.

    Their labels are those that ``counts_of_step`` counts.

    Args:
        seen, columns, means: as ``recover_one`` has them.
        spread: standard deviation of the public features, ``[d]``.
        dice: of what is added to the mean features: equal ones would move alike.
    """
    y = torch.tensor(labels_of_counts(counts_of_step(seen, columns, n), n))
    noise = torch.randn(BATCH_STARTS, n, len(spread), generator=dice)
    return _search(step, seen, [(means[y] + DISTURBED * spread * e, y) for e in noise])


def _search(step: FeatureStep, seen: Tensor, starts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    device = step.model.device
    pairs = [(x.to(device), y.to(device)) for x, y in starts]
    return seek_features(step, seen.to(device), pairs).cpu()


def _no_step(built: Built) -> str:
    """Return why no single step is attacked; empty where it is."""
    federation, method = built.federation, type(built.federation.trainer)
    if promises_privacy(built):
        return "what leaves is noised, and no gradient as it is"
    if built.cfg.FED.SECURE_SUM:
        return "FED.SECURE_SUM: the server sees the sum over all sites, and no client's own step"
    if not federation.groups.shared:
        return "the clients share no tensor"
    if method.client_update is not Trainer.client_update or method.loss is not Trainer.loss:
        return f"{federation.trainer.name} trains by steps of its own, not by plain gradients"
    if tuple(federation.trainer.streams(built.model)) != ("features",):
        return "it trains inside the image tower; no such attack was made"
    return ""


def _fetch(built: Built, samples: np.ndarray) -> Mapping[str, Tensor]:
    """Return the plain streams of some images ``[n, ...]``."""
    return built.test.fetch(torch.tensor(np.asarray(samples, dtype=np.int64)), view=0)


def _features(built: Built, samples: np.ndarray) -> Tensor:
    """Return the true features of some images ``[n, d]``."""
    return _fetch(built, samples)["features"].float().cpu()


def _gradient(built: Built, samples: np.ndarray) -> Tensor:
    """Return the gradient of the method's loss to the shared tensors at the start, flat, [P]."""
    found = gradient_at(built, built.federation.p0, samples)
    return torch.cat([g.flatten() for g in found.values()]).cpu()


def gradient_at(built: Built, at: TreeView, samples: np.ndarray) -> Tree:
    """Return the gradient of the method's mean loss on some images to its shared tensors.

    Args:
        at: the trainable tensors, no client axis.
        samples: ``[n]``.
    """
    federation, model = built.federation, built.model
    x = {name: v.to(model.device)[None] for name, v in _fetch(built, samples).items()}
    y = torch.tensor(built.data.labels[samples])[None].to(model.device)
    params = {n: v.clone()[None].requires_grad_() for n, v in at.items()}
    batch = Batch(x, y, torch.ones_like(y, dtype=model.dtype), counts=(len(samples),))
    value = federation.trainer.loss(model, params, batch)
    loss = value if isinstance(value, Tensor) else value[0]
    names = federation.groups.shared
    found = torch.autograd.grad(loss.sum(), [params[n] for n in names], allow_unused=True)
    return {n: torch.zeros_like(at[n]) if g is None else g[0]
            for n, g in zip(names, found, strict=True)}
