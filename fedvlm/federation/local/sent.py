"""What is sent of a tree: some tensors, some rows, the ranks of a LoRA; for uploads and downloads.

Nothing is read here: how many rows each client sends, and whether they exist, is told by the
engine's one read at the end of a chunk's work (``Upload.told``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree, TreeView, matching, to_device
from fedvlm.federation.aggregation.arrival import Rows
from fedvlm.models.towers.adapters import FACTOR_A, FACTOR_B, is_factor

AXES = {FACTOR_A: -2, FACTOR_B: -1}  # where LoRA's components lie
Ranks = Sequence[int] | Tensor


@dataclass(frozen=True)
class Portion:
    """What of the shared tensors takes part in a round, whatever the method's own steps are.

    Attributes:
        resting: tensors that nobody trains or sends in this round.
        ranks: client k sends the first ``ranks[k mod n]`` components of each LoRA; none: all.
    """

    resting: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    def of(
        self, clients: Sequence[int], params: Tree, rows: Mapping[str, Rows] | None
    ) -> dict[str, Ranks]:
        """Return the ranks of each LoRA in ``params`` of which no rows are chosen."""
        each = [self.ranks[c % len(self.ranks)] for c in clients] if self.ranks else []
        names = [n for n in params if is_factor(n) and n not in (rows or {})] if each else []
        return {n[:-len(FACTOR_A)]: each for n in names}


WHOLE = Portion()


def unsent_names(shared: Sequence[str], only: Sequence[str] | None) -> list[str]:
    """Return which shared tensors the patterns ``only`` leave out.

    Raises:
        FedvlmError: a pattern that no shared tensor matches.
    """
    if only is None:
        return []
    for pattern in only:
        if not matching(shared, [pattern]):
            raise FedvlmError(
                f"only='{pattern}' matches no shared tensor; shared are {_names(shared)}"
            )
    kept = set(matching(shared, only))
    return [n for n in shared if n not in kept]


def cut_upload(
    params: Tree, rows: Mapping[str, Rows] | None, ranks: Mapping[str, Ranks] | None
) -> tuple[Tree, dict[str, Rows], dict[str, Tensor]]:
    """Return the tree cut to rows and ranks, of what it was cut, and what ``Rows.told`` says.

    Args:
        params: what is sent at all, ``[K, ...]``.

    Raises:
        FedvlmError: a name or LoRA that is not sent, rows and ranks of one tensor, an index of
            another form, a rank above that of the LoRA.
    """
    whole = dict(rows or {})
    for name, one in of_ranks(params, ranks or {}).items():
        if name in whole:
            raise FedvlmError(f"'{name}' has both rows and ranks; give one of them")
        whole[name] = one
    out, told = dict(params), dict[str, Tensor]()
    known: dict[tuple[int, int], Tensor] = {}
    for name, one in whole.items():
        if name not in params:
            raise FedvlmError(f"rows of '{name}', which is not uploaded; uploaded are "
                              f"{_names(params)}")
        leaf = params[name]
        _check(name, one, leaf)
        index, size = one.index, leaf.shape[one.along(leaf)]
        at = known.setdefault((id(index), -1), to_device(index, leaf.device))
        whole[name] = here = Rows(at, one.axis)
        out[name] = here.cut(leaf)
        if (id(index), size) not in known:
            known[id(index), size] = here.told(size)
        told[name] = known[id(index), size]
    return out, whole, told


def of_ranks(params: Tree, ranks: Mapping[str, Ranks]) -> dict[str, Rows]:
    """Return rows 0 to r_k - 1 of the factors A, and the same columns of B, of each LoRA.

    Args:
        ranks: r_k of each client, ``[K]``, by the LoRA's name without ``.A`` and ``.B``.

    Raises:
        FedvlmError: no factor of that name is sent, or a rank that it does not have.
    """
    out: dict[str, Rows] = {}
    for site, given in ranks.items():
        names = [site + end for end in AXES if site + end in params]
        if not names:
            raise FedvlmError(
                f"ranks of '{site}', of which no factor is uploaded; uploaded are {_names(params)}"
            )
        leaf, axis = params[names[0]], AXES[names[0].removeprefix(site)]
        k, rank = len(leaf), leaf.shape[axis]
        each = torch.as_tensor(given)
        if each.shape != (k,):
            raise FedvlmError(f"ranks of '{site}' have shape {list(each.shape)}, not [{k}]")
        if each.device.type == "cpu" and bool(((each < 0) | (each > rank)).any()):
            raise FedvlmError(f"ranks of '{site}' are {each.tolist()}; its rank is {rank}")
        each = to_device(each, leaf.device)[:, None]
        at = torch.arange(rank, device=leaf.device).expand(k, rank)
        index = torch.where(at < each, at, -1)
        index = torch.where((each < 0) | (each > rank), rank, index)  # refused when it is told
        out |= {n: Rows(index, AXES[n.removeprefix(site)]) for n in names}
    return out


def refusal(name: str, told: float, size: int) -> str:
    """Return what is wrong with rows of which ``told`` is told; empty: nothing."""
    if told == -1:
        return f"a row of '{name}' that does not exist: rows are 0 to {size - 1}, and -1 is none"
    return f"a row of '{name}' twice" if told == -2 else ""


def odd_extra(extras: TreeView, forms: TreeView) -> str:
    """Return what of extras ``[K, ...]`` is not as ``Trainer.extra_forms`` has it; empty: nothing.

    They have a client axis.
    """
    for name in sorted(extras.keys() | forms.keys()):
        if name not in extras:
            return f"the extra '{name}' is missing"
        if name not in forms:
            return f"an extra '{name}', which this round does not have"
        v, home = extras[name], forms[name]
        if v.shape[1:] != home.shape or v.dtype != home.dtype:
            return (
                f"the extra '{name}' is {list(v.shape[1:])} {v.dtype} of a client, not "
                f"{list(home.shape)} {home.dtype}"
            )
    return ""


def _check(name: str, rows: Rows, leaf: Tensor) -> None:
    """Refuse an index or an axis of another form; nothing is read.

    Raises:
        FedvlmError: what is wrong.
    """
    if not (isinstance(rows, Rows) and isinstance(rows.index, Tensor)):
        raise FedvlmError(f"rows of '{name}' are {type(rows).__name__}, not Rows(index, axis)")
    index = rows.index
    if index.dtype != torch.int64 or index.dim() != 2 or len(index) != len(leaf):
        raise FedvlmError(
            f"the index of the rows of '{name}' is {index.dtype} {list(index.shape)}, not int64 "
            f"[{len(leaf)}, n]"
        )
    if not -leaf.dim() < rows.axis < leaf.dim() - 1:
        raise FedvlmError(
            f"rows of '{name}' lie along axis {rows.axis}, but its shape is {list(leaf.shape[1:])}"
        )


def _names(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names) or "none"
