"""``bench methods``: both sides are the real job's, and a difference between them shows."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evidence.bench import method_table, methods, pairs
from evidence.bench.methods import QUICK, Setting
from evidence.commands import read_commands
from fedvlm.core.errors import ConfigError
from fedvlm.federation.rounds import Federation
from fedvlm.job.flags import parse
from fedvlm.job.inputs import Inputs
from fedvlm.job.resolve import resolve

SMALL = Setting(rounds=1, repeats=1, clients=2, epochs=1)  # plain sides pay for every step
COST = {"cpu": 1.0, "wall": 1.0, "memory": 1, "work": {}}
NUMBERS = {"ratio": 0.9, "lowest": 0.8, "highest": 1.1, "bytes_per_round": 8.0, "losses": 1,
           "loss_difference": 0.0, "fast": COST, "plain": COST, "ways": ["stacked"]}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    words = ["methods", "FedAvg", "Ditto", "ZeroShot", "--clients", "2", "--rounds", "2",
             "--repeats", "1", "--json", str(folder / "methods.json"),
             "--markdown", str(folder / "methods.md")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "COMMON", (*methods.COMMON, "--local-epochs", "1"))
        assert read_commands()["bench"].run(words) == 0
    record: dict[str, Any] = json.loads((folder / "methods.json").read_text())
    return record | {"page": (folder / "methods.md").read_text()}


def test_both_sides_train_alike_and_are_counted(record: dict[str, Any]) -> None:
    rows = record["methods"]
    assert list(rows) == ["FedAvg", "Ditto", "ZeroShot"]
    for name, losses in (("FedAvg", 4), ("Ditto", 8)):  # 2 rounds x 2 clients (x two models)
        one = rows[name]
        assert one["losses"] == losses and one["loss_difference"] < method_table.FP32_LOSS
        # 10,240 numbers of 4 bytes, up and down, 2 clients
        assert one["bytes_per_round"] == 10_240 * 4 * 2 * 2
        assert one["ratio"] > 1 and one["lowest"] <= one["ratio"] <= one["highest"]
        assert 0 < one["fast"]["cpu"] < one["plain"]["cpu"]
        assert one["families"] == ["prompt", "feature"]
        assert one["ways"] == ["features", "packed", "stacked"]
        fast, plain = one["fast"]["work"], one["plain"]["work"]
        assert 0 < fast["text_tokens"] < plain["text_tokens"] and "image_forwards" not in fast
        assert fast["gradients"] == plain["gradients"] > 0 < plain["image_forwards"]
    assert rows["Ditto"]["fast"]["cpu"] > rows["FedAvg"]["fast"]["cpu"]


def test_who_has_no_other_path_has_no_ratio(record: dict[str, Any]) -> None:
    row = record["methods"]["ZeroShot"]
    assert row["ways"] == [] and row["families"] == ["none"] and "ratio" not in row
    assert row["loss_difference"] is None and row["bytes_per_round"] == 0
    line = next(s for s in method_table.lines(record) if s.startswith("ZeroShot"))
    assert "no other path" in line and "1.0" not in line
    assert "no ratio: ZeroShot" in method_table.verdict(record)[1]


def test_the_report_names_every_number(record: dict[str, Any]) -> None:
    text = method_table.lines(record)
    assert text[1].split()[:6] == ["method", "trains", "by", "fast", "ms", "plain"]
    assert [line.split()[0] for line in text[2:5]] == ["Ditto", "FedAvg", "ZeroShot"]
    assert "2 clients, 2 rounds" in text[0] and "!" not in "".join(text[2:5])


def test_a_page_says_when_and_where(record: dict[str, Any], tmp_path: Path) -> None:
    page = record["page"]
    assert page.startswith(f"{method_table.BEGIN}\n{record['date']}, {record['cpu']['name']}, ")
    assert "`python scripts/evidence bench methods FedAvg Ditto ZeroShot --clients 2" in page
    assert "load average" in page and "\n| Ditto | prompt+feature | features, packed" in page
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page}after\n")
    method_table.write_page(path, record, "again")
    assert path.read_text() == "before\n" + page.replace(
        f"`{page.split('`')[1]}`", "`again`") + "after\n"
    path.write_text("nothing to put it between\n")
    with pytest.raises(ConfigError, match="has no lines '<!-- table: bench methods -->'"):
        read_commands()["bench"].run(["methods", "--markdown", str(path)])


def test_text_lora_is_packed_and_double_precision_leaves_no_difference() -> None:
    setting = Setting(rounds=1, repeats=1, clients=2, epochs=1, fp64=True)
    record = methods.run(["FedAvg"], setting, peft=["text-lora"])
    row = record["methods"]["FedAvg text-lora"]
    assert row["ways"] == ["features", "packed", "stacked"]
    fast, plain = (row[side]["work"] for side in pairs.SIDES)
    assert fast["text_passes"] > 0 and 2 * fast["text_tokens"] < plain["text_tokens"]
    assert row["loss_difference"] < 1e-10
    assert "fp64" in method_table.heading(record)


def test_sides_that_differ_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    original = methods.build

    def build(words: Sequence[str], inputs: Inputs) -> Federation:
        seed = ["--seed", "2"] if "--plain" in words else []
        at = words.index("--trainer")
        return original([*words[:at], *seed, *words[at:]], inputs)

    monkeypatch.setattr(methods, "build", build)
    record = methods.run(["FedAvg"], SMALL)
    assert record["methods"]["FedAvg"]["loss_difference"] > 1e-4
    assert "!" in method_table.lines(record)[2]


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_left_as_it_was(
    before: bool, counted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is built is hidden from it while a row is measured, unless the caller hid its own."""
    seen: list[int] = []

    def compare(*_: Any) -> dict[str, Any]:
        seen.append(gc.get_freeze_count())
        return NUMBERS

    monkeypatch.setattr(methods, "compare", compare)
    gc.freeze() if before else gc.unfreeze()
    try:
        count = gc.get_freeze_count()
        methods.run(["ZeroShot"], SMALL)
        assert (count > 0) == before and seen[0] > 0
        left = gc.get_freeze_count()  # of the caller's, some are gone by now
        assert (0 < left <= count and seen[0] <= count) if before else left == 0
    finally:
        gc.freeze()


