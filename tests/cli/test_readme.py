"""The pages keep their word: every command of README.md and CONTRIBUTING.md is read and tried.

What runs here in seconds is run; what needs other data, weights or an hour is parsed and resolved.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from evidence.commands import read_commands
from fedvlm.cli import main as cli
from fedvlm.config.build import flat
from fedvlm.core.errors import fold
from fedvlm.federation.cards import trainer_files
from fedvlm.job.flags import by_name, parse
from fedvlm.job.resolve import resolve
from tests import jobs
from tests.data.miniatures.own import write_tree
from tests.data.miniatures.published import tree_of
from tests.jobs import REPOSITORY

PAGES = {name: (REPOSITORY / name).read_text(encoding="utf-8")
         for name in ("README.md", "CONTRIBUTING.md")}
START = (REPOSITORY / "docs/start.md").read_text(encoding="utf-8")
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def inline(text: str) -> list[str]:
    """Return what stands in backticks inside the prose."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def commands(name: str) -> list[str]:
    """Return a page's command lines: of its ``sh`` blocks, and whole commands in its prose."""
    fenced = [line for block in blocks(PAGES[name], "sh") for line in block.splitlines()]
    prose = [w for w in inline(PAGES[name]) if re.match(r"(python|pytest|make) \S", w)]
    return [" ".join(shlex.split(c, comments=True)) for c in (*fenced, *prose) if c.strip()]


METHODS = {"prox.py": "MyProx", "torch_head.py": "TorchHead"}  # in the order of the page
AFTER = ("sweep", "table", "figures", "report", "compare", "verify")  # read runs
DATA = ("doctor", "data", "features")
ALL = [(name, command) for name in PAGES for command in commands(name)]


def jobs_of(command: str) -> list[list[str]]:
    """Return the words after ``python federated_main.py`` of a command, if it is one."""
    words = shlex.split(command)
    return [words[2:]] if words[:2] == ["python", "federated_main.py"] else []


@pytest.fixture
def method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the methods of CONTRIBUTING.md, saved as the page says; the current one."""
    codes = blocks(PAGES["CONTRIBUTING.md"], "python")
    for file, code in zip(METHODS, codes, strict=True):
        (tmp_path / file).write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pages_are_finished_and_begin_with_a_command():
    for name, text in PAGES.items():
        assert "@@" not in text, f"{name} holds a placeholder"
    lines = PAGES["README.md"].splitlines()
    assert next(i for i, line in enumerate(lines, 1) if line.startswith("make ")) <= 15


def test_every_command_is_of_a_kind_that_is_tried():
    assert len(ALL) >= 10
    verbs = "list|check|new-trainer|" + "|".join([*AFTER, *DATA])
    kinds = rf"make [a-z-]+$|python federated_main\.py |python -m fedvlm ({verbs})\b|pytest |" \
            r"python scripts/evidence bench "
    assert [c for _, c in ALL if not re.match(kinds, c)] == []


@pytest.mark.parametrize("command", sorted({c for _, c in ALL if c.startswith("make ")}))
def test_make_targets_exist(command: str):
    assert re.search(rf"^{command.split()[1]}:.*##", MAKEFILE, flags=re.MULTILINE)


@pytest.mark.parametrize("command", sorted({c for _, c in ALL if jobs_of(c)}))
def test_main_jobs_resolve_and_every_flag_takes_effect(method: Path, command: str):
    (words,) = jobs_of(command)
    args = parse(words)
    asked = resolve(args)
    assert asked.notes == ()
    assert [job.cfg.SEED for job in asked.jobs] == (args.seeds or [1])
    for job in asked.jobs:
        for key, typed in args.flags.items():
            assert str(flat(job.cfg)[key]) == typed, key
            assert job.origins[key] == f"flag {args.flag_names[key]}"


@pytest.mark.parametrize(
    "command", sorted({c for _, c in ALL if jobs_of(c) and "--demo" in c} | {
        "python federated_main.py --demo"  # what `make demo` runs
    }),
)
def test_demos_run(method: Path, command: str, capsys: pytest.CaptureFixture[str]):
    (words,) = jobs_of(command)
    assert cli.main([*words, "--rounds", "1", "--output-dir", "out"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^results: out/", said, flags=re.MULTILINE)
    header = next(line for line in said.splitlines() if "personal  personal_worst" in line)
    shown = next(line for line in START.splitlines() if "personal_worst  g" in line)
    columns = shown.split()
    if "TorchHead" in command:  # a classifier of the base classes: nothing to say of unseen ones
        columns = columns[: columns.index("new")]
    assert header.split() == columns, "the table of the first steps has other columns"


def test_make_demo_runs_the_demo():
    assert re.search(r"^demo:.*\n\t.*federated_main\.py --demo$", MAKEFILE, flags=re.MULTILINE)


@pytest.mark.parametrize("file", METHODS)
def test_the_methods_of_the_page_pass_their_check(
    method: Path, file: str, capsys: pytest.CaptureFixture[str]
):
    spec = f"./{file}:{METHODS[file]}"
    assert f"python -m fedvlm check {spec}" in commands("CONTRIBUTING.md")
    code = cli.main(["check", spec])
    said = capsys.readouterr().out
    assert code == 0, said
    assert said.splitlines()[-1].endswith("0 broken")
    assert cli.main(["list", f"./{file}"]) == 0
    (command,) = (c for c in commands("CONTRIBUTING.md") if jobs_of(c) and spec in c)
    assert "Command: " + command.removesuffix(" --rounds 2") in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted({c for _, c in ALL if "fedvlm list" in c}))
def test_list_commands_run(command: str, capsys: pytest.CaptureFixture[str]):
    words = shlex.split(command)[3:]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    if len(words) > 1:
        assert "Departures from the authors' code:" in out
    else:
        assert all(fold(name) in fold(out) for name in trainer_files())


def test_make_bench_is_what_the_page_says_it_is():
    pattern = r"^bench:.*\n\t\$\(BIN\)/(python scripts/evidence .*)$"
    (command,) = re.findall(pattern, MAKEFILE, re.MULTILINE)
    args = read_commands()["bench"].parser().parse_args(shlex.split(command)[3:])
    assert (args.what, args.backbone, args.classes) == ("fedtv", "ViT-B/16", 50)
    assert "`make bench` runs the reference recipe" in PAGES["README.md"]


def verbs(*wanted: str) -> list[str]:
    """Return the pages' commands of these verbs, in the order of the pages."""
    found = [c for _, c in ALL if c.startswith("python -m fedvlm ")]
    return list(dict.fromkeys(c for c in found if shlex.split(c)[3] in wanted))


