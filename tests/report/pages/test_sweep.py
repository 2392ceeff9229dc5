"""The page over many runs, and the verb that writes pages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fedvlm.cli import main as cli
from fedvlm.job import show
from fedvlm.report.collect import collect
from fedvlm.report.pages import figures
from fedvlm.report.pages.html import Html
from fedvlm.report.pages.sweep import sweep_page
from fedvlm.report.tables.papers import Paper
from tests.report.page_runs import NASTY, Reader, cells_below, whole_run
from tests.report.table_runs import write_run, write_seeds
from tests.report.tables.test_rivals import write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without figures, which take a second each."""
    monkeypatch.setattr(figures, "of_runs", lambda runs: Html("<p>figures</p>"))
    monkeypatch.setattr(figures, "of_run", lambda run: Html("<p>figures</p>"))


def journal(root: Path, name: str = "all & <more>") -> None:
    """Write a plan of three methods x three data sets x two seeds, two failed and one stopped."""
    folder = root / "sweeps" / "one"
    folder.mkdir(parents=True)
    plan = {"name": name, "datasets": [{"label": one} for one in ("pets", "cars", "never")],
            "trainers": [{"label": one} for one in ("FedAvg", "FedProx", "Ditto")], "seeds": [1, 2]}
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    rows = [("a", "FedProx", 3, "no images in <root>"), ("b", "FedProx", -9, ""),
            ("c", "Ditto", 130, "stopped"), ("a", "FedProx", 2, "last & least")]
    (folder / "cells.jsonl").write_text("".join(
        json.dumps({"cell": cell, "dataset": "cars", "method": method, "code": code, "config": "x",
                    "sentence": said, "seconds": 1.0, "ended": f"2026-01-0{at + 1}"}) + "\n"
        for at, (cell, method, code, said) in enumerate(rows)
    ) + '{"cell": "cut')


def filled(root: Path) -> None:
    write_seeds(root, "FedAvg", [70.0, 80.0])
    write_seeds(root, "FedAvg", [50.0, 60.0], "Cars")
    write_seeds(root, "FedProx", [90.0, 90.0])


def made(root: Path) -> str:
    return sweep_page(collect([root]), [root], root, {"FedAvg": "FedAvg: card"}, "", "fedvlm r")


def test_a_sweep_page_has_means_ranks_and_gaps(tmp_path: Path, undrawn: None):
    filled(tmp_path)
    journal(tmp_path)
    page = made(tmp_path)
    found = Reader(page)
    assert "Sweep all & <more>" in found.text()
    assert cells_below(page, "<h4>personal</h4>") == [
        ["FedAvg", "65.0 ± 7.1", "4", "55.0 ± 7.1", "75.0 ± 7.1"],
        ["FedProx", "-", "-", "-", "90.0 ± 0.0"]]
    assert "<strong>90.0" not in page, "20 and 10 points of two seeds are not significant"
    assert cells_below(page, 'id="matrix"') == [
        ["FedAvg", "2", "2", "none"], ["FedProx", "none, 2 failed", "2", "none"],
        ["Ditto", "none", "none", "none"]]
    gaps = found.text("missing")
    assert "the plan has 18 cells" in gaps and "2 failed" in gaps
    assert "last & least" in gaps and "no images" not in gaps, "the last attempt counts"
    assert "exit code -9" in gaps and "stopped" not in gaps
    assert "Not all runs are here (2 failed)" in found.text()
    assert found.text("cards") == "Method cards FedAvg FedAvg: card"


def test_a_sweep_page_counts_in_how_many_runs_federation_pays(tmp_path: Path, undrawn: None):
    write(tmp_path, "FedAvg", 8, 8)
    said = Reader(made(tmp_path)).text()
    assert "FedAvg: federation pays in 1 of 1, is worse than alone in 0, test images cannot" in said
    filled(tmp_path / "without")
    said = Reader(made(tmp_path / "without")).text()
    assert "federation pays" not in said


def test_methods_can_be_hidden_and_cells_lead_to_their_runs(tmp_path: Path):
    nasty = 'Fed"<b>'
    for name, value in (("FedAvg", 70.0), ("Ditto", 60.0), (nasty, 50.0)):
        for data in ("Cifar100", "EuroSAT"):
            write_run(tmp_path, name, data, last={"personal": value}, curve=[1, value])
    papers = {"FedAvg": Paper("FedAvg", "one shared model"),
              "Ditto": Paper("Ditto", "personal models")}
    page = sweep_page(collect([tmp_path]), [tmp_path], tmp_path, {}, papers=papers)
    found = Reader(page)
    switches = [v for tag, name, v in found.attributes if (tag, name) == ("input", "value")]
    assert switches == [nasty, "FedAvg", "Ditto"], "by family"
    for name in switches:
        tags = {tag for tag, key, v in found.attributes if (key, v) == ("data-method", name)}
        assert tags == {"tr", "label", "g"}, "rows, boxes and lines of a method have its name"
    words = [v for tag, name, v in found.attributes if name == "data-words"]
    assert '"FedAvg" "CIFAR-100"' in words
    assert ["FedAvg", "CIFAR-100"] in [row[:2] for row in cells_below(page, 'id="run-table"')]
    assert [row[0] for row in cells_below(page, "<h4>personal</h4>")][:2] == ["FedAvg", "Ditto"]


