"""The map: its clients, its numbers against plain computations, its table and figure."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from matplotlib.figure import Figure

from evidence.commands import main
from evidence.map import cell
from evidence.map.deal import EVEN, MOST, SKEWS, TWO, class_shares, deal, draw, fit_shares
from evidence.map.dealt import (
    COLUMNS,
    as_runs,
    dealing_line,
    dealing_words,
    lacking,
    read_dealt,
)
from evidence.map.figure import FIGURES, figure_of, figure_of_all
from evidence.map.images import Features, Part, encode_names, knows, set_aside
from evidence.map.map import keys_of, read_rows
from evidence.map.page import page_of, words_of
from evidence.map.table import Row, join_tables, read_table, sides, summarize, whole_sets
from fedvlm.cli.main import main as fedvlm_main
from fedvlm.core.stats import cell_interval, pooled_interval
from fedvlm.data.packs.pack import open_pack
from fedvlm.evaluation.references import heads as h
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel
from tests.evaluation.references.test_heads import CLASSES, WIDTH, make


@pytest.fixture(scope="module")
def made() -> Features:
    """Six classes around six directions, two domains that differ by a shift."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 12))

    def part(n: int) -> Part:
        labels = np.arange(n) % 6
        x = centres[labels] + 1.2 * rng.normal(size=(n, 12))
        return Part(np.stack([x, x + 0.5 * rng.normal(size=12)]), labels)

    return Features("Made", 6, part(240), part(96), part(300))


@pytest.mark.parametrize("skew", SKEWS)
def test_clients_hold_distinct_images_of_their_own_shares(made: Features, skew: str) -> None:
    held = deal(made, 8, 15, skew, True, 3)
    for name in ("train", "val"):
        places = np.concatenate([getattr(one, name) for one in held])
        assert len(set(places.tolist())) == len(places)
    for one in held:
        assert len(one.train) == 15
        assert one.shares.sum() == pytest.approx(1)
        assert (one.shares[made.train.labels[one.train]] > 0).all()
    assert [one.domain for one in held] == [0, 1] * 4
    if skew == TWO:
        assert all((one.shares == 0.5).sum() == 2 for one in held)
    if skew == EVEN:
        assert all(np.allclose(one.shares, 1 / 6) for one in held)


def test_a_seed_is_a_draw_and_the_skew_is_the_papers(made: Features) -> None:
    a, b, c = (deal(made, 4, 10, "0.3", False, seed) for seed in (1, 1, 2))
    assert all((x.train == y.train).all() for x, y in zip(a, b, strict=True))
    assert any((x.train != y.train).any() for x, y in zip(a, c, strict=True))
    rng = np.random.default_rng(1)
    variances = [class_shares(skew, 4000, 6, rng)[:, 0].var() for skew in ("0.1", "0.3", "1")]
    wanted = [(1 / 6) * (5 / 6) / (6 * beta + 1) for beta in (0.1, 0.3, 1.0)]
    assert variances == pytest.approx(wanted, rel=0.08)


def test_shares_are_fitted_to_what_there_is() -> None:
    shares = np.array([[0.9, 0.1, 0.0], [0.9, 0.05, 0.05]])
    fitted = fit_shares(shares, 10, np.array([10, 20, 20]))
    assert (10 * fitted.sum(0) <= np.array([10, 20, 20]) * 1.001).all()
    assert fitted.sum(1) == pytest.approx([1, 1])
    assert fitted[0, 2] == 0
    assert (fit_shares(shares, 10, np.array([50, 50, 50])) == shares).all()
    labels = np.repeat([0, 1, 2], [3, 20, 20])
    got = draw(np.array([[1.0, 0, 0]]), 5, labels, np.random.default_rng(0))
    assert (labels[got[0]] == 0).sum() == 3  # what is missing comes from other classes
    assert len(got[0]) == 5


def test_scores_equal_a_plain_count(made: Features) -> None:
    held = deal(made, 4, 12, "0.3", True, 1)
    one = cell.Cell(made, held)
    heads = cell.solve.shared_heads(one.unit, 6, cell.solve.common_scale(one.unit))[0]
    score = one.score(heads, True)
    for k, client in enumerate(held):
        x = torch.nn.functional.normalize(
            torch.from_numpy(made.test.features[client.domain]), dim=1)
        weights = heads.weights[0]
        answers = (x @ weights[:, :-1].T + weights[:, -1]).argmax(1).numpy()
        recall = [(answers[made.test.labels == c] == c).mean() for c in range(6)]
        assert float(score.clients[k]) == pytest.approx(100 * np.dot(client.shares, recall))
        assert float(score.balanced[k]) == pytest.approx(100 * np.mean(recall))


