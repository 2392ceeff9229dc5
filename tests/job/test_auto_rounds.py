"""``--rounds auto`` in the real job: where it ends, resumed and over workers, and what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.config.federation import MOST_ROUNDS, PATIENCE
from fedvlm.config.keys import default_schema
from fedvlm.core import files
from fedvlm.core.errors import ConfigError
from fedvlm.job.identity import identity_config
from fedvlm.job.resolve import run_config
from fedvlm.runs.identity import refuse_other
from tests import jobs
from tests.data.miniatures.own import write_tree
from tests.data.miniatures.shapes import CLASSES
from tests.job.engines.test_workers import with_workers

AUTO = ("--trainer", "FedAvg", "--peft", "head", "--rounds", "auto", "--lr", "1e-5",
        "--finetune-epochs", "1", "FED.PATIENCE", "2")


@pytest.fixture(autouse=True)
def no_hook_left() -> Iterator[None]:
    yield
    files.on_write_point = None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that ends when validation is flat, and the number of its write points."""
    output, seen = tmp_path_factory.mktemp("whole"), []
    assert jobs.run(tmp_path_factory.mktemp("first"), *AUTO) == 0  # the caches are written once
    files.on_write_point = seen.append
    assert jobs.run(output, *AUTO) == 0
    files.on_write_point = None
    return output, len(seen)


def test_it_ends_flat_and_its_last_round_is_a_true_one(whole: tuple[Path, int]) -> None:
    records = jobs.records(whole[0])
    assert [r["round"] for r in records] == list(range(7))  # checks after rounds 2, 4, 6
    assert ["val" in r for r in records] == [False, False, True, False, True, False, True]
    assert ["val_loss" in r for r in records] == ["val" in r for r in records]
    assert [r["round"] for r in records if "finetune" in r] == [6]
    assert "base_all" in records[-1] and "base_all" not in records[4]
    info = json.loads((jobs.folder(whole[0]) / "results.json").read_text())["run_info"]
    (said,) = [note for note in info["notes"] if note.startswith("--rounds auto")]
    assert "stopped after round 6 of at most 100" in said and "accuracy and loss are flat" in said
    assert said in (jobs.folder(whole[0]) / "log.txt").read_text()


def test_a_check_sees_validation_images_only_and_moves_no_bit(
    whole: tuple[Path, int], tmp_path: Path
) -> None:
    words = [w for w in AUTO if w not in ("FED.PATIENCE", "2", "auto")]
    words[words.index("--rounds") + 1:words.index("--rounds") + 1] = ["6"]
    assert jobs.run(tmp_path, *words, "TEST.SELECT", "val") == 0
    plain, auto = jobs.records(tmp_path), jobs.records(whole[0])
    for a, b in zip(plain, auto, strict=True):
        assert (a["train"], a["bytes_up"]) == (b["train"], b["bytes_up"])
        assert a["val"] == b.get("val", a["val"])  # as selection by validation measures it
    assert plain[-1]["clients"] == auto[-1]["clients"]


@pytest.mark.usefixtures("pictures")  # as ``whole``, whose write points are counted
@pytest.mark.parametrize("share", [0.7, 0.95, *(
    pytest.param(s, marks=pytest.mark.slow) for s in (0.4, 0.55, 0.8, 0.9))])
