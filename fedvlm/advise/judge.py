"""From a config to an advice: gather, cross-validate, conclude, word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from fedvlm.advise.few import lone_page, unjudged_page
from fedvlm.advise.folds import NothingToJudge, twin_share
from fedvlm.advise.gather import SIMULATED, Gathered, gather_clients
from fedvlm.advise.page import AdvicePage, alone_flags, cost_line
from fedvlm.advise.sets import FEW, LabelTrial, try_labels
from fedvlm.advise.trial import CrossValidation, try_heads
from fedvlm.advise.verdict import ENOUGH, LACKS_EACH, Advice, conclude, conclude_labels
from fedvlm.advise.ways import AFL, ALONE_DOES, FEDAVG, UNKNOWN, method_flags
from fedvlm.core.progress import Progress
from fedvlm.data.federated import alike_words
from fedvlm.data.locate import first_names
from fedvlm.job.run import threads_of

ROOM = 4 / 3  # of images per client beyond those that are enough: shares are unlike
SHARED = 1.05  # images counted client by client, in images; above it clients draw the same ones


@dataclass(frozen=True)
class Judged:
    """The page of an advice, as lines and as JSON, and the notes on the clients' data."""

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
        try:
            trial = try_heads(found, progress) if found.sets is None else try_labels(
                found, progress)
        except NothingToJudge as nothing:
            return _unjudged(cfg, found, words, str(nothing))
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
        flags = method_flags(advice.method, trial.ridge, pull=_checked_pull(advice, trial),
                             hold=trial.hold)
    if len(found.ids) == 1:
        return Judged(*lone_page(advice, trial, images[0], words), list(found.notes))
    same = alike_words([np.unique(g[t.numpy()])
                        for g, t in zip(found.groups, found.trains, strict=True)])
    if same:  # nobody gains from images that everybody has
        advice = replace(advice, verdict=UNKNOWN, why=same, lacks="")
    command, own = f"{words} {flags}", alone_flags(advice)
    cost = cost_line(advice.method, found.features[0].shape[1], trial.classes)
    if found.bare:  # other methods refuse these clients
        command, cost, own = f"{words} --trainer SAGE", "", ""
    alone = f"{words} {own}" if own else ""
    page = AdvicePage(
        advice, trial, images, names, command, cost, found.classnames, alone,
        _fewer(cfg, found, advice.own_size) if advice.lacks == LACKS_EACH else 0)
    lines, few = page.lines(), _too_few(found, trial.ids)
    lines[1:1] = [f"Not judged: {_one_image(found, few)}"] if few else []
    lines[1:1] = [f"Not judged: {len(found.bare)} client(s) with only images without a label "
                  f"({first_names(found.bare)}); of all methods SAGE alone takes them"
                  ] if found.bare else []
    return Judged(lines, page.record() | (
        {"unlabelled": list(found.bare)} if found.bare else {}) | (
        {"too_few": [found.ids[k] for k in few]} if few else {}), list(found.notes))


def _unjudged(cfg: CfgNode, found: Gathered, words: str, why: str) -> Judged:
    """Return the advice where no image can be held out: it cannot say, and what can be tried."""
    images = [int(one.sum()) for one in found.trains]
    sets, classes = found.sets is not None, len(found.classnames)
    method = FEDAVG if sets else AFL
    command = f"{words} {method_flags(method, sets=sets)}"
    cost = cost_line(method, found.features[0].shape[1], classes)
    if found.bare:
        command, cost = f"{words} --trainer SAGE", ""
    if len(images) == 1:
        command = ""
    things = f"{classes} {'labels' if sets else 'classes'}"
    return Judged(*unjudged_page(why, images, found.ids, things, command, cost,
                                 _fewer(cfg, found, sum(images))), list(found.notes))


def _fewer(cfg: CfgNode, found: Gathered, size: float) -> int:
    """Return to how many clients simulation could deal the same images to judge each; 0: none.

    Args:
        size: what all clients have together to be judged by.
    """
    each = [set(groups.tolist()) for groups in found.groups]
    shared = sum(map(len, each)) > SHARED * len(set().union(*each))  # more clients, more copies
    if cfg.FED.PARTITION not in SIMULATED or cfg.FED.INDEX_FILE or shared:
        return 0
    clients = int(size / (ROOM * ENOUGH))
    return clients if 2 <= clients < len(each) else 0


def _too_few(found: Gathered, judged: Sequence[int]) -> list[int]:
    """Return the clients with labels of which nothing can be held out."""
    return [k for k, name in enumerate(found.ids) if k not in judged and name not in found.bare]


def _one_image(found: Gathered, clients: Sequence[int]) -> str:
    """Return which clients have too few images to hold one out, by what they have."""
    by: dict[str, list[int]] = {}
    for k in clients:
        if found.sets is not None:
            why = f"no label with {FEW} images with and {FEW} without it"
        elif len(np.unique(found.groups[k])) == 1:
            why = "one group of images" if len(found.labels[k]) > 1 else "one image"
        else:
            why = ("one image (group) of most classes, so nothing of the class is left to learn "
                   "from when it is tested")
        by.setdefault(why, []).append(k)
    return "; ".join(f"{len(some)} client{'s' if len(some) > 1 else ''} with {why} "
                     f"({first_names(found.ids[k] for k in some)})" for why, some in by.items())


def _checked_pull(advice: Advice, trial: CrossValidation) -> float | None:
    """Return the pull that was judged, for a run that checks that sharing does not pay.

    There a head that hardly hears the shared one is as good as any. Elsewhere heads are to gain
    from the shared one, and in the rounds of the command so weak a pull would not bring that about.
    """
    return trial.pull if advice.verdict == ALONE_DOES else None
