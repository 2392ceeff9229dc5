"""Adversarial images by projected gradients, in pixel space: the model normalises inside.

Source: Madry et al. 2018 (PGD, L-infinity, untargeted). Images are ``[..., 3, H, W]`` in [0, 1];
leading axes are free, so K models can be attacked at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.transform import TransformSpec

Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PixelSpace:
    """A backbone's normalisation, and its inverse.

    Attributes:
        mean, std: per channel, on [0, 1] images.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, spec: TransformSpec) -> PixelSpace:
        """Return the space of a backbone's pixels."""
        return cls(tuple(spec.mean), tuple(spec.std))

    def _channels(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return what the tower wants of ``pixels [..., 3, H, W]`` in [0, 1]."""
        return (pixels - self._channels(self.mean, pixels)) / self._channels(self.std, pixels)

    def pixels(self, normalised: Tensor) -> Tensor:
        """Undo ``normalise``; the last bit of rounding is cut off at 0 and 1."""
        mean, std = (self._channels(v, normalised) for v in (self.mean, self.std))
        return (normalised * std + mean).clamp(0, 1)


@dataclass(frozen=True)
class PGD:
    """Projected gradient ascent on the cross-entropy.

    Attributes:
        eps: largest change of a pixel.
        alpha: change per step.
        steps: gradients taken.
        random_start: begin at a random point of the box instead of the image.
    """

    eps: float = 8 / 255
    alpha: float = 2 / 255
    steps: int = 20
    random_start: bool = True

    def __call__(
        self, logits: Logits, pixels: Tensor, labels: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the adversarial images; gradients reach nothing but pixels.

        Args:
            logits: ``x -> [..., C]`` of images in [0, 1]; called ``steps`` times.
            pixels: ``[..., 3, H, W]`` in [0, 1].
            labels: ``[...]``, the classes to leave.
            generator: on the CPU, for the random start.
        """
        clean = pixels.detach()
        low, high = (clean - self.eps).clamp_min(0), (clean + self.eps).clamp_max(1)
        x = clean
        if self.random_start:
            noise = torch.rand(clean.shape, generator=generator, dtype=clean.dtype) * 2 - 1
            x = torch.clamp(clean + self.eps * noise.to(clean.device), low, high)
        for _ in range(self.steps):
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                z = logits(x)
                loss = F.cross_entropy(z.flatten(0, -2), labels.flatten(), reduction="sum")
                (slope,) = torch.autograd.grad(loss, x)
            x = torch.clamp(x.detach() + self.alpha * slope.sign(), low, high)
        return x.detach()
