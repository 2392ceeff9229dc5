"""Tables of runs: numbers, marks, averages, rows and columns, caption."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import collect
from fedvlm.report.tables.cells import (
    BEST,
    H_OF_AVERAGES,
    MEAN_OF_H,
    PEER,
    TableCell,
    harmonic,
)
from fedvlm.report.tables.table import ReportTable, Spec, tables
from tests.report.table_runs import reference, write_run, write_seeds


def table(root: Path, **spec: Any) -> ReportTable:
    (found,) = tables(collect([root]), Spec(**spec), "fedvlm table x")
    return found


def cell(found: ReportTable, row: str, column: str) -> TableCell:
    return found.cells[found.rows.index(row)][found.columns.index(column)]


def test_mean_sample_std_and_t_interval_over_seeds(tmp_path: Path):
    write_seeds(tmp_path, "A", [81.2, 82.0, 80.5])
    one = cell(table(tmp_path, ci=True), "A", "Pets")
    assert (one.n, one.text) == (3, "81.2")
    assert one.mean == pytest.approx((81.2 + 82.0 + 80.5) / 3)
    deviations = [v - one.mean for v in (81.2, 82.0, 80.5)]
    assert one.std == pytest.approx(math.sqrt(sum(d * d for d in deviations) / 2))
    # t(0.975, 2) = 4.302652...
    assert one.ci == pytest.approx(4.30265273 * one.std / math.sqrt(3), rel=1e-6)
    assert one.spread(ci=False) == "0.8" and one.spread(ci=True) == "1.9"


def test_a_tag_loses_what_a_column_says(tmp_path: Path):
    for lr in (0.001, 1e-5):
        for mu in (0.5, 0.9):
            write_run(tmp_path, "A", tag=f"ft-momentum{mu}-lr{'1e-3' if lr == 0.001 else lr}",
                      last={"personal": 50.0 + mu}, config={"OPTIM.LR": lr, "OPTIM.MOMENTUM": mu})
    for rows in (("trainer",), ("TRAINER.NAME",)):
        found = table(tmp_path, rows=rows, cols=("OPTIM.LR",))
        assert found.rows == ("A (ft-momentum0.5)", "A (ft-momentum0.9)")
        assert found.columns == ("OPTIM.LR 1e-05", "OPTIM.LR 0.001")
        assert all(one.n == 1 for line in found.cells for one in line)
    both = table(tmp_path, rows=("trainer", "OPTIM.MOMENTUM"), cols=("OPTIM.LR",))
    assert both.rows == ("A (ft) / OPTIM.MOMENTUM 0.5", "A (ft) / OPTIM.MOMENTUM 0.9")
    assert len(table(tmp_path, cols=("rounds",)).rows) == 4  # of which the tag says nothing


def test_of_other_metrics_only_rows_with_numbers_stand(tmp_path: Path):
    held = {"references": {"chance": reference("alone", 1, 1)}}
    write_run(tmp_path, "A", last={"personal": 60.0, "base_all": 50.0, "new": 40.0,
                                  "hm2": 44.4}, sections=held)
    shown: dict[str, Any] = {"metrics": ("base_all", "new", "hm2"), "cols": ("metric",),
                             "reference": ("alone",)}
    found = table(tmp_path, **shown, names=True, symbols=True)
    assert found.rows == ("A",) and found.columns == ("Base", "New", "H")
    assert found.brief.startswith("Accuracy on all base classes, accuracy on unseen classes, "
                                  "harmonic mean of both (%)")
    assert table(tmp_path, **shown).columns == ("base_all", "new", "hm2")
    assert len(table(tmp_path, reference=("alone",)).rows) == 2


def test_one_seed_has_no_spread(tmp_path: Path):
    write_seeds(tmp_path, "A", [50.0])
    found = table(tmp_path)
    assert cell(found, "A", "Pets").spread(ci=False) == ""
    assert "no spread" in found.caption


def test_bold_is_what_the_pairs_tell_apart_and_not_what_is_highest(tmp_path: Path):
    """Spreads over seeds are the partitions'; B and C lose to A by the same in every one."""
    for trainer, values in {"A": [60.0, 70.0, 80.0], "B": [59.0, 69.1, 79.0],
                            "C": [50.0, 60.1, 70.0]}.items():
        write_seeds(tmp_path, trainer, values)
    found = table(tmp_path)
    assert [line[0].rank for line in found.cells] == [BEST, 0, 0]
    assert "Bold: significantly different from every other method" in found.caption
    write_seeds(tmp_path, "D", [58.0, 72.0, 79.0])
    found = table(tmp_path)
    assert [line[0].rank for line in found.cells] == [PEER, 0, 0, PEER]
    assert "underlined: the best and those not significantly different from it" in found.caption
    assert "bold" not in found.brief
    assert "underlined: not significantly different from the best (95% in" in found.brief


