"""Prompts: ids around a learnable context, and the plain text path (the oracle of the packed one).

The prompt of a class is ``[SOS] ctx_1..ctx_n [tokens of "name." EOT pad]``, as in CoOp.

Class texts through a text tower that each client has adapted (LoRA): K classifiers at once.

The plain path, cut at the longest text where the tower is causal (later positions cannot reach the
read-out). Blocks below the first adapted one run once per class list; the last block runs for the
read-out rows only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedvlm.core.errors import ConfigError
from fedvlm.models.backbone import Backbone, project_text
from fedvlm.models.towers.blocks import Block, NoEdits, TreeEdits, Unreadable, read_blocks

PLACEHOLDER = "X"


@dataclass(frozen=True)
class Prompts:
    """Tokenised prompts of a class list.

    ``ids`` [C, L] with placeholders at ``start .. start+n_ctx``; ``eot`` [C] is where the tower is
    read out, ``ends`` [C] where the end-of-text token stands (the same for CLIP).
    """

    ids: Tensor
    eot: Tensor
    ends: Tensor
    start: int
    n_ctx: int


def clean_name(name: str) -> str:
    """Class name as CoOp feeds it to the tokenizer: underscores become blanks."""
    return name.replace("_", " ")


def prefix_length(backbone: Backbone) -> int:
    """Number of tokens that the tokenizer puts before every text (1 for CLIP, 0 for SigLIP)."""
    first, second = backbone.tokenize(["a", "b"])
    return int((first == second).int().argmin())


def assemble(backbone: Backbone, classnames: Sequence[str], n_ctx: int) -> Prompts:
    """Tokenise ``name.`` for each class and make room for ``n_ctx`` vectors before it.

    Equal to tokenising ``"X " * n_ctx + name + "."`` wherever "X" is one token, as in CLIP.

    Raises:
        ConfigError: no classes, or a prompt that does not fit the context length.
    """
    if not classnames:
        raise ConfigError("no class names: a prompt needs at least one class")
    length, start = backbone.context_length, prefix_length(backbone)
    texts = [f"{clean_name(name)}." for name in classnames]
    # Twice the length: a tokenizer cuts silently, and a cut prompt must be seen here.
    ids = backbone.tokenize(texts, 2 * length)
    ends = backbone.token_ends(ids) + n_ctx
    _check_fit(backbone, classnames, ends, n_ctx)
    filler = backbone.tokenize([PLACEHOLDER])[:, start : start + 1].expand(len(ids), n_ctx)
    ids = torch.cat([ids[:, :start], filler, ids[:, start:]], dim=1)[:, :length]
    eot = ends if backbone.pool in ("argmax", "eos") else backbone.eot(ids)
    return Prompts(ids=ids, eot=eot, ends=ends, start=start, n_ctx=n_ctx)


def _check_fit(backbone: Backbone, classnames: Sequence[str], ends: Tensor, n_ctx: int) -> None:
    longest = int(ends.argmax())
    needed, length = int(ends[longest]) + 1, backbone.context_length
    if needed <= length:
        return
    fits = max(0, length - (needed - n_ctx))
    # Beyond twice the context even our own tokenisation was cut: then the count is a lower bound.
    raise ConfigError(
        f"the prompt of class '{classnames[longest]}' needs {needed} tokens with n_ctx={n_ctx}, "
        f"but {backbone.name} has {length}: use n_ctx <= {fits} or a shorter name"
    )


def plain_text(backbone: Backbone, prompts: Prompts, ctx: Tensor) -> Tensor:
    """Text features [P, C, embed_dim], not normalised, of ``ctx`` [P, n_ctx, text_width].

    One full-length sequence per prompt set and class through the backbone's own tower.

    Args:
        backbone: the frozen towers.
        prompts: ids of the C classes.
        ctx: P prompt sets.
    """
    table = backbone.embed_tokens(prompts.ids)
    sets, classes = ctx.shape[0], table.shape[0]
    stop = prompts.start + prompts.n_ctx
    head = table[:, : prompts.start].expand(sets, -1, -1, -1)
    tail = table[:, stop:].expand(sets, -1, -1, -1)
    middle = ctx.unsqueeze(1).expand(-1, classes, -1, -1)
    emb = torch.cat([head, middle, tail], dim=2).flatten(0, 1)
    out = backbone.encode_embeddings(emb, prompts.eot.repeat(sets))
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
            f"the text '{texts[worst]}' needs {int(ends[worst]) + 1} tokens, "
            f"but {backbone.name} has {backbone.context_length}: shorten the template or the name"
        )
    return ids[:, : backbone.context_length]


def encode_texts(backbone: Backbone, texts: Sequence[str], chunk: int = 256) -> Tensor:
    """Text features [n, embed_dim], not normalised and without gradient, of whole texts.

    Raises:
        ConfigError: a text that does not fit the context length.
    """
    ids = fitting_ids(backbone, texts)
    with torch.no_grad():
        parts = [
            backbone.encode_embeddings(backbone.embed_tokens(part), backbone.eot(part))
            for part in ids.split(chunk)
        ]
    return torch.cat(parts)


MAX_BYTES = 4 << 30  # of activations kept for the backward pass; more is computed twice


def text_blocks(backbone: Backbone) -> list[Block]:
    """Return the text tower's blocks.

    Raises:
        ConfigError: they are not open_clip's standard ones.
    """
    try:
        return read_blocks(backbone.text_blocks)
    except Unreadable as reason:
        raise ConfigError(
            f"PEFT.TEXT lora does not fit the text tower of {backbone.name} ({reason}): "
            "set PEFT.TEXT prompt or none"
        ) from reason


class TextTower:
    """The texts of one class list, ready for K adapted towers.

    Args:
        backbone: the towers.
        classnames: by label.
        templates: texts with ``{}``; a class is the normalised mean over them.
        counters: ``text_tokens`` and ``text_passes`` are counted here.
    """

    def __init__(
        self, backbone: Backbone, classnames: Sequence[str], templates: Sequence[str],
        counters: Counter[str],
    ) -> None:
        self.backbone, self.counters = backbone, counters
        self.blocks = text_blocks(backbone)
        self.sets = len(templates)
        texts = [t.replace("{}", clean_name(c)) for t in templates for c in classnames]
        ids = fitting_ids(backbone, texts)
        self.read = backbone.eot(ids)
        length = int(self.read.max()) + 1 if backbone.causal else ids.shape[1]
        tower = backbone.text_tower
        self.ids = ids[:, :length]
        self.mask = None if tower.attn_mask is None else tower.attn_mask[:length, :length]
        self._entered: dict[int, Tensor] = {}

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

    def encode(self, p: Mapping[str, Tensor], start: int, scale: float) -> Tensor:
        """Return normalised text features ``[K, C, d]``; the gradient reaches ``p``.

        Args:
            p: tree with ``text.lora.*`` ``[K, ...]``.
            start: the first adapted block.
            scale: LoRA's alpha over its rank.
        """
        k = next(v for n, v in p.items() if n.startswith("text.lora.")).shape[0]
        names = [n for n in p if n.startswith("text.lora.")]
        texts, length, width = self.enter(start).shape[1:]
        # 16 width-sized values per row and block, as for the packed path.
        per_text = 16 * k * length * width * 4 * (len(self.blocks) - start)
        cuts = torch.arange(texts, device=self.ids.device).split(max(1, MAX_BYTES // per_text))

        def run(cut: Tensor, *leaves: Tensor) -> Tensor:
            return self._run(dict(zip(names, leaves, strict=True)), start, scale, cut)

        leaves = [p[n] for n in names]
        if len(cuts) == 1:
            out = run(cuts[0], *leaves)
        else:  # too large to keep: computed again when the gradient is asked for
            out = torch.cat([checkpoint(
                run, cut, *leaves, use_reentrant=False, preserve_rng_state=False
            ) for cut in cuts], dim=1)
        self.counters["text_passes"] += 1
        self.counters["text_tokens"] += k * self.ids.numel()
        if self.sets == 1:
            return out
        return F.normalize(out.unflatten(1, (self.sets, -1)).mean(1), dim=-1)

    def _run(self, p: Mapping[str, Tensor], start: int, scale: float, cut: Tensor) -> Tensor:
        """Normalised features ``[K, len(cut), d]`` of the texts ``cut``."""
        k = next(iter(p.values())).shape[0]
        edits, x, read = TreeEdits("text", p, scale), self.enter(start)[:, cut], self.read[cut]
        x = x.expand(k, *x.shape[1:])
        for one in self.blocks[start:]:
            x = one(x, edits, self.mask, read if one is self.blocks[-1] else None)
        tower = self.backbone.text_tower
        out = project_text(tower.text_projection, tower.ln_final(x[:, :, 0]))
        return F.normalize(out, dim=-1)
