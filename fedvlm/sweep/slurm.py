"""An array script for SLURM: one task per cell, or per few of them. Nothing of a site is invented:
resources come from flags, further ``#SBATCH`` lines from ``--slurm-option``.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlm.core.errors import ConfigError

_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
_MEMORY = re.compile(r"\d+[KMGT]?")
_OPTION = re.compile(r"[a-z][a-z-]*(=[\w.,:/%+-]+)?")


def script(
    name: str, words: Sequence[str], cells: int, *, chunk: int = 1, time: str = "",
    memory: str = "", cpus: int = 1, options: Sequence[str] = (),
) -> str:
    """Return the text of the script.

    Args:
        name: of the sweep, for the job's name.
        words: of the sweep, without ``--slurm*``; each task adds ``--only``.
        cells: how many there are.
        chunk: cells per task.
        time, memory: as ``sbatch`` takes them; empty leaves the site's default.
        cpus: processors per task.
        options: further options without dashes, ``gres=gpu:1``.

    Raises:
        ConfigError: a resource that ``sbatch`` would not understand.
    """
    _check("--slurm-time", time, _TIME, "1:00:00")
    _check("--slurm-mem", memory, _MEMORY, "8G")
    for option in options:
        _check("--slurm-option", option.removeprefix("--"), _OPTION, "gres=gpu:1")
    last = (cells + chunk - 1) // chunk - 1
    wanted = [f"job-name={re.sub(r'[^A-Za-z0-9._-]', '_', name)}", f"array=0-{last}"]
    wanted += [f"cpus-per-task={cpus}"]
    wanted += [f"time={time}"] if time else []
    wanted += [f"mem={memory}"] if memory else []
    wanted += [option.removeprefix("--") for option in options]
    command = shlex.join([sys.executable, "-m", "fedvlm", "sweep", *words])
    return "\n".join([
        "#!/bin/bash",
        *(f"#SBATCH --{option}" for option in wanted),
        f"# fedvlm sweep {name}: {cells} cells, {chunk} per task. Submit it again after a stop:",
        "# finished cells are skipped, unfinished runs go on where they were.",
        "set -eu",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"export OMP_NUM_THREADS=${{SLURM_CPUS_PER_TASK:-{cpus}}}",
        f"first=$((SLURM_ARRAY_TASK_ID * {chunk}))",
        f"last=$((first + {chunk} - 1))",
        f"if [ \"$last\" -gt {cells - 1} ]; then last={cells - 1}; fi",
        f"exec {command} --only \"$first-$last\"",
        "",
    ])


def _check(flag: str, word: str, pattern: re.Pattern[str], example: str) -> None:
    if word and not pattern.fullmatch(word):
        raise ConfigError(f"{flag} wants something like {example}, got '{word}'")