def test_nothing_is_bold_where_nobody_is_told_apart_or_seeds_lack(tmp_path: Path):
    write_seeds(tmp_path, "A", [90.0])
    write_seeds(tmp_path, "B", [10.0])
    found = table(tmp_path)
    assert [line[0].rank for line in found.cells] == [0, 0]
    assert "one seed allows no test" in found.caption
    write_seeds(tmp_path / "more", "C", [50.0, 60.0, 70.0])
    write_seeds(tmp_path / "more", "D", [51.0, 59.0, 70.5])
    more = table(tmp_path)
    assert [line[0].rank for line in more.cells] == [0, 0, 0, 0]  # A has more, of one seed
    assert "Nothing is bold: no method differs significantly" in more.caption


def test_lower_is_better_for_costs_and_equal_figures_get_no_mark(tmp_path: Path):
    for trainer, sent in {"A": 3_000_000, "B": 1_000_000}.items():
        totals = {"bytes_up": sent, "seconds": 1.0, "local_steps": 4}
        write_seeds(tmp_path, trainer, [50.0, 50.0], info={"totals": totals})
    found = table(tmp_path, cols=("metric",), metrics=("personal", "totals.bytes_up"))
    assert found.columns == ("personal", "totals.bytes_up (MB)")
    assert [c.text for c in found.cells[1]] == ["50.0", "1.00"]
    assert [[c.rank for c in line] for line in found.cells] == [[0, 0], [0, BEST]]


def test_traffic_and_seconds_per_round(tmp_path: Path):
    totals = {"bytes_up": 3000, "bytes_down": 1000, "client_rounds": 8, "seconds": 5.0,
              "rounds": 4, "local_steps": 9}
    names = ("kb_per_client_round", "seconds_per_round")
    write_seeds(tmp_path, "A", [50.0], info={"totals": totals})
    write_seeds(tmp_path, "B", [50.0], info={"totals": totals | {"client_rounds": 0}})
    write_seeds(tmp_path, "C", [50.0], info={"totals": totals | {"bytes_up": None}})
    found = table(tmp_path, cols=("metric",), metrics=names)
    assert found.columns == ("kb_per_client_round (kB)", "seconds_per_round (s)")
    assert [[c.text for c in line] for line in found.cells] == [
        ["0.5", "1.25"], ["-", "1.25"], ["-", "1.25"],  # (3000 + 1000) / 8 bytes; 5 s / 4
    ]


def test_memory_of_runs_that_say_it(tmp_path: Path):
    write_seeds(tmp_path, "A", [50.0, 52.0], info={"peak_mib": {"resident": 700.4, "gpu": 80.0}})
    write_seeds(tmp_path, "B", [50.0, 52.0], info={"peak_mib": {"resident": 300.6}})
    write_seeds(tmp_path, "C", [50.0, 52.0])
    write_seeds(tmp_path, "D", [50.0, 52.0], info={"peak_mib": 700.4})  # of a careless hand
    found = table(tmp_path, cols=("metric",), metrics=("memory", "gpu_memory"))
    assert found.columns == ("peak_mib.resident (MiB)", "peak_mib.gpu (MiB)")
    assert [[c.mean for c in line] for line in found.cells] == [
        [700.4, 80.0], [300.6, None], [None, None], [None, None]]


def test_methods_as_columns_compete_within_a_row(tmp_path: Path):
    for trainer, (pets, dtd) in {"A": (90.0, 40.0), "B": (80.0, 50.0)}.items():
        apart = 0.1 if trainer == "A" else 0.0
        write_seeds(tmp_path, trainer, [pets, pets + apart])
        write_seeds(tmp_path, trainer, [dtd, dtd + apart], "DTD")
    found = table(tmp_path, rows=("dataset",), cols=("trainer",))
    assert found.rows == ("DTD", "Pets", "average")
    assert [[c.rank for c in line] for line in found.cells] == [[0, BEST], [BEST, 0], [0, 0]]


