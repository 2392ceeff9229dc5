"""Pages: valid, self-contained, escaped, the same bytes every time, and with the right numbers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedvlm.report.collect import Run, collect
from fedvlm.report.pages import html as page
from fedvlm.report.pages import run as sections_origin
from fedvlm.report.pages.html import COLOURS, Html, cell, element, escaped, inline, table
from fedvlm.report.pages.run import caveats, run_page, signed
from tests.report.page_runs import NASTY, Reader, whole_run

CARD = ("FedAvg: the mean.\n\nPaper: McMahan <et al.> 2017.\nEquations:\n    w = sum p_k w_k\n"
        "Cost: low.")


def only(root: Path) -> Run:
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


def test_elements_escape_what_is_not_theirs():
    found = element("td", "<b>&\"'", Html("<i>x</i>"), None, 3, title='"><x', data_n=1, hidden=True,
                    class_=None)
    assert found == ('<td title="&quot;&gt;&lt;x" data-n="1" hidden>&lt;b&gt;&amp;&quot;&#x27;'
                     "<i>x</i>3</td>")
    assert element("meta", name="a") == '<meta name="a">'
    assert escaped("a\nb\x00") == "a\\nb\\x00"


def test_a_table_ranks_numbers_and_keeps_unknown_ones_apart():
    found = table(["a", "b"], [["x", cell("1.5 %", 1.5)], ["y", cell("-", None)]], sortable=True)
    assert 'data-value="1.5"' in found and 'data-value=""' in found
    assert '<th scope="col" class="number">b</th>' in found
    assert found.count('scope="row"') == 2


@pytest.mark.parametrize(("value", "words"), [(1.25, "+1.2"), (-3.0, "\N{MINUS SIGN}3.0"),
                                              (-0.04, "0.0"), (0.0, "0.0")])
def test_differences_have_a_sign(value: float, words: str):
    assert signed(value) == words


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
    assert "personal 70.0 % +24.5 on zero-shot (45.5)" in found
    assert "global 60.0 % \N{MINUS SIGN}5.0 on zero-shot (65.0)" in found
    assert "Standard deviation over clients 5.0" in found
    assert "new 50.0 % the personal models" in found, "no gain where zero-shot has no such number"


def test_caveats_come_before_the_numbers(text: str):
    box = text[text.index('class="caveats"'):text.index('id="headline"')]
    assert "not comparable with papers" in box
    notes = Reader(text).text("notes")
    assert "plain note" in notes and "not comparable" not in notes


def test_caveats_are_extra_data_subsets_dropped_clients_and_changed_code(tmp_path: Path):
    whole_run(tmp_path, extra_data="a proxy set", subsample="base")
    run = only(tmp_path)
    records = [{"dropped": {"10": "nan", "9": "nan"}}, {"dropped": {}}]
    found = caveats(replace(run, info={"git": {"changed": True}}), records)
    assert [next(w for w in ("proxy", "base", "9, 10", "commit") if w in one) for one in found] == [
        "proxy", "base", "9, 10", "commit"]
    assert caveats(replace(run, info={}, protocol={"setting": "base2new"}), []) == []


def test_clients_have_their_data_accuracy_gain_loss_and_bytes(text: str):
    rows = re.findall(r"<tr>(.*?)</tr>", text[text.index('id="client-table"'):], re.DOTALL)
    # client 2: 3 x 8 % gained on 10 %, 7 images of one class, 4 rounds x 3000 bytes, loss 3
    words = re.sub(r"<[^>]+>", " ", rows[3]).split()
    assert words == ["2", "art", "&amp;", "&lt;b&gt;", "7", "1", "10", "34.0", "+24.0", "3.000",
                     "0.012", "MB", "0", "B"]
    assert 'data-value="34.0"' in rows[3]


def test_traffic_names_every_tensor(text: str):
    found = Reader(text).text("work")
    assert "text.ctx 1.500 MB 1.000 MB 75.0 %" in found
    assert "head.weight 0.500 MB 0 B 25.0 %" in found


def test_config_has_values_and_origins_what_was_set_first(tmp_path: Path):
    path = whole_run(tmp_path)
    found = sections_origin.settings(path / "config.yaml")
    assert found == {
        "FED.CLIENTS": ("3", "flag --num-users"), "FED.ROUNDS": ("4", "default"),
        "OPTIM.LR": ("0.01", "configs/trainers/<x>.yaml"), "TAG": ("'a # b: c'", "flag --tag"),
        "NAMES": ("[a, b]", "default"), "EMPTY": ("{}", "default"),
    }
    shown = Reader(sections_origin.config(only(tmp_path))).text("config-table")
    order = [shown.index(k) for k in ("FED.CLIENTS", "OPTIM.LR", "TAG", "EMPTY", "FED.ROUNDS")]
    assert order == sorted(order)


def test_the_config_of_a_real_run_is_read_whole(tmp_path: Path):
    from fedvlm.runs.identity import config_text

    values = {"A.B": "x # y", "A.C": [1.5, "two"], "D": "", "E": "line\nbreak", "F": "it's: {x}"}
    file = tmp_path / "config.yaml"
    file.write_text(config_text(values, {k: f"origin # of {k}" for k in values}))
    found = sections_origin.settings(file)
    assert {k: origin for k, (_, origin) in found.items()} == {
        k: f"origin # of {k}" for k in values}
    assert found["A.C"][0] == "[1.5, two]"


def test_manifest_and_card_are_shown(text: str):
    found = Reader(text)
    assert "box<1>" in found.text("manifest") and "torch 2.0" in found.text("manifest")
    assert "abc, with changes that are in no commit" in found.text("manifest")
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
        assert inside and inside[1] == page.static(name)
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


def test_figures_lose_their_sheet_and_share_no_id():
    svg = ('<?xml version="1.0"?><!DOCTYPE svg><svg width="100.5pt" height="9pt" '
           'viewBox="0 0 100 9"><metadata>m</metadata><defs>\n<style type="text/css">*{}</style>'
           '\n</defs><g id="a"><path d="M 1.23456 2" style="fill: #222222; stroke: #123456"/>'
           '<use xlink:href="#a" clip-path="url(#a)"/></g></svg>')
    assert inline(svg, "one", "what <it> is") == (
        '<svg viewBox="0 0 100 9" role="img" aria-label="what &lt;it&gt; is" style="width: 186px">'
        '<g id="one-a"><path d="M 1.23 2" style="fill:var(--fig-ink);stroke:#123456"/>'
        '<use href="#one-a" clip-path="url(#one-a)"/></g></svg>'
    )
    with pytest.raises(ValueError, match="no SVG"):
        inline("<p>", "x", "")


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", text))


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_in_light_and_dark():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    light, _, rest = page.static("page.css").partition("@media screen and (prefers-color-scheme")
    themes = [variables(light), variables(light) | variables(rest)]
    for theme in themes:
        for ink in ("--ink", "--soft", "--accent", "--up", "--down"):
            for ground in ("--ground", "--card", "--stripe"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        assert contrast(theme["--warn"], theme["--warn-ground"]) >= 4.5
        for ink in ("--fig-ink", "--fig-faint"):
            assert contrast(theme[ink], theme["--fig-ground"]) >= 4.5, ink
    assert set(COLOURS.values()) <= set(themes[0]) and themes[0] != themes[1]
