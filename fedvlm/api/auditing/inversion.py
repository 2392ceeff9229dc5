"""A search for features whose gradient is the one that a client sent: gradient inversion.

Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, with the cosine of Geiping et al., Inverting
Gradients, NeurIPS 2020, on image features in place of pixels: the tower below them is frozen and
known. The attacker knows the model before the step and the number of images, and has public images
of every class, so that it starts from mean features. All is bounded by iterations, never by a
clock: the same step gives the same numbers.

A context acts through the text features T alone: its gradient is J' v, v that of T. It is computed
once at the start how J turns v (``J = U S V'``, ``[C d, P]``), so that a search compares U' v with
S^-1 V' of what was sent, and never passes the text tower. Directions in which a context hardly
moves T are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from fedvlm.core.trees import TreeView
from fedvlm.federation.batches import Batch
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.toolbox.contrast import SOFTMAX
from fedvlm.federation.trainer import Trainer, cross_entropy
from fedvlm.models.vlmodel import VLModel

CONTEXT = "text.ctx"
INVERTED = (CONTEXT, "head.weight", "image.adapter.down", "image.adapter.up")
MOST = 2**27  # numbers of a Jacobian: half a GiB
FIRST, ITERATIONS = 50, 400  # of L-BFGS: from each start, and from the nearest
FAINT = 1e-4  # of the largest singular value: below it float32 gradients are rounding
LENGTH = 0.1  # what the gradients' lengths count beside their cosine


@dataclass(frozen=True)
class TextSlope:
    """How a context moves the text features at the start.

    Attributes:
        texts: unit text features, ``[C, d]``.
        out: U, ``[C d, k]``.
        back: V S^-1, ``[P, k]``.
    """

    texts: Tensor
    out: Tensor
    back: Tensor


@dataclass(frozen=True)
class FeatureStep:
    """The gradient of a method's loss to its shared tensors, as a function of image features.

    Attributes:
        start: the trainable tensors, no client axis.
        shared: names of those whose gradient is sent, in its order.
        slope: where a context is among them.
    """

    trainer: PeftTrainer
    model: VLModel
    start: TreeView
    shared: Sequence[str]
    slope: TextSlope | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what the mean loss of features ``[n, d]`` sends, as ``seen`` has it.

        Differentiable in the features, in their precision: float64, or searches end in rounding.

        Args:
            x: image features, as the frozen tower gives them.
            y: labels, ``[n]``.
        """
        params = {n: v.detach()[None].to(x).requires_grad_() for n, v in self.start.items()}
        batch = Batch({"features": x[None]}, y[None], torch.ones_like(x[:, 0])[None],
                      counts=(len(x),))
        if self.slope is None:
            texts = self.trainer.text_features(self.model, params).to(x)
        else:
            texts = self.slope.texts[None].clone().requires_grad_()
        model = copy(self.model)
        model.dtype = x.dtype
        z = self.trainer.image_features(model, params, batch.x)
        loss = cross_entropy(model.logits(z, texts), batch)
        found = torch.autograd.grad(
            loss.sum(), [texts if n == CONTEXT else params[n] for n in self.shared],
            create_graph=True)
        return torch.cat([
            g.flatten() @ self.slope.out if self.slope and n == CONTEXT else g.flatten()
            for n, g in zip(self.shared, found, strict=True)])

    def seen(self, gradient: Tensor) -> Tensor:
        """Return a flat gradient ``[P]`` with a context's part in the text features' terms."""
        parts = gradient.double().split([self.start[n].numel() for n in self.shared])
        return torch.cat([g @ self.slope.back if self.slope and n == CONTEXT else g
                          for n, g in zip(self.shared, parts, strict=True)])


def not_inverted(trainer: Trainer, shared: Sequence[str], start: TreeView, model: VLModel) -> str:
    """Return why no features are sought that give a step's gradient; empty where they are."""
    method = type(trainer)
    others = [n for n in shared if n not in INVERTED]
    if others:
        return f"no search was made for the gradient of '{others[0]}'"
    if not isinstance(trainer, PeftTrainer) or (
        method.text_features, method.image_features, method.predict, method.predictor
    ) != (PeftTrainer.text_features, PeftTrainer.image_features, Trainer.predict,
          Trainer.predictor):
        return f"{trainer.name} computes its features in a way of its own"
    if trainer.loss_kind != SOFTMAX:
        return f"OPTIM.LOSS {trainer.loss_kind}: no search was made for this loss"
    if CONTEXT not in shared:
        return ""
    if start[CONTEXT].ndim > 2:
        return "each class has a context of its own (PEFT.CSC); no search was made for these"
    size = len(model.classnames) * model.embed_dim * start[CONTEXT].numel()
    if size > MOST:
        return (f"the derivative of {len(model.classnames)} text features by the context has "
                f"{size:,} numbers, more than {MOST:,}")
    return ""