def test_together_is_chosen_on_validation_images_and_hurt_is_counted() -> None:
    def score(clients: list[float], val: float) -> cell.Score:
        tensor = torch.tensor(clients, dtype=torch.float64)
        return cell.Score(tensor, tensor, torch.full_like(tensor, val))

    fixed = {cell.ALONE: score([50, 60], 99), "shared": score([90, 90], 10),
             "shared+shares": score([70, 59], 80), "ridge": score([95, 95], 90),
             "ridge+shares": score([91, 92], 70), "personal": score([80, 80], 80)}
    made = Features("Made", 2, *(Part(np.ones((1, 8, 2)), np.arange(8) % 2) for _ in range(3)))
    numbers = cell.measure(made, 2, 2, EVEN, False, 1, lambda _: fixed)
    assert numbers[cell.TOGETHER] == numbers["shared+shares"]
    assert numbers[cell.TOGETHER] == {"personal": 64.5, "balanced": 64.5, "worst": 59.0,
                                      "hurt": 50.0}


@pytest.fixture(scope="module")
def named(made: Features) -> Features:
    """The same, whose class names are near its classes."""
    means = np.stack([made.train.features[0][made.train.labels == c].mean(0) for c in range(6)])
    return replace(made, names=4 * means / np.linalg.norm(means, axis=1, keepdims=True))


def test_alone_and_shared_heads_start_from_names_where_that_is_better(
    made: Features, named: Features,
) -> None:
    held = deal(named, 6, 4, EVEN, True, 1)
    without, one = cell.Cell(made, held), cell.Cell(named, held)
    x = torch.nn.functional.normalize(torch.from_numpy(named.test.features[0]), dim=1)
    assert named.names is not None and one.names is not None and without.names is None
    assert torch.equal(one.names.logits(x)[0], x @ torch.from_numpy(named.names).mT)

    zero, alone = without.alone(), one.alone()
    assert float(alone.clients.mean()) > float(zero.clients.mean()) + 10
    starts = [c.x @ torch.from_numpy(named.names).mT for c in one.unit]
    best = torch.zeros(6, dtype=torch.float64)
    for found in h.alone_heads(one.unit, 6, cell.NAMES_GRID, starts):
        found.weights[..., :-1] += torch.from_numpy(named.names)
        best = torch.maximum(best, one.val(found, True))
    assert torch.equal(alone.val, best)  # ties are told apart by the loss

    scale = h.common_scale(one.unit)
    shared, score = one.shared(scale)
    assert float(score.val.mean()) >= float(without.shared(scale)[1].val.mean())
    pooled = h.HeadClient(torch.cat([c.x for c in one.unit]), torch.cat([c.y for c in one.unit]))
    (strong,) = h.personal_heads([pooled], one.names, scale, [1e9])
    assert torch.allclose(strong.weights, one.names.weights, atol=1e-6)
    assert shared.seen.all()

    wrong = cell.Cell(replace(named, names=-10 * named.names), held)
    assert torch.equal(wrong.alone().clients, zero.clients)
    assert torch.equal(wrong.shared(scale)[0].weights, without.shared(scale)[0].weights)


def test_class_names_are_scored_as_zero_shot_does_and_have_to_say_something(
    named: Features, tmp_path: Path,
) -> None:
    pack = tmp_path / "demo.pack.safetensors"
    assert fedvlm_main(["features", "--demo", "--pack", str(pack)]) == 0
    rows = torch.from_numpy(encode_names("EuroSAT", "tiny", pack)).float()
    model = VLModel(load_backbone("tiny"), open_pack(pack).about.classnames,
                    templates=["a centered satellite photo of {}."])
    x = torch.nn.functional.normalize(torch.randn(5, rows.shape[1]), dim=1)
    with torch.no_grad():
        wanted = model.logits(x.unsqueeze(0), model.anchor("template", n_ctx=0).unsqueeze(0))[0]
    assert torch.allclose(x @ rows.mT, wanted, atol=1e-4)

    assert named.names is not None and knows(named.names, named.train)
    labels = np.arange(240) % 6
    part = Part(np.eye(6)[labels][None], labels)  # one answer, the same for all: chance
    assert not knows(np.eye(6)[:, ::-1].copy(), part)
    assert knows(np.eye(6)[[0, 1, 3, 2, 5, 4]], part)  # two of six classes right: twice chance
    assert not knows(np.eye(6)[[0, 2, 3, 1, 5, 4]], part)


