"""Whether a method gets the same numbers through cached streams as from pixels: it is tried.

Before round 1 two images go both ways, with random values in every trainable tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, FedvlmError, failure_text, own_line
from fedvlm.core.trees import Tree, expand, slice_clients
from fedvlm.federation.batches import Batch
from fedvlm.federation.server import Held, ServerContext
from fedvlm.federation.trainer import Trainer
from fedvlm.models.features.proof import Answers, Proof, compare
from fedvlm.models.features.sources import SampleSource
from fedvlm.models.vlmodel import VLModel

DRAWS = 3  # a value on a kink (a ReLU at zero) differs in one draw, a wrong stream in all
SPREAD = 0.02  # of the numbers that are added to a tensor that is constant at the start


def prove_streams(
    trainer: Trainer, model: VLModel, start: Tree, received: Tree, cached: SampleSource,
    pixels: SampleSource, indices: Tensor, seed: int,
) -> Proof:
    """Compare logits and gradients of two images through cached streams and through pixels.

    For two clients with different random values in every trainable tensor: at the start LoRA is
    zero and hides a wrong block, and equal clients hide that they mix.

    Args:
        model: its counters and memory move.
        start: trainable tensors, no client axis.
        received: what a client downloads, for losses and predictions that read extras of it.
        cached, pixels: sources of the same samples.
        indices: two samples, ``[2]``.
        seed: of the random values.

    Raises:
        ConfigError: the method fails on one of the two.
    """
    index = torch.stack([indices, indices.flip(0)])  # the clients see other images in each place
    x, plain = _streams(cached, index, model), _streams(pixels, index, model)
    y = cached.labels[index].to(model.device)
    y = y % len(model.classnames) if model.sets else y  # the row of a set: any class will do here
    proofs = []
    for draw in range(DRAWS):
        params = expand(received, 2) | random_values(start, seed, draw)
        run = partial(_answers, trainer, model, params, list(start), y)
        proofs.append(compare(run, x, plain, model.backbone.dtype))
        if proofs[-1].holds:
            return proofs[-1]
    params = expand(received, 2) | random_values(start, seed)
    run = partial(_answers, trainer, model, params, list(start), y)
    return _blame(proofs[0], lambda some: compare(run, some, plain, model.backbone.dtype), x, plain)


def prove_method(
    trainer: Trainer, model: VLModel, start: Tree, server: Callable[[int, Held], ServerContext],
    cached: SampleSource, pixels: SampleSource, indices: Tensor, seed: int,
) -> Proof:
    """Compare the streams of a run's method (``prove_streams``) on what a client first receives.

    Nothing of the run moves: model, counters and random streams of the trial are its own.

    Args:
        server: makes the context of a round (``Federation.server_context``).

    Raises:
        ConfigError: they give other numbers, or the method fails on one of them.
        FedvlmError: the frozen backbone changed.
    """
    fresh, held = model.fresh(), Held()
    slots = trainer.init_server(replace(server(0, held), model=fresh), start)
    received = trainer.download(replace(server(1, held), model=fresh), slots, 0)
    frozen = model.verify_frozen()
    proof = prove_streams(trainer, fresh, start, received, cached, pixels, indices, seed)
    if model.verify_frozen() != frozen:
        raise FedvlmError("the frozen backbone changed while the streams were compared")
    if not proof.holds:
        name = trainer.name or type(trainer).__name__
        raise ConfigError(f"trainer {name}: {proof.sentence()}")
    return proof


def _blame(
    proof: Proof, retry: Callable[[Mapping[str, Tensor]], Proof], x: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
) -> Proof:
    """Return the proof under the stream whose absence mends it; of several as it is."""
    guilty = []
    for stream in x if len(x) > 1 else ():
        try:
            others = {name: v for name, v in x.items() if name != stream}
            guilty += [stream] if retry({**others, **plain}).holds else []
        except FedvlmError:  # the method cannot do without it
            continue
    return replace(proof, stream=guilty[0]) if len(guilty) == 1 else proof


def random_values(start: Tree, seed: int, draw: int = 0) -> Tree:
    """Return ``start`` for two clients, ``[2, ...]``, with noise of its own spread in each leaf."""
    out = {}
    for name, leaf in start.items():
        generator = rng.stream(seed, "stream-proof", draw, name)
        spread = max(float(leaf.double().std(correction=0)) if leaf.numel() else 0.0, SPREAD)
        noise = torch.randn((2, *leaf.shape), generator=generator, dtype=torch.float64)
        out[name] = leaf + (spread * noise).to(leaf)
    return out


def _streams(source: SampleSource, index: Tensor, model: VLModel) -> dict[str, Tensor]:
    flat = source.fetch(index.reshape(-1), 0)
    return {s: v.reshape(*index.shape, *v.shape[1:]).to(model.device) for s, v in flat.items()}


def _answers(
    trainer: Trainer, model: VLModel, params: Tree, names: Sequence[str], y: Tensor,
    x: Mapping[str, Tensor],
) -> Answers:
    """Return logits and gradients by name, as the engine would stack the clients."""
    size = len(y) if trainer.batched else 1
    parts = [
        _chunk_answers(
            trainer, model, slice_clients(params, k, k + size), names,
            Batch({s: v[k : k + size] for s, v in x.items()}, y[k : k + size],
                  torch.ones(y[k : k + size].shape, dtype=model.dtype, device=model.device)),
        )
        for k in range(0, len(y), size)
    ]
    logits = torch.cat([logits.expand(size, *logits.shape[1:]) for logits, _ in parts])
    return logits, {n: torch.cat([grads[n] for _, grads in parts]) for n in names}


def _chunk_answers(
    trainer: Trainer, model: VLModel, params: Tree, names: Sequence[str], batch: Batch
) -> Answers:
    try:
        with torch.no_grad():
            logits = trainer.predict(model, params, batch.x)
        leaves = {n: params[n].detach().requires_grad_() for n in names}
        with torch.enable_grad():
            out = trainer.loss(model, params | leaves, batch)
            value = (out[0] if isinstance(out, tuple) else out).sum()
            grads: Sequence[Tensor | None] = [None] * len(names)
            if value.requires_grad:
                grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    except FedvlmError:
        raise
    except Exception as error:
        raise ConfigError(
            f"trainer {trainer.name or type(trainer).__name__} fails on the stream "
            f"{', '.join(batch.x)} before round 1: {failure_text(error)}{own_line(error)} (its "
            "loss and prediction must work for its declared stream and for pixels; --debug "
            "shows the traceback)"
        ) from error
    return logits, {
        n: torch.zeros_like(leaves[n]) if g is None else g
        for n, g in zip(names, grads, strict=True)
    }
