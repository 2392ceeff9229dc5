"""Small parts that many methods share: the proximal pull, newcomers, weights, words that stay."""

from __future__ import annotations

from typing import Any

import torch

from fedvlm.config.option import Option
from fedvlm.core.trees import Tree, per_client
from fedvlm.federation.context import SAMPLES, UNIFORM, Context

WHOLE, CUT = "whole", "cut"
WORDS = Option(
    WHOLE, "the words of CTX_INIT behind the learned tokens: whole keeps them, '[v1 v2] of a "
    "NAME.' of 'a photo of a'; cut leaves them out, '[v1 v2] NAME.'", choices=(WHOLE, CUT),
    neutral=CUT,
)


def pull(params: Tree, grads: Tree, home: Tree, strength: float) -> Tree:
    """Return ``grads + strength (params - home)``, the slope of strength / 2 |params - home|^2.

    Tensors that ``home`` lacks are left alone; strength 0 changes no bit. Sources: Li et al. 2020
    (FedProx, eq. 2), Li et al. 2021 (Ditto, algorithm 1).
    """
    return {
        n: g + strength * (params[n] - home[n]) if strength and n in home else g
        for n, g in grads.items()
    }


def fill_newcomers(ctx: Context, params: Tree, received: Tree) -> Tree:
    """Return ``params``, with what was received for clients that never worked in a round.

    A private model that starts at the common start would otherwise be judged untrained where a
    client was never drawn.
    """
    fresh = ctx.fresh
    return params | {
        n: torch.where(per_client(fresh, v), v, params[n])
        for n, v in received.items() if n in params
    }


def weighting(default: str, neutral: str | None = None) -> Option:
    """Return the option ``WEIGHTING`` of a method with its paper's choice as default.

    Args:
        neutral: see ``Option``, of a method that had no such key before.
    """
    return Option(
        default, "weight of a client in the average: its training samples, or the same for all",
        choices=(SAMPLES, UNIFORM), neutral=neutral,
    )


def kept_words(options: Any) -> str:
    """Return the words of which the tokens that are not learned stay before the class name.

    ``CTX_INIT`` of a method's options, or nothing where ``WORDS`` is ``cut``. For ``VLModel.text``;
    the authors of MaPLe, PromptSRC and FedMGP keep them.
    """
    return str(options.CTX_INIT).replace("_", " ") if options.WORDS == WHOLE else ""
