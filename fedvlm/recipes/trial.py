"""A recipe on this machine: its runs, what keeps some of them from running, what they measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedvlm.config.build import flat
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.stats import cm, harmonic_mean, mean
from fedvlm.data.catalog import dataset_info
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.identity import WHERE
from fedvlm.job.inputs import Inputs
from fedvlm.job.resolve import Job
from fedvlm.recipes.counts import Counts, counts_of
from fedvlm.recipes.recipe import AVERAGE, H_OF_AVERAGES, NO_TARGET, Numbers, Published, Recipe
from fedvlm.recipes.verdict import Line, judge
from fedvlm.report.collect import collect
from fedvlm.report.tables.metrics import DEFINED
from fedvlm.runs.cells import ENDING, pack_runs
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.identity import safe_name
from fedvlm.sweep.cells import Cell, Checker, combinations, jobs_of
from fedvlm.sweep.plan import SweepPlan
from fedvlm.sweep.state import DONE, FAILED, RUNNING, CellState, Journal, states

# Keys that are no protocol: where things lie, how they are computed, how often that is looked at.
# Files that say who has which images, a quorum that ends a run, and rounded activations are.
FREE = {*WHERE, "SEED", "DATA_SEED", "MODEL.INIT_WEIGHTS", "FED.CHUNK", "FED.SITES", "FED.PLAIN",
        "TRAINER.NAME"} - {
    "FED.INDEX_FILE", "DATASET.FEWSHOT_FILE", "FED.UNRELIABLE.QUORUM"}
TOY = "not comparable with papers"  # what a run on the tiny backbone or a cut set says of itself
MOST = 3  # differences named
HM2 = ("base_all", "new")
BYTES = 4  # of a number that travels
SEALED = "sealed"  # folder of the pack: beside the runs it would stand for them
DIGITS = 12  # of a backbone's digest


@dataclass
class Row:
    """A method on a data set: one run for each seed.

    Attributes:
        own: the recipe's own config of the first seed; job: as the command's words make it. None
            where it is refused.
        runs: how many the protocol has, whether they can be made here or not.
        why: what keeps it from running; empty where nothing does.
        changed: how its protocol differs from the recipe's, in words.
        late: why it is not run though nothing keeps it from running.
    """

    dataset: str
    method: str
    own: Job | None = None
    job: Job | None = None
    cells: tuple[Cell, ...] = ()
    runs: int = 0
    why: str = ""
    changed: str = ""
    late: str = ""


@dataclass(frozen=True)
class Tally:
    """Trained and sent numbers of a method: printed, and here.

    Attributes:
        counted: at the recipe's shapes; None where that cannot be, for the reason ``why``.
        sent: numbers of 4 bytes that a client sent in a round of our runs of this protocol,
            extras and indices included; None without such a run.
    """

    numbers: Numbers
    counted: Counts | None
    why: str = ""
    sent: float | None = None


@dataclass
class Trial:
    """A recipe with the words of a command on top."""

    recipe: Recipe
    plan: SweepPlan
    rows: list[Row] = field(default_factory=list)

    @property
    def cells(self) -> list[Cell]:
        """All runs that can be made, seed by seed."""
        return [cell for seed in self.plan.seeds for row in self.rows for cell in row.cells
                if cell.seed == seed]

    @property
    def runnable(self) -> list[Cell]:
        """Those of rows that nothing keeps from running; what the others have run is still read."""
        mine = {id(cell) for row in self.rows if not row.why for cell in row.cells}
        return [cell for cell in self.cells if id(cell) in mine]

    def confirmed(self, row: Row) -> float:
        """Return how many published numbers the runs of a row confirm; an average counts in parts.
        """
        return sum(1 / max(1, len(cell.of)) for cell in self.recipe.published
                   if cell.method == row.method and NO_TARGET not in cell.remark
                   and (cell.dataset == row.dataset or row.dataset in cell.of))

    @property
    def folder(self) -> Path:
        """Its OUTPUT_DIR, which holds the acceptance file, too."""
        return Path(self.plan.override["OUTPUT_DIR"])

    def lines(self, measured: Measured) -> list[Line]:
        """Return the cells of the acceptance file."""
        wanted = list(self.recipe.published)
        there = {(p.dataset, p.method) for p in wanted}
        silent = [Published(r.dataset, r.method, "personal", 0.0) for r in self.rows
                  if (r.dataset, r.method) not in there]
        lines = []
        for cell in [*wanted, *silent]:
            values, why, changed = measured.of(cell)
            line = judge(cell, values, self.recipe.tolerance, why, changed, cell in wanted)
            lines.append(replace(line, weights=measured.weights(cell) if values else ""))
        return lines

    def pack(self) -> Path | None:
        """Pack its finished runs (``runs.cells``) into its folder; None without runs."""
        mine = {cell.folder.resolve() for cell in self.cells}
        runs = [run.path for run in collect([self.folder]).runs if run.path.resolve() in mine] \
            if self.folder.is_dir() else []
        path = self.folder / SEALED / f"{safe_name(self.recipe.name)}{ENDING}"
        if not runs:
            return None
        path.parent.mkdir(exist_ok=True)
        pack_runs([(run.relative_to(self.folder).as_posix(), run) for run in runs], path)
        return path

    def tallies(self, measured: Measured) -> list[Tally]:
        """Return what the recipe says of trained and sent numbers, and what they are here."""
        table = []
        for numbers in self.recipe.numbers:
            row = next(r for r in self.rows
                       if (r.dataset, r.method) == (numbers.dataset, numbers.method))
            counted, why = None, ""
            try:
                if row.own is None:
                    raise ConfigError(row.why)
                cfg = row.own.cfg
                counted = counts_of(load_trainer(cfg.TRAINER.NAME), cfg, classes_of(row.own))
            except FedvlmError as error:
                why = _first(str(error))
            table.append(Tally(numbers, counted, why, measured.sent(row)))
        return table


def trial_of(
    recipe: Recipe, settings: Mapping[str, str], output: Path, seeds: Sequence[int] = (),
    checker: Checker | None = None,
) -> Trial:
    """Return a recipe's runs; what is refused keeps its message.

    Args:
        settings: config keys that the command sets for all of them.
        output: the folder of all recipes.
        seeds: instead of the recipe's.
        checker: shared by recipes, so that no data set is read twice.
    """
    where = {"OUTPUT_DIR": str(output / safe_name(recipe.name))}
    plan = replace(
        recipe.plan, override=dict(settings) | where, seeds=tuple(seeds) or recipe.plan.seeds
    )
    bare = replace(plan, override={k: v for k, v in plan.override.items() if k in FREE})
    checker = checker or Checker()
    trial = Trial(recipe, plan)
    number = 0
    for ours, papers in zip(combinations(plan), combinations(bare), strict=True):
        row = Row(ours.column, ours.row)
        trial.rows.append(row)
        try:
            row.own = jobs_of(bare, papers)[0]
            jobs = jobs_of(plan, ours)
            row.job, row.changed = jobs[0], _changed(row.own, jobs[0])
            row.runs = len(jobs)
            cells = []
            for job in jobs:
                cells.append(checker.cell(number, ours, job))
                number += 1
            row.cells = tuple(cells)
        except FedvlmError as error:
            row.why = _first(str(error))
    _own_folders(trial)
    return trial


def protocol_rows(plan: SweepPlan) -> list[Row]:
    """Return the rows of a plan by their first seed's config; no data set is looked for."""
    first = replace(plan, seeds=plan.seeds[:1])
    rows = []
    for cell in combinations(first):
        job = jobs_of(first, cell)[0]
        rows.append(Row(cell.column, cell.row, job, job, runs=len(plan.seeds)))
    return rows


