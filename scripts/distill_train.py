"""Training a ViT to say of an image what its teacher says: loss, crops, steps, checkpoints.

A step is a function of the seed and its number, so a run that was stopped and goes on gives the
bits of one that was not (on one machine, with as many threads).

Source: FitNets (Romero et al., ICLR 2015), features as targets; CLIP-KD (Yang et al., CVPR 2024),
features and similarities; FLIP (Li et al., CVPR 2023), patches left out in training.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from distill_data import normalised
from tiny_optim import make_optimiser, rate
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.core.rng import stream
from fedvlm.core.transform import TransformSpec

ZOOM, SHIFT = (0.8, 1.05), 0.1  # of a crop: share of the side, and of it to either side
WHOLE = 0.15  # of the steps, the last ones, see all patches
SEEN = 1 / 2  # of the patches in the steps before
CHUNK = 128  # images per pass without a gradient


@dataclass(frozen=True)
class Settings:
    """What decides the weights, beside the images and the teacher.

    ``steps`` of ``batch`` images, peak learning rate ``lr``, and the weights of the two losses on
    similarities (to class texts, to the batch's images) beside the cosine's.
    """

    seed: int
    steps: int
    batch: int
    lr: float
    texts: float = 1.0
    images: float = 1.0


def loss_of(
    own: Tensor, goal: Tensor, texts: Tensor, images: Tensor, scale: float, how: Settings
) -> Tensor:
    """Mean loss of student features.

    ``scale (1 - cos)`` to the teacher's feature of the same image, and the divergence of what
    student and teacher make of similarities to class texts, and to the teacher's features of all
    images of the batch.

    Args:
        own: of the student ``[n, d]``, not normalised.
        goal: of the teacher ``[n, d]``, unit length.
        texts, images: of the classes ``[C, d]`` and of the batch ``[B, d]``, unit length.
        scale: of similarities before the softmax.
    """
    own = F.normalize(own, dim=-1)
    loss = scale * (1 - (own * goal).sum(-1)).mean()
    for weight, anchors in ((how.texts, texts), (how.images, images)):
        said, wanted = ((scale * z @ anchors.T).log_softmax(-1) for z in (own, goal))
        loss = loss + weight * F.kl_div(said, wanted, log_target=True, reduction="batchmean")
    return loss


def crops(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return mild crops, half of them mirrored, of images ``[n, 3, S, S]``, of the same size.

    Mild, since the teacher saw each image once, whole.
    """
    n = len(pixels)
    low, high = ZOOM
    zoom = low + (high - low) * torch.rand(n, generator=generator)
    shift = SHIFT * (2 * torch.rand(n, 2, generator=generator) - 1)
    mirror = 1.0 - 2.0 * (torch.rand(n, generator=generator) < 0.5).float()
    place = torch.zeros(n, 2, 3)
    place[:, 0, 0], place[:, 1, 1], place[:, :, 2] = zoom * mirror, zoom, shift
    grid = F.affine_grid(place, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)


@torch.no_grad()
def warm_start(visual: Any, other: Any) -> None:
    """Copy another ViT's patches, positions, norms and first blocks into a new one.

    Positions of another number of patches are interpolated.

    Raises:
        ConfigError: another width, patch or head, or fewer blocks.
    """
    own, theirs = visual.state_dict(), other.state_dict()
    blocks = len(other.transformer.resblocks)
    heads = {tower.transformer.resblocks[0].attn.num_heads for tower in (visual, other)}
    same = own["conv1.weight"].shape == theirs["conv1.weight"].shape and len(heads) == 1
    if not same or blocks < len(visual.transformer.resblocks):
        width, _, patch, _ = theirs["conv1.weight"].shape
        raise ConfigError(
            f"--start has width {width}, patches of {patch}, heads of {width // max(heads)} and "
            f"{blocks} blocks: give the new ViT --width {width} --patch {patch} and no more blocks"
        )
    place = "positional_embedding"
    first, grid = theirs[place].split([1, len(theirs[place]) - 1])
    old, new = (math.isqrt(len(t[place]) - 1) for t in (theirs, own))
    grid = grid.T.reshape(1, -1, old, old)
    grid = F.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
    theirs[place] = torch.cat([first, grid.flatten(2)[0].T])
    for name, tensor in own.items():
        if name != "proj":
            tensor.copy_(theirs[name])


def chosen_rows(n: int, patches: int, share: float, generator: torch.Generator) -> Tensor:
    """Return the rows of a ViT that images are shown ``[n, m]``: the class token's, and patches."""
    order = torch.rand(n, patches, generator=generator).argsort(1)
    chosen = order[:, : max(1, round(share * patches))] + 1
    return torch.cat([torch.zeros(n, 1, dtype=chosen.dtype), chosen], dim=1)


def forward(visual: Any, pixels: Tensor, rows: Tensor | None = None) -> Tensor:
    """Features ``[n, d]`` of a ViT that is shown all rows, or some ``[n, m]``."""
    x = visual._embeds(pixels)
    if rows is not None:
        x = x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[2]))
    pooled, _ = visual._pool(visual.transformer(x))
    return pooled @ visual.proj


@torch.no_grad()
def encode(visual: Any, pixels: Tensor, spec: TransformSpec) -> Tensor:
    """Features ``[n, d]`` of uint8 images ``[n, 3, S, S]`` as they are."""
    visual.eval()
    out = torch.cat([visual(normalised(part, spec)) for part in pixels.split(CHUNK)])
    visual.train()
    return out


