"""What a CoOp user types by habit: evaluation only, configs by folder, domains, the log reader."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.runs.verify.answer import NEXT, answer_lines
from tests.compat.small import THIRD
from tests.jobs import REPOSITORY, folder, results, run

BASE = ("--trainer", "PromptFL")


def cfg_of(line: str):
    return resolve(parse(line.split())).jobs[0].cfg


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("habits")
    assert run(output, *BASE) == 0
    return output


def accuracy(output: Path, classes: str) -> list[str]:
    (log,) = (output / "evaluation" / classes).rglob("log.txt")
    return [line for line in log.read_text().splitlines() if line.startswith("* accuracy")]


def test_evaluation_only_is_the_runs_own_number(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its own answer; that of an earlier round is not paired by test image."""
    model = ("--eval-only", "--model-dir", str(folder(trained)))
    assert run(tmp_path, *BASE, *model, "--load-epoch", "2") == 0
    last, told = results(trained)["last"], results(trained)
    assert accuracy(tmp_path, "base") == [f"* accuracy: {last['personal']:.1f}%"]
    answer = answer_lines({k: v for k, v in told.items() if k != NEXT}, "PromptFL [prompt]")
    assert "\n".join(answer) in capsys.readouterr().out and "by test image" in answer[-2]
    assert run(tmp_path, *BASE, *model, "--load-epoch", "1") == 0  # before it: another number
    assert accuracy(tmp_path, "base") != [f"* accuracy: {last['personal']:.1f}%"]
    said = capsys.readouterr().out
    assert answer[1] in said and answer[2] not in said and "by test image" not in said


def test_evaluation_only_of_a_fine_tuned_run_says_where_its_answer_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The models before their final fine-tuning are evaluated: not the run's numbers."""
    words = (*BASE, "--finetune-epochs", "1")
    assert run(tmp_path, *words) == 0
    capsys.readouterr()
    model = ("--eval-only", "--model-dir", str(folder(tmp_path)))
    assert run(tmp_path / "again", *words, *model) == 0
    said = capsys.readouterr()
    assert "each client alone" not in said.out
    assert f"fedvlm show {folder(tmp_path)}" in (said.out + said.err).replace("\n", "")


@pytest.mark.parametrize("trainer", ["Ditto", "LocalOnly"])
def test_evaluation_only_has_the_clients_own_tensors(tmp_path: Path, trainer: str) -> None:
    """They lie in records of their own; without them every client would be a new one."""
    words = ("--trainer", trainer, "--finetune-epochs", "0")
    assert run(tmp_path, *words) == 0
    model = ("--eval-only", "--model-dir", str(folder(tmp_path)))
    assert run(tmp_path / "again", *words, *model) == 0
    last, start = (results(tmp_path)[row]["personal"] for row in ("last", "untrained"))
    assert last != start
    assert accuracy(tmp_path / "again", "base") == [f"* accuracy: {last:.1f}%"]


def test_evaluation_only_on_new_classes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--eval-only", "--model-dir", str(folder(trained)), "--subsample-classes", "new")
    assert run(tmp_path, *BASE, *words) == 0
    assert accuracy(tmp_path, "new") == [f"* accuracy: {results(trained)['last']['new']:.1f}%"]
    (log,) = tmp_path.rglob("log.txt")
    assert "Finish training" not in log.read_text() and "=> result\n" in log.read_text()
    assert "the reported number is the global accuracy" in capsys.readouterr().out
    assert list(tmp_path.rglob("manifest.json")) == []  # nothing was trained: no run


def test_evaluation_only_without_a_model_is_the_untrained_start(
    trained: Path, tmp_path: Path
) -> None:
    assert run(tmp_path, *BASE, "--eval-only") == 0
    start = results(trained)["untrained"]["personal"]
    assert accuracy(tmp_path, "base") == [f"* accuracy: {start:.1f}%"]


