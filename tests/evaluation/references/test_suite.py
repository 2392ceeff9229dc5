"""The references of a small federation, each by hand; what they look at, and what they do not."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.evaluation.references import suite
from fedvlm.evaluation.references.heads import HeadClient, alone_heads
from fedvlm.evaluation.references.logistic import NAMES_GRID, Frozen, regressions
from fedvlm.evaluation.references.suite import (
    ALONE,
    BOUND,
    TOGETHER,
    Asked,
    of_class_names,
    order,
    template_reference,
)
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.toolbox import moments
from tests.evaluation.fakes import FakeModel, federated

pytestmark = pytest.mark.filterwarnings("error")

CLASSES, EACH, WIDTH = 4, 20, 6
LABELS = np.repeat(np.arange(CLASSES), EACH).tolist()  # sample i is of class i // EACH


class Source:
    """Class c lies around the c-th axis; which samples were fetched is written down."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        noise = torch.randn(len(LABELS), WIDTH, generator=draw)
        self.labels = torch.tensor(LABELS)
        self.features = torch.eye(WIDTH)[self.labels] + 0.4 * noise
        self.seen: set[int] = set()

    def fetch(self, indices: torch.Tensor, view: int) -> dict[str, torch.Tensor]:
        assert view == 0
        self.seen |= set(indices.tolist())
        return {"features": self.features[indices]}


def pick(*parts: tuple[int, range]) -> list[int]:
    """Return samples: (class, places among its samples)."""
    return [c * EACH + i for c, places in parts for i in places]


# Client 0: classes 0 (much) and 1; client 1: 2 and 3, evenly; client 2 never works.
TRAIN = (pick((0, range(6)), (1, range(2))), pick((2, range(4)), (3, range(4))),
         pick((1, range(2, 6))))
TEST = (pick((0, range(10, 14)), (1, range(10, 12)), (2, range(10, 12))),
        pick((2, range(12, 16)), (3, range(10, 14))), pick((1, range(12, 15))))
VAL = {0: pick((0, range(6, 9)), (1, range(6, 9))), 1: pick((2, range(6, 9)), (3, range(6, 9)))}


def asked(labels: Any = LABELS, val: Any = VAL) -> Asked:
    clients = list(zip(TRAIN, TEST, strict=True))
    return Asked(Source(), federated(labels, clients, [], val=val), [0, 1], [0, 1], CLASSES)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return suite.references(asked())


def test_chance_and_the_commonest_class(found: dict[str, dict[str, Any]]) -> None:
    assert [(r["n"], r["correct"]) for r in found["chance"]["clients"]] == [(8, 2.0), (8, 2.0)]
    assert found["chance"]["personal"] == found["chance"]["personal_balanced"] == 25.0
    # client 0 says 0: 4 of 8, one of its three classes; client 1 says 2, the first of equals
    assert [r["correct"] for r in found["majority"]["clients"]] == [4, 4]
    assert found["majority"]["personal"] == 50.0
    assert found["majority"]["personal_balanced"] == pytest.approx((100 / 3 + 50) / 2)


def test_kinds_lines_and_means(found: dict[str, dict[str, Any]]) -> None:
    kinds = {name: one["kind"] for name, one in found.items()}
    assert kinds == {"chance": ALONE, "majority": ALONE, "logreg": ALONE, "afl": TOGETHER,
                     "afl_prior": TOGETHER, "pooled": BOUND}
    assert json.loads(json.dumps(found)) == found
    for one in found.values():
        shares = [100 * r["correct"] / r["n"] for r in one["clients"]]
        assert [r["client"] for r in one["clients"]] == [0, 1]
        assert one["personal"] == pytest.approx(np.mean(shares))
        assert one["personal_worst"] == pytest.approx(min(shares))
        assert one["personal_std"] == pytest.approx(np.std(shares))


def test_regressions_know_what_they_were_trained_on(found: dict[str, dict[str, Any]]) -> None:
    """Client 0 has no image of class 2, two of its eight test images are of it; others have."""
    alone, pooled = (found[name]["clients"] for name in ("logreg", "pooled"))
    assert alone[0]["correct"] <= 6 and alone[1]["correct"] >= 7
    assert pooled[0]["correct"] >= 6
    assert "chosen on validation" in found["logreg"]["how"]
    assert found["afl"]["how"].endswith("by cross-validation")
    assert found["pooled"]["how"].startswith("centralised: L2 ")


