"""The run folder: names, identity, lock, manifest, metrics, results."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.repository import PACKAGE
from fedvlm.runs import manifest
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import (
    RunPath,
    config_text,
    identity_difference,
    identity_digest,
    read_results,
    safe_name,
)
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.seal import seal_of

PARTS = RunPath("base2new", "EuroSAT", 16, "FedTV", "ViT-B/16", "dirichlet-0.3", 1, 2, tag="try")
IDENTITY = {"FED": {"ROUNDS": 3, "FRAC": 0.1}, "seed": 1, "digests": {"backbone": "ab"}}


def make(root: Path | str, identity: dict[str, Any] | None = None, **kw: Any) -> RunFolder:
    return RunFolder.create(root, PARTS, IDENTITY if identity is None else identity, **kw)


# ---- names --------------------------------------------------------------------------------------
def test_path_is_the_designs() -> None:
    assert str(PARTS.relative()) == (
        "base2new/EuroSAT/shots_16/FedTV-try/ViT-B_16/dirichlet-0.3/seed1-data2"
    )


@pytest.mark.parametrize("text", [
    "..", ".", "", "../../etc/passwd", "/abs", "a" * 400, "$(touch x)", "a\nb", "a\0b", "-rf", "~",
    "x y", "é" * 100, "\udcff", "con|a", "*?", ".hidden", "`id`", "ﬁ",
])
def test_any_text_is_one_harmless_name(text: str, tmp_path: Path) -> None:
    name = safe_name(text)
    assert name and len(name.encode()) <= 60 and not set(name) & set("/\\\0\n $`*?|")
    assert name not in (".", "..") and name[0] not in ".-"
    (tmp_path / name).mkdir()
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()


@given(st.text(), st.text())
@settings(max_examples=200, deadline=None)
def test_other_texts_get_other_names(a: str, b: str) -> None:
    if a.replace("/", "_") != b.replace("/", "_"):
        assert safe_name(a) != safe_name(b)


@pytest.mark.parametrize("folder", ["a b", "é", "$(x)", "line\nbreak", "~", "d" * 250, "x/../y"])
def test_output_dir_is_text(tmp_path: Path, folder: str) -> None:
    with make(tmp_path / folder) as run:
        run.write_results({}, {}, {})
    assert (tmp_path / folder).is_dir() and make(tmp_path / folder).finished is not None


@pytest.mark.parametrize("folder", ["d" * 300, "nul\0", "file/under"])
def test_impossible_output_dir_is_a_config_error(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--output-dir"):
        make(str(tmp_path / folder))


# ---- identity -----------------------------------------------------------------------------------
def test_digest_is_canonical() -> None:
    one, two = {"a": 1, "b": [1.5, None]}, {"b": (1.5, None), "a": 1}
    assert identity_digest(one) == identity_digest(two)
    assert identity_digest({"a": np.float64(0.1)}) == identity_digest({"a": 0.1})
    assert identity_digest({"a": 0.1}) != identity_digest({"a": 0.1 + 2**-56})
    assert len({identity_digest({"a": v}) for v in (1, 1.0, "1", True, None, [1], math.inf)}) == 7


def test_difference_names_keys_old_and_new() -> None:
    old = {"A": {"X": 1, "Y": 2}, "B": "b"}
    assert identity_difference(old, {"A": {"X": 3, "Y": 2}, "C": None}) == [
        "A.X: 1 -> 3", 'B: "b" -> absent', "C: absent -> null",
    ]
    assert identity_difference(old, old) == []
    digests = {"data": "8235", "images": "ab"}, {"data": "96cf", "images": "cd"}
    assert identity_difference(*digests) == [
        "data: the list of images, classes or clients has changed",
        "images: other images are used, or the content of some has changed"]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("finish", [False, True])
def test_another_identity_is_refused_and_nothing_touched(tmp_path: Path, finish: bool) -> None:
    with make(tmp_path) as run:
        run.append_metrics({"round": 1})
        run.save_state(1, {}, {})
        if finish:
            run.write_results({}, {}, {"personal": 1.0})
    before = snapshot(tmp_path)
    other = IDENTITY | {"FED": {"ROUNDS": 5, "FRAC": 0.1}}
    for resume in (True, False):
        with pytest.raises(ConfigError, match=r"FED.ROUNDS: 3 -> 5"):
            make(tmp_path, other, resume=resume)
    assert snapshot(tmp_path) == before


def test_files_without_manifest_and_damaged_manifest_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / PARTS.relative()
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("somebody's")
    with pytest.raises(DataError, match=r"log.txt but no manifest"):
        make(tmp_path)
    for text in ("", "{", "[]", '{"identity": {"a": 1}, "sessions": [], "identity_digest": "x"}'):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(DataError, match="damaged"):
            make(tmp_path)
    assert not (folder / "RUNNING").exists()


def test_finished_run_is_reported_not_run_again(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        assert run.finished is None
        written = run.write_results({"seconds": 2.5}, {"setting": "base2new"}, {"personal": 81.25})
    for resume in (True, False):
        again = make(tmp_path, resume=resume)
        assert again.finished == written == read_results(run.path / "results.json")
    assert set(written) == {
        "format", "draft", "identity_digest", "identity", "run_info", "protocol", "results",
        "covers", "seal",
    }
    assert written["format"] == 2 and written["draft"] is False and written["identity"] == IDENTITY
    assert written["run_info"]["versions"]["torch"] and written["results"] == {"personal": 81.25}
    with pytest.raises(RuntimeError, match="finished"):
        again.append_metrics({})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "seal"])
def test_damaged_results_are_no_results(tmp_path: Path, text: str) -> None:
    with make(tmp_path) as run:
        run.write_results({}, {}, {})
    results = run.path / "results.json"
    edited = results.read_text().replace('"results": {}', '"results": {"personal": 924.0}')
    assert "924" in edited
    results.write_text(edited if text == "seal" else text)
    with make(tmp_path) as run:
        assert run.finished is None and any("results.json is damaged" in n for n in run.notes)


def test_foreign_results_are_refused(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.write_results({}, {}, {})
    results = run.path / "results.json"
    record = json.loads(results.read_text()) | {"identity_digest": "f" * 64}
    results.write_text(json.dumps(record | {"seal": seal_of(record)}))
    with pytest.raises(ConfigError, match="results of another run"):
        make(tmp_path)


def test_restart_drops_unfinished_work(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.append_metrics({"round": 1})
        run.save_state(1, {}, {})
    with make(tmp_path) as run:
        state = run.restore()
        assert state is not None and state.round == 1
        assert read_metrics(run.metrics_path)[0] == [{"round": 1}]
    with make(tmp_path, resume=False) as run:
        assert run.restore() is None and read_metrics(run.metrics_path)[0] == []


def test_one_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    with make(tmp_path), pytest.raises(ConfigError, match=str(os.getpid())):
        make(tmp_path)
    make(tmp_path).close()


def test_lock_goes_when_opening_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(argv: object) -> dict[str, Any]:
        raise OSError("no session")

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "session", fail)
        with pytest.raises(OSError, match="no session"):
            make(tmp_path)
    make(tmp_path).close()


# ---- manifest, config, partition ----------------------------------------------------------------
def test_manifest_tells_where_a_run_comes_from(tmp_path: Path) -> None:
    with make(tmp_path, argv=["federated_main.py", "--tag", "a b"]) as run:
        run.record_facts(digests={"partition": "cd"})
    with pytest.raises(KeyboardInterrupt), make(tmp_path) as run:
        raise KeyboardInterrupt
    record = json.loads((run.path / "manifest.json").read_text())
    assert record["identity"] == IDENTITY and record["identity_digest"] == run.digest
    assert record["facts"] == {"digests": {"partition": "cd"}}
    first, second = record["sessions"]
    assert first["command"] == "federated_main.py --tag 'a b'" and first["how"] == "stopped"
    assert second["how"] == "interrupted" and second["ended"] >= second["started"]
    assert first["versions"]["torch"] == torch.__version__.split("+")[0]
    assert first["machine"]["cores"] == os.cpu_count()


def test_resuming_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path).close()
    same = make(tmp_path)
    same.close()
    assert not any("bit-identical" in n for n in same.notes)
    monkeypatch.setattr(manifest, "versions", lambda: {"torch": "9.9"})
    run = make(tmp_path)
    run.close()
    assert any("bit-identical" in n and "torch" in n and "9.9" in n for n in run.notes)


def test_versions_are_those_that_the_packages_name() -> None:
    known = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "yacs")}
    assert known.items() <= manifest.versions().items()


def test_git_revision_of_a_checkout_only(tmp_path: Path) -> None:
    assert manifest.git_revision(tmp_path / "fedvlm") is None
    if not (PACKAGE.parent / ".git").exists():
        pytest.skip("this copy of fedvlm is not a git checkout")
    found = manifest.git_revision(PACKAGE)
    assert found is not None
    assert len(found["revision"]) == 40 and isinstance(found["changed"], bool)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner), max_leaves=8,
))
@settings(max_examples=150, deadline=None)
def test_config_loads_back_as_it_is(value: Any) -> None:
    tree = {"A": {"B": value, "C": 1e-05}, "D": value}
    text = config_text(tree, {"A.B": "flag --b\nsecond # line", "A.C": "default"})
    assert yaml.safe_load(text) == tree and "1.0e-05  # default" in text


@given(st.text(max_size=8) | st.text("AaeEfilnNosTtuyx~.-_/=<0:#", max_size=6)
       | st.sampled_from(["yes", "No", "null", "Null", "on", "true", "TRUE", ".nan", "nan", "e5"])
       | st.integers() | st.booleans() | st.none())
@settings(max_examples=300, deadline=None)
def test_a_plain_word_is_written_as_yaml_writes_it(value: Any) -> None:
    """The shortcut past PyYAML gives its very text."""
    line = yaml.safe_dump(value, default_flow_style=True, width=2**31, allow_unicode=True)
    line = line.removesuffix("\n").removesuffix("\n...")
    written = config_text({"A": value}, {})
    assert written == f"A: {line}\n" or len(line.splitlines()) > 1


def test_flat_config_is_nested() -> None:
    text = config_text({"A.B.C": 1, "A.D": "x", "E": [1.5]}, {"A.B.C": "flag", "E": "default"})
    assert text == "A:\n  B:\n    C: 1  # flag\n  D: x\nE: [1.5]  # default\n"
    equal = config_text({"A": 1, "B": True, "C": 1.0, "D": 0.0, "E": -0.0, "F": "1"}, {})
    assert equal == "A: 1\nB: true\nC: 1.0\nD: 0.0\nE: -0.0\nF: '1'\n"


def test_config_and_partition_files(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.write_config({"FED": {"ROUNDS": 3}}, {"FED.ROUNDS": "flag --rounds"})
        run.write_json("partition.json", {"clients": [[1, 2], []], "digest": "x"})
        path = run.save_tensors("logits", {"global": torch.ones(2, 3)})
    assert (run.path / "config.yaml").read_text() == "FED:\n  ROUNDS: 3  # flag --rounds\n"
    assert json.loads((run.path / "partition.json").read_text())["clients"] == [[1, 2], []]
    assert path.name == "logits.safetensors" and path.stat().st_size > 24
