"""The main job: build, open the run folder, train, evaluate, write the results."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.config.engines import of_parties
from fedvlm.console.log import LogFile
from fedvlm.console.screen import Console, progress, say
from fedvlm.core.errors import ConfigError, DataError, QuorumError
from fedvlm.core.files import user_path
from fedvlm.core.signals import saying
from fedvlm.core.spelling import texts_covered
from fedvlm.core.threads import begin_peak, usual_threads
from fedvlm.core.trees import nbytes
from fedvlm.data.catalog import dataset_info
from fedvlm.data.datasets import set_name
from fedvlm.data.datum import PARTS
from fedvlm.data.federated import FederatedData
from fedvlm.data.partition.counts import count_rows, known_rows, partition_csv
from fedvlm.data.partition.index_file import canonical_hash
from fedvlm.evaluation import Evaluator, Panel, zero_shot
from fedvlm.evaluation.scores import CONFUSION, Right, take_right
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import FedState
from fedvlm.federation.server import Measure
from fedvlm.job.build import Built, Prepared, complete_run, find_device, prepare_run
from fedvlm.job.describe import header, partition_name, peft_choice, run_path
from fedvlm.job.engines.base import ClientSide, client_side, refuse_unread
from fedvlm.job.flags import parse
from fedvlm.job.identity import identity_config, present_identity
from fedvlm.job.inputs import Inputs
from fedvlm.job.record import Recorder, check_explosion, whole_state
from fedvlm.job.request import Request, next_command
from fedvlm.job.resolve import Job, resolve
from fedvlm.job.results import Results, results_of, seed_table
from fedvlm.job.results.against import told_table
from fedvlm.job.results.classes import absent_parts, matrix_file
from fedvlm.job.results.private import BEGUN, certificate, promises_privacy, released
from fedvlm.job.show import draw_partition, say_results
from fedvlm.job.sinks.base import Sinks
from fedvlm.runs.bits import LAST
from fedvlm.runs.claim import look_ahead
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import Present, RunPath, read_results
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.names import RESULTS, method_name
from fedvlm.runs.private import public_text
from fedvlm.runs.state import clear_states
from fedvlm.runs.verify.answer import NEXT, answer_lines, measure_of, worse_names
from fedvlm.runs.verify.check import BEFORE, SEALED, refuse_damage

if TYPE_CHECKING:
    from fedvlm.evaluation.named import NamedMetric

TAGS = 10  # of which one is free for what is proposed
MEMORY_BYTES = 4 << 30  # of clients' states; above it FED.STORE auto keeps them on disk


def run_job(
    job: Job, request: Request, inputs: Inputs | None = None
) -> tuple[dict[str, Any], Path] | None:
    """Run one config to its end, or show its result if it is finished already.

    Args:
        request: what is done instead of training (``dry_run``, ``eval_only``, ``no_train``).
        inputs: data and towers, where several runs share them.

    Returns:
        What is in ``results.json``, and the run's folder; None where nothing is trained.

    Raises:
        FedvlmError: anything a user can mend; ``cli.main`` turns it into a message.
        KeyboardInterrupt: the state after the last whole round is saved.
    """
    cfg, sinks = job.cfg, Sinks(job.cfg.SINKS)
    with threads_of(cfg):
        check_whole(cfg, request)
        if request.dry_run or request.eval_only or request.no_train:
            from fedvlm.job import dry  # start-up: for jobs that train nothing

            if request.eval_only and not request.dry_run:
                dry.evaluation_only(cfg, job.origins, request, inputs)
                return None
            choice = peft_choice(cfg, job.origins)  # refuses what a run refuses
            refuse_unread(cfg)
            _early_place(cfg, choice)

            def check(run: Built) -> None:
                place_of(cfg, run.data.name, choice)
                named_metrics(run, job.origins)
                check_calibrate(run)

            if request.dry_run:
                dry.dry_run(cfg, check)
            else:
                dry.built_only(cfg, check, inputs)
            return None
        return _run(job, request, sinks, inputs)


@contextlib.contextmanager
def threads_of(cfg: CfgNode) -> Iterator[None]:
    """Work with as many threads as the work can use, where the user gave no number."""
    before = torch.get_num_threads()
    torch.set_num_threads(
        min(before, usual_threads({cfg.MODEL.BACKBONE.NAME}, os.environ, before))
    )
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(
    job: Job, request: Request, sinks: Sinks, inputs: Inputs | None
) -> tuple[dict[str, Any], Path]:
    """Build the run, open its folder, train it unless it is done; return results and folder."""
    began, cfg = time.perf_counter(), job.cfg
    begin_peak()
    device = find_device(cfg.DEVICE)
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(device)
    choice = peft_choice(cfg, job.origins)
    clients = client_side(cfg)
    clients.check(inputs)
    path = _look_ahead(cfg, choice)
    with clients.gather(path, inputs) as found:
        return _built_and_trained(job, request, sinks, found, clients, choice, began)


def _built_and_trained(
    job: Job, request: Request, sinks: Sinks, inputs: Inputs | None,
    clients: ClientSide, choice: str, began: float,
) -> tuple[dict[str, Any], Path]:
    """As ``_run``, once the inputs are known."""
    cfg, origins = job.cfg, job.origins
    prepared = prepare_run(cfg, progress, inputs=inputs)
    place = place_of(cfg, prepared.data.name, choice)
    folder = RunFolder.claim(
        cfg.OUTPUT_DIR, place, prepared.identity,
        present=_present(cfg), draft=bool(cfg.DRAFT),
    )
    folder.keep = int(cfg.TRAIN.KEEP_STATES)
    console = Console(int(cfg.FED.ROUNDS), int(cfg.FED.CLIENTS))
    if folder.finished is not None:
        seal = refuse_damage(folder.path, folder.finished).seal
        bare = [f"it has {BEFORE}"] if seal != SEALED else []
        before = f"already finished; results: {folder.path / RESULTS}"
        console.notes([*folder.notes, before, *bare])
        if cfg.TEST.KEEP_LOGITS and not (folder.path / "logits.safetensors").exists():
            console.notes(["the run kept no logits: to get them, run it again with another --tag"])
        console.notes(absent_parts(cfg, folder.finished["results"]))
        console.result(told_table(folder.finished["results"]))
        console.notes(prepared.data.on_screen(prepared.data.doubts))
        told = folder.finished["results"]
        console.lines(_without_next(
            answer_lines(told, method_name(folder.finished["protocol"])), told))
        console.lines(worse_names(told, prepared.data.client_names))
        console.lines(_next_lines(folder.finished, job, request, prepared.data.name))
        return folder.finished, folder.path
    with folder:
        # Under the lock: two of the same command do it once.
        named = named_metrics(prepared, origins)
        check_calibrate(prepared)
        built = complete_run(prepared, progress, lambda note: console.notes([note]))
        built.federation.plateau.auto = job.auto_rounds
        built.meter.named = named
        folder.begin()
        settled = inputs is not None and inputs.settled
        results = _trained(built, origins, folder, console, sinks, began, clients, settled)
    console.lines(_next_lines(results, job, request, prepared.data.name))
    if folder.draft:
        console.notes(["this is a draft: the next draft overwrites it and tables ignore it; for "
                       "a result run the same command without --draft"])
    say_results(folder.path, float(results["run_info"]["seconds_rounds"]))
    return results, folder.path


def _without_next(lines: Sequence[str], results: Mapping[str, Any]) -> Sequence[str]:
    """Return a run's answer without what to try next, which ``_next_lines`` says to a screen."""
    return lines[:-1] if results.get(NEXT) else lines


