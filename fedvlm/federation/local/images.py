"""Whether clients' images are asked for: seen while a run works, refused where there are none.

Most methods make a personal model of tensors alone, so that a run's folder is enough to have it
again. What some train on the client's images the run has to save (``job.record``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from fedvlm.core.errors import DataError
from fedvlm.federation.batches import Batch, Batcher, Step, step_slices
from fedvlm.federation.server import Roster


@dataclass
class Seen:
    """Whether images were asked for."""

    images: bool = False


@dataclass(frozen=True)
class Around:
    """A batcher that asks another one; a subclass changes what it has to."""

    inner: Batcher

    def _asked(self) -> Batcher:
        """Return the batcher that is asked for images."""
        return self.inner

    def sizes(self, clients: Sequence[int]) -> list[int]:
        """See ``Batcher.sizes``."""
        return self.inner.sizes(clients)

    def lengths(self, clients: Sequence[int], per_step: int) -> list[int]:
        """See ``Batcher.lengths``."""
        return self.inner.lengths(clients, per_step)

    def steps(
        self, clients: Sequence[int], round_: int, epochs: int | Sequence[int], per_step: int,
        tag: str, after: int = 0, limit: int = 0, most: Sequence[int] = (),
    ) -> Iterator[Step]:
        """See ``Batcher.steps``."""
        return self._asked().steps(clients, round_, epochs, per_step, tag, after, limit, most)

    def whole(self, clients: Sequence[int], part: str, fallback: str = "") -> Batch | None:
        """See ``Batcher.whole``."""
        return self._asked().whole(clients, part, fallback)

    def draw(self, clients: Sequence[int], round_: int, tag: str, most: int) -> Batch | None:
        """See ``Batcher.draw``."""
        return self._asked().draw(clients, round_, tag, most)

    def subset(self, clients: Sequence[int], part: str, share: float) -> Batcher:
        """See ``Batcher.subset``."""
        return replace(self, inner=self._asked().subset(clients, part, share))

    def roster(self) -> Roster:
        """See ``Batcher.roster``."""
        return self.inner.roster()


@dataclass(frozen=True)
class Watched(Around):
    """A batcher that notes in ``seen`` when it is asked for images."""

    seen: Seen

    def _asked(self) -> Batcher:
        self.seen.images = True
        return self.inner


@dataclass(frozen=True)
class Absent:
    """A batcher of clients of which only the counts are known."""

    counts: Roster
    batch_size: int
    who: str

    def sizes(self, clients: Sequence[int]) -> list[int]:
        """See ``Batcher.sizes``."""
        return [int(self.counts.train[c]) for c in clients]

    def lengths(self, clients: Sequence[int], per_step: int) -> list[int]:
        """See ``Batcher.lengths``."""
        return [len(step_slices(n, self.batch_size, per_step)) for n in self.sizes(clients)]

    def roster(self) -> Roster:
        """See ``Batcher.roster``."""
        return self.counts

    def _refuse(self, clients: Sequence[int], *_: object, **__: object) -> NoReturn:
        raise DataError(
            f"{self.who}: the personal model of client {clients[0]} needs the client's own "
            "images, which are not available here; a finished run has this model in models/: "
            "finish the run first (the same command resumes it), or use the global model"
        )

    steps = whole = draw = subset = _refuse  # what needs images
