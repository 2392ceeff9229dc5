"""The references of a run: what one gets from the same frozen features without its method.

``alone``: without collaboration. ``chance`` (expected: a class drawn evenly), ``majority`` (the
commonest class of the client's training images, of equals the first), ``zero_shot`` (the dataset's
template prompt), ``zero_shot_local`` (restricted to the classes of the client's training images),
``zero_shot_prior`` (plus the log of the client's class shares, each count one higher: Laplace),
``logreg`` (logistic regression on the client's own features), ``logreg_names`` (the same, which
starts from the logits of the template prompt). ``together``: ``afl``, federated
ridge regression in one round, and ``afl_prior``, the same plus the log of the client's class
shares, which is a personal model without training. ``bound``: ``pooled``, logistic regression on
everybody's training images at one place, which no federation can have.

Of sets of labels ``by_label`` makes them.

Choices (l2) see training and validation images only. Views are plain, the backbone is frozen, no
random number is drawn. A backbone without text tower has no zero-shot references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.stats import mean, population_std, worst
from fedvlm.core.trees import in_double
from fedvlm.evaluation import scores
from fedvlm.evaluation.references.logistic import Frozen, Regression, regressions
from fedvlm.evaluation.scores import Federated, Predictions
from fedvlm.federation.batches import NO_WEIGHTS, IndexSplit
from fedvlm.federation.server import Row
from fedvlm.federation.toolbox import moments
from fedvlm.models.features.sources import SampleSource
from fedvlm.models.vlmodel import VLModel

ALONE, TOGETHER, BOUND = "alone", "together", "bound"
COLUMNS = ("client", "n", "correct", "accuracy", "balanced")
OF_SETS = ("positives", "auroc", "macro_f1", "sensitivity")  # beside, of sets of labels
BATCH = 4096
# Samples x features x classes of the pooled regression; a CPU core takes two minutes for so many.
MOST = {"cpu": 3e9, "cuda": 3e11}


@dataclass(frozen=True)
class Asked:
    """What references are made of.

    Attributes:
        source: plain views of all samples, stream ``features``.
        data: clients and labels.
        clients: whose test images are judged, ascending.
        members: whose training images count together.
        classes: of the setting.
        weights: ``OPTIM.CLASS_WEIGHTS``; logistic regressions count classes by it, as the run does.
    """

    source: SampleSource
    data: Federated
    clients: Sequence[int]
    members: Sequence[int]
    classes: int
    weights: str = NO_WEIGHTS

    @property
    def sets(self) -> np.ndarray | None:
        """The sets of labels ``[S, C]``; None where an image has one class."""
        return getattr(self.data, "label_sets", None)

    @property
    def captioned(self) -> bool:
        """Whether images have captions; nothing but the pretrained model is then asked."""
        return bool(getattr(self.data, "captioned", False))

    def hot(self, samples: np.ndarray) -> Tensor:
        """Return the labels of samples as ``[n, C]`` of 0 and 1, float64."""
        y = self.frozen.y(samples)
        if self.sets is None:
            return F.one_hot(y, self.classes).double()
        return torch.from_numpy(self.sets)[y].double()

    @property
    def frozen(self) -> Frozen:
        """Features and labels."""
        return Frozen(
            self.source, self.data.labels, getattr(self.data, "groups", None), self.weights
        )

    def true(self, client: int) -> np.ndarray:
        """Return the labels of a client's test images."""
        return self.data.labels[np.asarray(self.data.clients[client].test)]

    def counts(self, client: int) -> np.ndarray:
        """Return a client's training images of each class, ``[C]``."""
        train = np.asarray(self.data.clients[client].train)
        return np.bincount(self.data.labels[train], minlength=self.classes)

    def every(self, part: str) -> np.ndarray:
        """Return the members' images of a part, each once, ascending."""
        each = [np.asarray(getattr(self.data.clients[c], part)) for c in self.members]
        return np.unique(np.concatenate(each))


