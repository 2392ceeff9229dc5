"""Built-in sets for the pretend device, which is slow at encoding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def few_on_card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Eight built-in images of a class for training and for tests, in one cache of the file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvlm.data.builtin.sets._PER_CLASS", (8, 2, 8))
        patch.setenv("FEDVLM_CACHE", str(tmp_path_factory.mktemp("few")))
        yield
