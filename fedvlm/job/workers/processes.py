"""Worker processes of a run: their command, their environment, their number, the run's name."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from yacs.config import CfgNode

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.repository import PACKAGE
from fedvlm.core.threads import given_threads, usual_threads
from fedvlm.job.engines.states import NAME, PLACE, RUN
from fedvlm.runs.folder import RunFolder

MODULE = "fedvlm.job.workers"


def run_id(folder: RunFolder) -> str:
    """Return the name under which workers keep a run's states: random, written when it begins.

    Runs of two output folders may have one place for states. A run that was begun before there were
    such names has that of its identity and the end of its path.

    Raises:
        DataError: the name cannot be read or written, or is none.
    """
    place = folder.path / PLACE
    with files.explain_errors(place / NAME):
        place.mkdir(exist_ok=True)
        if (place / NAME).is_file():
            name = (place / NAME).read_text(encoding="utf-8", errors="replace").strip()
            if not RUN.fullmatch(name):
                raise DataError(
                    f"'{place / NAME}' is damaged: it does not contain the run's name, which "
                    "names the folder of the workers' states"
                )
            return name
        words = json.dumps([folder.digest, *folder.path.parts[-7:]])
        name = hashlib.sha256(words.encode()).hexdigest()
        if not (place / name).is_dir() and not any((folder.path / "state").glob("round_*")):
            name = secrets.token_hex(32)
        files.write_text(place / NAME, name + "\n")
    return name


def size_of(cfg: CfgNode) -> tuple[int, int]:
    """Return how many workers, and the threads of each.

    ``FED.WORKERS`` 0: one per GPU, or per group of as many cores as the work can use.
    """
    count, backbones, cores = int(cfg.FED.WORKERS), {cfg.MODEL.BACKBONE.NAME}, core_count()
    if not count:
        devices = torch.cuda.device_count() if _spreads(cfg) else 0
        count = devices or max(1, cores // usual_threads(backbones, os.environ, cores))
    return count, usual_threads(backbones, os.environ, cores, count)


def sharing(cfg: CfgNode) -> int:
    """Return how many workers the fullest GPU has, each of which takes memory for its chunk."""
    return -(-size_of(cfg)[0] // (torch.cuda.device_count() if _spreads(cfg) else 1))


def _spreads(cfg: CfgNode) -> bool:
    """Say whether each worker gets a GPU of its own."""
    return cfg.DEVICE in ("auto", "cuda") and torch.cuda.is_available()


def worker_command(folder: Path, states: Path, *words: str) -> list[str]:
    """Return the command of a worker (``__main__``)."""
    return [sys.executable, "-m", MODULE, str(folder), str(states), *words]


def worker_environment(cfg: CfgNode, threads: int, slot: int) -> Mapping[str, str]:
    """Return the environment of a worker: its threads, its GPU, and where this fedvlm lies."""
    out = dict(os.environ)
    above = str(PACKAGE.parent)
    out["PYTHONPATH"] = os.pathsep.join([above, *filter(None, [out.get("PYTHONPATH")])])
    if given_threads(out) is None:
        out["OMP_NUM_THREADS"] = str(threads)
    if _spreads(cfg):
        visible = [w for w in out.get("CUDA_VISIBLE_DEVICES", "").split(",") if w]
        count = torch.cuda.device_count()
        # CUDA takes the names up to the first that it does not know.
        names = visible[:count] or [str(i) for i in range(count)]
        out["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    return out


def core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
