"""Jobs that train nothing: ``--dry-run``, and CoOp's ``--eval-only`` and ``--no-train``.

A dry run builds everything and does one batch of one client and one aggregation. An evaluation
takes the trained tensors of another run's folder, on this command's data (``--subsample-classes
new``, another set), as CoOp's ``--eval-only --model-dir DIR --load-epoch N`` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.console.log import Headline, LogFile
from fedvlm.console.screen import Console, progress
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import read_json, user_path
from fedvlm.core.rows.store import move_state
from fedvlm.core.threads import peak_mib
from fedvlm.core.trees import Tree, numel, pick
from fedvlm.evaluation import Evaluator
from fedvlm.federation.aggregation.updates import join_updates
from fedvlm.federation.batches import SplitBatcher, Step
from fedvlm.federation.groups import SERVER, SHARED
from fedvlm.federation.local.images import Around
from fedvlm.federation.rounds import FedState, RoundFinished
from fedvlm.federation.server import Held, Measure, Row, only_numbers
from fedvlm.federation.workplace import PersonalModels, TrainingStart
from fedvlm.job.build import Built, build_run, complete_run, prepare_run
from fedvlm.job.describe import header, peft_choice, run_path
from fedvlm.job.images.packed import packs_of
from fedvlm.job.inputs import Inputs
from fedvlm.job.record import make_evaluator, whole_state
from fedvlm.job.request import Request
from fedvlm.job.results import summary
from fedvlm.job.sources import bank_words, check_bank, images_to_encode
from fedvlm.job.workers.processes import sharing
from fedvlm.runs.bits import LAST, PAIRED
from fedvlm.runs.claim import explain_place
from fedvlm.runs.identity import read_manifest, whole_results
from fedvlm.runs.names import RESULTS, method_name
from fedvlm.runs.private import public_text
from fedvlm.runs.state import SavedState, load_newest_state, open_records
from fedvlm.runs.verify.answer import (
    ANSWER,
    NEXT,
    answer_lines,
    federation_answer,
    has_baselines,
)
from fedvlm.runs.verify.check import refuse_damage
from fedvlm.runs.verify.models import covered_files, load_state


@dataclass(frozen=True)
class FirstStep(Around):
    """Only the first step of each fit."""

    def steps(
        self, clients: Sequence[int], round_: int, epochs: int | Sequence[int], per_step: int,
        tag: str, after: int = 0, limit: int = 0, most: Sequence[int] = (),
    ) -> Iterator[Step]:
        """Yield one step."""
        yield next(super().steps(clients, round_, epochs, per_step, tag, after, limit, most))


def dry_run(cfg: CfgNode, check: Callable[[Built], None]) -> int:
    """Print parameters, bytes per round, memory and an estimate of the time; write nothing.

    Args:
        check: refuses what a run refuses of its data and its folder.
    """
    built = build_run(cfg, pixels=True)
    check(built)
    streams = built.federation.trainer.streams(built.model)
    check_bank(cfg, built.model, built.data, built.loader, streams)
    federation, batcher = built.federation, built.federation.batcher
    assert isinstance(batcher, SplitBatcher)  # noqa: S101 (what build makes)
    everyone = range(federation.plan.clients)
    lengths = batcher.lengths(everyone, 1)
    steps = federation.plan.effort.totals(1, everyone, lengths)
    federation.batcher = FirstStep(batcher)
    state = federation.start()
    seconds = []
    given = federation.downloads(state, 1, [0])
    for _ in range(2):  # the first pays for warming up
        began = time.perf_counter()
        work = federation.engine.run(
            federation.trainer, lambda ids: federation.context(ids, 1), given,
            federation.clients, {0: 0},
        )
        seconds.append(time.perf_counter() - began)
    updates = join_updates([upload.arrive() for upload in work.uploads])
    federation.trainer.aggregate(
        federation.server_context(1, Held(federation.held, state.held)), state.server, updates
    )
    sent = sum(updates.bytes()[0].values())
    plan = federation.plan
    uploads = sum(len(plan.answering(r, lengths)) for r in range(1, plan.rounds + 1))
    share = uploads / (federation.plan.rounds * federation.plan.clients)
    personal = pick(federation.p0, federation.groups.personal)
    whole = sum(steps) * federation.plan.rounds * share * seconds[-1]
    packed = bool(packs_of(built.data.samples))
    images = 0 if packed else images_to_encode(built.data, built.loader.views)
    kept = bank_words(cfg, built.model, built.data, built.loader, streams)
    console = Console(federation.plan.rounds, federation.plan.clients)
    console.header(
        header(built)
        | ({"activations": kept} if kept and not cfg.FED.PLAIN else {})
        | {
            "bytes": f"{sent:,} up and {sum(given.sizes[0].values()):,} down per client in round "
                     f"1, {sent * uploads:,} up in the whole run if all are like it",
            "personal": f"{numel(personal):,} numbers stay with each client",
            "steps": f"{sum(steps):,} client steps per round with all clients",
            "chunk": f"{federation.engine.chunk} clients computed at once (FED.CHUNK)"
                     + _shared(built),
            "time": f"at most {seconds[-1]:.2f} s per client step (one client, images encoded "
                    f"on the way), {whole:.0f} s "
                    f"for all rounds; {images:,} images to encode once",
            "memory": f"{peak_mib() / 1024:.2f} GiB peak",
        }
    )
    console.notes([*built.data.on_screen(built.notes), "dry run: nothing was written"])
    return 0


def _shared(built: Built) -> str:
    """Return what to say of a chunk where workers share the memory of a GPU."""
    cfg = built.cfg
    if built.model.device.type != "cuda" or cfg.FED.ENGINE != "workers" or cfg.FED.CHUNK \
            or cfg.FED.PLAIN:
        return ""
    count = sharing(cfg)
    return f", by the memory of a GPU for {count} workers" if count > 1 else ""


def evaluation_only(
    cfg: CfgNode, origins: dict[str, str], request: Request, inputs: Inputs | None = None
) -> int:
    """Evaluate the tensors that ``--model-dir`` holds, and write ``log.txt`` with Dassl's ending.

    On the data that they were trained on (the same split), the clients' own models are evaluated
    too and the headline is theirs; on other data it is the global model's on all test images.

    Raises:
        ConfigError: no run folder, no such round, or a run that trained other tensors.
    """
    manifest, saved = _trained(request.model_dir, request.load_epoch)
    prepared = prepare_run(cfg, progress, inputs=inputs)
    trainer = prepared.trainer
    if saved is not None:
        _check_tensors(prepared.start, trainer.shared(saved.server), request.model_dir)
    choice = peft_choice(cfg, origins)
    place = run_path(cfg, prepared.data.name, trainer.name + choice).relative()
    classes = cfg.DATASET.SUBSAMPLE_CLASSES  # base and new share the place of their runs
    folder = user_path(cfg.OUTPUT_DIR) / "evaluation" / classes / place
    with explain_place(folder):
        folder.mkdir(parents=True, exist_ok=True)
    built = complete_run(prepared, progress)
    federation = built.federation
    same = saved is None or manifest.get("facts", {}).get("data_digest") == built.data.digest
    if saved is None:
        state = federation.start()
    else:
        state = _adopted(built, saved, request.model_dir, str(manifest["identity_digest"]), same)
    console = Console(int(cfg.FED.ROUNDS), int(cfg.FED.CLIENTS))
    (folder / "log.txt").unlink(missing_ok=True)
    log = LogFile(folder / "log.txt", int(cfg.FED.ROUNDS), publish=public_text)
    lines = header(built) | {
        "evaluated": f"{request.model_dir}, round {state.round}" if saved else "the untrained start"
    }
    console.header(lines)
    log.header(lines, [f"{key}: {value}" for key, value in flat(cfg).items()])
    numbers = _evaluated(built, state, same)
    whose = "personal" if same else "global"
    table = [{"": f"{federation.trainer.name}, round {state.round}"} | {
        k: v for k, v in summary(numbers).items() if same or not k.startswith("personal")
    }]
    notes = [
        *built.notes,
        f"evaluation only, nothing was trained; the reported number is the {whose} accuracy"
        + ("" if same else ", since these are other images than those it was trained on"),
    ]
    answer, more = _answer(built, user_path(request.model_dir), numbers) if saved and same else (
        [], [])
    for screen in (console, log):
        screen.notes([*notes, *more])
        screen.result(table)
        screen.lines(answer)
    n = len(built.data.global_test)
    f1 = numbers["personal_macro_f1" if same else "global_macro_f1"]
    correct = round(n * numbers["global"] / 100)
    if same:
        n = sum(c["n"] for c in numbers["clients"])
        correct = sum(c["correct"] for c in numbers["clients"])
    log.finish(Headline(n, correct, numbers[whose], f1), trained=False)
    console.notes([f"log: {folder / 'log.txt'}"])
    console.finish()
    return 0


def _answer(built: Built, folder: Path, last: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return whether federation paid, by the baselines that the run recorded, and notes.

    It is told image by image where the clients' numbers are the run's own. Nothing is told of a run
    without baselines, with other towers, with damaged results, or with a final fine-tuning, which
    is not evaluated here.
    """
    record = whole_results(read_json(folder / RESULTS))
    if record is None or not has_baselines(record["results"]):
        return [], []
    results, said = record["results"], record["protocol"]
    if said.get("backbone_digest") != built.backbone.digest:
        return [], []
    try:
        refuse_damage(folder, record)
    except DataError as error:
        return [], [str(error)]
    then = results[LAST]
    if then.get("finetune"):
        return [], ["the run fine-tuned its models at the end, which is not evaluated here; its "
                    f"own numbers and answer: fedvlm show {folder}"]
    again = then["round"] == last["round"] and _right(then) == _right(last)
    left = () if again else (PAIRED,)
    found = {key: value for key, value in results.items() if key not in (ANSWER, NEXT, *left)}
    found |= {LAST: last}
    return answer_lines(found | {ANSWER: federation_answer(found)}, method_name(said)), []


