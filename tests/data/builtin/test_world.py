"""The procedural world: a function of the generator, true to its own words."""

from __future__ import annotations

import numpy as np
from tiny_glyphs import render_nouns

from fedvlm.data.builtin.world import (
    COLOURS,
    DIGITS,
    NEW_NOUNS,
    SHAPES,
    STYLES,
    render_scene,
    scenes_of,
    stylise,
)


def test_rendering_is_a_function_of_the_generator() -> None:
    nouns = [*SHAPES, *DIGITS, *NEW_NOUNS, "a", "z"]
    colours: list[str | None] = [None] * len(nouns)

    def once(seed: int, style: str) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return stylise(render_nouns(scenes_of(nouns, colours, rng), rng), style, rng)

    for style in STYLES:
        first = once(3, style)
        assert first.dtype == np.uint8 and first.shape == (len(nouns), 32, 32, 3)
        assert np.array_equal(first, once(3, style))
        assert not np.array_equal(first, once(4, style))


def test_colour_is_what_the_scene_says() -> None:
    """The middle of a large plain square has the named colour."""
    rng = np.random.default_rng(0)
    for colour in COLOURS:
        scenes = scenes_of(["square"], [colour], rng)
        scenes[:, 2], scenes[:, 4] = 0, 1
        middle = render_scene(scenes, rng)[0, 14:18, 14:18].mean(axis=(0, 1))
        channel = {"red": 0, "green": 1, "blue": 2}.get(colour)
        if channel is not None:
            assert int(middle.argmax()) == channel