def test_losses_that_one_side_lacks_count() -> None:
    key = (1, 0, "loss")
    assert pairs.difference({}, {}) is None
    assert pairs.difference({key: 1.0}, {}) == float("inf")
    assert pairs.difference({key: 4.5}, {key: 4.0}) == pytest.approx(0.125)
    assert pairs.difference({key: 0.2}, {key: 0.1}) == pytest.approx(0.1)


def test_every_second_pair_begins_with_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [SimpleNamespace(name=name) for name in ("fast", "plain")]
    order: list[str] = []

    def play(side: Any, rounds: int, *, memory: bool) -> pairs.Played:
        order.append(side.name)
        seconds = 1.0 if side.name == "fast" else float(len(order))
        return pairs.Played({}, 0, 1, pairs.Counter(), pairs.Cost(seconds, seconds, 0))

    monkeypatch.setattr(pairs, "play", play)
    monkeypatch.setattr(pairs, "ways", lambda *_: ("packed",))
    record = pairs.compare(*sides, 1, 3)  # type: ignore[arg-type]
    warm, timed = order[:2], order[2:]
    assert warm == ["fast", "plain"]
    assert timed == ["fast", "plain", "plain", "fast", "fast", "plain"]
    assert (record["lowest"], record["ratio"], record["highest"]) == (4.0, 5.0, 8.0)


def test_of_all_trainers_one_may_not_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = methods.build

    def build(words: Sequence[str], inputs: Inputs) -> Federation:
        if "moon" in words:
            raise ConfigError("no moon here")
        return original(words, inputs)

    monkeypatch.setattr(methods, "build", build)
    monkeypatch.setattr(methods, "compare", lambda *_: NUMBERS)
    monkeypatch.setattr(methods, "trainer_files", lambda: {"moon": Path(), "fedavg": Path()})
    record = methods.run([], SMALL)
    assert list(record["methods"]) == ["FedAvg", "MOON"]
    assert method_table.lines(record)[-1] == "MOON: not measured: no moon here"
    with pytest.raises(ConfigError, match="no moon here"):
        methods.run(["moon"], SMALL)


