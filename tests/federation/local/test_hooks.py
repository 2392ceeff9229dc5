"""A method's hooks that fail or forget: the message says which one, and where."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError, MethodError
from tests.federation.toys import Quadratic, quadratic


def broken(hook: str, answer: Any) -> type[Quadratic]:
    """Return a method one hook of which raises ``answer``, or returns it."""
    def called(self: Quadratic, *words: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return type("Mine", (Quadratic,), {"name": "Mine", hook: called})


@pytest.mark.parametrize(("hook", "where"), [
    ("init_client", "client 0: "), ("aggregate", "round 1: "), ("personalize", "round 1: "),
])  # fmt: skip
def test_a_hook_that_fails_is_named_with_its_line(hook: str, where: str) -> None:
    fed = quadratic(broken(hook, ValueError("boom"))(), 1)
    with pytest.raises(MethodError) as told:
        state = fed.run()
        list(fed.models(fed.question(state, [0], False)))
    line = r"test_hooks.py, line \d+, in called"
    told.match(rf"^{where}Mine.{hook} failed: ValueError: boom \({line}\) \(--debug shows")
    assert told.value.exit_code == 2


@pytest.mark.parametrize(("hook", "answer", "said"), [
    ("init_client", None, "nothing, not slots such as .*; is its `return` missing.$"),
    ("aggregate", None, "nothing, not slots such as .*; is its `return` missing.$"),
    ("aggregate", {"w": 1.0}, "a float in 'w', not a tree"),
    ("personalize", None, "nothing, not a tree .*; is its `return` missing.$"),
    ("personalize", {"w": {}}, "a dict as 'w', not a tensor"),
])
def test_a_hook_that_returns_something_else_is_told(hook: str, answer: Any, said: str) -> None:
    fed = quadratic(broken(hook, answer)(), 1)
    with pytest.raises(MethodError, match=rf"^Mine.{hook} returned {said}"):
        state = fed.run()
        list(fed.models(fed.question(state, [0], False)))


@pytest.mark.parametrize(("hook", "answer", "said"), [
    ("trainables", [torch.zeros(1)], r"Mine.trainables returned a list, not a tree"),
    ("trainables", {"w": 1.0}, r"Mine.trainables returned a float as 'w', not a tensor"),
    ("init_client", {"w": {}, "n": {"n": 0}}, r"Mine.init_client returned an int as 'n', not"),
    ("init_client", {"w": {"w": torch.zeros(1, 1)}}, r".*'w' of shape \[1, 1\], not \["),
    ("aggregate", {"w": {"w": torch.zeros(9, 9)}}, r".*aggregate returned 'w' of shape \[9, 9\]"),
    ("personalize", {}, r"Mine.personalize returned no 'w': .*state\['w'\] \| received"),
])
def test_what_a_hook_returns_is_compared_with_the_start(hook: str, answer: Any, said: str) -> None:
    with pytest.raises(MethodError, match=f"^{said}"):
        fed = quadratic(broken(hook, answer)(), 1)
        state = fed.run()
        list(fed.models(fed.question(state, [0], False)))


def test_groups_are_pairs() -> None:
    with pytest.raises(ConfigError, match=r"'w' in groups is no rule: write pairs"):
        quadratic(type("Mine", (Quadratic,), {"name": "Mine", "groups": ("w", "shared")})(), 1)
