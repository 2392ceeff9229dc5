"""Recipes as they are read: every shipped one, and every mistake of a bad one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.stats import cm, harmonic_mean
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.recipes.acceptance import number_verdict
from fedvlm.recipes.counts import Counts, counts_of, stand_in
from fedvlm.recipes.recipe import AVERAGE, MEAN_OF_H, Numbers, Recipe, read_recipe, recipe_names
from fedvlm.recipes.trial import Tally, classes_of
from fedvlm.sweep.cells import combinations, jobs_of

ROUNDING = 0.011  # two printed numbers behind a third one


@pytest.fixture(scope="module")
def shipped() -> dict[str, Recipe]:
    return {name: read_recipe(name) for name in recipe_names()}


def test_every_recipe_says_whose_protocol_it_is(shipped: dict[str, Recipe]) -> None:
    assert {"fedmgp", "fedtv", "heart_pfl", "thorki", "fedas", "plato", "lora_fair"} <= set(shipped)
    for name, recipe in shipped.items():
        assert recipe.plan.name == name and recipe.protocol and recipe.departures, name
        text = Path(f"configs/recipes/{name}.yaml").read_text(encoding="utf-8")
        assert f"python -m fedvlm reproduce {name} --root DATA/" in text
        assert not recipe.published or "No published number was verified" in text, name


def test_methods_said_to_be_missing_are(shipped: dict[str, Recipe]) -> None:
    """Whoever adds one of them has its rows to put into the recipe's plan."""
    known = {fold(stem) for stem in trainer_files()}
    for recipe in shipped.values():
        for who, why in recipe.absent.items():
            assert "method of that name" not in why or fold(who) not in known, recipe.name


def test_printed_numbers_agree_with_one_another(shipped: dict[str, Recipe]) -> None:
    """CM and the three-way H follow from their neighbours: a slip of the pen would show."""
    seen = 0
    for recipe in shipped.values():
        table = {(p.dataset, p.method, p.metric): p.value for p in recipe.published}
        for (dataset, who, metric), value in table.items():
            p, b, n = (table.get((dataset, who, m)) for m in ("personal", "base_all", "new"))
            made = {"cm": cm(p, harmonic_mean(b, n)), "hm3": harmonic_mean(p, b, n)}.get(metric)
            if made is None or dataset == AVERAGE and recipe.harmonic == MEAN_OF_H:
                continue
            seen += 1
            assert abs(made - value) < ROUNDING, (recipe.name, dataset, who, metric)
    assert seen == 30


def test_counts_are_the_papers(shipped: dict[str, Recipe]) -> None:
    """Trained and sent numbers of every recipe, at its own backbone's shapes, with its options."""
    seen = 0
    for recipe in shipped.values():
        plan = replace(recipe.plan, seeds=(1,))
        for numbers in recipe.numbers:
            row = next(c for c in combinations(plan)
                       if (c.column, c.row) == (numbers.dataset, numbers.method))
            job = jobs_of(plan, row)[0]
            counted = counts_of(load_trainer(job.cfg.TRAINER.NAME), job.cfg, classes_of(job))
            assert counted == Counts(numbers.trained, numbers.sent), (recipe.name, numbers.method)
            for printed, exact in zip(re.findall(r"([\d.]+)([kM])", numbers.published),
                                      (numbers.trained, numbers.sent), strict=False):
                if "sent" not in numbers.published:
                    unit = {"k": 1e3, "M": 1e6}[printed[1]]
                    last = 10.0 ** -len(printed[0].partition(".")[2])
                    assert abs(exact / unit - float(printed[0])) <= 0.51 * last, numbers
            seen += 1
    assert seen == 30


def test_lora_is_counted_at_each_layers_own_shape() -> None:
    block = stand_in("ViT-B/16", 2).vision.blocks[0]
    assert [block.shape(site) for site in ("q", "fc", "proj")] == [
        (768, 768), (3072, 768), (768, 3072)]
    said = Numbers("FedAvg", 2, 1)
    assert number_verdict(Tally(said, Counts(2, 1))) == "as the recipe says"
    assert number_verdict(Tally(replace(said, published="2 / 1"), Counts(2, 1))) == "equal"
    assert number_verdict(Tally(said, Counts(2, 2))) == "off"


def test_a_backbone_without_shapes_is_named() -> None:
    with pytest.raises(ConfigError, match="no shapes are known of backbone 'tiny'"):
        stand_in("tiny", 10)


BAD = """
paper: X
harmonic: mean of means
tolerance: two
protocol: words
plann: {}
plan: {datasets: [digits], trainers: [FedAvg], common: {rounds: 1}}
absent: {FedAvg: it is here}
numbers: {FedAvg: {trained: 1, sent: 2}, FedAvgg: {trained: 2, sent: 1}}
published:
  - {where: table 1, dataset: digits, metrics: [personal], cells: {FedAvg: 101, FedPer: [1]}}
  - {dataset: digit, cells: {FedAvg: [1, 2]}, metric: new}
  - {where: table 2, dataset: digits, cells: {FedAvg: 80}}
  - {where: table 3, dataset: digits, cells: {FedAvg: 81}}
"""


def test_all_mistakes_of_a_recipe_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    with pytest.raises(ConfigError) as caught:
        read_recipe(str(path))
    said = str(caught.value)
    for sentence in (
        "unknown part of a recipe: 'plann'; did you mean 'plan'?", "said is empty",
        "harmonic is 'mean of H' or",
        "tolerance expects points", "protocol expects a list of sentences",
        "absent: the plan has FedAvg", "FedAvg expects trained and sent, whole numbers",
        "numbers: no method 'FedAvgg'; did you mean 'FedAvg'?", "FedAvg expects percent such as",
        "published 1: no method 'FedPer'", "published 2: where is missing",
        "published 2: no data set 'digit'; did you mean 'digits'?",
        "FedAvg has 2 numbers for 1 metrics", "published 2: no word 'metric'",
        "digits FedAvg personal is published twice",
    ):
        assert sentence in said, sentence
    assert all(line.startswith(str(path)) for line in said.splitlines())


def test_the_list_says_what_a_recipe_can_confirm() -> None:
    names = ("fedmgp", "heart_pfl", "plato", "dp_fpl")
    words = {name: read_recipe(name).confirms for name in names}
    assert words == {"fedmgp": "144 numbers", "heart_pfl": "counts only", "plato": "-",
                     "dp_fpl": "16 numbers"}
