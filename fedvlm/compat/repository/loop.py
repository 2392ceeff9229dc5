"""Which tensors, and which rows of them, a federated fork's own loop keeps with the client; read.

The forks copy tensors by name out of a client's state dict, average one collection and put the
others back to the same client::

    sent[idx] = copy.deepcopy(weight["prompt_learner.ctx"][:args.avg_prompt])
    kept[idx] = copy.deepcopy(weight["prompt_learner.ctx"][args.avg_prompt:])
    global_weights = average_weights(sent, ...)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedvlm.compat.repository.defaults import argument_defaults
from fedvlm.compat.repository.find import Checkout, syntax_tree

AVERAGE, OTHER_RULE = re.compile("average"), re.compile("aggregat|cluster|match")


@dataclass(frozen=True)
class Kept:
    """What stays with a client.

    Attributes:
        names: patterns for ``FED.PERSONAL``: a tensor's name, or a name and its rows ``[1:]``.
        where: script and lines, for messages.
        rule: the script's own aggregation, where it is no average.
    """

    names: tuple[str, ...]
    where: str
    rule: str = ""


def kept_by_loop(home: Checkout, trainer: str) -> Kept | None:
    """Return what the loop of a fork's main script keeps for a trainer; None where it says nothing.

    The branch is that of the script's default ``--model``, and counts for its default
    ``--trainer``.
    """
    for main in home.mains:
        tree = syntax_tree(main)
        arguments = argument_defaults(tree)
        if arguments.get("trainer", trainer) != trainer:
            continue
        branch = _branch(tree, arguments.get("model"))
        calls = [n for statement in branch for n in ast.walk(statement) if isinstance(n, ast.Call)]
        averaged = {_first(c) for c in calls if AVERAGE.search(_name(c))} - {""}
        rules = sorted({_name(c) for c in calls if OTHER_RULE.search(_name(c))})
        copies = [c for statement in branch for c in _copies(statement, arguments)]
        own = [c for c in copies if c.into not in averaged]
        if averaged and own and any(c.into in averaged for c in copies):
            lines = sorted(c.line for c in copies)
            return Kept(tuple(dict.fromkeys(c.pattern for c in own)),
                        f"{main.name} (lines {lines[0]} to {lines[-1]})", ", ".join(rules))
    return None


@dataclass(frozen=True)
class _Copy:
    into: str
    tensor: str
    rows: tuple[int | None, int | None] | None
    line: int

    @property
    def pattern(self) -> str:
        if self.rows is None:
            return self.tensor
        first, last = ("" if n is None else str(n) for n in self.rows)
        return f"{self.tensor}[{first}:{last}]"


def _branch(tree: ast.Module, model: Any) -> list[ast.stmt]:
    """Return the statements under ``args.model == <model>``; all of the script without a branch."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.If) and _compares(n.test)]
    for node in found:
        if _compares(node.test) == str(model):
            return node.body
    return [] if found else tree.body


def _compares(test: ast.expr) -> str:
    """Return X of ``args.model == "X"``; empty for anything else."""
    if not isinstance(test, ast.Compare) or ast.unparse(test.left) != "args.model":
        return ""
    right = test.comparators[0]
    return str(right.value) if isinstance(right, ast.Constant) else ""


def _copies(statement: ast.stmt, arguments: Mapping[str, Any]) -> Iterator[_Copy]:
    """Yield ``into[idx] = [copy.deepcopy(] weight["tensor"][rows] [)]``."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        value = node.value
        if isinstance(value, ast.Call) and _name(value) in ("deepcopy", "clone") and value.args:
            value = value.args[0]
        rows = None
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            first = _bound(value.slice.lower, arguments)  # rows behind it: to the end
            rows = (first, None if first else _bound(value.slice.upper, arguments))
            value = value.value
        match value:
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                yield _Copy(ast.unparse(node.targets[0].value), key, rows, node.lineno)


def _bound(node: ast.expr | None, arguments: Mapping[str, Any]) -> int | None:
    if isinstance(node, ast.Attribute):
        value = arguments.get(node.attr)
    else:
        value = node.value if isinstance(node, ast.Constant) else None
    return value if type(value) is int else None


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _first(call: ast.Call) -> str:
    return ast.unparse(call.args[0]) if call.args else ""
