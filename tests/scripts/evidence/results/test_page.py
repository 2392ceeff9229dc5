"""The page of results: made from packed cells alone, the same every time."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from evidence.commands import main
from fedvlm.cli import main as cli
from fedvlm.core.stats import harmonic_mean
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.runs.cells import folders_of, run_names
from fedvlm.runs.seal import seal_of
from fedvlm.sweep.tune.tuned import write_tuned
from tests.jobs import REPOSITORY
from tests.report.table_runs import reference, rows, write_run

LANE = """# A lane: of two sets.
name: dirichlet
output_dir: output/results/dirichlet
datasets: [pets, dtd]
trainers: [FedAvg, Ditto, FedPer]
seeds: [1, 2, 3]
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    for name, more in (("FedAvg", 0), ("Ditto", 2), ("FedPer", 1)):
        for dataset in ("Pets", "DTD"):
            for seed in (1, 2):
                clients = rows(3 + more + seed, 5)
                personal = sum(row["accuracy"] for row in clients) / 2
                path = write_run(
                    root / "out" / "dirichlet", name, dataset, seed,
                    {"personal": personal, "personal_worst": min(r["accuracy"] for r in clients),
                     "clients": clients},
                    sections={"references": {"logreg": reference("alone", 5, 5)}},
                    peft="feature+head",
                    info={"seconds_this_session": 3600.0, "peak_mib": {"resident": 700.0}},
                )
                (path / "config.yaml").write_text("SEED: 1\n")
    (root / "plans").mkdir()
    (root / "plans" / "1.yaml").write_text(LANE)
    return root