def _own_folders(trial: Trial) -> None:
    """Refuse rows whose runs would lie in one folder (``ConfigError``)."""
    first: dict[Path, Row] = {}
    for row in trial.rows:
        for cell in row.cells:
            other = first.setdefault(cell.folder, row)
            if other is not row:
                raise ConfigError(
                    f"recipe {trial.recipe.name}: {row.method} and {other.method} on {row.dataset} "
                    "have the same run folder; give one of them a tag:"
                )


def leave_out_without_towers(rows: Iterable[Row]) -> None:
    """Take the runs out whose backbone cannot be loaded, once for all, with the reason.

    So that a hundred runs do not fail one after the other for one missing file.
    """
    seen: dict[str, str] = {}
    for row in rows:
        if row.job is None:
            continue
        cfg = row.job.cfg
        key = repr(sorted((k, v) for k, v in flat(cfg).items() if k.startswith("MODEL.")))
        if key not in seen:
            try:
                Inputs().backbone(cfg, torch.device("cpu"))
                seen[key] = ""
            except FedvlmError as error:
                seen[key] = _first(str(error))
        if seen[key]:
            row.why = seen[key]


def _changed(recipes: Job, job: Job) -> str:
    """Return how the command's words change the protocol; empty where they do not."""
    there, here = flat(recipes.cfg), flat(job.cfg)
    keys = [k for k in here if k not in FREE and here[k] != there[k]]
    said = [f"{k} {here[k]} for {there[k]}" for k in keys[:MOST]]
    more = f" and {len(keys) - MOST} more" if len(keys) > MOST else ""
    return ", ".join(said) + more


