"""Text towers that are not CLIP's: transformers' encoders, and CoCa's.

open_clip wraps BERT, RoBERTa, XLM-R, T5, mT5 and M2M-100 (NLLB) encoders as ``HFTextEncoder``: an
encoder, the tower's own pooler (first token, mean, or a pooling layer) and a projection. Padding is
masked. Prompts enter as token embeddings, positions are the encoder's own; every text is a sequence
of its own (no packed path).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError
from fedvlm.models.backbone import Backbone, project_text
from fedvlm.models.towers.blocks import Edits

# Where an encoder keeps its layers, and a layer the sites of LoRA: BERT and RoBERTa, T5, M2M-100.
LAYERS = ("encoder.layer", "block", "layers")
SITES = {
    "q": ("attention.self.query", "layer.0.SelfAttention.q", "self_attn.q_proj"),
    "k": ("attention.self.key", "layer.0.SelfAttention.k", "self_attn.k_proj"),
    "v": ("attention.self.value", "layer.0.SelfAttention.v", "self_attn.v_proj"),
    "o": ("attention.output.dense", "layer.0.SelfAttention.o", "self_attn.out_proj"),
    "fc": ("intermediate.dense", "layer.1.DenseReluDense.wi", "fc1"),
    "proj": ("output.dense", "layer.1.DenseReluDense.wo", "fc2"),
}


@dataclass(frozen=True)
class EncoderLayer:
    """One layer of an encoder: its number and its linear layers by LoRA's names."""

    index: int
    linears: dict[str, nn.Linear]

    def shape(self, site: str) -> tuple[int, int]:
        """Return (out, in) of a linear layer.

        Raises:
            ConfigError: this encoder has no single layer of that name (a gated MLP has two).
        """
        if site not in self.linears:
            raise ConfigError(
                f"PEFT.TARGETS '{site}': this text encoder has no such layer; choose from "
                f"{', '.join(self.linears)}"
            )
        out, into = self.linears[site].weight.shape
        return out, into


class EncoderBackbone(Backbone):
    """A backbone whose text tower is open_clip's ``HFTextEncoder``."""

    standard = False

    def _check_texts(self) -> None:
        self.encoder = self.text_tower.transformer
        self.layers: Sequence[nn.Module] = _first_of(self.encoder, LAYERS) or ()
        if not self.layers:
            raise ConfigError(
                f"backbone '{self.name}' has a text encoder that is not supported "
                f"({type(self.encoder).__name__}; BERT, RoBERTa, XLM-R, T5 and M2M-100 are)"
            )

    def _read_facts(self) -> None:
        config = self.encoder.config
        self.embed_dim, self.image_size = int(self.arch["embed_dim"]), self.transform_spec.size
        self.text_width = int(self.encoder.get_input_embeddings().weight.shape[1])
        self.pad = int(config.pad_token_id)
        places = int(getattr(config, "max_position_embeddings", 0) or 0)
        if places and config.model_type in ("roberta", "xlm-roberta"):
            places -= self.pad + 1  # their first position is the one behind padding's
        given = int(self.tokenizer.context_length)
        self.context_length = min(given, places) if places else given
        self.causal, self.pool = False, "eos"
        self._read_logits()

    def _text_side(self) -> nn.Module:
        return nn.Identity()  # the encoder stays as it is, in the feature type

    @property
    def text_blocks(self) -> Any:
        """The encoder's layers."""
        return self.layers

    def token_ends(self, ids: Tensor) -> Tensor:
        """Position [n] of the last token that is no padding in each row of ``ids`` [n, L]."""
        return (torch.arange(ids.shape[1], device=ids.device) * (ids != self.pad)).amax(1)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Token embeddings [n, L, text_width], without positions, scaled as the encoder does."""
        out: Tensor = self.encoder.get_input_embeddings()(ids.to(self.device))
        return out

    def encode_embeddings(
        self, emb: Tensor, eot: Tensor, enter: Callable[[int, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Text features [n, embed_dim], not normalised; rows behind ``eot`` [n] are masked."""
        eot = eot.to(emb.device)
        length = int(eot.max()) + 1
        mask = (torch.arange(length, device=emb.device) <= eot.unsqueeze(1)).long()
        with _entered(self.layers, enter):
            out = self.encoder(inputs_embeds=emb[:, :length], attention_mask=mask)
        features: Tensor = self.text_tower.proj(self.text_tower.pooler(out, mask))
        return features

    def encoder_layers(self) -> list[EncoderLayer]:
        """Return the layers that LoRA can change."""
        found = [
            EncoderLayer(index, {
                site: linear for site, paths in SITES.items()
                if isinstance(linear := _first_of(layer, paths), nn.Linear)
            })
            for index, layer in enumerate(self.layers)
        ]
        if not all({"q", "k", "v", "o"} <= set(one.linears) for one in found):
            raise ConfigError(
                f"PEFT.TEXT lora does not fit the text tower of {self.name} (its attention is not "
                "known): set PEFT.TEXT prompt or none"
            )
        return found

    @contextmanager
    def edited(self, edits: Edits, clients: int) -> Iterator[None]:
        """Run the encoder's linear layers through ``edits`` inside the block.

        A batch then holds the rows of all clients, [clients * n, L, width], client by client.
        """

        def edit(index: int, site: str, linear: nn.Linear) -> Callable[[Tensor], Tensor]:
            def forward(x: Tensor) -> Tensor:
                rows = x.unflatten(0, (clients, -1))
                out = edits.linear(index, site, rows, linear.weight, linear.bias, 1.0)
                return out.flatten(0, 1)

            return forward

        with ExitStack() as stack:
            for layer in self.encoder_layers():
                for site, linear in layer.linears.items():
                    linear.__dict__["forward"] = edit(layer.index, site, linear)
                    stack.callback(linear.__dict__.pop, "forward")
            yield


