"""Subscribes to the round loop: evaluates, writes metrics and state, tells console and log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from yacs.config import CfgNode

from fedvlm.console.log import LogFile
from fedvlm.console.rows import ClientRow, RoundRow
from fedvlm.console.screen import Console
from fedvlm.core import signals
from fedvlm.core.errors import DivergedError
from fedvlm.core.rows.store import move_state
from fedvlm.core.stats import mean
from fedvlm.evaluation import Evaluator, Panel, auto_interval, panel_of
from fedvlm.evaluation.scores import DOMAIN
from fedvlm.federation.aggregation.telltale import outlier_sentence
from fedvlm.federation.reliability.unreliable import REFUSED, drop_kind
from fedvlm.federation.rounds import (
    Event,
    FedState,
    RoundFinished,
    RoundStarted,
    WholeState,
    convert_format1,
)
from fedvlm.federation.trainer import Trainer
from fedvlm.federation.workplace import PersonalModels
from fedvlm.job.build import Built
from fedvlm.job.results.private import promises_privacy
from fedvlm.job.similarity import has_similarity, upload_similarity
from fedvlm.runs.bits import BITS
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.state import SavedState

OVERFLOW = 1e6  # a training loss above it says that nothing is learnt any more
# Times the loss before training, of the last round; times that of guessing, of any round. Of 2,701
# published runs none ends above 1.86, and the six that all other signs call diverged end at 1.25 to
# 1.86 (FedDyn, untuned).
ENDS_HIGH, PEAK = 3.0, 10.0
SOON = 2  # rounds after which a loss may still fall, if accuracy has risen
GUESSED = 0.99  # times the loss of guessing, the least of a model that only guesses


def make_panel(built: Built) -> Panel:
    """Return whose personal models a run evaluates, and after which rounds.

    Selection by validation may name any round, so then every round has the numbers of all.
    """
    cfg, federation = built.cfg, built.federation
    plan, by_validation = federation.plan, cfg.TEST.SELECT == "val"
    pooled = len(built.data.global_test) + sum(
        len(other.indices) for other in built.data.others if other.kind == DOMAIN
    )
    every = 1 if by_validation else int(cfg.TEST.EVAL_EVERY) or auto_interval(
        federation.roster, plan.cohort, plan.epochs, pooled
    )
    return panel_of(
        federation.roster, cohort=int(cfg.TEST.COHORT), data_seed=int(cfg.DATA_SEED), every=every,
        alike=by_validation,
    )


def whole_state(saved: SavedState, device: torch.device) -> WholeState:
    """Return a saved state of format 1, on a device."""
    return convert_format1(saved.round, move_state(saved.server, device),
                           {c: move_state(s, device) for c, s in saved.clients.items()})


def make_evaluator(built: Built, **options: Any) -> Evaluator:
    """Return the evaluator of a run on its test splits."""
    test = built.cfg.TEST
    return Evaluator(
        built.model, built.federation.trainer, built.test, built.data, make_panel(built),
        batch_size=int(built.cfg.DATALOADER.TEST.BATCH_SIZE),
        confusion=bool(test.PER_CLASS_RESULT or test.COMPUTE_CMAT), **options,
    )


class Recorder:
    """Order per round: evaluate, append metrics, save the state; a kill in between repeats it.

    It hears a round's event first (``__call__``) and gets the state then (``save``).
    """

    def __init__(
        self, built: Built, folder: RunFolder, screens: Sequence[Console | LogFile],
        sinks: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.built, self.folder, self.screens, self.sinks = built, folder, screens, sinks
        test = built.cfg.TEST
        self.evaluator = make_evaluator(
            built, keep_logits=bool(test.KEEP_LOGITS or test.PER_IMAGE)
        )
        self.evaluator.named = built.meter.named
        self.by_validation = built.cfg.TEST.SELECT == "val"
        self._show: list[tuple[RoundRow, list[str]]] = []  # until the state is saved
        self._unsaved: FedState | None = None  # the last whole round, where no checkpoint has it

    def __call__(self, event: Event) -> None:
        """See the class."""
        if isinstance(event, RoundStarted):
            for screen in self.screens:
                screen.round_started(event.round, event.clients)
            return
        check_overflow(event, self.built.cfg)
        metrics = self.evaluator(event)
        record = round_record(event) | (metrics or {})
        if has_similarity(event):
            cosines = upload_similarity(event)
            record |= {"similarity": cosines} if cosines else {}
        if event.finetuning:
            record["seconds"] += sum(self.built.federation.finetune_seconds.values())
        if event.val is not None:
            record["val"] = event.val
            record |= {} if event.val_loss is None else {"val_loss": event.val_loss}
        elif self.by_validation:
            record["val"] = self.evaluator.validate(event)
        if self.evaluator.logits:
            away = self.built.federation.engine.logits
            kept = self.evaluator.logits | self.built.meter.logits | dict(away)
            if self.built.cfg.TEST.KEEP_LOGITS:
                self.folder.save_tensors("logits", kept)
            if self.built.cfg.TEST.PER_IMAGE:
                from fedvlm.job.results.images import image_bits  # start-up: where it is asked for

                record[BITS] = image_bits(kept)
        self.folder.append_metrics(record)
        self.sinks(record)
        said = [outlier_sentence(event.round, row) for row in record.get("outliers", ())]
        self._show.append((round_row(event, metrics), said))

    def save(self, state: FedState) -> None:
        """Save the state that a resumed run goes on from where that is due, then show its round."""
        self._unsaved = state
        ends = state.round >= self.built.federation.last_round
        if ends or state.round % max(int(self.built.cfg.TRAIN.CHECKPOINT_FREQ), 1) == 0:
            self._checkpoint(state)
        if signals.save_asked():
            self.save_last()
            self._show[-1][1].append(f"saved after round {state.round} (SIGUSR1)")
        while self._show:
            row, said = self._show.pop(0)
            for screen in self.screens:
                screen.round_finished(row)
                screen.notes(said)

    def save_last(self) -> None:
        """Save the last whole round if no checkpoint has it; a stop leaves nothing to repeat."""
        if self._unsaved is not None:
            self._checkpoint(self._unsaved)

    def _checkpoint(self, state: FedState) -> None:
        """Save personal models, clients' rows and the server, in this order.

        The server comes last: a kill before it repeats the rounds since the checkpoint before. What
        breaks off here is not tried again in this process.
        """
        self._unsaved = None
        with signals.delay_stops():
            self._write(state)

    def _write(self, state: FedState) -> None:
        federation = self.built.federation
        if state.round >= federation.last_round:
            for number, (clients, models) in enumerate(self._to_keep(state)):
                self.folder.save_models(number, clients, models)
        records, memory = federation.save(state, self.folder.records), federation.engine.memory()
        self.folder.save_state(
            state.round, state.server, records, {"sites": memory} if memory else {}
        )
        federation.commit(state)

    def _to_keep(self, state: FedState) -> PersonalModels:
        """Yield the last round's personal models that rows and server do not give again.

        Those are fine-tuned at the end, or made from the clients' images. Sites keep theirs.
        """
        federation = self.built.federation
        tune = federation.finetunes(state)
        if not tune and type(federation.trainer).personalize is Trainer.personalize:
            return  # tensors alone
        question = federation.question(state, range(federation.plan.clients), True)
        bundles = federation.engine.models(question, lambda: federation.bundles(question))
        for clients, models, images in bundles:
            if tune or images:
                yield clients, models


def round_row(event: RoundFinished, metrics: Mapping[str, Any] | None) -> RoundRow:
    """Return what the screen shows of a round, with the clients that worked or were evaluated."""
    accuracy = {c["client"]: c["accuracy"] for c in metrics["clients"]} if metrics else {}
    losses = {c: told.get("loss") for c, told in metrics_of(event).items()}
    sizes = event.roster.train
    rows = []
    for c in sorted({*accuracy, *losses, *event.dropped}):
        state = "trained" if c in losses else "absent"
        if c in event.dropped:
            kind = drop_kind(event.dropped[c])
            state = "dropped" if kind == REFUSED else kind
        rows.append(ClientRow(c, int(sizes[c]), losses.get(c), accuracy.get(c), state))
    names = {
        "global": "global", "unseen": "unseen", "before fine-tuning": "personal_before_ft",
        "unseen clients": "unseen_clients",
    }
    extra = {
        name: metrics[key] for name, key in names.items()
        if metrics and metrics.get(key) is not None
        and (event.finetuning or key != "personal_before_ft")
    }
    shown = metrics or {}
    return RoundRow(
        event.round, event.seconds, mean(losses.values()), shown.get("personal"),
        shown.get("personal_worst"), total(event.bytes_up) + total(event.bytes_down), rows, extra,
        shown.get("personal_clients"),
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


def six_digits(value: float) -> float:
    """Return a number with six significant digits; whole numbers as they are."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def check_overflow(event: RoundFinished, cfg: CfgNode) -> None:
    """Stop a run whose training loss has overflowed, if not yet to infinity (``DivergedError``)."""
    if cfg.FED.NONFINITE != "abort":
        return
    for client, told in metrics_of(event).items():
        for name, value in told.items():
            if name.rpartition("/")[2] == "loss" and abs(value) > OVERFLOW:
                raise DivergedError(
                    f"round {event.round}, client {client}: the training loss is {value:.2g}: "
                    f"training has diverged; lower --lr (now {cfg.OPTIM.LR:g}), or set "
                    "FED.NONFINITE drop to continue all the same"
                )


