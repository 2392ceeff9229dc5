"""Class texts through a text tower that each client has edited (LoRA, adapters): K classifiers.

Packed where the tower allows it: the texts of a template share what they begin with, and follow it
in one sequence (``layouts``). Otherwise, and on the plain path, one sequence a text, cut at the
longest where the tower is causal (later positions cannot reach the read-out). Either way what lies
below the first edited block runs once per class list, and the last block for the read-out rows
only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedvlm.core.errors import ConfigError
from fedvlm.core.spelling import fill
from fedvlm.models.backbone import Backbone, project_text
from fedvlm.models.towers.blocks import Edits, FrozenBlock, NoEdits, Unreadable, read_blocks
from fedvlm.models.towers.clip import is_quick_gelu
from fedvlm.models.towers.fold import QUICK_GELU
from fedvlm.models.towers.layouts import PackedLayout, make_layouts
from fedvlm.models.towers.packed_text import PackedText
from fedvlm.models.towers.prompts import Prompts, fitting_ids
from fedvlm.models.towers.tree_attention import TreeAttention, read_attention

if TYPE_CHECKING:  # imported with its loader, by runs that have such a tower
    from fedvlm.models.encoders import EncoderBackbone, EncoderLayer

MAX_BYTES = 4 << 30  # of activations kept for the backward pass; more is computed twice
Piece = Callable[[Edits, int], Tensor]  # edits, clients -> normalised features [K, texts, d]


def text_blocks(backbone: Backbone) -> Sequence[FrozenBlock | EncoderLayer]:
    """Return the text tower's blocks.

    Raises:
        ConfigError: they are neither open_clip's standard ones nor a known encoder's.
    """
    if backbone.encoder is not None:
        return cast("EncoderBackbone", backbone).encoder_layers()
    try:
        if not backbone.standard:
            raise Unreadable("it is read out at a class token")
        return read_blocks(backbone.text_blocks)
    except Unreadable as reason:
        raise ConfigError(
            f"PEFT.TEXT lora does not fit the text tower of {backbone.name} ({reason}): "
            "set PEFT.TEXT prompt or none"
        ) from reason


class TextTower:
    """The texts of one class list, ready for K edited towers.

    Args:
        backbone: the towers.
        classnames: by label.
        templates: as ``VLModel``'s; a class is the normalised mean over them.
        counters: ``text_tokens`` and ``text_passes`` are counted here.
        packed: the packed tower; None: one sequence a text.
    """

    def __init__(
        self, backbone: Backbone, classnames: Sequence[str], templates: Sequence[str],
        counters: Counter[str], packed: PackedText | None = None,
    ) -> None:
        self.backbone, self.counters = backbone, counters
        # Sentences of other classes alone are left out.
        told = [some for t in templates if any(some := [fill(t, c) for c in classnames])]
        self.sets = len(told)
        texts = [text for some in told for text in some if text is not None]
        counts = [sum(text is not None for text in some) for some in told]
        # Where classes have unlike numbers of sentences: the class of each text.
        self.owners = None if {*counts} == {len(classnames)} else torch.tensor(
            [c for some in told for c, text in enumerate(some) if text is not None],
            device=backbone.device,
        )
        ids = fitting_ids(backbone, texts)
        self.texts: PlainTexts | PackedTexts
        if backbone.encoder is not None:
            self.texts = EncoderTexts(cast("EncoderBackbone", backbone), ids)
        else:
            blocks = cast(list[FrozenBlock], text_blocks(backbone))
            self.texts = PlainTexts(backbone, blocks, ids) if packed is None else PackedTexts(
                packed, blocks, ids.split(counts)
            )

    def encode(self, edits: Edits, clients: int, start: int = 0) -> Tensor:
        """Return normalised text features ``[K, C, d]``; the gradient reaches the edits.

        Args:
            edits: what the clients change (``linear``, ``norm``, ``branch``).
            clients: K.
            start: the first block that is edited.
        """
        pieces, fit = self.texts.pieces(clients, start)
        if fit:
            parts = [piece(edits, clients) for piece in pieces]
        else:  # too large to keep: computed again when the gradient is asked for
            parts = [
                checkpoint(piece, edits, clients, use_reentrant=False, preserve_rng_state=False)
                for piece in pieces
            ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        self.counters["text_passes"] += 1
        self.counters["text_tokens"] += clients * self.texts.tokens
        if self.owners is not None:
            total = out.new_zeros(clients, int(self.owners.max()) + 1, out.shape[-1])
            return F.normalize(total.index_add(1, self.owners, out), dim=-1)
        if self.sets == 1:
            return out
        return F.normalize(out.unflatten(1, (self.sets, -1)).mean(1), dim=-1)


class PlainTexts:
    """One sequence a text.

    Args:
        backbone: the towers.
        blocks: of its text tower.
        ids: tokens [n, context_length].
    """

    def __init__(self, backbone: Backbone, blocks: Sequence[Any], ids: Tensor) -> None:
        self.backbone, self.blocks = backbone, blocks
        self.read = backbone.eot(ids)
        length = int(self.read.max()) + 1 if backbone.causal else ids.shape[1]
        tower = backbone.text_tower
        self.ids = ids[:, :length]
        self.mask = None if tower.attn_mask is None else tower.attn_mask[:length, :length]
        self._entered: dict[int, Tensor] = {}

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return self.ids.numel()

    def enter(self, block: int) -> Tensor:
        """Return the activations ``[1, texts, L, width]`` that enter ``block``, computed once."""
        if block not in self._entered:
            backbone, length = self.backbone, self.ids.shape[1]
            with torch.no_grad():
                x = backbone.embed_tokens(self.ids)
                x = (x + backbone.text_tower.positional_embedding[:length]).unsqueeze(0)
                for one in self.blocks[:block]:
                    x = one(x, NoEdits(), self.mask)
            self._entered[block] = x
        return self._entered[block]

    def pieces(self, clients: int, start: int) -> tuple[list[Piece], bool]:
        """Return the parts that texts are encoded in, and whether all may be kept at once."""
        texts, length = self.ids.shape
        most = max(1, _most_rows(self.backbone, self.blocks, clients, start) // length)
        cuts = torch.arange(texts, device=self.ids.device).split(most)
        return [partial(self._run, cut, start) for cut in cuts], len(cuts) == 1

    def _run(self, cut: Tensor, start: int, edits: Edits, k: int) -> Tensor:
        x, read = self.enter(start)[:, cut], self.read[cut]
        x = x.expand(k, *x.shape[1:])
        for one in self.blocks[start:]:
            x = one(x, edits, self.mask, read if one is self.blocks[-1] else None)
        tower = self.backbone.text_tower
        out = project_text(tower.text_projection, tower.ln_final(x[:, :, 0]))
        return F.normalize(out, dim=-1)


class EncoderTexts(PlainTexts):
    """One sequence a text through an encoder of transformers, all layers for every client."""

    backbone: EncoderBackbone

    def __init__(self, backbone: EncoderBackbone, ids: Tensor) -> None:
        self.backbone, self.blocks = backbone, backbone.text_blocks
        self.read = backbone.token_ends(ids)
        self.ids = ids[:, : int(self.read.max()) + 1]

    def _run(self, cut: Tensor, start: int, edits: Edits, k: int) -> Tensor:
        with torch.no_grad():
            emb = self.backbone.embed_tokens(self.ids[cut]).repeat(k, 1, 1)
        with self.backbone.edited(edits, k):
            out = self.backbone.encode_embeddings(emb, self.read[cut].repeat(k))
        return F.normalize(out, dim=-1).unflatten(0, (k, -1))


class PackedTexts:
    """The texts of each template in one sequence, or in several where they are many.

    Args:
        packed: the backbone's packed tower.
        blocks: of its text tower.
        sets: tokens [C, context_length] of each template.
    """

    def __init__(
        self, packed: PackedText, blocks: list[FrozenBlock], sets: Sequence[Tensor]
    ) -> None:
        self.packed, self.blocks = packed, [_quick(block) for block in blocks]
        self.sets = [_shared(packed.backbone, ids) for ids in sets]
        self.whole = self._layouts(1 << 40)
        self.tokens = sum(layout.tokens for layout in self.whole)
        self._cut: dict[int, list[PackedLayout]] = {}
        self._entered: dict[tuple[int, int], Tensor] = {}  # by layout and block

    def _layouts(self, most: int) -> list[PackedLayout]:
        return [layout for prompts in self.sets for layout in make_layouts(
            prompts, max_rows=most, dtype=self.packed.dtype
        )]

    def pieces(self, clients: int, start: int) -> tuple[list[Piece], bool]:
        """Return the parts that texts are encoded in, and whether all may be kept at once."""
        most, layouts = _most_rows(self.packed.backbone, self.blocks, clients, start), self.whole
        if max(layout.rows for layout in layouts) > most:
            if most not in self._cut:
                self._cut[most] = self._layouts(most)
            layouts = self._cut[most]
        fit = sum(layout.rows for layout in layouts) <= most
        return [partial(self._run, layout, start) for layout in layouts], fit

    def _enter(self, layout: PackedLayout, block: int) -> Tensor:
        """Return the activations ``[1, rows, width]`` that enter ``block``, computed once."""
        key = (id(layout), block)
        if key not in self._entered:
            with torch.no_grad():
                x = self.packed.embed(self.packed.positions.new_empty(1, 0, 1), layout)
                for one in self.blocks[:block]:
                    x = packed_block(one, x, NoEdits(), layout)
            self._entered[key] = x
        return self._entered[key]

    def _run(self, layout: PackedLayout, start: int, edits: Edits, k: int) -> Tensor:
        x = self._enter(layout, start)
        x = x.expand(k, *x.shape[1:])
        for one in self.blocks[start:]:
            x = packed_block(one, x, edits, layout, last=one is self.blocks[-1])
        return F.normalize(self.packed.read_out(x), dim=-1)


def packed_block(
    block: FrozenBlock, x: Tensor, edits: Edits, layout: PackedLayout, last: bool = False
) -> Tensor:
    """Return a block's output of packed sequences.

    Args:
        block: the frozen block.
        x: ``[K, rows, width]``.
        edits: the clients'.
        layout: of the sequences.
        last: the output is of the rows at the end of the texts only, ``[K, texts, width]``.
    """
    x, scale = x.unsqueeze(1), (x.shape[-1] // block.heads) ** -0.5
    h = edits.norm(block.index, 1, x, block.norms[0])
    k, v = block.site("k", h, edits), block.site("v", h, edits)
    if last:
        h = layout.rows_at(h.squeeze(1), layout.read).unsqueeze(1)
        q = scale * block.site("q", h, edits).squeeze(1)
        mixed = read_attention(q, torch.cat([k, v], -1).squeeze(1), block.heads, layout)
        mixed = layout.rows_at(mixed, layout.pick)
        x = layout.rows_at(x.squeeze(1), layout.tops()).unsqueeze(1)
    else:
        qkv = torch.cat([scale * block.site("q", h, edits), k, v], -1).squeeze(1)
        mixed = TreeAttention.apply(qkv, block.heads, layout.own_mask, layout.prefix_mask)
    return block.finish(x, edits, mixed.unsqueeze(1)).squeeze(1)


def _shared(backbone: Backbone, ids: Tensor) -> Prompts:
    """Return texts ``[C, L]`` as prompts that share what all of them begin with."""
    ends = backbone.token_ends(ids)
    same = (ids == ids[:1]).all(0).int()
    # The end of a text is read out: it belongs to the text, also where there is one text only.
    start = min(int(same.cumprod(0).sum()), int(ends.min()))
    return Prompts(ids=ids, eot=ends, ends=ends, start=start, n_ctx=0)


def _quick(block: FrozenBlock) -> FrozenBlock:
    """Return a block whose QuickGELU (three passes over memory) is SiLU (one): see ``fold``."""
    if not (isinstance(block.act, torch.nn.Module) and is_quick_gelu(block.act)):
        return block
    (fc, bias), (proj, shift) = block.layers["fc"], block.layers["proj"]
    layers = block.layers | {
        "fc": (_times(fc, QUICK_GELU), None if bias is None else _times(bias, QUICK_GELU)),
        "proj": (_times(proj, 1 / QUICK_GELU), shift),
    }
    return replace(block, layers=layers, act=F.silu, fold=QUICK_GELU)


def _times(value: Tensor, factor: float) -> Tensor:
    return (value.detach().double() * factor).to(value.dtype)


def _most_rows(
    backbone: Backbone, blocks: Sequence[object], clients: int, start: int
) -> int:
    """Return the rows of a sequence that all clients' activations may be kept of."""
    # 16 width-sized values per row and block, as for the packed path.
    per_row = 16 * clients * backbone.text_width * 4 * max(1, len(blocks) - start)
    return max(1, MAX_BYTES // per_row)