def test_what_is_made_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The sweep of the page is planned; two runs stand in for it in what is made of it."""
    commands = verbs(*AFTER)
    assert {shlex.split(c)[3] for c in commands} == set(AFTER)
    for name in ("FedAvg", "Ditto"):
        assert jobs.run(tmp_path / "output/sweep-demo", "--trainer", name) == 0
    runs = [str(p.parent) for p in sorted((tmp_path / "output").rglob("results.json"))]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = shlex.split(command)[3:]
        if words[0] == "sweep":
            words[1:2] = [str(REPOSITORY / words[1])]
            words.append("--dry-run")
        words = [runs[word == "RUN_B"] if word in ("RUN_A", "RUN_B") else word for word in words]
        capsys.readouterr()
        assert cli.main(words) == 0, command
        said = capsys.readouterr().out
        assert "FedAvg" in said or words[0] in ("figures", "report"), command
    assert sorted(p.name for p in tmp_path.glob("figures/*.svg"))
    assert list(tmp_path.rglob("*.html"))


@pytest.mark.slow
def test_what_is_said_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """On a miniature of the set that the page names, its split left out."""
    commands = verbs(*DATA)
    assert {shlex.split(c)[3] for c in commands} == set(DATA)
    tree_of("DescribableTextures", tmp_path / "DATA", without=("split",))
    write_tree(tmp_path / "photos", [""], ["cat", "dog"], 4)
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = shlex.split(command)[3:]
        away = words[:2] == ["data", "download"]
        if away:  # no network in a test: an address at which nobody answers
            (tmp_path / "EMPTY").mkdir()
            words = [word.replace("DATA/", "EMPTY/") for word in words]
            words += ["--url-base", "http://127.0.0.1:9"]
        if words[0] == "features":
            words += ["--backbone", "tiny"]
        code = cli.main(words)
        said = capsys.readouterr()
        partly = words[0] == "doctor" and not list(tmp_path.rglob("split_fedvlm*"))
        assert code == (3 if away or partly else 0), (command, said)


@pytest.mark.parametrize("name", PAGES)
def test_flags_keys_and_files_that_the_prose_names_exist(name: str):
    words = inline(PAGES[name])
    flags = [w for w in words if w.startswith("--")]
    parse([piece for w in flags for piece in shlex.split(w)])  # unknown ones are refused
    assert all(fold(w.split()[0]) in {fold(n) for n in by_name()} for w in flags)
    pairs = [w.split()[1:] for w in flags if w.startswith("--opts")]
    assert all(resolve(parse(["--demo", "--opts", *pair])) for pair in pairs)
    files = [w for w in words if re.fullmatch(r"[\w./-]+/[\w.-]+\.(py|yaml|md|json)", w)]
    linked = re.findall(r"\]\(([^):]+)\)", PAGES[name])
    bare = [f"configs/datasets/{w}" for w in words if re.fullmatch(r"\w+\.yaml", w)]
    bare = [f for f in bare if not f.endswith("/config.yaml")]  # a run folder's
    own = [f for f in [*files, *linked, *bare] if not f.startswith(("./", "DATA/"))]
    assert [f for f in own if not (REPOSITORY / f).exists()] == []
    tests = [c.split()[1] for n, c in ALL if n == name and c.startswith("pytest ")]
    assert [t for t in tests if not (REPOSITORY / t).exists()] == []