def _next_lines(
    done: Mapping[str, Any], job: Job, request: Request, data: str
) -> list[str]:
    """Return what to try next and its command in full; nothing where there is none.

    The command starts: where its folder holds another run it gets a tag of its own. Where it has
    been run on the same images already, what it reached stands there instead.

    Args:
        data: name of the set.
    """
    results, step = done["results"], done["results"].get(NEXT)
    if not step:
        return []
    last = answer_lines(results, method_name(done["protocol"]))[-1]
    command = step["flags"] and next_command(request, step["flags"], job.cfg, job.origins)
    if not command:
        return [last]
    for tag in ([], *(["--tag", f"next-{n}"] for n in range(2, TAGS))):
        words = [*shlex.split(command)[2:], *tag]
        try:
            jobs = resolve(parse(words)).jobs
        except (ConfigError, DataError):  # the folder of images has gone meanwhile
            break
        asked = next((one for one in jobs if one.cfg.SEED == job.cfg.SEED), jobs[0])
        cfg = asked.cfg
        place = place_of(cfg, data, peft_choice(cfg, asked.origins))
        path = Path(cfg.OUTPUT_DIR) / place.relative()
        try:
            look_ahead(cfg.OUTPUT_DIR, place, identity_config(cfg), _present(cfg),
                       bool(cfg.DRAFT))
        except (ConfigError, DataError):  # a run with other settings
            continue
        there = read_results(path / RESULTS)
        if there is None:
            return [last, f"  {shlex.join(['fedvlm', 'run', *words])}"]
        if there["protocol"]["data_digest"] == done["protocol"]["data_digest"]:
            return [f"{method_name(there['protocol'])}, which would come next, has been run: "
                    f"{there['results'][LAST]['personal']:.1f} there, "
                    f"{results[LAST]['personal']:.1f} here ({path})."]
    return [last]


