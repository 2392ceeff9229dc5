"""Prompts: ids around a learnable context, and the plain text path (the oracle of the packed one).

The prompt of a class is ``[SOS] ctx_1..ctx_n [tokens of "name." EOT pad]``, as in CoOp; a context
may stand for the first tokens of some words, whose others then stand before the name, and with a
``Suffix`` it goes on behind the name: ``... name words suffix_1..suffix_m . EOT pad``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.models.backbone import Backbone

PLACEHOLDER = "X"
_AT_ONCE = 256  # texts of a pass


class Suffix(NamedTuple):
    """What stands behind a class name: words, then ``n`` context vectors that all classes share."""

    words: str
    n: int


@dataclass(frozen=True)
class Prompts:
    """Tokenised prompts of a class list.

    ``ids`` [C, L] with placeholders at ``start .. start+n_ctx``; ``eot`` [C] is where the tower is
    read out, ``ends`` [C] where the end-of-text token stands (the same for CLIP). ``suffix`` [C, m]
    is where the m vectors behind each name stand; None: there are none. ``between`` tokens stand
    behind the context, before the name, the same for all classes.
    """

    ids: Tensor
    eot: Tensor
    ends: Tensor
    start: int
    n_ctx: int
    suffix: Tensor | None = None
    between: int = 0

    def of(self, classes: Tensor | slice) -> Prompts:
        """Return the prompts of some classes."""
        behind = None if self.suffix is None else self.suffix[classes]
        return replace(
            self, ids=self.ids[classes], eot=self.eot[classes], ends=self.ends[classes],
            suffix=behind,
        )


def prefix_length(backbone: Backbone) -> int:
    """Number of tokens that the tokenizer puts before every text (1 for CLIP, 0 for SigLIP)."""
    first, second = backbone.tokenize(["a", "b"])
    return int((first == second).int().argmin())


def assemble(
    backbone: Backbone, classnames: Sequence[str], n_ctx: int, suffix: Suffix | None = None,
    words: str = "",
) -> Prompts:
    """Tokenise ``name.`` for each class and make room for ``n_ctx`` vectors before it.

    Equal to tokenising ``"X " * n_ctx + name + "."`` wherever "X" is one token, as in CLIP; with
    a ``suffix``, to ``"X " * n_ctx + name + words + " X" * m + "."``. Of ``words`` before the name
    the first ``n_ctx`` tokens are left out: the vectors stand for them.

    Raises:
        ConfigError: no classes, or a prompt that does not fit the context length.
    """
    if not classnames:
        raise ConfigError("no class names: a prompt needs at least one class")
    length, start = backbone.context_length, prefix_length(backbone)
    names = [f"{words} {name.replace('_', ' ')}".lstrip() for name in classnames]  # as CoOp
    if suffix is not None:
        names = [f"{name} {suffix.words}" for name in names]
    # Twice the length: a tokenizer cuts silently, and a cut prompt must be seen here.
    ids = backbone.tokenize([f"{name}." for name in names], 2 * length)
    filler = backbone.tokenize([PLACEHOLDER])[0, start]
    count = token_count(backbone, words)
    gone = min(count, n_ctx)
    same = _same_tokens(ids[:, start + gone : start + count])
    ids = torch.cat([ids[:, :start], ids[:, start + gone :]], 1)
    ends, places = backbone.token_ends(ids) + n_ctx, None
    if suffix is not None:
        stops = backbone.token_ends(backbone.tokenize(names, 2 * length)) - gone
        ids, ends = _with_room(ids, stops, suffix.n, filler), ends + suffix.n
        places = stops.unsqueeze(1) + n_ctx + torch.arange(suffix.n, device=ids.device)
    _check_fit(backbone, classnames, ends, n_ctx, suffix)
    ids = _with_room(ids, torch.full_like(ends, start), n_ctx, filler)[:, :length]
    eot = ends if backbone.pool in ("argmax", "eos") else backbone.eot(ids)
    return Prompts(
        ids=ids, eot=eot, ends=ends, start=start, n_ctx=n_ctx, suffix=places, between=same
    )


def token_count(backbone: Backbone, text: str) -> int:
    """Number of a text's tokens, without the tokenizer's marks."""
    if not text:
        return 0
    ids = backbone.tokenize([text])
    return int(backbone.token_ends(ids)[0]) - prefix_length(backbone)


def _same_tokens(ids: Tensor) -> int:
    """Return the number n of columns of ``ids [C, n]`` if all rows are the same, else 0."""
    return ids.shape[1] if torch.equal(ids, ids[:1].expand_as(ids)) else 0


def _with_room(ids: Tensor, at: Tensor, n: int, filler: Tensor) -> Tensor:
    """Return ``ids [C, L]`` with ``n`` fillers put in from place ``at`` [C] on: [C, L + n]."""
    place = torch.arange(ids.shape[1] + n, device=ids.device).expand(len(ids), -1)
    first, behind = at.unsqueeze(1), at.unsqueeze(1) + n
    before = torch.where(place < behind, place, place - n).clamp(max=ids.shape[1] - 1)
    return torch.where((place >= first) & (place < behind), filler, ids.gather(1, before))


def _check_fit(
    backbone: Backbone, classnames: Sequence[str], ends: Tensor, n_ctx: int, suffix: Suffix | None
) -> None:
    longest = int(ends.argmax())
    needed, length = int(ends[longest]) + 1, backbone.context_length
    if needed <= length:
        return
    fits, rest = max(0, length - (needed - n_ctx)), ""
    if suffix is not None:
        rest = f" and {suffix.n} after its name"
        fits = max(0, length - (needed - n_ctx - suffix.n)) // 2
    # Beyond twice the context even our own tokenisation was cut: then the count is a lower bound.
    raise ConfigError(
        f"the prompt of class '{shorten_text(classnames[longest])}' needs {needed} tokens with "
        f"n_ctx={n_ctx}{rest}, but {backbone.name} has {length}: use n_ctx <= {fits}"
        f"{' for each' if rest else ''} or a shorter name"
    )


def shorten_text(text: str) -> str:
    """Return a text as a sentence can hold it."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def plain_text(
    backbone: Backbone, prompts: Prompts, ctx: Tensor, deep: Mapping[int, Tensor] | None = None,
    suffix: Tensor | None = None,
) -> Tensor:
    """Text features [P, C, embed_dim], not normalised, of ``ctx`` [P, n_ctx, text_width].

    One full-length sequence per prompt set and class through the backbone's own tower.

    Args:
        backbone: the frozen towers.
        prompts: ids of the C classes.
        ctx: P prompt sets; [P, C, n_ctx, text_width] where every class has a context of its own.
        deep: contexts that take the place of ``ctx`` in later blocks, shaped as it is.
        suffix: what stands behind the names, [P, m, text_width].
    """
    table = backbone.embed_tokens(prompts.ids)
    sets, classes = ctx.shape[0], table.shape[0]
    stop = prompts.start + prompts.n_ctx
    head = table[:, : prompts.start].expand(sets, -1, -1, -1)
    tail = table[:, stop:].expand(sets, -1, -1, -1)

    def rows(context: Tensor) -> Tensor:  # [P, C, n_ctx, width]
        return context if ctx.dim() == 4 else context.unsqueeze(1).expand(-1, classes, -1, -1)

    def enter(block: int, x: Tensor) -> Tensor:
        if block == 0 or not deep or block not in deep:
            return x
        middle = rows(deep[block]).flatten(0, 1).to(x.dtype)
        return torch.cat([x[:, : prompts.start], middle, x[:, stop:]], dim=1)

    emb = torch.cat([head, rows(ctx), tail], dim=2)
    if suffix is not None and prompts.suffix is not None:
        names = torch.arange(classes, device=ctx.device).unsqueeze(1)
        emb = emb.index_put(
            (torch.arange(sets, device=ctx.device)[:, None, None], names, prompts.suffix),
            suffix.unsqueeze(1).expand(-1, classes, -1, -1).to(emb.dtype),
        )
    emb = emb.flatten(0, 1)
    out = backbone.encode_embeddings(emb, prompts.eot.repeat(sets), enter if deep else None)
    return out.view(sets, classes, -1)


def fitting_ids(backbone: Backbone, texts: Sequence[str]) -> Tensor:
    """Token ids [n, context_length] of whole texts.

    Raises:
        ConfigError: a text that does not fit the context length.
    """
    ids = backbone.tokenize(texts, 2 * backbone.context_length)
    ends = backbone.token_ends(ids)
    worst = int(ends.argmax())
    if int(ends[worst]) >= backbone.context_length:
        raise ConfigError(
            f"the text '{shorten_text(texts[worst])}' needs {int(ends[worst]) + 1} tokens, "
            f"but {backbone.name} has {backbone.context_length}: shorten the template or the name"
        )
    return ids[:, : backbone.context_length]


def encode_texts(backbone: Backbone, texts: Sequence[str]) -> Tensor:
    """Text features [n, embed_dim], not normalised and without gradient, of whole texts.

    Raises:
        ConfigError: a text that does not fit the context length.
    """
    ids = fitting_ids(backbone, texts)
    with torch.no_grad():
        parts = [
            backbone.encode_embeddings(backbone.embed_tokens(part), backbone.eot(part))
            for part in ids.split(_AT_ONCE)
        ]
    return torch.cat(parts)
