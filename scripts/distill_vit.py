r"""Distils a small ViT-CLIP from a teacher's image features; its text tower is the teacher's own.

    python scripts/distill_vit.py --teacher local-dir:../shared/weights/realfeat \
        --root ../shared/data --start tiny --steps 8000 --out ../distilled/vit

For methods that work inside the blocks of a ViT, where the teacher has none. The folder can be
named as a backbone: --backbone local-dir:../distilled/vit. A run that is stopped, or whose
minutes are used up, goes on where it was by the same command.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from distill_data import (  # noqa: E402
    SETS,
    Pool,
    drop_copies,
    fingerprint,
    pixels_of,
    read_pools,
    tower_features,
)
from distill_report import class_texts, measure, readme, speed  # noqa: E402
from distill_train import Distillation, Settings, encode, warm_start  # noqa: E402
from tiny_export import export, new_model, replace_file  # noqa: E402

from fedvlm.console.guard import exit_code_of  # noqa: E402
from fedvlm.core.errors import ConfigError  # noqa: E402
from fedvlm.core.transform import TransformSpec  # noqa: E402
from fedvlm.models.backbone import Backbone  # noqa: E402
from fedvlm.models.load.backbones import load_backbone  # noqa: E402
from fedvlm.models.load.names import LOCAL_DIR, TINY  # noqa: E402

VISUAL = "visual."  # names of an image tower's tensors begin with it
MEAN = (0.5, 0.5, 0.5)  # and standard deviation
PREPROCESS = {
    "mean": list(MEAN), "std": list(MEAN), "interpolation": "bicubic", "resize_mode": "shortest",
}  # fmt: skip
GLANCE = 100  # held-out images of each set that are looked at during training


def refuse_simulated(teacher: Backbone) -> None:
    """Refuse a teacher with a simulated text tower: what is made of it would not show it."""
    if teacher.text_images:
        raise ConfigError(f"--teacher {teacher.name} has a simulated text tower: take another")


def new_student(teacher: Backbone, vision: Mapping[str, int], seed: int) -> tuple[Any, Any]:
    """Return a CLIP with a new ViT and the teacher's text tower, and its model config.

    Raises:
        ConfigError: a teacher whose text tower, or tokenizer, open_clip's plain CLIP has not.
    """
    weights = teacher.model.state_dict()
    if teacher.name == TINY or "token_embedding.weight" not in weights:
        raise ConfigError(
            f"--teacher {teacher.name} has a text tower or a tokenizer that a folder in "
            "open_clip's plain layout cannot hold: use a CLIP that is a local-dir: folder"
        )
    refuse_simulated(teacher)
    cfg = {**teacher.arch, "vision_cfg": dict(vision)}
    model = new_model(seed, cfg)
    text = {name: t for name, t in weights.items() if not name.startswith(VISUAL)}
    lacking, extra = model.load_state_dict(text, strict=False)
    wrong = extra + [name for name in lacking if not name.startswith((VISUAL, "attn_mask"))]
    if wrong:
        raise ConfigError(f"--teacher {teacher.name}: its text tower has no or another {wrong[0]}")
    return model, cfg


class Work:
    """Teacher, images and student of one command.

    Attributes:
        teacher, pools, check: the backbone, the sets, what ``drop_copies`` counted.
        goals, texts: teacher features by set, of training and held-out images; class texts.
        model, cfg, spec: the student, its model config and transform.
        pixels: uint8 by set, of training and held-out images.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.teacher = load_backbone(args.teacher)
        vision = {
            "image_size": args.size, "patch_size": args.patch, "width": args.width,
            "layers": args.layers, "head_width": args.head,
        }  # fmt: skip
        self.model, self.cfg = new_student(self.teacher, vision, args.seed)
        self.begin(self.model.visual)
        self.spec = TransformSpec(args.size, MEAN, MEAN)
        pools = read_pools(args.sets, args.root, args.images, args.held_out, args.seed, args.cache)
        self.pools, self.check = drop_copies(pools)
        print(f"check: {self.check}", flush=True)
        self.goals: dict[str, tuple[Tensor, Tensor]] = {}
        self.pixels: dict[str, tuple[Tensor, Tensor]] = {}
        self.texts: dict[str, Tensor] = {}
        for pool in self.pools:
            lists = (pool.train, pool.held_out)
            self.goals[pool.word] = self.features(pool, self.teacher)
            train, held_out = (pixels_of(pool, items, self.spec) for items in lists)
            self.pixels[pool.word] = (train, held_out)
            self.texts[pool.word] = class_texts(self.teacher, pool)
            print(f"{pool.word}: {len(train)} to train on, {len(held_out)} held out", flush=True)

    def begin(self, visual: Any) -> None:
        """Give a new image tower the weights that training starts from."""
        if self.args.start:
            warm_start(visual, load_backbone(self.args.start, plain=True).model.visual)

    def features(self, pool: Pool, tower: Backbone) -> tuple[Tensor, Tensor]:
        """Features of a set's training and held-out images."""
        train, held_out = (tower_features(pool, p, tower) for p in (pool.train, pool.held_out))
        return train, held_out

    def distillation(self) -> Distillation:
        """Return the training, where it was left."""
        args, out = self.args, Path(self.args.out)
        how = Settings(args.seed, args.steps, args.batch, args.lr)
        identity = {
            "teacher": self.teacher.digest, "images": fingerprint(self.pools),
            "vision": str(self.cfg["vision_cfg"]), "start": self.args.start,
        }  # fmt: skip
        out.parent.mkdir(parents=True, exist_ok=True)
        run = Distillation(
            self.model.visual, self.spec, torch.cat([p for p, _ in self.pixels.values()]),
            torch.cat([g for g, _ in self.goals.values()]), torch.cat(list(self.texts.values())),
            self.teacher.logit_scale, how, identity, out.with_name(f"{out.name}.state.pt"),
            args.threads,
        )  # fmt: skip
        if run.resume():
            print(f"goes on from step {run.step} ({run.state})", flush=True)
        return run

    def glance(self) -> float:
        """Mean cosine to the teacher on a few held-out images of each set."""
        means = []
        for word, (_, pixels) in self.pixels.items():
            own = encode(self.model.visual, pixels[:GLANCE], self.spec)
            means.append(torch.cosine_similarity(own, self.goals[word][1][:GLANCE]).mean())
        return float(torch.stack(means).mean())

    def write(self, run: Distillation) -> str:
        """Write the folder, measure what was written, and return its README."""
        args, out = self.args, Path(self.args.out)
        untrained = new_model(args.seed, self.cfg).visual
        self.begin(untrained)
        facts: dict[str, Any] = asdict(run.how) | {
            "command": command(args), "check": self.check, "teacher": args.teacher,
            "teacher_digest": self.teacher.digest, "training_minutes": round(run.seconds / 60, 1),
            "start": args.start,
            "epochs": round(run.how.steps * run.how.batch / len(run.pixels), 1),
        }  # fmt: skip
        export(out, self.model.state_dict(), facts, self.cfg, PREPROCESS)
        student = load_backbone(f"{LOCAL_DIR}{out}")
        figures = {}
        for pool in self.pools:
            own, other = (encode(untrained, p, self.spec) for p in self.pixels[pool.word])
            every = {
                "teacher": self.goals[pool.word], "student": self.features(pool, student),
                "untrained": (own, other),
            }  # fmt: skip
            figures[pool.word] = measure(pool, self.texts[pool.word], every)
            print(pool.word, figures[pool.word], flush=True)
        said = facts | {
            "folder": str(out), "vision": self.cfg["vision_cfg"],
            "parameters": sum(p.numel() for p in self.model.visual.parameters()),
            "ms": speed(student), "teacher_ms": speed(self.teacher, images=32),
        }  # fmt: skip
        export(out, self.model.state_dict(), said | {"figures": figures}, self.cfg, PREPROCESS)
        text = readme(said, figures)
        replace_file(out / "README.md", text.encode("utf-8"))
        return text


