"""``OPTIM.CLASS_WEIGHTS``: what a class counts in the loss, against plain computations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.check.world import BASE, CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.federation.batches import Batch, IndexSplit
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.local.balance import Balance, class_weights, sample_costs
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.federation.trainer import Trainer, cross_entropy

LABELS = np.array([0, 0, 0, 1, 2, 2, 1, 1])  # client 0 has 0 to 5, client 1 the others
CLIENTS = [IndexSplit(np.arange(6), np.zeros(0), np.zeros(0)),
           IndexSplit(np.arange(6, 8), np.zeros(0), np.zeros(0))]



def test_balanced_is_scikit_learns() -> None:
    pytest.importorskip("sklearn")
    from sklearn.utils.class_weight import compute_class_weight

    said = compute_class_weight("balanced", classes=np.arange(3), y=LABELS[:6])
    np.testing.assert_allclose(class_weights(np.bincount(LABELS[:6]), "balanced"), said)


def test_effective_numbers_by_hand() -> None:
    counts = np.array([1000, 10, 0])
    raw = 0.001 / (1 - 0.999 ** counts[:2])
    found = class_weights(counts, "effective")
    np.testing.assert_allclose(found[:2], raw * 1010 / (counts[:2] @ raw))
    assert found[2] == 1.0 and 1 < found[1] / found[0] < 100


@pytest.mark.parametrize("kind", ["balanced", "effective"])
@pytest.mark.parametrize("counts", [(3, 3, 3), (7, 0, 7), (0, 0, 0), (5,)])
def test_balanced_data_count_exactly_one(kind: str, counts: tuple[int, ...]) -> None:
    assert class_weights(np.array(counts), kind).tolist() == [1.0] * len(counts)


def test_a_label_has_the_two_classes_with_and_without() -> None:
    sets = np.array([[1, 0], [0, 0]])
    found = sample_costs(np.array([0, 1, 1, 1]), 2, "balanced", sets)
    np.testing.assert_allclose(found, [[2, 1], [2 / 3, 1], [2 / 3, 1], [2 / 3, 1]])


def test_the_loss_is_a_weighted_cross_entropy_of_each_client() -> None:
    """Over all of a client's images it is PyTorch's own, by the client's own counts."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, 3, generator=draw, dtype=torch.float64)
    y = torch.tensor([[0, 0, 0, 1, 2, 2], [1, 1, 0, 0, 0, 0]])
    w = torch.tensor([[1.0] * 6, [1.0] * 2 + [0.0] * 4], dtype=torch.float64)
    balance = Balance("balanced", LABELS, CLIENTS, 3)
    batch = Batch({}, y, w, clients=(0, 1), balance=balance)
    found = cross_entropy(logits, batch)
    by_class = torch.tensor([6 / 9, 6 / 3, 6 / 6], dtype=torch.float64)
    assert float(found[0]) == pytest.approx(float(F.cross_entropy(logits[0], y[0], by_class)))
    assert float(found[1]) == pytest.approx(float(F.cross_entropy(logits[1, :2], y[1, :2])))
    later = cross_entropy(logits[1:], Batch({}, y[1:], w[1:], clients=(1,), balance=balance))
    assert torch.equal(later, found[1:])  # a client keeps its weights when others have finished
    plain = replace(batch, y=torch.ones_like(y), balance=None)
    assert torch.equal(cross_entropy(logits, plain)[1], found[1])


def test_sets_weigh_each_label() -> None:
    sets = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    labels = np.array([0, 1, 1, 1])
    balance = Balance("balanced", labels, [IndexSplit(np.arange(4), labels, labels)], 2,
                      sets.numpy())
    z = torch.tensor([[[0.3, -0.2], [0.1, 0.5], [-1.0, 0.0], [2.0, 0.4]]])
    batch = Batch({}, torch.tensor([[0, 1, 1, 1]]), torch.ones(1, 4), clients=(0,), sets=sets,
                  balance=balance)
    truth = sets[[0, 1, 1, 1]]
    cost = torch.tensor([[2.0, 1.0], [2 / 3, 1], [2 / 3, 1], [2 / 3, 1]])
    said = F.binary_cross_entropy_with_logits(z[0], truth, cost, reduction="sum") / 4
    assert float(cross_entropy(z, batch)[0]) == pytest.approx(float(said))


# ---- every method --------------------------------------------------------------------------------
WORLD = CheckWorld()


def trained(
    cls: type[Trainer], kind: str, even: bool = False, rounds: int = 2
) -> dict[str, Tensor]:
    """Return the server's and the personal tensors after rounds of two clients."""
    world, (first, second, *_) = WORLD, WORLD.splits
    splits = [first, second]
    if even:  # one image of each class
        labels = world.labels.numpy()
        each = np.array(sorted(np.flatnonzero(labels == c)[0] for c in range(len(BASE))))
        splits = [replace(first, train=each), replace(second, train=each)]
    fed = world.federation(cls, Setup(rounds=rounds, splits=splits))
    if kind != "none":
        balance = Balance(kind, world.labels.numpy(), splits, len(BASE))
        fed.batcher = replace(fed.batcher, balance=balance)  # type: ignore[type-var]
        fed.trainer.check_weights(kind)
    state = fed.run()
    rows = {f"server/{s}/{n}": v for s, tree in state.server.items() for n, v in tree.items()}
    for ids, params in fed.personal(state, range(len(splits))):
        rows |= {f"{c}/{n}": v[k] for n, v in params.items() for k, c in enumerate(ids)}
    return rows


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[n]) for n, v in a.items())


@pytest.mark.parametrize("name", sorted(trainer_files()))
def test_every_method_trains_by_them_or_refuses(name: str) -> None:
    """From its first round on."""
    cls = load_trainer(name)
    if cls.unweighted:
        with pytest.raises(ConfigError, match=f"OPTIM.CLASS_WEIGHTS balanced: .*{cls.unweighted}"):
            trained(cls, "balanced")
        return
    assert not equal(trained(cls, "none", rounds=1), trained(cls, "balanced", rounds=1))


@pytest.mark.parametrize("name", ["FedAvg", "Ditto", "PromptFL", "FedPer", "FedTV"])
def test_balanced_data_give_the_same_bits(name: str) -> None:
    cls = load_trainer(name)
    assert equal(trained(cls, "none", True), trained(cls, "balanced", True))
    assert equal(trained(cls, "none", True), trained(cls, "effective", True))


class Deaf(load_trainer("FedAvg")):  # type: ignore[misc]
    """A loss of its own that does not ask."""

    name = "FedAvg"

    def loss(self, model: Any, params: Any, batch: Batch) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(self.predict(model, params, batch.x), replace(batch, balance=None))


def test_a_method_that_does_not_read_them_ends_the_run() -> None:
    with pytest.raises(ConfigError, match="FedAvg has trained without reading class weights"):
        trained(Deaf, "balanced")
    trained(Deaf, "none")


def test_a_criterion_of_its_own_is_refused() -> None:
    class Own(ModuleTrainer):
        name = "Own"

        def criterion(self, out: Any, y: Tensor, w: Tensor) -> Tensor:
            return w.sum()

    with pytest.raises(ConfigError, match="has a criterion of its own"):
        Own.check_weights(object.__new__(Own), "balanced")