def test_the_small_random_backbone_is_open_clips() -> None:
    words = Setting("random-small", clients=3).words("FedAvg", plain=True)
    cfg = resolve(parse(words)).jobs[0].cfg
    assert (cfg.MODEL.BACKBONE.NAME, cfg.MODEL.BACKBONE.PRETRAINED) == ("ViT-S-32-alt", False)
    assert (cfg.FED.PLAIN, cfg.FED.CLIENTS, cfg.DEVICE) == (True, 3, "cpu")


def test_trainable_sets_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[tuple[str, bool]] = []

    def compare(fast: Federation, plain: Federation, *_: int) -> dict[str, Any]:
        sides.append((sorted(fast.p0)[0], fast.model.packed is not plain.model.packed))
        return NUMBERS

    monkeypatch.setattr(methods, "compare", compare)
    record = methods.run(["FedAvg", "FedTV"], SMALL, peft=["text-lora", "head"])
    assert list(record["methods"]) == ["FedAvg text-lora", "FedAvg head", "FedTV text-lora",
                                       "FedTV head"]
    assert sides == [("text.lora.0.q.A", True), ("head.weight", True)]
    text = method_table.lines(record)
    assert "slower than its plain path: FedAvg text-lora (0.80-1.10), FedAvg head" in "".join(text)
    assert text[-1] == ("FedTV text-lora, FedTV head: not measured: it defines its own "
                        "trainable tensors: --peft is not read")
    with pytest.raises(ConfigError, match="both set"):
        methods.trainable_sets(["prompt+text-lora"])


def test_every_method_has_a_row() -> None:
    own = list(methods.plan_rows([], [], quick=False))
    assert len({name for name, _ in own}) == len(own) == len(methods.trainer_files())
    quick = list(methods.plan_rows([], [], quick=True))
    assert set(quick) - set(own) == {("fedavg", what) for what in methods.SETS}
    every: dict[str, tuple[str, ...]] = {}
    for name, what in methods.plan_rows([], ["all"], quick=False):
        every[name] = (*every.get(name, ()), what)
    assert set(every) == {name for name, _ in own}
    # it brings its own; it takes any set; it needs a body, or a body and a head
    assert (every["fedtv"], every["fedavg"], every["fedper"]) == (
        ("",), methods.SETS, methods.BOTH)
    assert every["moon"] == ("feature", "lora", "adapter", "text-lora+lora")


def test_a_family_selects_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "compare", lambda *_: NUMBERS)
    record = methods.run(["VPT", "FedAvg", "MaPLe"], SMALL, family=["visual-prompt"])
    assert list(record["methods"]) == ["VPT", "MaPLe"]
    with pytest.raises(ConfigError, match="no method trains norm or lora"):
        methods.run(["VPT"], SMALL, family=["norm", "lora"])


def test_quick_gives_way_to_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Setting] = []

    def run(_: Any, setting: Setting, **__: Any) -> None:
        given.append(setting)
        raise ConfigError("enough")

    monkeypatch.setattr(methods, "run", run)
    for words in ([], ["--clients", "7"]):
        with pytest.raises(ConfigError, match="enough"):
            read_commands()["bench"].run(["methods", "--quick", *words])
    assert given[0] == QUICK and given[1].clients == 7 and given[1].rounds == QUICK.rounds


@pytest.mark.parametrize(("words", "said"), [
    (["methods", "FedAvg", "--peft", "lara"], "unknown --peft value 'lara'"),
    (["fedtv", "--peft", "lora"], "not read --peft"),
    (["methods", "--family", "promt"], "--family has no 'promt'; did you mean 'prompt'"),
    (["engines", "--quick"], "not read --quick"), (["fedtv", "--markdown", "x"], "not read"),
    (["methods", "FedAvk"], "did you mean 'FedAvg'"), (["methods", "--bf16"], "not read --bf16"),
    (["methods", "--rounds", "0"], "--rounds 0: must be at least 1"),
    (["fedtv", "--rounds", "3"], "not read --rounds"), (["fedtv", "--fp64"], "not read --fp64"),
    (["fedtv", "FedAvg"], "takes no trainer"),
    (["method"], "did you mean 'methods'"),
])
def test_mistakes_get_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_commands()["bench"].run(words)
