"""Small random text towers that are not CLIP's, beside a small ViT: no download, no large layer."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedvlm.models.backbone import Backbone
from fedvlm.models.load.openclip import build_model, finish
from fedvlm.models.load.tiny import TinyTokenizer
from tests.models.toys import VIT
from tests.models.trunks import shake

WIDTH, VOCABULARY, LENGTH = 32, 101, 24
_BERT = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 48, "vocab_size": VOCABULARY, "max_position_embeddings": 40}
_T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
       "vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1}
# kind -> transformers' config, open_clip's pooler and projection, and pad, first and last token.
KINDS: Mapping[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int | None, int]]] = {
    "bert": (_BERT | {"model_type": "bert", "pad_token_id": 0},
             {"hf_proj_type": "mlp", "hf_pooler_type": "cls_last_hidden_state_pooler"}, (0, 2, 3)),
    "pooled bert": (_BERT | {"model_type": "bert", "pad_token_id": 0},
                    {"hf_proj_type": "linear"}, (0, 2, 3)),
    "roberta": (_BERT | {"model_type": "roberta", "pad_token_id": 1},
                {"hf_proj_type": "linear", "hf_pooler_type": "mean_pooler"}, (1, 0, 2)),
    "xlm-roberta": (_BERT | {"model_type": "xlm-roberta", "pad_token_id": 1},
                    {"hf_proj_type": "mlp"}, (1, 0, 2)),
    "t5": (_T5 | {"model_type": "mt5", "feed_forward_proj": "gelu"},
           {"hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler"}, (0, None, 1)),
    "mt5": (_T5 | {"model_type": "mt5", "feed_forward_proj": "gated-gelu"},
            {"hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler"}, (0, None, 1)),
    "nllb": ({"model_type": "m2m_100", "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 1,
              "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
              "decoder_ffn_dim": 48, "vocab_size": VOCABULARY, "pad_token_id": 1,
              "max_position_embeddings": 40},
             {"hf_proj_type": "linear", "hf_pooler_type": "cls_pooler"}, (1, 9, 2)),
}
COCA = {"context_length": 39, "vocab_size": 4096, "width": WIDTH, "heads": 4, "layers": 2}


class Words:
    """A tokenizer of whole words, padded on the right as transformers' are.

    Args:
        pad, first, last: numbers of the marks; first None: no mark before a text.
    """

    def __init__(self, pad: int, first: int | None, last: int) -> None:
        self.marks, self.context_length = (pad, first, last), LENGTH

    def __call__(self, texts: Sequence[str], context_length: int | None = None) -> Tensor:
        pad, first, last = self.marks
        length = context_length or self.context_length
        ids = torch.full((len(texts), length), pad)
        for row, text in zip(ids, texts, strict=True):
            words = text.replace(".", " .").split()
            some = [10 + zlib.crc32(w.encode()) % (VOCABULARY - 10) for w in words]
            marked = [*([] if first is None else [first]), *some][: length - 1] + [last]
            row[: len(marked)] = torch.tensor(marked)
        return ids


def arch_of(kind: str) -> dict[str, Any]:
    """Return the model config of a small tower of that kind."""
    config, more, _ = copy.deepcopy(KINDS[kind])
    text = {"hf_model_name": f"toy/{kind}", "hf_tokenizer_name": f"toy/{kind}",
            "context_length": LENGTH, "hf_config": config} | more
    return {"embed_dim": 24, "custom_text": True, "vision_cfg": dict(VIT), "text_cfg": text}


def encoder(kind: str, **place: Any) -> Backbone:
    """Return a backbone with a small encoder of that kind, in float64."""
    arch = arch_of(kind)
    model, preprocess = build_model(arch)
    shake(model)
    place = {"dtype": torch.float64} | place
    return finish(model, arch, preprocess, Words(*KINDS[kind][2]), kind, "", **place)


def coca(**place: Any) -> Backbone:
    """Return a backbone with a small CoCa, in float64."""
    more = {"embed_cls": True, "output_tokens": True}
    arch: dict[str, Any] = {
        "embed_dim": 24, "custom_text": True,
        "vision_cfg": VIT | {"attentional_pool": True, "attn_pooler_heads": 3,
                             "output_tokens": True},
        "text_cfg": COCA | more, "multimodal_cfg": COCA | {"attn_pooler_heads": 4},
    }
    model, preprocess = build_model(arch)
    shake(model)
    place = {"dtype": torch.float64} | place
    return finish(model, arch, preprocess, TinyTokenizer(39), "coca", "", **place)
