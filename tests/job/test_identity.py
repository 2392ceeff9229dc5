"""A run's identity: folders made before keys were sorted by who reads them stay theirs.

``tests/runs/before`` is such a folder (``--demo --trainer PromptFL``, two clients, stopped after
round 1 of 2), and ``keys.json`` there the keys of that time, by method.
"""

from __future__ import annotations

import importlib
import json
import py_compile
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedvlm.config.keys import default_schema
from fedvlm.config.option import declare
from fedvlm.config.sections import read_keys
from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.flags import parse
from fedvlm.job.identity import WHERE, identity_config, present_identity
from fedvlm.job.resolve import resolve
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import RunPath, identity_digest, identity_plain, refuse_other
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.state import BEGUN, cell_state
from tests import jobs

BEFORE = Path(__file__).resolve().parents[1] / "runs" / "before"
PLACE = RunPath("base2new", "Shapes", 16, "PromptFL", "tiny", "disjoint-K2-f1", 1, 1)
WORDS = ("--demo", "--trainer", "PromptFL", "--opts", "PEFT.N_CTX", "2", "FED.CLIENTS", "2",
         "FED.ROUNDS", "2", "FED.LOCAL_EPOCHS", "1", "FED.PARTITION", "disjoint")


def old_folder(output: Path) -> dict[str, Any]:
    """Put the folder of before where its run would look for it; return its manifest."""
    folder = output / PLACE.relative()
    shutil.copytree(BEFORE, folder, ignore=shutil.ignore_patterns("keys.json"))
    return json.loads((folder / "manifest.json").read_text())


def asked(before: dict[str, Any], *more: str) -> dict[str, Any]:
    """The identity of the same command today; what is no config does not depend on the code."""
    cfg = resolve(parse([*WORDS, *more])).jobs[0].cfg
    return before["identity"] | {"config": identity_config(cfg)}


def opened(output: Path, identity: dict[str, Any]) -> RunFolder:
    return RunFolder.create(output, PLACE, identity, present=partial(present_identity, "PromptFL"))


def test_a_folder_of_before_opens_and_goes_on(tmp_path: Path) -> None:
    before = old_folder(tmp_path)
    identity = asked(before)
    assert identity_digest(identity) != before["identity_digest"]
    with opened(tmp_path, identity) as run:
        assert run.digest == before["identity_digest"]
        state = run.restore()
        assert state is not None and state.round == 1 and sorted(state.clients) == [0, 1]
        run.save_state(2, state.server)
        run.append_metrics({"round": 2})
        run.write_results({}, {"setting": "base2new"}, {"personal": 1.0})
    after = json.loads((tmp_path / PLACE.relative() / "manifest.json").read_text())
    assert after["identity"] == before["identity"]
    assert after["identity_digest"] == before["identity_digest"]
    assert len(after["sessions"]) == 2
    again = opened(tmp_path, identity)  # finished: seals are over the recorded digest
    assert again.finished is not None and again.digest == before["identity_digest"]
    assert again.finished["identity_digest"] == before["identity_digest"]


@pytest.mark.parametrize("more", [
    ("OPTIM.LR", "0.5"), ("OPTIM.MOMENTUM", "0.5"), ("FED.SITES", "0,1"),
    ("FED.AGGREGATOR", "trimmed_mean"), ("OPTIM.NAME", "adam"),
])
def test_a_folder_of_before_refuses_another_run(tmp_path: Path, more: tuple[str, str]) -> None:
    before = old_folder(tmp_path)
    with pytest.raises(ConfigError, match=rf"config\.{more[0]}: .* -> .*{more[1]}"):
        opened(tmp_path, asked(before, *more))


def test_an_unread_key_refuses_nothing(tmp_path: Path) -> None:
    before = old_folder(tmp_path)
    more = ("OPTIM.ADAM_BETA1", "0.5", "FED.BETA", "9", "FED.TRIM", "0.3", "PEFT.RANK", "4")
    with opened(tmp_path, asked(before, *more)) as run:
        assert run.digest == before["identity_digest"]


def test_the_config_of_before_is_todays_in_reports(tmp_path: Path) -> None:
    before = old_folder(tmp_path)
    folder = tmp_path / PLACE.relative()
    run = FinishedRun(folder, {}, {}, {}, before["identity_digest"])
    assert run.identity_config() == identity_plain(asked(before)["config"])


def test_a_sweep_goes_on_with_a_folder_of_before(tmp_path: Path) -> None:
    before = old_folder(tmp_path)
    config = identity_plain(asked(before)["config"])
    cell = Cell(0, "Shapes", "PromptFL", 1, (), tmp_path, PLACE.relative(),
                identity_digest(config), config, "")  # fmt: skip
    assert cell_state(cell, None).name == BEGUN
    other = config | {"OPTIM.LR": 0.5}
    with pytest.raises(ConfigError, match="OPTIM.LR: 0.005 -> 0.5; choose"):
        cell_state(replace(cell, config=other, digest=identity_digest(other)), None)


