"""Pretrains the embedded tiny CLIP on images rendered by code, on one CPU thread.

    python scripts/pretrain_tiny.py --minutes 40 --seed 1 --out fedvlm/models/tiny

Every batch is drawn and painted anew; the loss uses the exact matrix of which caption is true of
which image. The learning rate falls with the *time* used, so any budget gives a finished model;
a second run on another machine gives a model as good, not the same bits.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from tiny_batches import Batch, Sampler  # noqa: E402
from tiny_card import complete  # noqa: E402
from tiny_export import export, new_model  # noqa: E402
from tiny_gate import gate  # noqa: E402
from tiny_optim import make_optimiser, rate  # noqa: E402

from fedvlm.models.load.tiny import TINY_DIR, TinyTokenizer  # noqa: E402


def encode_text(model: Any, tokens: Tensor) -> Tensor:
    """Unit text features [M, D] of ids [M, L] with L below the context length.

    The causal mask makes the result equal to that of the full, padded context.
    """
    length = tokens.shape[1]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
    x = model.ln_final(x)
    x = x[torch.arange(len(tokens)), tokens.argmax(dim=1)] @ model.text_projection
    return F.normalize(x, dim=-1)


def side_loss(scores: Tensor, true: Tensor, weight: Tensor) -> Tensor:
    """Multi-positive contrastive loss over the last axis.

    Each true entry competes with the false ones only, never with other true ones, so an easy
    word cannot stand in for a hard one. `scores`, `true`, `weight` are [rows, columns].
    """
    false = scores.masked_fill(true, float("-inf")).logsumexp(dim=1, keepdim=True)
    each = F.softplus(false - scores) * true * weight
    total = (true * weight).sum(dim=1)
    rows = total > 0
    return (each.sum(dim=1)[rows] / total[rows]).mean()


def loss_of(model: Any, batch: Batch) -> Tensor:
    """Mean of the image-to-text and text-to-image losses."""
    # The MATH kernel is four times faster than flash at these sizes in bf16 on a CPU.
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        images = model.encode_image(batch.x, normalize=True)
        texts = encode_text(model, batch.tokens)
    scores = model.logit_scale.exp() * images.float() @ texts.float().T
    weight = batch.weight.expand_as(scores)
    rows = side_loss(scores, batch.true, weight)
    columns = side_loss(scores.T, batch.true.T, torch.ones_like(scores.T))
    return 0.5 * (rows + columns)


def command(args: argparse.Namespace) -> str:
    """The command line that trains like this one, without the folder."""
    names = ("minutes", "seed", "batch", "captions", "lr", "bank")
    flags = " ".join(f"--{name} {getattr(args, name):g}" for name in names)
    return f"python scripts/pretrain_tiny.py {flags}"


class Trainer:
    """The run's state: model, slow average, optimiser, sampler and clocks."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.tokenizer = TinyTokenizer()
        self.model = new_model(args.seed).train()
        self.slow = new_model(args.seed).eval()
        self.optimiser = make_optimiser(self.model, args.lr)
        self.sampler = Sampler(args.seed, self.tokenizer, args.bank)
        self.start, self.step = time.monotonic(), 0
        self.history: list[dict[str, Any]] = []

    def minutes(self) -> float:
        return (time.monotonic() - self.start) / 60

    def one_step(self) -> float:
        """One update; returns the loss."""
        done = self.minutes() / self.args.minutes
        for group in self.optimiser.param_groups:
            group["lr"] = rate(done, self.step, self.args.lr)
        loss = loss_of(self.model, self.sampler.batch(self.args.batch, self.args.captions))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=math.log(60.0))
            keep = min(0.998, (self.step + 1) / (self.step + 10))
            fast, slow = list(self.model.parameters()), list(self.slow.parameters())
            torch._foreach_lerp_(slow, fast, 1.0 - keep)
        self.step += 1
        return float(loss.detach())

    def save(self, final: bool) -> dict[str, float]:
        """Gate of the slow average, then the folder."""
        per_class = self.args.gate_images if final else 20
        scores = gate(self.slow, self.tokenizer, per_class, seed=0)
        minutes = round(self.minutes(), 1)
        self.history.append({"minutes": minutes, "step": self.step, **scores})
        facts = {
            "status": "final" if final else "provisional: training is still running",
            "gate": {"images_per_class": per_class, "seed": 0, "zero_shot_percent": scores},
            "seed": self.args.seed,
            "steps": self.step,
            "samples": self.step * self.args.batch,
            "training_minutes": minutes,
            "cpu_seconds": round(time.process_time()),
            "command": command(self.args),
            "history": self.history,
        }
        export(Path(self.args.out), self.slow.state_dict(), facts)
        return scores


def run(args: argparse.Namespace) -> None:
    """Trains until the time is used up, reporting and saving on the way."""
    trainer = Trainer(args)
    print(f"bank drawn in {time.process_time():.0f} CPU-s", flush=True)
    trainer.start = time.monotonic()
    saved, losses = 0.0, []
    while trainer.minutes() < args.minutes:
        losses.append(trainer.one_step())
        if trainer.step % 200 == 0:
            scale = float(trainer.model.logit_scale.detach().exp())
            mean = sum(losses) / len(losses)
            print(
                f"{trainer.minutes():.1f} min {trainer.step} {mean:.3f} s={scale:.1f}", flush=True
            )
            losses = []
        if trainer.minutes() - saved >= args.save_every:
            saved = trainer.minutes()
            print(trainer.save(final=False), flush=True)
    trainer.save(final=True)
    card = complete(Path(args.out), args.gate_images)
    print(card["gate"], card["adaptation"], sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(TINY_DIR))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--captions", type=int, default=84, help="random captions per batch")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--bank", type=float, default=1.0, help="share of the silhouette bank")
    parser.add_argument("--save-every", type=float, default=5.0, help="minutes")
    parser.add_argument("--gate-images", type=int, default=100, help="per class, at the end")
    torch.set_num_threads(1)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
