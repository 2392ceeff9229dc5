"""Where the tokens of all classes lie in one packed sequence that shares its prefix.

The classes' own tokens follow the prefix in chunks of about ``CHUNK`` slots, several classes in a
chunk, each class with positions that restart behind the prefix. Prompt sets of one layout have the
same classes (``make_layouts``), or each a choice of its own (``chosen_layout``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedvlm.models.towers.prompts import Prompts

CHUNK = 32


@dataclass(frozen=True)
class PackedLayout:
    """Index tables of G chunks with T token slots and E read-out slots each, on one device.

    ``ids`` [G*T] token ids (0 in padding); ``positions`` [G*T] in the text tower; ``own_mask``
    [G, T, T], ``prefix_mask`` [n, n] and ``read_mask`` [G, 1, E, n + T] are added to attention
    scores (0 or -inf); ``read`` [G*E] rows of the EOT tokens in the sequence; ``pick`` [C] index
    of each class in ``read``; ``prefix_ids`` [start] tokens before the ``n_ctx`` vectors that all
    classes share, ``between_ids`` [b] those behind them; ``tokens`` real tokens; ``own_ctx`` [C*m]
    slots of m context vectors among the classes' own tokens, class by class: of contexts that
    classes have for themselves, or of the suffix (else empty).

    Where each of P prompt sets has classes of its own, ``ids``, ``positions``, ``own_mask``,
    ``read_mask``, ``read`` and ``pick`` have P as a first axis (masks one of 1 behind it for the
    heads: ``own_mask`` [P, 1, G, T, T]), and ``chosen`` [3, M] are the (set, place in ``pick``,
    class) of all M features; ``tokens`` are then those of all sets.
    """

    ids: Tensor
    positions: Tensor
    own_mask: Tensor
    prefix_mask: Tensor
    read_mask: Tensor
    read: Tensor
    pick: Tensor
    prefix_ids: Tensor
    n_ctx: int
    tokens: int
    own_ctx: Tensor
    between_ids: Tensor
    chosen: Tensor | None = None

    @property
    def n_prefix(self) -> int:
        """Rows of the shared prefix."""
        return len(self.prefix_mask)

    @property
    def ctx_at(self) -> slice:
        """Rows of the context that all classes share."""
        stop = self.n_prefix - len(self.between_ids)
        return slice(stop - self.n_ctx, stop)

    @property
    def rows(self) -> int:
        """Rows of one packed sequence, padding included."""
        return self.n_prefix + self.ids.shape[-1]

    @property
    def chunks(self) -> tuple[int, int]:
        """Number of chunks, and slots in each."""
        return self.own_mask.shape[-3], self.own_mask.shape[-1]

    def cut(self, sets: slice) -> PackedLayout:
        """Return the layout of a part of the prompt sets."""
        if self.chosen is None:
            return self
        first, last, _ = sets.indices(len(self.ids))
        at = self.chosen[0]
        chosen = self.chosen[:, (at >= first) & (at < last)]
        chosen[0] -= first
        parts = ("ids", "positions", "own_mask", "read_mask", "read", "pick")
        return replace(self, chosen=chosen, **{name: getattr(self, name)[sets] for name in parts})

    def rows_at(self, x: Tensor, index: Tensor) -> Tensor:
        """Return rows ``index`` ([m], or [P, m]: of each set) of ``x [P, rows, width]``."""
        if index.dim() == 1:
            return x[:, index]
        return x[torch.arange(len(x), device=x.device).unsqueeze(1), index]

    def tops(self) -> Tensor:
        """Return the rows of the classes' EOT tokens, [C] or [P, C]."""
        return self.read[self.pick] if self.chosen is None else self.read.gather(1, self.pick)


def bins(lengths: list[int], capacity: int) -> list[list[int]]:
    """First-fit decreasing: indices of ``lengths`` in bins of at most ``capacity`` each."""
    filled: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        spot = next((b for b, left in enumerate(free) if left >= lengths[index]), None)
        if spot is None:
            filled.append([])
            free.append(capacity)
            spot = len(free) - 1
        filled[spot].append(index)
        free[spot] -= lengths[index]
    return filled


