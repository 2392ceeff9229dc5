"""Ensemble distillation on the server: symmetric KL, clean and adversarial, with an adoption gate.

The clean ensemble and the attacks do not change while the student learns (attacks start from the
student as it came), so both are made once per round and image. Source: the card of
``trainers/heart_pfl.py``. The towers are in evaluation mode and adapters have no dropout, so
teachers answer the same twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.errors import ConfigError, DivergedError
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.optim import Adam, Schedule
from fedvlm.federation.server import Proxy
from fedvlm.models.adapt.attack import PGD, PixelSpace
from fedvlm.models.vlmodel import VLModel

Predict = Callable[[Tree, Tensor], Tensor]  # leaves [K, ...], images [K, B, ...] -> [K, B, C]
OWN, SHARED_ADV = "own", "shared"
PSEUDO, TRUE = "pseudo", "true"
LOGITS = "logits"  # or probs
KL, VAL_ACC, NO_GATE = "kl", "val_acc", "none"


@dataclass(frozen=True)
class ProxyImages:
    """The server's images as attacks want them.

    Attributes:
        images: ``positions [n] -> [n, 3, H, W]`` in [0, 1].
        labels: ``[P]``; read only where labels are asked for.
    """

    images: Callable[[Tensor], Tensor]
    labels: Tensor


def image_proxy(proxy: Proxy, space: PixelSpace, model: VLModel) -> ProxyImages:
    """Return the server's normalised pixels as pixels in [0, 1] on the model's device."""

    def images(positions: Tensor) -> Tensor:
        return space.pixels(proxy.pixels(positions).to(model.device, model.dtype))

    return ProxyImages(images, proxy.labels)


@dataclass(frozen=True)
class Distillation:
    """How a student learns from teachers.

    Attributes:
        steps, batch, lr: Adam without decay, cosine over ``steps``.
        temperature: of both softmaxes.
        attack: PGD against ``labels``.
        adversary: ``shared``: the student's adversarial images for everybody; ``own``: each
            teacher gets images made against itself.
        labels: ``pseudo`` (largest logit of the clean ensemble) or ``true``.
        ensemble: mean ``logits`` or mean ``probs``.
        gate: ``kl``: keep the student with the lowest loss on held-out images, adopt it if lower
            than the start's; ``val_acc``: the same by accuracy; ``none``: adopt the last.
        holdout: share of the proxy held out for the gate.
        check_every: steps between looks at the held-out images (the last step is one).
    """

    steps: int = 20
    batch: int = 64
    lr: float = 1e-3
    temperature: float = 1.0
    attack: PGD = field(default_factory=PGD)
    adversary: str = SHARED_ADV
    labels: str = PSEUDO
    ensemble: str = LOGITS
    gate: str = KL
    holdout: float = 0.2
    check_every: int = 1


@dataclass(frozen=True)
class Distillate:
    """What came of a distillation.

    Attributes:
        tree: the student if ``adopted``, else the start.
        initial, best: the gate's score of the start and of the best student (higher is better;
            minus the mean loss, or accuracy); 0 without a gate.
        loss: of the last step.
        attack_passes: images times gradients to pixels times models.
    """

    tree: Tree
    adopted: bool
    initial: float
    best: float
    loss: float
    attack_passes: int


@dataclass(frozen=True)
class Lessons:
    """What the student is shown: images (clean, adversarial) and the ensemble's answers."""

    clean: Tensor
    adversarial: Tensor
    on_clean: Tensor
    on_adversarial: Tensor


