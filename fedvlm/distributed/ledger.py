"""What a site has done for a run: a small file beside its states, for the owner and the limits.

It holds numbers only: how many messages of each kind, the last round, bytes, seconds of work. A
kill between an answer and its entry loses that entry; no answer depends on it but by the rule
``seconds``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedvlm.core import files
from fedvlm.distributed.schema import by, integer, record, span, text

NAME = "ledger.json"
_FIELDS = record({
    "answers": by(text("[a-z]+", 20), integer()),
    "round": integer(), "down": integer(), "up": integer(), "seconds": span, "last": span,
})


@dataclass(frozen=True)
class Account:
    """What was done for a run.

    Attributes:
        answers: by op, those that failed under ``failed``.
        round: the last that was worked.
        down, up: bytes that came and went.
        seconds: of work.
        last: when it was, seconds since 1970.
    """

    answers: Mapping[str, int] = field(default_factory=dict)
    round: int = 0
    down: int = 0
    up: int = 0
    seconds: float = 0.0
    last: float = 0.0


class Ledger:
    """The account of one run, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def read(self) -> Account:
        """Return the account; an empty one where there is none.

        Raises:
            DataError: it cannot be read.
        """
        return Account(**(files.read_valid_json(
            self.path, _FIELDS, "delete it; the count for this run then starts again") or {}))

    def enter(self, op: str, round_: int, down: int, up: int, seconds: float, failed: bool) -> None:
        """Add one answer.

        Raises:
            DataError: the disk is full, or the folder read-only.
        """
        before, what = self.read(), "failed" if failed else op
        files.write_json(self.path, asdict(replace(
            before, answers={**before.answers, what: before.answers.get(what, 0) + 1},
            round=max(before.round, round_ if what in ("work", "mask") else 0),
            down=before.down + down, up=before.up + up, seconds=round(before.seconds + seconds, 3),
            last=round(time.time(), 3),
        )))
