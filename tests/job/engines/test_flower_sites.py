"""``--engine flower`` without Flower: sites in this process, real frames, the ordinary job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvlm.api.replay import replay
from fedvlm.cli.main import main
from fedvlm.distributed.flower.place import Place, new_place
from fedvlm.job.build import build_run
from fedvlm.job.engines import flower
from fedvlm.job.inputs import SharedInputs
from fedvlm.job.resolve import run_config
from fedvlm.job.workers.serving import worker_site
from tests import jobs
from tests.distributed.in_process import InProcess

WORDS = ("--num-users", "3", "--trainer", "APFL", "--keep-logits", "--engine", "flower")


class Behind(InProcess):
    """Two sites; see ``Flower``."""

    def __init__(self, place: Place, tell: object) -> None:
        super().__init__({})
        last.append(self)

    def open(self, seconds: float) -> None:
        """Be there."""

    def absent(self) -> list[str]:
        """Nobody is."""
        return []

    def close(self) -> None:
        """Be gone."""


last: list[Behind] = []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over sites that keeps its logits, and beside it the federation."""
    output = tmp_path_factory.mktemp("flower")
    place, inputs = new_place(output / "federation", output, ["", ""]), SharedInputs()

    def begin(place: Place, folder: Path, *more: Any) -> None:
        layout = next(part for part in more if isinstance(part, list))
        for at, site in enumerate(place.sites):
            built = build_run(run_config(folder, {}), inputs=inputs)
            mine = [c for c, home in enumerate(layout) if home == at]
            last[-1].answers[site.name] = worker_site(built, mine, place.states(site.name)).answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flower, "check_flower", lambda cfg: place)
        patch.setattr(flower, "Flower", Behind)
        patch.setattr(flower, "_begin", begin)
        words = (*WORDS, "--federation", str(place.folder), "FED.SITES", "0-1,2",
                 "TEST.REFERENCES", "False")
        assert jobs.run(output / "runs", *words) == 0
    return jobs.folder(output / "runs")


def test_it_is_replayed_here_down_to_rows_at_sites_and_logits(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--replay", "9", str(run)]) == 0
    told = capsys.readouterr().out
    assert "replayed rounds 1 to 2 from the untrained start" in told and "not compared" not in told
    counts = dict(reversed(part.split(" ", 1)) for part in told.partition(
        "equal bit for bit: ")[2].splitlines()[0].split(", "))
    assert int(counts["of logits"]) >= 9  # of three clients: logits, labels, parts
    assert int(counts["of clients' rows"]) >= 9


def test_without_the_federation_rows_are_left_out_and_that_is_said(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvlm.api.replay.site_rows", lambda *more: {})
    seen = replay(run, 9)
    assert seen.equal and seen.at_sites == 3
    words = "rows of 3 clients are stored at their sites"
    assert any(line.startswith(words) for line in seen.lines())
