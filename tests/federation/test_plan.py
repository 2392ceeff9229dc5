"""Chunks of clients as a pure function, and the sites that they respect."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.check.compare import same_fed
from fedvlm.core.errors import ConfigError
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.plan import BLIND, RISE, Chunk, Plateau, parse_sites, plan_chunks
from fedvlm.federation.rounds import Federation
from tests.trainers.small_clip import federation, shares

CLIENTS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=30
)


@settings(deadline=None)
@given(CLIENTS, st.integers(1, 5), st.randoms())
def test_a_chunk_is_of_one_site_and_one_form(rows: list, most: int, draw) -> None:  # type: ignore[no-untyped-def]
    sizes, sites, forms = (dict(enumerate(column)) for column in zip(*rows, strict=True))

    def plan(ids: list[int]) -> list[Chunk]:
        return plan_chunks(ids, *([of[c] for c in ids] for of in (sizes, sites, forms)), most)

    ids = list(sizes)
    chunks = plan(ids)
    assert sorted(c for chunk in chunks for c in chunk.clients) == ids
    for chunk in chunks:
        assert {(sites[c], forms[c]) for c in chunk.clients} == {(chunk.site, chunk.form)}
        assert 0 < len(chunk.clients) <= most
        assert list(chunk.clients) == sorted(chunk.clients, key=lambda c: (-sizes[c], c))
    alike = {(chunk.site, chunk.form) for chunk in chunks if len(chunk.clients) < most}
    full = [(chunk.site, chunk.form) for chunk in chunks if len(chunk.clients) < most]
    assert len(alike) == len(full)  # at most one chunk of a kind is not full
    draw.shuffle(ids)
    assert plan(ids) == chunks


def test_one_site_and_one_form_are_cut_by_falling_size() -> None:
    chunks = plan_chunks([0, 1, 2, 3, 4], [3, 9, 3, 1, 9], [0] * 5, [""] * 5, 2)
    assert [chunk.clients for chunk in chunks] == [(1, 4), (0, 2), (3,)]


def test_sites_are_read() -> None:
    assert parse_sites("0-4, 5-7", 8) == (0,) * 5 + (1,) * 3
    assert parse_sites("3,0-1,2", 4) == (1, 1, 2, 0)
    assert parse_sites("", 3) == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0-4,6-7", "client 5 is at no site"), ("0-4,4-7", "client 4 is at two sites"),
        ("0-8", "range 0-8 ends after client 7"), ("0-6", "client 7 is at no site"),
        ("4-0,5-7", "range 4-0 runs backwards"), ("0-7,x", "'x' is not a range"),
        ("0-7,", "'' is not a range"),
    ],
)
def test_ranges_that_do_not_hold_each_client_once_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"FED.SITES '{text}': {said}.*every client once"):
        parse_sites(text, 8)


def test_one_client_is_told_of_its_site_in_the_roster_only() -> None:
    plain = federation("FedAvg")
    assert plain.roster.site.tolist() == [0] * len(shares())
    at = tuple(range(len(shares())))
    sited = Federation(
        plain.trainer, plain.model, plain.batcher, plain.plan, engine=LocalEngine(8, at)
    )
    assert sited.roster.site.tolist() == list(at)
    single = Federation(
        plain.trainer, plain.model, plain.batcher, plain.plan, engine=LocalEngine(1)
    )
    ends = [sited.run(), single.run()]
    same_fed(
        sited.read(ends[0]), single.read(ends[1]), "sites of one client each: the sequential path"
    )
    chunks = [ids for ids, _ in sited.personal(ends[0], list(at))]
    assert sorted(chunks) == [[c] for c in at]


# ---- --rounds auto -------------------------------------------------------------------------------
def rounds_until_flat(accuracies: list[float], patience: int = 2, most: int = 30) -> int:
    """Play the loop: return how many rounds a run has that is checked every second round."""
    plateau = Plateau(patience, (0, 1), 2)
    for round_ in range(1, most + 1):
        if round_ > plateau.last(most):
            return round_ - 1
        index = min(round_ // 2, len(accuracies)) - 1
        plateau.record(round_, accuracies[index] if round_ % 2 == 0 else 99.0)
    return most


@pytest.mark.parametrize(("accuracies", "rounds"), [
    ([50.0], 6),  # flat from the start: the first check and two more
    ([50.0, 60.0, 60.0 + RISE, 60.0 + RISE], 8),  # a rise of RISE is none
    ([50.0, 60.0, 60.3, 60.6, 60.6], 12),  # small rises add up to more than RISE over the best
    ([50.0, 40.0, 51.0, 51.0], 10),
    ([50.0, 40.0, 45.0, 90.0], 6),  # what comes after the end is not seen
    ([float(n) for n in range(15)], 30),  # never flat: the limit
])
def test_a_run_ends_when_validation_is_flat(accuracies: list[float], rounds: int) -> None:
    assert rounds_until_flat(accuracies) == rounds


@pytest.mark.parametrize(("accuracies", "losses", "rounds"), [
    ([50.0], [1.0], 6),
    ([50.0], [1.0, 0.9, 0.8, 0.7, 0.7], 12),  # the loss falls while the accuracy stands still
    ([50.0], [1.0, 0.99, 0.985, 0.985], 6),  # too little
    ([50.0], [1.0, 0.99, 0.979, 0.979], 10),  # small falls add up, as small rises do
    ([50.0, 60.0, 70.0], [1.0, 2.0, 3.0], 10),  # the accuracy rises while the loss does
    ([50.0], [1.0, None, None], 6),  # nobody's is finite any more
    ([50.0], [None, None, 1.0, 0.5], 12),  # the first that is finite counts as a fall
])
def test_a_run_goes_on_while_the_validation_loss_falls(
    accuracies: list[float], losses: list[float | None], rounds: int
) -> None:
    watching, blind = Plateau(2, (0,), 2, loss=True), Plateau(2, (0,), 2)
    for round_ in range(2, 31, 2):
        at = round_ // 2 - 1
        for plateau in (watching, blind):
            plateau.record(round_, accuracies[min(at, len(accuracies) - 1)],
                           losses[min(at, len(losses) - 1)])
    assert watching.last(30) == rounds
    assert blind.last(30) == rounds_until_flat(accuracies) and not blind.losses


def test_without_patience_or_validation_images_nothing_is_flat() -> None:
    off, blind = Plateau(0, (0,), 2), Plateau(2, (), 2)
    for plateau in (off, blind):
        for round_ in range(1, 9):
            assert not plateau.due(round_)
            plateau.record(round_, 50.0)
    assert (off.last(30), off.sentence(30, 30)) == (30, "")
    assert (blind.last(30), blind.last(3)) == (BLIND, 3)
    assert "no client has validation images" in blind.sentence(BLIND, 30)


def test_why_a_run_ended() -> None:
    plateau = Plateau(2, (0,), 2, auto=True)
    plateau.record(2, 50.0)
    assert "was not flat yet" in plateau.sentence(3, 3)
    for round_ in (4, 6):
        plateau.record(round_, 50.2)
    assert plateau.sentence(6, 100) == (
        "--rounds auto: stopped after round 6 of at most 100, because the clients' validation "
        "accuracy is flat: 50.0 % after round 2, and at most 0.5 points more in the 2 checks since "
        "(one every 2 rounds)"
    )
    plateau.auto = False  # whoever gave the 100 rounds is not told of another flag
    for rounds in (60, 100):
        assert plateau.sentence(6, rounds).startswith(
            f"FED.PATIENCE 2: stopped after round 6 of at most {rounds}")
    blind = Plateau(2, (), 2)
    assert blind.sentence(20, 60).endswith("so the run has 20 rounds; FED.PATIENCE 0: all 60")
    blind.auto = True
    assert blind.sentence(20, 100).endswith("the run has 20 rounds; --rounds N sets another number")


def test_why_a_run_ended_whose_loss_counts() -> None:
    plateau = Plateau(2, (0,), 2, loss=True, auto=True)
    for round_, loss in ((2, 1.0), (4, 0.5), (6, 0.499)):
        plateau.record(round_, 50.0, loss)
    assert plateau.sentence(6, 100) == (
        "--rounds auto: ended after round 6; the clients' validation accuracy and loss were not "
        "flat yet"
    )
    plateau.record(8, 50.2, 0.6)
    assert plateau.sentence(8, 100) == (
        "--rounds auto: stopped after round 8 of at most 100, because the clients' validation "
        "accuracy and loss are flat: the last 2 checks (one every 2 rounds) found at most 0.5 "
        "points above 50.0 % after round 2 and less than 2 % below the loss 0.5 after round 4"
    )
