"""The appendix' tables: what every method runs with, and what was searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main
from fedvlm.sweep.tune.appendix import hyperparameters
from fedvlm.sweep.tune.tuned import write_tuned

RATE, HEAD = "OPTIM.LR 0.002 to 2 log", "OPTIM.HEAD.LR 0.002 to 2 log"
MU = "TRAINER.FEDPROX.MU 0.001 to 10 log"


def entry(trainer: str, values: dict[str, str], *space: str, **settings: str) -> dict[str, Any]:
    return {"label": trainer, "trainer": trainer, "settings": settings, "values": values,
            "space": ["OPTIM.NAME sgd | adamw", *space], "trial": 1, "score": 81.25, "error": 1.26,
            "trials": [{"score": 70.0}, {"score": 81.25}]}


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.json"
    write_tuned(path, {
        "plan": {"name": "toy", "common": {"FED.ROUNDS": "7"}, "seeds": [101, 102], "shots": [],
                 "datasets": [{"label": "digits"}]},
        "budget": 2, "digest": "0123456789abcdef", "entries": [
            entry("FedProx", {"OPTIM.NAME": "adamw", "OPTIM.LR": "0.03", "TRAINER.FEDPROX.MU": "3"},
                  RATE, MU, **{"FED.LOCAL_STEPS": "2"}),
            entry("LocalOnly", {"OPTIM.LR": "0.04", "OPTIM.HEAD.LR": "0.5"}, RATE, HEAD,
                  **{"FED.FINETUNE_EPOCHS": "5"}),
        ],
    })
    return path


def test_values_are_the_tuned_ones_and_those_of_the_files(tuned: Path) -> None:
    values, search = hyperparameters(tuned)
    assert values.columns == ("optimiser", "rate", "rate, head", "local work", "final epochs",
                              "its own")
    words = [[cell.words for cell in row] for row in values.cells]
    assert words == [["adamw", "0.03", "-", "2 steps", "as the method says", "MU 3"],
                     ["sgd", "0.04", "0.5", "2 epochs", "5", "-"]]
    assert "batch 32, momentum 0.9" in values.caption
    assert "seeds 101, 102; rounds 7" in search.caption
    assert RATE in search.caption and HEAD not in search.caption  # a row's own, not all methods'
    assert search.cells[1][0].words == HEAD
    assert [cell.words for cell in search.cells[0]] == [
        "MU 0.001 to 10 log", "2", "1", "70.0", "81.2 ± 1.3",
    ]


def test_markdown_and_latex_with_groups_and_citations(
    tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table", "--hyperparameters", str(tuned)]
    assert main([*words, "--format", "md"]) == 0
    assert "| FedProx | adamw | 0.03 | - | 2 steps |" in capsys.readouterr().out
    out = tuned.with_name("appendix.tex")
    assert main([*words, "--names", "paper", "--out", str(out)]) == 0
    text = out.read_text()
    assert r"\toprule" in text and r"\label{tab:hyperparameters}" in text
    assert text.index("no collaboration") < text.index("one shared model")
    assert r"FedProx~\cite{li2020federated} & adamw" in text
    assert "li2020federated" in out.with_suffix(".bib").read_text()
    capsys.readouterr()
    assert main([*words, "--columns", "gain"]) == 2
    assert "reads only a tuned.json: drop --columns" in capsys.readouterr().err