def named_metrics(run: Prepared | Built, origins: Mapping[str, str]) -> Sequence[NamedMetric]:
    """Return the metrics of ``TEST.METRICS``; a user's file is run here and nowhere else.

    Raises:
        ConfigError: as ``load_metrics``; clients that are measured in other processes.
    """
    words, engine = run.cfg.TEST.METRICS, run.cfg.FED.ENGINE
    if not words:
        return ()
    if engine != "local":
        raise ConfigError(f"TEST.METRICS is computed in one process: use --engine local, not "
                          f"{engine}, or drop it")
    from fedvlm.evaluation.named import load_metrics  # start-up: for metrics by name only

    typed = origins.get("TEST.METRICS", "").startswith(("flag", "opts"))
    return load_metrics(
        words, len(run.data.classnames), run.data.label_sets is not None, typed)


def check_calibrate(run: Prepared | Built) -> None:
    """Refuse TEST.CALIBRATE where no temperature can be fitted (``ConfigError``)."""
    cfg, data = run.cfg, run.data
    if not cfg.TEST.CALIBRATE:
        return
    why = ""
    if cfg.FED.ENGINE != "local":
        why = f"it works in one process: use --engine local, not {cfg.FED.ENGINE}"
    elif data.label_sets is not None:
        why = "sets of labels always have temperatures and thresholds"
    elif cfg.DATASET.CAPTIONS:
        why = "a run on captions has no probabilities"
    elif not any(len(client.val) for client in data.clients):
        why = ("no client has validation images, on which a temperature is fixed: give the data a "
               "validation part (split val)")
    if why:
        raise ConfigError(f"TEST.CALIBRATE: {why}; or drop it")


def check_whole(cfg: CfgNode, request: Request) -> None:
    """Refuse (``ConfigError``) what builds all of a run here, where its images are elsewhere."""
    flags = {"dry_run": "--dry-run", "eval_only": "--eval-only", "no_train": "--no-train"}
    for name, flag in flags.items():
        if of_parties(cfg) and getattr(request, name):
            raise ConfigError(
                f"{flag} needs the clients' images, which are at their sites: drop "
                f"{flag} or --engine {cfg.FED.ENGINE} (fedvlm site check checks a site)"
            )


def _look_ahead(cfg: CfgNode, choice: str) -> Path:
    """Refuse what needs neither data nor towers to be refused: the folder, its run, its lock.

    Returns:
        Where the run will lie; the current folder where that is not known yet.

    Raises:
        ConfigError, DataError: as ``RunFolder.create``; ``--resume`` of another folder.
    """
    place = _early_place(cfg, choice)
    if place is None:
        return Path()
    look_ahead(
        cfg.OUTPUT_DIR, place, identity_config(cfg), _present(cfg), bool(cfg.DRAFT),
    )
    return Path(cfg.OUTPUT_DIR) / place.relative()


