"""Topics of texts: k-means over which words they use, the same for every backbone and order.

TF-IDF over the most frequent words (in at least two images, at most half of them), rows of length
one, k-means++ (Arthur and Vassilvitskii, SODA 2007) and Lloyd's steps. No text tower is asked, so
that images can be dealt before one is there, and runs of two backbones have the same clients. Names
are numbers: words of captions may be personal data, and names of classes are in public files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedvlm.core import rng

WORDS, FITTED, STEPS = 1000, 20_000, 50  # words, texts that the centres are of, Lloyd's steps
_CHUNK = 4096
_WORD = re.compile(r"[^\W\d_]{3,}")
Rows = NDArray[np.float32]


def group_texts(texts: Sequence[Sequence[str]], topics: int) -> list[str]:
    """Return the topic of each image's texts: ``topic 1`` is the largest.

    There are at most ``topics``; one only where the texts share no word.
    """
    order = sorted(range(len(texts)), key=lambda i: tuple(texts[i]))
    used = [frozenset(_WORD.findall(" ".join(texts[i]).lower())) for i in order]
    counts = Counter(word for words in used for word in words)
    there = [word for word, n in counts.items() if 2 <= n <= max(2, len(texts) // 2)]
    vocabulary = sorted(there, key=lambda word: (-counts[word], word))[:WORDS]
    if not vocabulary:
        return ["topic 1"] * len(texts)
    at = {word: i for i, word in enumerate(vocabulary)}
    idf = np.log(len(texts) / np.array([counts[word] for word in vocabulary], dtype=np.float64))

    def rows(some: Sequence[int]) -> Rows:
        out = np.zeros((len(some), len(vocabulary)), dtype=np.float32)
        for row, i in zip(out, some, strict=True):
            places = [at[word] for word in used[i] if word in at]
            row[places] = np.maximum(idf[places], 1e-6)
        return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)

    draw = rng.numpy_stream(0, "topics")
    fitted = list(range(len(order)))
    if len(order) > FITTED:
        fitted = sorted(draw.choice(len(order), FITTED, replace=False).tolist())
    centres = _centres(rows(fitted), min(topics, len(fitted)), draw)
    found = np.concatenate([
        _nearest(rows(range(i, min(i + _CHUNK, len(order)))), centres)
        for i in range(0, len(order), _CHUNK)
    ])
    sizes = np.bincount(found, minlength=len(centres))
    rank = {int(old): new for new, old in enumerate(np.argsort(-sizes, kind="stable"), 1)}
    width = len(str(int((sizes > 0).sum())))
    out = [""] * len(texts)
    for i, one in zip(order, found, strict=True):
        out[i] = f"topic {rank[int(one)]:0{width}d}"
    return out


def _centres(x: Rows, k: int, draw: np.random.Generator) -> Rows:
    centres = x[[int(draw.integers(len(x)))]]
    while len(centres) < k:
        gaps = (x**2).sum(1)[:, None] + (centres**2).sum(1) - 2 * (x @ centres.T)
        far = np.clip(gaps.min(1), 0, None).astype(np.float64)
        if far.sum() < 1e-6:  # no other texts are left
            break
        centres = np.concatenate([centres, x[[int(draw.choice(len(x), p=far / far.sum()))]]])
    for _ in range(STEPS):
        nearest = _nearest(x, centres)
        moved = np.stack([
            x[nearest == j].mean(0) if (nearest == j).any() else centre
            for j, centre in enumerate(centres)
        ])
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def _nearest(x: Rows, centres: Rows) -> NDArray[np.int64]:
    """Return the nearest centre of each row; of equals the first."""
    out: NDArray[np.int64] = (2 * (x @ centres.T) - (centres**2).sum(1)).argmax(1)
    return out
