"""What a run has spent of its clients' privacy, by its method's own accountant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.federation.batches import step_slices
from fedvlm.federation.local.effort import Worked
from fedvlm.federation.trainer import Trainer
from fedvlm.job.build import Built


def promises_privacy(built: Built) -> bool:
    """Tell whether the method has a privacy guarantee, which baselines would not be covered by."""
    return type(built.federation.trainer).privacy is not Trainer.privacy


def private(built: Built, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what ``Trainer.privacy`` says of a run.

    Args:
        records: of its rounds; whoever was drawn counts, lost or not.
    """
    federation, batch = built.federation, int(built.cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
    effort, sizes = federation.plan.effort, federation.roster.train
    slices = [step_slices(int(n), batch, 1) for n in sizes]
    steps: dict[int, list[int]] = {}
    for record in records:
        drawn = sorted({*record.get("participants", ()), *map(int, record.get("dropped", ()))})
        lengths = [len(slices[c]) for c in drawn]
        for client, n in zip(
            drawn, effort.whole(record["round"], drawn, lengths), strict=True
        ):
            steps.setdefault(client, []).append(n)
    return dict(federation.trainer.privacy([
        Worked(
            tuple(each), len(slices[c]), int(sizes[c]),
            max((stop - start for step in slices[c] for start, stop in step), default=0),
        )
        for c, each in sorted(steps.items())
    ]))