def test_no_train_builds_and_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *BASE, "--no-train") == 0
    assert "nothing was trained" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(("words", "sentence"), [
    ("--load-epoch 3", "needs --model-dir"), ("--model-dir /nowhere", "not a run folder"),
    ("--model-dir {} --load-epoch 9", "the newest is round 2"),
    ("--model-dir {} --load-epoch last", "expects the number of a round"),
    ("--model-dir {} --opts PEFT.N_CTX 4", "has shape"),
])
def test_what_cannot_be_evaluated_is_refused(
    trained: Path, tmp_path: Path, words: str, sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = words.format(folder(trained)).split()
    assert run(tmp_path, *BASE, "--eval-only", *line) == 2
    assert sentence in capsys.readouterr().err


def test_a_config_of_coops_folder_finds_promptfl_and_the_backbone(tmp_path: Path) -> None:
    data = "--root . --dataset eurosat"
    ours = cfg_of(f"{data} --config-file configs/trainers/CoOp/vit_b16.yaml")
    assert (ours.TRAINER.NAME, ours.MODEL.BACKBONE.NAME) == ("PromptFL", "ViT-B/16")
    theirs = tmp_path / "CoOp" / "rn50.yaml"
    theirs.parent.mkdir()
    theirs.write_text("MODEL:\n  BACKBONE:\n    NAME: 'RN50'\n")
    cfg = cfg_of(f"{data} --config-file {theirs}")
    assert (cfg.TRAINER.NAME, cfg.MODEL.BACKBONE.NAME) == ("PromptFL", "RN50")
    assert cfg_of(f"{data} --config-file {theirs} --trainer FedAvg").TRAINER.NAME == "FedAvg"
    assert cfg_of(f"{data} --trainer CoOp").TRAINER.NAME == "PromptFL"
    elsewhere = tmp_path / "rn50.yaml"
    elsewhere.write_text(theirs.read_text())
    assert cfg_of(f"{data} --config-file {elsewhere}").TRAINER.NAME == "FedTV"


@pytest.mark.skipif(not THIRD.is_dir(), reason=f"CoOp's own files are not in {THIRD}")
def test_the_authors_config_finds_promptfl() -> None:
    cfg = cfg_of(f"--root . --dataset eurosat --config-file {THIRD}/vit_b16.yaml")
    assert (cfg.TRAINER.NAME, cfg.MODEL.BACKBONE.NAME) == ("PromptFL", "ViT-B/16")


def test_dassls_domains_are_the_held_out_one() -> None:
    line = "--root . --dataset pacs --target-domains sketch"
    cfg = cfg_of(f"{line} --source-domains art_painting cartoon photo")
    assert cfg.FED.HELD_OUT_DOMAIN == "sketch" and cfg.DATASET.SOURCE_DOMAINS == ()
    assert cfg_of("--root . --dataset pacs --source-domains art_painting cartoon photo sketch")
    for words, sentence in (
        (f"{line} --source-domains photo", "clients have all domains except the one left out"),
        (f"{line} photo", "one domain can be left out per run"),
        (f"{line} --held-out photo", "name different domains"),
        ("--demo --source-domains a", "not known before it is read"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            cfg_of(words)


@pytest.mark.skipif(not THIRD.is_dir(), reason=f"CoOp's own files are not in {THIRD}")
def test_coops_log_reader_reads_our_folders(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own, as one types it, and once more in this one."""
    words, seeds = ["fedvlm.compat", str(THIRD / "parse_test_res.py")], folder(trained).parent
    done = subprocess.run([sys.executable, "-m", *words, str(seeds)], cwd=REPOSITORY,
                          capture_output=True, text=True, check=True)
    assert f"* accuracy: {results(trained)['last']['personal']:.1f}0% +- 0.00%" in done.stdout
    monkeypatch.setattr(sys, "argv", [*words, str(seeds.parent), "--multi-exp"])
    runpy.run_module("fedvlm.compat", run_name="__main__")
    assert "Average performance" in capsys.readouterr().out


def test_pairs_may_follow_a_flag_of_several_words() -> None:
    line = "--demo --metric auroc top5 TEST.EVAL_EVERY 3 --seeds 4 DATASET.NUM_SHOTS 2"
    cfg = cfg_of(line)
    assert (cfg.SEED, cfg.DATASET.NUM_SHOTS, cfg.TEST.EVAL_EVERY) == (4, 2, 3)
    assert cfg.TEST.METRICS == ("auroc", "top5")
