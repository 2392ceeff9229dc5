"""A hostile client in the real job: told on the screen, in the log, in metrics and in results."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from yacs.config import CfgNode

from fedvlm.cli.main import main
from fedvlm.core import files as atomic
from fedvlm.core.errors import DivergedError
from fedvlm.job import record as job_record
from tests import jobs

HOSTILE = """
from fedvlm.method import PeftTrainer, per_client

FACTOR = 1000.0


class Hostile(PeftTrainer):
    def client_update(self, ctx, state, received):
        state, upload = super().client_update(ctx, state, received)
        one = ctx.sizes.new_tensor([FACTOR if c == 2 else 1.0 for c in ctx.clients])
        w = {
            n: received[n] + per_client(one.to(v), v) * (v - received[n])
            for n, v in upload.params.items()
        }
        return state, ctx.upload(w)
"""
FOUR = ("--num-users", "4", "--lr", "1e-4")  # so small a rate that a step of 1,000 is finite


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("method") / "hostile.py"
    path.write_text(HOSTILE)
    return f"{path}:Hostile"


def test_a_scaled_update_is_told_everywhere(
    tmp_path: Path, hostile: str, capsys: pytest.CaptureFixture
) -> None:
    assert jobs.run(tmp_path, "--trainer", hostile, *FOUR) == 0
    screen = " ".join(capsys.readouterr().out.split())
    records = jobs.records(tmp_path)
    assert records[0]["update_norm"] == {} and "outliers" not in records[0]
    for record in records[1:]:
        norms = record["update_norm"]
        assert list(norms) == list(record["update_cosine"]) == ["0", "1", "2", "3"]
        (row,) = [r for r in record["outliers"] if r["client"] == 2]
        assert row["norm"] == norms["2"] and row["times"] > 100
        sentence = f"round {record['round']}: update of client 2 has norm {row['norm']:.4g}, "
        assert sentence in screen
        assert sentence in (jobs.folder(tmp_path) / "log.txt").read_text()
    whole = (jobs.folder(tmp_path) / "results.json").read_text()
    assert ("client 2: 2 updates with an unusual norm or direction, first in round 1; "
            "largest norm") in whole


def test_an_honest_demo_has_no_outlier(tmp_path: Path) -> None:
    """Five clients, two classes each: some lead the mean, some hardly move.

    The demo's own clients have none either: ``results/test_demo.py``, which runs it.
    """
    words = ["--demo", "--trainer", "FedTV", "--output-dir", str(tmp_path)]
    assert main([*words, "--partition", "disjoint", "--num-users", "5"]) == 0
    records = jobs.records(tmp_path)
    assert len(records) == 21 and [r["round"] for r in records if "outliers" in r] == []


@pytest.mark.parametrize("clients", [
    ("--num-users", "5", "--partition", "disjoint"), ("--num-users", "20"),
])
def test_an_update_scaled_a_hundred_times_is_named(
    tmp_path: Path, clients: tuple[str, ...], hostile: str
) -> None:
    path = Path(hostile.partition(":")[0])
    other = tmp_path / "hundred.py"
    other.write_text(path.read_text().replace("FACTOR = 1000.0", "FACTOR = 100.0"))
    words = ["--demo", "--rounds", "1", "--trainer", f"{other}:Hostile"]
    assert main([*words, "--output-dir", str(tmp_path), *clients]) == 0
    assert [row["client"] for row in jobs.records(tmp_path)[1]["outliers"]] == [2]


def test_an_ordinary_run_tells_of_nobody(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--trainer", "FedAvg", *FOUR) == 0
    assert all("outliers" not in record for record in jobs.records(tmp_path))


def test_refused_before_any_work_with_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    opts = ("--opts", "FED.AGGREGATOR", "median")
    assert jobs.run(tmp_path, "--trainer", "SCAFFOLD", *opts) != 0
    assert "SCAFFOLD, as configured, allows auto, mean" in capsys.readouterr().err
    assert not list(tmp_path.rglob("manifest.json"))
    assert jobs.run(tmp_path, "--trainer", "FedAvg", "--opts", "FED.AGGREGATOR", "krum") != 0
    told = capsys.readouterr().err
    assert "needs at least 3 clients per round (2 f + 3), but only 2 are drawn" in told


def test_a_resumed_server_optimiser_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opts = ("--trainer", "FedTV", "--opts", "FED.SERVER_OPTIM", "yogi")
    seen: list[str] = []
    monkeypatch.setattr(atomic, "on_write_point", seen.append)
    assert jobs.run(tmp_path / "whole", *opts) == 0

    class Stop(BaseException):
        pass

    left = [int(0.7 * len(seen))]

    def hook(_name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stop

    monkeypatch.setattr(atomic, "on_write_point", hook)
    with pytest.raises(Stop):
        jobs.run(tmp_path / "cut", *opts)
    monkeypatch.setattr(atomic, "on_write_point", None)
    assert jobs.run(tmp_path / "cut", *opts) == 0
    jobs.same(tmp_path / "whole", tmp_path / "cut")
    assert any("opt.v" in name for name in jobs.state(tmp_path / "cut"))


def test_a_loss_that_overflows_is_divergence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4 and a remedy, not an accuracy of 0.0."""
    words = ["--trainer", "FedTV", "--lr", "1e6", "--output-dir", str(tmp_path)]
    assert main(["--demo", "--rounds", "1", *words]) == 4
    said = capsys.readouterr().err
    assert "training has diverged; lower --lr (now 1e+06)" in said
    assert not list(tmp_path.rglob("results.json"))


