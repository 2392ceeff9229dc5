"""Compare a method with the baselines: which are better, and what to try next.

A method without communication is compared with the baselines without communication, every other
method with those of federations too. Bounds (``pooled``) are listed but not compared. Whether
federation paid is ``runs.verify.answer``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fedvlm.config.federation import HEAD_RATE
from fedvlm.core.stats import mean
from fedvlm.runs.verify.answer import (
    ALONE,
    ANSWER,
    BARE,
    BASELINES,
    COSTS,
    PAYS,
    POOLED,
    TOGETHER,
    UNCLEAR,
    UNSHARED,
    baseline_name,
    goes_around,
    head_together,
    image_count,
    measure_name,
    measure_word,
)
from fedvlm.runs.verify.beside import TUNED, References, better, hurt
from fedvlm.runs.verify.meaning import meaning_words

_BOUND = "bound"  # kind of a reference that is not compared (``evaluation.references``)
NO_ROW = ("chance", "zero_shot")  # of the final table: zero-shot has its own, with more numbers
EARLIER = {  # labels in final tables that earlier versions recorded
    "commonest class": "majority", "AFL (together)": "afl", "AFL, class shares": "afl_prior",
    "logistic, class names": "logreg_names", "pooled (bound)": "pooled",
}
QUARTERS = 4  # parts of a run whose last two show whether accuracy still rises
MAD = 3.0  # times the loss of guessing: a learning rate that is far too high
RISE = 1.0  # points that are worth another command; from one quarter to the next, more rounds
LATE, SWING = 10, 3.0  # rounds that are looked at; points up or down in each, on average
LOWER = 5.0  # by which a rate is divided under which accuracy swings
FEW, ENOUGH = 2 * QUARTERS, 20  # rounds: fewer than FEW have no trend; what a run at least needs
SOON = 2  # rounds after which a high loss may still fall
AFL = ("--trainer", "AFL", "--rounds", "1")
SHARES = ("--trainer", "AFL", "--rounds", "2", "--tag", "shares", "TRAINER.AFL.SHARES", "True")
HEAD = ("--trainer", "FedAvg", "--peft", "head")
OWN_AND_SHARED = ("--trainer", "Ditto", "--peft", "head")
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
         f"{baseline_name(name)} {value:.1f}"}
        for name, value in better(personal, found, kind)
    ]


def next_step(
    numbers: Mapping[str, Any], records: Sequence[Mapping[str, Any]], trainer: str, peft: str,
    rate: float, longer: bool = True, sgd: bool = True, shared: Sequence[str] = (),
) -> dict[str, Any] | None:
    """Return something cheap that would probably help, or None.

    A point is enough, but a step to sharing that is within the margin is worded as a trial where
    the run does not show that federation pays. First class names that seem to mean different
    things, then what makes training wrong (the learning rate), then too few rounds, then a simpler
    model that the run's baselines have measured; that model comes before more rounds where these
    are ``_too_few_still``. No rate and no rounds bring a model above what all images in one place
    reach. What goes on under the same method gets a tag: its folder holds this run.

    Args:
        numbers: of the run: ``answer`` (of ``federation_answer``), ``references``, ``spent``.
        records: one per round, the untrained start first.
        trainer, peft: the method and what it trains.
        rate: its learning rate.
        longer: more rounds can be asked for; the run was not stopped by a rule of its own.
        sgd: its optimiser is SGD, for which ``HEAD_RATE`` is meant.
        shared: class names that clients share (``meaning.shared_classes``).

    Returns:
        ``reason`` in words and the ``flags`` that the same command takes; none where it is
        something else that has to be done.
    """
    answer, found, more = numbers[ANSWER], numbers["references"], None
    if answer is None:
        return None
    if unlike := _unlike_names(numbers, shared):
        return {"reason": unlike, "flags": []}
    personal, head = float(answer[TOGETHER]["personal"]), head_together(numbers)
    goal = float(answer[POOLED]["personal"]) if answer[POOLED] else max(
        float(answer[ALONE]["personal"]), head["personal"] if head else 0.0)
    if answer["verdict"] != UNSHARED:
        slower, times = _too_fast(answer, found, records), 10.0
        if not slower and numbers["spent"]["local_steps"] and goal >= personal + RISE:
            slower, times = _swings(records, measure_name("measure" in answer)), LOWER
        if slower:
            lower = f"{rate / times:g}"
            return {"reason": f"{slower}: lower the learning rate",
                    "flags": ["--lr", lower, "--tag", f"lr-{lower}"]}
        rising = _rise(records, measure_name("measure" in answer)) if longer else ""
        if rising and numbers["spent"]["local_steps"] and goal >= personal + RISE:
            rounds = max(ENOUGH, 2 * (len(records) - 1))
            more = {"reason": f"{rising}: train longer",
                    "flags": ["--rounds", str(rounds), "--tag", f"rounds-{rounds}"]}
            if not _too_few_still(numbers, records, rounds):
                return more
    if numbers.get(BARE):  # other methods refuse such clients
        return more
    return _simpler(numbers, records, trainer, peft, rate if sgd else math.inf) or more


def _unlike_names(numbers: Mapping[str, Any], shared: Sequence[str]) -> str:
    """Return ``meaning_words`` of a run."""
    found, whole = numbers["references"], head_together(numbers, POOLED)
    chance = float((found.get("chance") or {}).get("personal") or 0.0)
    return "" if whole is None else meaning_words(
        whole["personal"] - whole["points"], whole["personal"], chance, shared,
        whole["verdict"] == COSTS)


def _too_few_still(
    numbers: Mapping[str, Any], records: Sequence[Mapping[str, Any]], rounds: int
) -> bool:
    """Return whether every client does better alone, and so many rounds would not change that.

    That is where the gap is more than the last quarter's pace (of a short run: that since the
    start), kept up to the end, would bring; accuracy slows down, so it would bring less.
    """
    answer, done = numbers[ANSWER], len(records) - 1
    worse = hurt(numbers["last"]["clients"], numbers["references"], answer[ALONE]["reference"])
    if not done or worse is None or len(worse["clients"]) < worse["of"]:
        return False
    pace = last_rise(records) * QUARTERS / done if done >= FEW else (
        float(records[-1]["personal"]) - float(records[0]["personal"])) / done
    gap = float(answer[ALONE]["personal"]) - float(answer[TOGETHER]["personal"])
    return gap > pace * (rounds - done)


def _simpler(
    numbers: Mapping[str, Any], records: Sequence[Mapping[str, Any]], trainer: str, peft: str,
    rate: float,
) -> dict[str, Any] | None:
    """Return a simpler model that would probably be better, by the run's baselines, or None."""
    answer, found, head = numbers[ANSWER], numbers["references"], head_together(numbers)
    personal, alone = float(answer[TOGETHER]["personal"]), answer[ALONE]
    pooled = float((answer[POOLED] or {}).get("personal") or 0.0)
    sets = "measure" in answer
    is_head = (trainer, peft) == (HEAD[1], HEAD[3])
    unclear = answer["verdict"] == UNCLEAR
    shares = 0.0 if sets else float((found.get("afl_prior") or {}).get("personal") or 0.0)
    if answer["of"] > 1 and shares > float(alone["personal"]) \
            and shares >= max(personal, head["personal"] if head else 0.0) + RISE:
        return _sharing(
            numbers, "afl_prior", "train a linear head together and add each client's class "
            f"shares: two rounds of AFL with SHARES reach {shares:.1f}", SHARES)
    if head and trainer != AFL[1] and head["points"] > 0 \
            and head["personal"] >= personal + RISE and not (sets and is_head):
        if sets:  # AFL needs one class for each image
            return _sharing(numbers, "afl", "train a linear head together", HEAD)
        return _sharing(numbers, "afl", "train a linear head together: in one round (AFL) it "
                        f"reaches {head['personal']:.1f}", AFL)
    below = unclear and trainer != AFL[1] and float(alone["personal"]) >= personal + RISE
    unknown = answer["verdict"] == COSTS and head is None  # at sites; what one place reaches is
    if (below or unknown and pooled >= float(alone["personal"]) + RISE) \
            and alone["reference"] in TUNED and trainer != OWN_AND_SHARED[1] \
            and pooled >= personal + RISE:
        return _sharing(
            numbers, POOLED, f"heads of the clients alone reach {alone['personal']:.1f}, one on "
            f"all images in one place {pooled:.1f}: train personal heads beside a shared one",
            _of_head(OWN_AND_SHARED, rate, records, sets))
    if answer["verdict"] == COSTS or below:
        if alone["reference"] == "zero_shot":
            return {"reason": "the untrained model is better: use it as it is, or share fewer "
                              "parts", "flags": ["--trainer", "ZeroShot"]}
        own = max(float((found.get(name) or {}).get("personal") or 0.0) for name in TUNED)
        return None if own < personal + RISE else {
            "reason": "train a linear head at each client alone, or share fewer parts",
            "flags": _of_head(OWN_HEAD, rate, records, sets)}
    if trainer == AFL[1] and pooled >= personal + RISE:
        return _sharing(
            numbers, POOLED, f"a linear head on all images in one place reaches {pooled:.1f}, and "
            "FedAvg of a head can come near that",
            _of_head(HEAD, rate if rate == math.inf else 0.0, records))
    return None


