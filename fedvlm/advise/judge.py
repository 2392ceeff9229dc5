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
from fedvlm.advise.page import advice_lines, advice_record, cost_words, method_flags
from fedvlm.advise.sets import LabelTrial, try_labels
from fedvlm.advise.trial import AFL, try_heads
from fedvlm.advise.verdict import Advice, conclude, conclude_labels
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
        sets = found.sets is not None
        trial = try_labels(found, progress) if sets else try_heads(found, progress)
        names = [found.ids[k] for k in trial.ids]
        images = [int(found.trains[k].sum()) for k in trial.ids]
        twins = 0.0 if found.grouped else twin_share(
            F.normalize(torch.cat(list(found.features)), dim=-1), torch.cat(list(found.labels)),
            np.concatenate(found.groups))
    if isinstance(trial, LabelTrial):
        advice, keep = conclude_labels(trial, twins), None
    else:
        advice = conclude(trial, images, twins)
        keep = trial.ridge if advice.method == AFL else None
    command = f"{words} {method_flags(advice.method, keep, sets)}"
    cost = cost_words(advice.method, found.features[0].shape[1], trial.classes)
    if found.bare:  # other methods refuse these clients
        command, cost = f"{words} --trainer SAGE", ""
    parts = (advice, trial, images, names, command, cost, found.classnames)
    lines = advice_lines(*parts)
    lines[1:1] = [f"Not judged: {len(found.bare)} client(s) with only images without a label "
                  f"({first_names(found.bare)}); of all methods SAGE alone takes them"
                  ] if found.bare else []
    return Judged(advice, lines, advice_record(*parts) | (
        {"unlabelled": list(found.bare)} if found.bare else {}), list(found.notes))
