"""YAML files: nothing is executed, and every mistake gets a message."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedvlm.config.read import config_names, find_config
from fedvlm.core.errors import ConfigError
from tests.config.layers import build, mistakes, write


@pytest.mark.parametrize("text, part", [
    ("", "empty"), ("# nothing\n", "empty"), ("- a\n- b\n", "a list at the top"),
    ("word", "a single value"), ("FED:\n\tROUNDS: 3\n", "tab"), ("FED: [1, 2\n", "not valid YAML"),
    ("FED:\n  ROUNDS: 3\n  ROUNDS: 4\n", "is set twice"), ("SEED: 1\nSEED: 1\n", "is set twice"),
    ("FED: 3\n", "is a section"), ("SEED: !!python/object/apply:os.getpid []\n", "refused"),
    ("!!python/object/apply:os.system ['true']\n", "refused"),
    ("TAG: [!!python/name:os.system ]\n", "cannot be read"), ("? [1, 2]\n: 3\n", "key must be"),
    ("3: 4\n", "unknown key"), ("SEED: {a: 1}\n", "expects a whole number"),
    (b"\xff\xfeS\x00E\x00", "UTF-8"), (b"SEED: \x00 1", "control"), ("a: &a {<<: *a}\n", "unknown"),
    ("[" * 3000, "nested too deeply"), ("FED: &f {FED: *f}\n", "unknown key"),
    ("a: &a [x]\nSEED: [*a, *a]\n", "expects a whole number"), ("SEED: 2020-13-01\n", "SEED"),
    ("FED: !mine {ROUNDS: 3}\n", "refused"), ("FED: {<<: {ROUNDS: 3}}\n", "not supported"),
])  # fmt: skip
def test_bad_yaml_gets_a_sentence(tmp_path: Path, text: str | bytes, part: str):
    path = write(tmp_path / "t.yaml", text)
    lines = mistakes(trainer=path)
    assert any(part in line for line in lines), lines
    assert all(str(path) in line for line in lines)


def test_byte_order_mark_and_empty_section_are_harmless(tmp_path: Path):
    path = write(tmp_path / "t.yaml", b"\xef\xbb\xbfSEED: 3\nFED:\n")
    assert build(trainer=path)[0].SEED == 3


def test_python_config_is_never_run(tmp_path: Path):
    flag = tmp_path / "ran"
    for name in ("evil.py", "evil.pkl", "evil"):
        path = write(tmp_path / name, f"open({str(flag)!r}, 'w')\ncfg = {{}}\n")
        (line,) = mistakes(trainer=path)
        assert ".yaml or .yml" in line
        if path.suffix:
            with pytest.raises(ConfigError, match="refused unread"):
                find_config(str(path), "trainers")
    assert not flag.exists()


def test_config_names_ignore_case_dash_underscore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "configs" / "datasets"
    folder.mkdir(parents=True)
    path = write(folder / "oxford_pets.yaml", "DATASET: {NAME: OxfordPets}\n")
    monkeypatch.chdir(tmp_path)
    for given_name in ("configs/datasets/oxfordpets.yaml", "Oxford-Pets", "oxford_pets.yml",
                       "configs/datasets/oxford-pets", str(path), str(folder / "OXFORDPETS.YAML")):
        assert find_config(given_name, "datasets").resolve() == path, given_name
    assert "oxford_pets" in config_names("datasets")
    for bad in ("oxford_pet", "configs/datasets/oxford_pet.yaml", "x\0y"):
        with pytest.raises(ConfigError, match="known datasets: .*oxford_pets") as caught:
            find_config(bad, "datasets")
    with pytest.raises(ConfigError, match="did you mean 'oxford_pets'"):
        find_config("oxford_pet", "datasets")
    assert "\n" not in str(caught.value)


_GOOD = "DATASET:\n  NAME: x\nFED:\n  ROUNDS: 3\n  FRAC: 0.5\nOPTIM:\n  LR: 1e-3\n"


@settings(
    max_examples=150, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(at=st.integers(0, len(_GOOD)), cut=st.integers(0, 8), put=st.text(max_size=6))
def test_mutated_yaml_never_ends_in_a_traceback(tmp_path: Path, at: int, cut: int, put: str):
    text = _GOOD[:at] + put + _GOOD[at + cut :]
    path = write(tmp_path / "f.yaml", text.encode("utf-8", "surrogatepass"))
    try:
        cfg, _ = build(dataset=path)
    except ConfigError as error:
        assert all(line.strip() for line in str(error).splitlines())
    else:
        assert cfg.FED.ROUNDS >= 1 and 0 < cfg.FED.FRAC <= 1