class Measured:
    """What the run folders of a trial say.

    Args:
        pending: why a run that could have been made was not.

    Raises:
        ConfigError: run folders that hold another run.
    """

    def __init__(self, trial: Trial, pending: str) -> None:
        self.trial, self.pending = trial, pending
        cells = trial.cells
        self.states: dict[int, CellState] = {}
        self.runs: dict[Path, FinishedRun] = {}
        if cells and trial.folder.is_dir():
            self.states = states(cells, Journal(trial.folder, trial.plan.name))
            self.runs = {run.path.resolve(): run for run in collect([trial.folder]).runs}

    def of(self, cell: Published) -> tuple[list[float], str, str]:
        """Return (values by seed in percent, why there are none, how the protocol differs)."""
        if cell.method in self.trial.recipe.absent:
            return [], self.trial.recipe.absent[cell.method], ""
        if cell.dataset == AVERAGE:
            return self._average(cell)
        row = self._row(cell.dataset, cell.method)
        values = [v for run in self._runs(row) if (v := run.value(cell.metric)) is not None]
        if not values and self._runs(row):
            return [], f"its runs have no number '{cell.metric}'", ""
        return values, "" if values else self._why(row), self._protocol(row)

    def weights(self, cell: Published) -> str:
        """Return the digests of the backbones behind a cell, their first digits."""
        sets = cell.of if cell.dataset == AVERAGE else (cell.dataset,)
        digests = {str(run.protocol.get("backbone_digest", ""))[:DIGITS] for dataset in sets
                   for run in self._runs(self._row(dataset, cell.method))}
        return " ".join(sorted(filter(None, digests)))

    def sent(self, row: Row) -> float | None:
        """Return the numbers of 4 bytes that a client sent in a round; None without such a run."""
        if self._protocol(row):
            return None
        sent = [
            run.totals()["bytes_up"] / run.totals()["client_rounds"] / BYTES
            for run in self._runs(row) if run.totals().get("client_rounds")
        ]
        return mean(sent)

    def _average(self, cell: Published) -> tuple[list[float], str, str]:
        rows = [self._row(dataset, cell.method) for dataset in cell.of]
        changed = next((c for row in rows if (c := self._protocol(row))), "")
        tables = [{run.protocol["seed"]: run for run in self._runs(row)} for row in rows]
        seeds = [s for s in self.trial.plan.seeds if all(s in table for table in tables)]
        values = [
            v for seed in seeds if (v := self._mean(cell.metric, [t[seed] for t in tables]))
            is not None
        ]
        missing = [row for row, table in zip(rows, tables, strict=True) if not table]
        why = "no seed has all its data sets"
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            why = f"{missing[0].dataset}{more} of {len(rows)}: {self._why(missing[0])}"
        return values, "" if values else why, changed

    def _mean(self, metric: str, runs: Sequence[FinishedRun]) -> float | None:
        """Return one seed's average over data sets, by the paper's rule."""
        def of(name: str) -> float | None:
            values = [run.value(name) for run in runs]
            return None if None in values else mean(values)

        if self.trial.recipe.harmonic == H_OF_AVERAGES:
            if metric == "cm":
                return cm(of("personal"), harmonic_mean(*map(of, HM2)))
            if DEFINED[metric].parts:
                return harmonic_mean(*map(of, DEFINED[metric].parts))
        return of(metric)

    def _row(self, dataset: str, method: str) -> Row:
        return next(r for r in self.trial.rows if (r.dataset, r.method) == (dataset, method))

    def _runs(self, row: Row) -> list[FinishedRun]:
        """Return the row's finished runs of this config, whole ones."""
        return [
            self.runs[path] for cell in row.cells
            if (path := cell.folder.resolve()) in self.runs
            and self.states.get(cell.number, CellState("")).name == DONE
        ]

    def _protocol(self, row: Row) -> str:
        toys = (note for run in self._runs(row) for note in run.notes() if TOY in note)
        return row.changed or next(toys, "")

    def _why(self, row: Row) -> str:
        if row.why:
            return row.why
        mine = [self.states.get(cell.number, CellState("")) for cell in row.cells]
        failed = next((s.sentence for s in mine if s.name == FAILED), "")
        if failed:
            return _first(failed)
        if any(s.name == RUNNING for s in mine):
            return "another process is running it"
        return row.late or self.pending


def classes_of(job: Job) -> int:
    """Return how many classes the run's method is built for (``ConfigError``: set not known)."""
    info = dataset_info(job.cfg.DATASET.NAME)
    if info is None:
        raise ConfigError(f"the number of classes of {job.cfg.DATASET.NAME} is unknown without it")
    half = job.cfg.DATASET.SUBSAMPLE_CLASSES
    return {"base": info.base, "new": info.new}.get(half, info.classes)


def _first(text: str) -> str:
    """Return the first of several sentences, one a line."""
    first, *more = text.splitlines() or [""]
    return f"{first} (and {len(more)} more)" if more else first
