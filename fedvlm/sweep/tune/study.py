"""One method's search: which point is tried next, and what is known of it so far.

The sampler is Optuna's TPE (Bergstra et al., NIPS 2011, multivariate). For trial k it is made anew
with a seed of the method's name and k, from trials 0 to k - 1 alone: so a tuning that was killed
asks for the same trials again, whatever ran beside it, and two machines agree. Trial 0 is the
method's defaults. Optuna's own journal (``optuna.log``) is written along for its dashboard.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlm.config.knobs import Knob
from fedvlm.core.errors import ConfigError
from fedvlm.runs.seal import sha256
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.plan import PlanEntry
from fedvlm.sweep.tune.records import TrialScore
from fedvlm.sweep.tune.space import Params, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage

RANDOM = 6  # trials of a method, the first apart, before the sampler looks at scores


@dataclass
class SearchTrial:
    """A point and its runs.

    Attributes:
        number: from 0, the method's defaults.
        params: the point; None: not in the space (the method's defaults may lie outside of it).
        settings: config keys and words.
        cells: its runs, one for each set and seed, seed by seed.
        score: None: not yet, or dropped, diverged, refused (``why``).
        parts: scores of the seeds that have run, in order.
        guess: of a dropped trial, what the sampler is told instead of a score.
        seconds: of all its runs.
    """

    number: int
    params: Params | None
    settings: dict[str, str]
    cells: list[Cell] = field(default_factory=list)
    score: TrialScore | None = None
    parts: list[TrialScore] = field(default_factory=list)
    guess: float | None = None
    seconds: float = 0.0
    why: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left to run."""
        return self.score is not None or bool(self.why)


class Study:
    """The trials of a plan's entry.

    Args:
        entry: method with its settings.
        budget: trials.
        storage: Optuna's.
    """

    def __init__(self, entry: PlanEntry, budget: int, storage: BaseStorage) -> None:
        self.entry, self.budget, self.storage = entry, budget, storage
        self.trials: list[SearchTrial] = []
        self.space: Space | None = None
        self.failure = ""  # why there is no going on

    @property
    def done(self) -> bool:
        """Whether all trials are; a method without anything to tune has one."""
        most = 1 if self.space is not None and not self.space.knobs else self.budget
        return bool(self.failure) or len(self.trials) >= most

    @property
    def best(self) -> SearchTrial | None:
        """The trial with the highest score, the earliest of equal ones."""
        scored = [t for t in self.trials if t.score is not None]
        return max(scored, key=lambda t: t.score.value if t.score else 0.0, default=None)

    def ask(self) -> SearchTrial:
        """Return the next trial; those before it have ended."""
        trial = SearchTrial(len(self.trials), None, {})
        if trial.number:
            assert self.space is not None  # noqa: S101 (told after trial 0)
            trial.params = _suggest(self.entry.label, trial.number, self.space, self.trials)
            trial.settings = self.space.settings(trial.params)
        self.trials.append(trial)
        return trial

    def journal(self) -> None:
        """Write the trials into Optuna's storage.

        Raises:
            OSError: the disk takes nothing more.
        """
        if self.space is None:
            return
        try:
            study = _optuna().create_study(
                storage=self.storage, study_name=self.entry.label, direction="maximize",
                load_if_exists=True,
            )
            for trial in self.trials[len(study.get_trials(deepcopy=False)):]:
                study.add_trial(_frozen(trial, self.space))
        except RuntimeError as error:  # of Optuna's lock, which then cannot be given back
            if not isinstance(error.__context__, OSError):
                raise
            raise error.__context__ from None


def storage(path: Path) -> BaseStorage:
    """Return a new journal storage in a file; what was there is written again from the records.

    Raises:
        ConfigError: Optuna is not installed.
    """
    _optuna()
    from optuna.storages import JournalStorage  # optional: fedvlm[tune]
    from optuna.storages.journal import JournalFileBackend  # optional: fedvlm[tune]

    for old in (path, *path.parent.glob(f"{path.name}.lock*")):  # a killed process leaves its lock
        old.unlink(missing_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


def _suggest(label: str, number: int, space: Space, before: Sequence[SearchTrial]) -> Params:
    optuna = _optuna()
    seed = int(sha256(f"{label} {number}".encode())[:8], 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, n_startup_trials=RANDOM + 1
        )
    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.add_trials([_frozen(trial, space) for trial in before])
    asked = study.ask({knob.key: _distribution(knob) for knob in space.knobs})
    return {knob.key: asked.params[knob.key] for knob in space.knobs}


def _frozen(trial: SearchTrial, space: Space) -> Any:
    """Return an ended trial as Optuna has it; one without a score has failed."""
    optuna = _optuna()
    value = trial.score.value if trial.score is not None else trial.guess
    scored = value is not None and trial.params is not None
    params = trial.params or {}
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.COMPLETE if scored else optuna.trial.TrialState.FAIL,
        value=value if scored else None, params=params,
        distributions={k.key: _distribution(k) for k in space.knobs if k.key in params},
        user_attrs={"settings": trial.settings, "why": trial.why, "seconds": trial.seconds},
    )


def _distribution(knob: Knob) -> BaseDistribution:
    optuna = _optuna()
    if knob.choices:
        return optuna.distributions.CategoricalDistribution(knob.choices)
    if knob.whole:
        return optuna.distributions.IntDistribution(int(knob.low), int(knob.high), log=knob.log)
    return optuna.distributions.FloatDistribution(knob.low, knob.high, log=knob.log)


def _optuna() -> Any:
    try:
        import optuna  # optional: fedvlm[tune]
    except ModuleNotFoundError:
        raise ConfigError(
            "fedvlm tune needs Optuna: pip install -c constraints.txt 'fedvlm[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
