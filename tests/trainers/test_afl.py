"""AFL: the server's solution is that of all images, however they are dealt, with its ridge."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlm.check.invariants import run
from fedvlm.check.world import Setup
from fedvlm.core.errors import ConfigError
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.toolbox.moments import RIDGES, SMOOTH, TEMPERS
from tests import jobs
from tests.trainers.small_world import method, world

IMAGES = 30
DEALT = [(0, 30), (0, 3, 12, 30), (0, 29, 30)]


def trained(edges: tuple[int, ...], **options: object) -> dict[str, dict[str, torch.Tensor]]:
    """Return the server's state after two rounds over clients of the images between ``edges``."""
    none = np.zeros(0, np.int64)
    splits = [IndexSplit(np.arange(i, j), none, none)
              for i, j in zip(edges[:-1], edges[1:], strict=True)]
    setup = Setup(splits=splits, rounds=2, chunk=2, opts={"GAMMA": 3.0, **options})
    return world().federation(load_trainer("AFL"), setup).run().server


def images() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    z, y = world().features[:IMAGES], F.one_hot(world().labels[:IMAGES], 4).double()
    return z, y, torch.eye(z.shape[1], dtype=z.dtype)


@pytest.mark.parametrize("edges", DEALT)
@pytest.mark.parametrize("variant", ["published", "fixed"])
@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_solution_is_that_of_all_images(
    edges: tuple[int, ...], variant: str, keep: float
) -> None:
    head = trained(edges, KEEP=keep, VARIANT=variant)["w"]["head.weight"]
    z, y, eye = images()
    if keep:
        want = torch.linalg.solve(z.T @ z + keep * eye, z.T @ y)
    elif variant == "published":
        want = torch.linalg.lstsq(z, y).solution
    else:
        errors = []
        for strength in (float(z.square().sum()) * r for r in RIDGES):
            hat = z @ torch.linalg.solve(z.T @ z + strength * eye, z.T)
            left = 1 - 1.2 * float(hat.trace()) / IMAGES
            errors.append((float((y - hat @ y).square().sum()) / left**2, strength))
        assert 0 < errors.index(min(errors)) < len(errors) - 1
        want = torch.linalg.solve(z.T @ z + min(errors)[1] * eye, z.T @ y)
    assert torch.allclose(head, want.T, atol=1e-6)


def test_each_client_counts_once() -> None:
    sums = trained((0, 3, 12, 30))["sums"]
    assert float(sums["count"]) == IMAGES
    assert "count" not in trained((0, 30), VARIANT="published")["sums"]


def test_it_is_the_baseline_of_the_same_table(tmp_path: Path) -> None:
    """The method and the reference of its name give every client the same accuracy."""
    assert jobs.run(tmp_path, "--trainer", "AFL", "--rounds", "1") == 0
    found = jobs.results(tmp_path)
    reference = found["references"]["afl"]
    assert found["last"]["personal"] == pytest.approx(reference["personal"], abs=1e-9)
    assert found["last"]["personal_worst"] == pytest.approx(reference["personal_worst"], abs=1e-9)


def test_shares_is_the_baseline_with_class_shares_to_the_image(tmp_path: Path) -> None:
    """Two rounds with SHARES and the reference give every client the same images right."""
    few = ("--trainer", "AFL", "--shots", "8")
    key = "TRAINER.AFL.SHARES"
    assert jobs.run(tmp_path / "plain", *few) == 0
    assert jobs.run(tmp_path / "own", *few, key, "True") == 0
    plain, own = (jobs.results(tmp_path / name) for name in ("plain", "own"))
    for found, name in ((plain, "afl"), (own, "afl_prior")):
        rows = found["last"]["clients"], found["references"][name]["clients"]
        assert [r["correct"] for r in rows[0]] == [r["correct"] for r in rows[1]]
    assert own["references"] == plain["references"]
    assert own["last"]["personal"] > plain["last"]["personal"] + 1
    assert own["last"]["global"] == plain["last"]["global"]
    told = [r["aggregation"].get("temper") for r in jobs.records(tmp_path / "own")[1:]]
    assert told[0] == 0.0 < told[1] and own["references"]["afl_prior"]["how"].count(
        f"plus {told[1]:g} times the log of the client's class shares") == 1
    states = [jobs.state(tmp_path / name) for name in ("plain", "own")]
    assert torch.equal(*(one["server|w|head.weight"] for one in states))
    assert set(states[1]) - set(states[0]) == {
        "server|w|afl.inverse", "server|w|afl.temper", *(n for n in states[1] if "head.bias" in n)}
    for name, there in (("plain", False), ("own", True)):  # older runs stay what they are
        results = json.loads((jobs.folder(tmp_path / name) / "results.json").read_text())
        assert (key in results["identity"]["config"]) is there


def test_the_factor_is_chosen_by_all_on_images_left_out_and_the_bias_is_each_ones_own() -> None:
    """By hand: each image by the solution without it. The last client has no training image."""
    w, none = world(), np.zeros(0, np.int64)
    by_class = [np.flatnonzero(w.labels[:IMAGES].numpy() == c) for c in range(4)]
    parts = [np.sort(np.concatenate([by_class[0], by_class[1][:-1]])),
             np.sort(np.concatenate([by_class[2], by_class[3], by_class[1][-1:]])), none]
    setup = Setup(splits=[IndexSplit(p, none, none) for p in parts], rounds=2, chunk=3, batch=4,
                  opts={"SHARES": True, "KEEP": 0.5})
    run_ = world().record(load_trainer("AFL"), setup)
    z, y, eye = images()
    want = torch.zeros(3, len(TEMPERS), dtype=torch.float64)
    for k, part in enumerate(parts):
        for i in part:
            rest = [j for j in range(IMAGES) if j != i]
            head = torch.linalg.solve(z[rest].T @ z[rest] + 0.5 * eye, z[rest].T @ y[rest])
            counts = y[[j for j in part if j != i]].sum(0) + SMOOTH
            for t, temper in enumerate(TEMPERS):
                said = (z[i] @ head + temper * (counts / counts.sum()).log()).argmax()
                want[k, t] += float(said == y[i].argmax()) / len(part)
    first, second = (e.updates.extras["afl.right"] for e in run_.events if e.updates is not None)
    assert not first.any() and torch.allclose(second, want, atol=1e-12)
    temper = TEMPERS[int(want.sum(0).argmax())]
    assert temper > 0 and float(run_.states[-1].server["w"]["afl.temper"]) == temper
    ((_, models),) = run_.fed.personal(run_.fed.adopt(run_.states[-1]), [0, 1, 2], 3)
    for k, part in enumerate(parts):
        counts = y[part].sum(0) + SMOOTH
        bias = temper * (counts / counts.sum()).log() if len(part) else torch.zeros(4).double()
        assert torch.allclose(models["head.bias"][k], bias, atol=1e-12)
    for event in run_.events:
        names = {n for some in (event.bytes_up, event.bytes_down) for one in some.values()
                 for n in one}
        assert "head.bias" not in names


def test_shares_keeps_the_invariants() -> None:
    found = run("AFL", ["TRAINER.AFL.SHARES", "True"])
    assert {o.name for o in found if o.state == "broken"} == set()


def test_shares_needs_its_second_round() -> None:
    cfg = method("AFL", SHARES=True).root.clone()
    cfg.defrost()
    cfg.FED.ROUNDS = 1
    with pytest.raises(ConfigError, match="chooses the factor of the class shares: set --rounds 2"):
        load_trainer("AFL")(cfg)
