"""Class texts through a text tower that each client has adapted: K classifiers at once.

The plain path, cut at the longest text where the tower is causal (later positions cannot reach the
read-out). Blocks below the first adapted one run once per class list; the last block runs for the
read-out rows only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedvlm.core.errors import ConfigError
from fedvlm.models.backbone import Backbone, project_text
from fedvlm.models.towers.blocks import Edits, FrozenBlock, NoEdits, Unreadable, read_blocks
from fedvlm.models.towers.prompts import clean_name, fitting_ids

MakeEdits = Callable[[dict[str, Tensor]], Edits]
MAX_BYTES = 4 << 30  # of activations kept for the backward pass; more is computed twice


def text_blocks(backbone: Backbone) -> list[FrozenBlock]:
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

    def encode(self, p: Mapping[str, Tensor], start: int, make: MakeEdits) -> Tensor:
        """Return normalised text features ``[K, C, d]``; the gradient reaches ``p``.

        Args:
            p: what the edits are made of, ``[K, ...]``, and nothing else.
            start: the first adapted block.
            make: makes the edits of the very tensors that it is given, by their names.
        """
        names, k = list(p), next(iter(p.values())).shape[0]
        texts, length, width = self.enter(start).shape[1:]
        # 16 width-sized values per row and block, as for the packed path.
        per_text = 16 * k * length * width * 4 * (len(self.blocks) - start)
        cuts = torch.arange(texts, device=self.ids.device).split(max(1, MAX_BYTES // per_text))

        def run(cut: Tensor, *leaves: Tensor) -> Tensor:
            return self._run(dict(zip(names, leaves, strict=True)), start, make, cut)

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

    def _run(self, p: dict[str, Tensor], start: int, make: MakeEdits, cut: Tensor) -> Tensor:
        """Normalised features ``[K, len(cut), d]`` of the texts ``cut``."""
        k = next(iter(p.values())).shape[0]
        edits, x, read = make(p), self.enter(start)[:, cut], self.read[cut]
        x = x.expand(k, *x.shape[1:])
        for one in self.blocks[start:]:
            x = one(x, edits, self.mask, read if one is self.blocks[-1] else None)
        tower = self.backbone.text_tower
        out = project_text(tower.text_projection, tower.ln_final(x[:, :, 0]))
        return F.normalize(out, dim=-1)
