"""Names, groups and citations out of the cards."""

from __future__ import annotations

import re

from fedvlm.federation.cards import card, trainer_files
from fedvlm.report.tables.papers import ALONE, ONE_MODEL, PERSONAL, bibliography, paper_of

MOON = """MOON: features are drawn to those of the received model.

Paper: Li et al., Model-Contrastive Federated Learning, CVPR 2021.
Shared: all of PEFT
Personal: none (the last local model stays with the client)
"""


def test_an_entry_says_what_the_card_says() -> None:
    moon = paper_of(MOON, "moon")
    assert (moon.title, moon.key, moon.group) == ("MOON", "li2021model", ONE_MODEL)
    assert moon.bibtex == (
        "@inproceedings{li2021model,\n  title = {{Model-Contrastive Federated Learning}},\n"
        "  author = {Li and others},\n"
        "  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},\n"
        "  year = {2021},\n}\n"
    )


def test_no_author_is_made_up_and_no_paper_is_no_entry() -> None:
    told = paper_of("X: y.\n\nPaper: X (a & b), WWW 2026. Only its title was there.\n", "X")
    assert told.key == "x2026" and "author" not in told.bibtex and r"a \& b" in told.bibtex
    assert paper_of("X: y.\n\nPaper: no paper; held since Li et al. 2017, and\n", "X").key == ""
    assert paper_of("", "mine") == paper_of("no colon", "mine")


def test_every_card_has_a_group_and_every_paper_a_key_of_its_own() -> None:
    papers = {stem: paper_of(card(path), stem) for stem, path in trainer_files().items()}
    groups = {stem: paper.group for stem, paper in papers.items()}
    assert {s for s, g in groups.items() if g == ALONE} == {
        "clip_adapter", "clip_lora", "local_only", "tip_adapter", "tip_adapter_f", "zeroshot"
    }
    assert {s for s, g in groups.items() if g == ONE_MODEL} == {
        "afl", "cocoop", "fedavg", "fedclip", "feddyn", "fedmvp", "fedpft", "fedprox", "fedtpg",
        "hetlora", "kgcoop", "maple", "moon", "prograd", "promptfl", "promptsrc", "sage",
        "scaffold", "tofa", "trip", "vpt"}
    assert {groups["fedtv"], groups["fedproto"], groups["fedala"]} == {PERSONAL}
    again = papers.pop("tip_adapter_f").key  # both forms are of one paper
    assert again == papers["tip_adapter"].key
    keys = [paper.key for paper in papers.values() if paper.key]
    assert len(set(keys)) == len(keys) == len(papers) - 1 and not papers["local_only"].key
    text = bibliography(list(papers.values()))
    assert text.count("{") == text.count("}") and re.findall(r"@\w+\{(\w+),", text) == sorted(keys)
