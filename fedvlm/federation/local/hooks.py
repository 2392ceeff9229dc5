"""A method's hooks: what one raises or forgets is told with its name and the line of its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedvlm.core.errors import FedvlmError, MethodError, failure_text, own_line
from fedvlm.core.trees import State, Tree, TreeView

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
        _need_tensors(hook, tree)
    return dict(value)


def tree_of(hook: str, value: Any) -> Tree:
    """Return a hook's answer if it is a tree.

    Raises:
        MethodError: it is something else.
    """
    _need_mapping(hook, value, "a tree {name: tensor}")
    _need_tensors(hook, value)
    return dict(value)


def keep_shapes(hook: str, tree: TreeView, homes: TreeView, sizes: bool = True) -> None:
    """Refuse a tensor of another shape than the one of its name in ``homes``.

    Args:
        sizes: their sizes are to be equal, too; else the number of axes (a client may have a
            context of its own length).

    Raises:
        MethodError: names it, and both shapes.
    """
    for name, leaf in tree.items():
        home = homes.get(name, leaf)
        if leaf.dim() != home.dim() or sizes and leaf.shape != home.shape:
            raise MethodError(
                f"{hook} returned '{name}' of shape {list(leaf.shape)}, not "
                f"{list(homes[name].shape)}: there is no axis of clients there"
            )


def keep_names(hook: str, tree: TreeView, names: Iterable[str]) -> None:
    """Refuse a client's model without a trained tensor.

    Raises:
        MethodError: names those that are missing.
    """
    if missing := sorted(set(names) - set(tree)):
        lacking = ", ".join(f"'{name}'" for name in missing)
        raise MethodError(
            f"{hook} returned no {lacking}: a client's model has every trained tensor, "
            "state['w'] | received (the state keeps what is personal, a download has the rest)"
        )


def _need_tensors(hook: str, tree: Mapping[str, Any]) -> None:
    for name, leaf in tree.items():
        if not isinstance(leaf, Tensor):
            raise MethodError(f"{hook} returned {_kind(leaf)} as '{name}', not a tensor")


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return "nothing" if value is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _need_mapping(hook: str, value: Any, form: str) -> None:
    if not isinstance(value, Mapping):
        hint = "; is its `return` missing?" if value is None else ""
        raise MethodError(f"{hook} returned {_kind(value)}, not {form}{hint}")
