"""How long work says how far it is: one callable for downloads, decoding and encoding alike."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, how many are done, of how many) after each step."""
