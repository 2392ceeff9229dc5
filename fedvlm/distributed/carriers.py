"""Who carries frames between a server and its sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

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