@pytest.fixture
def no_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of methods are not drawn: they are most of a page's seconds, and other tests'."""
    def draw(figure: Any, runs: Any, papers: Any, into: Path, name: str) -> str:
        assert figure.select(FigureRuns(list(runs), "personal", papers))
        return f"figures/{name}.svg"

    monkeypatch.setattr("evidence.results.page._draw", draw)


def published(output: Path, into: Path, *more: str) -> bytes:
    assert main(["publish", str(into), "--plans", str(output / "plans"), *more]) == 0
    files = sorted(path for path in into.rglob("*") if path.is_file())
    return b"".join(str(p.relative_to(into)).encode() + p.read_bytes() for p in files)


def words_of(page: Path) -> str:
    """Return the text of all pages, the first screen first."""
    return "".join(path.read_text() for path in sorted(page.rglob("*.md")))


def test_a_page_comes_of_its_cells_alone(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    page = tmp_path / "page"
    first = published(output, page, "--from", str(output / "out"))
    again = tmp_path / "again"
    again.mkdir()
    (page / "cells").rename(again / "cells")
    assert published(output, again) == first
    first = (again / "README.md").read_text()
    assert first.startswith("# Results\n1. **Should my clients federate?** ")
    assert ("\n2. **With what?** Among methods that train the same parameters, best or not clearly "
            "worse than the best (that says nothing of working alone): Ditto in 1 of its 1 "
            "comparisons") in first
    assert ("12 runs: 3 methods on one frozen backbone, 2 data sets, 2 seeds and one "
            "experiment") in first
    assert [line for line in first.splitlines() if line.startswith("## ")] == [
        "## Should my clients federate?", "## With what?", "## Does it run at my place?",
        "## What do I take home?", "## How to read this"]
    text = words_of(again)
    assert "| [dirichlet](settings/dirichlet.md) | image feature and linear head | 57.5 | Ditto |" \
        in (again / "with_what.md").read_text()
    assert "(so far: 4 of 6 pairs)" in text and "A claim needs 10 seeds" in text
    assert "# A lane\nOf two sets." in text and "6 of the planned runs are missing" in text
    assert "| Ditto \\[feature+head\\] | personal\\_worst is higher than FedAvg's" in text
    assert "| FedPer | personal is higher than FedAvg's in setting disjoint | FedPer and FedAvg: " \
        "in" in text, "the lane has no plan here"
    assert "client-gain-dirichlet" in text and "Planned methods without a finished run" not in text
    assert "below logistic regression" in text and "forest-dirichlet" in text
    wins = (again / "wins.md").read_text()  # Ditto is above both in each of 4 cells
    assert "| Ditto | 100 | 4 of 4 |   | 100 | 100 |" in wins and "| FedAvg | 0 | 4 of 4 |" in wins
    place = (again / "at_our_place.md").read_text()
    assert "*Memory*: resident memory of the process at the run's peak" in place
    assert "| seconds (s) | memory (MiB) |" in place and "| 700.0 ± 0.0 |" in place
    assert "| sent (kB) | bytes (MB) |" in place, "a method of one round beside one of many"
    gained = (again / "should_we_federate.md").read_text().partition("## Which clients gain")[2]
    assert gained.startswith("\n*Share of clients (all seeds pooled) whose gain over the best ")
    assert "\n### A lane\n![Share of clients by what they gain: A lane](" in gained
    for path in again.rglob("*.md"):
        for link in re.findall(r"\]\(([\w./-]+\.(?:md|svg|tex|csv))\)", path.read_text()):
            assert (path.parent / link).is_file() or link.startswith("../"), (path.name, link)
    assert "\\begin{table" in next((again / "tables").glob("*.tex")).read_text()
    assert cli.main(["table", str(again / "cells")]) == 0


@pytest.mark.usefixtures("no_drawings")
def test_a_lane_of_many_kinds_is_one_table_by_what_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows compete with those that train the same; references stand below, once."""
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out" / "rivals"
    for name, peft, right in (("FedAvg", "prompt", 5), ("PromptFL", "prompt", 7),
                              ("FedAvg", "lora", 9), ("VPT", "image prompts", 6)):
        for seed in (1, 2, 3):
            clients = rows(right, right + seed % 2, n=100)
            new, personal = 40.0 + right, sum(row["accuracy"] for row in clients) / 2
            hm2 = harmonic_mean(50.0, new)
            unseen = {"base_all": 50.0, "new": new, "hm2": hm2, "cm": (personal + hm2) / 2} \
                if right > 5 else {}
            path = write_run(
                out, name, "Caltech101", seed, {
                    "personal": personal, "clients": clients,
                } | unseen, peft=peft, sections={"references": {"logreg": reference("alone", 5)}},
                info={"trainable": 128 * right, "seconds_this_session": 1.0,
                      "totals": {"bytes_up": 8000, "bytes_down": 0, "client_rounds": 4,
                                 "seconds": 2.0, "local_steps": 3}},
            )
            (path / "config.yaml").write_text("SEED: 1\n")
            if unseen:
                shutil.copytree(path, tmp_path / "out/unseen" / path.relative_to(out))
    (tmp_path / "plans").mkdir()
    published(tmp_path, tmp_path / "page", "--from", str(tmp_path / "out"))
    text = words_of(tmp_path / "page")
    assert "| Caltech101 / personal | Caltech101 / base\\_all | Caltech101 / new |" in (
        tmp_path / "page/settings/unseen.md").read_text(), "hm2 is made of both"
    table = text.partition("## rivals: by what is trained")[2].partition("<details")[0]
    head = next(line for line in table.splitlines() if line.startswith("| trainer"))
    assert head == ("| trainer | Caltech101 | gain (points) | balanced | before | steps "
                    "| trainable | sent (kB) | bytes (MB) | seconds (s) |")
    order = [line.split(" |")[0] for line in table.splitlines() if line.startswith("| ")]
    assert order.index("| *prompt*") < order.index("| PromptFL") and order.count("| FedAvg") == 3
    assert order.count("| logistic regression") == 1
    assert "- prompt: Best: PromptFL, 7.3; significantly better on these" in table
    assert "\n| PromptFL | 7.3 ± 0.3↓ | - | - | - | 3 | 896 | 2.0 | 0.01 | 2.0 ± 0.0 |\n" in table
    assert "Caltech101 / new" in table and "47.0" in table
    assert "\\begin{table" in next((tmp_path / "page/tables").glob("rivals*.tex")).read_text()