def _right(record: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(row["client"], row["correct"]) for row in record["clients"]]


def built_only(
    cfg: CfgNode, check: Callable[[Built], None], inputs: Inputs | None = None
) -> int:
    """Build everything (data, towers, features, trainer) and say so: ``--no-train``.

    Args:
        check: see ``dry_run``.
    """
    built = build_run(cfg, progress, inputs=inputs)
    check(built)
    console = Console(int(cfg.FED.ROUNDS), int(cfg.FED.CLIENTS))
    console.header(header(built))
    console.notes([*built.notes, "--no-train: everything was built, nothing was trained or "
                                 "written"])
    console.finish()
    return 0


def _adopted(built: Built, saved: SavedState, folder: str, identity: str, same: bool) -> FedState:
    """Return a saved state; without what is the clients' own where the images are others."""
    federation, device = built.federation, built.model.device
    if saved.records is None:
        whole = whole_state(saved, device)
        return federation.adopt(whole) if same else FedState(saved.round, whole.server)
    server = move_state(saved.server, device)
    if not same:
        return FedState(saved.round, server)
    records = open_records(user_path(folder) / "state", identity, saved.records)
    return federation.load(saved.round, server, records)


def _trained(folder: str, epoch: str) -> tuple[dict[str, Any], SavedState | None]:
    """Return the manifest and the state of a run folder; None for the untrained start."""
    if not folder:
        if epoch:
            raise ConfigError(f"--load-epoch {epoch} needs --model-dir DIR, the run folder")
        return {}, None
    path = user_path(folder)
    if not (path / "manifest.json").is_file():
        raise ConfigError(
            f"--model-dir {folder}: not a run folder (it has no manifest.json); give the folder "
            "that a run prints in its last line"
        )
    if epoch and not (epoch.isascii() and epoch.isdigit()):
        raise ConfigError(f"--load-epoch expects the number of a round, got '{epoch}'")
    manifest = read_manifest(path) or {}
    identity = str(manifest.get("identity_digest", ""))
    only = int(epoch) if epoch else None
    if only is None and (path / "state").is_dir():
        return manifest, load_state(path, manifest, covered_files(path))
    saved, notes = load_newest_state(path / "state", identity=identity, only=only)
    if saved is None:
        newest, _ = load_newest_state(path / "state", identity=identity)
        hint = f"the newest is round {newest.round}" if newest else "it holds no valid state"
        raise ConfigError(
            f"--model-dir {folder}{f' --load-epoch {epoch}' if epoch else ''}: "
            f"{'; '.join(notes) or 'that round was not kept'}; {hint} (a run keeps its last two "
            "rounds)"
        )
    return manifest, saved


