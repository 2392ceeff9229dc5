"""What a round asks of a device: no read inside a local step, one a chunk, two a round.

Before work was stacked to the end, the same counts were for FedTV, 16 clients: 19 reads a step, 247
beside the steps, and 121 kernels per client beside them; for a linear head 4, 34 and 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.arrival import Rows, Upload
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.context import Context
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.rounds import Federation, FedState
from fedvlm.federation.trainer import Trainer
from tests.federation.counting import Counts, counted

HEAD = ("PEFT.TEXT", "none", "PEFT.VISUAL", "none", "PEFT.HEAD", "linear")
EPOCHS, SIZE = 2, 4  # of the world's rounds, and samples of a client


def on_device(fed: Federation, state: FedState) -> list[Tensor]:
    """Return what lies on the device before a round: models, features, the clients' rows."""
    store, source = fed.clients.store, fed.batcher.source  # type: ignore[attr-defined]
    assert isinstance(store, MemoryStore)
    slots = [*state.server.values(), fed.p0]
    slots += [tree for table in store._tables.values() for tree in table.leaves.values()]
    return [
        *[v for tree in slots for v in tree.values()], source.features,
        *fed.model.backbone.model.parameters(),
    ]


def spent(
    name: str | type[Trainer], clients: int, chunk: int, batch: int, opts: Sequence[str] = (),
    sizes: Callable[[int], int] = lambda k: SIZE,
) -> Counts:
    """Return the counts of the third round; batches of ``SIZE`` make two steps."""
    world = CheckWorld(list(opts))
    splits = [
        IndexSplit(np.arange(k % 8, k % 8 + sizes(k)), np.arange(20, 22), np.arange(24, 27))
        for k in range(clients)
    ]
    fed = world.federation(
        load_trainer(name) if isinstance(name, str) else name,
        Setup(splits=splits, batch=batch, chunk=chunk, packed=True),
    )
    state = fed.start()
    for round_ in (1, 2):
        state = fed.round(state, round_)
        fed.commit(state)
    with counted(on_device(fed, state)) as counts:
        fed.round(state, 3)
    return counts


@dataclass
class Share:
    """What a step and the rest of a round cost."""

    step_reads: float
    step_kernels: float
    step_sent: float
    reads: float
    kernels: float


@cache
def share(name: str, clients: int, chunk: int, opts: tuple[str, ...] = ()) -> Share:
    one, two = (spent(name, clients, chunk, batch, opts) for batch in (SIZE, SIZE // 2))
    steps = EPOCHS * -(-clients // chunk)
    step = [(getattr(two, n) - getattr(one, n)) / steps for n in ("reads", "kernels", "sent")]
    return Share(*step, one.reads - steps * step[0], one.kernels - steps * step[1])


@pytest.mark.parametrize(
    ("name", "opts", "reads"),
    [("FedTV", (), 2), ("FedAvg", HEAD, 1), ("Ditto", (), 1), ("SCAFFOLD", (), 1)],
)
def test_no_read_in_a_step_one_a_chunk_and_two_a_round(
    name: str, opts: tuple[str, ...], reads: int
) -> None:
    whole, halves = share(name, 16, 16, opts), share(name, 16, 8, opts)
    assert whole.step_reads == halves.step_reads == 0
    if opts == HEAD:  # no text tower, whose constants are not known here to lie on the device
        assert whole.step_sent == 0  # batches and rates came before the first step
    assert whole.reads == reads + 1
    assert halves.reads == reads + 2


@pytest.mark.parametrize(("name", "opts"), [("FedTV", ()), ("FedAvg", HEAD)])
def test_kernels_beside_the_steps_do_not_grow_with_the_clients(
    name: str, opts: tuple[str, ...]
) -> None:
    """One for each client's row in the aggregate; the rest is once a chunk and once a round."""
    few, many = share(name, 16, 16, opts), share(name, 50, 50, opts)
    assert many.kernels / 50 <= 4
    assert (many.kernels - few.kernels) / 34 <= 1.2


def test_clients_of_unequal_sizes_are_not_read_either() -> None:
    counts = spent("FedTV", 16, 16, 2, sizes=lambda k: 1 + k % 4)
    assert counts.reads == 3


class Ranks(PeftTrainer):
    """Sends one component of each LoRA, by an index that was made on the device."""

    name = "Ranks"

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        one = Rows(torch.where(w["image.adapter.down"].abs().amax((1, 2))[:, None] > 0, 0, -1))
        return state | {"w": w}, ctx.upload(
            w, only=(r"image\.adapter\.down",), rows={"image.adapter.down": one}
        )


def test_rows_that_are_sent_are_told_by_the_one_read_of_a_chunk() -> None:
    opts = ("PEFT.TEXT", "none", "PEFT.VISUAL", "feature")
    for chunk in (16, 8):
        plain, rows = (spent(kind, 16, chunk, SIZE, opts) for kind in ("FedAvg", Ranks))
        assert plain.reads == rows.reads


def test_fedala_reads_whose_model_moved_and_a_loss_a_pass() -> None:
    """Its card says so: in its second round each client looks for steady losses, then no more."""
    first = spent("FedALA", 4, 4, SIZE, ["TRAINER.FEDALA.MAX_EPOCHS", "1"])
    assert first.reads == 1 + 1 + 1  # whose moved; the chunk; telltale with aggregate


def test_hermes_decides_without_a_look() -> None:
    assert spent("Hermes", 4, 4, SIZE).reads <= 1 + 4  # and the server's report of overlaps


# ---- the tool itself ----------------------------------------------------------------------------
def test_counter_tells_host_and_device_apart() -> None:
    there, here = torch.ones(3), torch.ones(3)
    device = torch.device("cpu")
    with counted([there]) as counts:
        assert bool((here > 0).all()) and here.tolist() == [1, 1, 1]
        _ = torch.zeros(2).view(1, 2)
    assert (counts.kernels, counts.reads, counts.sent) == (0, 0, 0)
    with counted([there]) as counts:
        total = (there * 2).sum()  # two kernels
        assert float(total) == 6.0
        assert there.tolist() == [1, 1, 1]
        home = there.cpu()
        assert home.tolist() == [1, 1, 1]  # free: it is here now
        assert there[there > 0].shape == (3,)
    assert counts.reads == 4 and counts.where["index"] == 1
    with counted([]) as counts:
        moved = here.to(device)
        assert float(moved.sum()) == 3.0
        other = torch.zeros(3, device=device)
        assert other.tolist() == [0, 0, 0]
    assert (counts.sent, counts.reads) == (1, 2)
