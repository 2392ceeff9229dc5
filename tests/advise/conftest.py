"""Fewer folds than a real advice: these tests ask what is computed, not how finely."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedvlm.advise import trial


@pytest.fixture(autouse=True, scope="session")
def few_folds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "fold_count", lambda groups: 6)
        yield
