"""Metrics by name: against plain computations, in a run, and who may run a user's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedvlm
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.evaluation.named import BUILT_IN, add_metrics, load_metrics, take_metrics
from tests import jobs

P = np.array([  # no two scores of a class are equal
    [0.7, 0.21, 0.09], [0.5, 0.3, 0.2], [0.11, 0.6, 0.29], [0.2, 0.49, 0.31], [0.1, 0.12, 0.78],
])
Y = np.array([0, 1, 1, 2, 2])
MINE = '''"""Marks that it was run, and computes Cohen's kappa."""
from pathlib import Path

import numpy as np

with Path(__file__).with_suffix(".runs").open("a") as file:
    file.write("run\\n")


def kappa(p, y):
    said = p.argmax(1)
    agree = (said == y).mean()
    chance = sum((said == c).mean() * (y == c).mean() for c in range(p.shape[1]))
    return (agree - chance) / (1 - chance) if chance < 1 else float("nan")


def broken(p, y):
    return [1, 2]
'''


def judge(name: str, p: np.ndarray = P, y: np.ndarray = Y) -> float | None:
    return BUILT_IN[name][1](p, y)


def test_built_in_metrics_are_scikit_learns() -> None:
    m = pytest.importorskip("sklearn.metrics")
    said = P.argmax(1)
    assert judge("auroc") == pytest.approx(100 * np.mean(
        [m.roc_auc_score(c == Y, P[:, c]) for c in range(3)]))
    assert judge("f1") == pytest.approx(100 * m.f1_score(Y, said, average="macro"))
    assert judge("balanced") == pytest.approx(100 * m.balanced_accuracy_score(Y, said))


def test_top5_and_sensitivity_by_hand() -> None:
    p = np.array([[0.3, 0.2, 0.15, 0.12, 0.11, 0.07, 0.05]] * 3)
    assert judge("top5", p, np.array([0, 4, 5])) == pytest.approx(200 / 3)
    two = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6], [0.35, 0.65], [0.1, 0.9]])
    # at most no false alarm of three is 90 % specificity: the threshold lies above 0.3
    assert judge("sensitivity", two, np.array([0, 0, 1, 0, 1, 1])) == pytest.approx(200 / 3)


def test_a_client_of_one_class_has_no_auroc_and_is_counted() -> None:
    asked, rows = load_metrics(["auroc", "f1"], 3, False, True), [{"client": 0}, {"client": 1}]
    z = np.log(P)
    add_metrics(asked, rows, [Y, np.zeros(5, dtype=np.int64)], [z, z])  # type: ignore[arg-type]
    auroc, f1 = take_metrics(asked, rows)  # type: ignore[arg-type]
    assert auroc["mean"] == pytest.approx(judge("auroc")) and auroc["left_out"] == 1
    assert auroc["clients"][1] == {"client": 1, "value": None} and f1["left_out"] == 0
    assert rows == [{"client": 0}, {"client": 1}]


@pytest.mark.parametrize(("word", "classes", "sets", "said"), [
    ("aurok", 3, False, "did you mean 'auroc'"),
    ("top5", 5, False, "needs more than 5 classes, and this run has 5"),
    ("sensitivity", 3, False, "needs exactly two classes"),
    ("balanced", 3, True, "a run always has mAP, AUROC"),
    ("./nowhere.py:f", 3, False, "no file"),
    ("./nowhere.py", 3, False, "name a function of the file"),
])
def test_what_is_not_defined_is_refused(word: str, classes: int, sets: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_metrics([word], classes, sets, True)


def test_one_sweep_can_ask_runs_on_sets_of_labels_for_what_they_have_anyway() -> None:
    assert load_metrics(["auroc", "f1", "sensitivity"], 3, True, True) == []
    assert [one.name for one in load_metrics(["auroc"], 3, False, True)] == ["auroc"]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mine") / "mine.py"
    file.write_text(MINE)
    return file


def runs_of(mine: Path) -> str:
    """What the file wrote when it was run."""
    runs = mine.with_suffix(".runs")
    return runs.read_text() if runs.exists() else ""


@pytest.fixture(scope="module")
def done(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    plain, more = (tmp_path_factory.mktemp(name) for name in ("plain", "more"))
    assert jobs.run(plain, "--trainer", "PromptFL", "--partition", "iid") == 0
    assert jobs.run(more, "--trainer", "PromptFL", "--partition", "iid", "--metric", "auroc",
                    "balanced", f"{mine}:kappa") == 0
    return {"plain": plain, "more": more}


def test_a_run_has_them_beside_its_own_numbers(done: dict[str, Path], mine: Path) -> None:
    plain, more = (jobs.results(done[name]) for name in ("plain", "more"))
    named: list[dict[str, Any]] = more["named"]
    assert [one["name"] for one in named] == ["auroc", "balanced", "kappa"]
    for section in ("last", "untrained"):
        assert more[section] | {"seconds": 0} == plain[section] | {"seconds": 0}
    balanced = [row["balanced"] for row in more["last"]["clients"]]
    assert [row["value"] for row in named[1]["clients"]] == pytest.approx(balanced)
    run = fedvlm.load(jobs.folder(done["more"]))
    assert named[2]["mean"] is not None and -1 <= named[2]["mean"] <= 1
    assert len(named[2]["file_sha256"]) == 64 and run.config.TEST.METRICS
    log = (jobs.folder(done["more"]) / "log.txt").read_text()
    assert "metric kappa: " in log and "mean over 2 clients" in log


def test_readers_of_a_run_never_run_its_metrics(
    done: dict[str, Path], mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("fedvlm_trainers.mine_")]:
        del sys.modules[name]
    runs, folder = mine.with_suffix(".runs"), str(jobs.folder(done["more"]))
    before = runs.read_text()
    assert main(["verify", folder, "--replay", "1"]) == 0
    assert main(["report", folder]) == 0 and main(["table", str(done["more"])]) == 0
    fedvlm.load(folder).client(0)
    capsys.readouterr()
    assert runs.read_text() == before


def test_a_config_file_names_no_code(mine: Path, tmp_path: Path) -> None:
    config = tmp_path / "FedAvg.yaml"
    config.write_text(f"TRAINER:\n  NAME: FedAvg\nTEST:\n  METRICS: ['{mine}:kappa']\n")
    before = runs_of(mine)
    with pytest.raises(ConfigError, match="a file never runs another one"):
        load_metrics([f"{mine}:kappa"], 3, False, False)
    assert jobs.run(tmp_path / "out", "--trainer", "FedAvg", "--peft", "head",
                    "--trainer-config-file", str(config)) == 2
    assert runs_of(mine) == before


def test_a_function_that_gives_no_number_ends_the_run(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--trainer", "FedAvg", "--peft", "head", "--metric",
                    f"{mine}:broken") == 2
    said = capsys.readouterr().err
    assert "broken failed on" in said and len(said.strip().splitlines()) == 1