def _trained(
    built: Built, origins: dict[str, str], folder: RunFolder, console: Console, sinks: Sinks,
    began: float, clients: ClientSide, settled: bool,
) -> dict[str, Any]:
    """Train, whatever stops it leaves the screen free and says where the whole rounds are."""
    # Frozen by the caller, who has a reason: left as it is.
    frozen = settled or gc.get_freeze_count() > 0
    if not frozen:
        gc.collect()
        gc.freeze()  # what is built lives to the end: the collector need not walk it every round
    try:
        return _train(built, origins, folder, console, sinks, began, clients)
    except KeyboardInterrupt as stop:
        raise saying(
            stop, f"finished rounds are saved in {folder.path}; the same command resumes there"
        ) from None
    finally:
        if not frozen:
            gc.unfreeze()
        console.finish()
        sinks.close()


def _train(
    built: Built, origins: dict[str, str], folder: RunFolder, console: Console, sinks: Sinks,
    began: float, clients: ClientSide,
) -> dict[str, Any]:
    """Describe the run, train it to its end, and return what is then in ``results.json``."""
    cfg = built.cfg
    folder.write_config(flat(cfg), origins)
    folder.write_json("partition.json", built.data.index_file())
    folder.write_names(built.data.client_names, built.notes)
    folder.write_text("partition.csv", partition_csv(_counted(built)))
    folder.record_facts(
        data_digest=built.data.digest, backbone_digest=built.backbone.digest,
        notes=built.notes, chunk=built.identity["chunk"],
        **_text_facts(built.data),
    )
    measure = measure_of(cfg)
    log = LogFile(folder.path / "log.txt", int(cfg.FED.ROUNDS), measure, public_text)
    screens = (console, log)
    if not of_parties(cfg) and on_disk(built):
        built.federation.keep_on_disk(folder.records)
    with clients.connect(built, folder, partial(_note, screens)):
        results = _rounds(built, folder, screens, sinks, clients, began)
    for screen in screens:
        screen.result(results.table)
        doubts = built.data.doubts
        screen.notes([*results.notes, *absent_parts(cfg, results.numbers),
                      *(doubts if screen is log else built.data.on_screen(doubts))])
        screen.lines(results.answer if screen is log else
                     _without_next(results.answer, results.numbers))
    console.lines(worse_names(results.numbers, built.data.client_names))
    log.finish(results.headline, classes=results.classes)
    records, _ = read_metrics(folder.metrics_path)
    folder.write_json("released.json", released(
        built, records, results.numbers, clients.sums, clients.baselined,
        clients.counted))
    if built.data.forgotten:
        folder.write_json("forgotten.json", certificate(
            built.data.forgotten, folder.digest, folder.facts.get(BEGUN)))
    if CONFUSION in results.numbers:
        counts = results.numbers[CONFUSION]["personal"]
        folder.write_bytes("cmat.pt", matrix_file(counts, len(built.data.classnames)))
    return folder.write_results(results.run_info, results.protocol, results.numbers)


def _text_facts(data: FederatedData) -> dict[str, Any]:
    """Return what a run records of a file of templates: a digest, and whose it has by number."""
    if not data.written:
        return {}
    digest = canonical_hash(texts_covered(data.templates, data.client_templates))
    own = {"client_texts": list(data.client_templates)} if data.client_templates else {}
    return {"templates_digest": digest, **own}


