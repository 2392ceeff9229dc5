r"""Gives a CLIP a text tower that knows the class names of some sets, made from their images.

    python scripts/simulate_text.py --teacher local-dir:../shared/weights/realfeat \
        --root ../shared/data --out ../simulated-text

A stand-in for CLIP's own weights where there are none: prompts start from names that mean
something. Each class has a target, the mean feature of half of its validation images, blended with
a random direction until zero-shot accuracy on the other half is what is published for CLIP; the
text tower then learns to give a class's target for its name in many sentences. The image tower is
the teacher's, in half precision. Results with it are tagged simulated-text and are in no ranking.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from distill_data import Pool, tower_features  # noqa: E402
from distill_report import class_texts  # noqa: E402
from distill_vit import refuse_simulated  # noqa: E402
from tiny_export import export, replace_file  # noqa: E402
from tiny_optim import rate  # noqa: E402

from fedvlm.config.build import build_config  # noqa: E402
from fedvlm.config.keys import default_schema  # noqa: E402
from fedvlm.console.guard import exit_code_of  # noqa: E402
from fedvlm.core.errors import ConfigError, DataError  # noqa: E402
from fedvlm.core.rng import numpy_stream  # noqa: E402
from fedvlm.core.spelling import SIMULATED  # noqa: E402
from fedvlm.data.datasets import load_for_training, templates  # noqa: E402
from fedvlm.data.datum import labels_of  # noqa: E402
from fedvlm.data.image_records import records_of  # noqa: E402
from fedvlm.data.targets import set_config  # noqa: E402
from fedvlm.models.backbone import Backbone  # noqa: E402
from fedvlm.models.load.backbones import load_backbone  # noqa: E402
from fedvlm.models.load.names import (  # noqa: E402
    LOCAL_DIR,
    SIMULATED_KEY,
    check_simulated_name,
)

# Zero-shot accuracy of CLIP ViT-B/16 with CoOp's templates, per cent, about (Zhou et al., 2022).
GOALS = {"caltech101": 93.0, "dtd": 44.0, "eurosat": 48.0}
SCALE = 100.0  # CLIP's logit scale
MOST = 6.0  # of the random direction beside a class mean of length one
BLENDS = 241  # amounts of it that are tried
SMALL = 0.5  # of the sentences have the name in small letters
NEAR = 4.0  # points: a set whose zero-shot accuracy is farther from what it should be is refused
SENTENCES = (
    "{}", "{}.", "a photo of a {}.", "a photo of the {}.", "a picture of a {}.", "an image of {}.",
    "a good photo of the {}.", "a bad photo of a {}.", "a close-up photo of a {}.", "one {}.",
    "a photo of {}, a type of object.", "a satellite photo of {}.", "{} texture.",
    "a drawing of a {}.", "a low resolution photo of a {}.", "there is a {} in this photo.",
)  # fmt: skip
UNHEARD = ("a blurry picture of the {}.", "this is a {}, seen from far away.")  # to measure with


@dataclass
class Classes:
    """One set's classes.

    Attributes:
        pool: its names, templates and validation images (``train`` makes targets, ``held_out``
            measures).
        features: unit image features of the latter ``[n, d]``, and their labels ``[n]``.
        asked: zero-shot accuracy that was asked for, per cent.
        ceiling, goal: that of the class means alone, and the lower of the two.
        target: unit ``[C, d]``, what the text tower learns.
    """

    pool: Pool
    features: Tensor
    labels: Tensor
    asked: float
    ceiling: float
    goal: float
    target: Tensor

    def accuracy(self, texts: Tensor) -> float:
        """Per cent of the held-out images that are nearest to their class's text ``[C, d]``."""
        return 100 * float(((self.features @ texts.T).argmax(1) == self.labels).double().mean())


def read_pool(word: str, root: str) -> Pool:
    """Return the validation images of a set, less those with a copy in another list, in halves.

    Runs on the tower may use its other lists only (``DATASET.VAL_SHOTS 0``).

    Raises:
        ConfigError: a set without validation images, or with a class that has fewer than two.
        DataError: a set that cannot be read.
    """
    base, _ = build_config(None, None, {"DATASET.ROOT": root}, [], default_schema())
    cfg = set_config(word, base, "--goals")
    data = load_for_training(cfg)
    records = records_of(data.all(), cfg)
    others = {records.content_key(d) for d in (*data.train_x, *data.test)}
    items = [d for d in data.val if records.content_key(d) not in others]
    counts = np.bincount(labels_of(items), minlength=len(data.classnames)) if items else [0]
    if min(counts) < 2:
        raise ConfigError(
            f"--goals {word}: each class needs two validation images that are in no other list, "
            "to make its target from and to measure with; leave the set out"
        )
    records.save()
    order = np.argsort(labels_of(items), kind="stable")
    halves = [[items[i] for i in order[k::2]] for k in (0, 1)]
    names = [name.replace("_", " ") for name in data.classnames]
    return Pool(word, cfg, names, templates(cfg), halves[0], halves[1], data.test, records)