class CocaBackbone(Backbone):
    """CoCa (Yu et al. 2022): read out at a class token behind the text; the decoder is not used.

    CLIP's tokenizer gives "!" the number of padding, which open_clip masks; here it is read.
    """

    standard = False

    def _check_texts(self) -> None:
        pass

    def _read_facts(self) -> None:
        super()._read_facts()
        self.causal, self.pool = False, "eos"  # not causal for who packs: a token sees behind

    def encode_embeddings(
        self, emb: Tensor, eot: Tensor, enter: Callable[[int, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Text features [n, embed_dim], not normalised; rows behind ``eot`` [n] are masked."""
        tower, (count, length) = self.text_tower, emb.shape[:2]
        place = torch.arange(length, device=emb.device)
        told = tower.pad_id + (place <= eot.to(emb.device).unsqueeze(1)).long()
        mask = tower.attn_mask[: length + 1, : length + 1] + tower._build_additive_mask(
            told, length + 1, emb.dtype
        )
        x = torch.cat([emb, tower.cls_emb.expand(count, 1, -1)], 1)
        x = x + tower.positional_embedding[: length + 1]
        for number, block in enumerate(tower.transformer.resblocks):
            x = block(x if enter is None else enter(number, x), attn_mask=mask)
        return project_text(tower.text_projection, tower.ln_final(x[:, -1]))


def _first_of(owner: nn.Module, paths: Sequence[str]) -> Any:
    for path in paths:
        try:
            return owner.get_submodule(path)
        except AttributeError:
            continue
    return None


@contextmanager
def _entered(
    layers: Sequence[nn.Module], enter: Callable[[int, Tensor], Tensor] | None
) -> Iterator[None]:
    """Let ``enter`` replace what enters each layer (deep prompts) inside the block."""
    with ExitStack() as stack:
        for number, layer in enumerate(layers if enter is not None else ()):
            hook = layer.register_forward_pre_hook(
                lambda _, args, n=number: (enter(n, args[0]), *args[1:])  # type: ignore[misc]
            )
            stack.callback(hook.remove)
        yield
