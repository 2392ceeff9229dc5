"""What a recipe costs, by hand."""

from __future__ import annotations

import pytest

from fedvlm.cli.main import main
from fedvlm.recipes.outlay import (
    IMAGE,
    TEXT,
    Files,
    Outlay,
    outlay_of,
    outlays,
    reads_of,
    speed_here,
    worth,
)
from fedvlm.recipes.recipe import read_recipe
from fedvlm.recipes.trial import Row, protocol_rows
from fedvlm.sweep.cells import combinations, jobs_of


def rows(recipe: str, dataset: str, method: str, runs: int = 2) -> list[Row]:
    plan = read_recipe(recipe).plan
    found = next(c for c in combinations(plan) if (c.column, c.row) == (dataset, method))
    job = jobs_of(plan, found)[0]
    return [Row(dataset, method, job, job, (None,) * runs)]  # type: ignore[arg-type]


def test_a_network_costs_three_passes_of_its_own_layers() -> None:
    image = 2 * (28**2 * 32 * 75 + 10**2 * 64 * 800 + 1600 * 512 + 512 * 10)
    seen = 40 * 0.1 * 50_000 * 5
    effort = outlay_of(rows("fedas", "CIFAR-10", "FedAvg"))
    assert effort is not None
    tower = 2 * IMAGE["RN50"] * 10_000
    assert effort.flops == pytest.approx(2 * (3 * image * (3 * seen + 4 * 10_000) + tower))
    assert effort.images == pytest.approx(2 * (seen + 6 * 10_000))
    assert effort.bytes == 2 * 2 * 4 * 20 * 878_538


def test_a_prompt_costs_text_passes_and_fresh_views_of_every_step() -> None:
    seen = 10 * 1.0 * 16 * 51 * 2
    effort = outlay_of(rows("fedmgp", "Caltech101", "PromptFL", runs=1))
    assert effort is not None
    text = 3 * seen / 8 * (17 + 50 * 3.5) / 77 * TEXT["ViT-B/16"]  # packed: one context, names
    assert effort.flops == pytest.approx(IMAGE["ViT-B/16"] * (seen + 2465) + text, rel=0.03)


def test_nothing_is_said_of_what_is_unknown_and_little_in_few_words() -> None:
    assert outlay_of([Row("x", "y")]) is None
    words = Outlay(7.2e14, 2e9).words(2e11)
    assert words.startswith("0.5 to 2.0 hours here or less than 0.1 on")
    assert Outlay(1.44e14, 0).words(1e12).startswith("less than 0.1 hours here or")
    assert Outlay(3.6e14, 0).words(1e12).startswith("at most 0.2 hours here or")
    assert "12 GB" in Outlay(0, 12.3e9).words(2e11)
    assert Outlay(1.0, 2.0) + Outlay(3.0, 4.0) == Outlay(4.0, 6.0)
    assert Outlay(0, 0, 3.6e6).hours(1.0) == pytest.approx(2)  # 2 ms an image
    assert 1e9 < speed_here() == speed_here() < 1e14


def test_what_an_hour_confirms() -> None:
    (cheap,) = rows("fedmgp", "Caltech101", "PromptFL", runs=1)
    (dear,) = rows("fedmgp", "Caltech101", "PromptFL", runs=3)
    assert worth([cheap], 2) == pytest.approx(3 * worth([dear], 2))
    assert worth([cheap], 0) == worth([Row("x", "y")], 5) == 0


@pytest.mark.parametrize("method", [
    "Thorki (ResNet-18)", "Thorki (CNN)", "Thorki (tower)",
])
def test_what_a_method_adds_to_a_network_counts(method: str) -> None:
    effort = outlay_of(rows("thorki", "CIFAR-10", method))
    assert effort is not None
    own = {"Thorki (ResNet-18)": 11_173_962, "Thorki (CNN)": 0, "Thorki (tower)": 0}[method]
    assert effort.bytes > 2 * 2 * 4 * 20 * own


def test_data_sets_and_weights_count_once() -> None:
    plan = read_recipe("fedtv").plan
    every = protocol_rows(plan)
    assert sum(row.runs for row in every) == 81 == len(every) * len(plan.seeds)
    assert len(outlays(every)) < len(every)
    files = reads_of(every)
    assert files.weights == {"ViT-B-16": 0.6} and files.images["OxfordFlowers"] == 0.35
    assert files.gigabytes == pytest.approx(sum(files.images.values()) + 0.6)
    assert files.unknown and files | reads_of(every[:1]) == files
    assert Files({"a": 2.0}, {"b": 1.0}, ("c",)).words() == (
        "2.0 GB of images and 1.0 GB of weights and images of unknown size (c)"
    )
    assert not reads_of(protocol_rows(read_recipe("plato").plan)).weights


def test_costs_are_printed_without_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "pfedmoap_cifar", "--dry-run"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("recipe pfedmoap_cifar: 30 runs, ") and "hours here" in line
    assert "reads 0.3 GB of images and 0.4 GB of weights" in line
    assert "none of them can run here" in line