def test_the_ridge_with_class_shares_is_chosen_on_images_left_out(
    found: dict[str, dict[str, Any]]
) -> None:
    """Each training image by the solution without it, in the sums and in the shares."""
    one = asked()
    ridge = suite._Ridge.of(one)
    z = {c: one.source.features[TRAIN[c]].double() for c in (0, 1)}  # type: ignore[attr-defined]
    y = {c: torch.tensor(LABELS)[TRAIN[c]] for c in (0, 1)}
    hot = {c: torch.nn.functional.one_hot(y[c], CLASSES).double() for c in (0, 1)}
    gram = sum(z[c].mT @ z[c] for c in (0, 1))
    cross = sum(z[c].mT @ hot[c] for c in (0, 1))
    eye = torch.linalg.inv(ridge.inverse) - gram  # the ridge
    rates = []
    for temper in moments.TEMPERS:
        each = []
        for c in (0, 1):
            right = 0
            for i in range(len(y[c])):
                row = z[c][i : i + 1]
                rest = gram - row.mT @ row + eye
                w = torch.linalg.solve(rest, cross - row.mT @ hot[c][i : i + 1])
                counts = hot[c].sum(0) - hot[c][i] + moments.SMOOTH
                scores = row @ w + temper * (counts / counts.sum()).log()
                right += int(scores.argmax() == y[c][i])
            each.append(right / len(y[c]))
        rates.append(np.mean(each))
    temper = moments.TEMPERS[int(np.argmax(rates))]
    assert ridge.temper(one) == temper > 0
    for c, row in enumerate(found["afl_prior"]["clients"]):
        counts = hot[c].sum(0) + moments.SMOOTH
        test = one.source.features[TEST[c]].double()  # type: ignore[attr-defined]
        said = (test @ ridge.weights + temper * (counts / counts.sum()).log()).argmax(1)
        assert row["correct"] == int((said == torch.tensor(LABELS)[TEST[c]]).sum())
    assert f"plus {temper:g} times the log of the client's class shares" in (
        found["afl_prior"]["how"])


def test_an_image_that_is_alone_in_its_class_says_nothing_for_class_shares() -> None:
    """Each class has one image, so without it no client has that class: shares only mislead."""
    clients = [(pick((0, range(1)), (1, range(1))), TEST[0]),
               (pick((2, range(1)), (3, range(1))), TEST[1])]
    one = Asked(Source(), federated(LABELS, clients, []), [0, 1], [0, 1], CLASSES)  # type: ignore[arg-type]
    assert suite._Ridge.of(one).temper(one) == 0.0


def test_nobody_looks_at_who_never_works(found: dict[str, dict[str, Any]]) -> None:
    one = asked()
    suite.references(one)
    assert not set(TRAIN[2] + TEST[2]) & one.source.seen  # type: ignore[attr-defined]


def test_test_labels_choose_nothing(found: dict[str, dict[str, Any]]) -> None:
    labels = list(LABELS)
    for sample in {*TEST[0], *TEST[1]}:
        labels[sample] = (labels[sample] + 2) % CLASSES
    other = suite.references(asked(labels))
    assert {n: r["how"] for n, r in other.items()} == {n: r["how"] for n, r in found.items()}
    assert other["pooled"]["personal"] < 40 < found["pooled"]["personal"]


def test_without_validation_images_training_ones_are_held_out() -> None:
    made = suite.references(asked(val={}))
    assert "chosen on cross-validation" in made["logreg"]["how"]
    assert made["afl"]["how"] == suite.references(asked())["afl"]["how"]  # sees none of either
    assert made["logreg"]["personal"] > 60


def test_references_of_class_names() -> None:
    """The template sees the look of an image; classes and shares of a client change the answer."""
    one = asked()
    rows: Any = [{"client": c, "n": 8, "correct": 4, "accuracy": 50.0, "balanced": 40.0,
                  "macro_f1": 1.0} for c in (0, 1)]
    made = template_reference(rows) | of_class_names(one, FakeModel("abcd"))  # type: ignore[arg-type]
    assert made["zero_shot"]["personal"] == 50.0 and "macro_f1" not in str(made["zero_shot"])
    logits = one.source.features[:, :CLASSES].numpy()  # type: ignore[attr-defined]
    counts = np.array([[6, 2, 0, 0], [0, 0, 4, 4]])
    for c, (test, n) in enumerate(zip(TEST[:2], counts, strict=True)):
        true = np.array(LABELS)[test]
        local = np.where(n > 0, logits[test], -np.inf).argmax(1)
        prior = (logits[test] + np.log((n + 1) / (n.sum() + CLASSES))).argmax(1)
        for name, said in (("zero_shot_local", local), ("zero_shot_prior", prior)):
            assert made[name]["clients"][c]["correct"] == int((said == true).sum())
    assert list(order(made | suite.references(one))) == list(suite.NAMES)


def test_a_regression_starts_from_the_names() -> None:
    """It answers as the head does that ``heads`` adds to the names' logits; held, as the names."""
    said = torch.randn(len(LABELS), CLASSES, generator=torch.Generator().manual_seed(4)).double()
    frozen = Frozen(Source(), np.array(LABELS), names=lambda i: said[torch.tensor(i)].clone())  # type: ignore[arg-type]
    shares = [share(list(train), [], list(range(len(LABELS)))) for train in (
        *TRAIN, pick(*((c, range(3)) for c in range(CLASSES))))]
    for l2, tempered in ((1e-2, 0), (1e9, 1)):
        made = regressions(frozen, shares, (l2,))
        clients = [HeadClient(frozen.x(s.train), frozen.y(s.train)) for s in shares]
        (wanted,) = alone_heads(clients, CLASSES, (l2,), [said[s.train] for s in shares])
        for k, one in enumerate(made):
            scores = wanted.one(k).logits(frozen.x(shares[k].test))[0] + said
            assert one.labels.tolist() == scores.argmax(1).tolist()
            names_alone = (one.labels == said.argmax(1).numpy()).mean()
            assert names_alone == 1 if tempered else names_alone < 0.9
    assert {one.l2 for one in regressions(frozen, shares)} <= set(NAMES_GRID)


