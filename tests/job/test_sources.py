"""What a run says of the room that its activations take, and where they go."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedvlm.job import sources as module

CFG: Any = SimpleNamespace(BANK=SimpleNamespace(GB=0.0))


def banks(lacking: int, aside: int) -> Any:
    bank = SimpleNamespace(
        bytes=lambda n: n, lacking=lambda _: lacking, aside=lambda _: aside, keeps=True
    )
    return [(bank, [], [])]


@pytest.mark.parametrize(("free", "lacking", "aside", "room", "keeps", "says"), [
    (9, 5, 0, True, True, "so much"),
    (4, 5, 0, True, False, "so much; not cached: not enough space in cache"),
    (4, 50, 0, False, True, "do not fit into cache: images go .* set CACHE_DIR"),
    (9, 5, 12, False, True, "cannot be cached in cache: not enough space there or in .*: .* set "
                            "TMPDIR"),
    (4, 0, 3, True, True, "so much"),
])
def test_activations_without_room_give_way_to_pixels(
    monkeypatch: pytest.MonkeyPatch, free: int, lacking: int, aside: int, room: bool, keeps: bool,
    says: str,
) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 10)
    monkeypatch.setattr(module, "has_room", lambda _, wanted: wanted <= free)
    those = banks(lacking, aside)
    note, fits = module._room_of(CFG, those, Path("cache"), "so much")
    assert fits is room and those[0][0].keeps is keeps
    assert re.search(f"{says}($| )", note)
