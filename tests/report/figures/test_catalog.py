"""A figure is one file: a new one is found, written, and shown on the pages of runs and sweeps."""

from __future__ import annotations

import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.report import figures
from fedvlm.report.figures import catalog, traffic
from fedvlm.report.figures.selection import FigureRuns

from .runs import make

TOY = '''
"""Zero-shot accuracy of each run, as bars."""
from fedvlm.report.figures import style

NAME, ORDER, OF = "zero_bars", 15, "{of}"
CAPTION = "Zero-shot accuracy of each run, <as> bars."


def select(selection):
    values = [run.value("zero_shot.personal") for run in selection.runs]
    return values if any(values) else "no run has a zero-shot number"


def rows(values):
    return [{{"run": at, "zero_shot": value}} for at, value in enumerate(values)]


def draw(values, title="", width=style.PAGE):
    with style.use_style():
        figure = style.blank(width, 2)
        figure.add_subplot().bar(range(len(values)), values)
    return figure
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder whose files are in the folder of figures too, beside three of its own.

    To draw all others takes a second for each page.
    """
    added = tmp_path / "added"
    added.mkdir()
    walk, few = pkgutil.walk_packages, (
        "forest", "convergence", "clients", "zero_bars", "half")
    monkeypatch.setattr(pkgutil, "walk_packages", lambda *args: [
        info for info in walk(*args) if info.name.rpartition(".")[2] in few])
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(added)])
    for name in ("zero_bars", "half"):
        monkeypatch.delitem(sys.modules, f"fedvlm.report.figures.{name}", raising=False)
    yield added
    for name in ("zero_bars", "half"):
        sys.modules.pop(f"fedvlm.report.figures.{name}", None)
        vars(figures).pop(name, None)


def runs(tmp_path: Path, zero: float = 30.0) -> list[Path]:
    """Write two finished runs that the verbs can read; return their folders."""
    paths = []
    for seed in (1, 2):
        run = make(tmp_path, "A", seed, [10, 20], zero=zero)
        (run.path / "results.json").write_text(json.dumps({
            "format": 1, "identity_digest": str(seed), "protocol": dict(run.protocol),
            "results": {"last": {"round": 1, "personal": 20.0}, "zero_shot": {"personal": zero}},
            "run_info": {},
        }))
        paths.append(run.path)
    return paths


def test_a_new_figure_is_one_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "zero_bars.py").write_text(TOY.format(of="both"))
    one, _ = runs(tmp_path)
    assert main(["figures", str(one), "--into", str(tmp_path / "drawn")]) == 0
    assert f"{tmp_path / 'drawn' / 'zero_bars'}.pdf .png .svg .csv" in capsys.readouterr().out
    assert (tmp_path / "drawn" / "zero_bars.csv").read_text() == "run,zero_shot\n0,30.0\n"
    for place, into in ((one, "run.html"), (tmp_path, "all.html")):
        assert main(["report", str(place), "--into", str(tmp_path / into)]) == 0
        page = (tmp_path / into).read_text()
        names = re.findall(r'<div class="drawing"[^>]*aria-label="([a-z -]+)', page)
        assert "zero bars" in names and "Zero-shot accuracy of each run, &lt;as&gt; bars." in page
        assert names.index("zero bars") == 1, "its ORDER, behind one other; whole figures first"


def test_a_figure_says_for_what_it_is_and_why_it_cannot_be_drawn(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "zero_bars.py").write_text(TOY.format(of="run"))
    one, _ = runs(tmp_path, zero=0.0)
    assert main(["figures", str(one), "--into", str(tmp_path / "drawn")]) == 0
    assert "not made: zero_bars: no run has a zero-shot number" in capsys.readouterr().err
    main(["report", str(one)])
    assert "zero-bars: no run has a zero-shot number" in (one / "report.html").read_text()
    assert main(["figures", str(tmp_path), "--into", str(tmp_path / "drawn")]) == 0
    said = capsys.readouterr().err
    assert "clients, zero_bars, partition, similarity" not in said
    assert re.search(r"zero_bars, .*: are of one run; give its folder alone", said)
    main(["report", str(tmp_path), "--into", str(tmp_path / "all.html")])
    assert "zero-bars" not in (tmp_path / "all.html").read_text()


def test_a_figure_that_lacks_a_part_is_named(folder: Path) -> None:
    (folder / "half.py").write_text('NAME = "half"\n\n\ndef draw(data):\n    return None\n')
    with pytest.raises(TypeError, match=r"half\.py lacks ORDER, CAPTION, OF, select, rows"):
        catalog.all_figures()


def test_every_figure_of_the_folder_is_whole_and_named_once() -> None:
    every = catalog.all_figures()
    assert [one.NAME for one in every] == [
        "forest", "distribution", "client_gain", "few_shot", "axis", "ablation", "convergence",
        "clients", "partition", "similarity", "reliability", "confusion", "tsne",
        "features", "transport", "attention", "similarity_to_global", "pareto", "traffic",
    ]
    assert all(one.OF in ("run", "runs", "both") and one.CAPTION.endswith(".") for one in every)


def test_where_nothing_is_sent_there_is_no_figure_of_traffic(tmp_path: Path) -> None:
    silent = make(tmp_path, "Local", 1, [10, 20], mb=0.0)
    assert traffic.select(FigureRuns([silent])) == "nothing was sent"
    sends = make(tmp_path, "A", 1, [10, 20], dataset="Other")
    panels = traffic.select(FigureRuns([silent, sends]))
    assert [panel.title for panel in panels] == ["Other", "Set"]
    divide = catalog.parts_of(traffic)  # type: ignore[arg-type]
    assert divide is not None and list(divide(panels)) == ["Other"], "a panel without traffic"
