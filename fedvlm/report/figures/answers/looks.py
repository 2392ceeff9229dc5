"""What a method weighs in single images, drawn over them (``fedvlm figures --images``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedvlm.report.figures import style
from fedvlm.report.figures.similarity import colour_bar, title_above

SIDE, BARS = 1.5, 2.4  # inches of a picture, and of the bars beside it
GREY = (0.299, 0.587, 0.114)  # luminance of red, green and blue (ITU-R BT.601)


@dataclass(frozen=True)
class Looks:
    """What the method weighs in n images.

    Attributes:
        figure: which one they are drawn in: ``transport``, ``attention``.
        pictures: uint8 ``[n, H, W, 3]``, as the image tower sees them.
        names: of the images; said: the class that the model says, in words.
        fields: name -> weights ``[n, rows, columns]`` of patches, or ``[n]``.
    """

    figure: str
    pictures: NDArray[np.uint8]
    names: Sequence[str]
    said: Sequence[str]
    fields: Mapping[str, NDArray[np.float64]]

    @property
    def maps(self) -> dict[str, NDArray[np.float64]]:
        """Weights of patches over the mean of their map: 1 is an even share."""
        return {name: grid / grid.mean((1, 2), keepdims=True)
                for name, grid in self.fields.items() if grid.ndim > 1}

    @property
    def numbers(self) -> dict[str, NDArray[np.float64]]:
        """What is one number for each image."""
        return {name: row for name, row in self.fields.items() if row.ndim == 1}


def of_kind(looks: Looks | None, figure: str) -> Looks | None:
    """Return what is drawn in a figure; None where there is nothing of its kind."""
    return looks if looks is not None and looks.figure == figure else None


def rows(data: Looks) -> list[dict[str, Any]]:
    """Return one row per image, field and patch; of one number without row and column."""
    lines = []
    for i, (name, said) in enumerate(zip(data.names, data.said, strict=True)):
        head = {"image": name, "said": said}
        for field, values in data.fields.items():
            if values.ndim == 1:
                lines.append(head | {"field": field, "weight": float(values[i])})
            else:
                lines += [head | {"field": field, "row": r, "column": c, "weight": float(v)}
                          for (r, c), v in np.ndenumerate(values[i])]
    return lines


def draw(data: Looks, title: str = "", width: float = style.PAGE) -> Figure:
    """Return a line for each image: the image, its maps, or bars where it has numbers alone."""
    maps, count = data.maps, len(data.names)
    columns = 1 + (len(maps) or 1)
    wide = columns * SIDE + 0.9 if maps else SIDE + BARS + 0.9
    scale, lines = min(1.0, width / wide), len(data.numbers) - 1 if maps and data.numbers else 0
    with style.use_style():
        figure = style.blank(min(width, wide), count * (SIDE * scale + 0.34 + 0.12 * lines) + 0.35)
        ratios = [1] * columns if maps else [SIDE, BARS]
        grid = figure.subplots(count, columns, squeeze=False, width_ratios=ratios)
        letters = int(SIDE * scale * 17)
        for i, line in enumerate(grid):
            _picture(line[0], data.pictures[i])
            line[0].set_title(style.cut_label(data.names[i], letters))
            line[0].set_xlabel(style.cut_label(data.said[i], letters))
        if maps:
            image = _heat(data, maps, grid[:, 1:], letters)
            colour_bar(figure, image, list(grid.flat), "times an even share of the patches")
        else:
            _bars(data, grid[:, 1])
        title_above(figure, title, min(width, wide))
    return figure


def _heat(
    data: Looks, maps: Mapping[str, NDArray[np.float64]], grid: NDArray[Any], letters: int
) -> Any:
    """Draw each map over its grey image, all in one scale of colours."""
    low, high = min(m.min() for m in maps.values()), max(m.max() for m in maps.values())
    image = None
    for j, (name, values) in enumerate(maps.items()):
        for i, axes in enumerate(grid[:, j]):
            picture = data.pictures[i]
            side = (-0.5, picture.shape[1] - 0.5, picture.shape[0] - 0.5, -0.5)
            _picture(axes, np.repeat((picture @ np.array(GREY))[..., None], 3, -1).astype(np.uint8))
            image = axes.imshow(values[i], cmap=style.LEVELS, alpha=0.6, extent=side,
                                vmin=low, vmax=high if high > low else low + 1e-6,
                                interpolation="nearest")
            if i == 0:
                axes.set_title(style.cut_label(name, letters))
            if j == 0 and data.numbers:
                axes.set_xlabel("\n".join(f"{n} {v[i]:.2f}" for n, v in data.numbers.items()))
    return image


def _bars(data: Looks, column: NDArray[Any]) -> None:
    """Draw the numbers of each image as bars."""
    numbers = data.numbers
    top = max(float(values.max()) for values in numbers.values())
    for i, axes in enumerate(column):
        values = [float(row[i]) for row in numbers.values()]
        axes.barh(range(len(values)), values, color=style.PALETTE[0], height=0.6)
        for at, value in enumerate(values):
            axes.text(value + 0.02 * top, at, f"{value:.2f}", va="center")
        axes.set_yticks(range(len(values)), list(numbers))
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.set_xlim(0, 1.25 * top)
        axes.grid(visible=False)
        axes.set_xticks([])
    column[-1].set_xlabel("weight")


def _picture(axes: Axes, picture: NDArray[np.uint8]) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
