"""One client only, clients with one image, and what fewer simulated clients would have."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedvlm.advise import judge
from fedvlm.advise.gather import Gathered
from fedvlm.advise.judge import Judged, judge_clients
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from tests.advise.fakes import made_up


def judged(
    found: Gathered, monkeypatch: pytest.MonkeyPatch, *words: str
) -> Judged:
    monkeypatch.setattr(judge, "gather_clients", lambda *_: found)
    return judge_clients(resolve(parse(["--demo", *words])).jobs[0].cfg, "fedvlm run X")


def test_one_client_has_nobody_to_share_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows together, no verdict and no cost: only what it reaches and how."""
    found = judged(made_up([range(3)], 30, spread=0.8), monkeypatch)
    assert found.lines[0].startswith("1 client, 30 training images, 3 classes; ")
    assert found.lines[1].startswith("Alone (logistic regression) it reaches accuracy ")
    assert found.lines[2:] == [
        "There is one client only: nobody to share with.",
        "Next: fedvlm run X --trainer LocalOnly --peft head --lr 0.5 --rounds 50"]
    assert found.record["verdict"] is None and "cost" not in found.record
    assert list(found.record["reached"]) == ["logreg"]
    alone = judged(made_up([[0, 1]], 1), monkeypatch)
    assert alone.lines[1:] == [
        "Verdict: cannot say: no client has two images that differ, so none can be held out.",
        "There is one client only: nobody to share with."]
    assert alone.record["command"] == ""


def test_clients_with_one_image_each_get_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made_up([[0], [1], [0]], 1)
    found = judged(data, monkeypatch, "--partition", "iid")
    assert found.lines == [
        "3 clients, 3 training images, 2 classes; no test image was opened",
        "Verdict: cannot say: no client has two images that differ, so none can be held out.",
        "To try it all the same: fedvlm run X --trainer AFL --rounds 1",
        "It costs 1,344 bytes up and 96 down per client, once (sums in float64). AFL's sums tell "
        "the feature and class of every image that is a client's only one of its class."]
    assert found.record["verdict"] == "cannot say"
    assert [c["images"] for c in found.record["clients"]] == [1, 1, 1]


def test_a_client_with_one_image_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made_up([[0, 1], [0, 1], [0, 1]], 8)
    cut = {name: [*getattr(data, name)[:2], getattr(data, name)[2][:1]]
           for name in ("features", "labels", "trains", "groups")}
    found = judged(replace(data, ids=["Bern", "Graz", "Nice"], **cut), monkeypatch)
    assert found.lines[0].startswith("2 clients, 8 training images each")
    assert found.lines[1] == "Not judged: 1 client with one image (Nice)"
    assert found.record["too_few"] == ["Nice"]


def test_simulated_clients_that_are_too_small_hear_how_many_are_not(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made_up([[0, 1], [2, 3], [4, 5]] * 2, 16, spread=0.5)
    found = judged(data, monkeypatch, "--partition", "iid")
    assert found.record["verdict"] == "cannot say" and found.record["enough_with_clients"] == 2
    assert any(line.startswith("This points ") and "--num-users 2, have about 48 images" in line
               for line in found.lines)


def cfg(partition: str = "dirichlet", index: str = "") -> Any:
    return SimpleNamespace(FED=SimpleNamespace(PARTITION=partition, INDEX_FILE=index))


def test_to_how_many_clients_the_same_images_could_be_dealt() -> None:
    """Forty images each, where clients are simulated and no image is several clients'."""
    data = made_up([[0, 1]] * 10, 16)
    assert judge._fewer(cfg(), data, 160) == 4
    assert judge._fewer(cfg("natural"), data, 160) == judge._fewer(cfg("domain"), data, 160) == 0
    assert judge._fewer(cfg(index="partition.json"), data, 160) == 0
    assert judge._fewer(cfg(), data, 79) == 0 and judge._fewer(cfg(), data, 400) == 0
    same = replace(data, groups=[np.arange(16)] * 10)
    assert judge._fewer(cfg(), same, 160) == 0
