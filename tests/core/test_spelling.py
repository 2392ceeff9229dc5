"""Words around names of others."""

from __future__ import annotations

import pytest

from fedvlm.core.spelling import site_words


@pytest.mark.parametrize(("name", "words"), [
    ("site0", "site0"), ("Site-A", "Site-A"), ("north", "site north"),
])
def test_a_site_is_called_so_once(name: str, words: str) -> None:
    assert site_words(name) == words
