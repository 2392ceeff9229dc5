"""From a plan to cells: every config resolved, every mistake found, before anything runs.

A cell is one run of the main job in its usual run folder, so that every other command finds it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.data.datasets import load_for_training
from fedvlm.data.draw import DatasetDraw, spec_of
from fedvlm.data.partition.kinds import check_fits
from fedvlm.data.targets import load_targets
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.build import check_model, find_device
from fedvlm.job.describe import peft_choice, run_path
from fedvlm.job.engines.base import refuse_unread
from fedvlm.job.identity import WHERE, identity_config
from fedvlm.job.inputs import data_key
from fedvlm.job.request import Request
from fedvlm.job.resolve import Job, resolve
from fedvlm.runs.identity import identity_digest, identity_plain
from fedvlm.sweep.plan import PlanEntry, Settings, SweepPlan


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        number: its place in the sweep, from 0.
        dataset, method: labels of column and row; shots and axes included.
        seed: both seeds, unless the plan fixes DATA_SEED.
        words: the command line of the run, after ``fedvlm``.
        output, place: OUTPUT_DIR, and the run folder below it.
        digest: of the config keys that make the run's identity.
        config: those keys.
        group: cells of one group share data and backbone.
        device: ``DEVICE``; a GPU of the machine that runs the cell, not of this one.
        engine: ``FED.ENGINE``.
    """

    number: int
    dataset: str
    method: str
    seed: int
    words: tuple[str, ...]
    output: Path
    place: Path
    digest: str
    config: dict[str, Any]
    group: str
    device: str = "auto"
    engine: str = "local"

    def __str__(self) -> str:
        return f"{self.dataset} {self.method} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.output / self.place

    @property
    def key(self) -> str:
        """Name of the cell in the journal: its run folder below OUTPUT_DIR."""
        return self.place.as_posix()


@dataclass(frozen=True)
class Combination:
    """A column and a row of the plan: what all its seeds share."""

    dataset: PlanEntry
    trainer: PlanEntry
    settings: dict[str, tuple[str, str]]  # key -> (value, where it stands in the plan)
    column: str
    row: str


def combinations(plan: SweepPlan) -> Iterator[Combination]:
    """Yield data set by data set: shots, then axes, then methods."""
    for dataset, shots in itertools.product(plan.datasets, plan.shots or (None,)):
        for values in itertools.product(*plan.axes.values()):
            axes = dict(zip(plan.axes, values, strict=True))
            marks = [f"{_short(k, plan)}{v}" for k, v in axes.items()]
            for trainer in plan.trainers:
                merged: dict[str, tuple[str, str]] = {}
                fixed = {} if shots is None else {"DATASET.NUM_SHOTS": str(shots)}
                layers: tuple[tuple[str, Settings], ...] = (
                    ("common", plan.common), (f"datasets: {dataset.label}", dataset.settings),
                    (f"tuned: {trainer.label}", trainer.tuned),
                    (f"trainers: {trainer.label}", trainer.settings), ("shots", fixed),
                    ("axes", axes), ("command line", plan.override),
                )
                for where, settings in layers:
                    merged |= {k: (v, f"of {where}") for k, v in settings.items()}
                # The command's tag joins one of the plan, which distinguishes its methods.
                own = [s["TAG"] for _, s in layers[:-1] if s.get("TAG")][-1:]
                tags = filter(None, dict.fromkeys([*own, plan.override.get("TAG", "")]))
                if own or marks:
                    merged["TAG"] = ("-".join([*tags, *marks]), "of axes" if marks else "of tags")
                column = dataset.label if shots is None else f"{dataset.label} {shots}"
                yield Combination(
                    dataset, trainer, merged, column, " ".join([trainer.label, *marks])
                )


def _short(key: str, plan: SweepPlan) -> str:
    """Return the last word of an axis' key, unless two axes share it."""
    last = key.rpartition(".")[2].lower()
    same = [k for k in plan.axes if k.rpartition(".")[2].lower() == last]
    return last if len(same) == 1 else key.lower()


def jobs_of(plan: SweepPlan, combination: Combination) -> list[Job]:
    """Return one resolved config per seed.

    Raises:
        ConfigError: one line per mistake.
    """
    file = combination.dataset.name.lower().endswith((".yaml", ".yml"))
    strange = _others_options(combination)
    request = Request(
        dataset="" if file else combination.dataset.name,
        dataset_config_file=combination.dataset.name if file else "",
        trainer=combination.trainer.name, trainer_config_file=combination.trainer.config,
        flags={k: v for k, (v, _) in combination.settings.items() if k not in strange},
        flag_names={k: f"{k} ({where})" for k, (_, where) in combination.settings.items()},
        seeds=tuple(plan.seeds),
    )
    try:
        jobs = list(resolve(request).jobs)
    except ConfigError as error:
        raise ConfigError("\n".join([*strange.values(), str(error)])) from None
    if strange:
        raise ConfigError("\n".join(strange.values()))
    return jobs