def find_target(pool: Pool, teacher: Backbone, goal: float, seed: int) -> Classes:
    """Return a set's classes, each mean blended so far that zero-shot accuracy is the goal.

    Where class means alone stay below the goal, they are taken as they are.

    Raises:
        ConfigError: no blend comes near the goal.
    """
    own, other = (
        F.normalize(tower_features(pool, p, teacher).float(), dim=-1)
        for p in (pool.train, pool.held_out)
    )
    labels = torch.from_numpy(labels_of(pool.train))
    means = torch.stack([own[labels == c].mean(0) for c in range(len(pool.names))])
    means = F.normalize(means, dim=-1)
    away = torch.from_numpy(numpy_stream(seed, "simulated-text", pool.word).normal(
        size=(len(means), len(means)))).float()
    away = F.normalize(away @ means, dim=-1)  # towards and away from other classes
    found = Classes(pool, other, torch.from_numpy(labels_of(pool.held_out)), goal, 0.0, goal,
                    means)
    found.ceiling = found.accuracy(means)
    found.goal = min(goal, found.ceiling)
    blends = [F.normalize(means + float(a) * away, dim=-1) for a in np.linspace(0, MOST, BLENDS)]
    found.target = min(blends, key=lambda b: abs(found.accuracy(b) - found.goal))
    reached = found.accuracy(found.target)
    if abs(reached - found.goal) > NEAR:
        raise ConfigError(f"--goals {pool.word}={goal:g} cannot be had: the nearest is "
                          f"{reached:.1f} (chance {100 / len(pool.names):.1f})")
    return found


def text_parameters(tower: Backbone) -> list[Tensor]:
    """Return all tensors of the text side, ready to be trained.

    Raises:
        ConfigError: not open_clip's plain CLIP.
    """
    if tower.text_tower is not tower.model or not tower.standard:
        raise ConfigError(f"--teacher {tower.name}: use a CLIP that is a local-dir: folder")
    named = dict(tower.model.named_parameters())
    chosen = [p for name, p in named.items()
              if not name.startswith("visual.") and not name.startswith("logit_")]
    return [p.requires_grad_(True) for p in chosen]


def texts_of(tower: Backbone, sentences: Sequence[str]) -> Tensor:
    """Return unit text features ``[n, d]``, with gradient."""
    ids = tower.tokenize(sentences)
    ends = tower.eot(ids)
    ids = ids[:, : int(ends.max()) + 1]
    return F.normalize(tower.encode_embeddings(tower.embed_tokens(ids), ends), dim=-1)


def train(tower: Backbone, sets: Sequence[Classes], args: argparse.Namespace) -> None:
    """Teach the text tower a class's target for its name in any sentence (loss: 1 - cosine)."""
    weights = text_parameters(tower)
    optimiser = torch.optim.AdamW(weights, lr=args.lr, weight_decay=0.0)
    rows = [(s.pool, name, goal) for s in sets
            for name, goal in zip(s.pool.names, s.target, strict=True)]
    for step in range(args.steps):
        rng = numpy_stream(args.seed, "simulated-text-step", step)
        drawn = [rows[i] for i in rng.integers(len(rows), size=args.batch)]
        sentences = [_sentence(pool, name, rng) for pool, name, _ in drawn]
        goals = torch.stack([goal for *_, goal in drawn])
        loss = (1 - (texts_of(tower, sentences) * goals).sum(-1)).mean()
        optimiser.param_groups[0]["lr"] = rate(step / args.steps, step, args.lr)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            print(f"step {step + 1} of {args.steps}: cosine {1 - loss.item():.3f}", flush=True)


def _sentence(pool: Pool, name: str, rng: np.random.Generator) -> str:
    frames = (*SENTENCES, *pool.prompts)
    frame = frames[int(rng.integers(len(frames)))]
    return frame.replace("{}", name.lower() if rng.random() < SMALL else name)


def unheard(tower: Backbone, classes: Classes) -> float:
    """Mean cosine to the targets, of names in sentences that were not trained on."""
    every = [frame.replace("{}", name) for frame in UNHEARD for name in classes.pool.names]
    with torch.no_grad():
        own = texts_of(tower, every)
    return float((own * classes.target.repeat(len(UNHEARD), 1)).sum(-1).mean())


def measure(tower: Backbone, classes: Classes) -> dict[str, float]:
    """Return what is measured of one set, per cent and cosines."""
    texts = class_texts(tower, classes.pool).float()
    return {
        "images": len(classes.pool.train), "held_out": len(classes.pool.held_out),
        "asked": classes.asked, "goal": classes.goal,
        "ceiling": classes.ceiling, "zero_shot": classes.accuracy(texts),
        "unheard": unheard(tower, classes),
    }  # fmt: skip


