"""Learned text contexts and their starts: random, words, and FedTV's low-rank factors.

Low-rank contexts have a leading client axis ``K`` and ``N`` prompt sets per client.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.models.towers.prompts import prefix_length
from fedvlm.models.vlmodel import VLModel

GLOBAL, LOCAL = "text.ctx.global", "text.ctx.local"  # a shared context, and a client's own
TRAINED = "text.trained"  # of a personal model: 1 where the client has trained its own context
INIT_STD = 0.02  # CoOp's standard deviation of a random context


def random_context(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return CoOp's random start ``[..., n_ctx, width]``, N(0, 0.02^2)."""
    return torch.randn(tuple(shape), generator=generator) * INIT_STD


def word_context(model: VLModel, text: str) -> Tensor:
    """Return the token embeddings of a text without its marks, ``[n, text_width]``.

    n is the number of its tokens, as many as it has words where each is one token.
    """
    ids = model.backbone.tokenize([text])
    start, stop = prefix_length(model.backbone), int(model.backbone.token_ends(ids)[0])
    with torch.no_grad():
        context: Tensor = model.backbone.embed_tokens(ids)[0, start:stop]
    return context.detach().clone().cpu()


def start_context(
    model: VLModel, words: str, n_ctx: int, generator: torch.Generator
) -> Tensor:
    """Return the start ``[n, text_width]`` of a context: the embeddings of ``words``, else random.

    Words give n themselves, as in CoOp; ``n_ctx`` is that of a random start.
    """
    return word_context(model, words) if words else random_context(
        (n_ctx, model.text_width), generator
    )


def low_rank_prompt(
    n_prompts: int, n_ctx: int, width: int, rank: int, generator: torch.Generator,
    classes: int = 0,
) -> Tree:
    """Return FedTV's prompt factors: sigma, U, S ~ N(0, 0.02^2) and orthonormal U, V.

    Shapes: ``text.sigma [N, n_ctx, width]``, ``text.U [N, n_ctx, rank]`` (orthonormal columns),
    ``text.S [N, rank]``, ``text.V [N, rank, width]`` (orthonormal rows). With ``classes`` every
    class has a sigma of its own: ``[N, C, n_ctx, width]``.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * INIT_STD

    def orthonormal(rows: int, columns: int) -> Tensor:
        one = [
            torch.nn.init.orthogonal_(torch.empty(rows, columns), generator=generator)
            for _ in range(n_prompts)
        ]
        return torch.stack(one)

    return {
        "text.sigma": normal(n_prompts, *([classes] if classes else []), n_ctx, width),
        "text.U": orthonormal(n_ctx, rank),
        "text.S": normal(n_prompts, rank),
        "text.V": orthonormal(rank, width),
    }


def personal_prompt(p: Tree) -> Tensor:
    """Return P = sigma + U diag(S) V, ``[K, N, n_ctx, width]``; without S it is sigma + U V.

    Where every class has a sigma, ``[K, N, C, n_ctx, width]``, they share the other term.
    """
    left = p["text.U"] * p["text.S"].unsqueeze(-2) if "text.S" in p else p["text.U"]
    sigma, own = p["text.sigma"], left @ p["text.V"]
    return sigma + (own if sigma.ndim == own.ndim else own.unsqueeze(-3))


def orthogonality(p: Tree, squared: bool) -> Tensor:
    """Return sum_n ||U'U - I||_F + ||VV' - I||_F per client, ``[K]`` (squared norms on request).

    The un-squared norm has no gradient at its minimum, where only rounding noise would decide:
    below a few hundred units of rounding its value and subgradient are defined as zero.
    """
    u, v = p["text.U"], p["text.V"]
    return _gap(u.mT @ u, squared).sum(-1) + _gap(v @ v.mT, squared).sum(-1)


def _gap(gram: Tensor, squared: bool) -> Tensor:
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    square = (gram - eye).square().sum((-2, -1))
    if squared:
        return square
    above = square > (256 * torch.finfo(gram.dtype).eps) ** 2
    return torch.where(above, torch.where(above, square, 1.0).sqrt(), 0.0)
