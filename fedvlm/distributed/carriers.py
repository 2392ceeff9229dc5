"""Who carries frames between a server and its sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from fedvlm.distributed.schema import LIMIT, too_long

Answer = Callable[[bytes], bytes]


class Carrier(Protocol):
    """Brings frames to sites and their answers back.

    Who a site is, the carrier has made sure of; nothing that a frame claims counts.

    Attributes:
        most: bytes of an answer to what is asked next.
    """

    most: int

    def sites(self) -> list[str]:
        """Return the names of the sites that are there."""
        ...

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        """Send each site its frame; return its answer, or why there is none.

        An answer of more than ``most`` bytes is none; it is refused at its length.
        """
        ...

    def key(self, site: str) -> str:
        """Return the fingerprint of the key that a site proved to have; empty: it has none."""
        ...


class InProcess:
    """Sites in this process; each frame is packed and unpacked as on a real wire.

    Args:
        sites: by name; they answer in the reverse order of the names.
    """

    most = LIMIT

    def __init__(self, sites: Mapping[str, Answer]) -> None:
        self.answers = dict(sites)

    def sites(self) -> list[str]:
        """See ``Carrier.sites``."""
        return list(self.answers)

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        """See ``Carrier.ask``."""
        out = {s: self.answers[s](frames[s]) for s in sorted(frames, reverse=True)}
        return {s: data if len(data) <= self.most else too_long(len(data), self.most)
                for s, data in out.items()}

    def key(self, site: str) -> str:
        """See ``Carrier.key``: whoever is in this process needs none."""
        return ""
