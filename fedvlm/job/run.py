"""The main job: build, open the run folder, train, evaluate, write the results."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.console.log import LogFile
from fedvlm.console.screen import Console, progress, say
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import numel
from fedvlm.data.partition.counts import partition_csv
from fedvlm.evaluation import zero_shot
from fedvlm.federation.rounds import FedState
from fedvlm.job.build import Built, Maker, build
from fedvlm.job.describe import ending, header, partition_name, peft_choice, protocol, run_path
from fedvlm.job.record import Recorder, conclude, headline
from fedvlm.job.seeds import seed_table
from fedvlm.job.show import draw_partition, say_results
from fedvlm.job.sinks import Sinks
from fedvlm.runs import state as run_state
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.metrics import read_metrics, sentence, totals


def run_job(
    cfg: CfgNode, origins: dict[str, str], args: Namespace, maker: Maker | None = None
) -> int:
    """Run one config to its end, or show its result if it is finished already.

    Args:
        maker: of data and towers, where several runs share them; see ``cli_build.Maker``.

    Raises:
        FedvlmError: anything a user can mend; ``cli.main`` turns it into a sentence.
        KeyboardInterrupt: the state after the last whole round is saved.
    """
    sinks = Sinks(cfg.SINKS)
    if args.dry_run:
        from fedvlm.job.dry import dry_run

        return dry_run(cfg)
    began = time.perf_counter()
    chosen = peft_choice(cfg, origins)
    built = build(cfg, progress, maker=maker)
    folder = RunFolder.create(cfg.OUTPUT_DIR, run_path(cfg, built, chosen), built.identity)
    _check_resume(cfg, folder)
    console = Console(int(cfg.FED.ROUNDS), int(cfg.FED.CLIENTS))
    if folder.finished is not None:
        console.notes([*folder.notes, f"finished before; results are in {folder.results_path}"])
        if cfg.TEST.KEEP_LOGITS and not (folder.path / "logits.safetensors").exists():
            console.notes(["it kept no logits: run it again under another --tag to have them"])
        console.result(folder.finished["results"]["table"])
        _remember(args, folder)
        return 0
    with folder:
        try:
            _train(cfg, origins, built, folder, console, began, sinks)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"whole rounds are saved in {folder.path}; the same command goes on there"
            ) from None
        finally:
            console.finish()
            sinks.close()
    done: dict[str, Any] = folder.finished or {}
    say_results(folder.path, float(done["run_info"]["seconds_rounds"]))
    _remember(args, folder)
    return 0


def _remember(args: Namespace, folder: RunFolder) -> None:
    """Keep a finished run's results for the table over seeds."""
    args.finished = [*getattr(args, "finished", []), folder.finished]


def _train(
    cfg: CfgNode, origins: dict[str, str], built: Built, folder: RunFolder, console: Console,
    began: float, sinks: Sinks,
) -> None:
    folder.write_config(flat(cfg), origins)
    folder.write_partition(built.data.index_file())
    folder.write_text("partition.csv", partition_csv(built.data))
    folder.record_facts(
        data_digest=built.data.digest, backbone_digest=built.backbone.digest,
        notes=built.notes, chunk=built.identity["chunk"],
    )
    log = LogFile(folder.log_path, int(cfg.FED.ROUNDS))
    state = restore(built, folder)
    about = header(cfg, built)
    console.header(about)
    log.header(about, [f"{key}: {value}" for key, value in flat(cfg).items()])
    for screen in (console, log):
        screen.notes([*built.notes, *folder.notes])
    title = f"{built.data.name}, {partition_name(cfg)}, data seed {cfg.DATA_SEED}"
    draw_partition(folder.path, title)
    reference = zero_shot(
        built.model, built.test, built.data, batch_size=int(cfg.DATALOADER.TEST.BATCH_SIZE)
    ) if built.backbone.has_text else None
    done, _ = read_metrics(folder.metrics_path)
    sinks.open(folder.path, folder.digest, flat(cfg), done, (console, log))
    built.federation.subscribers.append(Recorder(built, folder, (console, log), state, sinks))
    built.federation.run(state)
    records, _ = read_metrics(folder.metrics_path)
    table, results = conclude(cfg, reference, records, built.federation.trainer.name)
    for screen in (console, log):
        screen.result(table)
    spent = totals(records)
    ended = ending(cfg, built)
    for screen in (console, log):
        screen.notes([*ended, sentence(spent)])
    log.finish(headline(results["last"]))
    info = {
        "seconds_this_session": time.perf_counter() - began, "seconds_rounds": spent["seconds"],
        "bytes_up": spent["bytes_up"], "bytes_down": spent["bytes_down"], "totals": spent,
        "trainable": numel(built.federation.p0), "notes": [*built.notes, *ended],
    }
    folder.write_results(info, protocol(cfg, built), results | {"table": table})




def restore(built: Built, folder: RunFolder) -> FedState | None:
    """Return the state to go on from, on the model's device, or None for the beginning.

    Without the metrics of every round before it, a state would end in results with gaps.
    """
    saved = folder.restore()
    if saved is None:
        return None
    records = read_metrics(folder.metrics_path)[0]
    known = [r.get("round") for r in records]
    if known != list(range(saved.round + 1)):
        folder.truncate_metrics(-1)
        run_state.clear_states(folder.state_dir)
        folder.notes.append(
            f"metrics.jsonl lacks rounds before the state of round {saved.round}: the run starts "
            "again from the beginning"
        )
        return None
    model = built.model

    def moved(state: Mapping[str, Any]) -> dict[str, Any]:  # types stay: a float64 slot is exact
        return {
            slot: {name: v.to(model.device) for name, v in tree.items()}
            for slot, tree in state.items()
        }

    for record in records[1:]:
        built.federation.budget.record(record["round"], record["counters"])
    folder.notes.append(f"going on after round {saved.round}")
    return FedState(
        saved.round, moved(saved.server), {c: moved(s) for c, s in saved.clients.items()}
    )














def _check_resume(cfg: CfgNode, folder: RunFolder) -> None:
    if cfg.RESUME and Path(cfg.RESUME).expanduser().resolve() != folder.path.resolve():
        folder.close("refused")
        raise ConfigError(
            f"--resume {cfg.RESUME}: this command's run folder is {folder.path}; give the flags "
            "of that run (its config.yaml has them), or drop --resume"
        )


def report_seeds(cfgs: Sequence[CfgNode], args: Namespace) -> int:
    """Print mean and standard deviation over the seeds just run; 0 always."""
    if not args.dry_run:
        say(*seed_table(args.finished))
    return 0