def command(args: argparse.Namespace) -> str:
    """The command line that makes these weights."""
    names = ("teacher", "root", "out", "steps", "seed", "batch", "lr", "images", "held_out",
             "start", "size", "patch", "width", "layers", "head")  # fmt: skip
    given = {name.replace("_", "-"): str(getattr(args, name)) for name in names}
    flags = [f"--{name} {shlex.quote(value)}" for name, value in given.items() if value]
    return " ".join(["python scripts/distill_vit.py", *flags, "--sets", *args.sets])


def run(args: argparse.Namespace) -> int:
    """Train until done or the minutes are used up; once done, write and measure. Returns 0."""
    torch.set_num_threads(1)  # a batch is shared by threads as a whole
    work = Work(args)
    training = work.distillation()

    def tell(loss: float) -> None:
        print(
            f"step {training.step} of {args.steps}, {training.seconds / 60:.1f} CPU min, loss "
            f"{loss:.3f}, cosine {work.glance():.3f}", flush=True,
        )  # fmt: skip

    if not training.run(args.minutes, args.every, tell):
        print(f"{args.minutes:g} minutes are used up: the same command goes on from here")
        return 0
    training.finish()
    print(work.write(training), flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = out.add_argument
    add("--teacher", required=True, help="local-dir: folder of a CLIP in open_clip's layout")
    add("--out", required=True, help="folder of the weights")
    add("--root", default="", help="folder of the data sets")
    add("--start", default="", help="backbone whose ViT is gone on from: tiny (default: none)")
    add("--sets", nargs="+", default=list(SETS), help="data sets, as --dataset takes them")
    add("--steps", type=int, default=3000)
    add("--minutes", type=float, default=35.0, help="CPU minutes of training of this call")
    add("--batch", type=int, default=64)
    add("--lr", type=float, default=1e-3, help="peak of the cosine")
    add("--seed", type=int, default=1)
    add("--images", type=int, default=15000, help="training images over all sets, at most")
    add("--held-out", type=int, default=500, help="images of each set to measure on, at most")
    add("--size", type=int, default=48, help="pixels of an image's side")
    add("--patch", type=int, default=8)
    add("--width", type=int, default=128)
    add("--layers", type=int, default=5)
    add("--head", type=int, default=32, help="width of an attention head")
    add("--every", type=int, default=250, help="steps between two saved states")
    add("--threads", type=int, default=1, help="that share a batch")
    add("--cache", default="", help="folder of the feature store (default: that of runs)")
    return out


def main(words: Sequence[str]) -> int:
    """Read the words and run; an error is one message and an exit code."""
    args = parser().parse_args(words)
    return exit_code_of(lambda: run(args), words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