def test_a_pooled_regression_that_is_too_large_is_left_out(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "MOST", {"cpu": 10.0})
    made = suite.references(asked())["pooled"]
    assert made["personal"] is None and made["clients"] == []
    assert made["how"].startswith("centralised: left out, 16 images of 4 classes")


# ---- logistic regressions of odd clients -------------------------------------------------------
def share(train: list[int], val: list[int], test: list[int]) -> IndexSplit:
    return IndexSplit(*(np.array(part, dtype=np.int64) for part in (train, val, test)))


def test_odd_clients() -> None:
    """One image, one class, no test image; in the order in which they were given."""
    frozen = Frozen(Source(), np.array(LABELS))  # type: ignore[arg-type]
    test = pick((0, range(10, 13)), (3, range(10, 13)))
    made = regressions(frozen, [
        share([0], [], test), share(pick((3, range(5))), [], test),
        share(pick((0, range(5)), (3, range(5))), [], []),
        share(pick((0, range(5)), (3, range(5))), pick((1, range(2))), test),
    ])
    assert made[0].labels.tolist() == [0] * 6 and made[1].labels.tolist() == [3] * 6
    assert len(made[2].labels) == 0
    # whatever validation images it has, they are of a class it does not know: the strongest
    assert made[3].labels.tolist() == [0, 0, 0, 3, 3, 3] and made[3].judge == "validation"
    assert made[3].l2 == 1.0 and made[2].judge == "cross-validation"


def test_many_images_are_held_out_once_and_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedvlm.evaluation.references import logistic

    frozen = Frozen(Source(), np.array(LABELS))  # type: ignore[arg-type]
    every = share(pick((0, range(10)), (3, range(10))), [], pick((0, range(10, 20))))
    monkeypatch.setattr(logistic, "LARGE", 10)
    monkeypatch.setattr(logistic, "CHUNK_BYTES", 1)
    one, two = regressions(frozen, [every, every])
    assert one.labels.tolist() == two.labels.tolist() and one.l2 == two.l2
    assert (one.labels == 0).sum() >= 8


def test_a_regression_does_not_hang_on_whose_is_solved_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of a few images is cross-validated in five parts, in float64, whoever has many."""
    from fedvlm.evaluation.references import logistic

    monkeypatch.setattr(logistic, "LARGE", 10)
    frozen, held = Frozen(Source(), np.array(LABELS)), list[tuple[int, torch.dtype]]()  # type: ignore[arg-type]
    real = logistic._cross_validated

    def watched(problems: Any, *rest: Any) -> Any:
        held.append((problems.w.shape[1], problems.x.dtype))
        return real(problems, *rest)

    monkeypatch.setattr(logistic, "_cross_validated", watched)
    few = share(pick((0, range(3)), (3, range(3))), [], pick((0, range(10, 20))))
    many = share(pick((0, range(10)), (3, range(10))), [], pick((0, range(10, 20))))
    (alone,), (beside, _) = regressions(frozen, [few]), regressions(frozen, [few, many])
    assert held == [(6, torch.float64), (20, torch.float32), (6, torch.float64)]
    assert alone.l2 == beside.l2 and alone.labels.tolist() == beside.labels.tolist()


def test_features_of_any_length_count_alike() -> None:
    source = Source()
    longer = SimpleNamespace(fetch=lambda i, view: {"features": 7 * source.features[i]})
    indices = np.array([3, 1])
    a, b = (Frozen(s, np.array(LABELS)).x(indices) for s in (source, longer))  # type: ignore[arg-type]
    assert torch.allclose(a, b) and torch.allclose(a.norm(dim=1), torch.ones(2).double())


def test_means_are_over_the_clients_that_a_run_judges(found: dict[str, dict[str, Any]]) -> None:
    """Of a site that was away at the end the baselines tell as little as the run."""
    rows = [dict(row) for row in found["logreg"]["clients"]]
    assert suite.of_judged(found, rows) == (found, [])
    here = [row for row in rows if row["n"]][1:]
    some, lost = suite.of_judged(found, here)
    assert lost == [row["client"] for row in rows if row["n"]][:1]
    for name in ("logreg", "afl", "pooled", "chance"):
        theirs = [row for row in found[name]["clients"] if row in some[name]["clients"]]
        assert [row["client"] for row in theirs] == [row["client"] for row in here]
        assert some[name]["personal"] == pytest.approx(np.mean([r["accuracy"] for r in theirs]))
        assert some[name]["personal_worst"] == min(r["accuracy"] for r in theirs)
    assert suite.of_judged(found, [row | {"accuracy": None} for row in rows]) == (found, [])