@pytest.mark.parametrize("trainer", ["", *sorted(trainer_files())])
def test_a_key_that_came_later_says_what_was_before(trainer: str) -> None:
    """It says which value means "as before", or no default config reads it.

    A default that is another one refuses folders of before, rightly: their numbers differ.
    """
    known = json.loads((BEFORE / "keys.json").read_text())
    schema = default_schema()
    if trainer:
        cls = load_trainer(trainer)
        if cls.name not in known:
            pytest.skip(f"{cls.name} came later")
        node = f"TRAINER.{cls.name.upper()}."
        schema = declare(schema, node[:-1], cls.options)
        old, of = {node + key for key in known[cls.name]}, node
    else:
        old, of = set(known[""]), ""
    keys = {
        k: o.default for k, o in schema.items()
        if k.startswith(of) and (of or not k.startswith("TRAINER.")) and o.used and k not in WHERE
    }
    later = {k: v for k, v in keys.items() if k not in old}
    silent = [k for k in read_keys(later, schema) if schema[k].neutral is None]
    assert silent == [], "give it Option(neutral=...) or a Section"


def test_a_run_of_before_is_resumed_to_the_bits_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = RunFolder.save_state

    def stop(self: RunFolder, round_: int, *args: Any) -> None:
        save(self, round_, *args)
        if round_ == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as before:  # every key was in the identity, read or not
        before.setattr("fedvlm.job.identity.read_keys", lambda config, _: dict(config))
        before.setattr(RunFolder, "save_state", stop)
        assert jobs.run(tmp_path / "old", "--trainer", "FedAvg") == 130
    manifest = jobs.folder(tmp_path / "old") / "manifest.json"
    digest = json.loads(manifest.read_text())["identity_digest"]
    assert "OPTIM.ADAM_BETA1" in json.loads(manifest.read_text())["identity"]["config"]
    assert jobs.run(tmp_path / "old", "--trainer", "FedAvg") == 0
    assert jobs.run(tmp_path / "whole", "--trainer", "FedAvg") == 0
    jobs.same(tmp_path / "old", tmp_path / "whole")
    told = json.loads(manifest.read_text())
    assert told["identity_digest"] == digest and told["sessions"][1]["from_round"] == 1
    results = json.loads((jobs.folder(tmp_path / "old") / "results.json").read_text())
    assert results["identity_digest"] == digest
    assert jobs.run(tmp_path / "old", "--trainer", "FedAvg") == 0  # shown, not run again
    assert len(json.loads(manifest.read_text())["sessions"]) == 2
    other = ("--trainer", "FedAvg", "--opts", "OPTIM.LR", "0.5")
    assert jobs.run(tmp_path / "old", *other) == ConfigError.exit_code


def test_a_second_table_of_a_folder_is_told_how_to_get_a_name() -> None:
    tables = [{"config": {"DATASET.SPLIT_FILE": file, "OPTIM.LR": 1}} for file in ("a.csv", "b")]
    with pytest.raises(ConfigError, match="holds another run.*fedvlm data add TABLE --name NAME"):
        refuse_other(Path("run"), *tables)
    with pytest.raises(ConfigError, match="holds another run") as said:
        refuse_other(Path("run"), tables[0], {"config": tables[0]["config"] | {"OPTIM.LR": 2}})
    assert "--name" not in str(said.value)


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's own that the method file ``mine.py`` beside it imports."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "helper_of_mine.py"
    path.write_text("KEPT = 0.0\n")
    (tmp_path / "mine.py").write_text(
        "from helper_of_mine import KEPT\nfrom fedvlm.method import PeftTrainer\n\n\n"
        "class Mine(PeftTrainer):\n    name = 'Mine'\n    kept = KEPT\n")
    yield path
    sys.modules.pop("helper_of_mine", None)


def test_an_edited_module_that_a_method_imports_makes_another_run(
    helper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rounds", "1", "--trainer", f"{tmp_path / 'mine.py'}:Mine")
    assert jobs.run(tmp_path / "out", *words) == 0
    assert jobs.run(tmp_path / "out", *words) == 0  # shown, not run again
    helper.write_text("KEPT = 1.0\n")
    capsys.readouterr()
    assert jobs.run(tmp_path / "out", *words) == ConfigError.exit_code
    assert "your file mine.py, or one that it imports, changed" in capsys.readouterr().err


TIMES = py_compile.PycInvalidationMode.TIMESTAMP


@pytest.mark.parametrize("before", [False, True])
def test_an_edited_module_of_ones_own_is_imported_again(
    helper: Path, tmp_path: Path, before: bool
) -> None:
    """As in a notebook, which may have imported it ``before`` fedvlm did; what imports it, too."""
    deep = tmp_path / "below_helper_of_mine.py"
    deep.write_text("KEPT = 1.0\n")
    helper.write_text("from below_helper_of_mine import KEPT\n")
    word = f"{tmp_path / 'mine.py'}:Mine"
    try:
        if before:
            for file in (deep, helper):
                py_compile.compile(str(file), invalidation_mode=TIMES)
            importlib.import_module("helper_of_mine")
        else:
            assert load_trainer(word) is load_trainer(word)
            module = sys.modules["helper_of_mine"]
            (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "# more\n")
            assert vars(load_trainer(word))["kept"] == 1.0
            assert sys.modules["helper_of_mine"] is module  # it was not edited
        deep.write_text("KEPT = 20.0\n")
        assert vars(load_trainer(word))["kept"] == 20.0
    finally:
        sys.modules.pop("below_helper_of_mine", None)


def test_a_folder_of_before_says_nothing_of_imported_modules_and_stays_the_same_run() -> None:
    file = {"config": {"TRAINER.NAME": "mine.py:Mine"}, "trainer": "a"}
    refuse_other(Path("run"), file, file | {"imports": "b"})
    for other in (file | {"imports": "c"}, file | {"imports": "b", "trainer": "d"}, file):
        with pytest.raises(ConfigError, match="your file mine.py, or one that it imports"):
            refuse_other(Path("run"), file | {"imports": "b"}, other)
