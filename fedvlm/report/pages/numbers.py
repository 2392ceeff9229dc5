"""A run's numbers on its page: what to know first, the headline, all numbers, work and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.core.stats import mean
from fedvlm.report.collect import as_float
from fedvlm.report.figures.selection import FigureRuns, RunGroup, titles
from fedvlm.report.pages.grid import row_of, table
from fedvlm.report.pages.html import (
    Content,
    Html,
    cell,
    decimal,
    element,
    fact_list,
    items,
    join_content,
    signed_text,
)
from fedvlm.report.tables.caption import NOT_COMPARABLE
from fedvlm.report.tables.metrics import DEFINED, metric
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.identity import LABELS
from fedvlm.runs.metrics import repeats_personal
from fedvlm.runs.verify.answer import (
    ALONE,
    COSTS,
    PAYS,
    POOLED,
    TOGETHER,
    UNSHARED,
    WHO,
    answer_columns,
    answer_of,
    answer_sentences,
    answer_table,
    baseline_name,
    in_measure,
    mean_answer,
    measure_word,
    seeds_sentences,
    worse_count,
)

# Of a run's notes: those without which its numbers mislead.
DOUBTS = (NOT_COMPARABLE, "have the same bytes as a training image",
          "hold nearly the same images", "look nearly the same as a training image")
FEW = 30  # rows of a table that is shown whole
HEADLINE = (
    "personal", "global", "base_all", "new", "hm2", "hm3", "cm", "unseen", "unseen_personal",
    "targets", "personal_before_ft", "personal_worst", "unseen_clients",
)
SETTINGS = {
    "personal": "all classes are trained on by some client",
    "base2new": "base classes are trained, new classes only tested",
    "leave_one_domain_out": "one domain is held by no client",
    "transfer": "other data sets are tested with their own class names",
}


def caveats(run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a reader has to know before any number."""
    said = run.protocol
    notes = [note for note in run.notes() if any(words in note for words in DOUBTS)]
    if said.get("extra_data"):
        notes.append(f"The method uses extra data: {said['extra_data']}.")
    if said.get("privacy"):
        notes.append(f"Privacy: {said['privacy']}.")
    if said.get("subsample") not in ("", "all", None) and said.get("setting") == "personal":
        notes.append(f"Only the {said['subsample']} classes of the data set are used.")
    dropped = sorted({str(c) for r in records for c in (r.get("dropped") or {})},
                     key=lambda c: (int(c), "") if c.isdigit() else (-1, c))
    if dropped:
        notes.append(f"Clients whose update was dropped in some round: {', '.join(dropped)}.")
    git = run.info.get("git")
    if isinstance(git, Mapping) and git.get("changed"):
        notes.append("The code had uncommitted changes; the revision alone does not reproduce "
                     "these numbers.")
    return notes


def box(caveats: Sequence[Content]) -> Html:
    """Return caveats in a box that stands out; nothing without any."""
    if not caveats:
        return Html("")
    return element("aside", element("strong", "Before you read the numbers"), items(caveats),
                   class_="caveats", aria_label="Caveats")


def introduction(run: FinishedRun) -> Html:
    """Return what the run is, in a few facts."""
    said = run.protocol
    shots = said.get("shots")
    setting = str(said.get("setting", ""))
    what = f"{setting}: {SETTINGS[setting]}" if setting in SETTINGS else setting
    return fact_list({
        "setting": what, "data set": said.get("dataset"),
        "shots per class": "all images" if shots == -1 else shots,
        "partition": said.get("partition"), "domain held out": said.get("held_out"),
        "images per class of the server only": said.get("server_holdout") or None,
        "clients that never work": said.get("unseen_clients") or None,
        "evaluated on a cohort of": said.get("cohort") or None,
        "the server trains on": said.get("proxy"),
        "targets": said.get("targets"), "backbone": _backbone(said),
        "rounds x local epochs": f"{_rounds(run)} x {said.get('local_epochs')}",
        "training views per image": said.get("views"),
        "seeds": f"model {said.get('seed')}, data {said.get('data_seed')}",
        "selection": "last round; also one chosen by validation"
                     if said.get("selection") == "val" else "last round",
        "trainable parameters": _count(run.info.get("trainable")),
    })


def _rounds(run: FinishedRun) -> str:
    """Return a run's rounds; of one that flat validation accuracy ends those that it had."""
    try:
        flat = run.identity_config().get("FED.PATIENCE")
    except DataError:  # the page says so elsewhere
        flat = None
    return f"auto, {run.last.get('round')}" if flat else str(run.protocol.get("rounds"))


