"""Every method over frames: the bits and numbers of the run in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.check.compare import same_fed
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import WholeState
from fedvlm.federation.server import Row
from tests.check.short import Worlds
from tests.distributed.grid import Grid, Tapped, leaks, local, measured

TRAINERS = sorted(trainer_files())
SHORTER = {"fedala": {"MAX_EPOCHS": 3}}  # loops that G5 and its like try to their end


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


def both(
    world: CheckWorld, name: str, folder: Path
) -> tuple[Grid, WholeState, WholeState, tuple[list[list[Row]], list[list[Row]]]]:
    """Return the ends of a run over frames and in this process, and the numbers of both."""
    trainer = load_trainer(name)
    grid = Grid(world, trainer, folder, Setup(rounds=2, opts=SHORTER.get(name, {})))
    whole, rows = local(world, trainer, grid.setup)
    fed, _ = grid.server()
    told = measured(fed)
    return grid, grid.whole(fed, fed.run()), whole, (told, rows)


@pytest.mark.parametrize("name", TRAINERS)
def test_over_frames_every_method_gives_the_same_bits(
    worlds: Worlds, name: str, tmp_path: Path
) -> None:
    """Two sites that see their own data, a server that sees counts; answers in reverse order.

    No personal tensor of any round, no image of any client and no path of a site is in any frame.
    """
    grid, away, whole, (told, rows) = both(worlds.of(name), name, tmp_path)
    same_fed(away, whole, f"{name} over frames")
    assert json.dumps(told) == json.dumps(rows)
    assert grid.said == grid.logs == []
    assert isinstance(grid.carrier, Tapped)
    assert leaks(grid.private(), grid.carrier.frames) == []
    assert not any(str(tmp_path).encode() in frame for frame in grid.carrier.frames)
