"""Subscribes to the round loop: evaluates, writes metrics and state, tells console and log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from fedvlm.console.rows import ClientRow, RoundRow
from fedvlm.core.stats import mean
from fedvlm.evaluation import Evaluator
from fedvlm.federation.aggregation.telltale import outlier_sentence
from fedvlm.federation.rounds import Event, FedState, RoundFinished, RoundStarted
from fedvlm.job.build import Built
from fedvlm.job.similarity import has_similarity, similarity
from fedvlm.runs.folder import RunFolder


class Screen(Protocol):
    """What ``Console`` and ``LogFile`` have in common."""

    def round_started(self, round_: int, cids: Sequence[int]) -> None:
        """Show who works."""

    def round_finished(self, row: RoundRow) -> None:
        """Show a finished round."""

    def notes(self, notes: Iterable[str]) -> None:
        """Show remarks."""


def make_evaluator(built: Built, **options: Any) -> Evaluator:
    """Return the evaluator of a run on its test splits.

    Selection by validation may name any round, so then every round has its test numbers.
    """
    cfg = built.cfg
    every = 1 if cfg.TEST.SELECT == "val" else int(cfg.TEST.EVAL_EVERY)
    return Evaluator(
        built.model, built.federation.trainer, built.test, built.data,
        every=every, batch_size=int(cfg.DATALOADER.TEST.BATCH_SIZE), **options,
    )


def validation_evaluator(built: Built) -> Evaluator:
    """Return an evaluator whose test splits are the clients' validation splits."""
    clients = [replace(c, test=c.val) for c in built.data.clients]
    pooled = np.unique(np.concatenate([c.val for c in built.data.clients]))
    data = replace(
        built.data, clients=clients, global_test=pooled, new_classnames=[], others=[]
    )
    return Evaluator(
        built.model, built.federation.trainer, built.test, data, every=1,
        batch_size=int(built.cfg.DATALOADER.TEST.BATCH_SIZE), cross=False,
    )


class Recorder:
    """Order per round: evaluate, append metrics, save the state; a kill in between repeats it.

    Args:
        state: what the run goes on from; None for its beginning.
        sinks: get each round's record (``job.sinks.Sinks``).
    """

    def __init__(
        self, built: Built, folder: RunFolder, screens: Sequence[Screen], state: FedState | None,
        sinks: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.built, self.folder, self.screens, self.sinks = built, folder, screens, sinks
        self.evaluator = make_evaluator(built, keep_logits=bool(built.cfg.TEST.KEEP_LOGITS))
        by_validation = built.cfg.TEST.SELECT == "val"
        self.validation = validation_evaluator(built) if by_validation else None
        self.clients: dict[int, ClientRow] = {}  # as last shown

    def __call__(self, event: Event) -> None:
        """See the class."""
        if isinstance(event, RoundStarted):
            for screen in self.screens:
                screen.round_started(event.round, event.clients)
            return
        metrics = self.evaluator(event)
        record = round_record(event) | (metrics or {})
        if has_similarity(event):
            cosines = similarity(event)
            record |= {"similarity": cosines} if cosines else {}
        if self.validation is not None:
            # All rounds alike: the last one's models as they are before any final fine-tuning.
            alike = replace(event, personal=event.before_finetuning, finetuning={})
            validation = self.validation(alike)
            record["val"] = validation["personal"] if validation else None
        if self.evaluator.logits:
            self.folder.save_tensors("logits", self.evaluator.logits)
        self.folder.append_metrics(record)
        self.sinks(record)
        self.save(event)
        row = self.row(event, metrics)
        for screen in self.screens:
            screen.round_finished(row)
            screen.notes([outlier_sentence(event.round, r) for r in record.get("outliers", ())])

    def save(self, event: RoundFinished) -> None:
        """Save the state where that is due, and what only the last round's models know.

        The checkpoint comes last: a kill before it repeats the rounds since the one before.
        """
        federation, ends = self.built.federation, event.round >= event.total_rounds
        if not ends and event.round % max(int(self.built.cfg.TRAIN.CHECKPOINT_FREQ), 1):
            return
        if event.finetuning:
            ids = range(federation.plan.clients)
            for number, (clients, models) in enumerate(event.personal(ids)):
                self.folder.save_models(number, clients, models)
        records = federation.save(event.state, self.folder.records)
        self.folder.save_state(event.round, event.state.server, records)
        federation.commit(event.state)

    def row(self, event: RoundFinished, metrics: Mapping[str, Any] | None) -> RoundRow:
        """Return what the screen shows of a round; a client keeps its last known numbers."""
        accuracy = {c["client"]: c["accuracy"] for c in metrics["clients"]} if metrics else {}
        losses = {c: told.get("loss") for c, told in metrics_of(event).items()}
        rows = []
        for c, split in enumerate(self.built.data.clients):
            before = self.clients.get(c)
            state = "dropped" if c in event.dropped else "trained" if c in losses else "absent"
            rows.append(ClientRow(
                c, len(split.train), losses.get(c, before.loss if before else None),
                accuracy.get(c, before.accuracy if before else None), state,
            ))
        self.clients = {r.cid: r for r in rows}
        names = {"global": "global", "unseen": "unseen", "before fine-tuning": "personal_before_ft"}
        extra = {
            name: metrics[key] for name, key in names.items()
            if metrics and metrics.get(key) is not None
        }
        return RoundRow(
            event.round, event.seconds, mean(losses.values()),
            metrics["personal"] if metrics else None,
            metrics["personal_worst"] if metrics else None,
            total(event.bytes_up) + total(event.bytes_down), rows, extra,
        )


def total(traffic: Mapping[int, Mapping[str, int]]) -> int:
    """Return all bytes of a round."""
    return sum(sum(tensors.values()) for tensors in traffic.values())


def by_tensor(traffic: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """Return a round's bytes by tensor, all clients together."""
    names = {name for tensors in traffic.values() for name in tensors}
    return {
        name: sum(tensors.get(name, 0) for tensors in traffic.values()) for name in sorted(names)
    }


def metrics_of(event: RoundFinished) -> dict[int, dict[str, float]]:
    """Return the declared numbers that came with each client's upload."""
    updates = event.updates
    return {c: updates.of(c) for c in updates.clients} if updates else {}


def short(value: float) -> float:
    """Return a number with six significant digits; whole numbers as they are."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def round_record(event: RoundFinished) -> dict[str, Any]:
    """Return a round's line of ``metrics.jsonl`` without its evaluation."""
    told = event.telltale
    outliers = [{n: short(v) for n, v in row.items()} for row in told.rows()]
    return {
        "round": event.round,
        "seconds": event.seconds,
        "participants": list(event.updates.clients) if event.updates else [],
        "dropped": {str(c): why for c, why in event.dropped.items()},
        "train": {str(c): told for c, told in metrics_of(event).items()},
        "bytes_up": {str(c): sum(sent.values()) for c, sent in event.bytes_up.items()},
        "bytes_down": {str(c): sum(got.values()) for c, got in event.bytes_down.items()},
        "bytes_up_by_tensor": by_tensor(event.bytes_up),
        "bytes_down_by_tensor": by_tensor(event.bytes_down),
        "counters": dict(event.counters),
        "aggregation": event.report,
        "update_norm": dict(zip(map(str, told.clients), map(short, told.norm), strict=True)),
        "update_cosine": dict(zip(map(str, told.clients), map(short, told.cosine), strict=True)),
        **({"outliers": outliers} if outliers else {}),
        **({"finetune": event.finetuning} if event.finetuning else {}),
    }
