"""A small random BERT on disk with a tokenizer of whole words, and texts of three topics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from tests.models.trunks import shake

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TOPICS = {
    "rec.autos": ("engine", "wheel", "brake", "road"),
    "sci.space": ("orbit", "moon", "rocket", "star"),
    "talk.politics": ("vote", "law", "party", "state"),
}
PLAIN = ("the", "a", "is", "it", "of", "and", "was", "they")
WORDS = (*MARKS, *PLAIN, *(word for words in TOPICS.values() for word in words))


def write_bert(folder: Path, kind: str = "bert", positions: int = 40) -> Path:
    """Write config, weights (shaken: no norm is trivial) and tokenizer; return the folder."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(
        kind, vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=positions, pad_token_id=0)
    torch.manual_seed(5)
    model = AutoModel.from_config(config, add_pooling_layer=False)
    shake(model)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
    return folder


def texts_of(topic: str, count: int, seed: int = 0) -> list[str]:
    """Return texts of 4 to 20 words, of which half are the topic's own."""
    dice = np.random.default_rng([seed, list(TOPICS).index(topic)])
    return [
        " ".join(str(dice.choice(TOPICS[topic] if dice.random() < 0.5 else PLAIN))
                 for _ in range(dice.integers(4, 21)))
        for _ in range(count)
    ]


def write_news(folder: Path, each: int = 24) -> Path:
    """Write class folders in 20news-bydate's shape; return the folder above them."""
    for part, seed, count in (("train", 0, each), ("test", 1, each // 2)):
        for topic in TOPICS:
            place = folder / f"20news-bydate-{part}" / topic
            place.mkdir(parents=True)
            for i, text in enumerate(texts_of(topic, count, seed)):
                (place / f"{50000 + i}").write_text(text)
    return folder
