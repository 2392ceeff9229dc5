"""Whether federation paid in a run: each client alone, together, all images in one place.

One function computes the answer from a run's results, one writes it in words; the console,
``log.txt``, ``results.json``, the report page, ``fedvlm show`` and a model's card all show these.
Over seeds ``mean_answer`` is their mean: the console after ``--seeds`` and the page of several runs
show it. ``fedvlm verify`` computes a run's answer again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.core.spelling import quote_name
from fedvlm.core.stats import mean
from fedvlm.runs.bits import (
    GROUP,
    LAST,
    PAIRED,
    both_rows,
    client_margins,
    margin_between,
)

ANSWER, NEXT = "answer", "next"  # sections of the results
ALONE, TOGETHER, POOLED = "alone", "together", "pooled"
BASELINES = {  # of results["references"], in the words of every reader
    "chance": "chance",
    "majority": "most frequent class",
    "zero_shot": "zero-shot",
    "zero_shot_local": "zero-shot, own classes",
    "zero_shot_prior": "zero-shot, class shares",
    "logreg": "logistic regression",
    "logreg_names": "regression from class names",
    "afl": "federated ridge (AFL)",
    "afl_prior": "AFL + class shares",
    "pooled": "logistic regression, pooled",
}
# Who reaches it, in the words of every reader: screen, report, table, card of a model.
WHO = {ALONE: "each client alone", TOGETHER: "together", POOLED: "all images in one place"}
PAYS, COSTS, UNCLEAR, UNSHARED = "pays", "costs", "unclear", "unshared"
ACCURACY, MAP = "accuracy", "mAP"  # the number of a run; of a run on sets of labels
RECALL = "recall@1"  # of a run on captions: mean of both ways
_ACCURACY = re.compile(r"\b[Aa]ccurac(?:y|ies)\b")
LISTED = 5  # clients that are named
COMPARED = (  # sections made of baselines
    "references", PAIRED, "below", "gain", "hurt", ANSWER, NEXT)
BARE = "unlabelled"  # clients whose images have no label, which methods with labels refuse
UNCOVERED = "baselines on the private images would not be covered by the run's privacy guarantee"
HEAD = "afl"  # the baseline of a linear head made together
SAME = 0.05  # points: less is the same number in print
NO_MARGIN = 50.0  # points: a wider margin says nothing of a number between 0 and 100
AFL = "AFL"  # the method of the baseline HEAD
FEW_IMAGES = 30  # test images of a client, below which its number says little

Row = Mapping[str, Any]


def baseline_name(key: str) -> str:
    """Return a baseline in words, of a later version, too."""
    return BASELINES.get(key, key.replace("_", " "))


def goes_around(results: Mapping[str, Any]) -> bool:
    """Tell whether a run has a privacy guarantee, which baselines on its images go around.

    Then no reader shows ``COMPARED``, and each says ``UNCOVERED`` instead.
    """
    return "privacy" in results


def federation_answer(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the clients reach alone, together and with all images in one place.

    ``alone`` is the baseline without communication that is best on the same test images, so the
    comparison favours it. None where the run has no baselines, no test image, or a privacy
    guarantee, which baselines on the private images would go around.

    Args:
        results: the section ``results`` of ``results.json``, with ``last``, ``references`` and
            ``spent``.

    Returns:
        ``alone``, ``together``, ``pooled`` (None where it was not computed), each with
        ``personal`` and ``balanced`` accuracy in percent, ``alone`` with ``reference``;
        ``points`` and ``balanced_points`` (together less alone); ``margin``: half a 95 % interval
        of ``points``; ``paired``: what it pairs, image or group, absent where it is from the number
        of test images; ``worse``: clients that reach more alone; ``of``: clients with test images;
        ``verdict``: pays, costs, unclear or unshared. Of sets of labels the number is mAP,
        ``measure`` says so, and ``auroc`` stands beside ``personal``.
    """
    found, last = results.get("references"), results.get("last")
    if not isinstance(found, Mapping) or not isinstance(last, Mapping) or goes_around(results):
        return None
    name = best_alone(found)
    if last.get("personal") is None or not name or is_retrieval(last):
        return None
    alone = found[name]
    rows = both_rows(last.get("clients", ()), alone.get("clients", ()))
    worse = [mine["client"] for mine, own in rows if mine["accuracy"] < own["accuracy"]]
    points = float(last["personal"]) - float(alone["personal"])
    margin, paired = margin_between(results, LAST, name)
    pooled = found.get(POOLED)
    whole = pooled if pooled is not None and pooled["personal"] is not None else None
    mine, own = last.get("personal_balanced"), alone.get("personal_balanced")
    return {
        ALONE: _side(alone) | {"reference": name}, TOGETHER: _side(last),
        POOLED: None if whole is None else _side(whole), "points": points,
        "balanced_points": None if mine is None or own is None else mine - own,
        "margin": margin, "worse": worse, "of": len(rows),
        "verdict": _verdict(points, margin, sends_anything(results)),
    } | ({"measure": MAP} if "personal_auroc" in last else {}) | (
        {PAIRED: paired} if paired else {})


