"""Compare a method with the baselines: which are better, and what to try next.

A method without communication is compared with the baselines without communication, every other
method with those of federations too. Bounds (``pooled``) are listed but not compared. Whether
federation paid is ``runs.verify.answer``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.core.stats import mean
from fedvlm.runs.verify.answer import (
    ALONE,
    BASELINES,
    COSTS,
    POOLED,
    TOGETHER,
    UNSHARED,
    measure_name,
    measure_word,
)
from fedvlm.runs.verify.beside import References, better

_BOUND = "bound"  # kind of a reference that is not compared (``evaluation.references``)
ROWS = {  # of the final table; zero-shot has its own, with more numbers
    "majority": "most frequent class",
    "zero_shot_local": "zero-shot, own classes",
    "zero_shot_prior": "zero-shot, class shares",
    "logreg": "logistic regression",
    "afl": "AFL (together)",
    "afl_prior": "AFL, class shares",
    "pooled": "pooled (bound)",
}
QUARTERS = 4  # parts of a run whose last two show whether accuracy still rises
MAD = 3.0  # times the loss of guessing: a learning rate that is far too high
RISE = 1.0  # points from one quarter to the next that call for more rounds
HEAD = ("--trainer", "FedAvg", "--peft", "head")
OWN_HEAD = ("--trainer", "LocalOnly", "--peft", "head")


def below(
    method: str, personal: float | None, found: References, kind: str
) -> list[dict[str, Any]]:
    """Return the references of a method's kind that are better than it, the best first.

    Args:
        method: its name.
        personal: its number after the last round; None: no client has test images.
        kind: ``alone`` or ``together``.

    Returns:
        ``reference``, ``kind``, ``personal`` of the reference, and a ``sentence``.
    """
    return [
        {"reference": name, "kind": found[name]["kind"], "personal": value, "sentence":
         f"{method} personal {measure_word(found[name])} {personal:.1f} is below "
         f"{BASELINES[name]} {value:.1f}"}
        for name, value in better(personal, found, kind)
    ]


def next_step(
    answer: Mapping[str, Any] | None, found: References, records: Sequence[Mapping[str, Any]],
    trainer: str, peft: str, rate: float,
) -> dict[str, Any] | None:
    """Return something cheap that would probably help, or None.

    Args:
        answer: of ``federation_answer``.
        found: the run's baselines.
        records: one per round, the untrained start first.
        trainer, peft: the method and what it trains.
        rate: its learning rate.

    Returns:
        ``reason`` in words and the ``flags`` that the same command takes.
    """
    if answer is None or answer["verdict"] == UNSHARED:
        return None
    personal, margin = answer[TOGETHER]["personal"], answer["margin"]
    one_round = float((found.get("afl") or {}).get("personal") or 0.0)
    alone = answer[ALONE]["personal"]
    goal = max(alone, one_round, (answer[POOLED] or {}).get("personal") or 0.0)
    sets = "measure" in answer  # of labels: another loss, and no AFL to run
    guess = 0.0 if sets else _guess_loss(found)
    loss = mean(_losses(records[-1])) if records else None
    if guess and loss is not None and loss > MAD * guess and answer["verdict"] == COSTS:
        return {
            "reason": f"the training loss {loss:.3g} is far above that of guessing, {guess:.2g}: "
                      "lower the learning rate",
            "flags": ["--lr", f"{rate / 10:g}"],
        }
    start = records[0].get("personal") if records else None
    if guess and loss is not None and loss > guess and start is not None \
            and personal < start - margin:
        return {
            "reason": f"training made the models worse than untrained ones ({start:.1f}), and the "
                      f"loss {loss:.3g} is above that of guessing, {guess:.2g}: lower the learning "
                      "rate",
            "flags": ["--lr", f"{rate / 10:g}"],
        }
    rise = last_rise(records)
    if rise >= RISE and goal > personal + margin:
        return {
            "reason": f"{measure_name(sets)} still rises ({rise:+.1f} points in the last quarter "
                      "of the rounds): train longer",
            "flags": ["--rounds", str(2 * (len(records) - 1))],
        }
    if answer["verdict"] == COSTS:
        return {"reason": "train a linear head at each client alone, or share fewer parts",
                "flags": list(OWN_HEAD)}
    if one_round > personal + margin:
        simple = peft != "head" or trainer != HEAD[1]
        if sets and not simple:
            return None
        return {
            "reason": f"a linear head on the same features reaches {one_round:.1f} in one round "
                      "of AFL: train a head",
            "flags": list(HEAD) if simple else ["--trainer", "AFL"],
        }
    return None


def _guess_loss(found: References) -> float:
    """Return the cross-entropy of a class drawn evenly, log C; 0 where it is not known."""
    share = float((found.get("chance") or {}).get("personal") or 0.0)
    return math.log(100.0 / share) if share else 0.0


def _losses(record: Mapping[str, Any]) -> list[float]:
    """Return the clients' training losses of a round."""
    return [float(value) for told in (record.get("train") or {}).values()
            for name, value in told.items() if name.rpartition("/")[2] == "loss"]


def last_rise(records: Sequence[Mapping[str, Any]]) -> float:
    """Return by how many points the mean personal accuracy rose from the third to the last quarter.

    0 with fewer than two evaluated rounds in a quarter: one round more or less says nothing.
    """
    values = [float(r["personal"]) for r in records[1:] if r.get("personal") is not None]
    size = len(values) // QUARTERS
    if size < 2:
        return 0.0
    late, before = mean(values[-size:]), mean(values[-2 * size:-size])
    return 0.0 if late is None or before is None else late - before


def table_rows(found: References) -> dict[str, dict[str, Any]]:
    """Return the rows of the final table, by label: bounds last."""
    ranked = sorted(found, key=lambda name: found[name]["kind"] == _BOUND)
    return {
        ROWS[name]: {k: v for k, v in found[name].items() if k.startswith("personal")}
        for name in ranked if name in ROWS
    }