def symmetric_kl(a: Tensor, b: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(A||B) + KL(B||A) of logits ``[..., C]``, without a factor T^2: ``[...]``."""
    log_a, log_b = (F.log_softmax(z / temperature, -1) for z in (a, b))
    forth = F.kl_div(log_b, log_a, reduction="none", log_target=True)
    back = F.kl_div(log_a, log_b, reduction="none", log_target=True)
    return (forth + back).sum(-1)


def ensemble(z: Tensor, kind: str = LOGITS) -> Tensor:
    """Return one ``[..., C]`` of N teachers' logits: their mean, or log of mean probabilities."""
    if kind == LOGITS:
        return z.mean(0)
    return z.log_softmax(-1).logsumexp(0) - torch.log(torch.tensor(float(len(z))))


def distil(
    student: Tree, teachers: Tree, predict: Predict, proxy: ProxyImages, how: Distillation,
    generator: torch.Generator,
) -> Distillate:
    """Return the student after ``how.steps``, or the start where the gate keeps it.

    Args:
        student: no client axis; all of its leaves are trained.
        teachers: leaves ``[K, ...]``.
        predict: the model.
        proxy: the server's images.
        generator: of held-out images, batches and attacks.

    Raises:
        ConfigError: too few proxy images.
        DivergedError: a loss or score is not finite.
    """
    held, learn = _divide(len(proxy.labels), how, generator)
    size = min(how.batch, len(learn))
    epochs = -(-how.steps * size // len(learn))
    order = torch.cat([torch.randperm(len(learn), generator=generator) for _ in range(epochs)])
    batches = order[: how.steps * size].view(how.steps, size)
    used, where = torch.unique(batches, return_inverse=True)
    start, team = expand(student, 1), teachers
    lessons, passes = _prepare(start, team, predict, proxy, learn[used], how, generator)
    aside = None
    if len(held):
        aside, more = _prepare(start, team, predict, proxy, held, how, generator)
        passes += more
    score = _scorer(aside, proxy.labels[held], predict, how)
    p, state, rule = start, dict[str, Tree](), Adam()
    initial = best = score(start)
    chosen, value = start, 0.0
    schedule = Schedule(how.lr, "cosine", how.steps)
    for t, index in enumerate(where, start=1):
        value, grads = _slope(p, predict, lessons, index, how, t)
        new, state = rule.step(p, grads, state, [schedule(t - 1)], t)
        p = p | new
        if t % how.check_every == 0 or t == how.steps:
            now = score(p)
            if now > best or how.gate == NO_GATE:
                best, chosen = now, p
    adopted = best > initial or how.gate == NO_GATE
    tree = {n: v[0].detach().clone() for n, v in chosen.items()} if adopted else student
    return Distillate(tree, adopted, initial, best, value, passes)


def holdout_size(n: int, how: Distillation) -> int:
    """Return how many of ``n`` proxy images are held out for the gate.

    Raises:
        ConfigError: none would be left to learn from.
    """
    count = 0 if how.gate == NO_GATE else max(1, round(how.holdout * n))
    if n - count < 1:
        raise ConfigError(
            f"the server's distillation has {n} proxy image(s), too few for training and "
            "validation: set DATASET.SERVER_HOLDOUT higher, or name a larger set or folder"
        )
    return count


def _divide(n: int, how: Distillation, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return positions of (held-out, learning) proxy images."""
    count = holdout_size(n, how)
    order = torch.randperm(n, generator=generator)
    return order[:count], order[count:]


def _prepare(
    start: Tree, team: Tree, predict: Predict, proxy: ProxyImages, positions: Tensor,
    how: Distillation,
    generator: torch.Generator,
) -> tuple[Lessons, int]:
    """Make attacks and ensemble answers for the images that will be used, in chunks."""
    n, parts, passes = len(next(iter(team.values()))), [], 0
    for part in positions.split(max(1, how.batch // n)):
        x = proxy.images(part)
        with torch.no_grad():
            on_clean = ensemble(predict(team, _repeat(x, n)), how.ensemble)
        y = (proxy.labels[part] if how.labels == TRUE else on_clean.argmax(-1)).to(x.device)
        adv = how.attack(lambda v: predict(start, v), x[None], y[None], generator)
        attacked = _repeat(adv[0], n)
        if how.adversary == OWN:
            attacked = how.attack(
                lambda v: predict(team, v), _repeat(x, n), _repeat(y, n), generator
            )
        with torch.no_grad():
            on_adv = ensemble(predict(team, attacked), how.ensemble)
        parts.append((x, adv[0], on_clean, on_adv))
        passes += len(part) * how.attack.steps * (1 + n * (how.adversary == OWN))
    clean, adversarial, a, b = (torch.cat(column) for column in zip(*parts, strict=True))
    return Lessons(clean, adversarial, a, b), passes


def _repeat(x: Tensor, n: int) -> Tensor:
    return x.unsqueeze(0).expand(n, *x.shape)


def _terms(p: Tree, predict: Predict, lessons: Lessons, index: Tensor, how: Distillation) -> Tensor:
    """Return the distances on clean, then on adversarial images: ``[2 len(index)]``."""
    x = torch.cat([lessons.clean[index], lessons.adversarial[index]])
    answers = torch.cat([lessons.on_clean[index], lessons.on_adversarial[index]])
    return symmetric_kl(answers, predict(p, x[None])[0], how.temperature)


def _slope(
    p: Tree, predict: Predict, lessons: Lessons, index: Tensor, how: Distillation, t: int
) -> tuple[float, Tree]:
    """Return loss and gradients of one step: four terms of weight 1."""
    leaves = {n: v.detach().requires_grad_() for n, v in p.items()}
    with torch.enable_grad():
        loss = _terms(leaves, predict, lessons, index, how).sum() / len(index)
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    grads = {n: g for n, g in zip(leaves, slopes, strict=True) if g is not None}
    if not all(bool(torch.isfinite(v).all()) for v in (loss, *grads.values())):
        raise DivergedError(
            f"the server's distillation is not finite at step {t}; lower its learning rate "
            f"(now {how.lr:g}), or switch it off"
        )
    return float(loss.detach()), grads


def _scorer(
    held: Lessons | None, labels: Tensor, predict: Predict, how: Distillation
) -> Callable[[Tree], float]:
    """Return the gate's score of a student ``[1, ...]``; held-out images carry ``labels``."""
    if held is None:
        return lambda p: 0.0

    def score(p: Tree) -> float:
        total = 0.0
        for part in torch.arange(len(labels)).split(how.batch):
            with torch.no_grad():
                if how.gate == VAL_ACC:
                    z = predict(p, held.clean[part][None])[0]
                    total += float((z.argmax(-1).cpu() == labels[part].cpu()).sum())
                else:
                    total -= float(_terms(p, predict, held, part, how).sum())
        if not -float("inf") < total < float("inf"):
            raise DivergedError("the gate of the server's distillation is not finite")
        return total / len(labels)

    return score