def test_unfinished_and_damaged_runs_are_listed(tmp_path: Path, undrawn: None):
    filled(tmp_path)
    left = tmp_path / "personal/Pets/shots_1/FedX/tiny/p/seed1"
    left.mkdir(parents=True)
    (left / "manifest.json").write_text("{}")
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "results.json").write_text("{")
    gaps = Reader(made(tmp_path)).text("missing")
    assert "unfinished" in gaps and "shots_1/FedX/tiny/p/seed1" in gaps
    assert "bad/results.json is damaged" in gaps


def test_configs_that_differ_are_named_with_their_owners(tmp_path: Path, undrawn: None):
    write_run(tmp_path, "FedAvg", config={"OPTIM.LR": 0.1}, last={"personal": 1.0})
    write_run(tmp_path, "FedProx", config={"OPTIM.LR": 0.2}, last={"personal": 1.0})
    found = Reader(made(tmp_path)).text("differences")
    assert "OPTIM.LR 0.1 : FedAvg 0.2 : FedProx" in found and "SEED" not in found


def test_hostile_names_stay_text_and_links_stay_inside(tmp_path: Path, undrawn: None):
    path = whole_run(tmp_path, NASTY, dataset=NASTY, folder='a "b" <c> &%20#')
    write_run(tmp_path, "FedAvg", NASTY, last={"personal": 1.0}, info={"command": NASTY})
    (path / "report.html").write_text("x")
    page = sweep_page(collect([tmp_path]), [tmp_path], tmp_path, {NASTY: NASTY}, NASTY, NASTY)
    found = Reader(page)
    assert found.tags["script"] == found.tags["style"] == 1 and found.tags["b"] == 0
    links = [v for tag, name, v in found.attributes if (tag, name) == ("a", "href") and v[0] != "#"]
    assert links == ["a%20%22b%22%20%3Cc%3E%20%26%2520%23/seed1/report.html"]
    assert [k for k, n in found.ids.items() if n > 1] == []


def test_the_verb_writes_the_page_of_a_run_and_of_all(
    tmp_path: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
):
    filled(tmp_path)
    run = collect([tmp_path]).runs[0]
    assert cli.main(["report", str(run.path), "--title", "My run"]) == 0
    assert f"report: {run.path / 'report.html'}" in capsys.readouterr().out
    page = (run.path / "report.html").read_text()
    assert "<h1>My run</h1>" in page and "all trained tensors are averaged" in page  # its card
    into = tmp_path / "pages"
    into.mkdir()
    assert cli.main(["report", str(tmp_path), "--into", str(into / "a.html"), "--runs"]) == 0
    page = (into / "a.html").read_text()
    links = [v for tag, name, v in Reader(page).attributes
             if (tag, name) == ("a", "href") and v[0] != "#"]
    assert len(links) == 6 and all((into / link).is_file() for link in links)


@pytest.mark.parametrize(("words", "code", "said"), [
    (["report", "nowhere"], 3, "not a folder"), (["report", "."], 3, "no finished run"),
    (["report", "sweeps/one"], 3, "give the OUTPUT_DIR"),
    (["report", ".", "--into", "none/x.html"], 2, "folder none does not exist"),
    (["report", ".", "--into", "x.pdf"], 2, "end the file's name in .html"),
])
def test_mistakes_are_one_sentence(
    words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    journal(tmp_path)
    assert cli.main(words) == code
    err = capsys.readouterr().err
    assert said in err and len(err.strip().splitlines()) == 1


def test_a_long_run_ends_with_its_page_and_a_short_one_says_how(
    tmp_path: Path, undrawn: None, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    path = whole_run(tmp_path)
    show.say_results(path, show.WORTH / 2)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"results: {path}", f"report page: fedvlm report {path}"]
    assert not (path / "report.html").exists()
    show.say_results(path, show.WORTH)
    assert capsys.readouterr().out.splitlines()[1] == f"report page: {path / 'report.html'}"
    first = (path / "report.html").read_bytes()
    assert cli.main(["report", str(path)]) == 0
    assert (path / "report.html").read_bytes() == first
    monkeypatch.setattr(figures, "of_run", lambda *_: 1 / 0)
    capsys.readouterr()
    show.say_results(path, show.WORTH)  # a page that fails ends no run
    shown = capsys.readouterr()
    assert "division by zero" in shown.err and f"report page: fedvlm report {path}" in shown.out


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_the_script_runs_in_a_browser(tmp_path: Path):
    whole_run(tmp_path)
    assert cli.main(["report", str(tmp_path), "--into", str(tmp_path / "a.html")]) == 0
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "a.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )
    assert '<button type="button">accuracy (%)</button>' in done.stdout
    assert re.search(r"<output[^>]*>6 of 6</output>", done.stdout)
