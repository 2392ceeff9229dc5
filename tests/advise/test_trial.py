"""Cross-validation says what new images would, is not fooled by copies, and opens no secret."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedvlm.advise import trial as t
from fedvlm.advise.gather import Gathered
from fedvlm.core.errors import DataError
from fedvlm.evaluation.references import heads
from tests.advise.fakes import made_up

SHARED = [range(4)] * 6


def means(found: Gathered) -> dict[str, float]:
    got = t.try_heads(found)
    return {name: float(got.personal(one).mean()) for name, one in got.reached.items()}


@pytest.fixture(scope="module")
def shared() -> Gathered:
    return made_up(SHARED, 12)


def test_it_is_what_new_images_say(shared: Gathered) -> None:
    found = means(shared)
    fresh = made_up(SHARED, 400)  # the same clouds, since they are drawn first
    clients = [heads.HeadClient(F.normalize(x, dim=-1), y)
               for x, y in zip(shared.features, shared.labels, strict=True)]
    x = F.normalize(torch.cat(list(fresh.features)), dim=-1)
    y = torch.cat(list(fresh.labels))
    best = max(
        float((one.logits(x)[0].argmax(1) == y).double().mean()) * 100
        for one in heads.shared_heads(clients, 4, heads.common_scale(clients)))
    assert found[t.FEDAVG] == pytest.approx(best, abs=7)
    assert found[t.POOLED] == found[t.FEDAVG] > found[t.LOGREG] + 2
    assert found[t.MAJORITY] == pytest.approx(25, abs=1)


def test_labels_that_say_nothing_are_not_learnt() -> None:
    plain = means(made_up(SHARED, 20, noise=True))
    assert all(12 < value < 38 for value in plain.values())


def test_a_group_that_is_there_several_times_raises_no_number() -> None:
    noise = {"noise": True, "spread": 1.0}
    once = means(made_up(SHARED, 12, **noise))
    copies = means(made_up(SHARED, 12, times=4, grouped=True, **noise))
    assert copies == pytest.approx(once, abs=0.5)
    leaking = means(made_up(SHARED, 12, times=4, **noise))
    assert leaking[t.LOGREG] > 90 > once[t.LOGREG] + 40  # what groups are for


def test_no_head_knows_the_labels_that_it_is_asked_for(shared: Gathered) -> None:
    """A start from another fold's solution would: solvers stop before they have forgotten it."""
    folds = [torch.arange(len(y)) % 3 for y in shared.labels]

    def said(labels: list[torch.Tensor]) -> list[torch.Tensor]:
        clients = [heads.HeadClient(F.normalize(x, dim=-1), y)
                   for x, y in zip(shared.features, labels, strict=True)]
        work = t._Work(clients, clients, shared.trains, folds, 3, 4)
        for f in range(3):
            work.fit_together(f)
        return [head.weights for head in work.shared[1]]

    other = [torch.where(fold == 1, (y + 1) % 4, y)
             for fold, y in zip(folds, shared.labels, strict=True)]
    for a, b in zip(said(list(shared.labels)), said(other), strict=True):
        assert torch.equal(a, b)


def test_validation_images_are_judged_and_train_nothing(shared: Gathered) -> None:
    trains = [torch.arange(len(y)) < 8 for y in shared.labels]
    found = t.try_heads(Gathered(**vars(shared) | {"trains": trains}))
    assert all(len(right) == 12 for right in found.reached[t.FEDAVG])
    cut = [torch.arange(len(y)) < 4 for y in shared.labels]
    wrong = [torch.where(keep, y, (y + 1) % 4)
             for keep, y in zip(cut, shared.labels, strict=True)]
    fooled = t.try_heads(Gathered(**vars(shared) | {"trains": cut, "labels": wrong}))
    right = torch.stack([r[4:] for r in fooled.reached[t.FEDAVG]])
    assert float(right.mean()) < 0.3  # had their labels been trained on, they would be right


def test_who_knows_its_classes_does_better_where_clients_have_their_own() -> None:
    found = t.try_heads(made_up([[0, 1], [2, 3], [0, 1], [2, 3]], 24, spread=3.0))
    personal = {name: float(found.personal(r).mean()) for name, r in found.reached.items()}
    assert personal[t.LOGREG] > personal[t.FEDAVG] + 5
    assert personal[t.AFL_PRIOR] > personal[t.AFL] + 5
    assert personal[t.DITTO] > personal[t.FEDAVG]


def test_shared_heads_start_from_class_names_that_say_something() -> None:
    found = made_up([range(4)] * 3, 4, spread=3.0)
    fresh = made_up([range(4)] * 3, 400, spread=3.0)  # the same clouds
    x, y = torch.cat([F.normalize(x, dim=-1) for x in fresh.features]), torch.cat(
        list(fresh.labels))
    anchor = 10 * torch.stack([x[y == c].mean(0) for c in range(4)])

    def tried(anchor: torch.Tensor | None) -> t.CrossValidation:
        return t.try_heads(replace(found, anchor=anchor))

    plain, named, blind = tried(None), tried(anchor), tried(-anchor)
    for name in (t.FEDAVG, t.DITTO, t.POOLED):
        better = named.personal(named.reached[name]) - plain.personal(plain.reached[name])
        assert float(better.mean()) > 5
    assert named.hold in t.NAMES_GRID and plain.hold == blind.hold == 0
    for name, right in plain.reached.items():  # names that are wrong change no bit
        assert all(map(torch.equal, right, blind.reached[name]))
        if name not in (t.FEDAVG, t.DITTO, t.POOLED):
            assert all(map(torch.equal, right, named.reached[name]))


def test_a_client_with_one_image_of_most_classes_is_left_out() -> None:
    """Held out, an image leaves none of its class: alone would be wrong, and together the gain."""
    found = made_up([range(4)] * 3, 12)
    few = made_up([range(4)], 4, seed=3)
    few = replace(few, groups=[few.groups[0] + 100])

    def joined(**more: Any) -> Gathered:
        return replace(
            found, ids=[*found.ids, "few"], bare=(), **more,
            **{name: [*getattr(found, name), *getattr(few, name)]
               for name in ("features", "labels", "groups", "trains")})

    assert t.try_heads(joined(named=True)).ids == [0, 1, 2]
    assert t.try_heads(joined()).ids == [0, 1, 2, 3]  # dealt to clients, in some proportion
    meet = torch.tensor([True, False, False, True])  # an image for validation meets all others
    labels = torch.tensor([0, 0, 0, 1])
    judged = joined(named=True)
    judged = replace(judged, labels=[*judged.labels[:3], labels], trains=[*judged.trains[:3], meet])
    assert t.try_heads(judged).ids == [0, 1, 2, 3]
    with pytest.raises(t.NothingToJudge, match="most classes of each client have one image"):
        t.try_heads(replace(few, named=True))


def test_clients_of_one_image_are_left_out_and_none_left_is_an_error(shared: Gathered) -> None:
    one = made_up([[0, 1, 2, 3]], 1, seed=3)
    both = Gathered(**vars(shared) | {
        name: [*getattr(shared, name), *getattr(one, name)]
        for name in ("ids", "features", "labels", "trains")
    } | {"groups": [*shared.groups, one.groups[0] + 10_000]})
    assert list(t.try_heads(both).ids) == list(range(len(SHARED)))
    with pytest.raises(DataError, match="no client has two images"):
        t.try_heads(one)