def references(asked: Asked) -> dict[str, dict[str, Any]]:
    """Return the references that need no text tower, by name, as plain JSON (see ``reference``)."""
    frozen, data, clients = asked.frozen, asked.data, asked.clients
    shares = [share_of(data, c) for c in clients]
    each = regressions(frozen, shares)
    tests = np.unique(np.concatenate([s.test for s in shares]))
    ridge = _Ridge.of(asked)
    scored = raw_features(asked, tests) @ ridge.weights
    temper, how = ridge.temper(asked), ridge.how
    return {
        "chance": reference(ALONE, "expected of a class drawn evenly", [
            _chance(c, len(share.test), asked.classes)
            for c, share in zip(clients, shares, strict=True)
        ]),
        "majority": _of(asked, ALONE, "the commonest class of the client's training images", [
            np.full(len(s.test), asked.counts(c).argmax())
            for c, s in zip(clients, shares, strict=True)
        ]),
        "logreg": _of(asked, ALONE, choice_words(each), [one.labels for one in each]),
        "afl": _of(asked, TOGETHER, how, _dealt(_best(scored), tests, shares)),
        "afl_prior": _of(
            asked, TOGETHER, f"{how}; plus {temper:g} times the log of the client's class shares, "
            "chosen on training images left out one by one", [
                _best(scored[np.searchsorted(tests, s.test)]
                      + temper * _prior(asked, c).to(scored))
                for c, s in zip(clients, shares, strict=True)
            ]),
        "pooled": _pooled(asked, tests, shares),
    }


def of_class_names(asked: Asked, model: VLModel) -> dict[str, dict[str, Any]]:
    """Return the references that the text tower gives beside ``template_reference``, by name.

    Sets of labels and captions have none.

    Args:
        model: ``anchor("template", 0)`` is the classifier.
    """
    if asked.sets is not None or asked.captioned:
        return {}
    tests = np.unique(np.concatenate([np.asarray(asked.data.clients[c].test)
                                      for c in asked.clients]))
    readers = template_readers(asked, model)  # texts are encoded once
    local, prior = dict[int, np.ndarray](), dict[int, np.ndarray]()
    for clients, read in readers:
        logits = read(tests).numpy()
        for c in clients:
            here = logits[np.searchsorted(tests, share_of(asked.data, c).test)]
            counts = asked.counts(c)
            local[c] = np.where(counts > 0, here, -np.inf).argmax(1)
            weights = (counts + 1.0) / (counts.sum() + len(counts))
            prior[c] = (here + np.log(weights)).argmax(1)
    each = names_regressions(asked, readers)
    return {
        "zero_shot_local": _of(
            asked, ALONE, "zero-shot among the classes of the client's training images",
            [local[c] for c in asked.clients],
        ),
        "zero_shot_prior": _of(
            asked, ALONE, "zero-shot plus the log of the client's class shares, each count one "
            "higher (Laplace)", [prior[c] for c in asked.clients],
        ),
        "logreg_names": _of(asked, ALONE, f"starts from the class names; {choice_words(each)}",
                            [one.labels for one in each]),
    }


def template_readers(
    asked: Asked, model: VLModel
) -> list[tuple[list[int], Callable[[np.ndarray], Tensor]]]:
    """Return the clients of each template, with what gives the logits ``[n, C]`` of samples."""
    own = bool(getattr(asked.data, "client_templates", None))
    read: dict[VLModel, list[int]] = {}
    for c in asked.clients:
        read.setdefault(model.of_clients([c]) if own else model, []).append(c)
    return [(some, _template_logits(asked.source, reader)) for reader, some in read.items()]


def names_regressions(
    asked: Asked, readers: Sequence[tuple[list[int], Callable[[np.ndarray], Tensor]]]
) -> list[Regression]:
    """Return each client's logistic regression that starts from the logits of its template.

    Args:
        readers: of ``template_readers``.
    """
    found: dict[int, Regression] = {}
    for some, logits in readers:
        shares = [share_of(asked.data, c) for c in some]
        found |= zip(some, regressions(replace(asked.frozen, names=logits), shares), strict=True)
    return [found[c] for c in asked.clients]