def answer_of(results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a run's answer; of an earlier version, which recorded none, from its baselines."""
    if goes_around(results):
        return None
    return results.get(ANSWER) or federation_answer(results)


def mean_answer(several: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the mean of the answers of runs that differ in their seeds; None if one has none.

    Args:
        several: the section ``results`` of each run.

    Returns:
        As ``federation_answer``, with ``worse`` (how many clients reach more alone) and ``of`` by
        run, and without ``margin``. ``verdict`` is unshared where that is a run's, else empty.
    """
    found = [answer for one in several if (answer := answer_of(one)) is not None]
    if not found or len(found) < len(several):
        return None
    names = {one[ALONE]["reference"] for one in found}
    sides = {name: _mean_side([one[name] for one in found]) for name in WHO}
    sides[ALONE] = {**(sides[ALONE] or {}),
                    "reference": names.pop() if len(names) == 1 else "the best of each seed"}
    return {
        **sides, "points": mean(one["points"] for one in found),
        "balanced_points": _mean_known([one["balanced_points"] for one in found]),
        "worse": [len(one["worse"]) for one in found], "of": [one["of"] for one in found],
        "verdict": UNSHARED if any(one["verdict"] == UNSHARED for one in found) else "",
    } | ({"measure": found[0]["measure"]} if "measure" in found[0] else {})


def _mean_side(several: Sequence[Row | None]) -> dict[str, Any] | None:
    known = [one for one in several if one is not None]
    if len(known) < len(several):
        return None
    return {key: _mean_known([one.get(key) for one in known])
            for key in ("personal", "balanced", "auroc") if key in known[0]}


def _mean_known(values: Sequence[float | None]) -> float | None:
    return None if None in values else mean(values)


def best_alone(found: Mapping[str, Row]) -> str:
    """Return the baseline without communication that is best on the test images; '' of none."""
    alone = {n: float(one["personal"]) for n, one in found.items()
             if one["kind"] == ALONE and one["personal"] is not None}
    return max(alone, key=lambda n: alone[n], default="")


def measure_name(sets: bool) -> str:
    """Return what the one number of a run is: accuracy, or of sets of labels mAP."""
    return MAP if sets else ACCURACY


def measure_of(cfg: Any) -> str:
    """Return what the one number of a run of a config is; of captions recall at 1."""
    return RECALL if cfg.DATASET.CAPTIONS else measure_name(bool(cfg.DATASET.LABELS))


def measure_word(row: Mapping[str, Any]) -> str:
    """Return what the one number of a run, a client or a reference is, by the numbers beside it."""
    if is_retrieval(row):
        return RECALL
    return measure_name("personal_auroc" in row or "auroc" in row)


def is_retrieval(row: Mapping[str, Any]) -> bool:
    """Return whether numbers of a run, a client or a reference are of captions."""
    return "personal_i2t_r1" in row or "i2t_r1" in row


def in_measure(words: str, measure: str) -> str:
    """Return a sentence about accuracy as one about another measure; nothing else changes."""
    return words if measure == ACCURACY else _ACCURACY.sub(measure, words)


def answer_table(answer: Mapping[str, Any], method: str) -> list[tuple[str, str, str]]:
    """Return three rows in percent: who, and as ``answer_columns`` names them."""
    whose = {
        ALONE: f"{WHO[ALONE]} ({baseline_name(answer[ALONE]['reference'])})",
        TOGETHER: f"{WHO[TOGETHER]} ({method})" if answer["verdict"] != UNSHARED else
                  f"{method}, which shares nothing",
        POOLED: f"{WHO[POOLED]} (pooled)",
    }
    return [
        (words, _percent((answer[side] or {}).get("personal")),
         _percent((answer[side] or {}).get("auroc" if "measure" in answer else "balanced")))
        for side, words in whose.items()
    ]


def has_baselines(results: Mapping[str, Any]) -> bool:
    """Return whether results have baselines, and these what an answer is made of."""
    found = results.get("references")
    return bool(found) and isinstance(found, Mapping) and isinstance(
        results.get(LAST), Mapping) and all(
        isinstance(one, Mapping) and {"kind", "personal", "clients"} <= one.keys()
        for one in found.values())


def paid_counts(several: Sequence[Mapping[str, Any]]) -> str:
    """Return in how many runs federation pays, in words; '' if none has an answer, or sends.

    Args:
        several: the section ``results`` of each run.
    """
    found = [answer["verdict"] for one in several if (answer := answer_of(one)) is not None]
    if UNSHARED in found or not found:
        return ""
    pays, costs, bare = found.count(PAYS), found.count(COSTS), len(several) - len(found)
    return (f"federation pays in {pays} of {len(found)}, is worse than alone in {costs}, test "
            f"images cannot tell in {len(found) - pays - costs}"
            + (f"; {bare} without an answer" if bare else ""))


def answer_columns(answer: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the names of the columns of ``answer_table``."""
    if "measure" in answer:
        return f"{answer['measure']} (%)", "personal", "AUROC"
    return "accuracy (%)", "personal", "class-balanced"


def answer_facts(results: Mapping[str, Any], method: str) -> list[str]:
    """Return the rows of ``answer_table`` as sentences, for a model's card; none of no answer."""
    answer = answer_of(results)
    if answer is None:
        return []
    name, first, second = answer_columns(answer)
    return [f"{who}, {name}: {first} {mine}, {second} {even}"
            for who, mine, even in answer_table(answer, method)]


def client_numbers(results: Mapping[str, Any], method: str, client: int) -> list[str]:
    """Return what a client reaches alone and in this run, and whether its images are few."""
    answer, last = answer_of(results), results[LAST]
    alone = results["references"][answer[ALONE]["reference"]] if answer else {}
    pairs = both_rows(last.get("clients", ()), alone.get("clients", ()))
    for mine, own in pairs:
        if answer is None or mine["client"] != client:
            continue
        here, there, n = float(mine["accuracy"]), float(own["accuracy"]), int(mine["n"])
        end = "" if client not in answer["worse"] or answer["verdict"] == UNSHARED else (
            ": it does better alone" if client in worse_clearly(results) else
            f": it {_more_alone(mine, own)} alone in this run ({_image_words(n)}: cannot tell)")
        few = [f"{_image_words(n)} of this client are few: its numbers say little"
               ] if n < FEW_IMAGES else []
        return [f"this client, {measure_word(last)} (%): alone "
                f"({baseline_name(answer[ALONE]['reference'])}) {there:.1f}, with {method} "
                f"{here:.1f}{end}", *few]
    return []


def alone_by_client(results: Mapping[str, Any]) -> tuple[str, dict[int, float]]:
    """Return the answer's baseline alone in words, and what each client reaches by it."""
    answer = answer_of(results)
    if answer is None:
        return "", {}
    name = answer[ALONE]["reference"]
    return baseline_name(name), {
        int(row["client"]): float(row["accuracy"])
        for row in results["references"][name]["clients"] if row["accuracy"] is not None}


def _more_alone(mine: Row, own: Row) -> str:
    """Return in words by how much a client does better; of sets of labels only that it does."""
    more = own.get("correct", 0) - mine.get("correct", 0)
    return f"had {more:g} more right" if more > 0 and measure_word(mine) == ACCURACY else (
        "reached more")


def worse_clearly(results: Mapping[str, Any]) -> list[int]:
    """Return the clients that do better alone by more than the margin of their own test images."""
    answer = answer_of(results)
    if answer is None:
        return []
    name = answer[ALONE]["reference"]
    pairs = both_rows(results[LAST].get("clients", ()), results["references"][name]["clients"])
    margins = client_margins(results, LAST, name)
    return [a["client"] for a, b in pairs
            if float(b["accuracy"]) - float(a["accuracy"]) > margins[a["client"]]]


def head_together(results: Mapping[str, Any], name: str = HEAD) -> dict[str, Any] | None:
    """Return what a linear head made together in one round reaches, beside the best alone.

    That is the baseline AFL. The best alone is a baseline, or a run that shares nothing.

    Args:
        results: as ``federation_answer`` takes them.
        name: another baseline, of which the same is asked.

    Returns:
        ``personal`` in percent; ``points`` above the best alone; ``verdict``: pays, costs or
        unclear, by the 95 % margin of ``points``. None where it was not computed.
    """
    answer = answer_of(results)
    found = results.get("references") or {}
    head = found.get(name)
    if answer is None or not head or head["personal"] is None:
        return None
    best, own, last = answer[ALONE]["reference"], answer[ALONE], results[LAST]
    if answer["verdict"] == UNSHARED and float(last["personal"]) > float(own["personal"]):
        best, own = LAST, last
    points = float(head["personal"]) - float(own["personal"])
    margin, _ = margin_between(results, name, best)
    return {"personal": float(head["personal"]), "points": points,
            "verdict": _verdict(points, margin, shares=True)}


def answer_sentences(
    results: Mapping[str, Any], method: str, command: bool = True
) -> list[str]:
    """Return whether federation paid, by how much, for how many clients it did not; what to try.

    Where the run does not show that it pays, a second sentence says what a linear head made
    together in one round reaches; none where there is one client only. Where there is no answer,
    one sentence says why.

    Args:
        results: as ``federation_answer`` takes them.
        method: its name in words.
        command: also what to try next, with the flags that the run's command then has.
    """
    answer = answer_of(results)
    if answer is None:
        return [f"Whether federation pays is not known: {_reason(results)}."]
    told = [_paid(answer, method, image_count(results), worse_clearly(results))]
    head = head_together(results) if answer["verdict"] != PAYS and answer["of"] > 1 \
        and method.split()[0] != AFL else None
    if head is not None and abs(head["personal"] - answer[TOGETHER]["personal"]) >= SAME:
        end = {PAYS: "federation can pay here", COSTS: _lost(answer, results.get(NEXT)),
               UNCLEAR: "too few test images to tell"}[head["verdict"]]
        how = "in closed form" if "measure" in answer else "in one round" + (
            "" if results.get(BARE) else " (--trainer AFL)")
        told.append(f"a linear head made together {how} reaches "
                    f"{head['personal']:.1f}, {head['points']:+.1f} points against the best "
                    f"alone: {end}")
    step = results.get(NEXT) if command else None
    if step is not None:
        flags = f" ({' '.join(step['flags'])})" if step["flags"] else ""
        told.append(f"next: {step['reason']}{flags}")
    return [f"{text if text.startswith(method) else _capital(text)}." for text in told]


def _lost(answer: Mapping[str, Any], step: Mapping[str, Any] | None) -> str:
    """Return what follows where a head made together loses: of federation only what others show.

    Where the run's own method is no worse than alone, all images in one place reach more, or the
    next step shares, too, it is the ridge regression that loses.
    """
    pooled, alone = (answer[POOLED] or {}).get("personal"), float(answer[ALONE]["personal"])
    again = step is not None and not {"LocalOnly", "ZeroShot"} & set(step["flags"])
    if answer["verdict"] == UNCLEAR or again or (pooled is not None and float(pooled) > alone):
        return "such a head does not pay here"
    return "federation does not pay here"


def _paid(answer: Mapping[str, Any], method: str, count: str, clearly: Sequence[int]) -> str:
    points, margin, verdict = answer["points"], answer["margin"], answer["verdict"]
    if verdict == UNSHARED:
        return ("the clients shared nothing in this run, so it does not show whether federation "
                "pays")
    of, what = (f" of {answer['measure']}", "labels") if "measure" in answer else ("", "images")
    paired = answer.get(PAIRED)
    how = f"from the number of test {what}" if paired is None else (
        "paired by group of test images" if paired == GROUP else "paired by test image")
    even = answer["balanced_points"]
    beside = "" if even is None else f", class-balanced {even:+.1f}"
    worse = worse_words(answer, clearly)
    if verdict == UNCLEAR:
        seen = f"is {abs(points):.1f} points{of} {'lower' if points < 0 else 'higher'}" \
            if abs(points) >= SAME else "reaches the same"
        least = f"a difference below {margin:.1f} points" if margin < NO_MARGIN else "a difference"
        return (f"{count} cannot tell whether {method} is better than the clients alone: in this "
                f"run it {seen}{beside}; they cannot show "
                f"{least} (95 % margin, {how}); {worse}")
    start = {
        PAYS: f"federation pays here with {method}",
        COSTS: f"{method} does not reach what the clients reach alone",
    }[verdict]
    return f"{start}: {points:+.1f} points{of} (95 % margin {margin:.1f}, {how}){beside}; {worse}"


def image_count(results: Mapping[str, Any]) -> str:
    """Return how many test images the clients have that an answer is about."""
    return _image_words(sum(int(row["n"]) for row in results[LAST].get("clients", ())
                            if row["accuracy"] is not None))


def _image_words(n: int) -> str:
    return f"{n:,} test image{'' if n == 1 else 's'}"


def answer_lines(results: Mapping[str, Any], method: str) -> list[str]:
    """Return a run's answer as lines of text: a table of three rows, then ``answer_sentences``."""
    answer, told = answer_of(results), answer_sentences(results, method)
    return told if answer is None else [*_table_lines(answer, method), *told]


def seeds_lines(several: Sequence[Mapping[str, Any]], method: str) -> list[str]:
    """Return the mean answer over seeds in lines of text; none where a seed has no answer."""
    answer = mean_answer(several)
    return [] if answer is None else [*_table_lines(answer, method), *seeds_sentences(several)]


def seeds_sentences(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how the mean answer over seeds is made, and in how many runs federation pays."""
    answer = mean_answer(several)
    if answer is None:
        return []
    over = f"Means over {len(several)} seeds"
    if answer["verdict"] == UNSHARED:
        return [f"{over}. The clients shared nothing in these runs, so they do not show whether "
                "federation pays."]
    even = answer["balanced_points"]
    beside = "" if even is None else f", class-balanced {even:+.1f}"
    each = ", ".join(map(str, answer["worse"]))
    return [f"{over}: {answer['points']:+.1f} points against the best alone{beside}; "
            f"{worse_count(answer)} clients reached more alone (by seed: {each}).",
            f"Seed by seed, {paid_counts(several)}."]


def worse_count(answer: Mapping[str, Any]) -> str:
    """Return how many clients reach more alone, of how many: the means of a mean answer."""
    worse, of = (round(mean(answer[key]) or 0.0, 1) for key in ("worse", "of"))
    return f"{worse:g} of {of:g}"


def _table_lines(answer: Mapping[str, Any], method: str) -> list[str]:
    """Return ``answer_table`` as lines of text below its head."""
    rows = answer_table(answer, method)
    wide = max(len(row[0]) for row in rows)
    name, first, second = answer_columns(answer)
    return [f"{who:<{wide}}  {mine:>8}  {even:>14}" for who, mine, even in (
        (name, first, second), *rows)]


def worse_names(results: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return one line with the names of the clients that ``answer_sentences`` lists by number.

    Empty where it lists none, or where the data do not name clients. For a screen only: names of
    clients are personal data, so no file of a run but ``private.json`` has them.
    """
    answer = results.get(ANSWER)
    if not names or not answer or answer["verdict"] == UNSHARED:
        return []
    listed = [k for some in _by_clearness(answer["worse"], worse_clearly(results))
              if len(some) < answer["of"] for k in some[:LISTED]]
    if not listed:
        return []
    word = "client" if len(listed) == 1 else "clients"
    return [f"{word} {', '.join(map(str, listed))} by name: "
            f"{', '.join(quote_name(names[k]) for k in listed)}"]


def _reason(results: Mapping[str, Any]) -> str:
    """Return why a run has no answer."""
    last = results.get("last") or {}
    if is_retrieval(last):
        value, unknown = f"{_percent(last.get('personal'))} {RECALL}", "not known"
        sends = sends_anything(results)
        alone, together = (unknown, value) if sends else (value, unknown)
        lacks = "LocalOnly gives each client alone" if sends else "FedAvg gives together"
        return (f"{WHO[ALONE]}: {alone}, {WHO[TOGETHER]}: {together}, {WHO[POOLED]}: "
                f"{unknown}; no baseline is trained on captions (the same command with --trainer "
                f"{lacks})")
    if goes_around(results):
        return UNCOVERED
    if not isinstance(results.get("references"), Mapping):
        return ("no baselines were computed (TEST.REFERENCES is off, or the images are at sites "
                "whose site.yaml does not allow baselines)")
    return "no client has test images"


def worse_words(answer: Mapping[str, Any], clearly: Sequence[int]) -> str:
    """Return how many clients do better alone, and how many only reached more in this run.

    Args:
        clearly: see ``worse_clearly``.
    """
    of = answer["of"]
    if of == 1:
        return "there is one client only"
    sure, rest = _by_clearness(answer["worse"], clearly)
    verb = "does" if len(sure) == 1 else "do"
    told = [f"{len(sure)} of {of} clients {verb} better alone{_listed(sure, of)}"] if sure else []
    if rest:
        start = f"{len(rest)} of {of} clients" if not sure else (
            f"{len(rest)} other{'' if len(rest) == 1 else 's'}")
        told.append(f"{start} reached more alone in this run{_listed(rest, of)}, "
                    f"{'not' if len(rest) == 1 else 'none of them'} clearly")
    return ", ".join(told) or f"none of {of} clients does better alone"


def _by_clearness(worse: Sequence[int], clearly: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the clients that do better alone, and those of whom their test images cannot tell."""
    return [k for k in worse if k in clearly], [k for k in worse if k not in clearly]


def _listed(clients: Sequence[int], of: int) -> str:
    """Return clients by number, where they are not all."""
    if len(clients) == of:
        return ""
    names = ", ".join(map(str, clients[:LISTED])) + (", ..." if len(clients) > LISTED else "")
    return f" (client{'' if len(clients) == 1 else 's'} {names})"


def _side(one: Row) -> dict[str, Any]:
    beside = {"auroc": one["personal_auroc"]} if "personal_auroc" in one else {}
    return {"personal": one["personal"], "balanced": one.get("personal_balanced")} | beside


def sends_anything(results: Mapping[str, Any]) -> bool:
    """Return whether the clients of a run sent or received anything; if unknown, they did."""
    spent = results.get("spent")
    return not isinstance(spent, Mapping) or bool(spent["bytes_up"] or spent["bytes_down"])


def _verdict(points: float, margin: float, shares: bool) -> str:
    if not shares:
        return UNSHARED
    return UNCLEAR if abs(points) <= margin else PAYS if points > 0 else COSTS


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
