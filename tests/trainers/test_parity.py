"""Every method against the stored figures of its authors' code (``scripts/parity``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parity.figures import BOUND, GOLDEN, PAPER, READING, WHOLE, digest, distance, read_golden
from parity.world import Case, World, draw

from fedvlm.federation.discovery import load_trainer
from fedvlm.models.backbone import Backbone

FILES = sorted(GOLDEN.glob("*.json"))
CASES = [(path, name) for path in FILES for name in read_golden(path)[1]]


@pytest.fixture(scope="module", autouse=True)
def towers_are_hashed_once() -> Iterator[None]:
    """A run hashes its towers before and after, 50 MB of them: here once, when all runs are over.

    Cases of one architecture share them; that a run hashes them is shown elsewhere (G9).
    """
    used: dict[int, Backbone] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Backbone, "verify_frozen", lambda self: used.setdefault(id(self), self).digest
        )
        yield
    for backbone in used.values():
        assert backbone.verify_frozen() == backbone.digest


@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{p.stem}-{n}" for p, n in CASES])
def test_equal_to_the_stored_figures(path: Path, name: str) -> None:
    """Loss, gradients, tensors and logits as a run computes them: packed texts, cached streams."""
    case, stored = read_golden(path)[1][name]
    world = World(case)
    assert world.scales == dict(case.scales)  # all are stored: their last bits vary by machine
    values = world.values()
    gaps = {key: distance(values[key], figures) for key, figures in stored.items()}
    assert stored
    assert {key: gap for key, gap in gaps.items() if not gap <= BOUND} == {}


@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{p.stem}-{n}" for p, n in CASES])
def test_the_plain_computation_equals_them_too(path: Path, name: str) -> None:
    """Loss and gradients text by text and from pixels; a method without a loss: the run."""
    case, stored = read_golden(path)[1][name]
    world = World(replace(case, rounds=0) if case.loss else case, plain=True)
    gaps = {key: distance(value, stored[key]) for key, value in world.values().items()
            if key in stored}
    assert gaps
    assert {key: gap for key, gap in gaps.items() if not gap <= BOUND} == {}


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_a_file_names_its_source(path: Path) -> None:
    """Repository, commit and files, and a method that exists."""
    source, cases = read_golden(path)
    assert load_trainer(source.method).name == source.method
    assert source.repository
    assert source.kind in (PAPER, READING) or (len(source.commit) == 40 and source.files)
    assert cases
    assert path.name == f"{source.method.lower().replace('-', '_')}.json"


@pytest.mark.parametrize("size", [WHOLE, 10 * WHOLE])
def test_a_digest_notices_every_entry(size: int) -> None:
    """A change of any one number by 1e-8 of the norm is above the bound."""
    value = draw("digest", size)
    stored = digest(value)
    assert distance(value, stored) == 0.0
    for at in range(size):
        moved = value.clone()
        moved[at] += 1e-8 * float(value.norm())
        assert distance(moved, stored) > BOUND, at
    assert distance(value.reshape(2, -1), stored) == float("inf")
    assert distance(torch.full_like(value, float("nan")), stored) == float("inf")


def test_logits_stand_by_client_whatever_its_size() -> None:
    """A row is what its client's tensors predict, also where a later client has more images."""
    world = World(Case("LocalOnly", sizes=(2, 6, 3), rounds=1))
    found = world.values()
    own = [{n.partition(" ")[2]: v[None] for n, v in found.items() if n.startswith(f"client{k} ")}
           for k in range(3)]
    for k, tree in enumerate(own):
        got = world.trainer.predict(world.model, tree, world.stream(world.tests[None]))[0]
        assert torch.allclose(found["logits"][k], got, atol=1e-12), k