class Distillation:
    """A student in training.

    Args:
        visual: open_clip's VisionTransformer.
        spec: its transform.
        pixels: uint8 ``[n, 3, S, S]``.
        goals: the teacher's features ``[n, d]``.
        texts: class texts ``[C, d]``, unit length.
        scale: of similarities.
        how: see ``Settings``.
        identity: what must be equal for a state to be gone on from, beside ``how``.
        state: file of the state.
        threads: that share each batch; more of them change the order of sums only.
    """

    def __init__(
        self, visual: Any, spec: TransformSpec, pixels: Tensor, goals: Tensor, texts: Tensor,
        scale: float, how: Settings, identity: Mapping[str, Any], state: Path, threads: int = 1,
    ) -> None:  # fmt: skip
        self.visual, self.spec, self.how = visual.train(), spec, how
        self.pixels, self.goals = pixels, F.normalize(goals, dim=-1)
        self.length = float(goals.norm(dim=-1).mean())
        self.texts, self.scale, self.state = texts, scale, state
        self.identity = dict(identity) | asdict(how)
        self.optimiser = make_optimiser(visual, how.lr)
        self.step, self.seconds, self.threads = 0, 0.0, threads
        # Whole parts of a batch, not single products: threads wait for each other once a step.
        self.workers = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def batch(self, step: int) -> Tensor:
        """Return the images of a step ``[batch]``: every epoch is a shuffle of its own."""
        first = step * self.how.batch
        rows: list[int] = []
        while len(rows) < self.how.batch:
            epoch, at = divmod(first + len(rows), len(self.pixels))
            order = torch.randperm(
                len(self.pixels), generator=stream(self.how.seed, "distill-epoch", epoch)
            )
            rows += order[at : at + self.how.batch - len(rows)].tolist()
        return torch.tensor(rows)

    def one_step(self) -> float:
        """Take one step; return the loss."""
        generator = stream(self.how.seed, "distill-step", self.step)
        rows = self.batch(self.step)
        done = self.step / self.how.steps
        for group in self.optimiser.param_groups:
            group["lr"] = rate(done, self.step, self.how.lr)
        x = crops(normalised(self.pixels[rows], self.spec), generator)
        shown = None
        if done < 1 - WHOLE:
            patches = len(self.visual.positional_embedding) - 1
            shown = chosen_rows(len(rows), patches, SEEN, generator)
        loss = self.descend(x, shown, self.goals[rows])
        torch.nn.utils.clip_grad_norm_(self.visual.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        return loss

    def descend(self, x: Tensor, shown: Tensor | None, goals: Tensor) -> float:
        """Leave the mean loss's gradient in the parameters; return the loss.

        Args:
            x: pixels ``[n, 3, S, S]``.
            shown: rows of each image ``[n, m]``; None: all.
            goals: the teacher's features ``[n, d]``, unit length.
        """
        parameters = list(self.visual.parameters())

        def part(rows: Tensor) -> tuple[float, Sequence[Tensor]]:
            own = forward(self.visual, x[rows], None if shown is None else shown[rows])
            loss = loss_of(own, goals[rows], self.texts, goals, self.scale, self.how)
            loss = loss * (len(rows) / len(x))
            return float(loss.detach()), torch.autograd.grad(loss, parameters)

        done = list(self.workers.map(part, torch.arange(len(x)).chunk(self.threads)))
        for tensor, *parts in zip(parameters, *(grads for _, grads in done), strict=True):
            tensor.grad = torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        return sum(loss for loss, _ in done)

    def run(self, minutes: float, every: int, tell: Callable[[float], None]) -> bool:
        """Train until done or the CPU minutes are used; return whether it is done.

        Args:
            minutes: of CPU time, for this call.
            every: steps between two saved states.
            tell: called with the mean loss after each of them.

        Raises:
            FloatingPointError: a loss that is no number.
        """
        start, losses = time.process_time(), []
        before = self.seconds
        while self.step < self.how.steps:
            losses.append(self.one_step())
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(f"the loss of step {self.step} is {losses[-1]}")
            spent = time.process_time() - start
            self.seconds = before + spent
            over = spent > 60 * minutes
            if over or self.step % every == 0 or self.step == self.how.steps:
                self.save()
                tell(sum(losses) / len(losses))
                losses = []
            if over:
                break
        return self.step >= self.how.steps

    def save(self) -> None:
        """Replace the state on disk in one step."""
        content = {
            "identity": self.identity, "step": self.step, "seconds": self.seconds,
            "visual": self.visual.state_dict(), "optimiser": self.optimiser.state_dict(),
        }  # fmt: skip
        part = self.state.with_suffix(f".{os.getpid()}.part")
        torch.save(content, part)
        os.replace(part, self.state)

    def resume(self) -> bool:
        """Go on from the state on disk, if there is one.

        Raises:
            ConfigError: it is of other settings, images or another teacher.
        """
        if not self.state.is_file():
            return False
        content = torch.load(self.state, weights_only=True)
        other = [k for k, v in self.identity.items() if content["identity"].get(k) != v]
        if other:
            raise ConfigError(
                f"{self.state} is a run with another {', '.join(other)}: delete it, or give the "
                "flags that it was started with"
            )
        self.visual.load_state_dict(content["visual"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.step, self.seconds = content["step"], content["seconds"]
        return True

    def finish(self) -> None:
        """Give features the teacher's mean length, for methods that do not normalise them."""
        own = encode(self.visual, self.pixels, self.spec)
        with torch.no_grad():
            self.visual.proj.mul_(self.length / float(own.norm(dim=-1).mean()))
