"""What stands beside a metric: spent and gained, differences to a method; rows in an order."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import collect
from fedvlm.report.tables.papers import paper_of
from fedvlm.report.tables.table import ReportTable, Spec, tables
from tests.report.table_runs import rows, write_run, write_seeds

SETS = ("Cifar100", "DTD", "Pets")


def made(root: Path, **spec: Any) -> list[ReportTable]:
    return tables(collect([root]), Spec(**spec), "fedvlm table x")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg; B above it by 1, 2, 6 on average; C below by 10 everywhere; D with one set."""
    root = tmp_path_factory.mktemp("beside")
    for at, (name, gain) in enumerate(zip(SETS, (1.0, 2.0, 6.0), strict=True)):
        base = [50.0 + at, 60.0 + at]
        info = {"totals": {"local_steps": 100 * (at + 1), "bytes_up": 1, "bytes_down": 1}}
        write_seeds(root, "FedAvg", base, name, info=info, peft="prompt")
        write_seeds(root, "B", [base[0] + gain - 0.5, base[1] + gain + 0.5], name, info=info)
        write_seeds(root, "C", [x - 10 for x in base], name, info=info)
    write_seeds(root, "D", [99.0, 99.0], "DTD")
    return root


def test_differences_to_a_method_have_their_interval_over_data_sets(runs: Path) -> None:
    main, apart = made(runs, versus="fedavg")
    assert main.columns == (*SETS, "average", "minus FedAvg [prompt], these sets [95 %]",
                            "a new set", "+/=/-")
    text = dict(zip(main.rows, ([c.text for c in line[-3:]] for line in main.cells), strict=True))
    half = t.ppf(0.975, 3) * math.sqrt(0.5 / 2 / 3)  # three sets of 0.5 +- g: variance 1/2 of 1 df
    assert text["B"] == [f"+3.0 [{3 - half:+.1f}, {3 + half:+.1f}]", "+1.0 to +6.0", "3/0/0"]
    assert text["C"] == ["-10.0", "-10.0 to -10.0", "0/0/3"]  # all the same: no interval
    assert text["FedAvg [prompt]"] == ["-"] * 3 and text["D"][2] == "1/0/0"
    assert apart.rows == ("B", "C", "D")
    assert apart.columns == (*SETS, "these sets", "a new set", "+/=/-", "detectable", "p (Holm)")
    first = [c.text for c in apart.cells[0]]
    half = t.ppf(0.975, 1) * 0.5
    assert first[0] == f"+1.0 [{1 - half:+.1f}, {1 + half:+.1f}]" and first[-1] == "0.004"
    assert apart.caption.startswith("personal minus that of FedAvg [prompt], in pairs of one seed")
    for words in ("exactly these data sets (variance of seeds, Satt", "no sample of hospitals",
                  "fewer than 4 independent",
                  "Seeds: 2; a claim needs 10.", "seeds alone", "Made by: fedvlm table x."):
        assert words in apart.caption


def test_four_sources_predict_a_fifth_and_parts_of_one_do_not(tmp_path: Path) -> None:
    for at, name in enumerate(("Cifar10", "Cifar100", "DTD", "EuroSAT", "Pets")):
        write_seeds(tmp_path, "A", [50.0, 60.0], name)
        write_seeds(tmp_path, "B", [51.0 + at, 60.5 + at], name)
    main, apart = made(tmp_path, versus="A")
    (there,) = (line[-2].text for row, line in zip(main.rows, main.cells, strict=True)
                if row == "B")
    # of 0.75 + (0.5, 2, 3, 4): the two CIFAR sets are one source
    effects = [1.25, 2.75, 3.75, 4.75]
    half = t.ppf(0.975, 3) * math.sqrt(sum((e - 3.125) ** 2 for e in effects) / 3 * 1.25)
    assert there == f"[{3.125 - half:+.1f}, {3.125 + half:+.1f}]"
    assert "from 4 independent sources" in apart.caption
    narrow, _ = made(tmp_path, versus="A", exclude=(("dataset", "Pets"),))
    assert narrow.cells[1][-2].text == "+0.8 to +3.8"


