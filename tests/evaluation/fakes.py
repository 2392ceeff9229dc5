"""A model, a method and a federation whose every prediction is known in closed form.

A sample shows the class it looks like (one-hot features). A model adds its ``shift`` to that class,
modulo the number of classes: shift 0 is always right where samples look like what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.federation.rounds import FedState, RoundFinished

WIDTH = 6


class FakeSource:
    """Features are one-hot of what a sample looks like; every call is written down."""

    def __init__(self, looks: Sequence[int]) -> None:
        self.labels = torch.as_tensor(looks)
        self.features = F.one_hot(torch.as_tensor(looks), WIDTH).float()
        self.calls: list[tuple[list[int], int]] = []

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        assert indices.dtype == torch.int64 and indices.dim() == 1
        self.calls.append((indices.tolist(), view))
        return {"features": self.features[indices]}


class FakeModel:
    """C classes; the template classifier sees class c in feature c."""

    device = "cpu"

    def __init__(self, classnames: Sequence[str], templates: Sequence[str] = ("{}",)) -> None:
        self.classnames, self.templates = tuple(classnames), tuple(templates)

    def with_classes(
        self, names: Sequence[str], templates: Sequence[str] | None = None
    ) -> FakeModel:
        return FakeModel(names, self.templates if templates is None else templates)

    def image(self, x: Mapping[str, Tensor]) -> Tensor:
        return x["features"]

    def anchor(self, kind: str, n_ctx: int) -> Tensor:
        assert kind == "template" and n_ctx == 0
        return torch.eye(WIDTH)[: len(self.classnames)]

    def logits(self, z: Tensor, t: Tensor) -> Tensor:
        return z @ t.transpose(-1, -2)


class FakeTrainer:
    """Predicts (looks + shift) mod C; counts how often it computes 'text features'."""

    def __init__(self) -> None:
        self.texts = 0

    def predictor(self, model: FakeModel, params: Mapping[str, Tensor]) -> Any:
        assert not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        self.texts += 1
        shift, c = params["shift"], len(model.classnames)

        def predict(x: Mapping[str, Tensor]) -> Tensor:
            looks = x["features"].argmax(-1)  # [K, B]
            assert looks.shape[0] == shift.shape[0]
            hot = F.one_hot((looks + shift.long()[:, None]) % c, c).float()
            return hot.masked_fill(shift[:, None, None].isnan(), torch.nan)

        return predict


def finished(
    round_: int, total: int, shifts: Mapping[int, float], everyone: float = 0.0, *, chunk: int = 2,
    before: Mapping[int, float] | None = None, requests: list[list[int]] | None = None,
) -> RoundFinished:
    """Return a finished round; chunks of clients come in another order.

    Args:
        shifts: of each client's model; clients without one get none.
        everyone: shift of the shared model.
        before: shifts before a final fine-tuning; None where there was none.
        requests: gets the clients of each request for personal models.
    """

    def models(
        values: Mapping[int, float], clients: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], dict[str, Tensor]]]:
        assert torch.is_grad_enabled()  # a method may fine-tune a copy here
        order = [c for c in reversed(clients) if c in values]
        for i in range(0, len(order), chunk):
            ids = order[i : i + chunk]
            assert torch.is_grad_enabled()
            yield ids, {"shift": torch.tensor([float(values[c]) for c in ids])}

    def personal(clients: Sequence[int]) -> Iterator[tuple[Sequence[int], dict[str, Tensor]]]:
        if requests is not None:
            requests.append(list(clients))
        return models(shifts, clients)

    return RoundFinished(
        round_, total, FedState(round_, {}), personal=personal,
        before_finetuning=lambda clients: models(before or {}, clients),
        shared=lambda: {"shift": torch.tensor([everyone])},
        finetuning={} if before is None else {"epochs": 1.0},
    )


def frozen(values: Sequence[int]) -> np.ndarray:
    """Return a read-only int64 array, as the real data has them."""
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def federated(
    labels: Sequence[int], clients: Sequence[tuple[Sequence[int], Sequence[int]]],
    test: Sequence[int], new: Sequence[int] = (), new_classnames: Sequence[str] = (),
    others: Sequence[Any] = (),
) -> Any:
    """Return a data object; ``clients`` are (train indices, test indices)."""
    splits = [SimpleNamespace(train=frozen(a), val=frozen([]), test=frozen(b)) for a, b in clients]
    return SimpleNamespace(
        labels=frozen(labels), clients=splits, global_test=frozen(test), new_test=frozen(new),
        new_classnames=list(new_classnames), classnames=["a", "b", "c", "d"],
        others=list(others),
    )


def other(name: str, kind: str, indices: Sequence[int], classnames: Sequence[str]) -> Any:
    """Return one more test set."""
    return SimpleNamespace(
        name=name, kind=kind, classnames=list(classnames), templates=[f"{name} {{}}"],
        indices=frozen(indices),
    )
