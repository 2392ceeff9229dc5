"""``cost``: FLOPs by formula agree with those that are counted; what takes longer is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from evidence.commands import main
from evidence.cost import cost
from evidence.cost.cost import lines, nearest

ROW = {"method": "A", "beside": "prompt", "predicted": 2e6, "counted": 1e6, "predicted_ratio": 1.0,
       "counted_ratio": 1.0, "cpu_ratio": 1.4, "over": 1.4}


def test_a_method_beside_fedavg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "MOST", 0.0)  # everything is over it and gives its reason
    assert main(["cost", "fedtv", "--pairs", "1", "--markdown", str(tmp_path / "speed.md")]) == 0
    page = (tmp_path / "speed.md").read_text()
    assert page.strip() in capsys.readouterr().out
    cells = re.search(r"^\| FedTV \| prompt\+feature \| (.*) \|$", page, re.MULTILINE)
    assert cells is not None
    formula, counted, by_formula, by_count, cpu, over = map(float, cells[1].split(" | "))
    assert 0.9 < formula / counted < 1.5 and 1.8 < by_formula < 2.4 and 1.8 < by_count < 2.4
    assert over == pytest.approx(cpu / by_count, abs=0.02)  # both are rounded
    assert re.search(r"^- FedTV, .* % products; \S.* \d+ % \(\d+\), ", page, re.MULTILINE)


def test_who_is_over_the_bound_is_named() -> None:
    slow = {**ROW, "method": "B", "cpu_ratio": 1.6, "over": 1.6, "reason": "40 % products"}
    none = {**ROW, "method": "C", "counted_ratio": None, "over": None}
    page = "\n".join(lines([ROW, none, slow], 3))
    assert page.index("| B |") < page.index("| A |") < page.index("| C |")
    assert "- B, 1.6: 40 % products" in page and "- A," not in page
    assert page.endswith("products") and lines([ROW], 3)[-1].endswith("predict: none")


def test_a_product_of_onednn() -> None:
    assert cost.linear_flops(torch.zeros(2, 3, 4), torch.zeros(5, 4)) == 2 * (2 * 3) * 5 * 4
    with cost.FlopCount() as counter:
        torch.zeros(2, 3) @ torch.zeros(3, 4)
    assert counter.flops == 2 * 2 * 3 * 4


def test_the_nearest_trainable_set() -> None:
    assert nearest(("prompt", "feature", "gate")) == "prompt+feature"
    assert nearest(("visual-prompt",)) == "lora"


def test_methods_with_phases_have_an_epoch_for_each() -> None:
    assert cost.epochs_of("fedrep") == 2 and cost.epochs_of("fedavg") == 1


def test_no_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "fedavg", "--pairs", "0"]) == 2
    assert "--pairs 0: must be at least 1" in capsys.readouterr().err
