"""Attention and fusion weights of single images (FedTV's fusion; a ViT's class token)."""

from __future__ import annotations

from fedvlm.report.figures.answers.looks import Looks, draw, of_kind, rows
from fedvlm.report.figures.selection import FigureRuns

NAME, ORDER, OF = "attention", 47, "run"
CAPTION = ("What the method weighs in each image: patches that the class token attends to in the "
           "last block, over an even share, or the weights of the views that a fusion mixes.")
__all__ = ["CAPTION", "NAME", "OF", "ORDER", "draw", "rows", "select"]


def select(selection: FigureRuns) -> Looks | None:
    """Return what was weighed in the images that the command names; None without any."""
    return of_kind(selection.looks, NAME)
