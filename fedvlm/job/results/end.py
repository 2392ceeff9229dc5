"""What a finished run says, on the screen, in ``log.txt`` and in ``results.json``: made here only.

And after ``--seeds 1 2 3``: mean and standard deviation over the seeds' results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.config.engines import LOCAL, of_parties
from fedvlm.config.families import trained_words
from fedvlm.console.log import Headline
from fedvlm.console.rows import table_lines
from fedvlm.core.spelling import SIMULATED
from fedvlm.core.stats import mean, sample_std
from fedvlm.core.threads import peak_mib
from fedvlm.core.trees import numel
from fedvlm.data.targets import DATASET
from fedvlm.evaluation.scores import CONFUSION, TARGET, client_list
from fedvlm.federation.aggregation.telltale import times
from fedvlm.federation.peft_trainer import takes_peft
from fedvlm.federation.reliability.unreliable import VOID, count_reasons
from fedvlm.job.build import Built, views_of
from fedvlm.job.describe import partition_name, setting_name
from fedvlm.job.results import against
from fedvlm.job.results.classes import class_lines, per_class
from fedvlm.job.results.private import HIDDEN, meaning_of, private
from fedvlm.runs.identity import CAPTIONS, LABEL, LABELS
from fedvlm.runs.metrics import repeats_personal, sentence, spent, totals
from fedvlm.runs.names import method_name
from fedvlm.runs.private import public_facts
from fedvlm.runs.verify.answer import (
    ANSWER,
    BARE,
    NEXT,
    answer_lines,
    federation_answer,
    is_retrieval,
    seeds_lines,
)
from fedvlm.runs.verify.beside import References, gain, hurt, reference_kind
from fedvlm.runs.verify.meaning import shared_classes
from fedvlm.runs.verify.numbers import CLIENTS, RECALLS

METRICS = (
    "personal", "personal_std", "personal_worst", "personal_worst_decile", "personal_micro",
    "personal_macro_f1", "global", "global_macro_f1", "base_all", "base_other", "new", "hm2",
    "hm3", "cm", "personal_before_ft", "unseen", "unseen_personal", "targets", "unseen_clients",
    "unseen_clients_std", "unseen_clients_worst", "personal_balanced", "personal_q1",
    "personal_median", "personal_q3", "personal_nll", "personal_ece",
    "personal_nll_calibrated", "personal_ece_calibrated", "personal_auroc",
    "personal_sensitivity", "global_auroc", "backdoor",
    *(f"{whose}_{name}" for whose in ("personal", "global") for name in RECALLS),
)
COLUMNS = (
    "personal", "personal_before_ft", "personal_worst", "global", "base_all", "base_other", "new",
    "hm2", "hm3", "cm", "unseen", "unseen_personal", "targets", "unseen_clients",
)
NAMED = "named"  # metrics by name (``evaluation.named``)
SETS_COLUMNS = ("personal_auroc", "personal_macro_f1")  # of sets of labels
CAPTION_COLUMNS = ("personal_i2t_r1", "personal_t2i_r1", "personal_i2t_r10", "personal_t2i_r10")
LONG = ("similarity", CONFUSION, LABELS, NAMED)  # of a round's record: K x K, C x C
TOLD = (
    "numbers of clients are as their sites told them: nobody else has their images, and a site "
    "that lies about them is believed (docs/attacks.md)"
)
FEW = 4  # targets with a column each; of more, the table on the screen has the mean only

Paired = Callable[[Mapping[str, Any]], dict[str, Any]]
Row = Mapping[str, Any]  # a round's record, or the metrics of a reference without training


@dataclass(frozen=True)
class Results:
    """All that a finished run says.

    Attributes:
        table: the rows of the final table: references, the untrained start, the last round.
        notes: what it cost, and why it ended where it did.
        headline: the end of ``log.txt``; None where no client has a test image.
        classes: Dassl's lines by class, for ``log.txt``.
        run_info, protocol, numbers: the sections of ``results.json``.
        answer: whether federation paid, in lines (``runs.verify.answer``).
    """

    table: list[dict[str, Any]]
    notes: list[str]
    headline: Headline | None
    run_info: dict[str, Any]
    protocol: dict[str, Any]
    numbers: dict[str, Any]
    classes: Sequence[Sequence[str]] = ()
    answer: Sequence[str] = ()


def results_of(
    built: Built, zero_shot: Row | None, records: Sequence[Row], seconds: float,
    references: References | None = None, paired: Paired | None = None,
) -> Results:
    """Return the results of a run from its rounds' records.

    The last round is the headline. With ``TEST.SELECT val`` the round with the best validation
    accuracy (the earliest of equals) stands beside it; the test set chooses nothing.

    Args:
        zero_shot: the template's metrics; None for a backbone without text tower.
        records: one per round, the untrained start first.
        seconds: wall time of this session.
        references: see ``evaluation.references``; None where ``TEST.REFERENCES`` is off.
        paired: makes of ``last``, ``references`` and ``spent`` what compares them image by image;
            None where the images' answers are not known.

    Its ``numbers``: ``untrained``, ``last``, ``zero_shot``, ``selected``, ``references``,
    ``answer``, ``next``, ``below``, ``gain``, ``hurt``, ``spent``, ``per_class``, ``confusion``,
    ``table`` (``docs/references.md``), ``lost``, ``partial`` (``docs/unreliable.md``), ``privacy``
    (``docs/privacy.md``), ``readmitted`` (``docs/deployment.md``), ``attack``
    (``docs/attacks.md``), ``told`` (whose word the clients' numbers are), ``test_images``.
    """
    start, last = records[0], records[-1]
    references, away = _judged(references, last)
    numbers: dict[str, Any] = {
        "untrained": summary(start) | client_rows(start),
        "last": {k: v for k, v in last.items() if k not in LONG},
    }
    rows = {}
    if zero_shot:
        rows["zero-shot (template)"] = zero_shot
        numbers["zero_shot"] = summary(zero_shot) | client_rows(zero_shot)
    spoken = private(built, records)
    rows |= against.table_rows({} if spoken else references or {})
    rows["untrained start"] = start
    if built.cfg.TEST.SELECT == "val":
        rated = [r for r in records if r.get("val") is not None and "personal" in r]
        best = max(rated, key=lambda r: (r["val"], -r["round"]))
        rows[f"round {best['round']} (best on val)"] = best
        numbers["selected"] = summary(best) | {"round": best["round"], "val": best["val"]}
    rows[f"{built.federation.trainer.name}, round {last['round']}"] = last
    table, whole = _table(rows, last), totals(records)
    numbers["spent"] = spent(records)
    if references is not None:
        numbers |= _beside(built, last, numbers["spent"], references, paired)
    numbers |= _by_class(built, last) | lost(records) | _bare(built) | _images(built, last)
    numbers |= {name: last[name] for name in (LABELS, NAMED) if name in last}
    if taken := _readmitted(built):
        numbers["readmitted"] = taken
    hostile = built.federation.plan.hostile
    if hostile is not None:
        numbers["attack"] = hostile.report(last["clients"])
    if spoken:
        numbers["privacy"] = spoken
    if of_parties(built.cfg):
        numbers["told"] = TOLD
    end = [
        *_end(built), *([TOLD] if "told" in numbers else []), *readmissions(taken),
        *privacy_lines(spoken), *losses(records),
        *outliers(records), *attack_lines(numbers), *_named(last), *_uncalibrated(last),
        *away,
    ]
    run_info = {
        "seconds_this_session": seconds, "seconds_rounds": whole["seconds"],
        "bytes_up": whole["bytes_up"], "bytes_down": whole["bytes_down"], "totals": whole,
        "constant_passes": dict(built.model.constants),  # once a session, in no round's counters
        **_peaks(built), "trainable": numel(built.federation.p0),
        "notes": [*built.notes, *end],
    }
    said = protocol(built) | ({"privacy": spoken["words"]} if spoken else {})
    if references is not None:
        numbers[ANSWER] = federation_answer(numbers)
        numbers[NEXT] = _next(built, numbers, records, said)
    return Results(
        table, [*end, sentence(whole)], _headline(last), run_info, said,
        numbers | {"table": table}, class_lines(numbers.get("per_class", {}).get("personal", ())),
        answer_lines(numbers, method_name(said)),
    )


def _peaks(built: Built) -> dict[str, dict[str, float]]:
    """Return the most memory of this session, MiB: of the process, and of tensors on a GPU.

    Nothing where clients are computed elsewhere: this process then says little of a run's need.
    """
    if built.cfg.FED.ENGINE != LOCAL:
        return {}
    device, peaks = built.model.device, {"resident": round(peak_mib(), 1)}
    if device.type == "cuda":
        peaks["gpu"] = round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    return {"peak_mib": peaks}


def _judged(references: References | None, last: Row) -> tuple[References | None, list[str]]:
    """Return the baselines over the clients that the last round judges; say whom they lose."""
    if references is None:
        return None, []
    from fedvlm.evaluation.references.suite import of_judged  # start-up: runs with baselines only

    found, lost = of_judged(references, last["clients"])
    return found, [f"the baselines leave out {client_list(lost)}, too: both sides are of the same "
                    "clients"] if lost else []


def _next(
    built: Built, numbers: Row, records: Sequence[Row], said: Row
) -> dict[str, Any] | None:
    """Return what to try next; what attackers do is mended by none of its flags."""
    if built.federation.plan.hostile is not None:
        return None
    return against.next_step(
        numbers, records, said["trainer"], said["peft"], float(built.cfg.OPTIM.LR),
        longer=not (built.cfg.FED.PATIENCE or built.cfg.FED.BUDGET != "rounds"
                    or len(records) - 1 < built.cfg.FED.ROUNDS),
        sgd=built.cfg.OPTIM.NAME == "sgd", shared=_shared_classes(built),
    )


def _shared_classes(built: Built) -> list[str]:
    """Return the classes that clients share, by the counts that the server has."""
    roster = built.federation.roster
    counts = roster.classes[list(roster.present)].tolist()
    return shared_classes(counts, built.data.classnames)


def _readmitted(built: Built) -> list[Any]:
    """Return what is known of sites that were let in again, without what became void."""
    return [one for one in built.federation.engine.memory().get("readmitted", ())
            if VOID not in one]


def _bare(built: Built) -> dict[str, list[int]]:
    """Return the clients that have only images without a label, where there are any."""
    bare = built.data.without_labels
    return {BARE: bare} if bare else {}


def _images(built: Built, last: Row) -> dict[str, Any]:
    """Return which test images each client has, where ``TEST.PER_IMAGE`` asks for them."""
    if not built.cfg.TEST.PER_IMAGE:
        return {}
    from fedvlm.job.results.images import image_places  # start-up: where it is asked for

    return image_places(last, built.data)


def _uncalibrated(last: Row) -> list[str]:
    """Return how many clients have no temperature of their own (``TEST.CALIBRATE``)."""
    found = [row["temperature"] for row in last.get("clients", ()) if "nll_calibrated" in row]
    count = found.count(1.0)
    return [f"TEST.CALIBRATE: the validation images of {count} of {len(found)} clients do not fix "
            "a temperature (none is classified wrongly, or there are none); theirs is 1"
            ] if count else []


def _beside(
    built: Built, last: Row, spent: Row, references: References, paired: Paired | None
) -> dict[str, Any]:
    """Return the references, and what the method is beside them."""
    method, personal = built.federation.trainer.name, last["personal"]
    numbers = {"last": last, "references": dict(references), "spent": spent}
    return {
        "references": dict(references),
        "below": against.below(method, personal, references, reference_kind(spent)),
        "gain": gain(personal, references),
        "hurt": hurt(last["clients"], references),
    } | (paired(numbers) if paired else {})


def _named(last: Row) -> list[str]:
    """Return a line for each metric by name."""
    if NAMED not in last:
        return []
    from fedvlm.evaluation.named import metric_lines  # start-up: for metrics by name only

    return metric_lines(last[NAMED])


def _by_class(built: Built, last: Row) -> dict[str, Any]:
    """Return what ``TEST.PER_CLASS_RESULT`` and ``TEST.COMPUTE_CMAT`` ask for."""
    test, counts = built.cfg.TEST, last.get(CONFUSION)
    out: dict[str, Any] = {}
    if counts is None:
        return out  # the round was run when neither was asked for
    if test.PER_CLASS_RESULT:
        out["per_class"] = {
            whose: per_class(some, built.data.classnames) for whose, some in counts.items()
        }
    if test.COMPUTE_CMAT:
        out[CONFUSION] = counts
    return out


def summary(record: Row) -> dict[str, Any]:
    """Return the named numbers of a round's record or of a reference row."""
    targets = [name for name in record if name.startswith(TARGET)]
    return {name: record[name] for name in (*METRICS, *targets) if name in record}


def client_rows(record: Row) -> dict[str, Any]:
    """Return the clients' rows of a round's record or of a reference, as a section has them."""
    return {CLIENTS: record[CLIENTS]} if CLIENTS in record else {}


def protocol(built: Built) -> dict[str, Any]:
    """Return what a table must not mix."""
    cfg: CfgNode = built.cfg
    return public_facts({
        "setting": setting_name(cfg), "dataset": cfg.DATASET.NAME, "trainer": cfg.TRAINER.NAME,
        "tag": cfg.TAG, "shots": int(cfg.DATASET.NUM_SHOTS),
        "subsample": cfg.DATASET.SUBSAMPLE_CLASSES,
        "backbone": cfg.MODEL.BACKBONE.NAME, "weights": built.backbone.weights,
        "backbone_digest": built.backbone.digest, "data_digest": built.data.digest,
        "peft": trained_words(flat(cfg)) if takes_peft(type(built.federation.trainer)) else "",
        "partition": partition_name(cfg), "held_out": built.data.spec.held_out,
        "server_holdout": built.data.spec.server_holdout,
        "unseen_clients": int(cfg.FED.UNSEEN_CLIENTS), "cohort": cohort_of(built),
        "targets": ", ".join(o.name for o in built.data.others if o.kind == DATASET),
        "batch_size": int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE), "rounds": int(cfg.FED.ROUNDS),
        "local_epochs": int(cfg.FED.LOCAL_EPOCHS), "views": views_of(cfg), "seed": int(cfg.SEED),
        "data_seed": int(cfg.DATA_SEED), "selection": cfg.TEST.SELECT, "budget": cfg.FED.BUDGET,
        "extra_data": built.federation.trainer.extra_data,
        "target": CAPTIONS if built.data.captioned else (
            LABEL if built.data.label_sets is None else LABELS),
        "proxy": built.federation.proxy.source if built.federation.proxy else "",
    } | ({"texts": SIMULATED} if built.backbone.text_images else {}))


