"""What ``--demo`` alone shows: two runs, and both in ten lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main
from fedvlm.job.flags import parse
from fedvlm.job.request import Request
from fedvlm.job.results.demo import is_whole_demo, summary_lines
from tests import jobs


def section(personal: float, alone: float, new: float | None = None) -> dict[str, Any]:
    """Return results of two clients with a thousand test images each."""
    def rows(accuracy: float) -> list[dict[str, Any]]:
        return [{"client": c, "n": 1000, "accuracy": accuracy} for c in (0, 1)]

    return {
        "last": {"personal": personal, "personal_balanced": personal, "clients": rows(personal)}
        | ({} if new is None else {"new": new}),
        "references": {
            "logreg": {"kind": "alone", "personal": alone, "personal_balanced": 50.0,
                       "clients": rows(alone)},
            "pooled": {"kind": "bound", "personal": 95.0, "personal_balanced": 94.0,
                       "clients": rows(95.0)},
        },
        "spent": {"bytes_up": 1, "bytes_down": 1},
        "zero_shot": {"personal": 60.0, "personal_balanced": 61.0, "new": 40.0},
    }


@pytest.mark.parametrize(("words", "whole"), [
    (["--demo"], True), (["--demo", "--output-dir", "x"], True),
    (["--demo", "--trainer", "FedTV"], False), (["--demo", "--rounds", "2"], False),
    (["--demo", "--dry-run"], False), (["--demo", "--seeds", "1", "2"], False),
    (["--demo", "--opts", "OPTIM.LR", "0.1"], False),
])
def test_only_the_bare_flag_is_the_whole_demo(words: list[str], whole: bool) -> None:
    assert is_whole_demo(Request.of(parse(words))) is whole


def test_ten_lines() -> None:
    lines = summary_lines(section(91.0, 70.0), section(80.0, 70.0, 55.0), {"trainer": "FedTV"},
                          [5, 7, 10])
    assert len(lines) == 10
    assert lines[0].startswith("3 clients with 5 to 10 images each")
    assert lines[3].split()[-3:] == ["70.0", "50.0", "-"]
    assert lines[5].split()[-3:] == ["80.0", "80.0", "55.0"]
    assert lines[7] == ("A linear head gains 21.0 points over working alone; none of 2 clients "
                        "does better alone.")
    assert lines[8].endswith("On classes that no client has it reaches 55.0 (zero-shot 40.0).")


def test_no_gain_is_not_called_one() -> None:
    lines = summary_lines(section(60.0, 70.0), section(70.5, 70.0, 35.0), {"trainer": "FedTV"},
                          [5])
    assert "A linear head does not clearly gain over working alone (-10.0 points)" in lines[7]
    assert "FedTV does not clearly gain" in lines[8] and "zero-shot" not in lines[8]


def test_no_method_of_the_demo_loses_to_working_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole demo, as ``make demo`` runs it; and no honest client's update is told as odd."""
    assert main(["--demo", "--output-dir", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-10:]
    assert last[0].startswith("20 clients with 5 to 10 images each")
    numbers = {line.split("  ")[0].strip(): line.split()[-3:] for line in last[1:7]}
    alone = next(float(v[0]) for k, v in numbers.items() if k.startswith("each client alone"))
    together = [float(v[0]) for k, v in numbers.items() if k.startswith("together")]
    assert len(together) == 2 and together[0] > alone  # the head, which is shown first
    answers = {f.parts[-5]: json.loads(f.read_text())["results"]["answer"]
               for f in tmp_path.rglob("results.json")}
    assert answers["FedAvg-head"]["verdict"] == "pays" and answers["FedTV"]["verdict"] == "unclear"
    assert all(a["alone"]["reference"] == "logreg_names" for a in answers.values())
    unseen = [float(v[2]) for k, v in numbers.items() if k.endswith(("nothing trained", "(FedTV)"))]
    assert unseen[1] > unseen[0] + 10, "what a head cannot have: classes without images"
    assert last[-1].startswith("Next: your own images")
    (manifest,) = tmp_path.rglob("FedTV/**/manifest.json")
    records = jobs.records(manifest.parent)
    assert len(records) == 21 and [r["round"] for r in records if "outliers" in r] == []
