"""The page of one run: headline, numbers, figures, clients, config, origin, method."""

from __future__ import annotations

from fedvlm.report import sections_clients, sections_figures, sections_numbers, sections_origin
from fedvlm.report.collect import Run
from fedvlm.report.html import Html, element, join
from fedvlm.report.page import Section, page


def run_page(run: Run, card: str = "", title: str = "", origin: str = "") -> str:
    """Return a run's page as one HTML document; the same files give the same text.

    Args:
        card: the method's card; empty for unknown.
        title: instead of method and data set.
        origin: the command that makes the page.
    """
    records = run.rounds()
    warned = sections_numbers.caveats(run, records)
    intro = join([sections_numbers.intro(run), sections_numbers.box(warned)])
    parts = [
        Section("headline", "Headline", sections_numbers.headline(run)),
        Section("numbers", "All numbers", sections_numbers.all_numbers(run)),
        Section("figures", "Figures", sections_figures.of_run(run, records)),
        Section("clients-section", "Clients", sections_clients.clients(run.path, records)),
        Section("work", "Work and traffic", join([
            sections_numbers.work(run), sections_numbers.traffic(run)])),
        Section("config", "Config", sections_origin.config(run)),
        Section("manifest", "Manifest", sections_origin.manifest(run)),
        Section("method", "Method card", sections_origin.card(card) or _no_card(run)),
        Section("notes", "Notes", sections_numbers.remarks(run)),
    ]
    name = title or f"{run.method} on {run.protocol.get('dataset', 'unknown data')}"
    return page(name, intro, parts, origin)


def _no_card(run: Run) -> Html:
    return element("p", f"The file of {run.protocol['trainer']} was not found, so its card is not "
                   "shown.")
