"""Figures of kept scores: calibration, confusion, the map of test images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedvlm.core.errors import DataError
from fedvlm.report.figures import catalog
from fedvlm.report.figures.answers import confusion, reliability, scores, tsne
from fedvlm.report.figures.selection import FigureRuns
from tests.report.figures.runs import make

CLASSES = ("cat", "dog", "fox")


@pytest.fixture
def kept(tmp_path: Path) -> FigureRuns:
    """Two clients of 20 images: the true class has score 2, every fifth answer is the next one."""
    run = make(tmp_path, "A", 1, [0, 80.0])
    true = np.arange(40) % 3
    said = np.where(np.arange(40) % 5 == 0, (true + 1) % 3, true)
    logits = np.zeros((40, 3), dtype=np.float32)
    logits[np.arange(40), said] = 2.0
    save_file({"personal|0": logits[:20], "true|personal|0": true[:20], "personal|10": logits[20:],
               "true|personal|10": true[20:]}, run.path / "logits.safetensors")
    (run.path / "partition.json").write_text(json.dumps({"classnames": CLASSES}))
    return FigureRuns([run])


def test_calibration_by_hand(kept: FigureRuns) -> None:
    (one,) = reliability.select(kept)
    sure = np.exp(2) / (np.exp(2) + 2)
    assert (one.count, one.low) == (40, pytest.approx(11 / 15))
    assert one.confidence == pytest.approx(sure, rel=1e-6)
    assert one.accuracy == pytest.approx(0.8)
    assert reliability.ece_of_bins([one]) == pytest.approx(100 * abs(0.8 - sure), rel=1e-5)
    assert len(reliability.draw([one], "A run").axes) == 2
    two = [reliability.Bin(0, 0.1, 30, 0.5, 0.4), reliability.Bin(0.1, 0.2, 10, 0.5, 0.9)]
    assert reliability.ece_of_bins(two) == pytest.approx(17.5)


def test_both_kinds_of_difference_have_their_words() -> None:
    """The bar of accuracy ends where the difference begins, so each has the legend's colour."""
    bins = [reliability.Bin(0.4, 0.5, 30, 0.5, 0.25), reliability.Bin(0.5, 0.6, 10, 0.5, 0.75)]
    figure = reliability.draw(bins)
    (legend,) = figure.legends
    words = dict(zip((text.get_text() for text in legend.get_texts()),
                     legend.get_patches(), strict=False))
    accuracy, over, under = (words[name].get_facecolor() for name in (
        "accuracy", "confidence above accuracy", "accuracy above confidence"))
    bars = [(bar.get_y(), bar.get_height(), bar.get_facecolor()) for bar in figure.axes[0].patches]
    assert bars == [(0, 0.25, accuracy), (0.25, 0.25, over), (0, 0.5, accuracy), (0.5, 0.25, under)]
    assert "Orange" in reliability.CAPTION and "green" in reliability.CAPTION


def test_the_title_of_a_run_has_its_partition_in_words(tmp_path: Path) -> None:
    run = make(tmp_path, "A", 1, [0, 5])
    run.protocol["partition"] = "dirichlet-1-K5-f1"  # type: ignore[index]
    assert catalog.title_of(run) == "A, Set, Dirichlet(1), 5 clients, seed 1, data seed 1"


def test_confusion_counts_every_image_once(kept: FigureRuns) -> None:
    data = confusion.select(kept)
    assert isinstance(data, confusion.Confusion)
    assert list(data.names) == list(CLASSES)
    assert data.counts.sum() == 40
    assert np.trace(data.counts) == 32
    assert (data.counts[0, 2], data.counts[2, 1]) == (0, 0)  # only the next class is said
    assert np.allclose(data.percent.sum(1), 100)
    assert {"true": "cat", "predicted": "dog", "images": int(data.counts[0, 1])} in \
        confusion.rows(data)
    run = kept.run
    run.results["confusion"] = {"personal": [[0, 1, 7], [1, -1, 2]]}  # type: ignore[index]
    told = confusion.select(kept)
    assert isinstance(told, confusion.Confusion)
    assert told.counts.sum() == 7  # what is not finite is in no column
    assert np.isnan(told.percent[2]).all()
    confusion.draw(told)


def test_the_map_is_the_same_each_time_and_groups_classes(kept: FigureRuns) -> None:
    first, second = tsne.select(kept), tsne.select(kept)
    assert isinstance(first, tsne.Points)
    assert isinstance(second, tsne.Points)
    assert (first.at == second.at).all()
    assert int(first.right.sum()) == 32
    assert {row["true"] for row in tsne.rows(first)} == set(CLASSES)
    tsne.draw(first, "A run")


def test_without_scores_a_sentence_and_damage_is_refused(tmp_path: Path) -> None:
    selection = FigureRuns([make(tmp_path, "A", 1, [0, 5])])
    for figure in (reliability, tsne):
        assert figure.select(selection) == scores.NOT_KEPT
    assert "--keep-logits, or TEST.COMPUTE_CMAT" in str(confusion.select(selection))
    (selection.run.path / "logits.safetensors").write_bytes(b"no")
    with pytest.raises(DataError, match="is damaged"):
        scores.read_scores(selection.run)
