"""``bench linear``: three ways of the same round, and what is said where one is another round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from evidence.bench import linear
from evidence.commands import main
from fedvlm.core.errors import FedvlmError


def test_three_sides_end_in_one_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "linear.json"
    words = ["bench", "linear", "--cohort", "4", "--repeats", "3", "--json", str(path)]
    assert main(words) == 0
    record = json.loads(path.read_text())
    assert 0 < record["difference"] < linear.NEAR  # float64 and float32: never the same bits
    times = record["per_client_ms"]
    assert min(times.values()) > 0
    for side in linear.SIDES:
        assert record["ours_over"][side] == pytest.approx(times["ours"] / times[side])
    assert record["ours_over_in_pairs"]["ours"] == 1
    assert "one round of 4 clients" in capsys.readouterr().out


def test_a_side_that_does_another_work_is_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "RATE", 2 * linear.RATE)  # of the sides by hand alone
    with pytest.raises(FedvlmError, match="not of the same work"):
        linear.run(3, 1)


def test_by_hand_is_what_autograd_says() -> None:
    generator = torch.Generator().manual_seed(1)
    old = {"head.weight": torch.randn(3, 5, generator=generator), "head.bias": torch.randn(3)}
    pool, labels = torch.randn(9, 5, generator=generator), torch.arange(9) % 3
    rows = torch.tensor([[0, 4], [8, 2]])
    one, other = (f(pool, labels, rows, old) for f in (linear.bmm_round, linear.loop_round))
    for name, v in old.items():
        assert not torch.equal(v, one[name])
        torch.testing.assert_close(one[name], other[name])
