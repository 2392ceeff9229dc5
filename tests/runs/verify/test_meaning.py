"""Class names that clients seem to use for different things."""

from __future__ import annotations

import pytest

from fedvlm.runs.verify.meaning import meaning_words, shared_classes


def test_what_half_of_the_clients_have_is_shared() -> None:
    """The commonest first; a client may be counted up to its last class."""
    names = ["a", "b", "c", "d"]
    assert shared_classes([[1, 1, 0, 1], [0, 3], [0, 2, 5], [4, 1, 0, 0]], names) == ["b", "a"]
    assert shared_classes([], names) == [] and shared_classes([[1, 1]], []) == []


@pytest.mark.parametrize(("pooled", "chance", "shared", "clear", "by"), [
    (54.2, 50.0, ["a", "b"], True, "by 'a' and 'b'"),
    (78.0, 50.0, ["a", "b", "c"], True, "by class names such as 'a' and 'b'"),
    (79.9, 50.0, ["a", "b"], True, ""),  # clients of unlike shares lose that much
    (54.2, 50.0, ["a", "b"], False, ""), (54.2, 50.0, ["a"], True, ""),
])
def test_all_images_in_one_place_far_below_alone(
    pooled: float, chance: float, shared: list[str], clear: bool, by: str
) -> None:
    words = meaning_words(97.9, pooled, chance, shared, clear)
    assert words == (by and f"all images in one place reach {pooled:.1f}, alone 97.9: check that "
                            f"all clients mean the same {by}")
