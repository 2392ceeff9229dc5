"""Which way a context becomes text features: packed where proved equal, plain otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedvlm.core import rng
from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.fold import Unfoldable
from fedvlm.models.towers.layouts import PackedLayout
from fedvlm.models.towers.packed_text import PackedText
from fedvlm.models.towers.prompts import Prompts, Suffix, assemble, plain_text

# Activations of the plain path kept for the backward pass, in bytes.
PLAIN_BYTES = 8 << 30
KEPT = 64  # layouts of classes that clients chose, for one class list
Contexts = Mapping[int, Tensor]  # block -> [P, n_ctx, text_width], or [P, C, n_ctx, text_width]
# Largest difference of a normalised feature between packed and plain path, by type.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}


class TextPath:
    """The text side of one backbone, shared by all class lists.

    Args:
        backbone: the towers.
        packed: try the packed path; it is checked against the plain one before its first use.
        bf16: bfloat16 linear layers in the packed path (always so for a bf16 backbone).
        counters: ``text_tokens`` and ``text_passes`` are counted here.
        notes: told why the plain path is used although packing was asked for.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        packed: bool,
        bf16: bool,
        counters: Counter[str],
        notes: list[str],
    ) -> None:
        self.backbone, self.counters, self.notes = backbone, counters, notes
        self._wanted = packed
        self._packed: PackedText | None = None
        low = bf16 or backbone.dtype is torch.bfloat16
        self._weight_dtype = torch.bfloat16 if low else backbone.feature_dtype

    def tower(self) -> PackedText | None:
        """The packed tower, made and checked at the first call; None for the plain path."""
        if not self._wanted or self._packed is not None:
            return self._packed
        self._wanted = False
        try:
            packed = PackedText(self.backbone, self._weight_dtype)
            self._check(packed)
            self._packed = packed
        except Unfoldable as reason:
            self.notes.append(f"text prompts use the slower reference implementation: {reason}")
        self._wanted = self._packed is not None
        return self._packed

    def _check(self, packed: PackedText) -> None:
        """Compare both paths on three short texts with a random context."""
        backbone = self.backbone
        n_ctx = min(4, backbone.context_length // 4)
        prompts = assemble(backbone, ("a", "b c", "d"), n_ctx)
        shape = (1, n_ctx, backbone.text_width)
        noise = torch.randn(shape, generator=rng.stream(0, "text-path-check"))
        ctx = (0.02 * noise).to(backbone.device, backbone.feature_dtype)
        with torch.no_grad():
            plain = F.normalize(plain_text(backbone, prompts, ctx), dim=-1)
            fast = F.normalize(packed(ctx, packed.layouts(prompts)), dim=-1)
        error = float((fast - plain).abs().max())
        allowed = TOLERANCE[self._weight_dtype]
        if not error <= allowed:
            raise Unfoldable(f"packed features differ from the reference by {error:.1e} > "
                             f"{allowed}")


class ClassPrompts:
    """The prompts of one class list with ``n_ctx`` vectors, ready to be encoded.

    Args:
        path: the backbone's text side.
        classnames: by label.
        n_ctx: context vectors of a prompt.
        own: every class has a context of its own.
        suffix: what stands behind the class names.
        words: their first ``n_ctx`` tokens are the context's place, the others stand before names.

    Raises:
        ConfigError: a prompt that does not fit the context length.
    """

    def __init__(
        self, path: TextPath, classnames: Sequence[str], n_ctx: int, own: bool = False,
        suffix: Suffix | None = None, words: str = "",
    ) -> None:
        self.path = path
        self.prompts: Prompts = assemble(path.backbone, classnames, n_ctx, suffix, words)
        tower = path.tower()
        self.layouts: list[PackedLayout] = (
            [] if tower is None else tower.layouts(self.prompts, own=own)
        )
        self._layouts: dict[tuple[tuple[int, ...], ...], PackedLayout | None] = {}

    def encode(
        self, ctx: Tensor, deep: Contexts | None = None, suffix: Tensor | None = None
    ) -> Tensor:
        """Text features [P, C, embed_dim], not normalised, of ``ctx`` [P, n_ctx, text_width].

        Contexts of the classes' own are ``[P, C, n_ctx, text_width]``. ``deep``: contexts of later
        blocks, shaped as ``ctx``. ``suffix``: contexts behind the names, [P, m, text_width].
        """
        tower, counters = self.path.tower(), self.path.counters
        counters["text_passes"] += 1
        if tower is None:
            counters["text_tokens"] += len(ctx) * self.prompts.ids.numel()
            return self._plain(self.prompts, ctx, deep, suffix)
        counters["text_tokens"] += len(ctx) * sum(layout.tokens for layout in self.layouts)
        return tower(ctx, self.layouts, deep, suffix)

    def encode_chosen(
        self, ctx: Tensor, sets: Sequence[Sequence[int]], deep: Contexts | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Text features of classes that each prompt set has for itself.

        Args:
            ctx: [P, n_ctx, text_width].
            sets: the classes of each prompt set, ascending.
            deep: as for ``encode``.

        Returns:
            Features [M, embed_dim], not normalised, and the prompt set [M] and class [M] of each.
        """
        tower, counters = self.path.tower(), self.path.counters
        counters["text_passes"] += 1
        layout = None if tower is None else self._chosen(tower, sets)
        if tower is not None and layout is not None and layout.chosen is not None:
            counters["text_tokens"] += layout.tokens
            return tower(ctx, [layout], deep), layout.chosen[0], layout.chosen[2]
        pairs = [(p, c) for p, classes in enumerate(sets) for c in classes]
        at = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.to(ctx.device)
        if tower is not None:  # one set alone is too large for a sequence: pieces of all classes
            counters["text_tokens"] += len(ctx) * sum(one.tokens for one in self.layouts)
            return tower(ctx, self.layouts, deep)[at[0], at[1]], at[0], at[1]
        counters["text_tokens"] += at.shape[1] * self.prompts.ids.shape[1]
        part = self.prompts.of(at[1])
        each = {b: v[at[0]].unsqueeze(0) for b, v in (deep or {}).items()}
        return self._plain(part, ctx[at[0]].unsqueeze(0), each)[0], at[0], at[1]

    def _chosen(
        self, tower: PackedText, sets: Sequence[Sequence[int]]
    ) -> PackedLayout | None:
        """Return the layout of ``sets``, made once while it is among the last ``KEPT``."""
        key = tuple(map(tuple, sets))
        layout = self._layouts.pop(key) if key in self._layouts else tower.chosen(
            self.prompts, sets
        )
        self._layouts[key] = layout  # the last one used comes last
        if len(self._layouts) > KEPT:
            del self._layouts[next(iter(self._layouts))]
        return layout

    def _plain(
        self, whole: Prompts, ctx: Tensor, deep: Contexts | None = None,
        suffix: Tensor | None = None,
    ) -> Tensor:
        """The plain path, in pieces where its activations would take more than ``PLAIN_BYTES``."""
        backbone = self.path.backbone
        classes, length = whole.ids.shape
        blocks = len(backbone.text_blocks)
        # 16 width-sized values per row and block, as for the packed path.
        per_text = 16 * backbone.text_width * ctx.element_size() * blocks * length
        most = max(1, PLAIN_BYTES // per_text)
        if len(ctx) * classes <= most:
            return plain_text(backbone, whole, ctx, deep, suffix)
        step, columns = min(classes, most), []
        for at in range(0, classes, step):
            cut = slice(at, at + step)
            part = whole.of(cut)
            sets, later = (ctx, deep or {}) if ctx.dim() == 3 else (
                ctx[:, cut], {b: v[:, cut] for b, v in (deep or {}).items()}
            )
            # Too large to keep: each piece is computed again when its gradient is asked for.
            pieces = [
                checkpoint(
                    plain_text, backbone, part, sets[i : i + most // step],
                    {b: v[i : i + most // step] for b, v in later.items()},
                    None if suffix is None else suffix[i : i + most // step],
                    use_reentrant=False, preserve_rng_state=False,
                )
                for i in range(0, len(sets), most // step)
            ]
            columns.append(torch.cat(pieces))
        return torch.cat(columns, dim=1)
