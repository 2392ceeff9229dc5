"""What a device is asked for, counted by the line of the project that asks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.jobs import REPOSITORY

OURS = tuple(f"{REPOSITORY}/{folder}/" for folder in ("fedvlm", "trainers", "scripts"))


def project_line() -> str:
    """Return ``file:line`` of the innermost frame of the project; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            return f"{name.removeprefix(f'{REPOSITORY}/')}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@dataclass
class Tally:
    """What happened on the pretend device.

    Attributes:
        mixed: operations on tensors of two devices: CUDA would stop there.
        reads: of device numbers by the host, which then waits.
        blocking: copies to the device for which the host waits.
        pageable: of these, those that ask not to wait, from memory that CUDA cannot read by itself.
        copies: to the device from page-locked memory: the host goes on.
        unsure: operations without a deterministic kernel.
        kernels: by the part of the run: ``step`` is a local step, ``plan`` what comes before the
            first batch of a loop, ``fetch`` the making of the others, ``work`` the rest of a
            chunk's work, ``round`` the rest of a round, ``told`` evaluation and saving after it,
            ``once`` a constant that is kept (an anchor), ``job`` all else.
        flops: of matrix products and convolutions, by part; bytes: read and written, by part.
        rounds: how many there were; steps: local steps.
    """

    mixed: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    blocking: Counter[str] = field(default_factory=Counter)
    pageable: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    unsure: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    steps: int = 0
    clients: int = 0
    part: str = "job"

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Count what follows for a part of the run."""
        outer, self.part = self.part, part
        try:
            yield
        finally:
            self.part = outer

    def note(self, what: Counter[str], name: str) -> None:
        """Count an event by the part of the run, its name and its line."""
        what[f"{self.part} | {name} | {project_line()}"] += 1

    @staticmethod
    def during(what: Counter[str], *parts: str) -> dict[str, int]:
        """Return the events of some parts."""
        return {k: n for k, n in what.items() if k.partition(" | ")[0] in parts}