def test_fewer_seeds_are_marked_and_missing_cells_spoil_the_average(tmp_path: Path):
    write_seeds(tmp_path, "A", [70.0, 80.0])
    write_seeds(tmp_path, "A", [30.0], "DTD")
    write_seeds(tmp_path, "B", [60.0, 62.0])
    found = table(tmp_path)
    assert cell(found, "A", "DTD").suffix == " (n=1)†"
    assert cell(found, "A", "Pets").suffix == ""
    assert cell(found, "A", "average").text == "52.5"  # (75 + 30) / 2: of the cells' means
    assert cell(found, "A", "average").fewer
    assert cell(found, "B", "DTD").text == cell(found, "B", "average").text == "-"
    notes = " ".join(found.notes)
    assert "† fewer than 2 seeds, so not marked: A / DTD n = 1" in notes
    assert "only for rows with all data sets" in notes


def test_both_averages_of_a_harmonic_mean_are_there_and_named(tmp_path: Path):
    """H of the averages (80 and 40: 53.3) is CoOp's, the mean of the sets' H the federated ones'.

    The published averages of MaPLe's README are H of its averages: H(82.28, 75.14) = 78.55.
    """
    for dataset, base, new in (("Pets", 90.0, 60.0), ("DTD", 70.0, 20.0)):
        h = 2 * base * new / (base + new)
        write_run(tmp_path, "A", dataset, last={"hm2": h, "base_all": base, "new": new})
    found = table(tmp_path, rows=("dataset",), cols=("metric",), metrics=("base_all", "hm2"))
    assert found.rows[-2:] == (H_OF_AVERAGES, MEAN_OF_H)
    assert [cell(found, row, "hm2").text for row in found.rows[-2:]] == ["53.3", "51.6"]
    assert [cell(found, row, "base_all").text for row in found.rows[-2:]] == ["80.0", "80.0"]
    assert all(c.rank == 0 for line in found.cells for c in line)  # data sets are no rivals
    wide = table(tmp_path, metrics=("hm2",))
    assert wide.columns[-2:] == (H_OF_AVERAGES, MEAN_OF_H)
    assert [c.text for c in wide.cells[0][-2:]] == ["53.3", "51.6"] and "twice" in wide.caption
    assert harmonic([82.28, 75.14]) == pytest.approx(78.55, abs=0.005)


def test_the_average_has_the_spread_of_its_seeds(tmp_path: Path):
    write_seeds(tmp_path, "A", [50.0, 54.0, 99.0])
    write_seeds(tmp_path, "A", [20.0, 28.0], "DTD")
    found = table(tmp_path, where=(("seed", "1"), ("seed", "2")))
    assert cell(found, "A", "average").text == "38.0"
    assert cell(found, "A", "average").std == pytest.approx(18**0.5)  # of 35 and 41


def test_several_metrics_without_an_axis_make_several_tables(tmp_path: Path):
    write_run(tmp_path, "A", last={"personal": 50.0, "global": 40.0})
    found = tables(collect([tmp_path]), Spec(metrics=("personal", "global")))
    assert [t.metrics for t in found] == [("personal",), ("global",)]
    assert [t.cells[0][0].text for t in found] == ["50.0", "40.0"]


def test_rows_by_numbers_are_in_their_order(tmp_path: Path):
    for shots in (16, 2, -1, 4):
        write_run(tmp_path, "A", last={"personal": 50.0}, shots=shots, data_digest=f"{shots}")
    found = table(tmp_path, rows=("shots",))
    assert found.rows == ("shots 2", "shots 4", "shots 16", "all shots")
    assert "method A" in found.caption and "16 shots" not in found.caption


def test_trainable_set_and_tag_are_part_of_the_method_unless_they_are_an_axis(tmp_path: Path):
    for tag in ("", "low"):
        write_run(tmp_path, "A", last={"personal": 50.0}, tag=tag, peft="prompt")
    assert table(tmp_path).rows == ("A [prompt]", "A [prompt] (low)")
    apart = table(tmp_path, rows=("trainer",), cols=("tag",))
    assert (apart.rows, apart.columns) == (("A [prompt]",), ("low", "none"))


def test_config_keys_can_be_an_axis_and_a_filter(tmp_path: Path):
    for lr in (0.1, 0.01):
        write_run(tmp_path, "A", last={"personal": 100 * lr}, config={"OPTIM.LR": lr})
    found = table(tmp_path, rows=("OPTIM.LR",))
    assert found.rows == ("OPTIM.LR 0.01", "OPTIM.LR 0.1")
    kept = table(tmp_path, where=(("OPTIM.LR", "0.1"),))
    assert cell(kept, "A", "Pets").mean == pytest.approx(10.0)


