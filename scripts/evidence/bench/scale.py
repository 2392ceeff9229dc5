"""``bench scale``: what a round costs beside its training, from ten clients to ten thousand.

A cohort of fixed size works each round, however many clients there are. Driver, recorder and run
folder are the main job's own; the data are random features, so that nothing but the engine and the
bookkeeping is measured. Two methods: a linear head of ten classes on 512 features with one step of
50 samples, which is about the least training there is, and FedTV on the embedded tiny CLIP.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast, overload

import numpy as np
import torch
from torch import Tensor

from evidence.bench import machine
from evidence.bench.machine import Measurements
from fedvlm.console.rows import table_lines
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.evaluation import ClientMeter
from fedvlm.federation.batches import IndexSplit, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation
from fedvlm.federation.trainer import Predictor, Trainer
from fedvlm.job.build import Built, chunk_of
from fedvlm.job.flags import parse
from fedvlm.job.record import Recorder
from fedvlm.job.resolve import resolve
from fedvlm.models.features.sources import FeatureSource
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import RunPath

HEAD, FEDTV = "linear head", "FedTV"
CLASSES, TRAIN, TEST, POOL, WIDTH = 10, 50, 20, 5000, 512
SEED, ROUNDS, RATE = 7, 6, 0.05
LEAST = 4  # rounds: the second and the third are its middle
BLOCK = 10_000  # clients whose samples are drawn at once


class LinearHead(Trainer):
    """A linear classifier on image features, averaged: the least that can be trained."""

    groups = ((r"head\..*", "shared"),)

    def prompt_sets(self, batch_size: int) -> int:
        """Return 0: no text is read."""
        return 0

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return zeros."""
        return {"head.weight": torch.zeros(CLASSES, WIDTH), "head.bias": torch.zeros(CLASSES)}

    def predictor(self, model: VLModel, params: Tree) -> Predictor:
        """Return x W^T + b, as the transpose of W x^T + b: of that order the gradient is fast.

        It is then a product ``[C, B] [B, d]`` for each client, a fifth of the time of
        ``[d, B] [B, C]``.
        """
        weight, bias = params["head.weight"], params["head.bias"].unsqueeze(2)
        return lambda x: torch.baddbmm(bias, weight, x["features"].mT).mT


@dataclass
class Data:
    """Clients whose samples are drawn from one pool, as evaluation and recorder read it.

    Attributes:
        labels: of the pool; its last tenth is the global test set.
    """

    clients: Sequence[IndexSplit]
    labels: np.ndarray
    global_test: np.ndarray
    classnames: Sequence[str]
    name: str = "random features"
    new_test: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    new_classnames: Sequence[str] = ()
    others: Sequence[Any] = ()


class Drawn(Sequence[IndexSplit]):
    """Splits of many clients as two arrays: a client's own are made when somebody asks.

    Args:
        picks: samples of each client, ``[N, TRAIN + TEST]``.
    """

    def __init__(self, picks: np.ndarray) -> None:
        self._picks = picks
        for part in (slice(TRAIN), slice(TRAIN, None)):
            self._picks[:, part].sort(axis=1)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._picks)

    @overload
    def __getitem__(self, at: int) -> IndexSplit: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[IndexSplit]: ...

    def __getitem__(self, at: int | slice) -> IndexSplit | Sequence[IndexSplit]:
        """Return a client's split."""
        if isinstance(at, slice):
            return [self[k] for k in range(*at.indices(len(self)))]
        own = self._picks[at].astype(np.int64)
        return IndexSplit(own[:TRAIN], own[:0], own[TRAIN:])


def draw(clients: int, width: int) -> tuple[Data, Tensor]:
    """Return clients of ``TRAIN`` and ``TEST`` samples each, and the pool ``[POOL, width]``."""
    generator = np.random.default_rng(SEED)
    labels = generator.integers(0, CLASSES, POOL)
    features = torch.randn(POOL, width, generator=rng.stream(SEED, "bench-scale"))
    edge = POOL - POOL // 10
    picks = np.empty((clients, TRAIN + TEST), np.int16)
    for at in range(0, clients, BLOCK):
        part = picks[at : at + BLOCK]
        part[:] = generator.integers(0, edge, part.shape)
    names = [f"class {i}" for i in range(CLASSES)]
    return Data(Drawn(picks), labels, np.arange(edge, POOL), names), features


