"""``FED.DP.UNIT`` in the real job: results, files, engines, resume, groups, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedvlm.cli.main import main
from tests import jobs
from tests.job.engines.test_workers import with_workers

KEYS = (
    "--trainer", "PromptFL", "TEST.REFERENCES", "False", "FED.DP.UNIT", "image", "FED.DP.CLIP",
    "1", "FED.DP.NOISE", "4", "FED.DP.DELTA", "1e-5",
)
KILLED = """
import os
from fedvlm.federation import rounds
play = rounds.Federation.round
def stop(self, state, number):
    if number == 2:
        os._exit(9)
    return play(self, state, number)
rounds.Federation.round = stop
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, to look at."""
    output = tmp_path_factory.mktemp("whole")
    assert jobs.run(output, *KEYS) == 0
    return output


def test_results_have_epsilon_and_no_loss_and_engines_agree(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draws below have workers in processes of their own."""
    spent = jobs.results(one)["privacy"]
    assert spent["unit"] == "image" and spent["noise"] == "seed" and spent["releases"] == 2
    log = (jobs.folder(one) / "log.txt").read_text()
    assert f"privacy: {spent['words']}" in log and "noise from the seed: a simulation" in log
    assert "whether one image was used" in log
    assert not any(record["train"].get(c) for record in jobs.records(one) for c in "01")
    released = json.loads((jobs.folder(one) / "released.json").read_text())
    assert released["declared"]["losses"] == [] == released["declared"]["metrics"]
    assert released["privacy"] == spent["words"] and released["sent"]["metrics"] == {}
    assert with_workers(tmp_path, monkeypatch, *KEYS, "--workers", "2")[0] == 0
    jobs.same(one, tmp_path)


def test_a_run_goes_on_with_the_same_bits(one: Path, tmp_path: Path) -> None:
    assert jobs.spawn(tmp_path, *KEYS, before=KILLED).returncode == 9
    assert [r["round"] for r in jobs.records(tmp_path)] == [0, 1]
    assert jobs.run(tmp_path, *KEYS) == 0
    jobs.same(one, tmp_path)


DRAWN = (*KEYS, "FED.DP.SAMPLING", "poisson", "--batch-size", "3")


def test_draws_go_on_with_the_same_bits_and_engines_agree(tmp_path: Path) -> None:
    one, two, three = tmp_path / "whole", tmp_path / "stopped", tmp_path / "workers"
    assert jobs.run(one, *DRAWN) == 0
    spent = jobs.results(one)["privacy"]
    assert "drawn by a coin at every step" in spent["words"] and spent["noise"] == "seed"
    assert "noise from the seed: a simulation" in spent["words"]
    assert 0 < spent["epsilon"] <= spent["epsilon_bound"]
    assert jobs.spawn(two, *DRAWN, before=KILLED).returncode == 9
    assert jobs.run(two, *DRAWN) == 0
    jobs.same(one, two)
    assert jobs.run(three, *DRAWN, "--engine", "workers", "--workers", "2") == 0
    jobs.same(one, three)
    assert main(["verify", str(jobs.folder(one)), "--replay", "9"]) == 0


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("words", [("PromptFL",), ("FedAvg", "--peft", "lora")])
def test_no_count_tells_how_many_were_drawn(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = []
    for seed in ("1", "2"):  # draws differ, data do not
        place = tmp_path / seed
        assert jobs.run(place, *DRAWN, "--trainer", *words, "--seed", seed, "DATA_SEED", "1") == 0
        told.append([r.get("counters") for r in jobs.records(jobs.folder(place))])
    assert told[0] == told[1] and any(told[0])


def test_groups_are_counted_by_the_batches_that_they_may_be_in(tmp_path: Path) -> None:
    """Six images of each person, batches of 4: two or more batches of a pass, not one."""
    dice, lines = np.random.default_rng(0), ["file,class,person"]
    for i in range(48):
        pixels = dice.integers(0, 255, (32, 32, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{('cat', 'dog')[i // 6 % 2]},P{i // 6}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    words = [
        "run", "--images", str(tmp_path / "t.csv"), "--trainer", "FedAvg", "--peft", "head",
        "--backbone", "tiny", "--rounds", "1", "--local-epochs", "1", "--batch-size", "4",
        "TEST.REFERENCES", "False", "FED.DP.UNIT", "group", "FED.DP.CLIP", "1", "FED.DP.EPSILON",
        "8", "FED.DP.DELTA", "1e-5", "--output-dir", str(tmp_path / "out"),
    ]
    assert main(words) == 2  # nothing says who belongs to whom
    assert main([*words, "--groups", "person"]) == 0
    spent = jobs.results(tmp_path / "out")["privacy"]
    assert spent["releases"] > 1 and spent["epsilon"] == pytest.approx(8, abs=1e-3)
    assert "for replacing one group of a client" in spent["words"]


@pytest.mark.parametrize(("words", "said"), [
    (("--trainer", "SCAFFOLD"), "does not cover SCAFFOLD: its clients send control"),
    (("--trainer", "DP-FPL"), "does not cover DP-FPL: it has noise of its own"),
    (("--trainer", "MOON"), "does not cover MOON: its loss or its clients' other work looks at"),
    (("--trainer", "Per-FedAvg"), "does not cover Per-FedAvg: it trains by a loop of its own"),
    (("--trainer", "FedBABU", "--peft", "prompt+feature"), "not cover FedBABU: its final fine-tun"),
    (("FED.DP.UNIT", "group"), "FED.DP.UNIT group: nothing says which images belong together"),
    (("FED.DP.UNIT", "client", "FED.DP.SAMPLING", "poisson"), "which FED.FRAC draws by coins"),
    (("FED.DP.CLIP", "0", "FED.DP.NOISE", "0", "FED.DP.SAMPLING", "poisson"), "hide nothing"),
    (("FED.DP.UNIT", "patient"), "got 'patient'; use group, and --groups patient (the column"),
    (("FED.DP.DELTA", "0.5"), "FED.DP.DELTA 0.5: give a delta above 0 and below 1/"),
])
def test_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture, words: tuple[str, ...], said: str
) -> None:
    assert jobs.run(tmp_path, *KEYS, *words) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_unit_alone_is_told_to_do_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert jobs.run(tmp_path, "--dry-run", "FED.DP.UNIT", "image") == 0
    assert "no differential privacy: FED.DP.UNIT image alone sets none" in capsys.readouterr().out