def test_rounds_to_an_accuracy(tmp_path: Path):
    for seed, curve in {1: (10.0, 60.0, 75.0), 2: (10.0, 72.0, 74.0)}.items():
        write_run(tmp_path, "A", seed=seed, last={"personal": curve[-1]}, curve=curve)
    names = ("rounds_to:70", "rounds_to:75", "rounds_to:99")
    found = table(tmp_path, cols=("metric",), metrics=names)
    assert [c.text + c.suffix for c in found.cells[0]] == ["1.5", "- (1/2)", "- (0/2)"]
    assert any("only a of b seeds" in note for note in found.notes)
    (next(tmp_path.rglob("metrics.jsonl"))).unlink()
    again = table(tmp_path, metrics=("rounds_to:70",))
    assert any("metrics.jsonl is missing or empty" in note for note in again.notes)


def test_reference_rows_count_each_seed_once(tmp_path: Path):
    for trainer in ("A", "B"):
        for seed in (1, 2):
            sections = {"zero_shot": {"personal": 60.0 + seed}, "untrained": {"personal": 50.0}}
            write_run(tmp_path, trainer, seed=seed, last={"personal": 80.0}, sections=sections)
    found = table(tmp_path, reference=("zero-shot", "untrained"))
    assert found.rows == ("zero-shot", "A", "A, untrained", "B", "B, untrained")
    assert (cell(found, "zero-shot", "Pets").n, cell(found, "zero-shot", "Pets").mean) == (2, 61.5)
    named = table(tmp_path, metrics=("zero_shot.personal",))
    assert cell(named, "A", "Pets").mean == 61.5 and "of the zero-shot model" in named.caption
    with pytest.raises(ConfigError, match="needs trainer"):
        table(tmp_path, rows=("backbone",), reference=("zero-shot",))


def test_extra_data_is_marked(tmp_path: Path):
    write_run(tmp_path, "A", last={"personal": 50.0}, extra_data="a proxy split")
    write_run(tmp_path, "B", last={"personal": 50.0})
    found = table(tmp_path)
    assert found.rows == ("A*", "B")
    assert "* extra data (A): a proxy split" in found.notes


def test_runs_with_other_images_of_the_server_are_not_mixed(tmp_path: Path):
    """Runs of before the key held none out; a proxy is the method's own affair."""
    write_run(tmp_path, "Old", last={"personal": 50.0})
    write_run(tmp_path, "A", last={"personal": 50.0}, server_holdout=0, proxy="")
    write_run(tmp_path, "B", last={"personal": 50.0}, server_holdout=0, proxy="folder:x")
    found = table(tmp_path)
    assert found.rows == ("A", "B", "Old") and "per class with the server" not in found.caption
    assert not any("server_holdout" in note for note in found.notes)
    write_run(tmp_path, "C", last={"personal": 50.0}, server_holdout=2, proxy="holdout",
              data_digest="c" * 64, partition="disjoint-server2-K10-f1")
    with pytest.raises(ConfigError, match=r"cannot share a table: server_holdout is 0 in .* and 2"):
        table(tmp_path)
    mixed = table(tmp_path, mixed=("server_holdout",))
    assert "server_holdout (0, 2)" in mixed.caption
    alone = table(tmp_path, where=(("server_holdout", "2"),))
    assert "2 image(s) per class with the server, not with clients" in alone.caption


@pytest.mark.parametrize(("key", "words"), [
    ("cohort", "personal models of a cohort of 5 clients"),
    ("unseen_clients", "5 client(s) that never work"),
])
def test_runs_with_other_clients_behind_the_mean_are_not_mixed(
    tmp_path: Path, key: str, words: str
):
    write_run(tmp_path, "Old", last={"personal": 50.0})
    write_run(tmp_path, "A", last={"personal": 50.0}, **{key: 0})
    found = table(tmp_path)
    assert found.rows == ("A", "Old") and "client(s) that" not in found.caption
    assert "cohort" not in found.caption and not any(key in note for note in found.notes)
    write_run(tmp_path, "B", last={"personal": 50.0, "unseen_clients": 40.0}, **{key: 5})
    with pytest.raises(ConfigError, match=rf"cannot share a table: {key} is 0 in .* and 5"):
        table(tmp_path)
    assert f"{key} (0, 5)" in table(tmp_path, mixed=(key,)).caption
    both = ("personal", "unseen_clients")
    alone = table(tmp_path, where=((key, "5"),), cols=("metric",), metrics=both)
    assert words in alone.caption and "clients that never worked, personalised" in alone.caption


