"""HetLoRA: the pull on the tail, when it is cut, zeros behind, what travels, ranks that resume."""

from __future__ import annotations

import sys

import pytest
import torch

from fedvlm.check.compare import same_fed
from fedvlm.check.world import CheckWorld, Setup, Trajectory
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from fedvlm.models.towers.adapters import FACTOR_A, FACTOR_B, sites
from tests.models.toys import products

HetLoRA = load_trainer("HetLoRA")
hetlora = sys.modules[HetLoRA.__module__]
OPTS = ["PEFT.RANK", "4", "PEFT.RANKS", "1,2,4", "PEFT.BLOCKS", "1"]
EACH, ROW = (1, 2, 4, 1), 2 * (16 * 8 + 4)  # a component: a row of A, a column of B
SITES = 2  # q and v of one block
# A pull by half of the components that shortens every tail once B has moved, and so in round 2.
PRUNING = {"GAMMA": 0.5, "LAMBDA": 20.0}


@pytest.fixture(scope="module")
def run() -> Trajectory:
    return CheckWorld(OPTS).record(HetLoRA, Setup(chunk=4, rounds=3, opts=PRUNING))


def ranks(run: Trajectory, round_: int) -> list[int]:
    clients = run.states[round_].clients
    return [int(clients[c]["lora"]["lora.rank"]) for c in range(4)]


def test_the_tail_of_two_clients_and_its_gradient() -> None:
    draw = torch.Generator().manual_seed(5)
    tree = {
        f"image.lora.{b}.q{end}": torch.randn(2, *shape, generator=draw, dtype=torch.float64)
        for b in (0, 1) for end, shape in ((FACTOR_A, (5, 3)), (FACTOR_B, (4, 5)))
    }
    rank = torch.tensor([5.0, 3.0])
    tail = hetlora.components(5, torch.tensor([2.0, 1.0]), rank)
    want = [
        sum(tree[s + FACTOR_A][k, i:j].norm() * tree[s + FACTOR_B][k, :, i:j].norm()
            for s in sites(tree)) for k, (i, j) in enumerate(((2, 5), (1, 3)))
    ]
    assert torch.allclose(hetlora.tail_length(tree, tail), torch.stack(want), 0, 1e-12)
    leaves = {n: v.clone().requires_grad_() for n, v in tree.items()}
    slopes = torch.autograd.grad(hetlora.tail_length(leaves, tail).sum(), list(leaves.values()))
    closed = hetlora.tail_slopes(tree, tail)
    for name, slope in zip(leaves, slopes, strict=True):
        assert torch.allclose(closed[name], slope, 0, 1e-12), name
    tree |= {n: torch.zeros_like(v) for n, v in tree.items() if n.endswith(FACTOR_B)}
    assert all(torch.isfinite(v).all() for v in hetlora.tail_slopes(tree, tail).values())


def test_tails_that_shrink_are_cut_and_what_is_left_travels(run: Trajectory) -> None:
    assert ranks(run, 1) == list(EACH)  # B started at zero: no tail was longer before
    left = ranks(run, 2)
    assert left == [1, 1, 2, 1]  # floor(r / 2), at least 1
    up = [{c: sum(b.values()) for c, b in e.bytes_up.items()} for e in run.events]
    down = [{c: sum(b.values()) for c, b in e.bytes_down.items()} for e in run.events]
    assert up[1] == {c: SITES * r * ROW for c, r in enumerate(left)}
    assert down[2] == {c: SITES * r * ROW for c, r in enumerate(left)}
    assert down[1][1] == SITES * 2 * ROW  # the cut of round 2 was not known before it


def test_what_was_not_sent_is_zero_in_the_mean(run: Trajectory) -> None:
    updates = run.events[1].updates
    assert updates is not None
    p = {n: v.clone() for n, v in updates.params.items()}
    for k, rank in enumerate(ranks(run, 2)):
        for s in sites(p):
            p[s + FACTOR_A][k, rank:], p[s + FACTOR_B][k, :, rank:] = 0, 0
    norm = torch.stack([v.square().sum((1, 2)) for v in products(p).values()]).sum(0).sqrt()
    for name, v in run.states[2].server["w"].items():
        want = ((norm / norm.sum())[:, None, None] * p[name]).sum(0)
        assert torch.allclose(v, want, 0, 1e-12), name
    assert not run.states[2].server["w"][sites(p)[0] + FACTOR_A][2:].any()
    assert run.events[1].report["ranks"] == {"0": 1, "1": 1, "2": 2, "3": 1}


def test_a_resumed_run_goes_on_with_the_ranks(run: Trajectory) -> None:
    setup = Setup(chunk=4, rounds=3, opts=PRUNING)
    again = CheckWorld(OPTS).record(HetLoRA, setup, run.states[2])
    same_fed(again.states[-1], run.states[3], "resumed")


@pytest.mark.parametrize(("words", "said"), [
    (("PEFT.VISUAL", "feature"), "HetLoRA prunes the ranks of LoRA.*add --peft lora"),
    (("PEFT.LORA_AVG", "fair"), "PEFT.LORA_AVG fair: HetLoRA weighs.*set that"),
])
def test_other_parts_and_rules_are_refused(words: tuple[str, ...], said: str) -> None:
    world = CheckWorld([*OPTS, *words])
    with pytest.raises(ConfigError, match=said):
        HetLoRA(world.config(HetLoRA))
