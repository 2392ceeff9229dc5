"""``list``: the methods and their cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.cli import main as cli
from fedvlm.cli.methods import list as cli_list
from fedvlm.cli.methods._lines import code_lines, piece_rows, trainer_size
from tests.jobs import REPOSITORY


def test_card_and_year_are_read_without_running_the_file(tmp_path: Path):
    path = tmp_path / "m.py"
    text = "M: one line.\n\nPaper: A\n    title (X 2024)\nCost: 1999\n"
    path.write_text(f'"""{text}"""\nraise OSError\n')
    text = cli_list.card(path)
    assert text.startswith("M: one line.") and cli_list.year(text) == "2024"
    assert cli_list.year("M: 1999\n\nCost: 1999") == ""


def test_list_prints_names_years_and_a_card(capsys: pytest.CaptureFixture[str]):
    if not list((REPOSITORY / "trainers").glob("[!_]*.py")):
        pytest.skip("no trainers/ in this checkout")
    assert cli.main(["list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["name", "year", "method"]
    heads = {line.rpartition(":")[0]: i for i, line in enumerate(rows)
             if not line.startswith(" ") and line}
    at = {line.split()[0]: i for i, line in enumerate(rows) if line.startswith("  ")}
    assert heads["prompt"] < at["PromptFL"] < heads["image feature and prompt"] < at["FedTV"]
    assert rows[heads["image prompts"]].endswith(": 2") and rows[-1].startswith("  ZeroShot")
    assert at["FedAvg"] < heads["prompt"] < heads["nothing is trained"], "any set first"
    assert cli.main(["list", "--flat", "--family", "lora", "none"]) == 0
    flat = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert flat == ["name", "CLIP-LoRA", "FedDPA", "HetLoRA", "Tip-Adapter", "ZeroShot"]
    assert cli.main(["list", "ditto", "--family", "lora"]) == 2
    assert "--family filters the list of all methods" in capsys.readouterr().err
    assert cli.main(["list", "fed-tv"]) == 0
    assert "Paper:" in capsys.readouterr().out
    assert cli.main(["list", "fedtx"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("did you mean 'fedtv'?"), "not all names"
    assert cli.main(["list", "FedPPG"]) == 2  # two are equally near
    assert "did you mean 'fedtpg' or 'fedpgp'?" in capsys.readouterr().err


CODE = '''"""Card: x.

Cost: none.
"""
from fedvlm.models.adapt import (  # a comment behind code counts as its line
    peft,
)
from fedvlm.models.adapt.peft import role

# a comment

class A:
    """Said."""

    text = """two
    lines"""

    def f(self):
        """Said."""
        return 1
'''


def test_lines_are_those_with_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert code_lines(CODE) == 9
    path = tmp_path / "a.py"
    path.write_text(CODE)
    size = trainer_size(path, "a")
    assert (size.name, size.lines) == ("Card", 9)
    assert size.pieces == ("fedvlm.models.adapt.peft",)
    assert piece_rows([size])[0]["of"] == "Card" and piece_rows([size] * 4)[0]["of"] == "4 methods"
    assert cli.main(["list", "--lines", "prograd", "KgCoOp"]) == 0
    out = capsys.readouterr().out
    assert out.index("KgCoOp") < out.index("ProGrad") and "2 methods, " in out
    assert "toolbox.contrast" in out and "Paper:" not in out


def test_a_methods_options_stand_below_its_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "duet.py"
    file.write_text('''"""Duet: a test."""
from fedvlm.method import Option, PeftTrainer


class Duet(PeftTrainer):
    name = "Duet"
    options = {"MU": Option(0.5, "weight of the pull", low=0.0)}
''')
    assert cli.main(["list", f"{file}:Duet", "fedpgp", "FedAvg"]) == 0
    told = capsys.readouterr().out
    assert "TRAINER.DUET.MU 0.5  weight of the pull [at least 0]" in told
    assert "Its options: fedvlm config fedpgp" in told
    assert told.rstrip().endswith("Its options: fedvlm config fedavg")
    assert cli.main(["config", "fedpgp"]) == 0
    assert "TRAINER.FEDPGP.ANCHOR 'literal'" in capsys.readouterr().out
    bare = tmp_path / "bare.py"
    bare.write_text(file.read_text().partition("    options")[0].replace("Duet", "Bare"))
    assert cli.main(["list", f"{bare}:Bare"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("Options: none of its own")
    file.write_text('"""Duet: a test."""\nraise SystemExit("it ran")\n')
    assert cli.main(["list", str(file)]) == 0 and capsys.readouterr().out == "Duet: a test.\n"
