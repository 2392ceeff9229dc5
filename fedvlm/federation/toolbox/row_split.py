"""Rows of one tensor in different groups: a tree with a leaf for each run of rows.

``FED.PERSONAL 'prompt_learner.ctx[1:]'`` makes two leaves of the tensor: ``prompt_learner.ctx[:1]``
is shared, ``prompt_learner.ctx[1:]`` personal. A module sees the whole tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree

ROWS = re.compile(r"(.+)\[(\d*):(\d*)\]")
Piece = tuple[str, int, int]  # leaf, its first row, the row behind its last


@dataclass(frozen=True)
class RowSplit:
    """How tensors are cut into leaves.

    Attributes:
        pieces: tensor -> its leaves in order.
        personal: leaves that stay with the client.
    """

    pieces: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)
    personal: frozenset[str] = frozenset()

    def cut(self, tree: Tree) -> Tree:
        """Return ``{tensor: [rows, ...]}`` as leaves; other tensors pass."""
        out: Tree = {}
        for name, value in tree.items():
            for leaf, first, last in self.pieces.get(name, ()):
                out[leaf] = value[first:last].clone()
            if name not in self.pieces:
                out[name] = value
        return out

    def join(self, tree: Tree, axis: int = 0) -> Tree:
        """Return whole tensors again.

        Args:
            axis: of the rows: 1 behind a client axis.
        """
        leaves = {leaf for pieces in self.pieces.values() for leaf, _, _ in pieces}
        out = {n: v for n, v in tree.items() if n not in leaves}
        for name, pieces in self.pieces.items():
            if pieces[0][0] in tree:
                out[name] = torch.cat([tree[leaf] for leaf, _, _ in pieces], axis)
        return out


def split_rows(text: str, tree: Tree) -> RowSplit:
    """Return the split that ``FED.PERSONAL`` asks for.

    Args:
        text: patterns with a comma between them, each a regular expression of whole names, with
            rows ``[first:last]`` behind it or without. One pattern without rows splits nothing.
        tree: tensors without a client axis.

    Raises:
        ConfigError: rows that a tensor does not have, or that leave none to share.
    """
    parts = [p.strip() for p in text.split(",")] if ROWS.search(text) or "," in text else []
    pieces: dict[str, tuple[Piece, ...]] = {}
    personal = set[str]()
    for part in parts:
        found = ROWS.fullmatch(part)
        names = _matches(found[1] if found else part, tree)
        if not names:
            raise ConfigError(f"FED.PERSONAL '{text}': '{part}' matches none of the trained "
                              f"tensors in full ({', '.join(tree)})")
        for name in names:
            if found is None:
                personal.add(name)
                continue
            size = tree[name].shape[0] if tree[name].dim() else 0
            first, last = int(found[2] or 0), min(int(found[3] or size), size)
            if not 0 <= first < last or last - first == size:
                raise ConfigError(
                    f"FED.PERSONAL '{text}': {name} has {size} rows, of which "
                    f"[{found[2]}:{found[3]}] is {'all' if last - first == size else 'none'}"
                    f"{': give the name without rows' if last - first == size else ''}"
                )
            cuts = sorted({0, first, last, size})
            pieces[name] = tuple(
                (_leaf(name, a, b, size), a, b) for a, b in zip(cuts, cuts[1:], strict=False))
            personal.add(_leaf(name, first, last, size))
    return RowSplit(pieces, frozenset(personal))


def _leaf(name: str, first: int, last: int, size: int) -> str:
    return f"{name}[{first or ''}:{'' if last == size else last}]"


def _matches(pattern: str, tree: Tree) -> list[str]:
    try:
        return [name for name in tree if name == pattern or re.fullmatch(pattern, name)]
    except re.error as error:
        raise ConfigError(f"FED.PERSONAL '{pattern}': {error}") from None