def test_columns_beside_are_means_over_the_data_sets(runs: Path) -> None:
    (found,) = made(runs, columns=("steps", "totals.bytes_up"))
    assert found.columns[-2:] == ("steps", "up (MB)")
    assert [c.text for c in found.cells[0][-2:]] == ["200", "0.00"]
    assert found.cells[0][-2].spread(False) == ""  # counted, and equal in all seeds
    assert "local steps of all clients" in found.caption


@pytest.mark.parametrize(("spec", "said"), [
    ({"versus": "FedAvgg"}, "did you mean 'FedAvg"),
    ({"columns": ("gian",)}, "--columns gian.*did you mean 'gain'"),
    ({"order": ("B", "Q")}, "--order Q: the table has no such method"),
    ({"versus": "B", "cols": ("metric",)}, "--versus needs trainer"),
    ({"columns": ("gain",), "rows": ("dataset",), "cols": ("trainer",)}, "--columns needs"),
])
def test_unknown_words_are_refused(runs: Path, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(runs, **spec)


def test_rows_in_an_order(runs: Path) -> None:
    assert made(runs)[0].rows == ("B", "C", "D", "FedAvg [prompt]")
    assert made(runs, order=("best",))[0].rows == ("B", "FedAvg [prompt]", "C", "D")
    assert made(runs, order=("C", "fedavg"))[0].rows == ("C", "FedAvg [prompt]", "B", "D")


def test_paper_names_and_groups(runs: Path) -> None:
    papers = {
        "FedAvg": paper_of("FedAvg: mean.\n\nShared: all\nPersonal: none\n", "FedAvg"),
        "B": paper_of("B-Net: x.\n\nShared: body\nPersonal: the head\n", "B"),
        "C": paper_of("C: alone.\n\nShared: none\nPersonal: all\n", "C"),
    }
    papers |= {p.title: p for p in papers.values()}
    (found,) = made(runs, papers=papers, names=True)
    assert found.rows == ("D", "C", "FedAvg", "B-Net")
    assert found.groups == ("", "no collaboration", "one shared model", "personal models")
    assert found.columns[0] == "CIFAR-100" and found.methods[3] == "B-Net"


def test_columns_that_are_no_data_sets_are_not_pooled(tmp_path: Path) -> None:
    for each in (1, 4, 16):
        write_seeds(tmp_path, "A", [50.0, 60.0], shots=each)
        write_seeds(tmp_path, "B", [51.0, 63.0 + each], shots=each)
    main, apart = made(tmp_path, cols=("shots",), versus="A")
    assert main.columns == apart.columns == ("shots 1", "shots 4", "shots 16")
    assert apart.rows == ("B",) and "nothing is pooled" in apart.caption
    assert "(Student's t)" in apart.caption and "seeds alone" in apart.caption
    assert "detectable" not in apart.brief
    half = t.ppf(0.975, 1) * 1.5  # of 1 and 4
    assert apart.cells[0][0].text == f"+2.5 [{2.5 - half:+.1f}, {2.5 + half:+.1f}]"


def test_a_caption_names_test_images_where_intervals_hold_them(tmp_path: Path) -> None:
    for each, (name, right) in itertools.product((1, 4), (("A", 50), ("B", 60))):
        for seed in (1, 2):
            clients = rows(right + seed, right, n=100)
            last = {"personal": right + seed / 2, "clients": clients}
            write_run(tmp_path, name, seed=seed, last=last, shots=each)
    _, apart = made(tmp_path, cols=("shots",), versus="A")
    assert "variance of seeds and test images, Satterthwaite's" in apart.caption
    assert "Student's t" not in apart.caption and "Seeds: 2; a claim" in apart.caption


def test_these_sets_name_test_images_where_a_set_has_them(tmp_path: Path) -> None:
    for name, (method, right) in itertools.product(SETS, (("A", 50), ("B", 60))):
        for seed in (1, 2):
            last = {"personal": right + seed / 2, "clients": rows(right + seed, right, n=100)}
            write_run(tmp_path, method, name, seed, last)
    _, apart = made(tmp_path, versus="A")
    assert "exactly these data sets (variance of seeds and test images, Satt" in apart.caption


def test_short_words_of_columns_are_metrics(tmp_path: Path) -> None:
    write_seeds(tmp_path, "A", [50.0, 60.0], info={"totals": {"bytes_up": 3_000_000}})
    (found,) = made(tmp_path, cols=("metric",), metrics=("personal", "up"), columns=())
    assert found.cells[0][1].metric == "totals.bytes_up"
