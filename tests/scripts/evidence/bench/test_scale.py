"""``bench scale``: what it counts, on a handful of clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evidence.bench import scale
from evidence.commands import main
from fedvlm.core.errors import ConfigError
from fedvlm.federation.trainer import Trainer
from fedvlm.job import build


def test_a_round_is_counted_by_phase(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    words = ["bench", "scale", "--sizes", "3", "9", "--cohort", "3", "--json", str(path)]
    assert main(words) == 0
    record = json.loads(path.read_text())
    assert list(record["methods"]) == [scale.HEAD, scale.FEDTV]
    for rows in record["methods"].values():
        few, many = rows
        assert (few["clients"], many["clients"], few["cohort"]) == (3, 9, 3)
        for row in rows:
            assert min(row[p] for p in ("training", "evaluation", "metrics", "state")) > 0
            parts = sum(row[p] for p in ("evaluation", "metrics", "state"))
            assert row["bookkeeping"] == pytest.approx(parts / row["training"])
            assert row["per_client_ms"] == pytest.approx(1000 * row["training"] / 3)
    # What is written goes by who worked: a linear head's clients keep nothing, FedTV's do.
    head, fedtv = (record["methods"][m] for m in (scale.HEAD, scale.FEDTV))
    assert head[0]["state_bytes"] == pytest.approx(head[1]["state_bytes"], rel=0.05)
    assert fedtv[1]["state_bytes"] < 2.5 * fedtv[0]["state_bytes"]  # a pack now and then
    assert "64 clients stacked" in capsys.readouterr().out


def test_what_it_does_not_read_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scale", "FedAvg", "--fp64"]) == 2
    said = capsys.readouterr().err
    assert "scale does not read --fp64" in said and "scale takes no trainer ('FedAvg')" in said
    assert main(["bench", "fedtv", "--sizes", "3"]) == 2
    assert "fedtv does not read --sizes" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--cohort 0: must be at least 1"):
        scale.run([3], cohort=0)


class PromptPerImage(scale.LinearHead):
    def prompt_sets(self, batch_size: int) -> int:
        return batch_size


class Usual(scale.LinearHead):
    def prompt_sets(self, batch_size: int) -> int:
        return Trainer.prompt_sets(self, batch_size)


def test_prompt_sets_size_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    built = scale.build(scale.HEAD, 3, 3)
    monkeypatch.setattr(build, "CHUNK_BYTES", 64 << 20)  # where it is memory that decides
    sizes = [
        build.chunk_of(built.cfg, built.model, kind(built.cfg))
        for kind in (scale.LinearHead, Usual, PromptPerImage)
    ]
    assert sizes[0] == build.FEATURES_CHUNK and sizes[1] > 2 * sizes[2] >= 2
