"""The benchmark's two sides compute the same numbers, and its formulas and report hold together."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from evidence.bench import fedtv, flops, machine, report
from evidence.bench.case import TINY, Case, class_names, local_round, trained
from evidence.bench.flops import Towers
from evidence.bench.machine import busiest, torch_products
from evidence.commands import read_commands
from fedvlm.core.errors import ConfigError
from fedvlm.models.towers.layers import onednn_available

LOSS = {torch.float32: 1e-5, torch.float64: 1e-9}
TENSORS = {torch.float32: 1e-4, torch.float64: 1e-9}
B16 = Towers(512, 12, 77, 512, 768, 12, 14, 16)


@pytest.fixture(scope="module", autouse=True)
def small_products() -> Iterator[None]:
    """The machine's peak is not what is tested: its products take 4 CPU seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_SHAPES", ((64, 64, 64),))
        yield


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return fedtv.run(fedtv.tiny(fedtv.Options(repeats=2, bf16=True, cold=True, profile=True)))


@pytest.mark.parametrize("dtype", list(LOSS), ids=str)
def test_both_sides_train_alike(dtype: torch.dtype) -> None:
    case = Case(TINY, 5, 4, train=8, test=0, dtype=dtype)
    fed = case.federation(clients=2, chunk=2, epochs=2)
    work = local_round(fed)
    for client in (0, 1):
        side = case.reference()
        optimizer = side.optimizer(0.005, 0.9, 5e-4)
        losses = [side.train_step(x, y, optimizer) for x, y in case.batches(2, client)]
        ours = [float(v[client]) for v in fed.trainer.history]
        assert len(losses) == 4 and losses[0] != losses[-1]
        assert ours == pytest.approx(losses, rel=LOSS[dtype])
        for name, value in side.values().items():
            if name != fedtv.NO_GRADIENT:
                got = trained(fed, work, client)[name]
                assert (got - value).norm() <= TENSORS[dtype] * value.norm(), name


def test_the_sides_differ_when_their_numbers_do() -> None:
    case = Case(TINY, 5, 4, train=4, test=0, dtype=torch.float64)
    fed = case.federation(clients=1, chunk=1, epochs=1)
    local_round(fed)
    side = case.reference()
    side.set_values({"text.sigma": case.start["text.sigma"] * 1.1})
    (x, y), = case.batches(1)
    assert abs(float(side.loss(x, y).detach()) - float(fed.trainer.history[0][0])) > 1e-6


def test_a_round_gives_the_same_logits(record: dict[str, Any]) -> None:
    assert record["round"]["logits_largest"] > 0.1
    assert record["round"]["logits_difference"] < 1e-3
    for side in ("one", "stacked"):
        for a, b in zip(record["step"]["losses"][side], record["step"]["reference_losses"],
                        strict=True):
            assert a == pytest.approx(b, rel=1e-5)
    for side in ("bf16_one", "bf16_stacked"):
        for a, b in zip(record["step"]["losses"][side], record["step"]["reference_losses"],
                        strict=True):
            assert a == pytest.approx(b, abs=5e-2)


def test_formulas_give_the_published_counts() -> None:
    # counted by hand: 35.1 GF per image, 1,490 + 1,124 GF per reference step, 72 GF per fast one
    assert flops.image(B16) / 1e9 == pytest.approx(35.1, rel=0.005)
    assert flops.full_text(B16, 50) * 5 / 1e9 == pytest.approx(1490, rel=0.005)
    assert flops.reference_step(B16, 50, 32) / 1e9 == pytest.approx(1490 + 1124, rel=0.005)
    lengths = [4] * 16 + [5] * 34  # 234 tokens behind a prefix of 17: 251 in all
    assert flops.fast_step(B16, 17, lengths) / 1e9 == pytest.approx(72, rel=0.01)
    one, two = (flops.fast_step(B16, 17, lengths * n) for n in (1, 2))
    assert one < two < 2 * one


@pytest.mark.skipif(not onednn_available(), reason="oneDNN's products are not used here")
def test_torch_products_really_replace_ours() -> None:
    fed = Case(TINY, 3, 2, train=2, test=0).federation(clients=1, chunk=1, epochs=1)

    def fast_products() -> int:
        rows = busiest(lambda: local_round(fed), count=10_000)["rows"]
        return sum(r["calls"] for r in rows if r["op"].endswith("_linear_pointwise"))

    with torch_products():
        assert fast_products() == 0
    assert fast_products() > 0


def test_class_names_are_distinct_and_long_enough_for_any_count() -> None:
    for count in (1, 50, 102, 1000, 12000):
        assert len(set(class_names(count))) == count


def test_report_has_its_fields(record: dict[str, Any]) -> None:
    text = "\n".join(report.lines(record))
    for word in (
        "load average", "AMX", "CPU s", "wall s", "ratio", "range", "|dloss|", "RSS", "FLOPs",
        "matmul peak", "bound for ours", "extrapolated from 1 client", "cold cache", "bf16",
        "no verdict", "where our time goes", "text tokens",
    ):
        assert word in text, word
    json.dumps(record)


@pytest.mark.parametrize(("load", "said"), [(9.0, "verdict withheld"), (1.0, "not met")])
def test_verdict_is_withheld_under_load(record: dict[str, Any], load: float, said: str) -> None:
    seen = copy.deepcopy(record)
    seen["setting"] |= report.TARGET_SETTING
    seen["load"] = {"before": 0.5, "highest": load, "cores": 2}
    lines = [s for s in report.lines(seen) if "training step, fp32:" in s]
    assert len(lines) == 1 and said in lines[0]


def test_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a_b.json"
    words = ["fedtv", "--tiny", "--repeats", "1", f"--json={path}"]
    assert read_commands()["bench"].run(words) == 0
    assert "training step" in capsys.readouterr().out
    assert json.loads(path.read_text())["summary"]["sides"]["one"]["ratio"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a benchmark"), (["fedvt"], "did you mean 'fedtv'"),
        (["fedtv", "--clases", "5"], "did you mean '--classes'"),
        (["fedtv", "--classes", "many"], "--classes"), (["fedtv", "--repeats", "0"], "at least 1"),
        (["fedtv", "--json", "/no/such/folder/x.json"], "there is no folder"),
    ],
)
def test_mistakes_get_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_commands()["bench"].run(words)


def test_towers_without_a_class_token_are_refused() -> None:
    with pytest.raises(ConfigError, match="ViT CLIPs"):
        read_commands()["bench"].run(["fedtv", "--backbone", "RN50", "--classes", "2"])
