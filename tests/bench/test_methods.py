"""``bench methods``: both sides are the real job's, and a difference between them shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedvlm.bench import methods
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import ConfigError
from fedvlm.federation.rounds import Federation
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve

QUICK = ("--clients", "2", "--rounds", "2", "--repeats", "1")


@pytest.fixture(scope="module", autouse=True)
def one_epoch() -> Iterator[None]:
    """Half of the steps: the plain sides pay a whole text pass for each."""
    patch = pytest.MonkeyPatch()
    patch.setattr(methods, "COMMON", (*methods.COMMON, "--local-epochs", "1"))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("bench") / "methods.json"
    words = ["methods", "FedAvg", "Ditto", "ZeroShot", *QUICK, "--json", str(path)]
    assert verbs()["bench"].run(words) == 0
    return json.loads(path.read_text())


def test_both_sides_train_alike_and_are_counted(record: dict[str, Any]) -> None:
    found = record["methods"]
    assert list(found) == ["FedAvg", "Ditto", "ZeroShot"]
    for name, losses in (("FedAvg", 4), ("Ditto", 8)):  # 2 rounds x 2 clients (x two models)
        one = found[name]
        assert one["losses"] == losses and one["loss_difference"] < methods.FP32_LOSS
        # 10,240 numbers of 4 bytes, up and down, 2 clients
        assert one["bytes_per_round"] == 10_240 * 4 * 2 * 2
        assert one["ratio"] > 1 and one["lowest"] <= one["ratio"] <= one["highest"]
        assert 0 < one["fast"]["cpu"] < one["plain"]["cpu"]
    assert found["Ditto"]["fast"]["cpu"] > found["FedAvg"]["fast"]["cpu"]
    assert found["ZeroShot"]["loss_difference"] is None
    assert found["ZeroShot"]["bytes_per_round"] == 0


def test_the_report_names_every_number(record: dict[str, Any]) -> None:
    text = methods.lines(record)
    assert text[1].split()[:6] == ["trainer", "fast", "plain", "ratio", "range", "bytes"]
    assert [line.split()[0] for line in text[2:5]] == ["FedAvg", "Ditto", "ZeroShot"]
    assert "2 clients, 2 rounds" in text[0] and "!" not in "".join(text[2:5])


def test_what_is_left_in_double_precision() -> None:
    found = methods.run(["FedAvg"], "tiny", rounds=1, repeats=1, clients=2, fp64=True)
    assert found["methods"]["FedAvg"]["loss_difference"] < 1e-10
    assert "fp64" in methods.lines(found)[0]


def test_sides_that_differ_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    original = methods.build

    def build(words: Sequence[str]) -> Federation:
        seed = ["--seed", "2"] if "--plain" in words else []
        at = words.index("--trainer")
        return original([*words[:at], *seed, *words[at:]])

    monkeypatch.setattr(methods, "build", build)
    found = methods.run(["FedAvg"], "tiny", rounds=1, repeats=1, clients=2)
    assert found["methods"]["FedAvg"]["loss_difference"] > 1e-4
    assert "!" in methods.lines(found)[2]


def test_losses_that_one_side_lacks_count() -> None:
    key = (1, 0, "loss")
    assert methods.difference({}, {}) is None
    assert methods.difference({key: 1.0}, {}) == float("inf")
    assert methods.difference({key: 4.5}, {key: 4.0}) == pytest.approx(0.125)
    assert methods.difference({key: 0.2}, {key: 0.1}) == pytest.approx(0.1)


def test_of_all_trainers_one_may_not_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = methods.build

    def build(words: Sequence[str]) -> Federation:
        if "moon" in words:
            raise ConfigError("no moon here")
        return original(words)

    monkeypatch.setattr(methods, "build", build)
    monkeypatch.setattr(methods, "trainer_files", lambda: {"moon": Path(), "fedavg": Path()})
    found = methods.run([], "tiny", rounds=1, repeats=1, clients=2)
    assert list(found["methods"]) == ["fedavg", "moon"]
    assert methods.lines(found)[-1] == "moon: not measured: no moon here"
    with pytest.raises(ConfigError, match="no moon here"):
        methods.run(["moon"], "tiny", rounds=1, repeats=1, clients=2)


def test_the_small_random_backbone_is_open_clips() -> None:
    words = methods.words_of("FedAvg", "random-small", 3, plain=True)
    cfg = resolve(parse(words)).jobs[0].cfg
    assert (cfg.MODEL.BACKBONE.NAME, cfg.MODEL.BACKBONE.PRETRAINED) == ("ViT-S-32-alt", False)
    assert (cfg.FED.PLAIN, cfg.FED.CLIENTS, cfg.DEVICE) == (True, 3, "cpu")


def test_trainable_sets_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"cpu": 1.0, "wall": 1.0, "memory": 1}
    number = {"ratio": 0.9, "lowest": 0.8, "highest": 1.1, "bytes_per_round": 8.0, "losses": 1,
              "loss_difference": 0.0, "fast": spent, "plain": spent}
    sides: list[tuple[str, bool]] = []

    def compare(fast: Federation, plain: Federation, *_: int) -> dict[str, Any]:
        sides.append((sorted(fast.p0)[0], fast.model.packed is not plain.model.packed))
        return number

    monkeypatch.setattr(methods, "compare", compare)
    found = methods.run(["FedAvg", "FedTV"], "tiny", clients=2, peft=["text-lora", "head"])
    assert list(found["methods"]) == ["FedAvg text-lora", "FedAvg head", "FedTV text-lora",
                                      "FedTV head"]
    assert sides == [("text.lora.0.q.A", True), ("head.weight", True)]
    text = methods.lines(found)
    assert "slower than its plain path: FedAvg text-lora, FedAvg head" in text
    assert text[-1].startswith("FedTV head: not measured: it brings its own trainable tensors")
    assert methods.trainable_sets(["lora", "all"])[:2] == ["lora", "prompt"]
    with pytest.raises(ConfigError, match="both set"):
        methods.trainable_sets(["prompt+text-lora"])


@pytest.mark.parametrize(("words", "said"), [
    (["methods", "FedAvg", "--peft", "lara"], "--peft has no 'lara'"),
    (["fedtv", "--peft", "lora"], "not read --peft"),
    (["methods", "FedAvk"], "did you mean 'fedavg'"), (["methods", "--bf16"], "not read --bf16"),
    (["methods", "--rounds", "0"], "--rounds 0: must be at least 1"),
    (["fedtv", "--rounds", "3"], "not read --rounds"), (["fedtv", "--fp64"], "not read --fp64"),
    (["fedtv", "FedAvg"], "takes no trainer"),
    (["method"], "did you mean 'methods'"),
])
def test_mistakes_get_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        verbs()["bench"].run(words)
