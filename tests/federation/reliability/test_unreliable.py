"""Who is lost and late is a function of seed, round and client."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.federation.reliability.unreliable import (
    AWAY,
    LATE,
    NO_ANSWER,
    REFUSED,
    Absence,
    Unreliable,
    below_quorum,
    count_reasons,
    drop_kind,
    parse_absences,
    quorum_count,
    steps_in_share,
)

MANY = range(1000)


def slow(**more: Any) -> Unreliable:
    return Unreliable(3, 10, stragglers=0.25, deadline=more.pop("deadline", 1.0), **more)


def test_by_default_everybody_answers() -> None:
    plain = Unreliable()
    assert not plain.active and not plain.cuts and plain.words() == ""
    assert plain.lost(1, MANY, [5] * 1000) == {}


def test_clients_drop_out_at_the_rate_asked_for_each_round_anew() -> None:
    unreliable = Unreliable(3, 10, dropout=0.3)
    rounds = [set(unreliable.lost(r, MANY, [5] * 1000)) for r in (1, 2)]
    assert all(260 <= len(lost) <= 340 for lost in rounds)
    assert 60 <= len(rounds[0] & rounds[1]) <= 120  # 0.09
    assert rounds[0] != set(Unreliable(4, 10, dropout=0.3).lost(1, MANY, [5] * 1000))
    some = list(range(0, 1000, 7))  # nobody else's draw counts
    assert set(unreliable.lost(2, some, [5] * len(some))) == rounds[1] & set(some)
    assert set(unreliable.lost(1, MANY, [5] * 1000).values()) == {NO_ANSWER}


def test_stragglers_are_slow_by_round_or_for_good() -> None:
    by_round, by_client = slow(), slow(slow_by="client", slowdown=(3.0, 5.0))
    times = [[u.slowness(r, c) for c in MANY] for u in (by_round, by_client) for r in (1, 2)]
    for factors, (low, high) in zip(times, [(2, 4)] * 2 + [(3, 5)] * 2, strict=True):
        rest = [f for f in factors if f != 1]
        assert 200 <= len(rest) <= 300 and low <= min(rest) < low + 0.1 < high - 0.1 < max(rest)
        assert max(rest) <= high
    assert times[0] != times[1] and times[2] == times[3]


def test_the_deadline_counts_a_clients_own_work_or_steps() -> None:
    factors = [slow().slowness(1, c) for c in MANY]
    fast, own = factors.index(1), next(c for c in MANY if factors[c] > 1)
    times = slow().slowness(1, own)
    assert slow().share(1, fast, 100) == 1 and slow().share(1, own, 100) == 1 / times
    assert slow(deadline=4.0).share(1, own, 100) == 1
    steps = slow(deadline=10.0, clock="steps")
    assert steps.share(1, fast, 10) == 1 and steps.share(1, fast, 40) == 0.25
    assert steps.share(1, own, 10) == 1 / times and steps.share(1, own, 0) == 1
    assert slow().lost(1, [fast, own], [9, 9]) == {
        own: f"late: at the deadline it has finished {100 / times:.0f} % of its work"
    }
    partial = slow(late="partial")
    assert partial.lost(1, [fast, own], [9, 1]) == {own: "late: no step is finished at the "
                                                         "deadline"}
    assert partial.part(1, [fast, own], [9, 9], [9, 9]) == [9, int(9 / times)]
    assert partial.part(1, [own] * 2, [1, 0], [9, 9]) == [1, 0]
    assert steps_in_share(9, 1 / 3) == 3 and steps_in_share(10, 0.3) == 3


def test_clients_join_and_leave_once() -> None:
    unreliable = Unreliable(3, 10, join=0.5, leave=0.5)
    there = {c: [r for r in range(1, 11) if not unreliable.away(r, c)] for c in MANY}
    assert all(rounds == list(range(rounds[0], rounds[-1] + 1)) for rounds in there.values())
    assert {rounds[0] for rounds in there.values()} == set(range(1, 11))
    assert {rounds[-1] for rounds in there.values()} == set(range(1, 11))
    assert 450 <= sum(rounds[0] == 1 for rounds in there.values()) <= 550
    first = next(c for c in MANY if there[c][0] == 4 and there[c][-1] == 6)
    assert unreliable.away(3, first) == "away: it joins in round 4"
    assert unreliable.away(7, first) == "away: it left after round 6"
    short = Unreliable(3, 1, join=1.0, leave=1.0)
    assert all(short.away(1, c) for c in range(9))


def test_absences_by_name() -> None:
    absences = parse_absences("3:1-4, 7:20-,2:6", 8)
    assert absences == (Absence(3, 1, 4), Absence(7, 20, 0), Absence(2, 6, 6))
    unreliable = Unreliable(absences=absences)
    away = [(c, r) for c in range(8) for r in (1, 4, 5, 6, 7, 19, 20, 99) if unreliable.away(r, c)]
    assert away == [(2, 6), (3, 1), (3, 4), (7, 20), (7, 99)]
    assert unreliable.away(99, 7) == "away: since round 20, for good"
    assert parse_absences("  ", 8) == ()


@pytest.mark.parametrize(("text", "words"), [
    ("3:4-1", "'3:4-1': its last round is before its first"), ("3:0-1", "'3:0-1': rounds begin "
                                                                        "at 1"),
    ("8:1", "no client 8, the last client is 7"), ("3", "'3' is not an absence; write "
                                                        "client:rounds"),
])
def test_absences_that_are_none_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^FED.UNRELIABLE.AWAY '{text}': .*") as error:
        parse_absences(text, 8)
    assert words in str(error.value)


@pytest.mark.parametrize(("keys", "words"), [
    ({"stragglers": 0.1}, "STRAGGLERS 0.1 without FED.UNRELIABLE.DEADLINE"),
    ({"stragglers": 0.1, "deadline": 1.0, "slowdown": (4.0, 2.0)}, "1 <= least <= most"),
    ({"deadline": 0.5}, "no client finishes its work in less than 1"),
])
def test_keys_that_contradict_each_other_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Unreliable(**keys)


def test_reasons_have_a_kind_here_and_in_a_deployment() -> None:
    reasons = {
        "no answer": NO_ANSWER, "siteA: no answer": NO_ANSWER, "late: no step is done": LATE,
        "away: it joins in round 4": AWAY, "update 'w' is not finite": REFUSED,
        "siteA: a late answer to another request": REFUSED,
    }
    assert {why: drop_kind(why) for why in reasons} == reasons
    assert count_reasons(reasons) == {NO_ANSWER: 2, REFUSED: 2, AWAY: 1, LATE: 1}


def test_the_quorum_is_a_share_of_who_was_drawn() -> None:
    assert [quorum_count(q, 10) for q in (0, 0.25, 0.3, 1)] == [0, 3, 3, 10]
    said = below_quorum(7, 4, {3: "no answer", 1: "late: x", 2: "no answer"}, 0.5)
    assert said.startswith(
        "round 7: 3 of 4 clients did not answer (late: 1; no answer: 2, 3), and "
        "FED.UNRELIABLE.QUORUM is 0.5; the state of round 6 is kept"
    )