def tight_bins(lengths: list[int]) -> list[list[int]]:
    """Bins of about ``CHUNK`` tokens, all nearly equally full, so that padding is small."""
    wanted = max(1, round(sum(lengths) / CHUNK))
    capacity = max(max(lengths), -(-sum(lengths) // wanted))
    while len(groups := bins(lengths, capacity)) > wanted:
        capacity += 1
    return groups


def make_layouts(
    prompts: Prompts, *, max_rows: int, dtype: torch.dtype, own: bool = False
) -> list[PackedLayout]:
    """Lay out the classes of ``prompts`` (ids [C, L]) in sequences of about ``max_rows`` at most.

    Returns one layout where all fit, otherwise several, of consecutive classes. ``own``: each class
    has a context of its own.
    """
    first = prompts.start + (0 if own else prompts.n_ctx + prompts.between)
    lengths = [int(end) + 1 - first for end in prompts.ends]
    groups: list[list[int]] = []
    group: list[int] = []
    rows = first
    for index, length in enumerate(lengths):
        if group and rows + length > max_rows:
            groups.append(group)
            group, rows = [], first
        group.append(index)
        rows += length
    return [
        _layout(prompts, classes, tight_bins([lengths[c] for c in classes]), dtype, own)
        for classes in [*groups, group]
    ]


def chosen_layout(
    prompts: Prompts, sets: Sequence[Sequence[int]], dtype: torch.dtype
) -> PackedLayout:
    """Lay out for each of several prompt sets its own classes, in sequences of one length.

    Args:
        prompts: of all classes, with a context that classes share.
        sets: the classes of each set, ascending; an empty set has padding only.
        dtype: of the masks.
    """
    first = prompts.start + prompts.n_ctx + prompts.between
    lengths = [int(end) + 1 - first for end in prompts.ends]
    most = max(sets, key=lambda classes: sum(lengths[c] for c in classes))
    tight = tight_bins([lengths[c] for c in most]) if most else []
    full = [sum(lengths[most[i]] for i in group) for group in tight]
    slots = max([*full, *(lengths[c] for classes in sets for c in classes), 1])
    groups = [bins([lengths[c] for c in classes], slots) for classes in sets]
    chunks = max(1, max(map(len, groups)))
    reads = max([len(group) for one in groups for group in one] + [1])
    width, one = max(1, max(map(len, sets))), dict[tuple[int, ...], PackedLayout]()
    for classes, group in zip(sets, groups, strict=True):
        if (key := tuple(classes)) not in one:
            whole = group + [[]] * (chunks - len(group))
            one[key] = _layout(prompts, list(classes), whole, dtype, False, (slots, reads))
    each = [one[tuple(classes)] for classes in sets]
    pick = torch.zeros(len(sets), width, dtype=torch.long)
    for row, layout in zip(pick, each, strict=True):
        row[: len(layout.pick)] = layout.pick.cpu()
    pairs = [(p, j, c) for p, classes in enumerate(sets) for j, c in enumerate(classes)]
    device = prompts.ids.device

    def stacked(name: str) -> Tensor:
        return torch.stack([getattr(layout, name) for layout in each])

    return replace(
        each[0], ids=stacked("ids"), positions=stacked("positions"), read=stacked("read"),
        own_mask=stacked("own_mask").unsqueeze(1), read_mask=stacked("read_mask"),
        pick=pick.to(device), tokens=sum(layout.tokens for layout in each),
        chosen=torch.tensor(pairs, dtype=torch.long).reshape(-1, 3).T.contiguous().to(device),
    )


def _layout(
    prompts: Prompts, classes: list[int], groups: list[list[int]], dtype: torch.dtype,
    private: bool, least: tuple[int, int] = (0, 0),
) -> PackedLayout:
    """Lay out ``classes`` in ``groups`` of positions in that list.

    Args:
        private: each class has a context of its own.
        least: slots of a chunk and classes read in it, at least.
    """
    n_ctx, between = (0, 0) if private else (prompts.n_ctx, prompts.between)
    first = prompts.start + n_ctx + between
    all_ids, ends = prompts.ids.cpu(), [int(prompts.ends[c]) for c in classes]
    lengths = [end + 1 - first for end in ends]
    slots = max([sum(lengths[i] for i in group) for group in groups] + [least[0]])
    reads = max([len(group) for group in groups] + [least[1]])
    ids = torch.zeros(len(groups), slots, dtype=torch.long)
    positions, owner = torch.full_like(ids, first), torch.full_like(ids, -1)
    read = torch.zeros(len(groups), reads, dtype=torch.long)
    pick = torch.zeros(len(lengths), dtype=torch.long)
    starts = torch.zeros(len(lengths), 1, dtype=torch.long)
    for g, group in enumerate(groups):
        at = 0
        for e, i in enumerate(group):
            span = slice(at, at + lengths[i])
            ids[g, span] = all_ids[classes[i], first : ends[i] + 1]
            positions[g, span] = torch.arange(first, ends[i] + 1)
            owner[g, span] = i
            starts[i] = g * slots + at
            at += lengths[i]
            read[g, e] = at - 1
            pick[i] = g * reads + e
    device, own = prompts.ids.device, _own_mask(owner, dtype)
    inside = torch.arange(prompts.n_ctx - n_ctx)
    if prompts.suffix is not None:
        inside = prompts.suffix[classes].cpu() - first
    rows = first + torch.arange(len(groups)).unsqueeze(1) * slots + read
    read_mask = torch.cat(
        [
            torch.zeros(*read.shape, first, dtype=dtype),
            own.gather(1, read.unsqueeze(2).expand(-1, -1, slots)),
        ],
        dim=2,
    )
    return PackedLayout(
        ids=ids.flatten().to(device),
        positions=positions.flatten().to(device),
        own_mask=own.to(device),
        prefix_mask=_hide(torch.ones(first, first).triu(1).bool(), dtype).to(device),
        read_mask=read_mask.unsqueeze(1).to(device),
        read=rows.flatten().to(device),
        pick=pick.to(device),
        prefix_ids=prompts.ids[0, : prompts.start],
        n_ctx=n_ctx,
        tokens=first + sum(lengths),
        own_ctx=(starts + inside).flatten().to(device),
        between_ids=prompts.ids[0, first - between : first],
    )


def _own_mask(owner: Tensor, dtype: torch.dtype) -> Tensor:
    """[G, T, T]: a slot sees the earlier slots of its own class (padding slots see each other)."""
    same = owner.unsqueeze(2) == owner.unsqueeze(1)
    causal = torch.ones(owner.shape[1], owner.shape[1]).tril().bool()
    return _hide(~(same & causal), dtype)


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
