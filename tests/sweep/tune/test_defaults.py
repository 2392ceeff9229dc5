"""Tuned values in the methods' YAML files: whose they are, what is kept, what goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main
from fedvlm.config.federation import WORK
from fedvlm.config.keys import default_schema
from fedvlm.config.option import declare
from fedvlm.config.read import lookup
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from fedvlm.sweep.tune.defaults import with_key, without_key, write_defaults, write_files
from fedvlm.sweep.tune.tuned import SAY_WHICH, read_tuned, write_tuned
from fedvlm.sweep.tune.values import parse_value, read_values

TEXT = """# A method.
TRAINER:
  NAME: FedProx  # its name
PEFT:
  VISUAL: feature
OPTIM:
  LR: 0.01  # of all roles
"""
TUNED = {"OPTIM.NAME": "adamw", "OPTIM.LR": "0.005", "TRAINER.FEDPROX.MU": "0.3"}


def entry(label: str, values: dict[str, str], **settings: str) -> dict[str, Any]:
    return {"label": label, "trainer": label.split()[0], "settings": settings, "values": values,
            "trials": [{}] * 20, "score": 81.234, "error": 1.26, "images": 600}


def tuning(tmp_path: Path, *entries: dict[str, Any]) -> Path:
    path = tmp_path / "tuned.json"
    write_tuned(path, {
        "plan": {"name": "tune", "common": {"FED.CLIENTS": "10"}, "seeds": [101, 102],
                 "datasets": [{"label": "digits"}, {"label": "cifar10"}]},
        "digest": "0123456789abcdef", "entries": list(entries),
    })
    return path


def test_values_go_into_the_file_that_trains_what_was_tuned(tmp_path: Path) -> None:
    """0.005 is the declared default of OPTIM.LR, so its line goes; other comments stay."""
    path = tmp_path / "fedprox.yaml"
    path.write_text(TEXT)
    tuned = tuning(
        tmp_path, entry("FedProx head", {"OPTIM.LR": "9"}, **{"PEFT.HEAD": "linear"}),
        entry("FedProx both", TUNED, **{"PEFT.VISUAL": "feature", "PEFT.TEXT": "prompt"}),
    )
    ((where, what),) = write_defaults(tuned, tmp_path)
    assert where == path and "OPTIM.NAME adamw" in what and "tuned for FedProx both" in what
    wanted = """# A method.
# Tuned: 20 trials as FedProx both on digits, cifar10, seeds 101, 102: 81.2 +- 1.3 % of 600
#   validation images, plan tune (0123456789ab).
TRAINER:
  NAME: FedProx  # its name
  FEDPROX:
    MU: 0.3
PEFT:
  VISUAL: feature
OPTIM:
  NAME: adamw
"""
    assert path.read_text() == wanted
    write_defaults(tuned, tmp_path)  # a second time changes nothing
    assert path.read_text() == wanted


def test_a_file_that_trains_something_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "fedprox.yaml"
    path.write_text(TEXT)
    tuned = tuning(tmp_path, entry("FedProx", TUNED, **{"PEFT.HEAD": "linear"}),
                   entry("Ditto", {}))
    told = write_defaults(tuned, tmp_path)
    assert "left alone" in told[0][1] and "no file for Ditto" in told[1][1]
    assert path.read_text() == TEXT


def test_a_key_that_is_gone_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "fedavg.yaml").write_text(TEXT.replace("FedProx", "FedAvg"))
    (tmp_path / "fedprox.yaml").write_text(TEXT)
    tuned = tuning(tmp_path, entry("FedAvg", {"OPTIM.LR": "0.5"}),
                   entry("FedProx", {"TRAINER.FEDPROX.NU": "1"}))
    with pytest.raises(ConfigError, match="TRAINER.FEDPROX.NU, which no longer exists"):
        write_defaults(tuned, tmp_path)
    assert "0.5" not in (tmp_path / "fedavg.yaml").read_text()


def test_lines_are_set_added_and_taken_out() -> None:
    assert "  LR: 0.3  # of all roles\n" in with_key(TEXT, "OPTIM.LR", "0.3")
    assert with_key(TEXT, "OPTIM.HEAD.LR", "0.3").endswith("  HEAD:\n    LR: 0.3\n")
    assert with_key(TEXT, "FED.ROUNDS", "3").endswith("roles\nFED:\n  ROUNDS: 3\n")
    added = with_key(TEXT, "TRAINER.FEDPROX.MU", "0.3")
    assert without_key(added, "TRAINER.FEDPROX.MU") == TEXT
    assert "OPTIM" not in without_key(TEXT, "OPTIM.LR") and without_key(TEXT, "FED.FRAC") == TEXT


PUBLISHED = Path(__file__).parents[3] / "docs" / "results" / "tuned.json"


def test_every_entry_of_the_published_tuning_is_a_file_that_says_what_it_ran_with(
    tmp_path: Path
) -> None:
    """Read back, a file is its method's own with what the entry trained, held and chose."""
    record = read_tuned(PUBLISHED)
    told = write_files(PUBLISHED, tmp_path / "new" / "tuned")
    assert len({path for path, _ in told}) == len(record["entries"]) > 30
    for (path, _), one in zip(told, record["entries"], strict=True):
        trainer = load_trainer(one["trainer"])
        schema = declare(default_schema(), f"TRAINER.{trainer.name.upper()}", trainer.options)
        asked = {k: v for k, v in (record["plan"]["common"] | one["settings"]).items()
                 if k.startswith(SAY_WHICH) or k in WORK} | one["values"]
        want = read_values(lookup(trainer.name, "trainers"), schema) | {
            key: parse_value(schema, key, word, "") for key, word in asked.items()}
        assert read_values(path, schema) == want, path
        assert path.read_text().count("# Tuned: 20 trials as ") == 1


def test_a_run_takes_such_a_file_and_the_checkout_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.read_bytes() for p in (PUBLISHED.parents[2] / "configs/trainers").glob("*.yaml")}
    words = ["tune", "--write-defaults", str(PUBLISHED), "--into", str(tmp_path)]
    assert main(words) == 0
    assert "fedas.yaml: PEFT.TEXT none" in capsys.readouterr().out
    assert all(path.read_bytes() == text for path, text in before.items())
    run = ["run", "--demo", "--config-file", str(tmp_path / "localonly-prompt.yaml")]
    assert main([*run, "--print-config"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    for key, word in {"OPTIM.LR": "0.117", "PEFT.VISUAL": "none", "FED.LOCAL_STEPS": "2"}.items():
        assert lines[key][0] == word, key
    assert "localonly-prompt.yaml" in lines["OPTIM.LR"][1]
    assert main(["tune", "--into", str(tmp_path)]) == 2


def test_two_entries_of_one_file_are_refused(tmp_path: Path) -> None:
    tuned = tuning(tmp_path, entry("FedAvg (ft)", {}), entry("FedAvg ft", {}))
    with pytest.raises(ConfigError, match=r"two entries of .*fedavg-ft\.yaml; give one of them"):
        write_files(tuned, tmp_path / "into")
    assert not (tmp_path / "into").exists()
