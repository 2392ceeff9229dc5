"""The shell scripts: what they hand to ``federated_main.py``, and one of them run for real.

A stand-in for Python writes its arguments down; the command lines are then read in this process.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.data.builtin import sets as builtin
from fedvlm.data.catalog import dataset_info
from fedvlm.job.flags import parse
from fedvlm.job.resolve import Job, resolve

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "scripts").rglob("*.sh"))
DATASETS = sorted(
    p.stem for p in (ROOT / "configs" / "datasets").glob("*.yaml")
    if not p.stem.startswith("custom_")
)
ARGUMENTS = {  # of the scripts that want some; the others do with a trainer
    "dataset": ("digits", "FedAvg"),
    "few_shot/run": ("digits", "FedAvg", "4"),
    "few_shot/curve": ("digits", "FedAvg"),
    "base2new/run": ("shapes", "FedAvg"),
    "personal/dirichlet": ("cifar100", "FedAvg", "0.1"),
    "cross_dataset/run": ("digits", "FedAvg", "shapes,new_nouns"),
    "domain_generalisation/leave_one_out": ("shapes_domains", "FedAvg", "photo sketch clean"),
}
NUL = "\\0"


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.py")), ids=lambda p: p.stem)
def test_what_a_script_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedvlm"):
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names):
                if not hasattr(module, name):
                    importlib.import_module(f"{node.module}.{name}")


def name_of(script: Path) -> str:
    return str(script.relative_to(ROOT / "scripts").with_suffix(""))


def spawn(script: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script), *words], env=os.environ | env, capture_output=True, text=True,
        timeout=300, check=False,
    )


def commands(script: Path, tmp_path: Path, *words: str) -> list[list[str]]:
    """Return the arguments of each call of ``python`` that the script makes."""
    tmp_path.mkdir(exist_ok=True)
    written = tmp_path / "written"
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\nprintf '%s{NUL}' \"$@\" END >> '{written}'\n")
    stand_in.chmod(0o755)
    done = spawn(script, *words, PYTHON=str(stand_in), DATA="/nowhere/DATA/")
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = [[]]
    for word in written.read_text().split("\0")[:-1]:
        if word == "END":
            found.append([])
        else:
            found[-1].append(word)
    calls = found[:-1]
    assert all(Path(call[0]).resolve() == ROOT / "federated_main.py" for call in calls)
    return [call[1:] for call in calls]


@cache
def _jobs(words: tuple[str, ...]) -> tuple[Job, ...]:
    return resolve(parse(list(words))).jobs


def jobs(script: str, tmp_path: Path, *words: str) -> list[tuple[Job, ...]]:
    """Return the runs of each command of a script; needs no data."""
    found = commands(ROOT / "scripts" / f"{script}.sh", tmp_path, *words)
    return [_jobs(tuple(call)) for call in found]


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_every_script(script: Path, tmp_path: Path) -> None:
    """Three to ten lines that bash reads, that say how to call them, and whose flags exist."""
    text = script.read_text()
    assert os.access(script, os.X_OK)
    lines = text.splitlines()
    assert 3 <= len(lines) <= 10 and max(map(len, lines)) <= 100
    assert lines[0] == "#!/usr/bin/env bash" and "TRAINER" in text and "[flags ...]" in text
    read = subprocess.run(["bash", "-n", str(script)], capture_output=True, check=False)
    assert read.returncode == 0, read.stderr
    words = ARGUMENTS.get(name_of(script), ("FedAvg",))
    found = jobs(name_of(script), tmp_path, *words, "--tag", "x y", "OPTIM.LR", "0.25")
    assert found
    for runs in found:
        assert [(j.cfg.SEED, j.cfg.DATA_SEED) for j in runs] == [(1, 1), (2, 2), (3, 3)]
        for job in runs:
            assert (job.cfg.TAG, job.cfg.OPTIM.LR) == ("x y", 0.25)  # the user's own flags
            assert job.cfg.TRAINER.NAME == "FedAvg" and job.cfg.DATASET.ROOT == "/nowhere/DATA/"


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_dataset_has_its_script(dataset: str, tmp_path: Path) -> None:
    (runs,) = jobs(dataset, tmp_path)
    cfg, (plain, *_) = runs[0].cfg, _jobs(("--dataset", dataset))
    texts = cfg.DATASET.get("FORMAT", "") == "texts"  # no tower for FedTV's prompts
    assert ("Thorki" if texts else "FedTV") == cfg.TRAINER.NAME
    if cfg.TEST.TARGETS:  # a set of test images only
        assert list(cfg.TEST.TARGETS) == [dataset] and cfg.DATASET.NAME == "ImageNet"
    else:
        assert cfg.DATASET.NAME == plain.cfg.DATASET.NAME


def test_settings(tmp_path: Path) -> None:
    """Every setting's script sets what makes the setting."""
    curve = jobs("few_shot/curve", tmp_path / "a", "digits", "FedAvg")
    assert [runs[0].cfg.DATASET.NUM_SHOTS for runs in curve] == [1, 2, 4, 8, 16]
    ((base, *_),) = jobs("base2new/run", tmp_path / "b", "shapes", "FedAvg")
    assert (base.cfg.DATASET.SUBSAMPLE_CLASSES, base.cfg.DATASET.NUM_SHOTS) == ("base", 16)
    every = jobs("base2new/all", tmp_path / "c", "FedAvg")
    assert len(every) == 11
    for (job, *_) in every:  # disjoint classes can be dealt
        info = dataset_info(job.cfg.DATASET.NAME)
        assert info is not None and job.cfg.FED.PARTITION == "disjoint"
        assert min(10, info.base) == job.cfg.FED.CLIENTS
    for words, clients in ((("--partition", "iid"), 10), (("--num-users", "3"), 3)):
        ((one, *_),) = jobs("base2new/run", tmp_path / str(clients), "EuroSAT", "FedAvg", *words)
        assert clients == one.cfg.FED.CLIENTS
    ((skew, *_),) = jobs("personal/dirichlet", tmp_path / "d", "cifar10", "FedAvg", "0.1")
    fed = skew.cfg.FED
    assert (fed.PARTITION, fed.BETA, fed.CLIENTS, fed.FRAC) == ("dirichlet", 0.1, 100, 0.1)
    assert skew.cfg.DATASET.NUM_SHOTS == -1
    ((transfer, *_),) = jobs("cross_dataset/imagenet", tmp_path / "e", "FedAvg")
    assert len(set(transfer.cfg.TEST.TARGETS)) == 10 and transfer.cfg.DATASET.NAME == "ImageNet"
    ((variants, *_),) = jobs("domain_generalisation/imagenet", tmp_path / "f", "FedAvg")
    assert len(set(variants.cfg.TEST.TARGETS)) == 4
    for target in (*transfer.cfg.TEST.TARGETS, *variants.cfg.TEST.TARGETS):
        assert target in DATASETS


