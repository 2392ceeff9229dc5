"""Runs of the plans below ``configs/results/map``: which case of which plan each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from evidence.map.images import SETS
from fedvlm.core.errors import ConfigError, fold
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.beside import hurt

KEYS = {
    "partition": ("FED.PARTITION", ""), "beta": ("FED.BETA", None),
    "num-users": ("FED.CLIENTS", 0), "shots": ("DATASET.NUM_SHOTS", -1), "frac": ("FED.FRAC", 1.0),
    "subsample-classes": ("DATASET.SUBSAMPLE_CLASSES", "all"),
    "FED.UNSEEN_CLIENTS": ("FED.UNSEEN_CLIENTS", 0),
}
COLUMNS = ("plan", "set", "case", "method", "seed", "personal", "balanced", "worst", "hurt",
           "alone", "alone_balanced", "prior", "prior_balanced", "pooled", "new", "unseen_clients",
           "bytes", "rounds", "steps", "seconds", "poor", "poor_alone", "rich", "rich_alone")
THIRD = 3  # one of so many clients is among the poor, one among the rich
Row = dict[str, Any]


@dataclass(frozen=True)
class MapPlan:
    """A plan as its file has it.

    Attributes:
        name: of the plan; about: its comment; backbone: of its runs; path: its file.
        output: name of the folder of its runs.
        cases: data-set entries; methods: trainer entries, each with its ``label``.
    """

    name: str
    about: str
    cases: Sequence[Mapping[str, Any]]
    methods: Sequence[Mapping[str, Any]]
    seeds: Sequence[int]
    backbone: str
    path: Path
    output: str

    def planned(self) -> list[tuple[str, str, str, int]]:
        """Return (set, case, method, seed) of every run."""
        return [(case["name"], _short(case), method["label"], seed) for case in self.cases
                for method in self.methods for seed in self.seeds]

    def place(self, run: FinishedRun) -> tuple[str, str, str] | None:
        """Return (set, case, method) of a run; None where the plan has none such."""
        config = run.identity_config()
        case = next((c for c in self.cases if _is_case(c, run, config)), None)
        method = next((m for m in self.methods if _is_method(m, run)), None)
        if case is None or method is None or run.protocol.get("backbone") != self.backbone:
            return None
        return case["name"], _short(case), method["label"]


def read_plans(folder: Path) -> list[MapPlan]:
    """Return the plans of a folder by the order of their files' names.

    Raises:
        ConfigError: one cannot be read, or there is none.
    """
    out = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            text = path.read_text(encoding="utf-8")
            plan = yaml.safe_load(text)
            about = " ".join(x.lstrip("# ") for x in text.splitlines() if x.startswith("#"))
            methods = [{"name": m} if isinstance(m, str) else dict(m) for m in plan["trainers"]]
            out.append(MapPlan(plan["name"], about, plan["datasets"],
                               [{"label": m["name"]} | m for m in methods], plan["seeds"],
                               plan["common"]["backbone"], path,
                               Path(plan["output_dir"]).name))
        except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: not a plan of the map ({error})") from None
    if not out:
        raise ConfigError(f"{folder} has no plans (*.yaml)")
    return out


def rows_of(plans: Sequence[MapPlan], runs: Sequence[FinishedRun]) -> list[Row]:
    """Return a row of ``COLUMNS`` for each run that a plan has, by plan, case, method and seed."""
    out = [row for plan in plans for run in runs for row in _rows(plan, run)]
    order = {one: i for plan in plans for i, one in enumerate(plan.planned())}
    names = [plan.name for plan in plans]
    return sorted(out, key=lambda r: (names.index(r["plan"]), order.get(
        (r["set"], r["case"], r["method"], r["seed"]), -1)))


def _rows(plan: MapPlan, run: FinishedRun) -> Iterator[Row]:
    place = plan.place(run)
    if place is None:
        return
    answer, spent = run.section("answer"), run.section("spent")
    alone, clients = answer.get("alone", {}), max(1, len(run.last.get("participants", ())))
    rounds = max(1, int(run.last["round"]))
    yield dict(zip(COLUMNS, (
        plan.name, *place, run.protocol["seed"], run.value("personal"),
        run.value("personal_balanced"), run.value("personal_worst"),
        (hurt(run.last.get("clients", ()), run.section("references")) or {}).get("share"),
        alone.get("personal"), alone.get("balanced"),
        *(run.section("references").get("afl_prior", {}).get(metric)
          for metric in ("personal", "personal_balanced")),
        answer.get("pooled", {}).get("personal"), run.value("new"), run.value("unseen_clients"),
        spent.get("bytes_up", 0) / clients / rounds, rounds, spent.get("local_steps"),
        run.seconds, *poor_and_rich(run)), strict=True))


def poor_and_rich(run: FinishedRun) -> tuple[float | None, ...]:
    """Return what the third of the clients with the fewest test images reaches, and alone.

    Then the same of the third with the most. Alone is the baseline that is best over all clients.
    Nothing of a run without clients or baselines.
    """
    name = run.section("answer").get("alone", {}).get("reference")
    own = {one["client"]: one["accuracy"] for one in
           run.section("references").get(name, {}).get("clients", ())}
    some = [one for one in run.last.get("clients", ()) if one["client"] in own]
    some = sorted(some, key=lambda one: (one["n"], one["client"]))
    if not some:
        return (None,) * 4
    count = max(1, len(some) // THIRD)
    return tuple(fmean(values) for part in (some[:count], some[-count:]) for values in (
        [one["accuracy"] for one in part], [own[one["client"]] for one in part]))


def _short(case: Mapping[str, Any]) -> str:
    return str(case["label"]).removeprefix(f"{case['name']} ")


def _is_case(case: Mapping[str, Any], run: FinishedRun, config: Mapping[str, Any]) -> bool:
    if SETS.get(str(run.protocol["dataset"])) != case["name"]:
        return False
    for word, (key, usual) in KEYS.items():
        wanted = case.get(word, usual)
        if wanted is not None and fold(str(config.get(key, usual))) != fold(str(wanted)):
            return False
    return True


def _is_method(method: Mapping[str, Any], run: FinishedRun) -> bool:
    peft = str(run.protocol.get("peft", "")).removesuffix("+csc")
    return (str(run.protocol["trainer"]) == method["name"]
            and str(run.protocol.get("tag", "")) == str(method.get("tag", ""))
            and method.get("peft", peft) == peft)
