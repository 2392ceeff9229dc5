"""Rounds of which clients are missing: who answers counts, who does not keeps what it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError, QuorumError
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.local.effort import Effort
from fedvlm.federation.plan import plain_work
from fedvlm.federation.reliability.unreliable import Unreliable, parse_absences
from fedvlm.federation.rounds import RoundFinished, RoundStarted
from tests import jobs
from tests.federation.toys import ETA, Quadratic, quadratic
from tests.trainers import toys as trainers

WELLS = ((1.0, 0.0), (3.0, 4.0), (1.0, 1.0), (2.0, -1.0))
SIZES = (6, 2, 4, 8)


def toy(rounds: int, unreliable: Unreliable | None = None, **more: Any) -> Any:
    plan = {} if unreliable is None else {"unreliable": unreliable}
    fed = quadratic(more.pop("trainer", None) or Quadratic(), rounds, sizes=SIZES, wells=WELLS,
                    **plan, **more)
    fed.events = []
    fed.subscribers.append(fed.events.append)
    return fed


def finished(fed: Any) -> list[RoundFinished]:
    return [e for e in fed.events if isinstance(e, RoundFinished)]


def same(a: Any, b: Any) -> bool:
    trees = [*zip(a.server.values(), b.server.values(), strict=True)]
    trees += [(a.clients[c][s], b.clients[c][s]) for c in a.clients for s in a.clients[c]]
    return a.versions == b.versions and all(torch.equal(x[n], y[n]) for x, y in trees for n in x)


def test_at_rate_zero_it_is_the_plain_run_bit_for_bit() -> None:
    how = {"epochs": 2, "batch": 3, "frac": 0.5, "momentum": 0.9}
    plain = toy(3, **how).run()
    for more in ({"late": "partial"}, {"dropout": 1e-18}, {"clock": "steps", "late": "partial"}):
        deadline = 1e9 if "clock" in more else 1.0
        assert same(plain, toy(3, Unreliable(1, 3, deadline=deadline, **more), **how).run())


def test_weights_are_those_of_who_answers_and_others_keep_their_state() -> None:
    fed = toy(3, Unreliable(1, 3, absences=parse_absences("1:2-3,3:2", 4)))
    first = fed.run(until=1)
    second = fed.run(first, until=2)
    w = float(first.server["w"]["w"])
    moves = {c: w - ETA * WELLS[c][0] * (w - WELLS[c][1]) for c in (0, 2)}
    want = (SIZES[0] * moves[0] + SIZES[2] * moves[2]) / (SIZES[0] + SIZES[2])
    assert float(second.server["w"]["w"]) == pytest.approx(want, abs=1e-12)
    assert second.versions == {0: 2, 1: 1, 2: 2, 3: 1}
    for c in (1, 3):
        assert torch.equal(second.clients[c]["w"]["w"], first.clients[c]["w"]["w"])
    event = finished(fed)[-1]
    assert event.dropped == {1: "away: since round 2, until round 3",
                             3: "away: since round 2, until round 2"}
    assert sorted(event.bytes_down) == [0, 2] and event.drawn == [0, 1, 2, 3]
    assert [e.clients for e in fed.events if isinstance(e, RoundStarted)][-1] == [0, 2]
    third = fed.run(second, until=3)  # it goes on from what the server accepted last
    assert third.versions == {0: 3, 1: 1, 2: 3, 3: 3}


def test_methods_with_state_of_their_own_stay_right() -> None:
    """SCAFFOLD's invariant: the server's control variate is the mean of the clients'."""
    keys = {"FED.CLIENTS": 4, "OPTIM.MOMENTUM": 0, "OPTIM.WEIGHT_DECAY": 0}
    fed = toy(6, Unreliable(2, 6, dropout=0.4, stragglers=0.5, deadline=1.0, late="partial"),
              trainer=trainers.toy("SCAFFOLD", keys=keys), epochs=2, batch=2)
    state = fed.run()
    assert any(e.dropped for e in finished(fed)) and any(e.partial for e in finished(fed))
    mean = sum(float(state.clients[c]["c"]["image.w"]) for c in range(4)) / 4
    assert float(state.server["c"]["image.w"]) == pytest.approx(mean, abs=1e-12) and mean != 0


