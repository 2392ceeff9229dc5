"""The pages of ``docs/`` keep their word: what stands there runs, and shows what it shows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import fold
from fedvlm.federation.cards import trainer_files
from tests.docs.pages import BLOCK, DOCS, Session, blocks, pages, read, shown, words_of

ELSEWHERE = {
    "python.md": "run by tests/api/test_page.py",
    "architecture.md": "signatures, not programs",
}
USES = ("predict", "evaluate", "adapt", "export", "figures")
README = DOCS.parent / "README.md"
PAGES = [p for p in pages() if p.name not in ELSEWHERE]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; variables that a page sets, and its sites, are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    yield tmp_path
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
    for mark in tmp_path.glob("*/states/.runs/RUNNING"):  # of a page that failed
        main(["site", "stop", str(mark.parents[2] / "site.yaml")])


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_block_runs(page: Path, folder: Path) -> None:
    Session(page).run()


def test_what_a_block_shows_is_compared_where_the_block_was_run(folder: Path) -> None:
    page, fence = folder / "page.md", "```"
    run = f"{fence}sh\necho a\n{fence}\n{fence}text\n{{}}\n{fence}\n"
    page.write_text(run.format("a") + "<!-- not run: why -->\n" + run.format("c") + run.format("a"))
    Session(page).run()
    page.write_text(run.format("b"))
    with pytest.raises(AssertionError, match="was not said: b"):
        Session(page).run()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_is_read_by_its_parser(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        for command in block.commands if block.language == "sh" else []:
            read(command)


def test_an_own_methods_model_is_used_with_its_file() -> None:
    """Of a block that is not run nobody else would notice."""
    stems, seen = {fold(stem) for stem in trainer_files()}, 0
    for page in PAGES:
        for command in [c for b in blocks(page) if b.language == "sh" for c in b.commands]:
            words = words_of(command) or []
            parts = words[1].split("/") if len(words) > 1 and words[0] in USES else []
            method = next((p for p, q in zip(parts[1:], parts, strict=False)
                           if q.startswith("shots_")), "")
            if method and not fold(method).startswith(tuple(stems)):
                seen += 1
                assert {"--trainer", "--trust-code"} & {*words}, f"{page.name}: {command}"
    assert seen > 1


def test_every_verb_in_a_sentence_exists() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in [*DOCS.glob("*.md"), README]}
    named = {(name, verb) for name, text in texts.items()
             for verb in re.findall(r"`fedvlm ([a-z][a-z-]+)", text)}
    assert len(named) > 40
    assert [pair for pair in sorted(named) if pair[1] not in verbs()] == []


def test_first_pages_count_the_methods() -> None:
    for page in (README, DOCS / "index.md"):
        said = re.findall(r"runs\s(\d+)\s(?:published|federated)", page.read_text(encoding="utf-8"))
        assert said == [str(len(trainer_files()))], page.name


def test_every_block_has_a_known_language_and_reasons_are_given() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("\n```") == 2 * len(BLOCK.findall(text)), f"{page.name}: an open block"
        known = {"sh", "python", "text", "yaml", "json", "csv"}
        assert {b.language for b in blocks(page)} <= known, page.name
    every = [b for p in pages() for b in blocks(p)]
    assert len([b for b in every if b.language == "sh" and not b.why]) > 20
    assert all(len(b.why) > 5 for b in every if b.why)


def test_a_page_that_lies_is_caught(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("```sh\necho 12 apples\n```\n```text\n3 apples\n```\n")
    Session(page).run()
    for wrong in ("```sh\necho 12 apples\n```\n```text\n3 pears\n```\n", "```sh\nfalse\n```\n",
                  "```sh\nfedvlm list NoSuchMethod\n```\n", "```python\nassert False\n```\n"):
        page.write_text(wrong)
        with pytest.raises(AssertionError):
            Session(page).run()
    assert shown("a  1.5\n...\n") == ["a N"]
