"""Whether federation paid: one function, and every reader has its words."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

import fedvlm
from fedvlm.job.results import seed_table
from fedvlm.report.collect import as_float, collect
from fedvlm.report.pages import figures
from fedvlm.report.pages.html import Html
from fedvlm.report.pages.run import run_page
from fedvlm.report.pages.sweep import sweep_page
from fedvlm.report.tables.facts import KINDS, facts_of
from fedvlm.report.tables.metrics import metric, metric_value
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import (
    WHO,
    answer_facts,
    answer_lines,
    answer_sentences,
    answer_table,
    client_numbers,
    federation_answer,
    head_together,
    mean_answer,
    seeds_lines,
    worse_clearly,
    worse_words,
)
from fedvlm.runs.verify.beside import disagreements
from tests import jobs
from tests.report.page_runs import cells_below
from tests.report.table_runs import reference
from tests.report.tables.test_rivals import write


def rows(*accuracies: float | None, n: int = 50) -> list[dict[str, Any]]:
    return [{"client": c, "n": n, "accuracy": a} for c, a in enumerate(accuracies)]


def results(together: float, *each: float | None, sent: int = 1) -> dict[str, Any]:
    """Return results of clients that reach 60, 70 and 80 alone, 90 pooled."""
    alone = rows(60.0, 70.0, 80.0)
    return {
        "last": {"personal": together, "personal_balanced": 65.0, "clients": rows(*each)},
        "references": {
            "logreg": {"kind": "alone", "personal": 70.0, "personal_balanced": 40.0,
                       "clients": alone},
            "majority": {"kind": "alone", "personal": 20.0, "personal_balanced": 10.0,
                         "clients": rows(20.0, 20.0, 20.0)},
            "afl": {"kind": "together", "personal": 99.0, "clients": []},
            "pooled": {"kind": "bound", "personal": 90.0, "personal_balanced": 90.0,
                       "clients": []},
        },
        "spent": {"bytes_up": sent, "bytes_down": sent},
    }


def test_it_pays() -> None:
    answer = federation_answer(results(90.0, 95.0, 96.0, 79.0))
    assert answer is not None
    assert answer["alone"] == {"personal": 70.0, "balanced": 40.0, "reference": "logreg"}
    assert answer["together"] == {"personal": 90.0, "balanced": 65.0}
    assert answer["pooled"] == {"personal": 90.0, "balanced": 90.0}
    assert (answer["points"], answer["balanced_points"], answer["worse"], answer["of"]) == (
        20.0, 25.0, [2], 3)
    assert answer["verdict"] == "pays"
    (words,) = answer_sentences(results(90.0, 95.0, 96.0, 79.0), "FedTV")
    assert words.startswith("Federation pays here with FedTV: +20.0 points")
    assert words.endswith("; 1 of 3 clients reached more alone in this run (client 2), not "
                          "clearly.")


def test_the_margin_is_binomial() -> None:
    """By hand: one more success and failure each, variances of both sides over three clients."""
    answer = federation_answer(results(90.0, 95.0, 96.0, 79.0))
    total = 0.0
    for a in (95.0, 96.0, 79.0, 60.0, 70.0, 80.0):
        share = (50 * a / 100 + 1) / 52
        total += share * (1 - share) / 50
    assert answer is not None and answer["margin"] == pytest.approx(196 * (total / 9) ** 0.5)


@pytest.mark.parametrize(("together", "verdict"), [
    (50.0, "costs"), (70.5, "unclear"), (69.0, "unclear"), (90.0, "pays"),
])
def test_the_verdict_needs_more_than_the_margin(together: float, verdict: str) -> None:
    answer = federation_answer(results(together, together, together, together))
    assert answer is not None and answer["verdict"] == verdict


def test_a_run_that_shares_nothing_answers_nothing() -> None:
    numbers = results(90.0, 90.0, 90.0, 90.0, sent=0)
    answer = federation_answer(numbers)
    assert answer is not None and answer["verdict"] == "unshared"
    assert "does not show whether" in answer_sentences(numbers, "LocalOnly")[0]


@pytest.mark.parametrize(("head", "verdict", "end"), [
    (90.0, "pays", "reaches 90.0, +20.0 points against the best alone: federation can pay here."),
    (71.0, "unclear", "reaches 71.0, +1.0 points against the best alone: too few test images "
                      "to tell."),
    (45.0, "costs", "reaches 45.0, -25.0 points against the best alone: such a head does not pay "
                    "here."),
])
@pytest.mark.parametrize(("together", "sent"), [(50.0, 1), (70.5, 1), (65.0, 0)])
def test_what_a_head_made_together_reaches_is_said_where_the_method_shows_nothing(
    head: float, verdict: str, end: str, together: float, sent: int
) -> None:
    numbers = results(together, *[together] * 3, sent=sent)
    numbers["references"]["afl"] |= {"personal": head, "clients": rows(head, head, head)}
    assert (head_together(numbers) or {})["verdict"] == verdict
    first, second = answer_sentences(numbers, "FedTV")
    assert "pays here" not in first and second.endswith(end)
    numbers["last"]["personal"] = head  # AFL itself: the same number is not said twice
    assert len(answer_sentences(numbers, "AFL")) == 1


@pytest.mark.parametrize(("together", "pooled", "end"), [
    (50.0, 60.0, "federation does not pay here."), (50.0, None, "federation does not pay here."),
    (50.0, 71.0, "such a head does not pay here."),
    (70.5, 60.0, "such a head does not pay here."),  # no clear difference, says the line before
])
def test_a_head_that_loses_speaks_of_federation_only_where_nothing_says_the_contrary(
    together: float, pooled: float | None, end: str
) -> None:
    numbers = results(together, *[together] * 3)
    numbers["references"]["afl"] |= {"personal": 45.0, "clients": rows(45.0, 45.0, 45.0)}
    numbers["references"]["pooled"]["personal"] = pooled
    assert answer_sentences(numbers, "FedTV")[1].endswith(end)


def test_a_difference_that_cannot_be_told_says_with_how_many_images_and_which_way() -> None:
    """Not "no difference": who reads it learns that test images are what is missing."""
    numbers = results(64.0, 64.0, 64.0, 64.0)
    margin = (federation_answer(numbers) or {})["margin"]
    assert 6 < margin < 20
    assert answer_sentences(numbers, "FedTV")[0] == (
        "150 test images cannot tell whether FedTV is better than the clients alone: in this run "
        "it is 6.0 points lower, class-balanced +25.0; they cannot show a difference below "
        f"{margin:.1f} points (95 % margin, from the number of test images); 2 of 3 clients "
        "reached more alone in this run (clients 1, 2), none of them clearly.")
    few = results(74.0, 74.0, 74.0, 74.0)
    for row in (*few["last"]["clients"], *few["references"]["logreg"]["clients"]):
        row["n"] = 1
    told = answer_sentences(few, "FedTV")[0]
    assert "3 test images cannot tell" in told and "4.0 points higher" in told
    assert "they cannot show a difference (95 %" in told  # a margin of 76 points is no number


def test_a_client_takes_home_its_own_number() -> None:
    """The mean over clients is not what it asks for; that it does better alone needs its images."""
    numbers = results(90.0, 95.0, 96.0, 60.0)
    told = "this client, accuracy (%): alone (logistic regression) 80.0, with FedTV "
    assert client_numbers(numbers, "FedTV", 2) == [f"{told}60.0: it does better alone"]
    assert answer_sentences(numbers, "FedTV")[0].endswith(
        "; 1 of 3 clients does better alone (client 2).")
    numbers = results(90.0, 95.0, 96.0, 79.0)
    assert client_numbers(numbers, "FedTV", 2) == [
        f"{told}79.0: it reached more alone in this run (50 test images: cannot tell)"]
    numbers["references"]["logreg"]["clients"][2]["correct"] = 40
    numbers["last"]["clients"][2]["correct"] = 39
    assert client_numbers(numbers, "FedTV", 2) == [
        f"{told}79.0: it had 1 more right alone in this run (50 test images: cannot tell)"]
    numbers["last"]["clients"][0]["n"] = 11
    assert client_numbers(numbers, "FedTV", 0) == [
        "this client, accuracy (%): alone (logistic regression) 60.0, with FedTV 95.0",
        "11 test images of this client are few: its numbers say little"]
    assert client_numbers(numbers, "FedTV", 7) == []
    assert client_numbers(numbers | {"privacy": {}}, "FedTV", 0) == []


@pytest.mark.parametrize(("differ", "margin", "clear"), [
    (10, None, True), (30, None, False), (10, 1.0, True), (10, 20.0, False),
])
def test_a_client_does_better_alone_where_its_own_images_show_it(
    differ: int, margin: float | None, clear: bool
) -> None:
    """By the run's rule: 10 of 50 images lost and none won are clear, 20 lost and 10 won are not.

    Images of patients count less by as much as in the whole run.
    """
    numbers = results(90.0, 95.0, 96.0, 60.0)
    for row in (*numbers["last"]["clients"], *numbers["references"]["logreg"]["clients"]):
        row["correct"] = round(row["n"] * row["accuracy"] / 100)
    numbers["paired"] = {"last|logreg": {"differ": {"0": 18, "1": 13, "2": differ}} | (
        {} if margin is None else {"by": "group", "margin": margin})}
    assert worse_clearly(numbers) == ([2] if clear else [])
    said = answer_sentences(numbers, "FedTV")[0]
    assert ("1 of 3 clients does better alone (client 2)" in said) == clear
    assert client_numbers(numbers, "FedTV", 2)[0].endswith(
        "with FedTV 60.0: it does better alone" if clear else
        "with FedTV 60.0: it had 10 more right alone in this run (50 test images: cannot tell)")


def test_clients_that_clearly_do_better_alone_are_told_from_others() -> None:
    answer = {"worse": [0, 2, 3], "of": 4}
    assert worse_words(answer, [2]) == (
        "1 of 4 clients does better alone (client 2), 2 others reached more alone in this run "
        "(clients 0, 3), none of them clearly")
    assert worse_words(answer, [0, 2]) == (
        "2 of 4 clients do better alone (clients 0, 2), 1 other reached more alone in this run "
        "(client 3), not clearly")
    assert worse_words(answer | {"of": 3}, [0, 2, 3]) == "3 of 3 clients do better alone"
    assert worse_words({"worse": [], "of": 4}, []) == "none of 4 clients does better alone"


@pytest.mark.parametrize(("flags", "what"), [
    (["--rounds", "20", "--tag", "rounds-20"], "such a head"), (["--lr", "0.01"], "such a head"),
    (["--trainer", "AFL", "--rounds", "1"], "such a head"), ([], "such a head"),
    (["--trainer", "LocalOnly"], "federation"), (["--trainer", "ZeroShot"], "federation"),
])
def test_a_run_whose_next_step_shares_does_not_judge_federation(
    flags: list[str], what: str
) -> None:
    numbers = results(50.0, 50.0, 50.0, 50.0) | {"next": {"reason": "so", "flags": flags}}
    numbers["references"]["afl"] |= {"personal": 45.0, "clients": rows(45.0, 45.0, 45.0)}
    numbers["references"]["pooled"]["personal"] = 60.0
    _, head, step = answer_sentences(numbers, "FedTV")
    assert head.endswith(f"alone: {what} does not pay here.")
    assert step == (f"Next: so ({' '.join(flags)})." if flags else "Next: so.")


def test_afl_is_not_told_of_afl() -> None:
    numbers = results(65.0, 65.0, 65.0, 65.0)
    numbers["references"]["afl"] |= {"personal": 60.0, "clients": rows(60.0, 60.0, 60.0)}
    assert len(answer_sentences(numbers, "FedTV")) == 2
    assert len(answer_sentences(numbers, "AFL (keep)")) == 1


def test_of_one_client_nothing_is_said_about_a_head_made_together() -> None:
    numbers = results(50.0, 50.0)
    for name, value in (("logreg", 70.0), ("majority", 20.0), ("afl", 45.0)):
        numbers["references"][name] |= {"personal": value, "clients": rows(value)}
    (told,) = answer_sentences(numbers, "FedTV")
    assert told.endswith("there is one client only.")


def test_a_head_is_compared_with_a_run_that_shares_nothing_where_that_is_better() -> None:
    numbers = results(85.0, *[85.0] * 3, sent=0)
    numbers["references"]["afl"] |= {"personal": 80.0, "clients": rows(80.0, 80.0, 80.0)}
    assert (head_together(numbers) or {})["points"] == -5.0  # 70 by the best baseline alone


def test_a_verdict_on_a_head_needs_the_images_of_its_clients() -> None:
    numbers = results(50.0, 50.0, 50.0, 50.0)
    assert (head_together(numbers) or {})["verdict"] == "unclear"  # afl names no client
    del numbers["references"]["afl"]
    assert head_together(numbers) is None
    assert len(answer_sentences(numbers, "FedTV")) == 1


def test_it_is_left_out_where_it_would_say_too_much_or_nothing() -> None:
    whole = results(90.0, 90.0, 90.0, 90.0)
    assert federation_answer(whole | {"privacy": {"words": "epsilon 3"}}) is None
    bare = {k: v for k, v in whole.items() if k != "references"}
    assert federation_answer(bare) is None
    assert federation_answer(whole | {"last": {"personal": None}}) is None
    (line,) = answer_lines(whole | {"privacy": {}}, "DP-FPL")
    assert "privacy guarantee" in line
    (line,) = answer_lines(bare, "FedTV")
    assert "at sites whose site.yaml" in line


def test_a_method_keeps_its_small_letter() -> None:
    whole = results(50.0, 50.0, 50.0, 50.0)
    told = " ".join(answer_sentences(whole, "pFedMe"))
    assert "pFedMe" in told and "PFedMe" not in told


def test_several_seeds_have_one_answer() -> None:
    runs = [results(value, *[value] * 3) for value in (90.0, 70.0, 50.0)]
    runs[0]["last"]["personal_balanced"] = 80.0
    rows = ["accuracy (%)                             personal  class-balanced",
            "each client alone (logistic regression)      70.0            40.0",
            "together (FedTV)                             70.0            70.0",
            "all images in one place (pooled)             90.0            90.0"]
    assert seeds_lines(runs, "FedTV") == [
        *rows, "Means over 3 seeds: +0.0 points against the best alone, class-balanced +30.0; 1.3 "
        "of 3 clients reached more alone (by seed: 0, 1, 3).",
        "Seed by seed, federation pays in 1 of 3, is worse than alone in 1, test images cannot "
        "tell in 1."]
    assert seeds_lines([*runs, {"last": {"personal": None}}], "FedTV") == []
    for one in runs:
        one["spent"] = {"bytes_up": 0, "bytes_down": 0}
    assert seeds_lines(runs, "FedTV")[2:] == [
        "FedTV, which shares nothing                  70.0            70.0", rows[3],
        "Means over 3 seeds. The clients shared nothing in these runs, so they do not show whether "
        "federation pays."]


def test_the_mean_over_seeds_is_of_what_all_of_them_know() -> None:
    """Two baselines are named as neither, and a number that one seed lacks is not known."""
    one, two = (results(90.0, 90.0, 90.0, 90.0) for _ in range(2))
    own = federation_answer(one) or {}
    assert mean_answer([one]) == {
        **{key: value for key, value in own.items() if key != "margin"},
        "worse": [0], "of": [3], "verdict": ""}
    two["references"]["zero_shot"] = two["references"]["logreg"] | {"personal": 71.0}
    del two["references"]["pooled"], two["last"]["personal_balanced"]
    answer = mean_answer([one, two]) or {}
    assert answer_table(answer, "FedTV") == [
        ("each client alone (the best of each seed)", "70.5", "40.0"),
        ("together (FedTV)", "90.0", "not known"),
        ("all images in one place (pooled)", "not known", "not known")]
    assert answer["balanced_points"] is None


@pytest.mark.parametrize("tuned", [False, True])
def test_a_number_before_fine_tuning_stands_over_seeds_where_there_was_one(tuned: bool) -> None:
    last = {"personal": 60.0, "personal_before_ft": 60.0} | (
        {"finetune": {"epochs": 1}} if tuned else {})
    told = [{"protocol": {"trainer": "FedAvg", "seed": seed}, "results": {"last": last}}
            for seed in (1, 2)]
    lines = "\n".join(seed_table(told))
    assert ("personal_before_ft" in lines) == tuned and "personal" in lines


def test_console_and_page_say_the_same_of_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: 50 alone in both seeds, 50 and 80 together, 90 in one place."""
    monkeypatch.setattr(figures, "of_runs", lambda runs: Html(""))
    sides = {"logreg": reference("alone", 6, 4) | {"personal_balanced": 30.0},
             "pooled": reference("bound", 9, 9) | {"personal_balanced": 70.0}}
    for seed, right, even in ((1, 5, 40.0), (2, 8, 50.0)):
        write(tmp_path, "FedAvg", right, right, seed=seed, sections={"references": sides},
              last={"personal_balanced": even})
    runs = collect([tmp_path]).runs
    lines = seeds_lines([run.results for run in runs], "FedAvg")
    assert seed_table([{"protocol": run.protocol, "results": run.results}
                       for run in runs])[-len(lines):] == lines
    three = [["each client alone (logistic regression)", "50.0", "30.0"],
             ["together (FedAvg)", "65.0", "45.0"],
             ["all images in one place (pooled)", "90.0", "70.0"]]
    assert [re.split(r" {2,}", line) for line in lines[1:4]] == three

    def page() -> str:
        collected = collect([tmp_path])
        return html.unescape(sweep_page(collected, [tmp_path], tmp_path, {}))

    assert cells_below(page(), 'id="answer"') == three
    assert all(line in page() for line in lines[4:])
    write(tmp_path, "LocalOnly", 7, 7, sent=0, sections={
        "references": sides, "spent": {"bytes_up": 0, "bytes_down": 0}})
    assert cells_below(page(), 'id="answer"') == [
        ["FedAvg", "2", "logistic regression", "50.0", "30.0", "65.0", "45.0", "90.0", "70.0",
         "0.5 of 2"],
        ["LocalOnly", "1", "logistic regression", "50.0", "30.0", *["\N{EN DASH}"] * 2, "90.0",
         "70.0", "\N{EN DASH}"]]


