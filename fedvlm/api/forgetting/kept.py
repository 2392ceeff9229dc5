"""The last kept state that nothing forgotten has touched, and a run that goes on from it.

Cohorts are drawn from the clients' numbers, and a forgotten client keeps its own: who works in a
round is the same with it away. A round without it gives the same bits if the server makes its
model of what the clients of that round sent, and of nothing else. ``kept_start`` refuses every
setting and method where that is not known; then the whole run is done again. Evaluations counted
the images that leave, so they are made again on every state that has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from yacs.config import CfgNode

from fedvlm.api.rebuild import rebuild
from fedvlm.console.screen import progress
from fedvlm.core.errors import DataError
from fedvlm.federation.discovery import Trust
from fedvlm.federation.groups import FAIR
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.rounds import Federation, FedState, RoundFinished
from fedvlm.federation.server import Measure, Row
from fedvlm.federation.trainer import Trainer
from fedvlm.job.build import Built, complete_run, prepare_run
from fedvlm.job.describe import peft_choice, run_path
from fedvlm.job.engines.states import PLACE
from fedvlm.job.inputs import Inputs
from fedvlm.job.record import make_evaluator, round_record
from fedvlm.job.resolve import Job
from fedvlm.job.results.private import BEGUN
from fedvlm.job.run import named_metrics, threads_of
from fedvlm.runs import manifest
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.folder import START, RunFolder
from fedvlm.runs.identity import read_manifest
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.seal import sha256
from fedvlm.runs.state import load_newest_state, open_records, rounds_on_disk
from fedvlm.runs.tensors import to_storable

SERVER_HOOKS = ("init_server", "download", "combine", "aggregate", "shared")
OF_UPDATES = ("partial", "outliers", "similarity")  # of a round's line, where it has them


@dataclass(frozen=True)
class KeptStart:
    """Where a run without something begins.

    Attributes:
        round: of the kept state; 0: the untrained model.
        why: why there and not later, for the screen.
    """

    round: int
    why: str


def first_round(run: FinishedRun, clients: Sequence[int]) -> int:
    """Return the first round that drew one of some clients; one more than all for none."""
    for row in run.rounds()[1:]:
        drawn = {*row.get("participants", ()), *map(int, row.get("dropped", ()))}
        if {*clients} & drawn:
            return int(row["round"])
    return int(run.protocol["rounds"]) + 1


def kept_start(
    path: Path, run: FinishedRun, cfg: CfgNode, clients: Sequence[int], trust: Trust,
    trained: bool = True,
) -> KeptStart:
    """Return the last kept state before the first round that drew one of ``clients``.

    Args:
        path, run, cfg: the old run, whole.
        clients: those that lose an image.
        trained: one of the images is a training image.
    """
    first = first_round(run, clients)
    if first <= 1:
        return KeptStart(0, "as the images were trained on in round 1" if trained else
                         "as the client of the images was drawn in round 1 (they were not trained "
                         "on: its results count them)")
    late = f"although their clients were first drawn in round {first}"
    if first > int(run.protocol["rounds"]):
        late = "although their clients were never drawn"
    odd = _odd_setting(path, run, cfg)
    if odd:
        return KeptStart(0, f"{late}: {odd}")
    last = min(first, int(run.protocol["rounds"])) - 1  # the last round is always run
    kept = {r for r in rounds_on_disk(path / "state") if 0 < r <= last and load_newest_state(
        path / "state", identity=run.digest, only=r)[0] is not None}
    every, lacking = int(cfg.TEST.EVAL_EVERY) or 1, 0
    for r in sorted(kept, reverse=True):
        lacking = next((n for n in range(every, r + 1, every) if n not in kept), 0)
        if not lacking:
            odd = _odd_server(rebuild(path, str(cfg.DEVICE), trust=trust).federation)
            return KeptStart(0, f"{late}: {odd}") if odd else KeptStart(
                r, f"the last that is kept before a client of the images was drawn (round {first})"
                if first <= last + 1 else "the last that is kept before the end; no client of the "
                "images was drawn before")
    return KeptStart(0, f"{late}: " + (
        f"the evaluation after round {lacking} counted the images, and its state is not kept to "
        "make it again" if lacking else f"no state up to round {last} is kept"
    ) + " (TRAIN.KEEP_STATES all keeps every one)")


def _odd_setting(path: Path, run: FinishedRun, cfg: CfgNode) -> str:
    """Return why a state of the run may know of clients that did not work; empty: it does not."""
    fed, here = cfg.FED, manifest.session()
    sessions = (read_manifest(path) or {}).get("sessions", ())
    moved = [line for session in sessions for line in manifest.differences(session, here)
             if not line.startswith("git.")]
    odd = {
        f"FED.BUDGET {fed.BUDGET} counts the work of all clients": fed.BUDGET != "rounds",
        "FED.PATIENCE looks at validation images of all clients": fed.PATIENCE,
        "TEST.SELECT val looks at validation images of all clients": cfg.TEST.SELECT == "val",
        f"FED.WEIGHTING {fed.WEIGHTING} reads losses of all clients": fed.WEIGHTING in FAIR,
        "FED.MIN_IMAGES chooses the clients by their images": fed.MIN_IMAGES,
        "attackers are drawn among all clients (FED.HOSTILE)": fed.HOSTILE,
        "noise is sized by all clients (FED.DP)": any((fed.DP.CLIP, fed.DP.NOISE, fed.DP.EPSILON)),
        "an asynchronous server orders all clients (FED.UNRELIABLE.BUFFER)": fed.UNRELIABLE.BUFFER,
        "its clients' states are kept by workers": (
            fed.ENGINE != "local" or (path / PLACE).is_dir()),
        "a number of its rounds is not finite": any("non_finite" in r for r in run.rounds()),
        f"it was made elsewhere ({', '.join(moved[:2])}), and other machines give other bits":
            moved or not sessions,
    }
    return next((why for why, there in odd.items() if there), "")


def _odd_server(federation: Federation) -> str:
    """Return why a method's server may read more than updates; empty: it does not."""
    trainer, groups = federation.trainer, federation.groups
    own = [h for h in SERVER_HOOKS if getattr(type(trainer), h) not in (
        getattr(Trainer, h), getattr(PeftTrainer, h))]
    if own or groups.server or federation.plan.fairness:
        what = f"its own {own[0]}" if own else "tensors of its own"
        return f"the server of {trainer.name} has {what}, which may read the sizes of all clients"
    return ""


