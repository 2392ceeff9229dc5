"""What a choice between two rules of a method is worth, in points, from the runs of points.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from fedvlm.core.errors import DataError
from fedvlm.core.stats import t_interval
from fedvlm.report.collect import collect
from parity.page import replace_between

PLAN = Path(__file__).with_suffix(".yaml")
BEGIN, END = "<!-- points -->", "<!-- end of points -->"
Seeds = Mapping[int, float]  # percent by seed


def numbers_of(folder: Path) -> Mapping[tuple[str, str], Seeds]:
    """Return personal accuracies by (method, tag) and seed of finished runs below a folder."""
    out: dict[tuple[str, str], dict[int, float]] = {}
    for run in collect([folder]).runs:
        key = (str(run.protocol["trainer"]), str(run.protocol["tag"]))
        out.setdefault(key, {})[int(run.protocol["seed"])] = float(run.last["personal"])
    return out


def rows(numbers: Mapping[tuple[str, str], Seeds]) -> list[str]:
    """Return a line of the table for each option of the plan that was run at both values.

    Raises:
        DataError: the runs of a value are missing.
    """
    out = []
    for entry in yaml.safe_load(PLAN.read_text(encoding="utf-8"))["trainers"]:
        if isinstance(entry, str):
            continue
        name, tag = entry["name"], entry["tag"]
        option, value = next((k, v) for k, v in entry.items() if k.startswith("TRAINER."))
        usual, other = numbers.get((name, ""), {}), numbers.get((name, tag), {})
        seeds = sorted(usual.keys() & other.keys())
        if not seeds:
            raise DataError(f"no runs of {name} with and without {option} {value}")
        gaps = [other[s] - usual[s] for s in seeds]
        half = t_interval(gaps)
        mean = sum(gaps) / len(gaps)
        spread = "" if half is None else f" ± {half:.1f}"
        base = sum(usual[s] for s in seeds) / len(seeds)
        out.append(f"| {name} | `{option.rpartition('.')[2]} {value}` | {base:.1f} | "
                   f"{mean:+.1f}{spread} | {len(seeds)} |")
    return out


def write_points(page: Path, folder: Path) -> None:
    """Replace the table of the page by that of the runs below a folder."""
    head = ("| method | instead of the default | default, % | change, points (95 %) | seeds |",
            "|---|---|---:|---:|---:|")
    replace_between(page, BEGIN, END, "\n".join([*head, *rows(numbers_of(folder))]))