def _others_options(combination: Combination) -> dict[str, str]:
    """Return key -> error message for options of other methods than the combination's."""
    keys = [k for k in combination.settings if k.startswith("TRAINER.") and k.count(".") > 1]
    if not keys:
        return {}
    method = load_trainer(combination.trainer.name).name
    names = [load_trainer(stem).name for stem in trainer_files()]
    owner = {f"TRAINER.{name.upper()}": name for name in names if name != method}
    return {
        key: f"{key} ({combination.settings[key][1]}) is an option of {other}, not of {method}: "
        f"move it to the entry of {other} under trainers"
        for key in keys if (other := owner.get(key.rpartition(".")[0]))
    }


def command_words(combination: Combination, job: Job) -> tuple[str, ...]:
    """Return the command line that gives the same config without the plan."""
    values = flat(job.cfg)
    file = combination.dataset.name.lower().endswith((".yaml", ".yml"))
    head = ["run", "--dataset-config-file" if file else "--dataset", combination.dataset.name]
    head += ["--trainer", combination.trainer.name]
    if combination.trainer.config:
        head += ["--trainer-config-file", combination.trainer.config]
    told = [
        k for k, origin in job.origins.items() if origin.startswith("flag ") and k != "TRAINER.NAME"
    ]
    return (*head, *(word for k in told for word in (k, str(values[k]))))


class Checker:
    """What can be refused before a run begins, asked once for each distinct thing."""

    def __init__(self) -> None:
        self.names: dict[str, str | FedvlmError] = {}

    def data_name(self, job: Job) -> str:
        """Return the data set's own name; its lists are read and the partition fits.

        Raises:
            ConfigError, DataError: as the run itself would.
        """
        seedless = job.cfg.clone()
        seedless.defrost()
        seedless.DATA_SEED = 0  # lists and room do not depend on it
        key = data_key(seedless)
        if key not in self.names:
            try:
                self.names[key] = _data_name(job)
            except FedvlmError as error:
                self.names[key] = error
        name = self.names[key]
        if isinstance(name, FedvlmError):
            raise name
        return name

    def cell(self, number: int, combination: Combination, job: Job) -> Cell:
        """Return the cell of a config.

        Raises:
            FedvlmError: what the run itself would refuse.
        """
        cfg = job.cfg
        if cfg.DRAFT:
            raise ConfigError("--draft works with single runs, not with sweeps; drop it")
        refuse_unread(cfg)
        load_trainer(cfg.TRAINER.NAME)(cfg)
        choice = peft_choice(cfg, job.origins)
        check_model(cfg, find_device(cfg.DEVICE, here=False))
        place = run_path(cfg, self.data_name(job), load_trainer(cfg.TRAINER.NAME).name + choice)
        config = identity_plain(identity_config(cfg))
        return Cell(
            number, combination.column, combination.row, int(cfg.SEED),
            command_words(combination, job), Path(cfg.OUTPUT_DIR), place.relative(),
            identity_digest(config), config | {"TRAINER.NAME": cfg.TRAINER.NAME},
            _group(data_key(job.cfg), _model_keys(job.cfg)), str(cfg.DEVICE), str(cfg.FED.ENGINE),
        )

    def with_seeds(self, cell: Cell, job: Job, seeds: Sequence[int], fixed: bool) -> list[Cell]:
        """Return a cell for each seed, as ``cell`` gives them: only what a seed moves is anew.

        Args:
            cell: of ``job``, which has the first seed.
            fixed: whether the plan fixes ``DATA_SEED``.
        """
        name, method = self.data_name(job), load_trainer(job.cfg.TRAINER.NAME).name
        choice = peft_choice(job.cfg, job.origins)
        own = identity_plain(identity_config(job.cfg))
        data, model, cfg = json.loads(data_key(job.cfg)), _model_keys(job.cfg), job.cfg.clone()
        cfg.defrost()
        out = [cell]
        for seed in seeds[1:]:
            cfg.SEED, cfg.DATA_SEED = seed, job.cfg.DATA_SEED if fixed else seed
            both = {"SEED": int(cfg.SEED), "DATA_SEED": int(cfg.DATA_SEED)}
            config = own | {k: v for k, v in both.items() if k in own}
            data[0] |= {k: v for k, v in both.items() if k in data[0]}
            words = list(cell.words)
            for at in range(len(words) - 2, 0, -2):  # pairs; a value may be the name of a key
                words[at + 1] = str(both.get(words[at], words[at + 1]))
            place = run_path(cfg, name, method + choice).relative()
            out.append(replace(
                cell, seed=seed, words=tuple(words), place=place, digest=identity_digest(config),
                config=config | {"TRAINER.NAME": cfg.TRAINER.NAME},
                group=_group(json.dumps(data, sort_keys=True), model),
            ))
        return out