def begin_kept(
    path: Path, run: FinishedRun, job: Job, round_: int, inputs: Inputs
) -> None:
    """Make the new run's folder, up to a round, of the old run's; ``run_job`` goes on from there.

    A folder that has a state or results already stays as it is.

    Args:
        path, run: the old run.
        job: the new one.

    Raises:
        FedvlmError: as a run; the old one began with other tensors than this machine makes.
    """
    cfg = job.cfg
    with threads_of(cfg):
        choice = peft_choice(cfg, job.origins)
        prepared = prepare_run(cfg, progress, inputs=inputs)
        place = run_path(cfg, prepared.data.name, prepared.trainer.name + choice)
        there = Path(cfg.OUTPUT_DIR) / place.relative() / "state"
        if there.is_dir() and rounds_on_disk(there):
            return
        folder = RunFolder.claim(cfg.OUTPUT_DIR, place, prepared.identity)
        if folder.finished is not None:
            return
        folder.keep = int(cfg.TRAIN.KEEP_STATES)
        with folder:
            built = complete_run(prepared, progress)
            built.meter.named = named_metrics(prepared, job.origins)
            facts = (read_manifest(path) or {}).get("facts", {})
            ours = sha256(safetensors.torch.save(to_storable(built.federation.p0)))
            if ours != facts.get(START) or built.identity["chunk"] != facts.get("chunk"):
                raise DataError(f"'{path}' began with other tensors, or other chunks of clients, "
                                "than this machine makes: its states cannot be gone on from here; "
                                "run again with another --tag without the images")
            folder.begin(resume=False)
            state = _rounds_again(built, folder, path, run, round_)
            folder.record_facts(**{BEGUN: {"run": run.digest, "round": round_}})
            folder.save_state(
                round_, state.server, built.federation.save(state, folder.records))


def _rounds_again(
    built: Built, folder: RunFolder, path: Path, run: FinishedRun, last: int
) -> FedState:
    """Write the lines of rounds 0 to ``last``, their evaluations anew; return the last state."""
    federation, evaluator = built.federation, make_evaluator(built)
    evaluator.named = built.meter.named
    state = federation.start()
    for old in read_metrics(path / "metrics.jsonl")[0][: last + 1]:
        round_ = int(old["round"])
        due = evaluator.panel.due(round_, federation.last_round)
        if round_ and (due or round_ == last):
            state = _state_of(federation, path, run, round_)
        event = _event_of(federation, state, old)
        names = {*round_record(event), *OF_UPDATES}
        line = {name: value for name, value in old.items() if name in names}
        folder.append_metrics(line | (evaluator(event) or {} if due else {}))
        progress("kept rounds", round_, last)
    return state


def _state_of(federation: Federation, path: Path, run: FinishedRun, round_: int) -> FedState:
    saved, notes = load_newest_state(path / "state", identity=run.digest, only=round_)
    if saved is None or saved.records is None:
        raise DataError(f"'{path}': its state of round {round_} cannot be read any more: "
                        f"{'; '.join(notes) or 'it is gone, or of an old form'}")
    logs = open_records(path / "state", run.digest, saved.records)
    return federation.load(round_, saved.server, logs)


def _event_of(federation: Federation, state: FedState, old: Mapping[str, Any]) -> RoundFinished:
    """Return a kept round as evaluations see it: its state, and whom it drew."""
    def rows(clients: Sequence[int], measure: Measure) -> list[Row]:
        return federation.rows(state, clients, measure)

    drawn = {*old["participants"], *map(int, old["dropped"])}
    return RoundFinished(
        int(old["round"]), federation.last_round, state.server, federation.shared(state),
        federation.roster, rows, dropped=dict.fromkeys(sorted(drawn), ""),
    )
