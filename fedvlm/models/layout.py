"""Where each token of a class list lies in a packed sequence: one prefix, then chunks of classes.

With a causal tower nothing before the class name depends on the class. So ``[SOS, ctx]`` is
encoded once per prompt set, and the classes' own tokens follow it, each class with positions that
restart behind the prefix. Classes are grouped into chunks of about ``chunk`` tokens; a token
attends to the prefix and to the earlier tokens of its own class, which lie in its own chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlm.models.text import Prompts

CHUNK = 32


@dataclass(frozen=True)
class Layout:
    """Index tables of G chunks with T token slots and E read-out slots each, on one device.

    ``ids`` [G*T] token ids (0 in padding); ``positions`` [G*T] in the text tower; ``own_mask``
    [G, T, T], ``prefix_mask`` [n, n] and ``read_mask`` [G, 1, E, n + T] are added to attention
    scores (0 or -inf); ``read`` [G*E] rows of the EOT tokens in the sequence; ``pick`` [C] index
    of each class in ``read``; ``prefix_ids`` [start] tokens before the ``n_ctx`` vectors;
    ``tokens`` real tokens.
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

    @property
    def n_prefix(self) -> int:
        """Rows of the shared prefix."""
        return len(self.prefix_mask)

    @property
    def rows(self) -> int:
        """Rows of one packed sequence, padding included."""
        return self.n_prefix + len(self.ids)


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


def tight_bins(lengths: list[int], chunk: int) -> list[list[int]]:
    """Bins of about ``chunk`` tokens, all nearly equally full, so that padding is small."""
    wanted = max(1, round(sum(lengths) / chunk))
    capacity = max(max(lengths), -(-sum(lengths) // wanted))
    while len(found := bins(lengths, capacity)) > wanted:
        capacity += 1
    return found


def make_layouts(
    prompts: Prompts, *, max_rows: int, dtype: torch.dtype, chunk: int = CHUNK
) -> list[Layout]:
    """Lay out the classes of ``prompts`` (ids [C, L]) in sequences of about ``max_rows`` at most.

    Returns one layout where all fit, otherwise several, of consecutive classes.
    """
    first = prompts.start + prompts.n_ctx
    lengths = [int(end) + 1 - first for end in prompts.ends]
    found: list[list[int]] = []
    group: list[int] = []
    rows = first
    for index, length in enumerate(lengths):
        if group and rows + length > max_rows:
            found.append(group)
            group, rows = [], first
        group.append(index)
        rows += length
    return [_layout(prompts, classes, chunk, dtype) for classes in [*found, group]]


def _layout(prompts: Prompts, classes: list[int], chunk: int, dtype: torch.dtype) -> Layout:
    first = prompts.start + prompts.n_ctx
    all_ids, ends = prompts.ids.cpu(), [int(prompts.ends[c]) for c in classes]
    lengths = [end + 1 - first for end in ends]
    groups = tight_bins(lengths, chunk)
    slots = max(sum(lengths[i] for i in group) for group in groups)
    reads = max(len(group) for group in groups)
    ids = torch.zeros(len(groups), slots, dtype=torch.long)
    positions, owner = torch.full_like(ids, first), torch.full_like(ids, -1)
    read = torch.zeros(len(groups), reads, dtype=torch.long)
    pick = torch.zeros(len(lengths), dtype=torch.long)
    for g, group in enumerate(groups):
        at = 0
        for e, i in enumerate(group):
            span = slice(at, at + lengths[i])
            ids[g, span] = all_ids[classes[i], first : ends[i] + 1]
            positions[g, span] = torch.arange(first, ends[i] + 1)
            owner[g, span] = i
            at += lengths[i]
            read[g, e] = at - 1
            pick[i] = g * reads + e
    device, own = prompts.ids.device, _own_mask(owner, dtype)
    rows = first + torch.arange(len(groups)).unsqueeze(1) * slots + read
    read_mask = torch.cat(
        [
            torch.zeros(*read.shape, first, dtype=dtype),
            own.gather(1, read.unsqueeze(2).expand(-1, -1, slots)),
        ],
        dim=2,
    )
    return Layout(
        ids=ids.flatten().to(device),
        positions=positions.flatten().to(device),
        own_mask=own.to(device),
        prefix_mask=_hide(torch.ones(first, first).triu(1).bool(), dtype).to(device),
        read_mask=read_mask.unsqueeze(1).to(device),
        read=rows.flatten().to(device),
        pick=pick.to(device),
        prefix_ids=prompts.ids[0, : prompts.start],
        n_ctx=prompts.n_ctx,
        tokens=first + sum(lengths),
    )


def _own_mask(owner: Tensor, dtype: torch.dtype) -> Tensor:
    """[G, T, T]: a slot sees the earlier slots of its own class (padding slots see each other)."""
    same = owner.unsqueeze(2) == owner.unsqueeze(1)
    causal = torch.ones(owner.shape[1], owner.shape[1]).tril().bool()
    return _hide(~(same & causal), dtype)


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
