"""Flags, files and exit codes: what a user types and what comes back."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedvlm
from fedvlm.cli import main as cli
from fedvlm.cli.parser import help_lines, reference_lines
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Option, declare
from fedvlm.core.errors import ConfigError, DataError, DivergedError, fold
from fedvlm.job.flags import FLAGS, REFUSED, by_name, parse
from fedvlm.job.resolve import Jobs, resolve


class FakeTrainer:
    """Stands for a trainer: name and options are all that the command line reads."""

    name = "FedTV"
    options = {"RANK": Option(8, "rank", low=1), "VARIANT": Option("published", "bundle")}


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with configs, which is the current one."""
    (tmp_path / "configs" / "datasets").mkdir(parents=True)
    (tmp_path / "configs" / "trainers").mkdir()
    (tmp_path / "configs/datasets/oxford_pets.yaml").write_text(
        "DATASET:\n  NAME: OxfordPets\n  NUM_SHOTS: 8\nOPTIM:\n  LR: 0.5\n"
    )
    (tmp_path / "configs/trainers/fedtv.yaml").write_text("OPTIM:\n  LR: 0.4\n  MOMENTUM: 0.5\n")
    (tmp_path / "configs/demo.yaml").write_text("DATASET: {NAME: shapes}\nOPTIM: {LR: 0.3}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*lines: str) -> list[str]:
    return " ".join(lines).split()


def jobs(line: str) -> Jobs:
    def load(spec: str) -> Any:
        if fold(spec) != "fedtv" and ".py" not in spec:
            raise ConfigError(f"unknown trainer '{spec}'")
        return FakeTrainer

    return resolve(parse(line.split()), load)


def mistakes(line: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        jobs(line)
    return str(caught.value).splitlines()


def test_dash_underscore_case_and_equals_are_one():
    for line in ("--num-users 3", "--num_users 3", "--Num-Users=3", "--numusers=3"):
        assert parse(line.split()).flags == {"FED.CLIENTS": "3"}
    for line in ("--shots 4", "--num-shots 4", "--num_shots=4", "--numshots 4"):
        assert parse(line.split()).flags == {"DATASET.NUM_SHOTS": "4"}
    for line in ("--rounds 4 ", "--round=4"):
        assert parse(line.split()).flags == {"FED.ROUNDS": "4"}
    assert parse(["--local_epoch", "1"]).flags == parse(["--local-epochs", "1"]).flags
    assert parse(["--train_batch_size", "1"]).flags == parse(["--batch-size", "1"]).flags
    assert parse(["--config-file", "x.yaml"]).trainer_config_file == "x.yaml"


def test_no_two_flags_share_a_spelling_and_every_key_exists():
    spellings = [fold(n) for f in FLAGS for n in f.names] + [fold(n) for n in REFUSED]
    assert len(spellings) == len(set(spellings))
    known = {*declare(default_schema(), "TRAINER.FEDTV", FakeTrainer.options)}
    loose = {f.key for f in FLAGS if f.key and not f.key.startswith("TRAINER.*.")} - known
    assert loose == {"DATASET.IID", "DATASET.USEALL"}
    assert set(by_name()) <= set(spellings)


def test_the_flags_of_the_issue_are_all_there():
    wanted = words(
        "root dataset-config-file trainer trainer-config-file config-file backbone weights",
        "num-users shots num-shots rounds round local-epochs frac partition beta seed data-seed",
        "subsample",
        "subsample-classes output-dir resume device lr batch-size train-batch-size eval-every tag",
        "keep-logits dataset seeds dry-run print-config demo plain views variant opts help",
    )
    assert [w for w in wanted if fold("--" + w) not in by_name()] == []


def test_unknown_flags_are_all_named_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        parse(words("--num-usres 3 --plain -q --zzz 1 2 --rounds --frac 0.5 --eval-only"))
    assert str(caught.value).splitlines() == [
        "unknown flag '--num-usres'; did you mean '--num-users'?",
        "unknown flag '-q' (--help lists all)",
        "unknown flag '--zzz' (--help lists all)",
        "--rounds wants a value (communication rounds)",
        "flag --eval-only is not needed: every run evaluates itself at its end",
    ]


def test_switches_are_booleans():
    assert parse(["--iid", "False"]).flags == {"DATASET.IID": "False"}
    assert parse(["--iid"]).flags == {"DATASET.IID": "True"}
    assert parse(["--demo", "false"]).demo is False and parse(["--demo"]).demo is True
    assert parse(["--keep_logits", "--plain", "OPTIM.LR", "1"]).opts == ["OPTIM.LR", "1"]
    with pytest.raises(ConfigError, match="on or off"):
        parse(["--demo=perhaps"])


def test_iid_false_is_false_and_useall_false_is_false(house: Path):
    (job,) = jobs("--dataset oxford_pets --iid False --useall False").jobs
    assert job.cfg.FED.PARTITION == "disjoint" and job.cfg.DATASET.NUM_SHOTS == 8
    (job,) = jobs("--dataset oxford_pets --iid True --useall True").jobs
    assert job.cfg.FED.PARTITION == "iid" and job.cfg.DATASET.NUM_SHOTS == -1
    assert job.origins["FED.PARTITION"] == "flag --iid, as DATASET.IID"


def test_opts_with_and_without_the_flag_and_negative_numbers():
    args = parse(words("--opts OPTIM.LR 0.1 --shots -1 DATASET.NUM_SHOTS -1 SEED 2"))
    assert args.flags == {"DATASET.NUM_SHOTS": "-1"}
    assert args.opts == ["OPTIM.LR", "0.1", "DATASET.NUM_SHOTS", "-1", "SEED", "2"]
    with pytest.raises(ConfigError, match="'SEED' stands alone"):
        parse(["--rounds", "3", "SEED"])


def test_the_fields_own_line_works_as_written(house: Path):
    line = "--root DATA/ --dataset-config-file configs/datasets/oxfordpets.yaml --num-users 10"
    (job,) = jobs(line).jobs
    cfg = job.cfg
    assert (cfg.TRAINER.NAME, cfg.FED.CLIENTS, cfg.DATASET.NAME) == ("FedTV", 10, "OxfordPets")
    assert cfg.DATASET.ROOT == "DATA/" and job.origins["FED.CLIENTS"] == "flag --num-users"


@pytest.mark.parametrize("tail, rate, origin", [
    ("", 0.4, "configs/trainers/fedtv.yaml"), ("--lr 0.2", 0.2, "flag --lr"),
    ("--lr 0.2 OPTIM.LR 0.1", 0.1, "opts"), ("OPTIM.LR 0.1 --lr 0.2", 0.1, "opts"),
])  # fmt: skip
def test_precedence_whatever_the_order_of_words(house: Path, tail: str, rate: float, origin: str):
    (job,) = jobs(f"--dataset oxford_pets {tail}").jobs
    assert (job.cfg.OPTIM.LR, job.origins["OPTIM.LR"]) == (rate, origin)
    assert job.cfg.DATASET.NUM_SHOTS == 8 and job.cfg.OPTIM.MOMENTUM == 0.5


def test_demo_lies_between_trainer_file_and_flags(house: Path):
    (job,) = jobs("--demo").jobs
    assert (job.cfg.DATASET.NAME, job.cfg.OPTIM.LR, job.cfg.OPTIM.MOMENTUM) == ("shapes", 0.3, 0.5)
    assert jobs("--demo --lr 0.2").jobs[0].cfg.OPTIM.LR == 0.2
    assert "--demo brings its own dataset" in mistakes("--demo --dataset oxford_pets")[0]


def test_without_a_dataset_one_sentence_lists_them(house: Path):
    for line in ("", "--trainer FedTV", "--opts DATASET.NAME="):
        words = [*line.rstrip("=").split(), *[""] * line.endswith("=")]
        with pytest.raises(ConfigError) as caught:
            resolve(parse(words), lambda spec: FakeTrainer)
        sentence = str(caught.value)
        assert "\n" not in sentence
        assert "--dataset NAME" in sentence and "oxford_pets" in sentence
    assert jobs("DATASET.NAME mine").jobs[0].cfg.DATASET.NAME == "mine"
    assert "not both" in mistakes("--dataset oxford_pets --dataset-config-file x.yaml")[0]
    assert "did you mean 'oxford_pets'" in mistakes("--dataset oxford_pet")[0]
    assert jobs("--dataset pets").jobs[0].cfg == jobs("--dataset oxford_pets").jobs[0].cfg


def test_seeds_vary_both_unless_the_data_seed_is_given(house: Path):
    three = jobs("--dataset oxford_pets --seeds 1 2 3").jobs
    assert [(j.cfg.SEED, j.cfg.DATA_SEED) for j in three] == [(1, 1), (2, 2), (3, 3)]
    fixed = jobs("--dataset oxford_pets --seeds 1,2 --data-seed 9").jobs
    assert [(j.cfg.SEED, j.cfg.DATA_SEED) for j in fixed] == [(1, 9), (2, 9)]
    assert fixed[0].origins["SEED"] == "flag --seeds"
    assert fixed[0].origins["DATA_SEED"] == "flag --data-seed"
    for bad in ("--seeds 1 2 --seed 3", "--seeds 1 SEED 3", "--seeds 1 1", "--seeds a", "--seeds"):
        assert "seed" in mistakes(f"--dataset oxford_pets {bad}")[0]


def test_trainers_own_flags(house: Path):
    (job,) = jobs("--dataset oxford_pets --bottleneck 4 --variant fixed").jobs
    assert (job.cfg.TRAINER.FEDTV.RANK, job.cfg.TRAINER.FEDTV.VARIANT) == (4, "fixed")
    assert job.origins["TRAINER.FEDTV.RANK"] == "flag --bottleneck"
    (line,) = mistakes("--dataset oxford_pets --n_ctx 4")
    assert "sets TRAINER.FEDTV.N_CTX, but FedTV has no such option" in line
    asked = jobs("--dataset oxford_pets --mu 0.5")
    assert "never uses it" in asked.notes[0]
    assert mistakes("--dataset oxford_pets --bottleneck 0")[0].startswith("flag --bottleneck: ")


def test_trainer_name_is_canonical_and_opts_beat_flag(house: Path):
    assert jobs("--dataset oxford_pets --trainer fedtv").jobs[0].cfg.TRAINER.NAME == "FedTV"
    own = jobs("--dataset oxford_pets --trainer ./my.py:Mine").jobs[0]
    assert own.cfg.TRAINER.NAME == "./my.py:Mine"
    line = "--dataset oxford_pets --trainer fedtv TRAINER.NAME x"
    assert "unknown trainer 'x'" in mistakes(line)[0]
    (house / "t.yaml").write_text("TRAINER: {NAME: y}\n")
    assert "unknown trainer 'y'" in mistakes("--dataset oxford_pets --config-file t.yaml")[0]


def test_unused_keys_are_said(house: Path):
    assert "TRAIN.PRINT_FREQ" in jobs("--dataset oxford_pets TRAIN.PRINT_FREQ 3").notes[0]


def test_help_is_short_and_complete():
    page = help_lines()
    assert len(page) <= 60 and max(map(len, page)) <= 100
    assert all(any(f.names[0] in line for line in page) for f in FLAGS if f.group)
    reference = reference_lines(default_schema(), "fed.")
    assert any(line.startswith("FED.ROUNDS 10 ") for line in reference)


_WORDS = st.sampled_from(["--rounds", "--opts", "--demo", "--seeds", "-1", "SEED", "=", "--", "-h"])


@settings(max_examples=200, deadline=None)
@given(st.lists(_WORDS | st.text(max_size=6), max_size=6))
def test_any_words_are_parsed_or_refused_in_sentences(typed: list[str]):
    try:
        args = parse(typed)
    except ConfigError as error:
        assert str(error).strip()
    else:
        assert len(args.opts) % 2 == 0


# ---- main: exit codes ------------------------------------------------------------------------
@pytest.fixture
def job_that(house: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that replaces the real main job by one that raises or returns."""
    monkeypatch.setattr("fedvlm.job.resolve._load", lambda spec: FakeTrainer)

    def put(outcome: Any) -> list[Any]:
        seen: list[Any] = []

        def run_job(cfg: Any, origins: dict[str, str], args: Namespace) -> int:
            seen.append(cfg.SEED)
            if isinstance(outcome, BaseException):
                raise outcome
            return int(outcome)

        module: Any = ModuleType("fedvlm.job.run")
        module.run_job = run_job
        module.report_seeds = lambda cfgs, args: seen.append("table") or 0
        monkeypatch.setitem(sys.modules, "fedvlm.job.run", module)
        monkeypatch.setattr(fedvlm, "cli_run", module, raising=False)
        return seen

    return put


@pytest.mark.parametrize("outcome, code", [
    (0, 0), (130, 130), (ConfigError("c"), 2), (DataError("d"), 3), (DivergedError("n"), 4),
    (KeyboardInterrupt(), 130), (ZeroDivisionError("z\nz"), 1), (BrokenPipeError(), 0),
])  # fmt: skip
def test_exit_codes(job_that: Any, capsys: pytest.CaptureFixture[str], outcome: Any, code: int,
                    monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "_reader_is_gone", lambda: 0)  # the real one rewires fd 1
    job_that(outcome)
    assert cli.main(["--dataset", "oxford_pets"]) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if isinstance(outcome, Exception) and code:
        (line,) = err.splitlines()
        assert line.startswith("error: ")


def test_a_bug_leaves_its_traceback_in_a_file(job_that: Any, capsys: pytest.CaptureFixture[str]):
    job_that(ZeroDivisionError("here"))
    assert cli.main(["--dataset", "oxford_pets"]) == 1
    path = capsys.readouterr().err.partition("traceback in ")[2].partition(",")[0]
    assert "ZeroDivisionError: here" in Path(path).read_text()
    Path(path).unlink()
    assert cli.main(["--dataset", "oxford_pets", "--debug"]) == 1
    assert "error: Traceback" in capsys.readouterr().err


def test_seeds_run_in_turn_then_the_table(job_that: Any):
    seen = job_that(0)
    assert cli.main(words("run --dataset oxford_pets --seeds 4 5")) == 0
    assert seen == [4, 5, "table"]
    seen = job_that(4)
    assert cli.main(words("--dataset oxford_pets --seeds 4 5")) == 4
    assert seen == [4]


def test_verbs(job_that: Any, capsys: pytest.CaptureFixture[str]):
    job_that(0)
    assert cli.main(["lits"]) == 2
    assert "did you mean 'list'?" in capsys.readouterr().err
    assert cli.main(["--dataset", "oxford_pets", "--rounds", "0", "OPTIM.LR", "0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert cli.main(["config", "--dataset", "oxford_pets"]) == 0
    assert "FED.ROUNDS 10" in capsys.readouterr().out