def test_late_clients_send_what_they_have() -> None:
    unreliable = Unreliable(2, 4, stragglers=0.5, deadline=1.0, late="partial")
    effort = Effort(2, unreliable=unreliable)
    lengths = [-(-n // 2) for n in SIZES]
    for chunk in (1, 8):
        fed = toy(4, unreliable, epochs=2, batch=2, chunk=chunk)
        fed.run()
        for event in finished(fed)[1:]:
            steps = effort.totals(event.round, range(4), lengths)
            assert event.counters["steps"] == sum(
                n for c, n in enumerate(steps) if c not in event.dropped)
            for c, share in event.partial.items():
                assert share == steps[c] / (2 * lengths[c]) < 1
    assert any(e.partial for e in finished(fed))
    cohorts = [fed.plan.answering(r, lengths) for r in range(1, 5)]
    spent = plain_work("steps", cohorts, SIZES, effort, 2)
    assert list(spent) == [e.counters["steps"] for e in finished(fed)[1:]]
    late = next(e for e in finished(fed) if e.partial)
    client = next(iter(late.partial))
    ctx = fed.context([client], late.round)
    start = {"w": torch.zeros(1, dtype=torch.float64)}
    assert int(ctx.fit(start, fed.trainer.loss).steps) < 2 * lengths[client]
    assert int(ctx.fit(start, fed.trainer.loss, epochs=2).steps) == 2 * lengths[client]


def test_a_cut_fit_is_the_beginning_of_a_whole_one() -> None:
    unreliable = Unreliable(2, 4, stragglers=1.0, slowdown=(2.0, 2.0), deadline=1.0, late="partial")
    fed, plain = (toy(4, u, epochs=2, batch=2, local_steps=6) for u in (unreliable, None))
    steps = {f: list(f.context([0, 3], 2)._steps(f.context([0, 3], 2)._work(None, 1), 1, "w"))
             for f in (fed, plain)}
    assert len(steps[fed]) == 3 and len(steps[plain]) == 6
    for a, b in zip(steps[fed], steps[plain], strict=False):
        assert a.epochs == b.epochs and torch.equal(a.batches[0].x["b"], b.batches[0].x["b"])


def test_a_round_without_answers_passes_or_ends_the_run() -> None:
    absences = parse_absences("0:2,1:2,2:2,3:2", 4)
    fed = toy(3, Unreliable(1, 3, absences=absences))
    first = fed.run(until=1)
    second = fed.run(first, until=2)
    assert same(first, second) and second.round == 2
    assert finished(fed)[-1].updates is None and len(finished(fed)[-1].dropped) == 4
    assert fed.run(second).versions == dict.fromkeys(range(4), 3)
    with pytest.raises(QuorumError, match="round 2: 4 of 4 clients did not answer"):
        toy(3, Unreliable(1, 3, absences=absences, quorum=0.25)).run()


def test_what_cannot_be_cut_or_averaged_is_refused_before_any_work() -> None:
    class Phased(Quadratic):
        phases = True

    cut = Unreliable(deadline=1.0, late="partial")
    with pytest.raises(ConfigError, match="FED.UNRELIABLE.LATE partial: .* has phases"):
        toy(2, cut, trainer=Phased())
    gone = Unreliable(1, 2, absences=parse_absences("0:2,1:2", 4))
    with pytest.raises(ConfigError, match="but only 2 are drawn and answer"):
        toy(2, gone, aggregator=AggregateSpec("krum"))


def test_a_run_below_its_quorum_goes_on_where_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Exit code 6, the state kept; with a lower quorum the bits of a run that had it at once."""
    words = ("--trainer", "FedPer", "--rounds", "3", "--num-users", "3")
    keys = ("TRAIN.CHECKPOINT_FREQ", "9", "TEST.REFERENCES", "False",
            "FED.UNRELIABLE.AWAY", "1:3,2:3", "FED.UNRELIABLE.DROPOUT", "0.2")
    ended, whole = tmp_path / "ended", tmp_path / "whole"
    quorum = ("FED.UNRELIABLE.QUORUM", "0.5")
    assert jobs.run(ended, *words, "--opts", *keys, *quorum) == 6
    said = " ".join(capsys.readouterr().err.split())
    assert "of 3 clients did not answer" in said and "the state of round 2 is kept" in said
    assert jobs.run(ended, *words, "--opts", *keys) == 0
    assert "resuming after round 2" in capsys.readouterr().out
    assert jobs.run(whole, *words, "--opts", *keys) == 0
    jobs.same(ended, whole)
    results = jobs.results(whole)
    dropped = [why for r in jobs.records(whole) for why in r["dropped"].values()]
    assert sum(results["lost"].values()) == len(dropped) and results["lost"]["away"] == 2
    out = capsys.readouterr().out
    assert f"client rounds: 9, of these {len(dropped)} lost" in out and "away" in out
