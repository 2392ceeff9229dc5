"""The page's curves of a tuning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evidence.results import curves
from tests.sweep.tune.test_progress import search


@pytest.mark.parametrize(("label", "title"), [
    ("FedAvg prompt+feature (ft, work)", "FedAvg\nprompt+feature (ft,\nwork)"),
    ("Toy", "Toy"),
])
def test_two_entries_of_a_method_have_titles_of_their_own(label: str, title: str) -> None:
    figure = curves.grid("best_by_trials", [replace(search(), label=label)])
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == title
