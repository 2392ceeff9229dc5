"""From a config to an advice: gather, cross-validate, conclude, word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from fedvlm.advise.folds import twin_share
from fedvlm.advise.gather import gather_clients
from fedvlm.advise.page import (
    advice_lines,
    advice_record,
    alone_flags,
    cost_words,
    method_flags,
)
from fedvlm.advise.sets import LabelTrial, try_labels
from fedvlm.advise.trial import CrossValidation, try_heads
from fedvlm.advise.verdict import ALONE_DOES, Advice, conclude, conclude_labels
from fedvlm.core.progress import Progress
from fedvlm.data.locate import first_names
from fedvlm.job.run import threads_of


@dataclass(frozen=True)
class Judged:
    """An advice with its page, and the notes on the clients' data."""

    advice: Advice
    lines: list[str]
    record: dict[str, Any]
    notes: list[str]


def judge_clients(cfg: CfgNode, words: str, progress: Progress | None = None) -> Judged:
    """Return the advice on the clients of a run's config.

    Args:
        words: command of a run on the same clients, without its method.

    Raises:
        ConfigError, DataError: as ``gather.gather_clients``.
    """
    with threads_of(cfg):
        found = gather_clients(cfg, progress)
        trial = try_heads(found, progress) if found.sets is None else try_labels(found, progress)
        names = [found.ids[k] for k in trial.ids]
        images = [int(found.trains[k].sum()) for k in trial.ids]
        twins = 0.0 if found.grouped else twin_share(
            F.normalize(torch.cat(list(found.features)), dim=-1), torch.cat(list(found.labels)),
            np.concatenate(found.groups))
    if isinstance(trial, LabelTrial):
        advice = conclude_labels(trial, twins)
        flags = method_flags(advice.method, sets=True)
    else:
        advice = conclude(trial, images, twins)
        flags = method_flags(advice.method, trial.ridge, pull=_checked_pull(advice, trial))
    command, own = f"{words} {flags}", alone_flags(advice)
    cost = cost_words(advice.method, found.features[0].shape[1], trial.classes)
    if found.bare:  # other methods refuse these clients
        command, cost, own = f"{words} --trainer SAGE", "", ""
    alone = f"{words} {own}" if own else ""
    parts = (advice, trial, images, names, command, cost, found.classnames, alone)
    lines = advice_lines(*parts)
    lines[1:1] = [f"Not judged: {len(found.bare)} client(s) with only images without a label "
                  f"({first_names(found.bare)}); of all methods SAGE alone takes them"
                  ] if found.bare else []
    return Judged(advice, lines, advice_record(*parts) | (
        {"unlabelled": list(found.bare)} if found.bare else {}), list(found.notes))


def _checked_pull(advice: Advice, trial: CrossValidation) -> float | None:
    """Return the pull that was judged, for a run that checks that sharing does not pay.

    There a head that hardly hears the shared one is as good as any. Elsewhere heads are to gain
    from the shared one, and in the rounds of the command so weak a pull would not bring that about.
    """
    return trial.pull if advice.verdict == ALONE_DOES else None
