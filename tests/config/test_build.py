"""Merge order and origins, and every mistake at once with file, line and nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.config.build import build_config, config_lines
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Option, Schema, declare
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from tests.config.layers import SCHEMA, build, mistakes, write


def test_precedence_default_dataset_trainer_extra_flag_opts(tmp_path: Path):
    low = write(tmp_path / "d.yaml", "DATASET: {NAME: d}\nFED: {ROUNDS: 2, CLIENTS: 2, FRAC: 1}\n")
    high = write(tmp_path / "t.yaml", "FED: {CLIENTS: 3, FRAC: 0.3, BETA: 0.3}\nSEED: 3\n")
    top = write(tmp_path / "x.yaml", "FED: {FRAC: 0.4, BETA: 0.4}\nSEED: 4\nDATA_SEED: 4\n")
    cfg, origins = build_config(
        low, high, {"FED.BETA": "0.5", "SEED": "5"}, ["SEED", "6"], SCHEMA,
        extra_yamls=[top], flag_names={"FED.BETA": "--beta"},
    )  # fmt: skip
    got = [cfg.FED.LOCAL_EPOCHS, cfg.FED.ROUNDS, cfg.FED.CLIENTS, cfg.FED.FRAC, cfg.FED.BETA]
    assert [*got, cfg.SEED] == [2, 2, 3, 0.4, 0.5, 6]
    assert origins["FED.BETA"] == "flag --beta" and origins["SEED"] == "opts"
    with pytest.raises(AttributeError):
        cfg.SEED = 7


def test_all_mistakes_at_once_with_file_line_and_nearest_name(tmp_path: Path):
    text = "FED:\n  ROUNDS: many\n  CLIENTS: 0\nTRAINER:\n  FEDTV:\n    RNAK: 4\n"
    path = write(tmp_path / "t.yaml", text)
    lines = mistakes("OPTIM.LR", "x", "ROUNDS", "3", trainer=path, FED__FRAC="2")
    assert lines == [
        f"{path}:2: FED.ROUNDS expects a whole number, got 'many' (str)",
        f"{path}:3: FED.CLIENTS must be at least 1, got 0",
        f"{path}:6: unknown key 'TRAINER.FEDTV.RNAK'; did you mean 'TRAINER.FEDTV.RANK'?",
        "flag FED.FRAC: FED.FRAC must be above 0 and at most 1, got 2.0",
        "opts: OPTIM.LR expects a number, got 'x' (str)",
        "opts: unknown key 'ROUNDS'; did you mean 'FED.ROUNDS'?",
    ]


def test_several_values_of_one_run_are_those_of_a_sweep():
    assert mistakes("OPTIM.LR", "0.001,0.01") == [
        "opts: OPTIM.LR expects a number, got several: (0.001, 0.01); one run has one value, "
        "fedvlm sweep runs several"]


def test_the_last_word_of_a_key_names_the_methods_own_first():
    assert mistakes("RANK", "3") == ["opts: unknown key 'RANK'; did you mean 'TRAINER.FEDTV.RANK'?"]


def test_swapped_files_are_named(tmp_path: Path):
    data = write(tmp_path / "d.yaml", "DATASET:\n  NAME: EuroSAT\n")
    method = write(tmp_path / "t.yaml", "TRAINER:\n  FEDTV:\n    RANK: 4\n")
    assert "swapped" in mistakes(dataset=method, trainer=data)[0]
    assert "--trainer-config-file" in mistakes(dataset=method)[0]
    assert "--dataset-config-file" in mistakes(trainer=data)[0]
    assert build(dataset=data, trainer=method)[0].TRAINER.FEDTV.RANK == 4


def test_printed_config_hides_unused_defaults_and_gives_origins():
    lines = config_lines(*build("TRAIN.PRINT_FREQ", "3"), SCHEMA)
    text = "\n".join(lines)
    assert "TRAIN.PRINT_FREQ 3" in text and "(opts, not used)" in text and "GN_MEAN" not in text
    assert any(line.startswith("FED.ROUNDS 10 ") and line.endswith("(default)") for line in lines)


@pytest.mark.parametrize(("mean", "found"), [("15", (0.75, 0.05)), ("0.5", (0.5, 1.0))])
def test_epochs_of_promptsrc_are_shares(
    tmp_path: Path, mean: str, found: tuple[float, float]
) -> None:
    """The authors' files say the epochs of the Gaussian's mean and width; theirs reads them so."""
    text = f"TRAINER:\n  PROMPTSRC:\n    GPA_MEAN: {mean}\n    GPA_STD: 1\n" + (
        "OPTIM:\n  MAX_EPOCH: 20\n")
    node, path = "TRAINER.PROMPTSRC", write(tmp_path / "t.yaml", text)
    schema = declare(default_schema(), node, load_trainer("PromptSRC").options)

    def shares(schema: Schema) -> tuple[float, float]:
        read = build_config(None, path, {}, [], schema)[0].TRAINER.PROMPTSRC
        return read.GPA_MEAN, read.GPA_STD

    assert shares(schema) == found
    epochs = dict.fromkeys(("GPA_MEAN", "GPA_STD"), Option(1.0, ""))
    theirs = declare(default_schema(), node, epochs)
    assert shares(theirs) == (float(mean), 1.0)
    bare = write(tmp_path / "b.yaml", text.partition("OPTIM")[0])
    if float(mean) > 1:
        with pytest.raises(ConfigError, match=r"b.yaml:3: .*GPA_MEAN must be at least 0 and at"):
            build_config(None, bare, {}, [], schema)