def readme(figures: dict[str, dict[str, float]], facts: dict[str, Any]) -> str:
    """Return the README of a folder of weights."""
    lines = [
        "# A CLIP with a simulated text tower", "",
        f"Made by `scripts/simulate_text.py` from `{facts['teacher']}`; it is no part of the "
        "project and is not shipped. Its text tower was fitted to class means of images, so "
        "results with it say nothing about published weights: they are tagged `simulated-text`, "
        "tables do not rank them, and new classes and other data sets cannot be tested. The "
        "folder must be called `simulated-text` or `simulated-text-SOMETHING`.", "",
        "Runs use it with `DATASET.VAL_SHOTS 0`: the validation images made it. "
        "`asked`: zero-shot accuracy asked for; `means`: that of class means alone; `goal`: the "
        "lower of the two. `zero-shot`: of the written tower, on the other half of the validation "
        "images, which chose the blend, too. `unheard`: cosine to the targets in sentences that "
        "were not trained on.", "",
        "| set | images | other half | asked | means | goal | zero-shot | unheard |",
        "|---|" + "---:|" * 7,
        *(f"| {word} | {f['images']} | {f['held_out']} | {f['asked']:.1f} | "
          f"{f['ceiling']:.1f} | {f['goal']:.1f} | {f['zero_shot']:.1f} | {f['unheard']:.3f} |"
          for word, f in figures.items()), "",
    ]  # fmt: skip
    return "\n".join(lines)


def write(tower: Backbone, sets: Sequence[Classes], args: argparse.Namespace) -> str:
    """Write a folder, measure what was written, put it in place, and return its README.

    Raises:
        DataError: zero-shot accuracy is not what it should be; nothing is left then.
    """
    spec, out = tower.transform_spec, Path(args.out)
    preprocess = {
        "mean": list(spec.mean), "std": list(spec.std), "interpolation": spec.interpolation,
        "resize_mode": spec.resize_mode,
    }  # fmt: skip
    weights = {name: t.detach() for name, t in tower.model.state_dict().items()}
    weights["logit_scale"] = torch.tensor(math.log(SCALE))
    images = sorted(s.pool.records.content_key(d) for s in sets
                    for d in (*s.pool.train, *s.pool.held_out))
    facts = {"teacher": args.teacher, "teacher_digest": tower.digest, "seed": args.seed,
             "steps": args.steps, "batch": args.batch, "lr": args.lr}
    metadata = {SIMULATED_KEY: " ".join(images)}
    with tempfile.TemporaryDirectory() as place:
        trial = Path(place) / SIMULATED
        export(trial, weights, facts, tower.arch, preprocess, metadata)
        made = load_backbone(f"{LOCAL_DIR}{trial}", plain=True)
        figures = {s.pool.word: measure(made, s) for s in sets}
    far = [word for word, f in figures.items() if abs(f["zero_shot"] - f["goal"]) > NEAR]
    if far:
        raise DataError(
            f"{out}: zero-shot accuracy on {far[0]} is {figures[far[0]]['zero_shot']:.1f} % and "
            f"should be {figures[far[0]]['goal']:.1f}: train longer (--steps)"
        )
    export(out, weights, facts | {"figures": figures}, tower.arch, preprocess, metadata)
    text = readme(figures, facts)
    replace_file(out / "README.md", text.encode("utf-8"))
    return text


def goal_of(word: str) -> tuple[str, float]:
    """Read ``eurosat=48``, or a set with a known goal."""
    name, _, value = word.partition("=")
    try:
        goal = float(value) if value else GOALS[name]
    except (KeyError, ValueError):
        raise ConfigError(f"--goals {word}: write SET=PER_CENT, such as eurosat=48") from None
    if not 0 < goal <= 100:
        raise ConfigError(f"--goals {word}: must be above 0 and at most 100 per cent")
    return name, goal


def run(args: argparse.Namespace) -> int:
    """Make targets, train, write and measure. Returns 0."""
    check_simulated_name(Path(args.out))
    goals = dict(map(goal_of, args.goals))
    torch.set_num_threads(1)
    tower = load_backbone(args.teacher, plain=True)
    text_parameters(tower)  # refused before any image is read
    refuse_simulated(tower)
    sets = [find_target(read_pool(word, args.root), tower, goal, args.seed)
            for word, goal in goals.items()]
    for one in sets:
        print(f"{one.pool.word}: class means of {len(one.pool.train)} images give "
              f"{one.ceiling:.1f} %, blended {one.accuracy(one.target):.1f} %", flush=True)
    train(tower, sets, args)
    print(write(tower, sets, args), flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = out.add_argument
    add("--teacher", required=True, help="local-dir: folder of a CLIP in open_clip's layout")
    add("--out", required=True, help=f"folder of the weights: {SIMULATED} or {SIMULATED}-SOMETHING")
    add("--root", default="", help="folder of the data sets")
    add("--goals", nargs="+", default=list(GOALS), metavar="SET=PER_CENT",
        help=f"sets and their zero-shot accuracy (default: {', '.join(GOALS)} as published)")
    add("--steps", type=int, default=1500)
    add("--batch", type=int, default=32)
    add("--lr", type=float, default=5e-4, help="peak of the cosine")
    add("--seed", type=int, default=1)
    return out


def main(words: Sequence[str]) -> int:
    """Read the words and run; an error is one message and an exit code."""
    args = parser().parse_args(words)
    return exit_code_of(lambda: run(args), words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
