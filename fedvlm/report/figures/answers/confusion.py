"""Which classes are taken for which: the confusion matrix of a run's models, rows of sum 100."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedvlm.report.figures import style
from fedvlm.report.figures.answers.scores import read_scores
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.figures.similarity import colour_bar, title_above
from fedvlm.runs.names import class_names

NAME, ORDER, OF = "confusion", 43, "run"
CAPTION = ("Percentage of each class's test images (row) that the models take for each class "
           "(column), all clients together. Rows without images are blank.")
NAMED, WRITTEN = 40, 20  # classes whose names, and whose numbers, have room


@dataclass(frozen=True)
class Confusion:
    """Counts ``[C, C]`` of true (row) and predicted class, and the classes' names."""

    counts: NDArray[np.int64]
    names: Sequence[str]

    @property
    def percent(self) -> NDArray[np.float64]:
        """Rows in percent; NaN where a class has no image."""
        total = self.counts.sum(1, keepdims=True).astype(float)
        total[total == 0] = np.nan
        return np.asarray(100 * self.counts / total)


def select(selection: FigureRuns) -> Confusion | str:
    """Return the counts that the run kept (TEST.COMPUTE_CMAT), else those of its kept scores."""
    run = selection.run
    names = class_names(run.path)
    kept: Any = run.section("confusion")
    entries = kept.get("personal") or kept.get("global") if isinstance(kept, Mapping) else None
    if not entries:
        scores = read_scores(run)
        if isinstance(scores, str):
            return f"{scores}, or TEST.COMPUTE_CMAT True"
        pairs, counted = np.unique(np.stack([scores.true, scores.logits.argmax(1)]), axis=1,
                                   return_counts=True)
        entries = [(*pair, n) for pair, n in zip(pairs.T.tolist(), counted.tolist(), strict=True)]
    classes = max(len(names), 1 + max(max(int(t), int(p)) for t, p, _ in entries))
    counts = np.zeros((classes, classes), dtype=np.int64)
    for true, predicted, n in entries:
        if predicted >= 0:
            counts[true, predicted] += n
    return Confusion(counts, [*names, *(str(i) for i in range(len(names), classes))])


def rows(data: Confusion) -> list[dict[str, Any]]:
    """Return one row per pair of classes with images."""
    return [{"true": data.names[i], "predicted": data.names[j], "images": int(n)}
            for (i, j), n in np.ndenumerate(data.counts) if n]


def draw(data: Confusion, title: str = "", width: float = style.PAGE) -> Figure:
    """Return the matrix."""
    classes, grid = len(data.names), data.percent
    side = min(width - 1.6, max(2.2, 0.26 * classes))
    with style.use_style():
        figure = style.blank(side + 1.6, side + 0.9)
        axes = figure.subplots()
        image = axes.imshow(np.ma.masked_invalid(grid), cmap="Blues", vmin=0, vmax=100,
                            interpolation="nearest")
        axes.grid(visible=False)
        places = list(range(classes)) if classes <= NAMED else style.even_places(classes, NAMED)
        labels = [style.cut_label(data.names[i], 18) for i in places]
        axes.set_xticks(places, labels, rotation=60, ha="right", rotation_mode="anchor")
        axes.set_yticks(places, labels)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        if classes <= WRITTEN:
            for (i, j), value in np.ndenumerate(grid):
                if np.isfinite(value) and value >= 0.5:  # noqa: PLR2004 (0 is left blank)
                    axes.text(j, i, f"{value:.0f}", ha="center", va="center",
                              color=style.ON_DARK if value > 60 else style.ON_LIGHT)  # noqa: PLR2004
        colour_bar(figure, image, [axes], "% of the class's images")
        title_above(figure, title, width)
    return figure
