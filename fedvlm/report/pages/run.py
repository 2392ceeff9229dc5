"""The page of one run: headline, numbers, figures, clients, config, origin, method."""

from __future__ import annotations

from fedvlm.report.pages import figures, numbers
from fedvlm.report.pages.clients import client_table
from fedvlm.report.pages.frame import PageSection, page
from fedvlm.report.pages.html import Html, element, join_content
from fedvlm.report.pages.origin import config_table, gifts, method_card, provenance
from fedvlm.runs.finished import FinishedRun


def run_page(run: FinishedRun, card: str = "", title: str = "", origin: str = "") -> str:
    """Return a run's page as one HTML document; the same files give the same text.

    Args:
        card: the method's card; empty for unknown.
        title: instead of method and data set.
        origin: the command that makes the page.
    """
    records = run.rounds()
    intro = join_content([numbers.introduction(run), numbers.box(numbers.caveats(run, records))])
    labels = numbers.label_content(run)
    parts = [
        PageSection("answer", "Does federation pay?", numbers.answer_content(run)),
        PageSection("headline", "Headline", numbers.headline_content(run)),
        PageSection("numbers", "All numbers", numbers.all_numbers(run)),
        *([PageSection("labels", "Labels", labels)] if labels else []),
        PageSection("figures", "Figures", figures.of_run(run)),
        PageSection("clients-section", "Clients", client_table(run.path, records, run.results)),
        PageSection("work", "Work and traffic", join_content([
            numbers.work_content(run), numbers.traffic(run)])),
        PageSection("released", "What the run gave away", gifts(run)),
        PageSection("config", "Config", config_table(run)),
        PageSection("manifest", "Manifest", provenance(run)),
        PageSection("method", "Method card", method_card(card) or _no_card(run)),
        PageSection("notes", "Notes", numbers.remarks(run)),
    ]
    name = title or f"{run.method} on {run.protocol.get('dataset', 'unknown data')}"
    return page(name, intro, parts, origin)


def _no_card(run: FinishedRun) -> Html:
    return element("p", f"The file of {run.protocol['trainer']} was not found, so its card is not "
                   "shown.")