def answer_content(run: FinishedRun) -> Html:
    """Return whether federation paid: alone, together, pooled, a sentence, the next step."""
    answer = answer_of(run.results)
    if answer is None:
        return element("p", *answer_sentences(run.results, run.method))
    words = answer_sentences(run.results, run.method)
    kind = {PAYS: "up", COSTS: "down"}.get(answer["verdict"])
    return join_content([
        _answer_rows(answer, run.method),
        *(element("p", text, class_=kind if not at else None)
          for at, text in enumerate(words)),
    ])


def _answer_rows(answer: Mapping[str, Any], method: str) -> Html:
    """Return a run's answer, or the mean over seeds, in three rows."""
    rows = [[who, cell(mine, as_float(mine)), cell(even, as_float(even))]
            for who, mine, even in answer_table(answer, method)]
    return table(list(answer_columns(answer)), rows,
                 caption="Mean over clients, on their own test images")


def seeds_content(selection: FigureRuns) -> Html:
    """Return whether federation paid, means over seeds; nothing where no runs have an answer.

    Of one method on one data set as ``answer_content`` has it, of more with a row for each.
    """
    found = [(group, answer) for group in selection.groups
             if (answer := mean_answer([run.results for run in group.runs.values()]))]
    if not found:
        return Html("")
    (group, answer), *more = found
    if not more:
        runs = list(group.runs.values())
        if len(runs) == 1:
            return answer_content(runs[0])
        words = seeds_sentences([run.results for run in runs])
        return join_content([_answer_rows(answer, runs[0].method),
                             *(element("p", text) for text in words)])
    return _answer_grid(found)


def _answer_grid(found: Sequence[tuple[RunGroup, Mapping[str, Any]]]) -> Html:
    """Return the mean answer of each method and place in a row."""
    places = list(dict.fromkeys(group.place for group, _ in found))
    names = dict(zip(places, titles(places), strict=True)) if len(places) > 1 else {}
    _, first, second = answer_columns(found[0][1])
    rows = []
    for group, answer in found:
        shares = answer["verdict"] != UNSHARED
        numbers = [as_float((answer[side] or {}).get(key)) if shares or side != TOGETHER else None
                   for side in WHO
                   for key in ("personal", "auroc" if "measure" in answer else "balanced")]
        worse = cell(worse_count(answer), mean(answer["worse"])) if shares else \
            cell(decimal(None), None)
        rows.append(row_of([
            group.label, *([names[group.place]] if names else []), len(group.runs),
            baseline_name(answer[ALONE]["reference"]), *(cell(decimal(v), v) for v in numbers),
            worse,
        ], data_method=group.label))
    heads = ["method", *(["data set"] if names else []), "seeds", "best baseline alone",
             *(f"{who}: {key} (%)" for who in WHO.values() for key in (first, second)),
             "clients that reached more alone"]
    return table(heads, rows, sortable=True, tall=len(rows) > FEW,
                 caption="Means over seeds and clients, on the clients' own test images; methods "
                         "that share nothing have no number together")


def headline_content(run: FinishedRun) -> Html:
    """Return the last round's main numbers, each with its meaning and its gain on zero-shot.

    That of ``personal`` is above what the clients reach alone, too, as in ``answer_content``.
    """
    last, zero = run.last, run.section("zero_shot")
    answer = answer_of(run.results)
    alone = {"personal": as_float(answer[ALONE]["personal"])} if answer else {}
    sure = answer is not None and answer["verdict"] in (PAYS, COSTS)
    cards = []
    for name in HEADLINE:
        value = as_float(last.get(name))
        if value is None or repeats_personal(name, last):
            continue
        spread = as_float(last.get("personal_std")) if name == "personal" else None
        cards.append(element(
            "div", element("div", name, class_="name"),
            element("div", decimal(value), element("small", " %"), class_="value"),
            _delta(value, alone.get(name), WHO[ALONE], sure),
            _delta(value, as_float(zero.get(name)), "zero-shot"),
            element("div", in_measure(metric(name).words, measure_word(last)), ".",
                    f" Standard deviation over clients {spread:.1f}." if spread is not None
                    else None, class_="what"),
            class_="number-card first" if name == "personal" else "number-card",
        ))
    if not cards:
        return element("p", "No client has a test image, so there is no headline number.")
    when = f"After round {last.get('round')}, the last one; nothing is selected on the test set."
    return join_content([element("p", when, class_="soft"),
                 element("div", *cards, class_="numbers")])