def feature_step(
    trainer: PeftTrainer, model: VLModel, start: TreeView, shared: Sequence[str]
) -> FeatureStep:
    """Return the step to be inverted; for a context after d passes back through the text tower."""
    slope = text_slope(model, start[CONTEXT]) if CONTEXT in shared else None
    return FeatureStep(trainer, model, start, shared, slope)


def text_slope(model: VLModel, context: Tensor) -> TextSlope:
    """Return how a context ``[n_ctx, width]`` moves the text features."""
    each = context.detach().expand(len(model.classnames), -1, -1).clone().requires_grad_()
    texts = model.text_by_class(each)  # [C, d]; a row is a function of its own context alone
    jacobian = torch.stack([
        torch.autograd.grad(column.sum(), each, retain_graph=True)[0].flatten(1)
        for column in texts.unbind(-1)], 1).flatten(0, 1).double()  # [C d, P]
    wide = jacobian.shape[0] < jacobian.shape[1]
    squares, axes = torch.linalg.eigh(jacobian @ jacobian.T if wide else jacobian.T @ jacobian)
    kept = squares > FAINT**2 * squares[-1]
    axes, s = axes[:, kept], squares[kept].sqrt()
    out, back = (axes, jacobian.T @ axes / s) if wide else (jacobian @ axes / s, axes)
    return TextSlope(texts.detach().double(), out, back / s)


def seek_features(
    step: FeatureStep, seen: Tensor, starts: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """Return the features ``[n, d]`` whose gradient is nearest to the one that was seen.

    ``FIRST`` iterations from each start, then ``ITERATIONS`` from the nearest of what they found.

    Args:
        seen: ``FeatureStep.seen`` of what was sent.
        starts: features ``[n, d]`` and labels ``[n]`` of each search.
    """
    best, labels, least = *starts[0], float("inf")
    for x, y in starts:
        found, misfit = _descend(step, seen, x, y, FIRST)
        if misfit < least:
            best, labels, least = found, y, misfit
    found, misfit = _descend(step, seen, best, labels, ITERATIONS)
    return found if misfit < least else best


def _descend(
    step: FeatureStep, seen: Tensor, start: Tensor, y: Tensor, iterations: int
) -> tuple[Tensor, float]:
    """Return features after L-BFGS, and how far their gradient is from ``seen``.

    1 - cosine, plus the square of the logarithm of the lengths' ratio: lengths differ by orders of
    magnitude between images that the model knows and others.
    """
    x = start.detach().double().contiguous().clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [x], max_iter=iterations, history_size=20, line_search_fn="strong_wolfe",
        tolerance_grad=0.0, tolerance_change=1e-14)

    def misfit() -> Tensor:
        found = step(x, y)
        ratio = (found.norm() / seen.norm()).log()
        value = 1 - F.cosine_similarity(found, seen, dim=0) + LENGTH * ratio.square()
        x.grad = torch.autograd.grad(value, x)[0].contiguous()
        return value.detach()

    optimiser.step(misfit)
    return x.detach(), float(misfit())


def matched_cosine(found: Tensor, true: Tensor) -> float:
    """Return the mean cosine of features ``[n, d]`` to true ones, in the best order there is."""
    cosines = (F.normalize(found.double(), dim=-1) @ F.normalize(true.double(), dim=-1).T).numpy()
    return float(cosines[linear_sum_assignment(cosines, maximize=True)].mean())


def labels_of_counts(counts: np.ndarray, n: int) -> np.ndarray:
    """Return labels ``[n]`` of estimated images by class ``[C]``, by largest remainders."""
    shares = n * counts / counts.sum()
    whole = np.floor(shares).astype(np.int64)
    for c in np.argsort(whole - shares, kind="stable")[: n - whole.sum()]:
        whole[c] += 1
    return np.repeat(np.arange(len(counts)), whole)
