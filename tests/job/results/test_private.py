"""``released.json``: what left the clients, by the method's own list, on every kind of upload."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.federation.toolbox.privacy import epsilon_of
from fedvlm.job.results.private import guess_bound
from fedvlm.report.collect import collect
from fedvlm.report.pages.origin import gifts
from fedvlm.runs.verify.cover import damage
from tests import jobs


def released(output: Path) -> dict[str, Any]:
    return json.loads((jobs.folder(output) / "released.json").read_text())


def test_what_is_listed_is_what_was_counted(tmp_path: Path) -> None:
    """SCAFFOLD sends controls beside its tensors; two clients, two rounds, one loss each."""
    assert jobs.run(tmp_path, "--trainer", "SCAFFOLD", "TEST.REFERENCES", "False") == 0
    told, records = released(tmp_path), jobs.records(tmp_path)
    sent, declared = told["sent"], told["declared"]
    assert set(sent["shared"]) == set(declared["shared"])
    assert list(sent["extras"]) == sorted(f"control.{n}" for n in declared["shared"])
    every = sum(sum(r["bytes_up"].values()) for r in records)
    assert sum(sent["shared"].values()) + sum(sent["extras"].values()) == every > 0
    assert sent["metrics"] == {"loss": 4} and declared["losses"] == ["(.+/)?loss"]
    assert "accuracy" in sent["rows"] and sent["references"] == [] and told["privacy"] == ""
    (run,) = collect([jobs.folder(tmp_path)]).runs
    page = str(gifts(run))
    assert told["tells"] == [] and "labels of single images" in told["never"]
    assert "control.image.adapter.down" in page and "No guarantee of privacy" in page
    file = jobs.folder(tmp_path) / "released.json"
    file.write_text(file.read_text().replace("SCAFFOLD", "LocalOnly"))
    covers = json.loads((jobs.folder(tmp_path) / "results.json").read_text())["covers"]
    assert [d for d in damage(jobs.folder(tmp_path), covers, whole=False) if "released.json" in d]


def test_what_tells_single_images_stands_beside_it_and_not_under_never(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--trainer", "AFL", "--rounds", "1", "TEST.REFERENCES", "False") == 0
    told = released(tmp_path)
    says = ("AFL's sums tell the feature and class of every image that is a client's only one of "
            "its class")
    assert told["tells"] == [says]
    assert told["never"] == ["images", "personal tensors", "optimisers' states"]
    (run,) = collect([jobs.folder(tmp_path)]).runs
    page = html.unescape(str(gifts(run)))
    assert f"{says}." in page and "labels of single images" not in page


def test_personal_tensors_are_in_no_list(tmp_path: Path) -> None:
    """With noise DP-FPL sends p_G alone, and no loss."""
    words = ("--trainer", "DP-FPL", "TRAINER.DP-FPL.SIGMA", "4", "TEST.REFERENCES", "False")
    assert jobs.run(tmp_path, *words, "--rounds", "1") == 0
    told = released(tmp_path)
    assert list(told["declared"]["shared"]) == list(told["sent"]["shared"]) == ["text.global"]
    assert told["declared"]["metrics"] == [] and told["sent"]["metrics"] == {}
    assert told["privacy"].startswith("epsilon ")


NARROW = """
from dataclasses import replace

from fedvlm.method import PeftTrainer


class Narrow(PeftTrainer):
    def releases(self, groups):
        return replace(super().releases(groups), metrics=())
"""


def test_an_update_beside_the_list_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "narrow.py"
    path.write_text(NARROW)
    assert jobs.run(tmp_path / "out", "--trainer", f"{path}:Narrow") != 0
    assert "an update holds 'loss', which its list of releases does not have" in (
        capsys.readouterr().err)


def test_a_guess_is_bounded_by_the_best_test_of_a_gaussian_mechanism() -> None:
    """The best test between N(0, z^2) and N(1, z^2) is right with probability Phi(1 / (2 z))."""
    for noise in (0.5, 1.0, 4.0):
        best = float(torch.special.ndtr(torch.tensor(0.5 / noise, dtype=torch.float64)))
        for delta in (1e-5, 1e-2):
            assert best <= guess_bound(epsilon_of(noise, 1, delta), delta) + 1e-9
    assert guess_bound(0.0, 0.0) == 0.5 and guess_bound(800.0, 1e-5) == 1.0