def template_reference(
    rows: Sequence[Row], own: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the reference ``zero_shot`` of the clients' lines of ``evaluator.zero_shot``.

    Args:
        own: some clients have templates of their own, which their lines are of.
    """
    if any("i2t_r1" in row for row in rows):
        return {"zero_shot": reference(ALONE, "the pretrained model, not trained on captions",
                                       rows)}
    how = "the dataset's template prompt"
    how += ", or the client's own templates" if own else ""
    return {"zero_shot": reference(ALONE, how, [
        {name: row[name] for name in (*COLUMNS, *OF_SETS) if name in row}
        if "auroc" in row else {name: row[name] for name in row
                                if name in COLUMNS or name.startswith(f"{scores.RIGHT}.")}
        for row in rows
    ])}


def reference(kind: str, how: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a reference as it stands in ``results.json``.

    Returns:
        ``kind``, ``how``, ``personal`` (percent, mean over the clients with test images), ``_std``,
        ``_worst``, ``_balanced`` as in ``scores.personal_scores``, and ``clients``: a line each.
    """
    values = [row["accuracy"] for row in rows]
    sets = any("auroc" in row for row in rows)
    recalls = {f"personal_{name}": mean(row[name] for row in rows)
               for name in ("i2t_r1", "t2i_r1") if any(name in row for row in rows)}
    more = {f"personal_{name}": mean(row.get(name) for row in rows) for name in OF_SETS[1:]
            if sets and any(name in row for row in rows)}
    return {
        "kind": kind, "personal": mean(values), "personal_std": population_std(values),
        "personal_worst": worst(values),
        **(recalls or more or {"personal_balanced": mean(row.get("balanced") for row in rows)}),
        "how": how,
        "clients": list(rows),
    }


def of_judged(
    found: Mapping[str, Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[int]]:
    """Return references over the clients that ``rows`` judge, and the clients that they lose.

    Where a site did not answer at the end of a run, a mean over the others is compared with a
    mean over the same ones. Rows without any number change nothing.
    """
    judged = {row["client"] for row in rows if row["accuracy"] is not None}
    lost = sorted({row["client"] for one in found.values() for row in one["clients"]
                   if row["accuracy"] is not None} - judged) if judged else []
    if not lost:
        return {name: {**one} for name, one in found.items()}, []
    return {
        name: {**one} | reference(one["kind"], one["how"],
                              [row for row in one["clients"] if row["client"] in judged])
        for name, one in found.items()
    }, lost


def _of(
    asked: Asked, kind: str, how: str, labels: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Return the reference that predicts ``labels``, one array per client.

    Its lines have ``scores.right_row``, too.
    """
    rows = []
    for c, said in zip(asked.clients, labels, strict=True):
        said_of = Predictions(np.asarray(said, dtype=np.int64))
        row = scores.client_row(c, asked.true(c), said_of)
        rows.append({name: row[name] for name in COLUMNS}
                    | scores.right_row(asked.true(c), said_of))
    return reference(kind, how, rows)


def _chance(client: int, n: int, classes: int) -> Row:
    """Return the line of a class drawn evenly: ``correct`` is expected, and no whole number."""
    share = 100.0 / classes if n else None
    return {"client": client, "n": n, "correct": n / classes, "accuracy": share, "balanced": share}


def share_of(data: Federated, client: int) -> IndexSplit:
    """Return a client's images by part."""
    split = data.clients[client]
    return IndexSplit(*(np.asarray(part, dtype=np.int64)
                        for part in (split.train, split.val, split.test)))


def _dealt(
    labels: np.ndarray, tests: np.ndarray, shares: Sequence[IndexSplit]
) -> list[np.ndarray]:
    """Return each client's part of what one model says of all test images, ascending."""
    return [labels[np.searchsorted(tests, share.test)] for share in shares]


def _pooled(
    asked: Asked, tests: np.ndarray, shares: Sequence[IndexSplit]
) -> dict[str, Any]:
    """Return the regression on all members' training images; without numbers where it is large."""
    train = asked.every("train")
    if left_out := pooled_left_out(asked, train, "classes"):
        return left_out
    (found,) = regressions(asked.frozen, [IndexSplit(train, asked.every("val"), tests)])
    return _of(asked, BOUND, f"centralised: {choice_words([found])}",
               _dealt(found.labels, tests, shares))


def pooled_left_out(asked: Asked, train: np.ndarray, what: str) -> dict[str, Any] | None:
    """Return the reference without numbers where a regression on ``train`` has too much to do."""
    one = asked.frozen.x(train[:1])
    most = MOST.get(one.device.type, MOST["cpu"])
    if len(train) * one.shape[1] * asked.classes <= most:
        return None
    return reference(
        BOUND, f"centralised: left out, {len(train):,} images of {asked.classes:,} {what} are "
        f"more than {most:.0e} products a step on {one.device.type}", [],
    )


def choice_words(each: Sequence[Regression]) -> str:
    """Say how the l2 of regressions came about."""
    chosen = sorted(one.l2 for one in each)
    middle, low, high = median_low(chosen), chosen[0], chosen[-1]
    span = "" if low == high else f" ({low:.0e} to {high:.0e} by client)"
    judges = " or ".join(sorted({one.judge for one in each}, reverse=True))
    late = sum(not one.arrived for one in each)
    rest = f"; {late} of {len(each)} stopped at the limit of steps" if late else ""
    return f"L2 {middle:.0e}{span} chosen on {judges}{rest}"


@dataclass(frozen=True)
class _Ridge:
    """AFL's classifier: what the method AFL computes by default.

    It is ridge regression on features as they are, from the sums of all members; its ridge by
    generalised cross-validation of the same sums.

    Attributes:
        weights: ``[d, C]``, float64.
        inverse: of the sum of z z' with the ridge, ``[d, d]``.
        how: how it came about.
    """

    weights: Tensor
    inverse: Tensor
    how: str

    @classmethod
    def of(cls, asked: Asked) -> _Ridge:
        """Return the classifier of the members' training images."""
        gram, cross, n = ridge_sums(asked)
        strength = float(moments.best_ridge(gram, cross, torch.tensor(float(n)).to(gram)))
        eye = torch.eye(len(gram)).to(gram)
        return cls(
            moments.ridge(gram, cross, strength), torch.linalg.pinv(gram + strength * eye),
            f"AFL, ridge regression in one round: ridge {strength:.0e} by cross-validation",
        )

    def temper(self, asked: Asked) -> float:
        """Return the factor of the log class shares that is right most often, clients alike.

        Each training image is judged without itself (``moments.left_out_answers``), as AFL does
        with SHARES. Of equals the smallest factor.
        """
        right = torch.zeros(len(moments.TEMPERS), dtype=torch.float64)
        for c in asked.members:
            train = np.asarray(asked.data.clients[c].train)
            if not len(train):
                continue
            z, y = raw_features(asked, train), asked.frozen.y(train)
            counts = torch.from_numpy(asked.counts(c)).to(z)
            hits = moments.left_out_answers(z, y.to(z.device), self.weights, self.inverse, counts)
            right += torch.stack([hit.double().mean() for hit in hits]).cpu()
        return moments.TEMPERS[int(right.argmax())]


def ridge_sums(asked: Asked) -> tuple[Tensor, Tensor, int]:
    """Return the members' sums of z z' ``[d, d]`` and z y' ``[d, C]``, float64, and their images.

    Features z are as the tower gives them, labels y one-hot.
    """
    gram, cross, n = torch.zeros(0), torch.zeros(0), 0
    for c in asked.members:
        train = np.asarray(asked.data.clients[c].train)
        z = raw_features(asked, train)
        hot = asked.hot(train).to(z)
        own, n = (z.mT @ z, z.mT @ hot), n + len(train)
        gram, cross = (gram + own[0], cross + own[1]) if gram.numel() else own
    return gram, cross, n


def _prior(asked: Asked, client: int) -> Tensor:
    return moments.log_shares(torch.from_numpy(asked.counts(client)).double())


def _best(scores: Tensor) -> np.ndarray:
    return scores.argmax(1).cpu().numpy()


def raw_features(asked: Asked, indices: np.ndarray) -> Tensor:
    """Return features as the tower gives them ``[n, d]``, float64."""
    at = torch.tensor(np.asarray(indices, dtype=np.int64))
    return in_double(asked.source.fetch(at, view=0)["features"])


def _template_logits(
    source: SampleSource, model: VLModel
) -> Callable[[np.ndarray], Tensor]:
    """Return what gives the logits ``[n, C]`` of the template prompt of samples, on the host."""
    with torch.no_grad():
        anchor = model.anchor("template", n_ctx=0).unsqueeze(0)

    @torch.no_grad()
    def logits(indices: np.ndarray) -> Tensor:
        parts = []
        for start in range(0, max(len(indices), 1), BATCH):
            at = torch.tensor(indices[start : start + BATCH])
            z = source.fetch(at, view=0)["features"].to(anchor.device, anchor.dtype)
            parts.append(model.logits(z.unsqueeze(0), anchor)[0].double().cpu())
        return torch.cat(parts)

    return logits


def order(found: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return references in the order in which they are shown."""
    return {name: found[name] for name in NAMES if name in found}


NAMES = (
    "chance", "majority", "zero_shot", "zero_shot_local", "zero_shot_prior", "logreg",
    "logreg_names", "afl", "afl_prior", "pooled",
)