def _rounds(
    built: Built, folder: RunFolder, screens: tuple[Console, LogFile], sinks: Sinks,
    clients: ClientSide, began: float,
) -> Results:
    """Say what the run is, and run its rounds."""
    cfg, (console, log) = built.cfg, screens
    state = clients.resume(restore(built, folder))
    if state is None and folder.facts.get(BEGUN):  # its kept rounds were lost
        folder.record_facts(**{BEGUN: None})
    folder.save_start(built.federation.p0)
    lines = header(built)
    console.header(lines)
    log.header(lines, [f"{key}: {value}" for key, value in flat(cfg).items()])
    console.notes([*built.data.on_screen(built.notes), *folder.notes])
    log.notes([*built.notes, *folder.notes])
    title = f"{built.data.name}, {partition_name(cfg)}, data seed {cfg.DATA_SEED}"
    draw_partition(folder.path, title)
    clients.meet()
    return to_the_end(built, folder, state, screens, sinks, began, clients=clients)


def _counted(built: Built) -> list[dict[str, Any]]:
    """Return who holds how much: of the images, or as the sites told."""
    if not of_parties(built.cfg):
        return count_rows(built.data)
    roster = built.federation.roster
    sizes = {part: getattr(roster, part).tolist() for part in PARTS}
    return known_rows(sizes, roster.classes.tolist(), built.data.classnames)


def _note(screens: Sequence[Any], words: str) -> None:
    for screen in screens:
        screen.notes([words])


def to_the_end(
    built: Built, folder: RunFolder, state: FedState | None, screens: Sequence[Any], sinks: Sinks,
    began: float, afresh: bool = False, clients: ClientSide | None = None, paired: bool = True,
) -> Results:
    """Run and record the rounds after ``state`` (None: all); return what is printed at the end.

    Args:
        afresh: references are made again, whatever is kept of them.
        clients: who answers for the clients' half of the baselines, by default this process.
        paired: compare models and baselines image by image, where that can be.
    """
    recorder = Recorder(built, folder, screens, sinks)
    by_image = recorder.evaluator.answers = paired and _by_image(built)
    reference = zero_shot(
        built.model, built.test, built.data, recorder.evaluator.panel,
        clients.ask if clients else built.meter.template,
        batch_size=int(built.cfg.DATALOADER.TEST.BATCH_SIZE), answers=by_image,
    ) if built.backbone.has_text else None
    beside, right = _baselines(
        built, recorder.evaluator.panel, reference, screens, afresh, clients)
    done, _ = read_metrics(folder.metrics_path)
    sinks.open(folder.path, folder.digest, flat(built.cfg), done, screens)
    built.federation.subscribers.append(recorder)
    built.federation.savers.append(recorder.save)
    try:
        end = built.federation.run(state)
    except (KeyboardInterrupt, QuorumError, DataError):
        recorder.save_last()
        raise
    records, _ = read_metrics(folder.metrics_path)
    check_explosion(built, records)
    pairs = _pairs(built, recorder.evaluator, end, right) if by_image else None
    return results_of(built, reference, records, time.perf_counter() - began, beside, pairs)


