"""Zero-shot accuracy of a CLIP on the tasks of `tiny_tasks`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tiny_tasks import TASKS, ZeroShotTask, build_task
from torch import Tensor

MEAN, STD = 0.45, 0.28


def to_input(images: NDArray[np.uint8]) -> Tensor:
    """uint8 [N, 32, 32, 3] -> normalised float [N, 3, 32, 32]."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    return x.mul_(1 / 255.0).sub_(MEAN).div_(STD).contiguous()


@torch.no_grad()
def image_features(model: Any, images: NDArray[np.uint8]) -> Tensor:
    """Unit features [N, D] of uint8 images."""
    parts = [model.encode_image(c, normalize=True) for c in to_input(images).split(256)]
    return torch.cat(parts)


@torch.no_grad()
def text_features(model: Any, tokenizer: Any, task: ZeroShotTask) -> Tensor:
    """Unit features [C, D] of the task's prompts."""
    prompts = [task.template.format(name) for name in task.names]
    features: Tensor = model.encode_text(tokenizer(prompts), normalize=True)
    return features


def accuracy(model: Any, tokenizer: Any, task: ZeroShotTask) -> float:
    """Zero-shot accuracy in per cent."""
    scores = image_features(model, task.images) @ text_features(model, tokenizer, task).T
    return 100.0 * float((scores.argmax(1).numpy() == task.labels).mean())


def gate(model: Any, tokenizer: Any, per_class: int, seed: int) -> dict[str, float]:
    """Accuracy of every task with `per_class` images per class."""
    model.eval()
    scores = {
        name: round(accuracy(model, tokenizer, build_task(name, per_class, seed)), 2)
        for name in TASKS
    }
    model.train()
    return scores
