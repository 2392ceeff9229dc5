"""TOFA beside an implementation from the paper's equations, in plain loops.

Features of a class are normal with a mean of its own and one covariance. The server pools the
clients' counts, means and scatters; a client weighs these by ``alpha`` and adds its own (the power
prior). Gaussian discriminant analysis gives the visual scores, texts weighed by how much better
they describe each client's images than the plain one the textual ones, and confidence mixes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.figures import READING, Source, Values
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "TOFA", READING, "Zhang et al., TOFA: Training-Free One-Shot Federated Adaptation for "
    "Vision-Language Models, AAAI 2026", equal="each client's logits after the one round",
    differs="from the abstract and a public summary of the equations, which leave open: equal "
    "chances of the classes, a covariance moved by SHRINK to the identity, TEMP, a sum of "
    "the texts that is not normalised again (on both sides as our card gives them); VARIANT "
    "published (fixed is the default); plain templates in the place of a language model's "
    "sentences",
)
ALPHA, SHARE, TEMPERATURE = 0.5, 0.1, 0.1
TEXTS = ("a blurry photo of a {}.", "{}.")
PLAIN = {"VARIANT": "published", "PRIOR": ALPHA, "SHRINK": SHARE, "TEMP": TEMPERATURE}
CASES = {
    "one text": Case("TOFA", {**PLAIN, "TEMPLATES": "()"}, embed=8, sizes=(12, 9, 4), rounds=1,
                     loss=False),
    "three texts": Case("TOFA", {**PLAIN, "TEMPLATES": str(TEXTS)}, embed=8, sizes=(12, 9, 4),
                        rounds=1, loss=False),
}


@dataclass
class Moments:
    """Of one client, or of all: by class the count and the mean; one scatter around the means."""

    counts: list[float]
    means: list[Tensor]
    scatter: Tensor


def moments(z: Tensor, labels: Tensor, classes: int) -> Moments:
    """Return the sufficient statistics of features ``[n, d]``."""
    own = [z[labels == c] for c in range(classes)]
    means = [x.mean(0) if len(x) else torch.zeros(z.shape[1], dtype=DTYPE) for x in own]
    scatter = sum(((x - m).T @ (x - m) for x, m in zip(own, means, strict=True)),
                  torch.zeros(z.shape[1], z.shape[1], dtype=DTYPE))
    return Moments([float(len(x)) for x in own], means, scatter)


def posterior(parts: Sequence[tuple[float, Moments]]) -> Moments:
    """Return the statistics of several sets of images, each raised to the power of its weight."""
    first = parts[0][1]
    counts = [sum(w * m.counts[c] for w, m in parts) for c in range(len(first.counts))]
    means, scatter = [], torch.zeros_like(first.scatter)
    for c, total in enumerate(counts):
        mean = sum((w * m.counts[c] * m.means[c] for w, m in parts), torch.zeros_like(
            first.means[0])) / (total or 1.0)
        for w, m in parts:
            apart = m.means[c] - mean
            scatter = scatter + w * m.counts[c] * torch.outer(apart, apart)
        means.append(mean)
    return Moments(counts, means, scatter + sum((w * m.scatter for w, m in parts),
                                                torch.zeros_like(scatter)))


def discriminant(m: Moments, classes: int) -> tuple[Tensor, Tensor]:
    """Return weights ``[C, d]`` and biases ``[C]`` of the Gaussian discriminant analysis."""
    width, total = len(m.scatter), sum(m.counts)
    covariance = m.scatter / total
    covariance = (1 - SHARE) * covariance + SHARE * covariance.trace() / width * torch.eye(
        width, dtype=DTYPE)
    precision = torch.linalg.inv(covariance)
    weights = torch.stack([precision @ mean for mean in m.means])
    biases = torch.stack([-0.5 * mean @ precision @ mean for mean in m.means])
    return weights, biases


def text_features(world: World) -> Tensor:
    """Return normalised features ``[M, C, d]`` of the plain text and the further ones."""
    further = TEXTS if world.case.options["TEMPLATES"] != "()" else ()
    out = []
    for template in (world.case.templates[0], *further):
        ids = world.backbone.tokenize([template.format(name) for name in world.names])
        out.append(F.normalize(world.backbone.encode_embeddings(
            world.backbone.embed_tokens(ids), world.backbone.eot(ids)), dim=-1))
    return torch.stack(out)


def importance(world: World, z: Sequence[Tensor], texts: Tensor) -> Tensor:
    """Return r ``[C, M]``: the mean over clients that have the class of u(t0) log(u(t) / u(t0)).

    u(t) is the mean probability of the class over a client's images of it, where t describes the
    class and the plain text the other classes.
    """
    scale, r = world.weights["logit_scale"].exp(), torch.zeros(texts.shape[1], len(texts),
                                                               dtype=DTYPE)
    for c in range(texts.shape[1]):
        found = []
        for rows, features in zip(world.rows, z, strict=True):
            own = features[world.labels[rows] == c]
            if not len(own):
                continue
            u = []
            for text in texts:
                described = texts[0].clone()
                described[c] = text[c]
                u.append((scale * own @ described.T).softmax(-1)[:, c].mean())
            found.append(torch.stack([u[0] * torch.log(one / u[0]) for one in u]))
        if found:
            r[c] = torch.stack(found).mean(0)
    return r


def other(world: World, folder: Path) -> Values:
    """Return each client's logits."""
    classes, scale = len(world.names), world.weights["logit_scale"].exp()
    with torch.no_grad():
        z = [F.normalize(world.backbone.encode_image(world.images[rows]), dim=-1)
             for rows in world.rows]
        tests = F.normalize(world.backbone.encode_image(world.tests), dim=-1)
    texts = text_features(world)
    mix = (importance(world, z, texts) / TEMPERATURE).softmax(-1)
    text = torch.stack([mix[c] @ texts[:, c] for c in range(classes)])
    own = [moments(x, world.labels[rows], classes) for x, rows in zip(z, world.rows, strict=True)]
    common, logits = posterior([(1.0, m) for m in own]), []
    for m in own:
        weights, biases = discriminant(posterior([(1.0, m), (ALPHA, common)]), classes)
        visual, textual = tests @ weights.T + biases, scale * tests @ text.T
        sure = [f.softmax(-1).max(-1).values for f in (visual, textual)]
        eta = torch.sigmoid(torch.log(sure[0] / sure[1]))[:, None]
        logits.append(eta * visual + (1 - eta) * textual)
    return {"logits": torch.stack(logits)}
