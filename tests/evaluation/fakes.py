"""A model, a method and a federation whose every prediction is known in closed form.

A sample shows the class it looks like (one-hot features). A model adds its ``shift`` to that class,
modulo the number of classes: shift 0 is always right where samples look like what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.evaluation import ClientMeter, Evaluator, panel_of, zero_shot
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.rounds import RoundFinished
from fedvlm.federation.server import Measure, Roster, Row, count_roster, only_numbers
from fedvlm.federation.workplace import Meter, PersonalModels

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

    open_vocabulary = True

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


@dataclass(frozen=True)
class Round:
    """A finished round whose personal models are known (see ``finished``)."""

    round: int
    total: int
    shifts: Mapping[int, float]
    everyone: float
    chunk: int
    before: Mapping[int, float] | None
    drawn: Sequence[int]
    requests: list[tuple[list[int], Measure]]

    def event(self, meter: Meter, roster: Roster) -> RoundFinished:
        """Return the event as a driver with ``meter`` tells it."""

        def rows(clients: Sequence[int], measure: Measure) -> list[Row]:
            self.requests.append((list(clients), measure))
            after = measure.finetuned or self.before is None
            values = self.shifts if after else self.before or {}
            return only_numbers(meter(measure, self.models(values, clients)), clients)

        work = Updates(tuple(self.drawn), {}, torch.ones(len(self.drawn)), {}, {}, {})
        return RoundFinished(
            self.round, self.total, {}, {"shift": torch.tensor([self.everyone])}, roster, rows,
            finetuning={} if self.before is None else {"epochs": 1.0},
            updates=work if self.round else None,
        )

    def models(self, values: Mapping[int, float], clients: Sequence[int]) -> PersonalModels:
        assert torch.is_grad_enabled()  # a method may fine-tune a copy here
        order = [c for c in reversed(clients) if c in values]
        for i in range(0, len(order), self.chunk):
            ids = order[i : i + self.chunk]
            assert torch.is_grad_enabled()
            yield ids, {"shift": torch.tensor([float(values[c]) for c in ids])}


def finished(
    round_: int, total: int, shifts: Mapping[int, float], everyone: float = 0.0, *, chunk: int = 2,
    before: Mapping[int, float] | None = None, drawn: Sequence[int] | None = None,
) -> Round:
    """Return a finished round; chunks of clients come in another order.

    Args:
        shifts: of each client's model; clients without one get none.
        everyone: shift of the shared model.
        before: shifts before a final fine-tuning; None where there was none.
        drawn: who worked; default: all.
    """
    who = sorted(shifts) if drawn is None else drawn
    return Round(round_, total, shifts, everyone, chunk, before, who, [])


class Judge:
    """Both halves of an evaluation, as the job puts them together."""

    def __init__(
        self, model: Any, trainer: Any, source: FakeSource, data: Any, *, fold: bool = True,
        batch_size: int = 256, unseen: Sequence[int] = (), keep_logits: bool = False,
        cross: bool | None = None, confusion: bool = False, **panel: Any,
    ) -> None:
        counted = count_roster(data.clients, torch.from_numpy(data.labels.copy()))
        self.roster = replace(counted, unseen=tuple(unseen))
        self.meter = ClientMeter(model, trainer, source, data, batch_size=batch_size, fold=fold)
        self.evaluator = Evaluator(
            model, trainer, source, data, panel_of(self.roster, **panel), batch_size=batch_size,
            keep_logits=keep_logits, cross=cross, confusion=confusion,
        )

    def __call__(self, what: object) -> dict[str, Any] | None:
        """Evaluate a round."""
        event = what.event(self.meter, self.roster) if isinstance(what, Round) else what
        return self.evaluator(event)

    def validate(self, what: Round) -> float | None:
        """Return the number that selects a round."""
        return self.evaluator.validate(what.event(self.meter, self.roster))

    def zero_shot(self, **how: Any) -> dict[str, Any]:
        """Return the reference row."""
        e = self.evaluator
        return zero_shot(
            e.model, e._batches.source, e.data, e.panel, self.meter.template,
            batch_size=e._batches.batch_size, **how,
        )

    @property
    def logits(self) -> dict[str, Tensor]:
        """What both halves keep."""
        return self.evaluator.logits | self.meter.logits


def frozen(values: Sequence[int]) -> np.ndarray:
    """Return a read-only int64 array, as the real data has them."""
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def federated(
    labels: Sequence[int], clients: Sequence[tuple[Sequence[int], Sequence[int]]],
    test: Sequence[int], new: Sequence[int] = (), new_classnames: Sequence[str] = (),
    others: Sequence[Any] = (), val: Mapping[int, Sequence[int]] | None = None,
) -> Any:
    """Return a data object; ``clients`` are (train indices, test indices)."""
    splits = [
        SimpleNamespace(train=frozen(a), val=frozen((val or {}).get(c, [])), test=frozen(b))
        for c, (a, b) in enumerate(clients)
    ]
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
