"""transformers' text encoders as towers for samples that are texts: BERT, RoBERTa, XLM-R.

Such a tower stands where others have their image tower, and reads token numbers ``[n, L]`` instead
of pixels. Its feature is the mean of the last layer's rows, padding left out (Reimers and Gurevych
2019). A row of padding is zero from entry to pool, and is known by that: no other row is, since
each leaves a LayerNorm. So a stream ``tokens.<b>`` needs no mask beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.models.backbone import Backbone
from fedvlm.models.encoders import SITES
from fedvlm.models.towers.blocks import Edits, FrozenBlock, Pair, Shell, Unreadable, as_it_is

_PATHS = {site: paths[0] for site, paths in SITES.items()}  # BERT's and RoBERTa's


class EncoderTower(nn.Module):
    """An encoder where an image tower is expected.

    Args:
        encoder: transformers' ``BertModel``, ``RobertaModel`` or ``XLMRobertaModel``, no pooler.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder: Any = encoder
        config: Any = encoder.config
        self.pad = int(config.pad_token_id)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, L] token numbers -> [n, width]."""
        ids = tokens.long()
        there = ids != self.pad
        rows = self.encoder(input_ids=ids, attention_mask=there.long()).last_hidden_state
        return mean_of_rows(rows, there)

    def entered(self, tokens: Tensor) -> Tensor:
        """Return what enters the first layer, [n, L, width]; rows of padding are zero."""
        ids = tokens.long()
        rows: Tensor = self.encoder.embeddings(input_ids=ids)
        return rows.masked_fill((ids == self.pad).unsqueeze(-1), 0.0)


def mean_of_rows(rows: Tensor, there: Tensor) -> Tensor:
    """Return the mean [..., width] of those rows [..., L, width] for which ``there`` is true."""
    share = there.to(rows.dtype)
    total: Tensor = (rows * share.unsqueeze(-1)).sum(-2)
    return total / share.sum(-1, keepdim=True).clamp(min=1)


def is_there(rows: Tensor) -> Tensor:
    """Tell [..., L] which rows [..., L, width] are no padding."""
    return (rows != 0).any(-1)


@dataclass(frozen=True)
class PostNormBlock(FrozenBlock):
    """A layer whose LayerNorms follow its sums (Vaswani et al. 2017, Devlin et al. 2019).

    ``x = LN(x + attention(x))``, then ``x = LN(x + MLP(x))``. Rows of zeros are padding: nothing
    attends to them, and they stay zero.
    """

    def __call__(
        self, x: Tensor, edits: Edits, mask: Tensor | None = None, read: Tensor | None = None,
        own: int = 0,
    ) -> Tensor:
        """See ``FrozenBlock``; ``mask`` and ``read`` are not used here.

        A text's rows are all read out, and any may attend to any.
        """
        if own:
            x = edits.enter(self.index, x, own)
        there = is_there(x)
        some = there | ~there.any(-1, keepdim=True)  # a batch's padding has no row at all
        hidden = torch.zeros_like(some, dtype=x.dtype).masked_fill(~some, -torch.inf)
        q, k, v = (self.site(name, x, edits) for name in "qkv")
        mixed = self._attend(q, k, v, hidden.flatten(0, 1)[:, None, None])
        x = self.finish(x, edits, mixed)
        x = edits.leave(self.index, x, own) if own else x
        return x.masked_fill(~there.unsqueeze(-1), 0.0)

    def finish(self, x: Tensor, edits: Edits, mixed: Tensor) -> Tensor:
        """Return the layer's output of its input ``x`` and the attention's values ``mixed``."""
        edits.before(self.index, x, self.norms[0])
        out = edits.branch(self.index, "attn", self.site("o", mixed, edits))
        x = edits.norm(self.index, 1, x + out, self.norms[0])
        out = self.site("proj", self.act(self.site("fc", x, edits)), edits)
        return edits.norm(self.index, 2, x + edits.branch(self.index, "mlp", out), self.norms[1])


class EncoderShell(Shell):
    """The shell of an encoder; its first row is the mark before the text.

    Raises:
        Unreadable: layers of another kind.
    """

    prefix, class_token, one_row, has_patches = 1, True, False, False

    def __init__(self, visual: Any, backbone: Backbone) -> None:
        self.visual: EncoderTower = visual
        layers = visual.encoder.encoder.layer
        self.blocks = [_read(i, layer) for i, layer in enumerate(layers)]
        self.tokens, self.width = backbone.image_size, backbone.embed_dim

    def embed(self, pixels: Tensor) -> Tensor:
        """Return what enters the first layer, ``[n, L, width]``, of token numbers ``[n, L]``."""
        return self.visual.entered(pixels)

    def pool(self, x: Tensor) -> Tensor:
        """Return features ``[n, width]`` of what leaves the last layer."""
        return mean_of_rows(x, is_there(x))


def _read(index: int, layer: Any) -> FrozenBlock:
    try:
        linears = {site: layer.get_submodule(path) for site, path in _PATHS.items()}
        norms = layer.attention.output.LayerNorm, layer.output.LayerNorm
    except AttributeError as error:
        raise Unreadable(f"its layers are {type(layer).__name__}") from error
    pairs: dict[str, Pair] = {site: (one.weight, one.bias) for site, one in linears.items()}
    heads = int(layer.attention.self.num_attention_heads)
    act = layer.intermediate.intermediate_act_fn
    return PostNormBlock(index, heads, pairs, norms, (as_it_is, as_it_is), act, 1.0)