def cohort_of(built: Built) -> int:
    """Return how many clients stand for all in the evaluation; 0 where all of them do."""
    cohort = int(built.cfg.TEST.COHORT)
    return cohort if cohort < len(built.federation.roster.present) else 0


def seed_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table over contents of ``results.json``, one per seed, and the answer.

    Last round of every seed; sample standard deviation (n - 1). A number that a seed lacks, or
    that repeats another, is left out.
    """
    seeds = [f"seed {r['protocol']['seed']}" for r in results]
    rows = []
    for name in summary(results[0]["results"]["last"]):
        values = [r["results"]["last"].get(name) for r in results]
        if None in values or all(
                repeats_personal(name, r["results"]["last"]) for r in results):
            continue
        values = [float(v) for v in values]
        rows.append({
            "metric": name, "mean": mean(values), "std": sample_std(values),
            **dict(zip(seeds, values, strict=True)),
        })
    return ["", f"over {len(results)} seeds, last round:", *table_lines(rows),
            *seeds_lines([one["results"] for one in results], method_name(results[0]["protocol"]))]


def _table(rows: Mapping[str, Row], last: Row) -> list[dict[str, Any]]:
    """Return the rows of the final table; its columns are what the last round has."""
    targets = [name for name in last if name.startswith(TARGET)]
    sets: tuple[str, ...] = SETS_COLUMNS if "personal_auroc" in last else ()
    sets = CAPTION_COLUMNS if is_retrieval(last) else sets
    columns = [*COLUMNS, *sets, *(targets if len(targets) <= FEW else ())]
    columns = [name for name in columns if not repeats_personal(name, last)]
    return [
        {"": label} | {k: row[k] for k in columns if k in last and k in row}
        for label, row in rows.items()
    ]


def _end(built: Built) -> list[str]:
    """Return why a run ended, where ``FED.BUDGET`` or ``FED.PATIENCE`` decides (else nothing)."""
    budget, last = built.federation.budget, built.federation.last_round
    flat = built.federation.plateau.sentence(last, built.federation.plan.rounds)
    said = [flat] if flat else []
    if not budget.plain:
        return said
    spent, most = sum(budget.spent.values()), sum(budget.plain)
    return said + [
        f"FED.BUDGET {budget.unit}: stopped after round {last} of at most {built.cfg.FED.ROUNDS}, "
        f"{spent:,} {budget.unit} used by all clients; FedAvg uses {most:,}"
    ]


def lost(records: Sequence[Row]) -> dict[str, Any]:
    """Return how many client rounds were lost, by kind of reason, and how many sent a part.

    Returns:
        ``lost`` and ``partial``; nothing where every client of every round answered.
    """
    by_kind = count_reasons(why for r in records for why in r.get("dropped", {}).values())
    partial = sum(len(r.get("partial", ())) for r in records)
    return {**({"lost": by_kind} if by_kind else {}), **({"partial": partial} if partial else {})}


def losses(records: Sequence[Row]) -> list[str]:
    """Return a sentence about the client rounds that were lost or sent a part."""
    said, drawn = lost(records), sum(len(r.get("participants", ())) for r in records)
    kinds = said.get("lost", {})
    count = sum(kinds.values())
    parts = [f"{count} lost ({', '.join(f'{n} {kind}' for kind, n in kinds.items())})"
             ] if kinds else []
    parts += [f"{said['partial']} partial"] if "partial" in said else []
    return [f"client rounds: {drawn + count}, of these {', '.join(parts)}"] if parts else []


def attack_lines(numbers: Row) -> list[str]:
    """Return what the simulated attack left of the numbers, in a sentence."""
    attack, last = numbers.get("attack"), numbers["last"]
    if attack is None or attack["personal_honest"] is None:
        return []
    words = f"honest clients reach {attack['personal_honest']:.1f} under the attack"
    hit = last.get("backdoor")
    return [words if hit is None else f"{words}; the trigger succeeds on {hit:.1f} %"]


def privacy_lines(spoken: Row) -> list[str]:
    """Return what a run promises of its clients' privacy, and where its noise comes from."""
    if not spoken:
        return []
    lines = [f"privacy: {spoken['words']}"]
    if spoken["epsilon"] is not None:
        lines.append(f"privacy: {meaning_of(spoken)}")
    if "simulation" in lines[0] or HIDDEN in lines[0] or spoken["epsilon"] is None:
        return lines
    return [*lines, "privacy: the noise is drawn from the seed: a simulation; whoever has the seed "
                   "can subtract it (docs/privacy.md)"]