def _sharing(
    numbers: Mapping[str, Any], name: str, reason: str, flags: Sequence[str]
) -> dict[str, Any]:
    """Return a step to sharing: a trial where neither the run nor a baseline shows that it pays.

    Args:
        name: the baseline that speaks for it.
    """
    shown = head_together(numbers, name) or {}
    if PAYS not in (numbers[ANSWER]["verdict"], shown.get("verdict")):
        reason = f"it may be worth a try ({image_count(numbers)} cannot tell): {reason}"
    return {"reason": reason, "flags": list(flags)}


def _of_head(
    flags: Sequence[str], rate: float, records: Sequence[Mapping[str, Any]], sets: bool = False
) -> list[str]:
    """Return the flags of a method of linear heads, with a rate and rounds that suffice for it.

    The same command keeps its own (``job.request.next_command``), unless it is that of prompts. On
    600 EuroSAT images at ten clients, ten rounds of Ditto reach 50.2 % with 0.005, and 80.0 % with
    ``HEAD_RATE``.
    """
    low = rate < HEAD_RATE and not sets  # of sets of labels the loss is another
    few = len(records) - 1 < FEW
    return [*flags, *(("--lr", f"{HEAD_RATE:g}") if low else ()),
            *(("--rounds", str(ENOUGH)) if few else ())]


