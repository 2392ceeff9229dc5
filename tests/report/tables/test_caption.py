"""What a table says of its runs without refusing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import collect
from fedvlm.report.tables import caption
from fedvlm.report.tables.table import ReportTable, Spec, tables
from tests.report.table_runs import write_run, write_seeds

LAST = {"personal": 50.0}


def table(root: Path, **spec: Any) -> ReportTable:
    (found,) = tables(collect([root]), Spec(**spec))
    return found


def test_a_method_tuned_per_data_set_is_named_with_its_values(tmp_path: Path):
    write_run(tmp_path, "A", "Pets", last=LAST, config={"OPTIM.LR": 0.01})
    write_run(tmp_path, "A", "Cars", last=LAST, config={"OPTIM.LR": 0.5})
    write_run(tmp_path, "B", "Pets", last=LAST, config={"OPTIM.LR": 0.3})
    write_run(tmp_path, "B", "Cars", last=LAST, config={"OPTIM.LR": 0.3})
    notes = [n for n in table(tmp_path).notes if "hyper-parameters differ" in n]
    assert notes == ["A: hyper-parameters differ between cells: OPTIM.LR (0.5, 0.01)"]
    along = table(tmp_path, cols=("dataset", "OPTIM.LR"))
    assert not [n for n in along.notes if "hyper-parameters differ" in n]


def beside_seals(found: ReportTable) -> list[str]:
    """The notes but the one that these runs, written by hand, have no checksums."""
    (first,) = (note for note in found.notes if "have no checksum" in note)
    return [note for note in found.notes if note != first]


def test_several_versions_and_uncommitted_code_are_told(tmp_path: Path):
    def info(torch: str, revision: str, changed: bool) -> dict[str, Any]:
        return {"versions": {"torch": torch, "fedvlm": "1"},
                "git": {"revision": revision, "changed": changed}}

    write_run(tmp_path, "A", last=LAST, info=info("2.0", "a" * 40, False))
    assert not beside_seals(table(tmp_path))
    write_run(tmp_path, "B", last=LAST, info=info("2.1", "b" * 40, True))
    said = " ".join(table(tmp_path).notes)
    assert "several versions of torch: 2.0, 2.1" in said and "versions of fedvlm" not in said
    assert "2 revisions of the code: aaaaaaaa, bbbbbbbb" in said
    assert "1 of 2 runs were made by code with uncommitted changes" in said


def test_clients_missing_from_a_mean_are_told(tmp_path: Path):
    words = "2 clients (3, 7) without test samples: left out of personal"
    write_run(tmp_path, "A", last=LAST | {"notes": [words, "of no matter"]})
    path = write_run(tmp_path, "B", last=LAST | {"notes": [words]}).parent
    (note,) = beside_seals(table(tmp_path))
    assert note.startswith(f"{words} (2 run(s), first {tmp_path}") and path.exists()


def test_a_refusal_names_all_keys_that_mixed_needs(tmp_path: Path):
    write_run(tmp_path, "A", last=LAST)
    write_run(tmp_path, "B", last=LAST, rounds=5, views=4)
    with pytest.raises(ConfigError) as refused:
        table(tmp_path)
    keys = tuple(str(refused.value).partition("--mixed ")[2].partition(" (")[0].split())
    assert set(keys) == {"rounds", "views"} and table(tmp_path, mixed=keys).n == 1


def test_mixed_values_are_listed_whole_and_digests_name_their_split(tmp_path: Path):
    for trainer, shots in (("A", 1), ("B", 2), ("C", 4)):
        write_run(tmp_path, trainer, last=LAST, shots=shots, data_digest=f"{shots}" * 64)
    found = table(tmp_path, mixed=("shots",)).caption
    assert "shots (1, 2, 4)" in found
    assert "Pets shots 1 seed 1 11111111, Pets shots 2 seed 1 22222222" in found
    write_seeds(tmp_path / "cell", "D", [1.0])
    for seed, rate in ((2, 0.2), (3, 0.3)):
        write_run(tmp_path / "cell", "D", seed=seed, last=LAST, config={"OPTIM.LR": rate})
    said = table(tmp_path / "cell", mixed=()).caption.partition("OPTIM.LR (")[2].partition(")")[0]
    assert sorted(said.split(", ")) == ["0.01", "0.2", "0.3"]


def test_the_rounds_of_runs_that_end_by_validation_are_those_they_had(tmp_path: Path):
    for trainer, flat, ended in (("A", 5, 32), ("B", 5, 14), ("C", 0, 100)):
        write_run(tmp_path / str(flat) / trainer, trainer, last=LAST | {"round": ended},
                  rounds=100, config={"FED.PATIENCE": flat, "FED.ROUNDS": 100})
    assert ", auto, 32 rounds, 1 local epoch(s). " in table(tmp_path / "5" / "A").caption
    assert ", auto, 14 to 32 rounds, " in table(tmp_path / "5").caption
    assert ", 100 rounds, 1 local epoch(s), matched by rounds" in table(tmp_path / "0").caption


def test_one_round_and_one_shot_have_no_s(tmp_path: Path):
    write_run(tmp_path / "a", "A", last=LAST, rounds=1, shots=1)
    assert ", 1 shot, " in table(tmp_path / "a").caption
    assert ", 1 round, 1 local" in table(tmp_path / "a").caption
    write_run(tmp_path / "b", "B", last=LAST | {"round": 1}, rounds=100,
              config={"FED.PATIENCE": 5, "FED.ROUNDS": 100})
    assert ", auto, 1 round, 1 local" in table(tmp_path / "b").caption


def test_rounds_to_tells_where_runs_were_evaluated_at_other_rounds(tmp_path: Path):
    write_run(tmp_path, "A", last=LAST, curve=[10.0, 20.0, 30.0])
    assert not beside_seals(table(tmp_path, metrics=("rounds_to:15",)))
    path = write_run(tmp_path, "B", last=LAST, curve=[10.0, 20.0, 30.0])
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    del lines[1]["personal"]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = table(tmp_path, metrics=("rounds_to:15",))
    assert [cell.mean for (cell,) in found.cells] == [1.0, 2.0]
    assert "were not evaluated at the same rounds" in " ".join(found.notes)


def test_a_metric_is_not_named_twice():
    assert caption._meaning("together").startswith("together: personal, mean over clients (")
    assert caption._meaning("alone").startswith("alone: each client alone: personal, mean over")
