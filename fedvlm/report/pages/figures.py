"""Figures of a page, each with a caption; what cannot be drawn is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from fedvlm.core.errors import DataError
from fedvlm.report.collect import Run
from fedvlm.report.figures import clients as figure_clients
from fedvlm.report.figures import convergence as figure_convergence
from fedvlm.report.figures import few_shot as figure_few_shot
from fedvlm.report.figures import partition as figure_partition
from fedvlm.report.figures import series as figures_cells
from fedvlm.report.figures import series as figures_series
from fedvlm.report.figures import similarity as figure_similarity
from fedvlm.report.figures import style
from fedvlm.report.figures import traffic as figure_traffic
from fedvlm.report.figures.draw import WORDS, partition_of
from fedvlm.report.figures.lines import Line, Panel, order_of
from fedvlm.report.pages.html import Html, element, inline, join


@dataclass
class Drawings:
    """Figures as markup, and a sentence for each that could not be made."""

    made: list[Html] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, caption: str, draw: Callable[[], Figure]) -> None:
        """Draw one; a drawing that fails costs its place on the page, not the page."""
        try:
            svg = style.svg_text(draw())
        except Exception as error:  # whatever matplotlib makes of odd numbers
            self.missing.append(f"{name}: {' '.join(str(error).split())}")
            return
        self.made.append(element(
            "figure", element("div", inline(svg, name, caption), class_="drawing", tabindex="0",
                              role="region", aria_label=name.replace("-", " ")),
            element("figcaption", caption),
        ))

    def html(self) -> Html:
        """Return all figures, then what is missing."""
        lack = element("p", "Not drawn: ", "; ".join(self.missing), ".", class_="soft") \
            if self.missing else None
        return join([*self.made, lack])


def of_run(run: Run, records: Sequence[Mapping[str, Any]]) -> Html:
    """Return convergence, clients, partition, similarity and bytes of one run."""
    out = Drawings()
    cells, _ = figures_cells.cells([run])
    label = WORDS["personal"]
    course = figures_series.convergence(cells, "personal")
    if course:
        out.add("convergence", "Personal accuracy over rounds; round 0 is the untrained start.",
                lambda: figure_convergence.draw(course, label))
    clients = figure_clients.from_rounds(records)
    if clients.clients:
        out.add("clients", "Personal accuracy of each client over rounds, best at the end on top; "
                "what was not evaluated is blank.", lambda: figure_clients.draw(clients))
    try:
        data, _ = partition_of(run.path)
    except DataError as error:
        out.missing.append(f"partition: {error}")
    else:
        out.add("partition", "Training images of each client by class: a dot's area is their "
                "number.", lambda: figure_partition.draw(data))
    alike = figure_similarity.rounds_with(records)
    if alike:
        out.add("similarity", "How alike the clients' updates are: cosine between each two, all "
                "shared tensors as one vector, first and last round.",
                lambda: figure_similarity.draw(alike))
        out.add("similarity-to-global", "Cosine of each uploaded tensor to what the client had "
                "downloaded: what similarity-aware aggregation makes its weights of.",
                lambda: figure_similarity.draw_global(alike))
    else:
        out.missing.append("similarity: no round has uploads to compare")
    sent = figures_series.traffic(cells, "personal")
    if any(map(_sends, sent)):
        out.add("bytes", "Personal accuracy against the MB sent until then, all clients, up and "
                "down.", lambda: figure_traffic.draw(sent, label))
    else:
        out.missing.append("bytes: nothing was sent")
    return out.html()


def of_runs(runs: Sequence[Run]) -> Html:
    """Return, per data set, convergence and accuracy against bytes of all methods; and few-shot."""
    out = Drawings()
    cells, problems = figures_cells.cells(runs)
    out.missing += problems
    label = WORDS["personal"]
    over_shots = figures_series.few_shot(cells, "personal")
    if over_shots:
        out.add("few-shot", "Personal accuracy over shots per class, mean and band of one standard "
                "deviation over seeds; the star is zero-shot.",
                lambda: figure_few_shot.draw(over_shots, label))
    course, sent = (
        {p.title: p for p in _alike_coloured(of(cells, "personal"))}
        for of in (figures_series.convergence, figures_series.traffic)
    )
    for at, (title, panel) in enumerate(course.items()):
        out.made.append(element("h3", title))
        out.add(f"convergence-{at}", "Personal accuracy over rounds, mean and band of one standard "
                "deviation over seeds.", partial(figure_convergence.draw, [panel], label))
        if _sends(sent.get(title)):
            out.add(f"bytes-{at}", "The same against the MB sent until then, all clients, up and "
                    "down.", partial(figure_traffic.draw, [sent[title]], label))
    return out.html()


def _alike_coloured(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels with all methods in the same order: a method has one colour on the page.

    One that a panel has no numbers of is an empty line there.
    """
    labels = order_of(panels)
    found = []
    for panel in panels:
        own = {line.label: line for line in panel.lines}
        lines = [own.get(label) or Line(label, [], [], [], []) for label in labels]
        found.append(replace(panel, lines=lines))
    return found


def _sends(panel: Panel | None) -> bool:
    return panel is not None and any(x > 0 for line in panel.lines for x in line.x)