def test_few_images_of_shared_classes_gain_and_many_own_ones_do_not(made: Features) -> None:
    few = cell.measure(made, 8, 6, EVEN, False, 1)
    assert few[cell.TOGETHER]["personal"] > few[cell.ALONE]["personal"] + 10
    own = cell.measure(made, 2, 60, TWO, False, 1)
    assert own[cell.TOGETHER]["personal"] < own[cell.ALONE]["personal"] + 2


def test_table_and_figures_of_cells_that_were_run(
    made: Features, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    rows = [{"set": "EuroSAT", "clients": k, "images": n, "skew": EVEN, "shift": False,
             "seed": s, "numbers": {m: {"personal": v + s, "balanced": v, "worst": v, "hurt": 0.0}
                                    for m, v in {"alone": 50.0, "together": 60.0 + s,
                                                 **dict.fromkeys(cell.METHODS, 60.0)}.items()}}
            for k in (2, 5) for n in (5, 10) for s in (1, 2)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (runs / "eurosat.jsonl").write_text(text + '{"set": "Euro')  # killed while it wrote
    assert read_rows(runs / "eurosat.jsonl") == rows
    assert main(["map", str(tmp_path / "out"), "--runs", str(runs), "--table-only"]) == 0
    table = (tmp_path / "out" / "map.csv").read_text().splitlines()
    assert table[2] == ("EuroSAT,2,5,even,no,together,2,63.00,61.50,61.50,0.00,11.50,0.50,"
                        "11.50,0.50")
    assert {f"{name}.png" for name in FIGURES} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert summarize(rows[:1])[0]["seeds"] == 1
    page = (tmp_path / "out" / "README.md").read_text()
    assert "| all classes evenly | 4 | 4 | 0 | +11.5 | +11.5 (EuroSAT, 2 x 5) |" in page
    assert "EuroSAT (4 cells, 2 draws of each)" in page
    assert "| images a client | 2 clients | 5 clients |" in page
    assert "| 10 | 1 of 1 (+11.5) | 1 of 1 (+11.5) |" in page
    assert "is +0.0 points from the heads of Ditto" in page
    assert "8 draws in" in capsys.readouterr().out
    again = tmp_path / "again"
    again.mkdir()
    (again / "map.csv").write_text("\n".join(table) + "\n")
    assert main(["map", str(again), "--runs", str(tmp_path / "none"), "--table-only"]) == 0
    for path in (tmp_path / "out").iterdir():  # page and figures are made from the table alone
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name
    assert main(["map", str(tmp_path / "no"), "--runs", str(tmp_path), "--table-only"]) == 2
    assert main(["map", str(tmp_path / "out"), "--sets", "EuroSet", "--table-only"]) == 2
    assert "did you mean 'EuroSAT'" in capsys.readouterr().err


def row(name: str, images: int, skew: str, seeds: int, gain: float, error: float) -> dict[str, Any]:
    return {"set": name, "clients": 2, "images": images, "skew": skew, "shift": False,
            "method": "together", "seeds": seeds, "gain": gain, "gain_se": error}


def test_a_gain_counts_by_a_t_interval_pooled_over_skews() -> None:
    """Two draws each of two skews: the pooled interval equals that of all four deviations."""
    draws = {EVEN: (7.0, 9.0), TWO: (1.0, 5.0)}
    rows = [row("EuroSAT", 5, skew, 2, sum(x) / 2, abs(x[0] - x[1]) / 2)
            for skew, x in draws.items()]
    left = np.concatenate([np.array(x) - np.mean(x) for x in draws.values()])
    half = scipy.stats.t.ppf(0.975, 2) * np.sqrt((left**2).sum() / 2) / np.sqrt(2)
    assert pooled_interval([(2, r["gain_se"]) for r in rows], 2) == pytest.approx(half)
    assert 3 < half < 8
    assert sides(rows) == [1, 0] == sides(rows, least=7.9)
    assert sides(rows, least=8.1) == [0, 0]
    assert sides([row("EuroSAT", 5, EVEN, 2, -8.0, 0.1)]) == [-1]
    single = row("EuroSAT", 10, EVEN, 1, 30.0, math.nan)
    assert sides([*rows, single]) == [1, 0, 0]  # one draw, nothing to pool with: undecided


def test_many_draws_have_their_own_variance() -> None:
    """Of ten draws on, a skew whose gains scatter widens no other one's interval."""
    wide, narrow = (row("EuroSAT", 5, skew, 10, 3.0, error) for skew, error in
                    ((TWO, 4.0), (EVEN, 1.0)))
    assert sides([wide, narrow]) == [0, 1]
    assert sides([r | {"seeds": 9} for r in (wide, narrow)]) == [0, 0]  # pooled
    assert cell_interval((10, 1.0), [(10, 4.0)]) == pytest.approx(scipy.stats.t.ppf(0.975, 9))


def test_the_words_compare_cells_that_differ_in_nothing_else() -> None:
    """Two clients have richer cells than a hundred: these are in no comparison of the two."""
    rows = [row("EuroSAT", images, skew, 2, gain, 1.0) | {"clients": clients}
            for clients, images, skew, gain in (
                (2, 5, EVEN, 1.0), (2, 200, EVEN, 50.0), (100, 5, EVEN, 30.0), (100, 5, TWO, 2.0))]
    words = words_of(rows).splitlines()
    assert "+1.0 points in the median with 2 clients, +30.0 with 100 clients (1 pair" in words[4]
    assert "differ in nothing else; 5 images a client, EuroSAT)" in words[4]
    assert "+2.0 points in the median with two classes each, +30.0 with all" in words[5]
    ten = [row("DTD", n, EVEN, 2, 60.0 / n, 1.0) | {"clients": 10} for n in (10, 100)]
    assert "with 10 clients: +6.0 points in the median with 10 images, +0.6 with 100 im" in \
        words_of([*rows, *ten])


def test_the_first_sentence_counts_clients_that_share_classes_and_have_few_images() -> None:
    """Two clients, unlike clients and those with many images are counted apart."""
    def cells(clients: int, images: int, skew: str, gains: tuple[float, ...]) -> list[Row]:
        return [row(f"S{i}", images, skew, 20, gain, 0.1) | {"clients": clients}
                for i, gain in enumerate(gains)]

    yes = cells(5, 25, "0.3", (9.0,) * 20)
    others = [*cells(2, 5, EVEN, (9.0, 0.0)), *cells(2, 5, "0.1", (-3.0,)),
              *cells(10, 50, EVEN, (0.0,)), *cells(5, 5, TWO, (0.0,)),
              *cells(10, 5, "0.1", (0.0,)), *cells(20, 5, TWO, (9.0, -9.0))]
    first, groups = words_of([*yes, *others]).splitlines()[:2]
    assert first == (
        "Yes, if at least 5 clients share classes: linear heads trained to the end are better "
        "together by more than 2 points in 20 of 20 cells of the map with Dirichlet 0.3 or more "
        "alike and at most 25 images each, and in 0 of 1 with more. With two clients: 1 of 3. With "
        "two classes at each client: 1 of 3. With Dirichlet 0.1: 0 of 2.")
    assert groups == (
        "With two clients: 1 of 2 with all classes evenly, 0 of 1 else (worse in 1). With two "
        "classes at each client: 1 of 2 from 20 clients on (worse in 1), 0 of 1 below. With "
        "Dirichlet 0.1: 0 of 1 from 5 clients on, 0 of 1 below (worse in 1).")
    less = words_of([*yes, *cells(5, 10, "1", (0.0, 1.0))])
    assert less.startswith("Mostly yes, if") and "in 20 of 22 cells" in less
    assert words_of(cells(5, 10, "1", (9.0, 0.0))).startswith(
        "It depends: 5 or more clients that share classes are better together by more than 2 "
        "points in 1 of 2 cells")
    counts = words_of([*yes, *others]).splitlines()[3]
    assert counts == ("Together is better than alone by more than 2 points in 22 of them, worse in "
                      "2, undecided or within 2 points in 4.")
    scanners = [one | {"shift": True} for one in cells(5, 10, "0.3", (0.0, 0.0, 0.0, 9.0, 9.0))]
    assert "The smallest share: 5 clients, five scanners, Dirichlet 0.3: 2 of 5. With two" in \
        words_of([*yes, *scanners, *others])
    one = words_of([*yes, *cells(2, 10, "1", (9.0,))]).splitlines()
    assert one[0].endswith("25 images each. With two clients: 1 of 1.")
    assert one[1] == "With two clients: 1 of 1 with Dirichlet 1."


def test_the_mean_figure_has_the_sets_with_nearly_all_cells_only() -> None:
    """A set with a tenth of the cells moves no number of it, and is hatched in its own panels."""
    def filled(name: str, sizes: tuple[int, ...], gain: float) -> list[Row]:
        return [row(name, n, EVEN, 20, gain, 0.1) | {"balanced_gain": 1.0} for n in sizes]

    sizes = (5, 10, 25, 50)
    rows = [*filled("EuroSAT", sizes, 10.0), *filled("DescribableTextures", sizes[:3], 20.0),
            *filled("CIFAR10", sizes[:1], 90.0)]
    assert whole_sets(rows) == ["EuroSAT", "DescribableTextures"]

    def numbers(figure: Figure) -> list[str]:
        return [t.get_text() for axes in figure.axes for t in axes.texts]

    drawn = numbers(figure_of_all(rows))
    assert sorted(t for t in drawn if t.startswith("+") and "\n" not in t) == [
        "+10*", "+15", "+15", "+15"]
    assert "mean of EuroSAT and DTD" in " ".join(drawn)
    hatched = [sum(p.get_hatch() is not None for p in axes.patches)
               for axes in figure_of(rows, "gain").axes]
    assert sum(hatched[:10]) == 0 and hatched[10:15] == [3] * 5


def test_images_dealt_as_runs_deal_them(made: Features) -> None:
    held = as_runs(made, EVEN, 1)
    assert sum(len(one.train) for one in held) == 96  # 16 shots of each of 6 classes
    assert all(one.shares.sum() == pytest.approx(1) for one in held)
    assert lacking(made, held) < lacking(made, deal(made, 10, 10, EVEN, False, 1))
    two = as_runs(made, TWO, 1)
    assert all(np.bincount(made.train.labels[one.train]).max() == 5 for one in two)


def test_of_equal_strengths_the_one_with_the_least_loss(made: Features) -> None:
    """As in runs; for some clients the strongest of them is another one."""
    one = cell.Cell(made, deal(made, 8, 8, EVEN, True, 1))
    found = h.alone_heads(one.unit, 6)
    alone, first = one.alone(), []
    for k, client in enumerate(one.held):
        x = torch.nn.functional.normalize(
            torch.from_numpy(made.val.features[client.domain][client.val]), dim=1)
        y = torch.from_numpy(made.val.labels[client.val])
        keys = []
        for heads in found:
            logits = heads.one(k).logits(x)[0]
            loss = torch.nn.functional.nll_loss(logits.log_softmax(1).clamp(min=-50), y)
            keys.append((int((logits.argmax(1) == y).sum()), -float(loss)))
        best = keys.index(max(keys))
        first.append(best == [right for right, _ in keys].index(max(keys)[0]))
        assert float(alone.clients[k]) == float(one.score(found[best].one(k), True).clients[k])
    assert 0 < sum(first) < 8


def test_what_the_rules_of_runs_change_is_computed() -> None:
    rows = [dict(zip(COLUMNS, (name, EVEN, way, 4.0, lack, alone, both), strict=True))
            for name, more in (("EuroSAT", 0.0), ("DescribableTextures", 2.0))
            for way, lack, alone, both in (("drawn", 3.5, 28.0 + more, 74.0),
                                           ("as runs", 2.0, 40.0 + more, 75.0))]
    words = dealing_words(rows)
    assert "(mean of EuroSAT and DTD, 4 draws of each)" in words
    assert "| all classes evenly | 3.5, 2.0 | 29.0 | 41.0 | +45.0 | +34.0 |" in words
    assert words.endswith("Dealt as in runs the gain is 11.0 to 11.0 points smaller.")
    assert dealing_line(rows).endswith("10 such clients gain +34.0 instead of +45.0.")
    assert dealing_words([]) == dealing_line([]) == ""
    plain = [row("EuroSAT", 5, EVEN, 2, 1.0, 1.0)]
    assert words_of(plain, rows).splitlines()[-1] == dealing_line(rows)


def test_the_table_counts_as_the_first_sentences_do() -> None:
    """Both pool a draw's variance over skews: a skew alone has too few draws for its interval."""
    loose = row("EuroSAT", 5, TWO, 2, -5.0, 1.0)
    rows = [row("EuroSAT", 5, EVEN, 2, 9.0, 1.0), row("EuroSAT", 5, "0.1", 2, 7.0, 0.9), loose]
    assert sides([loose]) == [0] and sides(rows) == [1, 1, -1]
    filled = [r | {"set": name, "method": method, "balanced_gain": 1.0, "hurt": 0.0,
                   "personal": 60.0, "balanced": 60.0}
              for name in ("EuroSAT", "DTD") for r in rows
              for method in ("together", "ridge+shares", "personal")]
    page, words = page_of(filled), words_of(filled)
    cells = [line.split(" | ") for line in page.splitlines() if line.startswith(
        ("| all classes evenly |", "| Dirichlet", "| two classes each |"))]
    better, worse = (sum(int(line[k]) for line in cells if line[1].isdigit()) for k in (2, 3))
    assert (better, worse) == (4, 2)
    assert f"in {better} of them, worse in {worse}, undecided" in words


def test_new_rows_of_a_set_replace_its_old_ones() -> None:
    old = [row("EuroSAT", 5, EVEN, 2, 1.0, 1.0), row("CIFAR10", 5, EVEN, 2, 1.0, 1.0)]
    new = [row("Caltech101", 5, EVEN, 2, 2.0, 1.0), row("EuroSAT", 10, EVEN, 2, 2.0, 1.0)]
    assert join_tables(new, old) == [new[1], new[0], old[1]]


def test_a_set_without_validation_images_gives_some_of_each_class(made: Features) -> None:
    train, val = set_aside(made.train)
    assert (np.bincount(val.labels) == 11).all() and (np.bincount(train.labels) == 29).all()
    both = np.concatenate([train.features, val.features], axis=1)
    assert len(np.unique(both[0], axis=0)) == len(made.train.labels)
    assert (set_aside(made.train)[1].features == val.features).all()


def test_the_published_page_is_made_of_its_table() -> None:
    folder = Path(__file__).parents[4] / "docs" / "results" / "map"
    rows, dealt = read_table(folder / "map.csv"), read_dealt(folder)
    assert (folder / "README.md").read_text() == page_of(rows, dealt)
    assert (folder / "words.txt").read_text() == words_of(rows, dealt) + "\n"


def test_a_cell_without_enough_images_of_its_classes_is_empty(made: Features) -> None:
    assert deal(made, 2, 100, TWO, False, 1) == []  # 40 images a class
    assert cell.measure(made, 2, 100, TWO, False, 1) == {}
    assert len(deal(made, 2, 100, EVEN, False, 1)) == 2


def test_cells_have_room_in_the_set() -> None:
    keys = list(keys_of("Caltech101", 250, 2))
    assert max(k[0] * k[1] for k in keys) == 250
    assert max(k[0] * k[1] for k in keys_of("Caltech101", 5000, 1)) == MOST
    assert not any(shift for _, _, _, shift, _ in keys)
    assert [k[-1] for k in keys] == sorted(k[-1] for k in keys)


def test_accuracy_by_class_shares_is_accuracy_on_images_in_these_shares() -> None:
    head = h.Heads(torch.zeros(1, CLASSES, WIDTH + 1, dtype=torch.float64),
                   torch.ones(1, CLASSES, dtype=torch.bool))
    head.weights[0, :, :CLASSES] = torch.eye(CLASSES)
    one = make(40, (0, 1, 2), 4)
    found = cell.recalls(head, one.x, one.y)
    right = head.logits(one.x)[0].argmax(1) == one.y
    assert found[0, 3].isnan()
    for c in range(3):
        assert float(found[0, c]) == pytest.approx(float(right[one.y == c].double().mean()))
    assert float(cell.by_shares(found, one.shares(CLASSES)[None])) == pytest.approx(
        float(right.double().mean()))
    assert float(cell.by_classes(found)) == pytest.approx(float(found[0, :3].mean()))
    two = torch.tensor([[0.5, 0.0, 0.0, 0.5], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    assert cell.by_shares(found, two).tolist() == pytest.approx(found[0, :2].tolist())
