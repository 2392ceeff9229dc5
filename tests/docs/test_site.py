"""The pages that are made of code hold all of it, and the site builds without a dead link."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site import cases, commands, methods, notebooks
from fedvlm.cli.verbs import verbs
from fedvlm.config.keys import default_schema
from fedvlm.federation.cards import trainer_files
from tests.jobs import REPOSITORY


def test_every_method_has_a_page_and_one_place_in_the_index() -> None:
    pages = methods.pages()
    index, lines = (pages.pop(f"methods/{name}.md") for name in ("index", "lines"))
    assert "HetLoRA" in lines
    assert set(pages) == {f"methods/{stem}.md" for stem in trainer_files()}
    for path, text in pages.items():
        assert index.count(f"]({Path(path).name})") == 1, path
        assert text.count("```") % 2 == 0 and "| **Cost** |" in text and "--trainer" in text, path
    assert "| `RANK` | `8` |" in pages["methods/fedtv.md"]
    family = {m.stem: m.family for m in methods.methods()}
    assert {s for s, f in family.items() if f == methods.NONE} == {
        "clip_adapter", "clip_lora", "local_only", "tip_adapter", "tip_adapter_f", "zeroshot"
    }
    assert family["fedtv"] == family["promptfl"] == methods.OWN
    assert family["fedprox"] == family["scaffold"] == methods.ONE
    assert family["fedper"] == family["fedrep"] == methods.PART
    assert family["ditto"] == family["per_fedavg"] == methods.COPY


def test_every_verb_and_every_key_is_on_its_page() -> None:
    pages = commands.pages()
    for name, verb in verbs().items():
        assert f"### fedvlm {name}\n" in pages[commands.COMMANDS], name
        assert verb.module().EXAMPLES[0] in pages[commands.COMMANDS], name
    used = {key for key, option in default_schema().items() if option.used}
    lines = pages[commands.KEYS].splitlines()
    assert {line.split("`")[1] for line in lines if line.startswith("| `")} == used


def test_every_published_case_is_a_row_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "repository", lambda: tmp_path)
    assert cases.pages() == {}
    folder = tmp_path / "docs/results"
    folder.mkdir(parents=True)
    names = list(cases.HEAD)
    (folder / cases.FILE).write_text(
        f"{','.join(names)},sd\n" + f"{','.join(['a|b', *names[1:]])},1.0\n" * 2, encoding="utf-8")
    lines = cases.pages()[cases.PAGE].splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 2 and "a\\|b" in table[2]
    assert all(line.replace("\\|", "").count("|") == len(names) + 1 for line in table)


@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="pip install 'fedvlm[docs]'")
def test_pages_of_results_have_the_whole_width() -> None:
    """A list of contents beside wide tables cuts them off at the right."""
    code = """
from types import SimpleNamespace
from docs.site import hooks
for path in ("results/with_what.md", "results/map/methods.md", "tables.md"):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={})
    print(hooks.on_page_markdown("[text](cases.csv)", page), page.meta.get("hide"))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True,
                          text=True, check=True)
    assert done.stdout.splitlines() == ["[text](cases.md) ['toc']"] * 2 + ["[text](cases.md) None"]


def test_notebooks_are_kept_clean() -> None:
    """Text output only, which their pages show; ``python -m docs.site.notebooks`` makes it anew."""
    for path in notebooks.notebooks():
        book = json.loads(path.read_text(encoding="utf-8"))
        assert book == notebooks.cleaned(book), path
        code = [c for c in book["cells"] if c["cell_type"] == "code"]
        assert sum(bool(c["outputs"]) for c in code) >= len(code) / 2, path
        assert path.stat().st_size < 20_000
    assert len(notebooks.pages()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda p: p.stem)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("nbclient", "ipykernel", "pandas"):
        pytest.importorskip(package)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    book = notebooks.execute(path, tmp_path)
    old = json.loads(path.read_text(encoding="utf-8"))
    for new, kept in zip(notebooks.cleaned(book)["cells"], old["cells"], strict=True):
        assert bool(new.get("outputs")) == bool(kept.get("outputs")), kept["source"]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="pip install 'fedvlm[docs]'")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/methods/fedtv.html").is_file()
    text = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in text, "the site loads something from elsewhere"


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="pip install 'fedvlm[docs]'")
def test_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    """With the words of ``make docs``: mkdocs counts no warning where it is told to be quiet."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    (words,) = re.findall(r"-m (mkdocs build .*)", makefile)
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs")
    for name in ("mkdocs.yml", "fedvlm", "trainers", "configs", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    with (tmp_path / "docs/files.md").open("a", encoding="utf-8") as file:
        file.write("\n[a page](gone.md), [a section](seals.md#no-such-section), "
                   "[a parameter][fedvlm.api.run.Run.nowhere]\n")
    done = subprocess.run(
        [sys.executable, "-m", *words.split(), "-f", str(tmp_path / "mkdocs.yml"),
         "-d", str(tmp_path / "site")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )
    printed = done.stdout + done.stderr
    assert done.returncode != 0 and "3 warnings" in printed
    for dead in ("'gone.md'", "'#no-such-section'", "'fedvlm.api.run.Run.nowhere'"):
        assert dead in printed
