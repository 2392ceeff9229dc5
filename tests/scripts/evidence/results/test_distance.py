"""How far shared tensors are from their start, by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evidence.results import distance as module
from evidence.results.page import moved
from fedvlm.runs.state import SavedState


def test_the_distance_is_in_times_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Image 5 against a start of 10 over both its tensors; what starts at zero is left out."""
    (tmp_path / "models").mkdir()
    start = {"image.a": torch.tensor([6.0, 0.0]), "image.b": torch.tensor([8.0]),
             "text.c": torch.zeros(2), "head.mine": torch.ones(3)}
    save_file(start, tmp_path / "models" / module.START)
    after = {"image.a": torch.tensor([6.0, 3.0]), "image.b": torch.tensor([12.0]),
             "text.c": torch.ones(2), "new.d": torch.ones(1)}
    monkeypatch.setattr(module, "load_newest_state", lambda *_, **__: (
        SavedState(1, {"w": after}), []))
    assert module.distance(tmp_path, "x") == {"image": pytest.approx(0.5)}
    (tmp_path / "models" / module.START).unlink()
    assert module.distance(tmp_path, "x") == {}


def test_a_page_says_what_its_sentence_says_of_the_two_sides_and_nothing_of_a_head() -> None:
    runs: Any = [SimpleNamespace(digest=d, protocol={"rounds": 20}, method=m)
                 for d, m in (("a", "FedTV"), ("b", "FedTV"), ("c", "AFL"))]
    told = {"a": {"text": 2.0, "image": 0.1}, "b": {"image": 0.3, "text": 4.0}, "c": {"head": 1.0},
            "of another lane": {"text": 9.0}}
    assert moved(told, runs) == [
        "FedTV, 20 rounds: image 20 % (10 to 30), text 300 % (200 to 400), 2 runs"]
