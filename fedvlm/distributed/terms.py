"""What a site's owner allows: rules that stand before any work, and what may be counted aloud.

A refusal names its rule and its number, and nothing of the site: no path, no list of what would be
allowed. The owner reads the same message with more in the site's own log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.evaluation.scores import ABSENT, CONFUSION, WITHHELD
from fedvlm.federation.server import Row

LOCAL = re.compile(r"[A-Za-z][\w-]*")  # a method's name; anything else may be a file
PARTS = ("train", "val", "test")
_TRAINER, _BACKBONE, _ROUNDS = "TRAINER.NAME", "MODEL.BACKBONE.NAME", "FED.ROUNDS"
_WEIGHTS = "MODEL.INIT_WEIGHTS"
SECURE = "FED.SECURE_SUM"


class Refused(FedvlmError):
    """What a site does not do; the message may leave it."""


@dataclass(frozen=True)
class Terms:
    """The owner's rules; the defaults allow everything (a site of the server's own).

    Attributes:
        backbones: names that may be worked with; None: all.
        trainers: methods, by the names they have at this site; None: all, files too.
        rounds: the last round that is worked; 0: no limit.
        steps: local steps of a client in one round of plain training, or of a final fine-tuning; 0:
            no limit.
        bytes: of one message, either way; 0: no limit.
        seconds: of work for runs of one config altogether, over all their messages; 0: no limit.
        count: smallest number of images that may be told, above none; also by sums that class
            counts follow from.
        logits: whether outputs for single images, with their labels, may leave.
        baselines: whether baselines may leave: a row of numbers for each client alone, and,
            without ``FED.SECURE_SUM`` and classes under ``count``, sums of features over the site's
            training images.
        weights: of a backbone, beside the published ones that a plain word names; None: all.
        sums: only runs in which single updates stay here (``FED.SECURE_SUM``).
    """

    backbones: tuple[str, ...] | None = None
    trainers: tuple[str, ...] | None = None
    rounds: int = 0
    steps: int = 0
    bytes: int = 0
    seconds: float = 0.0
    count: int = 1
    logits: bool = False
    baselines: bool = False
    weights: tuple[str, ...] | None = None
    sums: bool = False

    # ---- before work -------------------------------------------------------------------------
    def admit(self, config: Mapping[str, Any]) -> None:
        """Refuse a run by its config.

        Raises:
            Refused: the method, the backbone, its weights or the number of rounds; by rule.
        """
        if self.trainers is not None:
            name = str(config.get(_TRAINER, ""))
            if not LOCAL.fullmatch(name):
                raise _refusal("trainers", "methods are allowed by name only, never as a file")
            if name not in self.trainers:
                raise _refusal("trainers", "this method is not allowed")
        backbone = str(config.get(_BACKBONE, ""))
        if self.backbones is not None and backbone not in self.backbones:
            raise _refusal("backbones", "this backbone is not allowed")
        weights = str(config.get(_WEIGHTS, ""))
        named = not weights or LOCAL.fullmatch(weights) or weights in (self.weights or ())
        if self.weights is not None and not named:
            raise _refusal("weights", "weights go by a published name here, or by one that the "
                           "owner lists; a file of the coordinator's is none")
        if self.sums and config.get(SECURE) is not True:
            raise _refusal("sums", "updates leave this site in secure sums only; set "
                           "FED.SECURE_SUM True")
        rounds = config.get(_ROUNDS, 0)
        if self.rounds and isinstance(rounds, int) and rounds > self.rounds:
            raise _refusal("rounds", f"at most {self.rounds} rounds, and {rounds} are planned")

    def allow_size(self, size: int) -> None:
        """Refuse a message of too many bytes (``Refused``, by the rule ``bytes``)."""
        if self.bytes and size > self.bytes:
            raise _refusal("bytes", f"a message has at most {self.bytes:,} bytes, not {size:,}")

    def allow_round(self, round_: int) -> None:
        """Refuse work in a round beyond the last (``Refused``, by the rule ``rounds``)."""
        if self.rounds and round_ > self.rounds:
            raise _refusal("rounds", f"at most {self.rounds} rounds, and this is round {round_}")

    def allow_steps(self, steps: Sequence[int]) -> None:
        """Refuse work of too many steps of a client (``Refused``, by the rule ``steps``)."""
        most = max(steps, default=0)
        if self.steps and most > self.steps:
            raise _refusal("steps", f"a client takes at most {self.steps} steps, not {most}")

    def allow_time(self, spent: float) -> None:
        """Refuse to work on after so many seconds (``Refused``, by the rule ``seconds``)."""
        if self.seconds and spent >= self.seconds:
            raise _refusal("seconds", f"this config has used up its {self.seconds:g} seconds of "
                                      "work")

    # ---- what is told ------------------------------------------------------------------------
    def tell(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return a client's counts as they may leave.

        Fewer than ``count`` images, but some, are told as ``count``. Where one class is that rare,
        no class of this client is told: from the others and the total it would follow.
        """
        told = {part: self._least(int(counts[part])) for part in PARTS}
        classes = [int(n) for n in counts["classes"]]
        return told | {"classes": classes if self.may_tell([classes]) else []}

    def may_tell(self, classes: Iterable[Sequence[int]]) -> bool:
        """Say whether clients' class counts, or what they follow from, may leave: none is rare."""
        return not any(self._rare(int(n)) for counts in classes for n in counts)

    def allow_counts(self, classes: Iterable[Sequence[int]]) -> None:
        """Refuse a method whose uploads tell how many images of each class a client has.

        Raises:
            Refused: by the rule ``count``.
        """
        if not self.may_tell(classes):
            raise _refusal("count", "this method's uploads tell how many images of each class a "
                           "client has, and a class here has too few; set FED.SECURE_SUM True, "
                           "or take another method")

    def tell_row(self, row: Row) -> Row:
        """Return a client's row of numbers as it may leave.

        Of a client with fewer test images than ``count`` only its absence is sent; of
        one with a rare cell in its confusion counts, no such cell is.
        """
        n = int(row.get("n") or 0)
        if self._rare(n):
            none: Row = dict.fromkeys(name for name in row if not _cell(name))
            return none | {"client": row["client"], "n": 0, "correct": 0, ABSENT: WITHHELD}
        if any(self._rare(int(v or 0)) for name, v in row.items() if _cell(name)):
            return {name: v for name, v in row.items() if not _cell(name)}
        return row

    def check_sizes(self, train: Mapping[int, int]) -> None:
        """Refuse clients whose number of training images may not be told: their weight tells it.

        Raises:
            ConfigError: names them and the rule, for the owner.
        """
        small = [c for c, n in train.items() if n < self.count]
        if small:
            raise ConfigError(
                f"clients {small[:8]} have fewer training images than the {self.count} that may be "
                "told (rule 'count'), and what a client sends is weighed by them: leave them out "
                "of the site file, or lower the rule"
            )

    def _rare(self, n: int) -> bool:
        return 0 < n < self.count

    def _least(self, n: int) -> int:
        return self.count if self._rare(n) else n


def _cell(name: str) -> bool:
    return name.startswith(f"{CONFUSION}.")


def _refusal(rule: str, words: str) -> Refused:
    return Refused(f"this site's rules do not allow it: {words} (rule '{rule}')")