def _check_tensors(start: TrainingStart, shared: Tree, folder: str) -> None:
    """Refuse tensors of another method, backbone or class list (``ConfigError``)."""
    common = start.groups.names(SHARED, SERVER)
    for name in sorted({*common, *shared}):
        here, there = (t[name].shape if name in t else None for t in (start.p0, shared))
        if here != there or name not in common:
            sizes = [list(v) if v is not None else "none" for v in (there, here)]
            raise ConfigError(
                f"--model-dir {folder}: '{name}' has shape {sizes[0]} in that run and "
                f"{sizes[1]} with this command; use the flags of that run (see its config.yaml)"
            )


def _evaluated(built: Built, state: FedState, same: bool) -> dict[str, Any]:
    """Return the metrics of a state on the run's test sets."""
    federation = built.federation
    shared = federation.shared(state)

    def everybody(clients: Sequence[int]) -> PersonalModels:
        for client in clients:  # nobody was trained on these images: all have the global model
            yield [client], shared

    def rows(clients: Sequence[int], measure: Measure) -> list[Row]:
        if same:
            return federation.rows(state, clients, replace(measure, finetuned=False))
        return only_numbers(built.meter(measure, everybody(clients)), clients)

    evaluator: Evaluator = make_evaluator(built)
    return evaluator.evaluate(RoundFinished(
        state.round, state.round, state.server, shared, federation.roster, rows
    ))