def check_explosion(built: Built, records: Sequence[Mapping[str, Any]]) -> None:
    """Stop a run that ends with models which training has destroyed, though nothing overflowed.

    A head on unit features has a bounded loss, however mad the rate. A run has diverged if its mean
    training loss (1) stood, in the last round, far above the loss before training and that of
    guessing, log C, or anywhere very far; (2) was in no round below that of guessing; and if (3)
    the clients' test loss is neither better than guessing nor than before, and (4), after at most
    ``SOON`` rounds, their accuracy not above the untrained one. Ordinary runs fail two of these,
    runs with a loss of several terms (2) or (3). With hostile clients or noise the rate is not the
    cause, so they are left alone, as are runs on sets of labels.

    Args:
        records: one per round, the untrained start first.

    Raises:
        DivergedError: all of these hold (policy ``abort``).
    """
    cfg, plan = built.cfg, built.federation.plan
    losses = [told for record in records if (told := _mean_loss(record)) is not None]
    if cfg.FED.NONFINITE != "abort" or plan.hostile or promises_privacy(built) or not losses:
        return
    before, after = records[0], records[-1]
    numbers = [one.get(name) for one in (before, after) for name in ("personal", "personal_nll")]
    if None in numbers or "personal_auroc" in after:
        return
    start, loss_before, end, loss_after = (float(x or 0) for x in numbers)
    guess = math.log(len(built.data.classnames))
    usual = max(loss_before, guess)
    learnt = end > start and len(losses) <= SOON
    peak = max(PEAK * guess, ENDS_HIGH * usual)
    high = losses[-1] > ENDS_HIGH * usual or max(losses) > peak
    if high and min(losses) >= GUESSED * guess and loss_after >= GUESSED * usual and not learnt:
        raise DivergedError(
            f"training has diverged: the clients' mean training loss reached {max(losses):.3g} and "
            f"was in no round below that of guessing ({guess:.2g}), their test loss went from "
            f"{loss_before:.3g} to {loss_after:.3g}, and personal accuracy from {start:.1f} to "
            f"{end:.1f}; lower --lr (now {cfg.OPTIM.LR:g}), or set "
            "FED.NONFINITE drop to write the results all the same"
        )


