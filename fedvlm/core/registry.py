"""Names to classes, found ignoring case, dash and underscore; unknown names get the nearest one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from fedvlm.core.errors import ConfigError, did_you_mean, fold

T = TypeVar("T")


class Registry(Generic[T]):
    """A named table of classes or functions (Dassl's ``Registry``, with forgiving look-up).

    Args:
        kind: what is registered, for messages: ``"trainer"``, ``"dataset"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._table: dict[str, T] = {}

    def register(self, name: str | None = None, *, force: bool = False) -> Callable[[T], T]:
        """Return a decorator that registers its object under ``name`` (default: its own name).

        Raises:
            KeyError: the folded name is taken and ``force`` is not set.
        """

        def add(obj: T) -> T:
            key = name or obj.__name__  # type: ignore[attr-defined]
            taken = self._find(key)
            if taken is not None and not force:
                raise KeyError(f"{self.kind} '{key}' is already registered as '{taken}'")
            self._table[taken or key] = obj
            return obj

        return add

    def _find(self, name: str) -> str | None:
        return next((k for k in self._table if fold(k) == fold(name)), None)

    def get(self, name: str) -> T:
        """Return the object called ``name``.

        Raises:
            ConfigError: no such name; the message gives the nearest and the list.
        """
        key = self._find(name)
        if key is None:
            raise ConfigError(
                f"unknown {self.kind} '{name}'{did_you_mean(name, self._table)} "
                f"(known: {', '.join(self.registered_names())})"
            )
        return self._table[key]

    def canonical(self, name: str) -> str:
        """Return the registered spelling of ``name`` (see ``get``)."""
        self.get(name)
        key = self._find(name)
        assert key is not None  # noqa: S101
        return key

    def registered_names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._table)

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.registered_names())