def _model_keys(cfg: CfgNode) -> dict[str, Any]:
    return {k: v for k, v in flat(cfg).items() if k.startswith("MODEL.")}


def _group(data: str, model: Mapping[str, Any]) -> str:
    """Return a key that cells share whose data and backbone are the same."""
    return identity_digest({"data": data, "model": dict(model)})[:16]


def _data_name(job: Job) -> str:
    data, spec = load_for_training(job.cfg), spec_of(job.cfg)
    selection = DatasetDraw(data, spec)
    if not job.cfg.FED.INDEX_FILE:
        check_fits(selection.spec, selection.pool, data.num_classes, data.name)
        selection.hold_out()
    load_targets(job.cfg, data.name)
    return data.name


def cells_of(plan: SweepPlan) -> list[Cell]:
    """Return all cells, seed by seed (a stop leaves all methods alike), data set by data set.

    Raises:
        ConfigError, DataError: every mistake of every cell, one line each.
    """
    checker, wrong = Checker(), Mistakes(plan)
    by_seed: dict[int, list[Cell]] = {seed: [] for seed in plan.seeds}
    for combination in combinations(plan):
        try:
            (job,) = jobs_of(replace(plan, seeds=plan.seeds[:1]), combination)
            first = checker.cell(0, combination, job)
            fixed = "DATA_SEED" in combination.settings
            for cell in checker.with_seeds(first, job, plan.seeds, fixed):
                by_seed[cell.seed].append(cell)
        except FedvlmError as error:
            wrong.add(combination, error)
    cells = [replace(cell, number=i) for i, cell in enumerate(itertools.chain(*by_seed.values()))]
    wrong.shared_folders(cells)
    wrong.check()
    return cells


def unread_axes(plan: SweepPlan, cells: Sequence[Cell]) -> list[str]:
    """Return a sentence for each axis that some cells do not read: they are then the same run."""
    said = []
    for key in (k for k in plan.axes if k not in WHERE):
        alike: dict[tuple[str, ...], dict[str, Cell]] = {}
        for cell in cells:
            if key in cell.words and key not in cell.config:
                same = (cell.dataset, str(cell.seed), cell.config["TRAINER.NAME"], cell.digest)
                value = cell.words[cell.words.index(key) + 1]
                alike.setdefault(same, {}).setdefault(value, cell)
        twins = [list(group.values()) for group in alike.values() if len(group) > 1]
        if twins:
            one, other = twins[0][:2]
            said.append(f"{key} changes nothing in {sum(map(len, twins))} cells, whose other "
                        f"settings do not read it: '{one}' and '{other}' are the same run")
    return said


class Mistakes:
    """Mistakes of a plan's cells: each message once, with its cells."""

    def __init__(self, plan: SweepPlan) -> None:
        self.plan, self.data_only = plan, True
        self.sentences: dict[str, list[str]] = {}

    def add(self, combination: Combination, error: FedvlmError) -> None:
        """Note what a combination was refused for."""
        self.data_only = self.data_only and isinstance(error, DataError)
        for line in str(error).splitlines():
            self.sentences.setdefault(line, []).append(f"{combination.column} {combination.row}")

    def shared_folders(self, cells: list[Cell]) -> None:
        """Note cells that would lie in one run folder."""
        first: dict[Path, Cell] = {}
        told = set[tuple[str, ...]]()
        for cell in cells:
            other = first.setdefault(cell.folder, cell)
            pair = (other.dataset, other.method, cell.dataset, cell.method)
            if other is not cell and pair not in told:  # other seeds say the same
                told.add(pair)
                self.data_only = False
                line = (f"'{other}' and '{cell}' have the same run folder ({cell.key}); give one "
                        "of them a tag")
                self.sentences.setdefault(line, []).append(str(cell))

    def check(self) -> None:
        """Raise all mistakes, if there are any."""
        if not self.sentences:
            return
        total = len(list(combinations(self.plan)))
        lines = []
        for line, cells in self.sentences.items():
            where = "" if len(cells) == total or len(cells) == 1 and cells[0] in line else (
                f" ({cells[0]}" + (f" and {len(cells) - 1} more)" if len(cells) > 1 else ")")
            )
            lines.append(f"sweep {self.plan.name}: {line}{where}")
        raise (DataError if self.data_only else ConfigError)("\n".join(lines))