def _pairs(
    built: Built, evaluator: Evaluator, end: FedState, right: Right
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what compares the last round's models with baselines, image by image.

    A run that was stopped after its last round has to evaluate it again.
    """
    from fedvlm.job.results.references import paired_sections  # start-up: where they are wanted

    mine = evaluator.right or take_right(
        built.federation.rows(end, evaluator.panel.clients, Measure(answers=True)))
    return partial(paired_sections, built, {**right, LAST: mine})


def _by_image(built: Built) -> bool:
    """Say whether models and baselines can be compared image by image: both are known here.

    Sets of labels are not right or wrong, captions have no baseline, and what goes around a privacy
    guarantee is not written.
    """
    cfg, data = built.cfg, built.data
    return bool(cfg.TEST.REFERENCES) and not (
        of_parties(cfg) or data.captioned or promises_privacy(built)
    ) and data.label_sets is None


def _baselines(
    built: Built, panel: Panel, template: Mapping[str, Any] | None, screens: Sequence[Any],
    afresh: bool, clients: ClientSide | None,
) -> tuple[dict[str, dict[str, Any]] | None, Right]:
    """Return the baselines of a run, from its images or its sites; None: not wanted, not known.

    And which test images each classifies right, by client, where that is known.
    """
    if not built.cfg.TEST.REFERENCES:
        return None, {}
    from fedvlm.job.results import references as rows  # start-up: where they are wanted

    if not of_parties(built.cfg):
        found = rows.reference_rows(built, panel, template, progress, afresh)
        if not built.cfg.DATASET.GROUPS and dataset_info(built.cfg.DATASET.NAME) is None:
            from fedvlm.job.results.near import near_duplicates  # start-up: for own sets only

            if twins := near_duplicates(built, panel, progress):
                built.notes.append(twins)
                _note(screens, twins)
        return found, rows.take_baselines(found, template)
    if clients is None or promises_privacy(built):
        return None, {}
    return rows.with_template(clients.baselines(panel.clients), template), {}


def restore(built: Built, folder: RunFolder) -> FedState | None:
    """Return the state to go on from, on the model's device, or None for the beginning.

    Without the metrics of every round before it, a state would end in results with gaps.
    """
    saved = folder.restore()
    if saved is None:
        return None
    records = read_metrics(folder.metrics_path)[0]
    if [r.get("round") for r in records] != list(range(saved.round + 1)):
        folder.truncate_metrics(-1)
        clear_states(folder.state_dir)
        folder.notes.append(
            f"metrics.jsonl lacks rounds before the saved state of round {saved.round}: the run "
            "restarts from round 1"
        )
        return None
    for record in records[1:]:
        built.federation.budget.record(record["round"], record["counters"])
        built.federation.plateau.record(
            record["round"], record.get("val"), record.get("val_loss"))
    folder.notes.append(f"resuming after round {saved.round}")
    built.federation.engine.recall(saved.extra.get("sites", {}))
    if saved.records is not None:
        return built.federation.load(saved.round, saved.server, folder.records)
    return built.federation.adopt(whole_state(saved, built.model.device))


def on_disk(built: Built) -> bool:
    """Say whether clients' rows are read from disk: ``FED.STORE``, ``auto`` by their size."""
    choice, federation = built.cfg.FED.STORE, built.federation
    if choice == "auto":
        row = federation.clients.stacked([0], {})
        size = sum(sum(nbytes(tree).values()) for tree in row.values())
        if federation.plan.optim.keep:  # two numbers for each trained one, at most
            size += 2 * sum(nbytes(federation.p0).values())
        return size * federation.plan.clients > MEMORY_BYTES
    return bool(choice == "disk")


def _present(cfg: CfgNode) -> Present:
    return partial(
        present_identity, cfg.TRAINER.NAME, elsewhere=bool(cfg.CONTINUE_ELSEWHERE)
    )


def _early_place(cfg: CfgNode, choice: str) -> RunPath | None:
    """Return ``place_of`` before data are read; None where the set's name is not known yet."""
    name = cfg.DATASET.NAME if of_parties(cfg) else set_name(cfg)
    return place_of(cfg, name, choice) if name else None


def place_of(cfg: CfgNode, data: str, choice: str) -> RunPath:
    """Return where a run lies below ``OUTPUT_DIR`` (``ConfigError``: ``--resume`` says otherwise).

    Args:
        data: name of the set.
        choice: see ``peft_choice``.
    """
    place = run_path(cfg, data, load_trainer(cfg.TRAINER.NAME).name + choice)
    path = Path(cfg.OUTPUT_DIR) / place.relative()
    if cfg.RESUME and cfg.DRAFT:
        raise ConfigError("--resume does not go with --draft: a draft always starts again; drop "
                          "one of them")
    if cfg.RESUME and user_path(cfg.RESUME).resolve() != path.resolve():
        raise ConfigError(
            f"--resume {cfg.RESUME}: this command's run folder is {path}; give the flags "
            "of that run (its config.yaml has them), or drop --resume"
        )
    return place


def report_seeds(results: Sequence[Mapping[str, Any]]) -> None:
    """Print mean and standard deviation over runs of several seeds.

    Args:
        results: contents of ``results.json``, one per seed; none of jobs that trained nothing.
    """
    if results:
        say(*seed_table(results))