def _too_fast(
    answer: Mapping[str, Any], found: References, records: Sequence[Mapping[str, Any]]
) -> str:
    """Return in words why the learning rate looks too high; empty where it does not.

    The first ``SOON`` rounds are too few to say it, unless the loss rises in them.
    """
    told = [loss for one in records[1:] if (loss := mean(_losses(one))) is not None]
    if len(records) - 1 <= SOON and not (len(told) > 1 and told[-1] > told[0]):
        return ""
    guess = 0.0 if "measure" in answer else _guess_loss(found)  # sets of labels: another loss
    loss = mean(_losses(records[-1])) if records else None
    if not guess or loss is None:
        return ""
    if loss > MAD * guess and answer["verdict"] == COSTS:
        return f"the training loss {loss:.3g} is far above that of guessing, {guess:.2g}"
    start = records[0].get("personal")
    if loss > guess and start is not None \
            and answer[TOGETHER]["personal"] < start - answer["margin"]:
        return (f"training made the models worse than untrained ones ({start:.1f}), and the loss "
                f"{loss:.3g} is above that of guessing, {guess:.2g}")
    return ""


def _swings(records: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Return in words that accuracy goes up and down in the last rounds; empty where it does not.

    So it is under a rate that is too high: training loss and accuracy turn again and again, and
    where the run ends is chance. Rounds of changing clients differ for another reason.
    """
    late = records[1:][-LATE - 1:]
    if len(late) < FEW or len({tuple(one.get("participants", ())) for one in late}) > 1:
        return ""
    values = [float(one["personal"]) for one in late if one.get("personal") is not None]
    losses = [x for x in (mean(_losses(one)) for one in late) if x is not None]
    accuracy, loss = ([b - a for a, b in pairwise(some)] for some in (values, losses))
    size = mean(map(abs, accuracy)) or 0.0
    turns = sum(a * b < 0 for a, b in pairwise(accuracy))
    if size < SWING or abs(math.fsum(accuracy)) > size * len(accuracy) / 2 \
            or 2 * turns < len(accuracy) or 3 * sum(x > 0 for x in loss) < len(loss):
        return ""
    return (f"{measure} goes up and down by {size:.1f} points a round, so where it ends is "
            "chance")


def _rise(records: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Return in words that accuracy still rises; empty where it does not.

    Of fewer than ``FEW`` rounds, which have no trend, it is enough to be above the start.
    """
    rise, rounds = last_rise(records), len(records) - 1
    if rise >= RISE:
        return f"{measure} still rises ({rise:+.1f} points in the last quarter of the rounds)"
    start, end = (one.get("personal") for one in (records[0], records[-1]))
    if rounds >= FEW or start is None or end is None or end < start + RISE:
        return ""
    return (f"{rounds} round{'s are' if rounds > 1 else ' is'} few, and {measure} has risen by "
            f"{end - start:.1f} points since the untrained start")


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
        baseline_name(name): {k: v for k, v in found[name].items() if k.startswith("personal")}
        for name in ranked if name not in NO_ROW
    }


def told_table(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a recorded final table in today's words.

    Baselines that go around a guarantee are left out.
    """
    rows = [{**r, "": baseline_name(EARLIER[r[""]])} if r[""] in EARLIER else r
            for r in results["table"]]
    return [r for r in rows if r[""] not in BASELINES.values()] if goes_around(results) else rows
