"""A run's page: valid, self-contained, escaped, the same bytes every time, the right numbers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedvlm.report.collect import collect
from fedvlm.report.pages.clients import client_table
from fedvlm.report.pages.frame import static
from fedvlm.report.pages.numbers import headline_content
from fedvlm.report.pages.run import run_page
from fedvlm.runs.finished import FinishedRun
from tests.report.page_runs import NASTY, Reader, whole_run

CARD = ("FedAvg: the mean.\n\nPaper: McMahan <et al.> 2017.\nEquations:\n    w = sum p_k w_k\n"
        "Cost: low.")


def only(root: Path) -> FinishedRun:
    (run,) = collect([root]).runs
    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page")
    whole_run(found)
    return found


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    """A run's page: drawing its figures takes a second, so most tests read one."""
    return run_page(only(root), CARD, origin="fedvlm report x")


def test_a_run_page_is_valid_and_has_every_section(text: str):
    found = Reader(text)
    assert [k for k, n in found.ids.items() if n > 1] == []
    for key in ("headline", "numbers", "figures", "clients-section", "work", "config", "manifest",
                "method", "notes"):
        assert found.text(key), key
    assert found.tags["h1"] == 1
    linked = {v[1:] for tag, name, v in found.attributes
              if tag == "a" and name == "href" and v.startswith("#")}
    used = {v[1:] for _, name, v in found.attributes if name == "href" and v.startswith("#")}
    used |= set(re.findall(r"url\(#([^)]+)\)", " ".join(v for *_, v in found.attributes)))
    assert linked and linked | used <= set(found.ids)
    for tag, name, value in found.attributes:
        if name in ("data-filter", "data-copy"):
            assert value in found.ids, (tag, value)


def test_the_headline_has_the_run_s_numbers_and_gains(text: str):
    found = Reader(text).text("headline")
    assert "personal 70.0 % +24.5 against zero-shot (45.5)" in found
    assert "global 60.0 % \N{MINUS SIGN}5.0 against zero-shot (65.0)" in found
    assert "Standard deviation over clients 5.0" in found
    assert "new 50.0 % the personal models" in found, "no gain where zero-shot has no such number"


@pytest.mark.parametrize(("verdict", "colour"), [("costs", ' class="down"'), ("unclear", "")])
def test_a_gain_within_its_margin_has_no_colour(root: Path, verdict: str, colour: str):
    run = only(root)
    answer = {"alone": {"personal": 73.0}, "verdict": verdict}
    text = str(headline_content(replace(run, results={**run.results, "answer": answer})))
    assert f"<span{colour}>\N{MINUS SIGN}3.0</span> against each client alone (73.0)" in text
    assert '<span class="up">+24.5</span> against zero-shot' in text


def test_caveats_come_before_the_numbers(text: str):
    box = text[text.index('class="caveats"'):text.index('id="headline"')]
    assert "not comparable with papers" in box
    notes = Reader(text).text("notes")
    assert "plain note" in notes and "not comparable" not in notes


def test_clients_have_their_data_accuracy_gain_loss_and_bytes(text: str):
    rows = re.findall(r"<tr>(.*?)</tr>", text[text.index('id="client-table"'):], re.DOTALL)
    # client 2: 3 x 8 % gained on 10 %, 7 images of one class, 4 rounds x 3000 bytes, loss 3
    words = re.sub(r"<[^>]+>", " ", rows[3]).split()
    assert words == ["2", "art", "&amp;", "&lt;b&gt;", "7", "1", "10", "34.0", "+24.0", "3.000",
                     "0.012", "MB", "0", "B"]
    assert 'data-value="34.0"' in rows[3]


def test_a_clients_numbers_have_their_units(tmp_path: Path):
    (tmp_path / "partition.csv").write_text("client,domain,part,class,images\n0,,train,a,5\n")
    row = {"client": 0, "n": 10, "correct": 5, "accuracy": 50.0, "macro_f1": 41.26, "nll": 1.2345,
           "ece": 7.0, "broken": 2, "temperature": 1.5}
    found = Reader(str(client_table(
        tmp_path, [{"round": 1, "clients": [row]}], {}))).text("client-table")
    assert "macro_f1 (%) nll (nats) ece (%) broken temperature last loss" in found
    assert "41.3 1.234 7.0 2 1.500" in found


def test_traffic_names_every_tensor(text: str):
    found = Reader(text).text("work")
    assert "text.ctx 1.500 MB 1.000 MB 75.0 %" in found
    assert "head.weight 0.500 MB 0 B 25.0 %" in found


def test_manifest_and_card_are_shown(text: str):
    found = Reader(text)
    assert "box<1>" in found.text("manifest") and "torch 2.0" in found.text("manifest")
    assert "abc, with uncommitted changes" in found.text("manifest")
    assert "Paper McMahan <et al.> 2017." in found.text("method")
    assert "Equations w = sum p_k w_k Cost low." in found.text("method")
    assert "--trainer 'FedAvg'" in found.text("command")


def test_hostile_names_stay_text(tmp_path: Path):
    whole_run(tmp_path, NASTY, dataset=NASTY, tag="<img src=x onerror=alert(1)>")
    text = run_page(only(tmp_path), f"{NASTY}: card\n\nPaper: {NASTY}\n", NASTY, NASTY)
    found = Reader(text)
    assert found.tags["script"] == found.tags["style"] == found.tags["h1"] == 1
    assert found.tags["img"] == 0 and found.tags["b"] == found.tags["i"] == 0
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert NASTY in found.text("method") and "alert(1)" in found.text("clients-section") + text


def test_nothing_is_loaded_and_the_policy_says_so(text: str):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy and policy[1].startswith("default-src 'none'")
    for name, tag in (("page.css", "style"), ("page.js", "script")):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert inside and inside[1] == static(name)
        digest = base64.b64encode(hashlib.sha256(inside[1].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)", text.replace("// ", ""))
    loads = [(tag, name, v) for tag, name, v in Reader(text).attributes
             if name in ("src", "href", "action", "srcset", "data", "poster")]
    assert all(v.startswith(("#", "data:image/png;base64,")) for *_, v in loads), loads


def test_the_same_files_give_the_same_bytes(root: Path, text: str):
    assert text == run_page(only(root), CARD, origin="fedvlm report x")


def test_bare_and_damaged_runs_have_a_page(tmp_path: Path):
    path = whole_run(tmp_path)
    (path / "partition.csv").unlink()
    (path / "config.yaml").write_text("a: [")
    (path / "metrics.jsonl").write_text("")
    (path / "manifest.json").write_text("{")
    results = json.loads((path / "results.json").read_text())
    results["results"]["last"] = {"round": 0, "personal": None}
    results["run_info"] = {}
    (path / "results.json").write_text(json.dumps(results))
    found = Reader(run_page(only(tmp_path)))
    assert "no headline number" in found.text("headline")
    assert "cannot read" in found.text("config") and "cannot read" in found.text("manifest")
    assert "Not drawn" in found.text("figures")
    assert "card is not shown" in found.text("method")


@pytest.mark.slow
def test_a_hundred_clients_and_rounds_stay_below_a_megabyte(tmp_path: Path):
    whole_run(tmp_path, clients=100, rounds=100)
    assert len(run_page(only(tmp_path), CARD).encode()) < 1_000_000
