"""Attackers in the real job: on every engine, in results, and refused where clients are real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import jobs
from tests.job.engines.test_workers import with_workers

FOUR = (
    "--num-users", "4", "--trainer", "FedAvg", "TEST.REFERENCES", "False", "FED.HOSTILE", "0.25",
)


def test_results_say_who_attacks_and_workers_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels are flipped in the workers, updates at the driver."""
    one, two = tmp_path / "local", tmp_path / "workers"
    words = (*FOUR, "FED.ATTACK", "label_flip", "FED.AGGREGATOR", "geometric_median")
    assert jobs.run(one, *words) == 0
    found = jobs.results(one)
    (hostile,) = found["attack"]["clients"]
    honest = [r["accuracy"] for r in found["last"]["clients"] if r["client"] != hostile]
    assert found["attack"]["kind"] == "label_flip"
    assert found["attack"]["personal_honest"] == pytest.approx(sum(honest) / 3)
    log = (jobs.folder(one) / "log.txt").read_text()
    assert f"simulated attackers: 1 of 4 clients ({hostile}), attack label_flip" in log
    assert with_workers(two, monkeypatch, *words, "--workers", "2")[0] == 0
    jobs.same(one, two)


def test_under_attack_no_other_learning_rate_is_advised(tmp_path: Path) -> None:
    """Half of the clients train on flipped labels: their loss is far above that of guessing."""
    words = ("--trainer", "FedAvg", "--peft", "head", "FED.ATTACK", "label_flip")
    assert jobs.run(tmp_path, *words, "--num-users", "4", "FED.HOSTILE", "0.5") == 0
    found = jobs.results(tmp_path)
    assert found["answer"]["verdict"] == "costs" and found["next"] is None


def test_keys_that_do_nothing_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--dry-run", "--trainer", "FedAvg", "FED.ATTACK", "scale", "FED.DP.DELTA", "1e-5")
    assert jobs.run(tmp_path, *words) == 0
    said = "".join(capsys.readouterr())
    assert "nobody attacks this run: FED.ATTACK needs" in said
    assert "no differential privacy: FED.DP.DELTA alone" in said
    words = ("--dry-run", *FOUR, "FED.ATTACK", "label_flip", "FED.ATTACK_SCALE", "4")
    assert jobs.run(tmp_path, *words) == 0
    assert "FED.ATTACK_SCALE 4 has no effect" in "".join(capsys.readouterr())


@pytest.mark.usefixtures("few_images")
def test_a_backdoor_on_pixels_has_a_success_rate(tmp_path: Path) -> None:
    words = ("FED.ATTACK", "backdoor", "FED.PLAIN", "True", "--rounds", "1")
    assert jobs.run(tmp_path, *FOUR, *words) == 0
    last = jobs.results(tmp_path)["last"]
    told = [r["backdoor"] for r in last["clients"] if r["backdoor"] is not None]
    assert last["backdoor"] == pytest.approx(sum(told) / len(told)) and 0 <= last["backdoor"] <= 100


@pytest.mark.parametrize(("words", "said"), [
    (("FED.ATTACK", "backdoor"), "FED.ATTACK backdoor: a trigger is put on pixels"),
    (("FED.HOSTILE_BY", "site"), "FED.HOSTILE_BY site: all clients are at one site"),
    (("FED.ATTACK", "sgin"), "FED.ATTACK must be one of sign"),
])
def test_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture, words: tuple[str, ...], said: str
) -> None:
    assert jobs.run(tmp_path, *FOUR, *words) == 2
    assert said in capsys.readouterr().err