@pytest.mark.parametrize(
    "script",
    [s for s in SCRIPTS if s.parent.name == "domain_generalisation" and s.stem in DATASETS
     and s.stem != "imagenet"],
    ids=name_of,
)
def test_every_domain_is_left_out_once(script: Path, tmp_path: Path) -> None:
    cfgs = [runs[0].cfg for runs in jobs(name_of(script), tmp_path, "FedAvg")]
    domains = [cfg.FED.HELD_OUT_DOMAIN for cfg in cfgs]
    info = dataset_info(cfgs[0].DATASET.NAME)
    assert info is not None and len(set(domains)) == len(domains)
    assert not info.domains or domains == list(info.domains)
    assert {(cfg.FED.PARTITION, cfg.FED.CLIENTS) for cfg in cfgs} == {("domain", len(domains) - 1)}


def test_every_set_of_known_domains_has_a_script() -> None:
    there = {s.stem for s in SCRIPTS if s.parent.name == "domain_generalisation"}
    for dataset in DATASETS:
        node = _jobs(("--dataset", dataset))[0].cfg.DATASET
        info = dataset_info(node.NAME)
        if node.get("FORMAT", "") == "texts":
            continue
        assert info is not None and (not info.domains or dataset in there), dataset


def test_sets_without_data_are_left_out_and_named(tmp_path: Path) -> None:
    """Only exit code 3 goes on to the next set: a wrong word is wrong for all of them."""
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\necho "$*" >> "$0.log"\n'
                        'case "$*" in *imagenet*|*dtd*) exit 3 ;; *ucf*) exit ${END:-0} ;; esac\n')
    stand_in.chmod(0o755)
    script = ROOT / "scripts" / "base2new" / "all.sh"
    done = spawn(script, "FedAvg", PYTHON=str(stand_in))
    assert done.returncode == 3 and done.stderr == "left out, no data: imagenet dtd\n"
    assert len(Path(f"{stand_in}.log").read_text().splitlines()) == 11
    assert spawn(script, "FedAvg", PYTHON=str(stand_in), END="2").returncode == 2


def test_a_missing_argument_is_named() -> None:
    done = spawn(ROOT / "scripts" / "few_shot" / "run.sh", "digits")
    assert done.returncode != 0 and "TRAINER" in done.stderr


@pytest.mark.parametrize("script, words", [
    ("domain_generalisation/shapes_domains", ("FedAvg",)),
    ("cross_dataset/run", ("new_nouns", "FedTV", "shapes")),
])
def test_dry_run(
    script: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first command builds everything, on the embedded backbone and a (small) built-in set."""
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builtin, "_PER_CLASS", (8, 2, 8))
    monkeypatch.setattr(builtin, "_PER_DOMAIN_AND_CLASS", 8)
    found = commands(ROOT / "scripts" / f"{script}.sh", tmp_path, *words, "--backbone", "tiny")
    monkeypatch.chdir(tmp_path)
    assert main([*found[0], "--root", ".", "--seeds", "1", "--shots", "1", "--dry-run"]) == 0
    assert "dry run: nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "output").exists()


def test_for_real(tmp_path: Path) -> None:
    """Through bash and a Python of its own, from another folder."""
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "digits.sh"), "FedAvg", "--print-config"], cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DATASET.NAME Digits") == 3 and "flag --seeds" in done.stdout