def test_a_wrong_answer_is_found() -> None:
    good = results(90.0, 95.0, 96.0, 79.0)
    good["answer"] = federation_answer(good)
    assert list(disagreements(good)) == []
    wrong = good | {"answer": {**good["answer"], "points": 30.0}}
    (said,) = disagreements(wrong)
    assert said.startswith("answer is")


def heads_of_clients(page: str) -> list[str]:
    """Return the heads of the table of clients."""
    table = page[page.index('id="client-table"'):]
    return [re.sub("<[^>]+>", "", head)
            for head in re.findall("<th[^>]*>.*?</th>", table[:table.index("</thead>")])]


def test_every_reader_has_the_same_words(
    quick_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Console and log, results, report page and the card of a model."""
    monkeypatch.setattr(figures, "of_run", lambda run: Html(""))  # two seconds, and no words
    folder = jobs.folder(quick_run)
    stored = json.loads((folder / "results.json").read_text())["results"]
    assert stored["answer"] == federation_answer(stored)
    lines, told = answer_lines(stored, "FedTV"), answer_sentences(stored, "FedTV")
    assert lines[-len(told):] == told and " ".join(stored["next"]["flags"]) in told[-1]
    log = (folder / "log.txt").read_text()
    assert all(line in log for line in lines)
    page = html.unescape(str(run_page(collect([folder]).runs[0], "")))
    assert all(sentence in page for sentence in told)
    for number in (stored["answer"]["alone"]["personal"], stored["answer"]["pooled"]["personal"]):
        assert f"{number:.1f}" in page
    answer = stored["answer"]
    heads = re.findall("<th[^>]*>(.*?)</th>", page[page.index('id="numbers"'):])
    at = [heads.index(who) for who, *_ in answer_table(answer, "FedTV")[::2]]
    for key, side in (("personal", "personal"), ("personal_balanced", "balanced")):
        (row,) = [row for row in cells_below(page, 'id="numbers"') if row[0] == key]
        assert [row[i] for i in at] == [f"{answer[one][side]:.1f}" for one in ("alone", "pooled")]
    clients = cells_below(page, 'id="client-table"')
    gains = {int(row[0]): row[heads_of_clients(page).index("gain on alone")] for row in clients}
    assert [c for c, gain in gains.items() if gain[0] == "\N{MINUS SIGN}"] == answer["worse"]
    owns = [row[heads_of_clients(page).index("alone (%)")] for row in clients]
    alone = stored["references"][answer["alone"]["reference"]]["clients"]
    assert owns == [f"{row['accuracy']:.1f}" for row in alone]
    beside = as_float(stored["answer"]["alone"]["personal"])
    plain = " ".join(re.sub("<[^>]+>", " ", page).split())
    assert f"against {WHO['alone']} ({beside:.1f})" in plain
    notes = fedvlm.load(folder).client(0).facts.notes
    assert set(told[:-1]) < set(notes) and told[-1] not in notes  # who has a model has no command
    assert set(client_numbers(stored, "FedTV", 0)) < set(notes)
    facts = answer_facts(stored, "FedTV")
    assert len(facts) == 3 and set(facts) < set(notes)
    for (who, mine, even), fact in zip(answer_table(stored["answer"], "FedTV"), facts, strict=True):
        assert fact == f"{who}, accuracy (%): personal {mine}, class-balanced {even}"
    assert KINDS["alone"] == WHO["alone"] and KINDS["bound"] == WHO["pooled"]
    assert KINDS["together"].startswith(WHO["together"])
    entries, _ = facts_of(collect([folder]).runs)
    for side, who in WHO.items():
        assert metric(side).words.startswith(f"{who}: personal")
        assert metric_value(entries[0], side) == stored["answer"][side]["personal"]
        assert metric_value(entries[0], f"{side}_balanced") == stored["answer"][side]["balanced"]


def test_a_table_has_no_together_of_a_run_that_shares_nothing() -> None:
    run = FinishedRun(Path("x"), {"trainer": "LocalOnly"}, results(90.0, 95.0, 96.0, 79.0, sent=0),
                      {})
    (entry,), _ = facts_of([run])
    assert [metric_value(entry, name) for name in ("alone", "together", "together_balanced",
                                                   "pooled")] == [70.0, None, None, 90.0]
