"""Transport plans between a class's prompts and the patches of images (Li et al. 2024, FedOTP)."""

from __future__ import annotations

from fedvlm.report.figures.answers.looks import Looks, draw, of_kind, rows
from fedvlm.report.figures.selection import FigureRuns

NAME, ORDER, OF = "transport", 46, "run"
CAPTION = ("What the transport plan of each prompt of the class that the model says moves from "
           "each patch of the image, over the patch's even share: where a map is bright, the "
           "prompt is matched.")
__all__ = ["CAPTION", "NAME", "OF", "ORDER", "draw", "rows", "select"]


def select(selection: FigureRuns) -> Looks | None:
    """Return what was weighed in the images that the command names; None without any."""
    return of_kind(selection.looks, NAME)