def build(
    method: str, clients: int, cohort: int, *, evaluate: int = 0, rounds: int = ROUNDS
) -> Built:
    """Return a run of ``method`` on random features, as the main job's recorder reads it.

    Args:
        evaluate: ``TEST.COHORT``: clients that stand for all at start and end; 0: all.
    """
    words = ["--demo", "--trainer", "FedTV", "--device", "cpu", "TEST.COHORT", str(evaluate)]
    cfg = resolve(parse(words)).jobs[0].cfg
    backbone = load_backbone("tiny")
    data, features = draw(clients, WIDTH if method == HEAD else backbone.embed_dim)
    model = VLModel(backbone, list(data.classnames))
    source = FeatureSource.of(features[None], torch.arange(POOL), torch.from_numpy(data.labels))
    batcher = SplitBatcher(
        source, data.clients, TRAIN, SEED, 1, 1, model.device, model.dtype, plain=source
    )
    plan = Plan(
        rounds, clients, min(cohort / clients, 1.0), first_round_all=False, seed=SEED,
        optim=OptimSpec("sgd", RATE, 0.0, 0.0),
    )
    trainer = LinearHead(cfg) if method == HEAD else load_trainer("FedTV")(cfg)
    # The sources of a run are images of a data set; what is asked of them here is the same.
    meter = ClientMeter(model, trainer, source, cast(Any, data))
    federation = Federation(
        trainer, model, batcher, plan, engine=LocalEngine(chunk_of(cfg, model, trainer)),
        meter=meter,
    )
    return Built(
        cfg, cast(Any, data), backbone, model, federation, meter, source, cast(Any, None), {}
    )


class Watch:
    """CPU seconds by phase, in the order in which they were spent."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def clock(self, phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``work`` that enters under ``phase`` what it spends."""

        def timed(*args: Any, **named: Any) -> Any:
            began = time.process_time()
            out = work(*args, **named)
            self.spent.setdefault(phase, []).append(time.process_time() - began)
            return out

        return timed


def one(
    method: str, clients: int, cohort: int, *, evaluate: int = 0, rounds: int = ROUNDS
) -> Measurements:
    """Run ``rounds`` rounds and return what they cost; the first is left out as a warm-up.

    Returns:
        CPU seconds of a middle round by phase, of the evaluation of all at the end, bytes of a
        round's state files and of all of them, bytes of a line of metrics, peak of the memory
        beside what was there before, milliseconds of training per client and round, and how many
        times its training a middle round's bookkeeping costs.
    """
    began = time.process_time()
    built = build(method, clients, cohort, evaluate=evaluate, rounds=rounds)
    watch, before, building = Watch(), machine.settle(), time.process_time() - began
    with tempfile.TemporaryDirectory() as place:
        path = RunPath("scale", "random", "all", method, "tiny", f"n{clients}", SEED, SEED)
        folder = RunFolder.create(place, path, {"clients": clients, "method": method})
        recorder = Recorder(built, folder, (), lambda record: None)
        recorder.evaluator = cast(Any, watch.clock("evaluation", recorder.evaluator))
        recorder.evaluator.logits = {}  # what the recorder asks an evaluator for
        federation, sizes, written = built.federation, [], []

        def save(state: Any) -> None:
            before = _files(folder.state_dir)
            recorder.save(state)
            after = _files(folder.state_dir)
            sizes.append(sum(size for size, _ in after.values()))
            written.append(sum(v[0] for name, v in after.items() if before.get(name) != v))

        federation.subscribers.append(watch.clock("hearing", recorder))
        federation.savers.append(watch.clock("state", save))
        federation.round = watch.clock("round", federation.round)  # type: ignore[method-assign]
        with folder:
            _, cost = machine.measure(federation.run)
            line = max(len(text) for text in folder.metrics_path.read_text().splitlines()[1:-1])
    return _numbers(watch.spent, min(cohort, clients), rounds) | {
        "building": building, "whole_run": cost.cpu, "peak": cost.rss,
        "state_bytes": median(written[2:-1]), "state_bytes_all": sizes[-1],
        "clients": clients, "cohort": min(cohort, clients), "metrics_line": line,
        "memory": max(0, cost.rss - before), "chunk": federation.engine.chunk,
    }