def all_numbers(run: FinishedRun) -> Html:
    """Return every accuracy: zero-shot, untrained, best alone, last round, selected, pooled."""
    alone, pooled = _beside(run)
    sections = {
        "zero-shot": run.section("zero_shot"), "untrained": run.section("untrained"), **alone,
        f"round {run.last.get('round')}": run.last,
    }
    selected = run.section("selected")
    if selected:
        sections[f"round {selected.get('round')} (best on validation)"] = selected
    sections |= pooled
    present = {k: v for k, v in sections.items() if v}
    names = [n for n in run.last if as_float(run.last.get(n)) is not None and _accuracy(n)
             and not repeats_personal(n, run.last)]
    rows = []
    for name in names:
        values = [as_float(part.get(name)) for part in present.values()]
        rows.append([name, *(cell(decimal(v), v) for v in values),
                     in_measure(metric(name).words, measure_word(run.last))])
    return table(["%", *present, "meaning"], rows, caption="All numbers are percentages")


def _beside(run: FinishedRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answer's baselines by their words: the best alone, and pooled if there is one."""
    answer, found = answer_of(run.results), run.section("references")
    if answer is None:
        return {}, {}
    alone, _, pooled = (who for who, *_ in answer_table(answer, run.method))
    return {alone: found.get(answer[ALONE]["reference"])}, {
        pooled: found.get(POOLED) if answer[POOLED] else None}


def label_content(run: FinishedRun) -> Html:
    """Return each label's numbers in a run on sets of labels; nothing in other runs."""
    found = run.section(LABELS)
    if not found:
        return Html("")
    columns = {"AP": "ap", "AUROC": "auroc", "F1": "f1",
               f"sensitivity at {found['specificity']:g} % specificity": "sensitivity"}
    rows = [
        [one["name"], one["positives"], one["clients"],
         *(cell(decimal(v), v) for v in (as_float(one.get(key)) for key in columns.values()))]
        for one in found["labels"]
    ]
    words = ("An image has a set of labels: mAP is the mean over labels of the average "
             "precision. Each label's numbers in percent, mean over the clients with a test image "
             "that has it; F1 at thresholds fixed on validation images")
    return table(["label", "test images with it", "clients", *columns], rows, caption=words,
                 sortable=True)


def work_content(run: FinishedRun) -> Html:
    """Return totals: rounds, steps, samples, tower passes, seconds, bytes."""
    words = {
        name: (_seconds(v) if name == "seconds" else megabyte_text(v) if name.startswith("bytes")
               else f"{v:,.0f}")
        for name, value in run.totals().items() if (v := as_float(value)) is not None
    }
    return fact_list({name.replace("_", " "): text for name, text in words.items()})


def traffic(run: FinishedRun) -> Html:
    """Return the bytes of each tensor in the whole run, all clients, both ways."""
    totals = run.totals()
    up, down = (totals.get(f"bytes_{way}_by_tensor") or {} for way in ("up", "down"))
    names = list(dict.fromkeys([*up, *down]))
    if not names:
        return element("p", "Nothing was sent: no tensor is shared.")
    most = sum(as_float(v) or 0.0 for v in up.values()) or 1.0
    rows = [
        [element("code", name), cell(megabyte_text(up.get(name, 0)), as_float(up.get(name, 0))),
         cell(megabyte_text(down.get(name, 0)), as_float(down.get(name, 0))),
         cell(f"{100 * (as_float(up.get(name)) or 0) / most:.1f} %", as_float(up.get(name, 0)))]
        for name in names
    ]
    return table(["tensor", "sent by clients", "sent to clients", "share of sent"], rows,
                 caption="Bytes in the whole run, all clients (1 MB = 1,000,000 bytes)",
                 sortable=True)


def remarks(run: FinishedRun) -> Html:
    """Return the run's notes that are no caveats."""
    return items(note for note in run.notes() if NOT_COMPARABLE not in note)


def megabyte_text(count: Any) -> str:
    """Return bytes as MB."""
    value = as_float(count) or 0.0
    return f"{value:,.0f} B" if value < 1000 else f"{value / 1e6:,.3f} MB"


def _delta(value: float, other: float | None, who: str, sure: bool = True) -> Html:
    """Return a gain in words; ``sure``: it has a colour, which one within its margin has not."""
    if other is None:
        return Html("")
    gain = value - other
    kind = "up" if round(gain, 1) > 0 else "down" if round(gain, 1) < 0 else ""
    return element("div", element("span", signed_text(gain), class_=(sure and kind) or None),
                   f" against {who} ({other:.1f})", class_="delta")


def _accuracy(name: str) -> bool:
    meant = DEFINED.get(name)
    return meant.unit == "%" if meant else name.startswith("target.") or name == "val"


def _backbone(said: Mapping[str, Any]) -> str:
    digest = str(said.get("backbone_digest", ""))[:8]
    tag = said.get("weights")
    return f"{said.get('backbone')}{f' ({tag})' if tag else ''}{f', {digest}' if digest else ''}"


def _count(number: Any) -> str:
    value = as_float(number)
    return "" if value is None else f"{value:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 600 else f"{value / 60:,.1f} min"
