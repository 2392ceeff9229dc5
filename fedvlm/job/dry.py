"""``--dry-run``: build everything, one batch of one client, one aggregation; then stop."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from yacs.config import CfgNode

from fedvlm.console.screen import Console
from fedvlm.core.trees import numel, pick
from fedvlm.federation.aggregation.updates import join
from fedvlm.federation.batches import Batch, SplitBatcher, Step, step_slices
from fedvlm.federation.server import Held, Roster
from fedvlm.job.build import build
from fedvlm.job.describe import header
from fedvlm.job.sources import images_to_encode


@dataclass(frozen=True)
class FirstStep:
    """Only the first step of each fit."""

    inner: SplitBatcher

    def sizes(self, clients: Sequence[int]) -> list[int]:
        """See ``Batcher.sizes``."""
        return self.inner.sizes(clients)

    def steps(
        self, clients: Sequence[int], round_: int, epochs: int, per_step: int, tag: str
    ) -> Iterator[Step]:
        """Yield one step."""
        yield next(self.inner.steps(clients, round_, epochs, per_step, tag))

    def whole(self, clients: Sequence[int], part: str, fallback: str = "") -> Batch | None:
        """See ``Batcher.whole``."""
        return self.inner.whole(clients, part, fallback)

    def subset(self, clients: Sequence[int], part: str, share: float) -> FirstStep:
        """See ``Batcher.subset``."""
        return FirstStep(self.inner.subset(clients, part, share))

    def roster(self) -> Roster:
        """See ``Batcher.roster``."""
        return self.inner.roster()


def dry_run(cfg: CfgNode) -> int:
    """Print parameters, bytes per round, memory and an estimate of the time; write nothing."""
    built = build(cfg, pixels=True)
    federation, batcher = built.federation, built.federation.batcher
    assert isinstance(batcher, SplitBatcher)  # noqa: S101 (what build makes)
    steps = [
        len(step_slices(n, batcher.batch_size, 1)) * federation.plan.epochs
        for n in batcher.sizes(range(federation.plan.clients))
    ]
    federation.batcher = FirstStep(batcher)
    state = federation.start()
    seconds = []
    given = federation.downloads(state, 1, [0])
    for _ in range(2):  # the first pays for warming up
        began = time.perf_counter()
        work = federation.engine.run(
            federation.trainer, lambda ids: federation.context(ids, 1), given,
            federation.clients, {0: 0},
        )
        seconds.append(time.perf_counter() - began)
    updates = join([part.arrive() for part in work.parts])
    federation.trainer.aggregate(
        federation.server_context(1, Held(federation.held, state.held)), state.server, updates
    )
    sent = sum(updates.bytes()[0].values())
    uploads = sum(len(federation.plan.sample(r)) for r in range(1, federation.plan.rounds + 1))
    share = uploads / (federation.plan.rounds * federation.plan.clients)
    personal = pick(federation.p0, federation.groups.personal)
    whole = sum(steps) * federation.plan.rounds * share * seconds[-1]
    images = images_to_encode(built.data, built.loader.views)
    console = Console(federation.plan.rounds, federation.plan.clients)
    console.header(
        header(built)
        | {
            "bytes": f"{sent:,} up and {sum(given.sizes[0].values()):,} down per client in round "
                     f"1, {sent * uploads:,} up in the whole run if all are like it",
            "personal": f"{numel(personal):,} numbers stay with each client",
            "steps": f"{sum(steps):,} client steps per round with all clients",
            "time": f"at most {seconds[-1]:.2f} s per client step (one client, images encoded "
                    f"on the way), {whole:.0f} s "
                    f"for all rounds; {images:,} images to encode once",
            "memory": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB peak",
        }
    )
    console.notes([*built.notes, "dry run: nothing was written"])
    return 0
