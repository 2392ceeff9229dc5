"""Whole jobs on a card by ``fedvlm``'s own verbs: run, stop and resume, replay, move, use."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.core.errors import FedvlmError
from fedvlm.federation.rounds import Federation

STOPPED = 130  # exit code of Ctrl-C
TINY = ("--backbone", "tiny")
RUN = ("run", "--demo", "--trainer", "FedTV", "--partition", "disjoint", "--num-users", "2",
       "--local-epochs", "1")


class Job:
    """Steps of a job, each a command in this process; the first that goes wrong ends it.

    Attributes:
        steps: of those that went well, the seconds.
    """

    def __init__(self, into: Path, device: str, words: tuple[str, ...]) -> None:
        self.into, self.device, self.words = into, device, words
        self.steps: dict[str, float] = {}

    def step(self, name: str, *words: str, code: int = 0) -> None:
        """Run a command that ends with ``code``.

        Raises:
            FedvlmError: it ends with another.
        """
        out, began = io.StringIO(), time.perf_counter()
        with redirect_stdout(out), redirect_stderr(out):
            found = main(list(words))
        if found != code:
            last = (out.getvalue().strip().splitlines() or ["it ended without a word"])[-1]
            raise FedvlmError(f"{name}: exit code {found}, not {code}: {last}")
        self.steps[name] = time.perf_counter() - began

    def run(self, name: str, place: str, *words: str, rounds: int, code: int = 0) -> None:
        """Train in a folder of its own; ``words`` count more than the usual ones."""
        self.step(name, *RUN, "--device", self.device, "--output-dir", str(self.into / place),
                  *words, *self.words, "FED.ROUNDS", str(rounds), code=code)

    def folder(self, place: str) -> Path:
        """Return the run's folder."""
        (found,) = [p.parent for p in (self.into / place).rglob("manifest.json")]
        return found


@contextmanager
def stopped_in(round_: int) -> Iterator[None]:
    """Stop a run as Ctrl-C does, when it begins a round."""
    plain: Callable[..., Any] = Federation.round

    def round_or_stop(self: Federation, state: Any, number: int, *rest: Any) -> Any:
        if number == round_:
            raise KeyboardInterrupt
        return plain(self, state, number, *rest)

    with mock.patch.object(Federation, "round", round_or_stop):
        yield


def try_job(part: str, device: str, words: tuple[str, ...], into: Path) -> dict[str, Any]:
    """Train two rounds, whole and stopped in between; replay, move to a processor and back, use.

    Args:
        words: that choose the backbone.
        into: an empty folder for the runs.

    Returns:
        ``steps``: seconds of each; ``same_bits``: a resumed run's state is that of a whole one;
        ``failed``: what went wrong, and where.
    """
    job = Job(into, device, words)
    out: dict[str, Any] = {"part": part, "steps": job.steps}
    try:
        out["same_bits"] = _trained(job)
        _used(job)
    except (FedvlmError, RuntimeError, ValueError) as error:
        return out | {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    return out if out["same_bits"] else out | {"failed": "a resumed run has other bits"}


def _trained(job: Job) -> bool:
    job.run("run", "whole", rounds=2)
    with stopped_in(2):
        job.run("stop", "resumed", rounds=2, code=STOPPED)
    job.run("resume", "resumed", rounds=2)
    job.step("replay", "verify", "--replay", "1", str(job.folder("resumed")))
    with stopped_in(2):
        job.run("stop before the move", "moved", rounds=3, code=STOPPED)
    there = ("--continue-elsewhere",)
    with stopped_in(3):
        job.run("to the processor", "moved", *there, "--device", "cpu", rounds=3, code=STOPPED)
    job.run("back to the card", "moved", *there, rounds=3)
    _check_moves(job)
    files = [sorted((job.folder(place) / "state").rglob("*.safetensors"))
             for place in ("whole", "resumed")]
    return len(files[0]) == len(files[1]) > 0 and all(
        a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))


def _check_moves(job: Job) -> None:
    """Look up in the manifest whether each session computed where it was asked to.

    Raises:
        FedvlmError: one did not.
    """
    told = json.loads((job.folder("moved") / "manifest.json").read_text(encoding="utf-8"))
    usual = told["identity"]["device"]  # a session elsewhere says its own
    found = [session["machine"].get("device", usual) for session in told["sessions"]]
    if found != ["cuda", "cpu", "cuda"]:
        raise FedvlmError(f"moves: the sessions say that they computed on {', '.join(found)}")


def _used(job: Job) -> None:
    run, image = str(job.folder("whole")), job.into / "image.png"
    Image.fromarray(torch.full((64, 64, 3), 90, dtype=torch.uint8).numpy()).save(image)
    device = ("--device", job.device)
    job.step("evaluate", "evaluate", run, "--dataset", "shapes", *device)
    job.step("predict", "predict", run, str(image), "--client", "1", *device)
    job.step("export", "export", run, "--to", str(job.into / "export"), "--format",
             "safetensors", *device)