def _numbers(spent: dict[str, list[float]], cohort: int, rounds: int) -> Measurements:
    """Return the medians of the middle rounds: not the first, nor the last, which evaluates all."""
    middle = slice(1, rounds - 1)  # of the rounds 1, 2, ...
    hearing = [h for h in spent["hearing"] if h]  # two events a round but the start's one
    ends = hearing[:: 2] if len(hearing) == 2 * rounds + 1 else hearing
    evaluation = spent["evaluation"]
    rows = list(zip(spent["round"], evaluation[1:], spent["state"][1:], ends[1:], strict=False))
    told = [max(h - e, 0.0) for _, e, _, h in rows]
    training = [r - s - h for r, _, s, h in rows]
    out: Measurements = {
        "training": median(training[middle]), "evaluation": median(evaluation[1:][middle]),
        "metrics": median(told[middle]), "state": median(spent["state"][1:][middle]),
        "evaluation_of_all": evaluation[-1],
    }
    beside = out["evaluation"] + out["metrics"] + out["state"]
    return out | {
        "per_client_ms": 1000 * out["training"] / cohort,
        "bookkeeping": beside / max(out["training"], 1e-9),
    }


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of every file."""
    found = {f: f.stat() for f in folder.rglob("*") if f.is_file()}
    return {f: (s.st_size, s.st_mtime_ns) for f, s in found.items()}


def run(
    sizes: Sequence[int], *, cohort: int = 50, methods: Sequence[str] = (HEAD, FEDTV),
    evaluate: int = 0, rounds: int = ROUNDS, threads: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Measurements:
    """Measure and return a record of plain JSON values.

    Args:
        sizes: numbers of clients.
        cohort: how many of them work in a round.
        evaluate: how many stand for all in the evaluations of start and end; 0: all.

    Raises:
        ConfigError: a number below 1, or fewer rounds than have a middle.
    """
    if rounds < LEAST:
        raise ConfigError(f"--rounds {rounds}: must be at least {LEAST}, the first and the last "
                          "round are no measurement")
    if evaluate < 0:
        raise ConfigError(f"--evaluate {evaluate}: must be at least 0")
    machine.refuse_below_one(cohort=cohort, threads=threads)
    for clients in sizes:
        machine.refuse_below_one(sizes=clients)
    rows: dict[str, list[Measurements]] = {}
    with machine.threads(threads):
        for method in methods:
            for clients in sizes:
                say(f"{method}, {clients:,} clients")
                rows.setdefault(method, []).append(one(
                    method, clients, cohort, evaluate=evaluate, rounds=rounds
                ))
    return {
        "setting": {"cohort": cohort, "threads": threads, "rounds": rounds,
                    "evaluate": evaluate, "train": TRAIN,
                    "test": TEST, "torch": torch.__version__},
        "load": {"after": machine.load(), "cores": machine.cores()}, "methods": rows,
    }


def lines(record: Measurements) -> list[str]:
    """Return the report."""
    s, load = record["setting"], record["load"]
    out = [
        f"rounds of a cohort of {s['cohort']}, {s['train']} training and {s['test']} test samples "
        f"a client, one local step; medians of the middle of {s['rounds']} rounds, CPU seconds, "
        f"{s['threads']} thread(s); load average {load['after']:.1f} on {load['cores']} core(s)"
    ]
    for method, rows in record["methods"].items():
        out.append(f"{method}, {rows[0]['chunk']} clients stacked")
        out += table_lines([_row(r) for r in rows])
    return [
        *out,
        "beside: evaluation, metrics and state over training; all: evaluation of every client at "
        "the end, or of those that --evaluate names; written: state files of a round; memory: what "
        "the run added at its peak; process: its whole peak; run: all CPU seconds, and building",
    ]


def _row(r: Measurements) -> dict[str, object]:
    return {
        "clients": f"{r['clients']:,}", "training": f"{r['training']:.4f}",
        "ms/client": f"{r['per_client_ms']:.3f}", "evaluation": f"{r['evaluation']:.4f}",
        "metrics": f"{r['metrics']:.4f}", "state": f"{r['state']:.4f}",
        "beside": f"{r['bookkeeping']:.2f}x", "all": f"{r['evaluation_of_all']:.2f}",
        "written": f"{r['state_bytes'] / 2**20:.2f} MiB",
        "folder": f"{r['state_bytes_all'] / 2**20:.1f} MiB",
        "line": f"{r['metrics_line'] / 1024:.0f} KiB", "memory": f"{r['memory'] / 2**20:.0f} MiB",
        "process": f"{r['peak'] / 2**20:.0f} MiB", "run": f"{r['building'] + r['whole_run']:.1f}",
    }
