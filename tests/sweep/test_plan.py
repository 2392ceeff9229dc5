"""Plans of a sweep: what is read, what is refused at once, and what the dry modes show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.cli.run.sweep import plan_of
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.flags import parse
from fedvlm.job.identity import identity_config
from fedvlm.job.resolve import resolve
from fedvlm.runs.identity import identity_digest
from fedvlm.sweep.cells import Checker, cells_of, combinations, jobs_of
from fedvlm.sweep.plan import read_plan, select_entries, with_axes
from fedvlm.sweep.run import table_commands
from fedvlm.sweep.state import Pace
from tests.report.table_runs import write_run

SWEEP = verbs()["sweep"].parser()
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "sweeps"
SMALL = ("--backbone", "tiny", "--rounds", "1", "--local-epochs", "2", "--num-users", "2")


def plan_file(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_a_part_called_by_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown part of a plan: '1'"):
        read_plan(plan_file(tmp_path, "1: x\ndatasets: [digits]\ntrainers: [FedAvg]\n"))


@pytest.mark.parametrize("more", [{}, {"DATA_SEED": "7"}, {"TAG": "SEED"}], ids=str)
def test_cells_of_later_seeds_are_those_of_their_own_configs(
    tmp_path: Path, more: dict[str, str]
) -> None:
    """A plan of many seeds merges its config files once."""
    plan = read_plan(plan_file(tmp_path, """
datasets: [digits]
trainers: [FedAvg, {name: fedavg, tag: slow, lr: 0.1}]
axes: {FED.ROUNDS: [1, 2]}
seeds: [4, 5, 11]
"""))
    plan, checker = replace(plan, override={"MODEL.BACKBONE.NAME": "tiny"} | more), Checker()
    found = {(c.dataset, c.method, c.seed): replace(c, number=0) for c in cells_of(plan)}
    assert len(found) == 12
    for one in combinations(plan):
        for seed, job in zip(plan.seeds, jobs_of(plan, one), strict=True):
            assert found[one.column, one.row, seed] == checker.cell(0, one, job)


def test_later_layers_win_and_words_beat_the_plan(tmp_path: Path) -> None:
    path = plan_file(tmp_path, """
common: {backbone: tiny, rounds: 1, num-users: 2, OPTIM.LR: 0.3}
datasets: [digits, {name: digits, label: more, num-users: 3}]
trainers: [FedAvg, {name: fedavg, tag: slow, lr: 0.1}]
seeds: [4, 5]
""")
    words = [str(path), "--output-dir", str(tmp_path), "--tag", "again", "FED.ROUNDS", "2"]
    cells = cells_of(plan_of(SWEEP.parse_args(words)))
    assert [str(c) for c in cells[:4]] == [
        "digits FedAvg seed 4", "digits fedavg (slow) seed 4", "more FedAvg seed 4",
        "more fedavg (slow) seed 4",
    ]
    assert [c.number for c in cells] == list(range(8)) and cells[4].seed == 5
    values = [(c.config["FED.CLIENTS"], c.config["OPTIM.LR"]) for c in cells[:4]]
    assert values == [(2, 0.3), (2, 0.1), (3, 0.3), (3, 0.1)]
    assert {c.config["FED.ROUNDS"] for c in cells} == {2}
    assert cells[1].key == (
        "personal/Digits/shots_16/FedAvg-slow-again/tiny/disjoint-K2-f1/seed4-data4")
    assert "/FedAvg-again/" in cells[0].key  # a tag of the command joins the plan's
    assert cells[0].group == cells[1].group != cells[2].group


def test_shots_and_axes_multiply_and_axes_become_tags(tmp_path: Path) -> None:
    path = plan_file(tmp_path, f"""
