"""Nested mappings and lists as names with dots and the values that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def flat_leaves(
    value: Any, at: str = "", skip: Callable[[str], bool] = lambda key: False
) -> Iterator[tuple[str, Any]]:
    """Yield ``a.b.0`` and the value there, for every value that is no mapping and no list.

    Args:
        at: the name of ``value`` itself; empty for none.
        skip: of which keys of mappings nothing is yielded.
    """
    if isinstance(value, Mapping):
        pairs = [(str(key), item) for key, item in value.items() if not skip(str(key))]
    elif isinstance(value, list):
        pairs = [(str(index), item) for index, item in enumerate(value)]
    else:
        yield at, value
        return
    for name, item in pairs:
        yield from flat_leaves(item, f"{at}.{name}" if at else name, skip)
