"""A method's hooks: what one raises or forgets is told with its name and the line of its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedvlm.core.errors import FedvlmError, MethodError, failure_text, own_line
from fedvlm.core.trees import State, Tree

SLOTS = '{"w": {name: tensor}}'


@contextmanager
def explain_hook(hook: str) -> Iterator[None]:
    """Say which hook failed, and where.

    Args:
        hook: as messages name it, ``Mine.aggregate``.

    Raises:
        MethodError: instead of what is no error of this project.
    """
    try:
        yield
    except FedvlmError:
        raise
    except Exception as error:
        raise MethodError(
            f"{hook} failed: {failure_text(error)}{own_line(error)} (--debug shows the traceback)"
        ) from error


def name_of(trainer: object, hook: str) -> str:
    """Return how messages name a hook: ``FedTV.aggregate``."""
    return f"{getattr(trainer, 'name', '') or type(trainer).__name__}.{hook}"


def slots_of(hook: str, value: Any) -> State:
    """Return a hook's answer if it is slots of trees.

    Raises:
        MethodError: it is something else.
    """
    _need_mapping(hook, value, f"slots such as {SLOTS}")
    for slot, tree in value.items():
        if not isinstance(tree, Mapping):
            raise MethodError(
                f"{hook} returned {_kind(tree)} in '{slot}', not a tree: it must return slots such "
                f"as {SLOTS}"
            )
    return dict(value)


def tree_of(hook: str, value: Any) -> Tree:
    """Return a hook's answer if it is a tree.

    Raises:
        MethodError: it is something else.
    """
    _need_mapping(hook, value, "a tree {name: tensor}")
    for name, leaf in value.items():
        if not isinstance(leaf, Tensor):
            raise MethodError(f"{hook} returned {_kind(leaf)} as '{name}', not a tensor")
    return dict(value)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _need_mapping(hook: str, value: Any, form: str) -> None:
    if not isinstance(value, Mapping):
        hint = "; is its `return` missing?" if value is None else ""
        raise MethodError(f"{hook} returned {_kind(value)}, not {form}{hint}")
