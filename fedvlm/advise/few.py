"""The advice where nothing is compared: one client only, or no image that can be held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedvlm.advise.page import alone_flags, fewer_words
from fedvlm.advise.sets import LabelTrial
from fedvlm.advise.trial import CrossValidation
from fedvlm.advise.verdict import Advice
from fedvlm.advise.ways import ALONE_DOES, UNKNOWN
from fedvlm.runs.verify.answer import ACCURACY, baseline_name

LONE = "there is one client only: nobody to share with"


def lone_page(
    advice: Advice, trial: CrossValidation | LabelTrial, images: int, words: str
) -> tuple[list[str], dict[str, Any]]:
    """Return what one client reaches, as lines and as JSON: no verdict, no cost.

    Args:
        images: its training images.
        words: command of a run on the same client, without its method.
    """
    sets, alone = advice.measure != ACCURACY, advice.alone
    flags = alone_flags(replace(advice, verdict=ALONE_DOES))
    command = f"{words} {flags}" if flags else ""
    name, second = baseline_name(alone.name), "AUROC" if sets else "class-balanced"
    lines = [
        f"1 client, {images:,} training images, {trial.classes} {'labels' if sets else 'classes'}; "
        f"{trial.folds} folds of these; no test image was opened",
        f"Alone ({name}) it reaches {advice.measure} {alone.personal:.1f} %, {second} "
        f"{alone.balanced:.1f}",
        f"{LONE.capitalize()}.", *([f"Next: {command}"] if command else []),
    ]
    return lines, {
        "verdict": None, "why": LONE, "alone": alone.name,
        "reached": {alone.name: {"personal": alone.personal,
                                 "auroc" if sets else "balanced": alone.balanced}},
        "zero_shot": advice.names, "near_duplicates": advice.twins, "folds": trial.folds,
        "command": command,
    }


def unjudged_page(
    why: str, images: Sequence[int], names: Sequence[str], classes: str, command: str, cost: str,
    fewer: int,
) -> tuple[list[str], dict[str, Any]]:
    """Return that nothing can be said, as lines and as JSON.

    Args:
        why: no image can be held out.
        images: training images of each client.
        names: of the clients.
        classes: how many, in words.
        command: to paste; of one client empty.
        cost: of that run.
        fewer: as of ``page.AdvicePage``.
    """
    told = (f"{len(images)} client{'s' if len(images) > 1 else ''}, {sum(images):,} training "
            f"images, {classes}; no test image was opened")
    reason = f"{why}{fewer_words(fewer, sum(images))}"
    lines = [told, f"Verdict: {UNKNOWN}: {reason}."]
    lines += [f"To try it all the same: {command}", *([f"It costs {cost}."] if cost else [])
              ] if command else [f"{LONE.capitalize()}."]
    return lines, {
        "verdict": UNKNOWN, "why": why, "enough_with_clients": fewer or None,
        "clients": [{"client": name, "images": n} for name, n in zip(names, images, strict=True)],
        "command": command, "cost": cost,
    }
