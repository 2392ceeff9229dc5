"""The arithmetic of secure sums, by itself: against whole numbers and published values."""

from __future__ import annotations

import hmac
import itertools

import numpy as np
import pytest

from fedvlm.distributed.sums import masks

pytest.importorskip("cryptography")
SEEDS = [bytes([n]) * 32 for n in range(5)]
COUNT = 500


def test_fixed_point_loses_half_a_step_and_adds_exactly() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(7, COUNT)) * 10.0 ** rng.integers(-9, 3, (7, COUNT))
    coded = [masks.to_fixed(row) for row in rows]
    assert max(np.abs(masks.from_fixed(c) - r).max() for c, r in zip(coded, rows, strict=True)) <= (
        2.0**-41)
    total = np.zeros(COUNT, np.uint64)
    for one in coded:
        total = total + one
    exact = [sum(int(c.view(np.int64)[k]) for c in coded) for k in range(COUNT)]
    assert total.view(np.int64).tolist() == exact
    assert np.abs(masks.from_fixed(total) - rows.sum(0)).max() <= 7 * 2.0**-41 + 1e-12
    edge = np.array([masks.REACH, -masks.REACH])
    assert masks.from_fixed(masks.to_fixed(edge)).tolist() == edge.tolist()


def test_masks_of_pairs_cancel_and_are_new_for_each_purpose() -> None:
    names = ["a", "b", "c", "d"]
    publics = {n: masks.public_of(s) for n, s in zip(names, SEEDS, strict=False)}

    def all_masks(*words: object) -> list[np.ndarray]:
        return [masks.pair_masks(s, n, {m: p for m, p in publics.items() if m != n}, COUNT, *words)
                for n, s in zip(names, SEEDS, strict=False)]

    first, second = all_masks(1, "attempt"), all_masks(1, "another")
    zero = np.zeros(COUNT, np.uint64)
    for some in (first, second):
        assert np.array_equal(some[0] + some[1] + some[2] + some[3], zero)
    for x, y in itertools.combinations([*first, *second], 2):
        assert not np.intersect1d(x, y).size


def test_agreement_and_keystream_are_the_published_ones() -> None:
    """RFC 7748 section 5.2, RFC 5869 by hand, and RFC 8439 appendix A.1, test vector 1."""
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    both = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    root = hmac.digest(bytes(32), both, "sha256")
    key = hmac.digest(root, masks.bound_to("mask", 1) + b"\x01", "sha256")
    assert masks.agree(scalar, point, "mask", 1) == key
    one, two = (masks.agree(SEEDS[a], masks.public_of(SEEDS[b]), 1) for a, b in ((1, 2), (2, 1)))
    assert one == two
    assert masks.keystream(bytes(32), 8).tobytes().hex().startswith(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")


@pytest.mark.parametrize(("sites", "need"), [(3, 3), (4, 3), (5, 4), (6, 5), (10, 7), (30, 21)])
def test_shares_say_a_secret_from_the_threshold_on(sites: int, need: int) -> None:
    assert masks.threshold(sites) == need
    secret = bytes(range(32))
    shares = dict(enumerate(masks.make_shares(secret, sites, SEEDS[1]), 1))
    for some in itertools.islice(itertools.combinations(shares, need), 20):
        assert masks.join_shares({x: shares[x] for x in some}) == secret
    fewer = {x: shares[x] for x in list(shares)[: need - 1]}
    assert masks.join_shares(fewer) != secret
    assert masks.from_text(masks.to_text(list(shares.values()))) == list(shares.values())
    other = dict(enumerate(masks.make_shares(secret, sites, SEEDS[2]), 1))
    assert not {*shares.values()} & {*other.values()}


@pytest.mark.parametrize("sites", range(3, 40))
def test_a_server_that_lies_about_who_dropped_out_gets_too_few_shares(sites: int) -> None:
    """Each site tells a share of one of both secrets of a site: two thresholds take more sites."""
    assert 2 * masks.threshold(sites) > sites


def test_what_is_sealed_opens_with_its_key_only() -> None:
    sealed = masks.shut(SEEDS[0], b"share")
    assert masks.unshut(SEEDS[0], sealed) == b"share" and masks.unshut(SEEDS[1], sealed) is None
    assert masks.unshut(SEEDS[0], sealed[:-1] + bytes([sealed[-1] ^ 1])) is None
