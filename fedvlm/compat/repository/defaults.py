"""Defaults of config keys, as a repository's own scripts assign them: read, never run.

CoOp's family sets them in ``extend_cfg`` of ``train.py``, its federated forks in that of
``federated_main.py`` with values of ``argparse``; a copy of Dassl may add more in its defaults.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from fedvlm.compat.repository.find import Checkout, syntax_tree

MISSING = object()  # a value that is no literal, or an argument without a default
EXTEND = "extend_cfg"
DASSLS = ("dassl", "Dassl/dassl", "Dassl.pytorch/dassl", "../Dassl.pytorch/dassl")


def assigned_keys(home: Checkout) -> dict[str, Any]:
    """Return ``{"TRAINER.FEDPGP.mu": 1.0, ...}``: what the repository's scripts assign.

    ``extend_cfg`` goes before other functions, and both before a copy of Dassl. A key whose value
    is not known without running the script has the value ``MISSING``.
    """
    values: dict[str, Any] = {}
    for folder in DASSLS:
        file = home.root / folder / "config" / "defaults.py"
        if home.mains and file.is_file():
            values |= _known(_assigned(syntax_tree(file), ("_C",), {}))
    for main in reversed(home.mains):
        tree = syntax_tree(main)
        arguments = argument_defaults(tree)
        extend = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name == EXTEND]
        rest = _assigned(tree, ("cfg",), arguments)
        first = [_assigned(f, ("cfg",), arguments) for f in extend]
        values |= {k: v for k, v in rest.items() if k not in values}
        for found in first:
            values |= found
    return values


def argument_defaults(tree: ast.Module) -> dict[str, Any]:
    """Return the default of every ``add_argument`` by its name behind ``args.``."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        words = [a.value for a in node.args if isinstance(a, ast.Constant)]
        options = {k.arg: k.value for k in node.keywords if k.arg}
        long = [str(w) for w in words if str(w).startswith("--")] or [str(w) for w in words]
        dest = options.get("dest")
        name = str(dest.value) if isinstance(dest, ast.Constant) else "".join(long[:1])
        action = options.get("action")
        switch = action.value if isinstance(action, ast.Constant) else ""
        usual = {"store_true": False, "store_false": True}.get(str(switch), MISSING)
        value = _literal(options["default"]) if "default" in options else usual
        found[name.lstrip("-").replace("-", "_")] = MISSING if value is None else value
    return found


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not MISSING}


def _assigned(
    tree: ast.AST, roots: tuple[str, ...], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a tree assigns to ``<root>.A.B``, in its order; nodes themselves are left out."""
    values: dict[str, Any] = {}
    for target, value in _assignments(tree):
        words = ast.unparse(target).split(".")
        node = isinstance(value, ast.Call) and ast.unparse(value.func) in (
            "CN", "CfgNode", "yacs.config.CfgNode")
        if words[0] not in roots or len(words) < 2 or node:
            continue
        if not all(word.isidentifier() for word in words):
            continue
        values[".".join(words[1:])] = _value(value, arguments)
    return values


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (target, value) of plain assignments, from top to bottom."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)]
    for node in sorted(nodes, key=lambda n: n.lineno):
        yield from ((target, node.value) for target in node.targets)


def _value(node: ast.expr, arguments: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return arguments.get(node.attr, MISSING) if node.value.id == "args" else MISSING
    return _literal(node)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return MISSING