def test_a_stopped_run_ends_in_the_same_round_with_the_same_bits(
    whole: tuple[Path, int], tmp_path: Path, share: float
) -> None:
    left = [int(share * whole[1])]

    def hook(_name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    files.on_write_point = hook
    assert jobs.run(tmp_path, *AUTO) == 130
    files.on_write_point = None
    assert jobs.run(tmp_path, *AUTO) == 0
    jobs.same(whole[0], tmp_path)


def test_workers_end_in_the_same_round_and_a_replay_is_equal(
    whole: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert with_workers(tmp_path, monkeypatch, *AUTO, "--workers", "2")[0] == 0
    assert [r.get("val") for r in jobs.records(tmp_path)] == [
        r.get("val") for r in jobs.records(whole[0])]
    assert main(["verify", str(jobs.folder(whole[0])), "--replay", "9"]) == 0
    assert "equal bit for bit" in capsys.readouterr().out


def test_patience_belongs_to_the_identity(
    whole: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(whole[0], *AUTO[:-1], "3") == 2
    assert "config.FED.PATIENCE: 2 -> 3" in capsys.readouterr().err


def test_a_saved_config_looks_at_accuracy_alone(tmp_path: Path) -> None:
    """It is the run that it was; the end of a new one looks at the loss, too."""
    (tmp_path / "config.yaml").write_text(
        "TRAINER: {NAME: FedAvg}\nFED: {ROUNDS: 100, PATIENCE: 5}\n")
    old, new = (run_config(tmp_path, keys) for keys in ({}, {"FED.PATIENCE_LOSS": "True"}))
    assert not old.FED.PATIENCE_LOSS and default_schema()["FED.PATIENCE_LOSS"].default
    assert "FED.PATIENCE_LOSS" not in identity_config(old)
    assert identity_config(new)["FED.PATIENCE_LOSS"]


@pytest.mark.parametrize(("more", "value", "words"), [
    ([], "True (default)", "accuracy and loss are flat"),
    (["--trainer", "DP-FPL"], "False (because DP-FPL guarantees privacy)", "accuracy is flat"),
    (["FED.DP.CLIP", "1", "FED.DP.UNIT", "image"], "True (default)", "accuracy is flat"),
])
def test_a_private_run_ends_by_accuracy_alone(
    more: list[str], value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--demo", "--rounds", "auto", *more, "--print-config"]) == 0
    seen = capsys.readouterr()
    (line,) = [one for one in seen.out.splitlines() if one.startswith("FED.PATIENCE_LOSS")]
    assert " ".join(line.split()[1:]).startswith(value)
    assert f"the clients' validation {words}, after 100 rounds" in seen.err


def test_a_privacy_guarantee_covers_no_losses(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--demo", "--trainer", "DP-FPL", "--rounds", "auto", "FED.PATIENCE_LOSS", "True"]
    assert main([*words, "--print-config"]) == 2
    assert "FED.PATIENCE_LOSS True: DP-FPL guarantees privacy" in capsys.readouterr().err


def test_a_run_of_an_earlier_version_names_the_way_on() -> None:
    old = {"config": {"FED.PATIENCE": 5}}
    with pytest.raises(ConfigError, match="--opts FED.PATIENCE_LOSS False goes on as it began"):
        refuse_other(Path("out"), old, {"config": old["config"] | {"FED.PATIENCE_LOSS": True}},
                     present=dict)


def test_a_schedule_counts_on_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, *AUTO, "OPTIM.LR_SCHEDULER", "cosine", "--no-train") == 0
    assert f"OPTIM.LR_SCHEDULER cosine counts on {MOST_ROUNDS} rounds" in capsys.readouterr().out


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return values and origins that ``--print-config`` shows of the two keys."""
    assert main([*words, "--print-config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines
            if line.startswith(("FED.ROUNDS", "FED.PATIENCE "))}


@pytest.mark.parametrize(("more", "rounds", "patience"), [
    ([], MOST_ROUNDS, PATIENCE), (["--rounds", "7"], 7, 0), (["--rounds", "auto"], 100, PATIENCE),
    (["FED.ROUNDS", "auto", "FED.PATIENCE", "3"], 100, 3), (["--trainer", "AFL"], 1, 0),
])
def test_own_images_are_trained_until_flat_unless_somebody_gives_rounds(
    tmp_path: Path, more: list[str], rounds: int, patience: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    photos = tmp_path / "photos"
    write_tree(photos, [""], CLASSES, 4)
    shown = printed(["--images", str(photos), "--backbone", "tiny", *more], capsys)
    assert shown["FED.ROUNDS"].startswith(f"{rounds} (")
    assert shown["FED.PATIENCE"].startswith(f"{patience} (")


@pytest.mark.parametrize(("more", "rate"), [
    ([], "0.05 (because FED.ROUNDS is auto, for a head)"),
    (["--rounds", "auto"], "0.05 (because FED.ROUNDS is auto, for a head)"),
    (["--lr", "0.005"], "0.005 (flag --lr)"), (["OPTIM.LR", "0.1"], "0.1 (opts)"),
    (["--rounds", "20"], "0.005 (default)"),
    (["--peft", "feature"], "0.05 (because FED.ROUNDS is auto, for a feature adapter)"),
    (["--peft", "lora+head"], "0.005 (default)"), (["OPTIM.NAME", "adam"], "0.005 (default)"),
    (["--trainer", "FedTV"], "0.005 (default)"),  # which PEFT tells nothing
    (["--trainer", "FedDDA"], "0.001 ("),  # the method's own file says one
])
def test_a_head_has_a_rate_of_its_own_unless_somebody_gives_rounds_or_a_rate(
    tmp_path: Path, more: list[str], rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    write_tree(photos, [""], CLASSES, 4)
    words = ["--images", str(photos), "--backbone", "tiny", "--trainer", "FedAvg", "--peft", "head"]
    assert main([*words, *more, "--print-config"]) == 0
    seen = capsys.readouterr()
    (line,) = [one for one in seen.out.splitlines() if one.startswith("OPTIM.LR ")]
    assert " ".join(line.split()[1:]).startswith(rate)
    assert ("learning rate 0.05 (--lr sets another)" in seen.err) == rate.startswith("0.05")


@pytest.mark.parametrize(("words", "rounds", "why"), [
    (["--trainer", "AFL"], 1, "because AFL is done after one round"),
    (["--trainer", "TOFA"], 1, "because TOFA"), (["--trainer", "FedPFT"], 1, "because FedPFT"),
    (["--trainer", "AFL", "--rounds", "3"], 3, "flag --rounds"),
    (["--trainer", "AFL", "FED.ROUNDS", "20"], 20, "opts"),
    (["--trainer", "AFL", "--rounds", "auto"], MOST_ROUNDS, "auto, flag --rounds"),
    (["--trainer", "AFL", "--frac", "0.5"], 1, "because AFL"),  # all train in round 1
    (["--trainer", "AFL", "--frac", "0.5", "FED.FIRST_ROUND_ALL", "False"], 20, "demo.yaml"),
    (["--trainer", "AFL", "FED.UNRELIABLE.DROPOUT", "0.2"], 20, "demo.yaml"),
    (["--trainer", "FedTV"], 20, "demo.yaml"),
])
def test_a_method_of_one_round_has_one_in_the_demo_unless_somebody_gives_rounds(
    words: list[str], rounds: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--demo", *words, "--print-config"]) == 0
    seen = capsys.readouterr()
    (line,) = [one for one in seen.out.splitlines() if one.startswith("FED.ROUNDS")]
    assert line.split()[1] == str(rounds) and why in line
    assert ("is done after one round: FED.ROUNDS 1" in seen.err) == why.startswith("because")


@pytest.mark.parametrize(("text", "rounds"), [("", 1), ("FED: {ROUNDS: 3}\n", 3)])
def test_a_config_of_ones_own_that_names_rounds_keeps_them(
    tmp_path: Path, text: str, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("TRAINER: {NAME: AFL}\n" + text)
    words = ["--dataset", "digits", "--backbone", "tiny", "--trainer-config-file", str(mine)]
    assert printed(words, capsys)["FED.ROUNDS"].startswith(f"{rounds} (")


@pytest.mark.parametrize("trainer", ["AFL", "TOFA"])
def test_a_second_round_of_such_a_method_repeats_the_first(tmp_path: Path, trainer: str) -> None:
    assert jobs.run(tmp_path, "--trainer", trainer, "TEST.EVAL_EVERY", "1") == 0
    start, one, two = jobs.records(tmp_path)
    assert one["personal"] == two["personal"] != start["personal"]
    assert one["global"] == two["global"] and one["bytes_up"] == two["bytes_up"]


@pytest.mark.parametrize("words", [["--demo"], ["--root", "x", "--dataset", "eurosat"]])
def test_known_sets_keep_their_rounds(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(words, capsys)
    assert shown["FED.PATIENCE"].startswith("0 (") and not shown["FED.ROUNDS"].startswith("100")


@pytest.mark.parametrize("word", ["-1", "0", "soon"])
def test_other_words_are_no_rounds(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--demo", "--rounds", word]) == 2
    assert "FED.ROUNDS" in capsys.readouterr().err
