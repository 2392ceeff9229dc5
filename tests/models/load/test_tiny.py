"""The embedded tiny CLIP: the right bytes, loadable, and as good as its card says."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from tiny_tasks import TASKS, build_task

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.models.load import tiny
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.load.tiny import (
    TINY_DIR,
    TINY_WEIGHTS,
    TinyTokenizer,
    open_clip_tokenizer,
    verify_tiny,
)

IMAGES_PER_TASK = 200


@lru_cache(maxsize=1)
def loaded() -> tuple[Any, Any]:
    """The model in eval mode and its image transform, as any user of open_clip gets them."""
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{TINY_DIR}")
    return model.eval(), transform


def card() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((TINY_DIR / "card.json").read_text(encoding="utf-8"))
    return content


def test_hash_and_size() -> None:
    assert verify_tiny() == card()["sha256"]
    assert (TINY_DIR / TINY_WEIGHTS).stat().st_size < 6_000_000


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    for name in ("card.json", TINY_WEIGHTS):
        (tmp_path / name).write_bytes((TINY_DIR / name).read_bytes())
    data = bytearray((tmp_path / TINY_WEIGHTS).read_bytes())
    data[-1] ^= 1
    (tmp_path / TINY_WEIGHTS).write_bytes(bytes(data))
    with pytest.raises(DataError, match="but its card says"):
        verify_tiny(tmp_path)
    (tmp_path / "card.json").unlink()
    with pytest.raises(DataError, match="incomplete"):
        verify_tiny(tmp_path)
    with pytest.raises(ConfigError, match="drop --weights 'x.pt'"):
        load_backbone("tiny", "x.pt")


def test_loads_as_a_plain_clip() -> None:
    model, transform = loaded()
    assert type(model).__name__ == "CLIP"
    assert model.context_length == 48
    assert model.vocab_size == 4096
    assert transform(Image.new("RGB", (50, 40))).shape == (3, 32, 32)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_loads_as_open_clip_does() -> None:
    """Weights, architecture and transform are those that any user of open_clip gets."""
    ours, theirs = load_backbone("tiny"), load_backbone(f"local-dir:{TINY_DIR}")
    assert (ours.name, ours.weights, ours.arch) == ("tiny", "embedded", theirs.arch)
    assert (ours.digest, ours.numerics) == (theirs.digest, theirs.numerics)
    assert ours.transform_spec == theirs.transform_spec
    assert ours.logit_scale == theirs.logit_scale and ours.pool == theirs.pool
    pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ours.encode_image(pixels), theirs.encode_image(pixels))


def test_tokenizer() -> None:
    tokens = TinyTokenizer()(["a photo of a red circle.", "Größe 7 \N{SNOWMAN}", ""])
    assert tokens.shape == (3, 48)
    assert tokens[:, 0].tolist() == [4094] * 3
    assert tokens.max(dim=1).values.tolist() == [4095] * 3
    tokenizer = TinyTokenizer(32)
    assert tokenizer(["x"]).shape == (1, 32)
    ids = tokenizer.encode("a photo of the digit seven.")
    assert open_clip_tokenizer().decode(ids).strip() == "a photo of the digit seven ."


TEXTS = (
    "annual crop land", "siamese cat", "2012 bmw m3", "A photo of the NUMBER: '73'.", "aaaaaa",
    "it's we'll they've i'd you're don't i'm 'tis", "  two   blanks ", "...!?#$%^*()[]{}|~`@_-+=;,",
    "a \t tab", "caf\u00e9", "&amp; &lt;b&gt;", "<start_of_text> a<b", "\ufb01n", "\u201cq\u201d",
    "supercalifragilisticexpialidocious", "",
)  # fmt: skip


def test_tokenizer_is_open_clips() -> None:
    """Same ids for the same text, also where it is cut at the end."""
    ours, theirs = TinyTokenizer(), open_clip_tokenizer()
    assert all(ours.encode(text) == theirs.encode(text) for text in TEXTS)
    for length in (4, 48, 96):
        assert torch.equal(ours(TEXTS, length), theirs(list(TEXTS), length))
    rng = np.random.default_rng(0)
    letters = np.array([chr(code) for code in range(32, 127)])
    texts = ["".join(rng.choice(letters, size=rng.integers(60))) for _ in range(500)]
    assert all(ours.encode(text) == theirs.encode(text) for text in texts)


def test_plain_text_needs_no_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "open_clip_tokenizer", None)
    assert TinyTokenizer().encode("a photo of a red circle.")


def test_tokenizer_agrees_with_the_full_one_on_bytes() -> None:
    """Fewer merges split words finer, but never change the text."""
    full, small = open_clip.SimpleTokenizer(), open_clip_tokenizer()
    for text in ("annual crop land", "siamese cat", "2012 bmw m3 coupe"):
        ids = TinyTokenizer().encode(text)
        assert full.decode(full.encode(text)) == small.decode(ids)
        assert len(ids) >= len(full.encode(text))


def test_padding_does_not_change_text_features() -> None:
    model, _ = loaded()
    tokens = TinyTokenizer()(["a photo of a red circle."])
    other = tokens.clone()
    other[0, int(tokens[0].argmax()) + 1 :] = 17
    assert torch.allclose(model.encode_text(tokens), model.encode_text(other), atol=1e-5)


@torch.no_grad()
def zero_shot(name: str) -> tuple[float, int]:
    """Accuracy in per cent on about 200 images of another seed than the card's, and n."""
    model, transform = loaded()
    classes = len(build_task(name, 1, seed=11).names)
    task = build_task(name, -(-IMAGES_PER_TASK // classes), seed=11)
    x = torch.stack([transform(Image.fromarray(image)) for image in task.images])
    prompts = TinyTokenizer()([task.template.format(word) for word in task.names])
    image, text = model.encode_image(x, normalize=True), model.encode_text(prompts, normalize=True)
    return 100.0 * float(((image @ text.T).argmax(1).numpy() == task.labels).mean()), len(x)


@pytest.mark.parametrize("name", TASKS)
def test_gate_on_a_subset(name: str) -> None:
    """Within three standard errors (of both samples) of the card's figure, and a point."""
    gate = card()["gate"]
    stated = gate["zero_shot_percent"][name]
    found, count = zero_shot(name)
    share = min(max(stated / 100, 0.02), 0.98)
    error = 100 * np.sqrt(share * (1 - share) * 2 / count)
    assert abs(found - stated) <= 3 * error + 1


def test_card_is_complete() -> None:
    content = card()
    keys = {"sha256", "seed", "command", "cpu_seconds", "versions", "gate", "steps", "samples"}
    assert keys <= set(content)
    assert set(content["gate"]["zero_shot_percent"]) == set(TASKS)


START = """
import sys, torch, fedvlm.job.run
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel
model = VLModel(load_backbone("tiny"), ["red circle", "blue cross"])
model.text(torch.zeros(1, 4, model.text_width)); model.anchor("template", 0)
model.adapted_image({"pixels": torch.zeros(1, 2, 3, 32, 32)}, __import__(
    "fedvlm.models.towers.blocks", fromlist=["NoEdits"]).NoEdits())
heavy = {"open_clip", "torchvision", "timm", "transformers", "torch._dynamo", "sympy"}
sys.exit(" ".join(heavy & set(sys.modules)) or 0)
"""


def test_a_run_on_the_tiny_imports_nothing_heavy() -> None:
    """Three seconds of CPU at every start, otherwise."""
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