def test_a_loss_that_explodes_without_overflow_is_divergence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A head on unit features has a bounded loss at any rate."""
    words = ["--trainer", "FedAvg", "--peft", "head", "--lr", "1e6", "--rounds", "1"]
    assert main(["--demo", *words, "--output-dir", str(tmp_path / "mad")]) == 4
    said = capsys.readouterr().err
    assert "training has diverged" in said and "lower --lr (now 1e+06)" in said
    assert not list(tmp_path.rglob("results.json"))
    kept = ["--output-dir", str(tmp_path / "kept"), "FED.NONFINITE", "drop"]
    assert main(["--demo", *words, *kept]) == 0
    capsys.readouterr()


BEFORE, AFTER = {"personal": 60.0, "personal_nll": 1.7}, {"personal": 10.0, "personal_nll": 30.0}
MAD_LOSSES = (11.0, 40.0, 30.0)


@pytest.mark.parametrize(("losses", "after", "more", "diverged"), [
    (MAD_LOSSES, {}, {}, True),
    ((40.0, 4.0, 2.303), {"personal_nll": 2.303}, {}, True),  # exploded, and dead since
    ((11.0, 9.0, 6.5), {}, {}, False),  # not far above that of guessing (2.3)
    ((11.0, 40.0, 2.2, 30.0), {}, {}, False),  # something was learnt
    (MAD_LOSSES, {"personal": 61.0}, {}, True),  # better than untrained, worse than guessing
    ((9.0, 24.0, 5.0), {"personal_nll": 5.1}, {"before": 4.9}, True),  # an untrained loss is high
    ((4.8, 4.9, 4.9), {"personal_nll": 4.9}, {"before": 4.9}, False),  # a rate that moves nothing
    (MAD_LOSSES[:2], {"personal": 61.0}, {}, False),  # two rounds: the loss may still fall
    (MAD_LOSSES, {"personal_nll": 1.6}, {}, False),  # a loss of several terms
    (MAD_LOSSES, {"personal_nll": None}, {}, False),  # nobody tells
    (MAD_LOSSES, {"personal_auroc": 50.0}, {}, False),  # sets of labels
    (MAD_LOSSES, {}, {"hostile": object()}, False),  # who attacks is the cause
    (MAD_LOSSES, {}, {"dp": object()}, False),
    (MAD_LOSSES, {}, {"policy": "drop"}, False),
    ((), {}, {}, False),
])
def test_what_counts_as_an_explosion(
    losses: tuple[float, ...], after: dict[str, Any], more: dict[str, Any], diverged: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_record, "promises_privacy", lambda built: "dp" in more)
    cfg = CfgNode({"FED": {"NONFINITE": more.get("policy", "abort")}, "OPTIM": {"LR": 9.0}})
    plan = SimpleNamespace(hostile=more.get("hostile"))
    built = SimpleNamespace(cfg=cfg, federation=SimpleNamespace(plan=plan),
                            data=SimpleNamespace(classnames=["a"] * 10))
    rounds = [{"train": {"0": {"loss": x - 1}, "1": {"loss": x + 1}}} for x in losses]
    start = BEFORE | {"personal_nll": more.get("before", 1.7)}
    records = [start, *rounds[:-1], (rounds[-1] if rounds else {}) | AFTER | after]
    if diverged:
        with pytest.raises(DivergedError, match="60.0 to [16][01].0; lower --lr \\(now 9\\)"):
            job_record.check_explosion(cast(Any, built), records)
    else:
        job_record.check_explosion(cast(Any, built), records)