def _mean_loss(record: Mapping[str, Any]) -> float | None:
    """Return a round's training loss, mean over clients; None where nobody tells one."""
    return mean([told["loss"] for told in record.get("train", {}).values() if "loss" in told])


def round_record(event: RoundFinished) -> dict[str, Any]:
    """Return a round's line of ``metrics.jsonl`` without its evaluation."""
    told = event.telltale
    outliers = [{n: six_digits(v) for n, v in row.items()} for row in told.rows()]
    return {
        "round": event.round,
        "seconds": event.seconds,
        "participants": list(event.updates.clients) if event.updates else [],
        "dropped": {str(c): why for c, why in event.dropped.items()},
        **({"partial": {str(c): six_digits(v) for c, v in event.partial.items()}}
           if event.partial else {}),
        "train": {str(c): told for c, told in metrics_of(event).items()},
        "bytes_up": {str(c): sum(sent.values()) for c, sent in event.bytes_up.items()},
        "bytes_down": {str(c): sum(got.values()) for c, got in event.bytes_down.items()},
        "bytes_up_by_tensor": by_tensor(event.bytes_up),
        "bytes_down_by_tensor": by_tensor(event.bytes_down),
        "counters": dict(event.counters),
        "aggregation": event.report,
        "update_norm": dict(zip(map(str, told.clients), map(six_digits, told.norm), strict=True)),
        "update_cosine": dict(
            zip(map(str, told.clients), map(six_digits, told.cosine), strict=True)
        ),
        **({"outliers": outliers} if outliers else {}),
        **({"finetune": event.finetuning} if event.finetuning else {}),
    }