def readmissions(taken: Sequence[Row]) -> list[str]:
    """Return a sentence about each client that the coordinator took in again."""
    return [
        f"client {one['client']} was readmitted after round {one['after']}"
        f"{', restarted: its earlier state is lost' if one['anew'] else ''}" for one in taken
    ]


def outliers(records: Sequence[Row]) -> list[str]:
    """Return a sentence for each client that sent outlying updates."""
    rounds: dict[int, list[int]] = {}
    worst: dict[int, Row] = {}
    for record in records:
        for row in record.get("outliers", ()):
            client = row["client"]
            rounds.setdefault(client, []).append(record["round"])
            if client not in worst or row["times"] > worst[client]["times"]:
                worst[client] = row
    return [
        f"client {c}: {len(rounds[c])} updates with an unusual norm or direction, first in round "
        f"{rounds[c][0]}; "
        f"largest norm {row['norm']:.4g}, {times(row)} times the median of its round"
        for c, row in sorted(worst.items())
    ]


def _headline(last: Row) -> Headline | None:
    """Return what ``log.txt`` ends with; None where no client has a test image."""
    if last["personal"] is None or LABELS in last or is_retrieval(last):
        return None
    clients = [c for c in last["clients"] if c["n"]]
    return Headline(
        sum(c["n"] for c in clients), sum(c["correct"] for c in clients), last["personal"],
        last["personal_macro_f1"],
    )
