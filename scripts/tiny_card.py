"""Completes the card of a finished model folder: gate and adaptation of the weights as shipped.

python scripts/tiny_card.py fedvlm/models/tiny
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from PIL import Image

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from tiny_adapt import CONTEXT, SHOTS, STEPS, coop  # noqa: E402
from tiny_export import json_bytes, replace_file  # noqa: E402
from tiny_gate import gate  # noqa: E402
from tiny_tasks import DIGIT_TEMPLATE, OBJECT_TEMPLATE, ZeroShotTask, build_task  # noqa: E402

from fedvlm.data.builtin.sets import materialise  # noqa: E402
from fedvlm.models.load.tiny import TinyTokenizer, verify_tiny  # noqa: E402

AIM = {
    "shape_clean": [80, 100],
    "pairs_held_out": [80, 100],
    "digits_real": [25, 65],
    "one of shape_photo, shape_sketch, shape_pixel, shape_negative": [25, 55],
}
ADAPTED = ("shape_photo", "shape_sketch", "shape_pixel", "new_nouns")


def builtin_task(name: str, root: Path) -> ZeroShotTask:
    """All images of a built-in set, whatever their split, as a task."""
    folder = materialise(name, root)
    file = next(folder.glob("split_zhou_*.json"))
    entries = [e for part in json.loads(file.read_text("utf-8")).values() for e in part]
    names = {label: str(word) for _, label, word in entries}
    images = np.stack([np.asarray(Image.open(folder / "images" / path)) for path, _, _ in entries])
    labels = np.array([label for _, label, _ in entries], dtype=np.int64)
    template = DIGIT_TEMPLATE if name == "digits" else OBJECT_TEMPLATE
    return ZeroShotTask(images, labels, tuple(names[k] for k in sorted(names)), template)


def adaptation(model: Any, tokenizer: Any, seeds: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    """Mean zero-shot and tuned accuracy over seeds, for each task."""
    with tempfile.TemporaryDirectory() as root:
        tasks = {f"{n} (built-in)": builtin_task(n, Path(root)) for n in ("shapes", "digits")}
    tasks |= {name: build_task(name, 60, seed=7) for name in ADAPTED}
    table: dict[str, Any] = {}
    for name, task in tasks.items():
        runs = [coop(model, tokenizer, task, seed) for seed in seeds]
        row = {k: round(float(np.mean([r[k] for r in runs])), 2) for k in runs[0]}
        table[name] = row | {"gain": round(row["tuned"] - row["zero_shot"], 2)}
    return {
        "method": f"CoOp, {CONTEXT} context tokens, {SHOTS} shots, {STEPS} steps, "
        f"tested on the other images, mean of {len(seeds)} seeds",
        "accuracy_percent": table,
    }


def complete(folder: Path, images_per_class: int = 100) -> dict[str, Any]:
    """Measures the weights in the folder as open_clip loads them and rewrites the card."""
    verify_tiny(folder)
    model, _, _ = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    tokenizer = TinyTokenizer()
    path = folder / "card.json"
    card: dict[str, Any] = json.loads(path.read_text("utf-8"))
    scores = gate(model, tokenizer, images_per_class, seed=5)
    card["gate"] = {
        "images_per_class": images_per_class,
        "seed": 5,
        "aim": AIM,
        "zero_shot_percent": scores,
    }
    card["adaptation"] = adaptation(model, tokenizer)
    replace_file(path, json_bytes(card))
    return card


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = complete(Path(sys.argv[1]))
    print(json.dumps({k: result[k] for k in ("gate", "adaptation")}, indent=2))