output_dir: {tmp_path}
common: {{backbone: tiny, rounds: 1, num-users: 2}}
datasets: [digits]
trainers: [FedAvg]
shots: [1, 2]
axes: {{lr: [0.1, 0.2], OPTIM.MOMENTUM: [0.5]}}
""")
    cells = cells_of(read_plan(path))
    assert [(c.dataset, c.method) for c in cells] == [
        ("digits 1", "FedAvg lr0.1 momentum0.5"), ("digits 1", "FedAvg lr0.2 momentum0.5"),
        ("digits 2", "FedAvg lr0.1 momentum0.5"), ("digits 2", "FedAvg lr0.2 momentum0.5"),
    ]
    assert "shots_2/FedAvg-lr0.2-momentum0.5/" in cells[3].key
    assert cells[3].config["OPTIM.LR"] == 0.2 and cells[3].config["DATASET.NUM_SHOTS"] == 2


@pytest.mark.parametrize("words", [
    ("--lr", "0.1", "0.2"), ("--lr", "0.1,0.2"), ("--opts", "OPTIM.LR", "0.1,0.2"),
], ids=str)
def test_several_numbers_of_a_flag_are_an_axis(tmp_path: Path, words: tuple[str, ...]) -> None:
    line = ["--trainers", "FedAvg", "--datasets", "shapes", "--seeds", "3-4", "--output-dir",
            str(tmp_path), *SMALL, *words]
    cells = cells_of(with_axes(plan_of(SWEEP.parse_args(line))))
    assert [(c.method, c.seed, c.config["OPTIM.LR"]) for c in cells] == [
        ("FedAvg lr0.1", 3, 0.1), ("FedAvg lr0.2", 3, 0.2), ("FedAvg lr0.1", 4, 0.1),
        ("FedAvg lr0.2", 4, 0.2),
    ]


def test_an_axis_of_words_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["sweep", "--trainers", "FedAvg", "--datasets", "shapes", "--output-dir", str(tmp_path)]
    assert main([*line, "--beta", "0.3", "0.3"]) == 2
    assert "FED.BETA has a value twice: 0.3 0.3" in capsys.readouterr().err
    assert main([*line, "--lr", "1e-3", "0.001"]) == 2  # two spellings of one number
    assert "OPTIM.LR has a value twice: 1e-3 0.001" in capsys.readouterr().err
    axes = "datasets: [digits]\ntrainers: [FedAvg]\naxes: {OPTIM.LR: [0.01, 1e-2, 0.1]}\n"
    with pytest.raises(ConfigError, match="axes: OPTIM.LR names a value twice"):
        read_plan(plan_file(tmp_path, axes))
    path = plan_file(tmp_path, "datasets: [digits]\ntrainers: [FedAvg]\n")
    plan = plan_of(SWEEP.parse_args(["--rounds", "1", str(path), "INPUT.RRCROP_SCALE", "0.5,1"]))
    assert with_axes(plan) == plan and plan.override["INPUT.RRCROP_SCALE"] == "0.5,1"


def test_an_axis_that_nothing_reads_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["sweep", "--trainers", "FedAvg", "--datasets", "shapes", "--output-dir", str(tmp_path),
            "--dry-run", *SMALL, "--beta", "0.3", "0.5", "--lr", "0.1", "0.2", "--seeds", "1-2"]
    assert main(line) == 0
    assert ("note: FED.BETA changes nothing in 8 cells, whose other settings do not read it: "
            "'shapes FedAvg beta0.3 lr0.1 seed 1' and 'shapes FedAvg beta0.5 lr0.1 seed 1' are the "
            "same run") in capsys.readouterr().err
    assert main([*line, "--partition", "dirichlet"]) == 0
    assert "changes nothing" not in capsys.readouterr().err


def test_the_words_of_a_cell_give_its_config(tmp_path: Path) -> None:
    words = ["--trainers", "FedPer", "--datasets", "shapes", "--seeds", "3", "--peft", "lora",
             "--output-dir", str(tmp_path / "a b"), *SMALL]
    (cell,) = cells_of(plan_of(SWEEP.parse_args(words)))
    assert "FedPer-lora" in cell.key
    again = resolve(parse(cell.words[1:])).jobs[0].cfg
    assert identity_digest(identity_config(again)) == cell.digest
    assert str(tmp_path / "a b") == again.OUTPUT_DIR


def test_identity_holds_the_methods_own_options_and_no_others_ones() -> None:
    words = ["--demo", "--trainer", "FedProx", "--opts", "TRAINER.FEDPROX.MU"]
    one, two = (identity_config(resolve(parse([*words, mu])).jobs[0].cfg) for mu in ("0.1", "0.2"))
    assert {k for k in one if one[k] != two[k]} == {"TRAINER.FEDPROX.MU"}
    assert {k for k in one if k.startswith("TRAINER.")} == {"TRAINER.NAME", "TRAINER.FEDPROX.MU"}


def test_every_mistake_of_a_plan_file_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plan_file(tmp_path, """
comon: {rounds: 1}
num-users: 2
common: {roundz: 2, seed: 3, lr: null}
datasets: [digits, digits]
trainers: []
seeds: [1, 1]
axes: {OPTIM.LR: 0.1}
""")
    assert main(["sweep", str(path)]) == 2
    told = capsys.readouterr().err
    for piece in (
        "unknown part of a plan: 'comon'; did you mean 'common'?",
        "'num-users'; settings stand below common: common: {num-users: VALUE}", "'roundz' is not a "
                                                                   "flag", "did you mean 'round",
        "'seed' is set by the sweep itself", "'lr' has no "
                                             "value", "'digits' twice", "trainers expects a list",
        "seeds contains a number twice", "axes: OPTIM.LR expects a list",
    ):
        assert piece in told, piece
    assert "Traceback" not in told


def test_every_mistake_of_the_cells_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plan_file(tmp_path, """
datasets: [digits, eurosatt, {name: eurosat, root: /nonexistent}]
trainers: [FedAvg, FedPr, {name: FedProx, lr: -1}, {name: FedAvg, tag: d, TRAINER.DITTO.LAM: 1}]
common: {backbone: tiny, num-users: 99, partition: disjoint}
""")
    assert main(["sweep", str(path), "--output-dir", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    for piece in ("no config 'eurosatt'; did you mean 'eurosat'?", "'FedPr'; did you mean",
                  "OPTIM.LR", "/nonexistent", "99",
                  "TRAINER.DITTO.LAM (of trainers: FedAvg (d)) is an option of Ditto, not of"):
        assert piece in told, piece
    assert not (tmp_path / "out").exists()


def test_a_flag_that_the_engine_does_not_read_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", str(CONFIGS / "demo.yaml"), "--output-dir", str(tmp_path / "out")]
    assert main([*words, "--workers", "1"]) == 2
    said = "--workers 1 has no effect with --engine local: use --engine workers"
    assert capsys.readouterr().err.count(said) == 1 and not (tmp_path / "out").exists()
    assert main([*words, "--workers", "1", "--engine", "workers", "--list"]) == 0


def test_missing_data_alone_is_a_data_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "--trainers", "FedAvg", "--datasets", "eurosat", "--root", str(tmp_path),
             "--output-dir", str(tmp_path / "out"), *SMALL]
    assert main(words) == 3
    assert "eurosat" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("words", "piece"), [
    (["--trainers", "FedAvg"], "give a plan"),
    (["--trainers", "A", "A", "--datasets", "digits"], "trainers has 'A' twice; name it once"),
    (["--trainers", "FedAvg", "--datasets", "digits", "--job", "2"], "did you mean '--jobs'"),
    (["--trainers", "FedAvg", "--datasets", "digits", "--jobs", "0"], "from 1 on, got '0'"),
    (["--trainer", "FedAvg", "--datasets", "digits"], "use --trainers"),
    *((["--trainers", "FedAvg", "--datasets", "digits", *flag.split()],
       f"{flag.split()[0]} does not work with a plan: use ") for flag in (
        "--images photos", "--method FedAS", "--eval-only", "--no-train", "--model-dir x",
        "--load-epoch 3", "--resume x", "--model fedavg")),
    (["--trainers", "FedAvg", "--datasets", "digits", "--seeds", "x"], "seeds expects whole "
                                                                       "numbers"),
    ([str(CONFIGS / "demo.yaml"), "--trainers", "Dito"], "did you mean 'Ditto'"),
    (["no_such.yaml"], "no plan 'no_such.yaml'"),
    ([str(CONFIGS / "demo.yaml"), "--only", "3-1"], "--only expects"),
    ([str(CONFIGS / "demo.yaml"), "--only", "99"], "the cells are 0 to 11"),
    ([str(CONFIGS / "demo.yaml"), "--dry-run", "--launch", "local", "--slurm-time", "1m"],
     "--slurm-time expects a time such as 1:00:00, got '1m'"),
])
def test_wrong_words(words: list[str], piece: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *words]) == 2
    assert piece in capsys.readouterr().err


def test_one_run_folder_for_two_cells_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plan_file(tmp_path, """
common: {backbone: tiny, num-users: 2}
datasets: [digits]
trainers: [FedAvg, {name: FedAvg, label: other, lr: 0.1}]
seeds: [1, 2]
""")
    assert main(["sweep", str(path), "--output-dir", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()  # once, not for each seed
    assert "have the same run folder" in line


def test_dry_run_list_and_print_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    demo = ["sweep", str(CONFIGS / "demo.yaml"), "--output-dir", str(out)]
    assert main([*demo, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "12 cells (12 to do)" in told and "unknown" in told and "nothing was written" in told
    assert main([*demo, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13 and lines[1].split()[:2] == ["0", "to"]
    assert not out.exists()


def test_the_plans_that_are_shipped_are_good(tmp_path: Path) -> None:
    plan = read_plan(CONFIGS / "demo.yaml")
    assert len(cells_of(plan)) == 12
    plan = read_plan(CONFIGS / "tiny.yaml")
    assert len(plan.trainers) >= 10 and len(plan.datasets) == 4 and plan.seeds == (1, 2, 3)


def test_all_methods_are_in_their_plan() -> None:
    plan = read_plan(CONFIGS / "all_methods.yaml")
    names = [e.name for e in plan.trainers]
    assert [n for n in names if names.count(n) > 1] == ["FedAvg"] * 2
    assert set(names) == {load_trainer(stem).name for stem in trainer_files()}
    assert [e.label for e in plan.trainers if e.settings] == ["FedAvg (ft)"]
    plan = replace(plan, datasets=select_entries(plan.datasets, ["digits"], "datasets"))
    assert len(cells_of(plan)) == 3 * len(names)


def test_the_table_command_is_one_that_works(tmp_path: Path) -> None:
    plan = read_plan(CONFIGS / "demo.yaml")
    assert table_commands(plan, tmp_path) == []
    write_run(tmp_path, "A", "Pets", last={"personal": 1.0})
    whole = f"python -m fedvlm table {tmp_path}"
    assert table_commands(plan, tmp_path) == [f"table of the runs: {whole}"]
    write_run(tmp_path, "A", "Dogs & Cats", last={"personal": 1.0}, setting="base2new")
    assert table_commands(plan, tmp_path) == [f"table of the runs: {whole}"]  # two tables
    write_run(tmp_path, "B", "Pets", last={"personal": 1.0}, shots=4)
    head, only = table_commands(plan, tmp_path)
    assert "the runs of Pets have different protocols" in head
    assert only == f"  {whole} --where 'dataset=Dogs & Cats'"
    assert table_commands(replace(plan, shots=(4, 16)), tmp_path) == [
        f"table of the runs: {whole} --cols dataset shots"
    ]


def test_pace_judges_by_data_set_and_method() -> None:
    def cell(dataset: str, method: str) -> SimpleNamespace:
        return SimpleNamespace(dataset=dataset, method=method)

    pace = Pace()
    assert pace.of(cell("a", "x")) is None
    pace.add("a", "x", 10.0)
    pace.add("a", "x", 20.0)
    pace.add("a", "y", 45.0)
    pace.add("b", "x", 4.0)
    assert pace.of(cell("a", "x")) == 15.0
    # a's mean is (15 + 45) / 2 = 30, of which y takes 1.5; b's mean is 4
    assert pace.of(cell("b", "y")) == pytest.approx(4.0 * 1.5)
    todo = [cell("a", "x"), cell("b", "y"), cell("c", "x")]
    assert pace.left(todo, 2) == (pytest.approx(21.0 / 2), 1)


def test_a_plan_is_yaml_and_nothing_else(tmp_path: Path) -> None:
    evil = plan_file(tmp_path, "datasets: [digits]\ntrainers: [!!python/name:os.system ]\n")
    with pytest.raises(ConfigError):
        read_plan(evil)
    assert json.dumps(read_plan(CONFIGS / "demo.yaml").content())


def test_a_queued_sweep_needs_no_gpu_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells compute elsewhere; one that computes here is refused before it begins."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["--trainers", "FedAvg", "--datasets", "shapes", "--device", "cuda",
             "--output-dir", str(tmp_path), *SMALL]
    (cell,) = cells_of(plan_of(SWEEP.parse_args(words)))
    assert (cell.device, cell.engine) == ("cuda", "local")
    assert main(["sweep", *words]) == 2
    said = capsys.readouterr().err
    assert "--device cuda: this machine has 0 CUDA device(s)" in said and not cell.folder.exists()
