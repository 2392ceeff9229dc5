"""Metrics that a run is asked for by name (``TEST.METRICS``), beside those it always has.

A built-in metric has a name of ``BUILT_IN`` and is in percent. ``./mine.py:kappa`` is a function of
the user's own file: ``(probabilities, labels) -> float`` with ``probabilities [n, C]`` float64 and
``labels [n]`` int64, or ``[n, C]`` of 0 and 1 where an image has a set of labels. The file is run
by the command that names it and by nothing else: results have its numbers, its name and the file's
SHA-256, and whoever reads results never opens it.

Each client's personal model is judged on the client's own test images, at the untrained start and
after the last round; a client for which a metric has no number is left out of the mean and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedvlm.core.errors import ConfigError, did_you_mean, failure_text
from fedvlm.core.files import user_path
from fedvlm.core.stats import mean, population_std, worst
from fedvlm.evaluation import metrics, rankings
from fedvlm.evaluation.label_rows import SPECIFICITY, mean_percent
from fedvlm.federation.discovery import code_digest, load_module, own_modules
from fedvlm.federation.server import Row

KEY = "TEST.METRICS"
SECTION = "named"  # of a record and of the results
TOP = 5
Judge = Callable[[np.ndarray, np.ndarray], float | None]


@dataclass(frozen=True)
class NamedMetric:
    """A metric of a run.

    Attributes:
        name: as asked for; of a user's function its own name.
        judge: ``(probabilities [n, C], labels) -> value``; None where there is no value.
        digest: SHA-256 of the user's file; empty for a built-in one.
    """

    name: str
    judge: Judge
    digest: str = ""


def _auroc(p: np.ndarray, y: np.ndarray) -> float | None:
    return mean_percent(rankings.auroc(_hot(p, y), p))


def _top(p: np.ndarray, y: np.ndarray) -> float:
    """Return how often the true class is among the ``TOP`` likeliest; of equals the first are."""
    best = np.argsort(-p, axis=1, kind="stable")[:, :TOP]
    return 100.0 * float((best == y[:, None]).any(1).mean())


def _sensitivity(p: np.ndarray, y: np.ndarray) -> float | None:
    return mean_percent(rankings.sensitivity_at(_hot(p, y)[:, 1:], p[:, 1:], SPECIFICITY))


#: name -> (what it is, how it is computed, the classes that it is defined for).
BUILT_IN: Mapping[str, tuple[str, Judge, Callable[[int], bool]]] = {
    "auroc": ("area under the ROC curve, each class against the others, mean over the classes",
              _auroc, lambda c: c > 1),
    "top5": ("true class among the five likeliest", _top, lambda c: c > TOP),
    "f1": ("mean over classes of F1", lambda p, y: metrics.macro_f1(y, p.argmax(1)),
           lambda c: True),
    "balanced": ("mean over classes of the recall",
                 lambda p, y: metrics.balanced_accuracy(y, p.argmax(1)), lambda c: True),
    "sensitivity": (f"of the second class, at {SPECIFICITY:.0%} specificity", _sensitivity,
                    lambda c: c == 2),
}
NEEDS = {"top5": f"more than {TOP} classes", "sensitivity": "exactly two classes",
         "auroc": "two classes"}
OF_SETS = ("auroc", "f1", "sensitivity")  # what a run on sets of labels has without being asked


def load_metrics(
    words: Sequence[str], classes: int, sets: bool, typed: bool
) -> list[NamedMetric]:
    """Return the metrics that ``TEST.METRICS`` names; files of users are run here.

    Args:
        classes: of the run.
        sets: whether an image has a set of labels: then ``OF_SETS`` add nothing.
        typed: the words were given on this command, not read from a file.

    Raises:
        ConfigError: an unknown name, one that is not defined for these classes, one named twice, or
            a file without this function.
    """
    found = [_one(str(word), classes, sets, typed) for word in words
             if not (sets and word in OF_SETS)]
    names = [metric.name for metric in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"{KEY}: two metrics are named {twice[0]}; ask for it once")
    return found


def _one(word: str, classes: int, sets: bool, typed: bool) -> NamedMetric:
    if ".py" in word:
        return _own(word, typed)
    if word not in BUILT_IN:
        raise ConfigError(
            f"{KEY}: there is no metric '{word}'{did_you_mean(word, BUILT_IN)}; known are "
            f"{', '.join(BUILT_IN)}, and a function of your own as ./file.py:function")
    if sets:
        raise ConfigError(
            f"{KEY} {word}: with sets of labels (DATASET.LABELS) a run always has mAP, AUROC, F1 "
            "and sensitivity; drop it, or name a function of your own as ./file.py:function")
    _, judge, defined = BUILT_IN[word]
    if not defined(classes):
        raise ConfigError(f"{KEY} {word} needs {NEEDS[word]}, and this run has {classes}; drop it")
    return NamedMetric(word, judge)


def _own(word: str, typed: bool) -> NamedMetric:
    file, _, name = word.rpartition(":")
    if not file or not name.isidentifier():
        raise ConfigError(f"{KEY} {word}: name a function of the file, as ./file.py:function")
    if not typed:
        raise ConfigError(
            f"{KEY} {word} stands in a config file, and a file never runs another one: give it on "
            f"the command, --metric {word}")
    path = user_path(file)
    if not path.is_file():
        raise ConfigError(f"{KEY} {word}: no file '{path}'")
    function = getattr(load_module(path, own_modules([path])), name, None)
    if not callable(function):
        raise ConfigError(f"{KEY} {word}: '{path}' has no function '{name}'")

    def judge(p: np.ndarray, y: np.ndarray) -> float:
        try:
            return float(function(p, y))
        except Exception as error:
            raise ConfigError(
                f"{KEY} {word} failed on {len(y)} test images of a client: {failure_text(error)}"
            ) from error

    return NamedMetric(name, judge, code_digest([path]))


def add_metrics(
    asked: Sequence[NamedMetric], rows: Sequence[Row], truths: Sequence[np.ndarray],
    logits: Sequence[np.ndarray],
) -> None:
    """Write each metric of each client into its row, as ``named.<number>``; None: no value.

    Args:
        truths: labels of each client's images ``[n]``, or sets of them ``[n, C]``.
        logits: ``[n, C]`` of the same.
    """
    for row, truth, z in zip(rows, truths, logits, strict=True):
        fine = len(truth) > 0 and bool(np.isfinite(z).all())
        scores = torch.from_numpy(np.asarray(z, dtype=np.float64))
        p = (scores.sigmoid() if truth.ndim == 2 else scores.softmax(-1)).numpy()
        for i, metric in enumerate(asked):
            value = metric.judge(p, truth) if fine else None
            row[f"{SECTION}.{i}"] = value if value is not None and math.isfinite(value) else None


def take_metrics(asked: Sequence[NamedMetric], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Take the metrics out of the clients' rows; return what they say together.

    Returns:
        For each ``name``, ``mean``, ``std`` and ``worst`` over the clients that have it,
        ``left_out`` (how many have not), ``clients`` (``client`` and ``value``), and of a user's
        function ``file_sha256``.
    """
    out = []
    for i, metric in enumerate(asked):
        taken = [(row["client"], row.pop(f"{SECTION}.{i}", None)) for row in rows]
        values = [value for _, value in taken]
        out.append({
            "name": metric.name, "mean": mean(values), "std": population_std(values),
            "worst": worst(values), "left_out": sum(value is None for value in values),
            "clients": [{"client": c, "value": value} for c, value in taken],
            **({"file_sha256": metric.digest} if metric.digest else {}),
        })
    return out


def metric_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note for each metric of the last round."""
    lines = []
    for one in found:
        value = "no value" if one["mean"] is None else f"{one['mean']:.4g}"
        there = len(one["clients"]) - one["left_out"]
        out = f"; {one['left_out']} left out, where it is not defined" if one["left_out"] else ""
        worst_ = "" if one["worst"] is None else f", lowest {one['worst']:.4g}"
        lines.append(f"metric {one['name']}: {value}, mean over {there} clients{worst_}{out}")
    return lines


def _hot(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.eye(p.shape[1], dtype=np.int64)[y]