@pytest.mark.usefixtures("no_drawings")
def test_what_tuning_cost_stands_on_the_page(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = {"settings": {}, "seconds": 1800.0, "score": 61.25, "error": 1.0, "cells": ["a", "b"],
             "behind": 0.0, "behind_error": 0.0}
    entry = {"label": "Ditto [x]", "trainer": "Ditto", "settings": {"FED.LOCAL_EPOCHS": "2"},
             "values": {"OPTIM.LR": "1"}, "space": ["OPTIM.LR 0.002 to 2 log"], "trial": 0,
             "error": 1.0, "score": 61.25,
             "trials": [trial, trial | {"seconds": 3600.0, "cells": ["c"]}]}
    plan = {"common": {}, "seeds": [101, 2], "datasets": [{"label": "digits"}], "shots": []}
    write_tuned(tmp_path / "tuned.json", {"plan": plan, "entries": [entry], "budget": 2,
                                          "digest": "d" * 64})
    words = ("--from", str(output / "out"), "--tuned", str(tmp_path / "tuned.json"))
    published(output, tmp_path / "page", *words)
    text = words_of(tmp_path / "page")
    assert "| Ditto \\[x\\] | 2 | 61.2 | 1.50 |" in text and "![Best validation" not in text
    assert "Each of 1 entries had 2 trials" in text
    assert "Exceptions: Ditto \\[x\\] had a fixed optimiser" in text
    assert "Local work was tuned for none of 1: the plan sets it (FED.LOCAL\\_EPOCHS 2 for 1)" \
        in text
    lines = [{"config": name, "seed": seed, "seconds": 1.0, "steps": 1000, "cpu": 2.0,
              "clients": [[right, 100]]} for name, seed, right in (("a", 101, 60), ("b", 2, 64))]
    (tmp_path / "runs.jsonl").write_text("".join(
        json.dumps(line | {"seal": seal_of(line)}) + "\n" for line in lines))
    first = published(output, tmp_path / "page", *words)
    text = words_of(tmp_path / "page")
    assert "| Ditto \\[x\\] | 2 | 61.2 | 61.2 ± 1.0 | 2.0 | - | 2 | 2,000 | 1.50 |" in text
    assert "(figures/tuning-by-seconds.svg)" in text and "(tables/hyperparameters.tex)" in text
    assert "\\begin{table" in (tmp_path / "page/tables/hyperparameters.tex").read_text()
    assert published(output, tmp_path / "page") == first, "from the packed record"
    before = sorted((tmp_path / "page").iterdir())
    assert cli.main(["tune", "--report", str(tmp_path / "page" / "tuned.json")]) == 0
    told = capsys.readouterr().out
    assert "61.2 ± 1.0" in told and "add --into FOLDER" in told
    assert sorted((tmp_path / "page").iterdir()) == before
    assert cli.main(["tune", "--report", str(tmp_path / "page" / "tuned.json"), "--into",
                     str(tmp_path / "into")]) == 0
    assert (tmp_path / "into" / "methods.csv").is_file()
    (tmp_path / "page" / "tuning.jsonl.xz").write_bytes(b"no")
    assert main(["publish", str(tmp_path / "page"), "--plans", str(output / "plans")]) == 3
    assert "tuning.jsonl.xz: is not a packed record of a tuning" in capsys.readouterr().err
    assert "**Published runs share with the search** seeds 2." in text
    assert "| dirichlet | 0 | 0 | 12 | Ditto" in text  # by their configs, none has the values


@pytest.mark.usefixtures("no_drawings")
def test_the_map_is_shown_where_somebody_made_it(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    page = tmp_path / "page"
    published(output, page, "--from", str(output / "out"))
    assert "map.png" not in (page / "README.md").read_text()
    (page / "map").mkdir()
    for name, words in (("map.png", ""), ("map.csv", "a,b\n"),
                        ("words.txt", "Who gains.\nWho *not*.\n"),
                        ("cases.txt", "| case |\n|---|\n| mine |\n"),
                        ("methods.txt", "Start with A.\nDitto +1.\n")):
        (page / "map" / name).write_text(words)
    published(output, page)
    first = (page / "README.md").read_text()
    assert "**Should my clients federate?** **Who gains.** " in first
    assert "- Who \\*not\\*.\n" in first and "- Who gains." not in first
    assert "\n| case |\n|---|\n| mine |\n" in first and "- Ditto +1.\n" in first
    assert "2. **With what?** Start with A.\n" in first and "- Start with" not in first
    assert "](map/map.png)" in first and "client-gain" not in first


@pytest.mark.usefixtures("no_drawings")
def test_a_pack_is_not_replaced_by_one_with_fewer_runs(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    published(output, tmp_path / "page", "--from", str(output / "out"))
    (path,) = (tmp_path / "page" / "cells").iterdir()
    before, poorer = path.read_bytes(), tmp_path / "poorer"
    shutil.copytree(output / "out", poorer)
    shutil.rmtree(min(poorer.rglob("results.json")).parent)
    words = ["publish", str(tmp_path / "page"), "--plans", str(output / "plans"), "--from"]
    assert main([*words, str(poorer)]) == 3
    told = capsys.readouterr().err
    assert "has 1 run(s) that" in told and "move the pack away" in told
    assert path.read_bytes() == before
    assert main([*words, str(poorer), "--keep"]) == 0
    assert "(12 runs, 1 of them from the old pack," in capsys.readouterr().out
    assert path.read_bytes() == before, "what only the pack had is in it as it was"
    changed = min(poorer.rglob("config.yaml"))
    changed.write_text("SEED: 1  # run again\n")
    assert main([*words, str(poorer), "--keep"]) == 0
    again = folders_of(path)[0] / changed.relative_to(poorer / "dirichlet")
    assert again.read_text() == changed.read_text(), "a run that is there again replaces its own"
    assert len(run_names(path)) == 12


def test_keep_wants_runs_to_pack(output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                 ) -> None:
    words = ["publish", str(tmp_path), "--plans", str(output / "plans"), "--keep"]
    assert main(words) == 2
    assert "--keep needs --from OUTPUT" in capsys.readouterr().err


@pytest.mark.usefixtures("no_drawings")
def test_plans_of_folders_below_belong_to_their_lanes(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans are read by their files' names; the page says what each folder's runs took."""
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    plans = tmp_path / "plans"
    (plans / "more").mkdir(parents=True)
    (plans / "1.yaml").write_text(LANE.replace("[pets, dtd]", "[pets]"))
    (plans / "more" / "0_more.yaml").write_text(
        LANE.replace("A lane: of two sets", "Textures: one set more").replace("pets, ", ""))
    words = ["publish", str(tmp_path / "page"), "--from", str(output / "out")]
    assert main([*words, "--plans", str(plans)]) == 0
    text = words_of(tmp_path / "page")
    assert "6 of 18 planned runs are missing" in text
    assert "# Textures\nOne set more. Of two sets." in text
    assert " By folder of plans: `plans` 6 runs in 6.0 h, `plans/more` 6 runs in 6.0 h. " \
        "Backbone" in text
    (plans / "1.yaml").write_text(  # of the same name, with other tensors: not these runs
        LANE.replace("[FedAvg, ", "[{name: FedAvg, peft: prompt}, "))
    (plans / "more" / "0_more.yaml").write_text(
        LANE.replace("[FedAvg, Ditto, FedPer]", "[{name: FedAvg, peft: feature+head}]"))
    assert main([*words, "--plans", str(plans)]) == 0
    text = words_of(tmp_path / "page")
    assert " By folder of plans: `plans` 8 runs in 8.0 h, `plans/more` 4 runs in 4.0 h. " \
        "Backbone" in text
    assert main([*words, "--plans", str(output / "plans")]) == 0
    text = words_of(tmp_path / "page")
    assert "By folder of plans" not in text, "there is one folder"


def test_what_the_readme_says_of_new_classes_holds() -> None:
    """FedTV is hardly above the zero-shot model there: by less than two points, and not below."""
    assert "on photographs it is\n[hardly above zero-shot there](docs/results/settings/unseen" in (
        REPOSITORY / "README.md").read_text()
    lines = (REPOSITORY / "docs/results/settings/unseen.md").read_text().splitlines()
    head = next(line for line in lines if "Caltech101 / new" in line).split(" | ")
    at = next(place for place, name in enumerate(head) if name.endswith("/ new"))
    new = {name: float(re.sub(r"[^\d.].*", "", line.split(" | ")[at].lstrip("<u>*")))
           for line in lines for name in ("FedTV", "zero-shot") if line.startswith(f"| {name} |")}
    assert 0 < new["FedTV"] - new["zero-shot"] < 2


def test_without_cells_there_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", str(tmp_path)]) == 3
    assert "holds no pack of runs" in capsys.readouterr().err


def test_plans_that_are_not_there_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", str(tmp_path), "--plans", str(tmp_path / "confgis")]) == 3
    assert "confgis: not a folder of plans" in capsys.readouterr().err


def test_what_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packs, page = tmp_path / "packs", tmp_path / "page"
    packs.mkdir()
    (packs / "a.cells.xz").write_bytes(b"")
    words = ["publish", str(page), "--from", str(packs)]
    assert main([*words, "--tuned", str(tmp_path / "no.json")]) == 3
    assert main(words) == 3
    assert "no.json" in capsys.readouterr().err
    assert not page.exists()
