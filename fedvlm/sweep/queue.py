"""The queue of a batch system: SLURM's, or processes of this machine, both by ``submitit``.

Resources come from flags, nothing of a site is invented. Which jobs wait and which run is asked of
``squeue``; how one ended, of what it left (submitit's result file), ``scontrol`` and ``sacct``.
Source: https://slurm.schedmd.com/squeue.html, https://github.com/facebookincubator/submitit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.sweep.task import Task

SLURM = "slurm"
PENDING, RUNNING = "PENDING", "RUNNING"
DELAY = 90  # seconds between the signal and the end of a job: its worker has 60 to save
PATIENCE = 60  # seconds for squeue, sacct, scancel
HOUR = 60  # minutes
_MEMORY = re.compile(r"\d+[KMGT]?")
_OPTION = re.compile(r"[a-z][a-z-]*(=[\w.,:/%+-]+)?")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class Resources:
    """What a job gets.

    Attributes:
        minutes: until it is stopped, saved and queued again.
        memory: as ``sbatch`` takes it; empty leaves the site's default.
        cpus: processors of a job.
        options: further options of ``sbatch``.
        at_once: jobs that run at the same time; 0: as many as the queue lets run.
        requeues: how often a job that ran into its time limit is queued again.
    """

    minutes: int = HOUR
    memory: str = ""
    cpus: int = 1
    options: tuple[tuple[str, str | bool], ...] = ()
    at_once: int = 0
    requeues: int = 3


def minutes_of(word: str) -> int:
    """Return minutes of a time as ``sbatch`` takes it: ``90``, ``1:30:00``, ``2-12``; '' is 1 hour.

    Raises:
        ConfigError: it is none.
    """
    if not word:
        return HOUR
    match = _TIME.fullmatch(word)
    if match is None:
        raise ConfigError(f"--slurm-time expects a time such as 1:00:00, got '{word}'")
    days, first, *rest = (int(part or 0) for part in match.groups())
    if match[1] is not None:  # days-hours[:minutes[:seconds]]
        seconds = 86400 * days + 3600 * first + 60 * rest[0] + rest[1]
    elif match[4] is not None:  # hours:minutes:seconds
        seconds = 3600 * first + 60 * rest[0] + rest[1]
    else:  # minutes[:seconds]
        seconds = 60 * first + rest[0]
    minutes = -(-seconds // 60)
    if minutes * 60 <= DELAY:
        raise ConfigError(
            f"--slurm-time {word}: a job saves its state {DELAY} seconds before its end; allow at "
            "least 3 minutes"
        )
    return minutes


def read_resources(
    *, time: str = "", memory: str = "", cpus: int = 1, options: Sequence[str] = (),
    at_once: int = 0, requeues: int = 3,
) -> Resources:
    """Return what the flags say.

    Raises:
        ConfigError: a resource that ``sbatch`` would not understand.
    """
    if memory and not _MEMORY.fullmatch(memory):
        raise ConfigError(f"--slurm-mem expects an amount such as 8G, got '{memory}'")
    pairs: list[tuple[str, str | bool]] = []
    for option in (word.removeprefix("--") for word in options):
        if not _OPTION.fullmatch(option):
            raise ConfigError("--slurm-option expects an option such as gres=gpu:1, got "
                              f"'{option}'")
        name, _, value = option.partition("=")
        if name == "job-name":
            raise ConfigError("--slurm-option job-name: jobs are named after the sweep; use --name")
        pairs.append((name, value or True))
    return Resources(minutes_of(time), memory, cpus, tuple(pairs), at_once, requeues)


def open_queue(kind: str, folder: Path, name: str, resources: Resources) -> JobQueue:
    """Return the queue; its files (pickles, screens of jobs) lie in ``folder``.

    Raises:
        ConfigError: submitit is not installed, or there is no SLURM here.
    """
    try:
        import submitit  # optional: fedvlm[slurm]
    except ImportError:
        raise ConfigError(f"--launch {kind} needs submitit: pip install 'fedvlm[slurm]'") from None
    if kind == SLURM:
        lacking = [c for c in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(c) is None]
        if lacking:
            raise ConfigError(
                f"--launch slurm: this machine has no {', '.join(lacking)}; use a login node of "
                "the cluster, or --launch local on this machine"
            )
    executor: Any
    title = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    if kind == SLURM:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=resources.requeues)
        executor.update_parameters(
            job_name=title, time=resources.minutes,
            cpus_per_task=resources.cpus, signal_delay_s=DELAY,
            array_parallelism=resources.at_once or 10_000, stderr_to_stdout=True,
            setup=[f"export OMP_NUM_THREADS={resources.cpus}"],
            additional_parameters={"requeue": True, **dict(resources.options)},
            **({"mem": resources.memory} if resources.memory else {}),
        )
    else:
        executor = submitit.LocalExecutor(folder, max_num_timeout=resources.requeues)
        executor.update_parameters(
            timeout_min=resources.minutes, signal_delay_s=DELAY, stderr_to_stdout=True
        )
    return JobQueue(kind, folder, executor, title)


class JobQueue:
    """Where jobs wait and run.

    Attributes:
        name: what it is called on the screen.
        stays: whether jobs outlive the command that submitted them.

    Args:
        kind: ``slurm`` or ``local``.
        folder: of the jobs' files.
        executor: submitit's.
        title: what the names of jobs begin with.
    """

    def __init__(self, kind: str, folder: Path, executor: Any, title: str = "") -> None:
        self.name, self.stays, self._title = kind, kind == SLURM, title
        self._folder, self._executor, self._jobs = folder, executor, dict[str, Any]()

    def submit(self, tasks: Sequence[Task], mark: str) -> list[str]:
        """Submit one job per task, several as one array; return their ids.

        Args:
            mark: goes into the jobs' name, where they stay.

        Raises:
            FedvlmError: the system refuses them; its own words.
        """
        if self.stays:
            self._executor.update_parameters(job_name=f"{self._title}.{mark}")
        try:
            with self._executor.batch():
                jobs = [self._executor.submit(task) for task in tasks]
            ids = [str(job.job_id) for job in jobs]
        except Exception as error:  # submitit passes on whatever sbatch complains of
            words = " ".join(str(error).split())
            raise FedvlmError(f"{self.name} rejected the jobs: {words[-400:]}") from error
        self._jobs |= dict(zip(ids, jobs, strict=True))
        return ids

    def marked(self, mark: str) -> dict[int, str] | None:
        """Return task -> id of the jobs of a ``submit`` that was cut off.

        Only those that wait or run and have all they need, which submitit writes after ``sbatch``
        took a job; the others are ended. None where the queue does not answer.
        """
        if not self.stays:
            return {}
        answer = _ask(
            "squeue", "--noheader", "--array", f"--user={os.getuid()}",
            f"--name={self._title}.{mark}", "--format=%i",
        )
        if answer is None:
            return None
        jobs = answer.split()
        bare = [job for job in jobs if not self._handle(job).paths.submitted_pickle.exists()]
        self.cancel(bare)
        return {int(job.partition("_")[2] or 0): job for job in jobs if job not in bare}

    def states(self) -> dict[str, str] | None:
        """Return id -> state of all jobs that wait or run; None where the queue does not answer."""
        if not self.stays:
            return {i: RUNNING for i, job in self._jobs.items() if not job.done()}
        answer = _ask("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i|%T")
        if answer is None:
            return None
        pairs = (line.strip().partition("|") for line in answer.splitlines() if "|" in line)
        return {job: state for job, _, state in pairs}

    def end_of(self, job: str) -> str:
        """Return how a job ended that is not in the queue any more, in a few words.

        The last line of what it raised, else SLURM's word for it.
        """
        handle = self._handle(job)
        result = handle.paths.result_pickle
        if result.exists():
            error = handle.exception()
            lines = str(error or "").strip().splitlines()
            told = [line.strip() for line in lines if "Error: " in line] or lines[-1:]
            return told[-1].rpartition("Error: ")[2] if told else "COMPLETED"
        if not self.stays:
            return "its process was killed"
        fresh = _ask("scontrol", "show", "job", "--oneliner", job)  # for some minutes
        match = re.search(r"\bJobState=(\S+)", fresh or "")
        if match:
            return match[1]
        answer = _ask("sacct", "-X", "--noheader", "--parsable2", "-o", "State", "-j", job)
        return (answer or "").strip().partition("\n")[0] or "UNKNOWN"

    def cancel(self, jobs: Iterable[str]) -> None:
        """End jobs."""
        for job in jobs:
            self._handle(job).cancel(check=False)

    def _handle(self, job: str) -> Any:
        if job not in self._jobs:
            self._jobs[job] = self._executor.job_class(self._folder, job)
        return self._jobs[job]


def _ask(*command: str) -> str | None:
    """Return what a command prints; None where it fails: the system may be down for a while."""
    try:
        done = subprocess.run(  # noqa: S603 (SLURM's own, arguments are ours)
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