def test_caption_names_protocol_digests_and_command(tmp_path: Path):
    write_seeds(tmp_path, "A", [50.0, 52.0])
    digest = collect([tmp_path]).runs[0].protocol["data_digest"]
    words = table(tmp_path).caption
    for part in (
        "personal: each client's own model", "n = 2 seeds (seeds 1, 2)", "setting personal",
        "partition disjoint-K10-f1", "16 shots", "K = 1 training view", "2 rounds",
        "tiny (embedded, digest bbbbbbbb)", "Last round", digest[:8],
        "not comparable with papers", "Made by: fedvlm table x",
    ):
        assert part.lower() in words.lower(), part


def test_rounded_activations_are_told(tmp_path: Path):
    for name, notes in (("A", ["tokens; kept in bf16 (BANK.PREC): not the numbers"]), ("B", [])):
        write_run(tmp_path, name, last={"personal": 50.0}, info={"notes": notes})
    assert ("activations of frozen blocks kept in bf16 (BANK.PREC), so numbers differ from full "
            "precision: A.") in table(tmp_path).caption.replace("Activations", "activations")


def test_unpaired_seeds_are_told(tmp_path: Path):
    write_run(tmp_path, "A", seed=1, last={"personal": 50.0})
    write_run(tmp_path, "B", seed=2, last={"personal": 50.0})
    assert any("cells have different seeds" in note for note in table(tmp_path).notes)


@pytest.mark.parametrize("axis", ["trainer", "dataset"])
def test_unpaired_seeds_are_told_beside_references_too(tmp_path: Path, axis: str):
    """The references have both methods' seeds, more than each of these."""
    held = {"references": {"afl": reference("together", 1, 1)}}
    for seed, trainer in enumerate("AABB"):
        write_run(tmp_path, trainer, seed=seed, last={"personal": 50.0}, sections=held)
    cols = "dataset" if axis == "trainer" else "trainer"
    found = table(tmp_path, rows=(axis,), cols=(cols,), reference=("together",))
    assert any("cells have different seeds" in note for note in found.notes)
    said = "no common seeds to pair, so not marked: Pets"
    assert said in found.notes


def test_targets_and_held_out_domains(tmp_path: Path):
    last = {"personal": 50.0, "targets": 35.0, "target.DTD": 30.0, "target.Food101": 40.0}
    write_run(tmp_path / "xd", "A", last=last, sections={"zero_shot": {"target.DTD": 20.0}})
    found = table(tmp_path / "xd", cols=("metric",), metrics=("target.*", "targets"),
                  reference=("zero-shot",))
    assert found.columns == ("target.DTD", "target.Food101", "targets")
    assert [[c.text for c in line] for line in found.cells] == [
        ["20.0", "-", "-"], ["30.0", "40.0", "35.0"],
    ]
    for domain, value in {"red": 60.0, "blue": 80.0}.items():
        write_run(tmp_path / "dg", "A", last={"unseen": value}, held_out=domain,
                  partition=f"domain-{domain}", data_digest=domain)
    left_out = table(tmp_path / "dg", cols=("held_out",), metrics=("unseen",))
    other = table(tmp_path / "dg", cols=("held_out",), metrics=("trainable",))
    hint = "the accuracy on them is unseen (--metric unseen), and not in this table"
    assert hint in other.caption and hint not in left_out.caption
    assert left_out.columns == ("blue", "red", "average")
    assert [c.text for c in left_out.cells[0]] == ["80.0", "60.0", "70.0"]


def test_a_run_of_an_older_version_lacks_a_key_and_that_is_told(tmp_path: Path):
    write_run(tmp_path, "A", last={"personal": 50.0})
    write_run(tmp_path, "B", last={"personal": 60.0}, batch_size=32)
    assert any("1 run(s) do not record batch_size" in note for note in table(tmp_path).notes)


def test_a_missing_first_cell_does_not_turn_the_order(tmp_path: Path):
    for trainer, seconds in {"B": 9.0, "C": 1.0}.items():
        for seed in (1, 2):
            totals = {"seconds": seconds * (1 + 0.01 * seed), "local_steps": 4}
            write_run(tmp_path, trainer, "DTD", seed, {"personal": 50.0},
                      info={"totals": totals})
    write_seeds(tmp_path, "A", [50.0, 50.0], "Pets")
    found = table(tmp_path, cols=("dataset", "metric"), metrics=("personal", "totals.seconds"))
    column = "DTD / totals.seconds (s)"
    assert [cell(found, row, column).rank for row in "ABC"] == [0, 0, BEST]
