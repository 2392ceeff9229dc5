"""``replay``: run the last rounds of a finished run again, and compare what comes out, bit by bit.

A seal shows damage and accidents; whoever edits a number everywhere and seals it again is found
only by doing the work again. That is done in a temporary folder: the run's own state of an earlier
round is copied there, and the main job goes on from it to the end. It needs the run's images.
"""

from __future__ import annotations

import csv
import io
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.api.elsewhere import (
    LEFT_OUT,
    AnswerTally,
    compare_records,
    drop_changed,
    evaluate_recorded,
    norm_share,
)
from fedvlm.api.rebuild import kept_models, refuse_other_texts, run_folder, whole_argument
from fedvlm.config.engines import of_parties
from fedvlm.console.screen import complain, progress
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import read_json
from fedvlm.core.rows.away import AWAY
from fedvlm.core.rows.store import RowStore
from fedvlm.core.trees import State
from fedvlm.data.federated import FederatedData
from fedvlm.data.partition.counts import cell_text, count_rows, partition_csv
from fedvlm.data.partition.index_file import KEYED, NAMES, hide_names, read_names_key
from fedvlm.federation.discovery import Trust
from fedvlm.job.build import Built, build_run
from fedvlm.job.describe import run_path
from fedvlm.job.engines.states import PLACE, SITE, SiteStore, site_rows, workers_rows
from fedvlm.job.identity import present_identity
from fedvlm.job.resolve import run_config
from fedvlm.job.results import Results
from fedvlm.job.results.against import told_table
from fedvlm.job.run import on_disk, restore, threads_of, to_the_end
from fedvlm.job.sinks.base import Sinks
from fedvlm.runs import manifest
from fedvlm.runs.bits import BITS, LAST, PAIRED, PLACES
from fedvlm.runs.finished import FinishedRun, find_finished
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import (
    FORMAT,
    identity_plain,
    read_manifest,
    refuse_other,
    shorten_lines,
)
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.names import RESULTS, is_packable, read_partition
from fedvlm.runs.state import (
    ALL,
    KINDS,
    SavedState,
    load_newest_state,
    open_records,
    rounds_on_disk,
)
from fedvlm.runs.verify.answer import NEXT, baseline_name
from fedvlm.runs.verify.beside import hurt_as_told
from fedvlm.runs.verify.check import inspect
from fedvlm.runs.verify.cover import LOGITS
from fedvlm.runs.verify.parting import flat_leaves

SHARE = 0.01  # how far a tensor may be off on another machine, as a share of its norm
WEIGHTS = "MODEL.INIT_WEIGHTS"
STORED = (  # what may be deleted: in `state/`, in `models/`, a file
    ("server state", "row of", "held for"), ("model of",), ("logits",))
AT_SITE = ": at its site"
_ABSENT = object()
Leaves = dict[str, Any]  # place -> number, word or tensor


@dataclass(frozen=True)
class Replay:
    """What came of running rounds again.

    Attributes:
        first, last: the rounds that were run again.
        since: the round of the state that it went on from; None: from the untrained start.
        why: why it began earlier than asked; empty where it did not.
        seconds: what it took.
        compared: how many numbers and tensors of which kind.
        differences: what is not as recorded, in words; empty where all is.
        elsewhere: in what machine and versions differ from those of the run.
        tally: what was compared in images, as the run says that it was made elsewhere; None:
            everything is equal bit for bit, or had to be.
        tensors: whether the tensors that the run recorded were evaluated, too.
        at_sites: how many clients' rows were not compared, as they lie at sites that are not here.
    """

    path: Path
    first: int
    last: int
    since: int | None
    why: str
    seconds: float
    compared: Mapping[str, int]
    differences: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    tally: AnswerTally | None = None
    tensors: bool = False
    at_sites: int = 0

    @property
    def equal(self) -> bool:
        """Whether the run is what its rounds give."""
        return not self.differences

    def lines(self) -> list[str]:
        """Return what was run and what came out, for the screen."""
        origin = "the untrained start" if self.since is None else f"the state of round {self.since}"
        counts = ", ".join(f"{n:,} {kind}" for kind, n in self.compared.items() if n)
        several = self.first < self.last
        span = f"rounds {self.first} to {self.last}" if several else f"round {self.last}"
        out = [f"replayed {span} from {origin} in "
               f"{self.seconds:.1f} s{f' ({self.why})' if self.why else ''}"]
        if self.elsewhere:
            out.append(f"claimed to be made elsewhere: {shorten_lines(self.elsewhere)}")
        if self.tally is not None:
            what = ("the recorded tensors were evaluated here" if self.tensors else
                    "no recorded tensors are there: the rounds were compared with those made here")
            out.append(f"{what}; {self.tally.differ:,} of {self.tally.images:,} answers differ")
        if self.differences:
            more = len(self.differences) - 8
            out += [f"NOT EQUAL, {text}" for text in self.differences[:8]]
            out += [f"and {more:,} more"] if more > 0 else []
        elif self.tally is None:
            out.append(f"equal bit for bit: {counts}")
        else:
            out.append(f"equal but for images in doubt, and tensors within {SHARE:.0%} of their "
                       f"norm, not bit for bit: {counts}")
        if self.tally is not None and self.tally.skipped:
            out.append("baselines computed otherwise by this version, not compared: "
                       f"{', '.join(self.tally.skipped)}")
        if self.at_sites:
            out.append(f"rows of {self.at_sites} clients are stored at their sites and not "
                       "in this folder's federation (FED.FEDERATION): not compared")
        if self.first > 1:
            out.append(f"rounds before {self.first} were not repeated")
        return out


def replay(
    folder: str | Path, rounds: int = 1, *,
    changes: Mapping[str, str] | None = None, trainer: str = "", trust_code: str = "",
) -> Replay:
    """Run the last ``rounds`` of a finished run again and compare them with what it recorded.

    It begins at the newest state that was kept before them (``TRAIN.KEEP_STATES``), or from the
    start; a packed run (``runs.cells``) is compared by its results.

    On the machine and versions that made the run everything has to be equal bit for bit:
    rows of metrics, the server's tensors, clients' rows, results, partition. If the run says that
    it was made elsewhere, and bits differ, the tensors that it recorded are evaluated here, and
    the verdict counts images (``elsewhere``).

    Args:
        folder: a finished run.
        rounds: as many as the run has, or more: the whole run.
        changes: other values of config keys that move no number: ``DATASET.ROOT``, ``DEVICE``,
            ``MODEL.INIT_WEIGHTS``.
        trainer, trust_code: see ``fedvlm.load``.

    Raises:
        ConfigError: no such number of rounds; or data, method or settings are others than the
            run's; says which.
        DataError: no finished run, or it is damaged (``runs.verify.check``).
    """
    rounds = whole_argument("rounds", rounds, 1)
    path, began = run_folder(folder), time.perf_counter()
    verdict = inspect(path)
    run = find_finished(path)
    told = read_manifest(path)
    if verdict.damage:
        raise DataError(f"{verdict.sentence()}; a damaged run cannot be replayed")
    if run is None or told is None:
        raise DataError(f"'{path}' is not finished, so there are no results to compare with")
    told_rounds = not is_packable(path)
    records = read_metrics(path / "metrics.jsonl")[0] if told_rounds else []
    if told_rounds and not records:
        raise DataError(f"'{path / 'metrics.jsonl'}' has no rounds to compare with")
    last = int(records[-1]["round"] if told_rounds else run.protocol["rounds"])
    since = _start(path, str(told["identity_digest"]), last, rounds)
    first = 0 if since is None else since + 1
    with tempfile.TemporaryDirectory(prefix="fedvlm-replay-") as place:
        cfg = _config(path, {**(changes or {}), "OUTPUT_DIR": place}, Trust(trainer, trust_code))
        with threads_of(cfg):
            built = build_run(cfg, progress)
            moved = same_backbone(built.identity, told["identity"])
            _take_method(built.identity, told["identity"])
            refuse_other_texts(path, cfg, told.get("facts", {}), built.data.templates,
                               built.data.client_templates)
            refuse_other(path, told["identity"], identity_plain(built.identity),
                         partial(present_identity, cfg.TRAINER.NAME))
            again, made = _again(built, path, Path(place), told, since, _by_image(run))
            elsewhere = _claims(told)
        at_sites = site_rows(path, cfg, torch.device("cpu"))
        out = ("weights",) if moved else ()  # of the protocol: a place, the digest is compared
        sides = [
            (path, records, _sections(_told(run.results), run.protocol, out)),
            (again.path, read_metrics(again.metrics_path)[0] if told_rounds else [],
             _sections(_then(made.numbers, run.results), made.protocol, out)),
        ]
        recorded, seen = (
            _leaves(p, rows, results, first, digest, at)
            for (p, rows, results), digest, at in zip(
                sides, (str(told["identity_digest"]), again.digest), (at_sites, {}), strict=True)
        )
        away = _away(recorded, seen)
        elsewhere = [e for e in dict.fromkeys(elsewhere) if not e.startswith("git.changed")]
        claimed = any(not e.startswith("git.") for e in elsewhere)
        differences, tally, tensors = _judge(
            built, told, sides, (recorded, seen), first, run.form, claimed)
    wanted = last - rounds
    why = "" if wanted <= 0 or since == wanted else (
        f"asked for {rounds}, no state of round {wanted} is kept; TRAIN.KEEP_STATES keeps more"
    )
    return Replay(
        path, max(first, 1), last, since, why, time.perf_counter() - began, _counts(recorded),
        differences, elsewhere, tally, tensors, away,
    )


def _by_image(run: FinishedRun) -> bool:
    """Return whether a run compared its baselines image by image, or kept their bits."""
    return PAIRED in run.results or any(
        BITS in one for one in run.section("references").values())


def _claims(told: Mapping[str, Any]) -> list[str]:
    """Return in what a run says that its numbers need not be those of this process."""
    here = manifest.session()
    lines = [line for session in told["sessions"] for line in manifest.differences(session, here)]
    ordered = told["identity"].get("cuda", {}).get("algorithms", True)
    return lines if ordered else [*lines, "FAST: kernels in no fixed order"]


Side = tuple[Path, list[dict[str, Any]], dict[str, Any]]  # folder, rounds, results and protocol


def _judge(
    built: Built, told: Mapping[str, Any], sides: Sequence[Side], leaves: tuple[Leaves, Leaves],
    first: int, form: int, claimed: bool,
) -> tuple[list[str], AnswerTally | None, bool]:
    """Return what is not as recorded; what was compared in images, if it was; and of tensors.

    Args:
        claimed: the run says that it was made elsewhere, so that other bits prove nothing.
    """
    (path, _, _), (recorded, seen) = sides[0], leaves
    if form != FORMAT:  # an older form has fewer numbers
        for leaf in [p for p in seen if p.startswith(f"{RESULTS}: ") and p not in recorded]:
            del seen[leaf]
    dealt = list(partition_differences(built.data, path))
    differences = list(_differences(recorded, seen))
    if not (differences and claimed):
        return dealt + differences, None, False
    tally, tensors = _in_images(built, path, told, sides, first, form)
    return dealt + tally.problems + list(_far_tensors(recorded, seen)), tally, tensors


def _in_images(
    built: Built, path: Path, told: Mapping[str, Any], sides: Sequence[Side], first: int, form: int
) -> tuple[AnswerTally, bool]:
    """Compare a run with its replay in images; say whether recorded tensors were evaluated."""
    (_, rounds, sections), (_, rounds_here, sections_here) = sides
    tally, identity = AnswerTally(), str(told["identity_digest"])
    saved, _ = load_newest_state(path / "state", identity=identity)
    mine = files.json_ready(dict(sections["results"]))
    here = files.json_ready(dict(sections_here["results"]))
    if form != FORMAT:
        here = {key: value for key, value in here.items() if key in mine}
    last = dict(mine.pop("last", {}))
    run_last = frozenset(last)
    last_here = dict(here.pop("last", {}))
    if saved is not None:
        again = evaluate_recorded(built, path, identity, saved)
        same = {k: v for k, v in files.json_ready(dict(again.numbers)).items()
                if k in last and k not in ("personal_before_ft", "notes")}
        compare_records(tally, "last", {k: last.pop(k) for k in same}, same, again.doubtful)
        last_here = {k: v for k, v in last_here.items() if k in last}
    compare_records(tally, "last", last, last_here)
    drop_changed(tally, mine, here)
    compare_records(tally, "results", mine, here)
    words = AnswerTally()
    compare_records(words, "protocol", sections["protocol"], {
        k: v for k, v in sections_here["protocol"].items()
        if form == FORMAT or k in sections["protocol"]}, 0)
    by_round = {row["round"]: row for row in rounds_here}
    end = rounds[-1]["round"] if rounds else 0
    for row in rounds:
        if first <= row["round"] and row["round"] in by_round:
            told_last = saved is not None and row["round"] == end  # ``verify``: as in the results
            skipped = {"seal", *(run_last if told_last else ())}
            mine, here = ({k: v for k, v in one.items() if k not in skipped}
                          for one in (row, by_round[row["round"]]))
            compare_records(tally, f"round {row['round']}", mine, here)
    tally.problems += words.problems
    return tally, saved is not None


def partition_differences(data: FederatedData, path: Path) -> Iterator[str]:
    """Yield where a run's partition is not the one that its settings give."""
    if (path / "partition.json").exists():
        told, here = read_json(path / "partition.json"), files.json_ready(data.index_file())
        if isinstance(told, dict) and told.get(NAMES) == KEYED:
            key = read_names_key(path / "partition.json")
            if key:
                here = hide_names(here, key)
            else:  # the digest of the data is compared all the same
                complain("partition.json has keyed hashes instead of file names, and its key is "
                         "not here: the images of each client are not compared", prefix="note")
                told = {}
        for name in told if isinstance(told, dict) else ():
            if name not in here or told[name] != here[name]:
                yield f"partition.json: {name} is not what the run's settings give"
    if (path / "partition.csv").exists():
        rows = list(csv.DictReader(io.StringIO(partition_csv(count_rows(data)))))
        mine = [{k: cell_text(v) for k, v in row.items()} for row in read_partition(path)]
        if mine != [{k: v for k, v in row.items() if k in mine[0]} for row in rows if mine]:
            yield "partition.csv is not what the run's settings give"


def _config(path: Path, changes: Mapping[str, str], trust: Trust) -> CfgNode:
    """Return the config of a run, to be run again."""
    cfg = run_config(path, {**changes, "SINKS": "()", "RESUME": ""}, trust)
    if of_parties(cfg):
        raise ConfigError(
            f"'{path}': its clients' images are at their sites, so it cannot be repeated here; "
            "run the command in its manifest.json with another --tag: the results must be the same"
        )
    return cfg


def same_backbone(identity: dict[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Give the identity of what was built the recorded place of weights if they are the same.

    Returns:
        Whether they lie elsewhere: equal digests of the backbone, another ``MODEL.INIT_WEIGHTS``.
    """
    config, before = identity["config"], recorded.get("config", {})
    if identity["backbone"] != recorded.get("backbone"):
        return False
    if config.get(WEIGHTS) == before.get(WEIGHTS):
        return False
    identity["config"] = {k: v for k, v in config.items() if k != WEIGHTS} | {
        k: v for k, v in before.items() if k == WEIGHTS
    }
    return True


def _take_method(identity: dict[str, Any], recorded: Mapping[str, Any]) -> None:
    """Give the identity the recorded place of a method's own file, if it is the same file."""
    if "trainer" in identity and identity["trainer"] == recorded.get("trainer"):
        name = recorded.get("config", {}).get("TRAINER.NAME", identity["config"]["TRAINER.NAME"])
        identity["config"] = {**identity["config"], "TRAINER.NAME": name}


def _sections(
    results: Mapping[str, Any], protocol: Mapping[str, Any], out: Sequence[str]
) -> dict[str, Any]:
    kept = {k: v for k, v in protocol.items() if k not in out}
    results = {k: v for k, v in results.items() if k != NEXT}  # advice that follows, in words
    if "below" in results:  # another version says the same in other words
        below = [{k: v for k, v in one.items() if k != "sentence"} for one in results["below"]]
        results = {**results, "below": below}
    return {"results": results, "protocol": kept}


def _told(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a run recorded with its table as it is told today (``told_table``)."""
    return {**recorded, "table": told_table(recorded)} if "table" in recorded else recorded


def _then(numbers: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return results without what came after the version which recorded a run.

    That is baselines, their bits, which images are meant, and whom ``hurt`` counts from.
    """
    numbers = {name: one for name, one in numbers.items() if name != PLACES or name in recorded}
    then, now = recorded.get("references"), numbers.get("references")
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return numbers
    later = set(now) - set(then)
    rows = {baseline_name(name) for name in later}
    kept = {name: {k: v for k, v in one.items() if k != BITS or k in then[name]}
            for name, one in now.items() if name in then}
    return {
        **numbers, "references": kept,
        "hurt": hurt_as_told(recorded.get("hurt"), numbers[LAST]["clients"], now),
        "below": [one for one in numbers["below"] if one["reference"] not in later],
        "table": [row for row in numbers["table"] if row[""] not in rows],
    }


def _start(path: Path, identity: str, last: int, rounds: int) -> int | None:
    """Return the round of the newest whole state that is old enough; None: the start."""
    if not (path / "state").is_dir():
        return None
    if (path / PLACE).is_dir():  # the checkpoints are of workers, and begin no run here
        return None
    kept = [r for r in rounds_on_disk(path / "state") if 0 < r <= last - rounds]
    for number in sorted(kept, reverse=True):
        if load_newest_state(path / "state", identity=identity, only=number)[0] is not None:
            return number
    return None


def _again(
    built: Built, path: Path, output: Path, told: Mapping[str, Any], since: int | None,
    paired: bool,
) -> tuple[RunFolder, Results]:
    """Run from a copy of the state of round ``since`` to the end."""
    place = run_path(built.cfg, built.data.name, built.federation.trainer.name)
    copy = output / place.relative()
    copy.mkdir(parents=True)
    files.write_json(copy / "manifest.json", {k: v for k, v in told.items() if k != "seal"})
    if since is not None:
        (copy / "state").mkdir()
        for name in (f"round_{since:04d}.json", f"round_{since:04d}.safetensors"):
            shutil.copy(path / "state" / name, copy / "state" / name)
        for kind in KINDS:
            if (path / "state" / kind).is_dir():
                shutil.copytree(path / "state" / kind, copy / "state" / kind)
        shutil.copy(path / "metrics.jsonl", copy / "metrics.jsonl")
    folder = RunFolder.create(
        output, place, built.identity, present=partial(present_identity, built.cfg.TRAINER.NAME)
    )
    folder.keep = ALL
    with folder:
        if on_disk(built):
            built.federation.keep_on_disk(folder.records)
        state = restore(built, folder)
        if (state.round if state else None) != since:
            raise DataError(f"'{path}': {'; '.join(folder.notes) or 'its state cannot be read'}")
        began = time.perf_counter()
        return folder, to_the_end(
            built, folder, state, (), Sinks(()), began, afresh=True, paired=paired)


# ---- comparing -------------------------------------------------------------------------------
def _leaves(
    path: Path, rows: list[dict[str, Any]], results: Mapping[str, Any], first: int, identity: str,
    at_sites: Mapping[int, SiteStore],
) -> Leaves:
    """Return everything that is compared, by its place.

    Args:
        at_sites: where rows of clients lie that are at sites of this machine.
    """
    out: Leaves = {}
    for row in rows:
        if row["round"] >= first:
            out |= _numbers(f"round {row['round']}", row)
    out |= _numbers(RESULTS, files.json_ready(dict(results)))
    state, _ = load_newest_state(path / "state", identity=identity)
    if state is not None:
        out |= _tensors(path, identity, state, at_sites)
    if (path / LOGITS).is_file():
        out |= {f"logits: {name}": v for name, v in safetensors.torch.load_file(
            path / LOGITS).items()}
    for client, tree in kept_models(path).items():
        out |= {f"model of client {client}: {name}": v for name, v in tree.items()}
    return out


def _tensors(
    path: Path, identity: str, state: SavedState, at_sites: Mapping[int, SiteStore]
) -> Leaves:
    out: Leaves = {f"server state: {slot}/{name}": v
                   for slot, tree in state.server.items() for name, v in tree.items()}
    for client, slots in state.clients.items():  # of format 1
        out |= {f"row of client {client}: {slot}/{name}": v
                for slot, tree in slots.items() for name, v in tree.items()}
    logs = open_records(path / "state", identity)
    for kind, named in (state.records or {}).items():
        logs[kind].load(named)
        for version, ids, rows in logs[kind].live():
            is_away = AWAY + SITE in rows
            workers = None if is_away else _workers(path, rows)
            for k, client in enumerate(ids):
                what = f"{'row of' if kind == KINDS[0] else 'held for'} client {client}"
                out[f"{what}: round"] = version
                store = workers
                if is_away:
                    site = at_sites.get(client)
                    if site is None or site.find(client, version) is None:
                        out[f"{what}{AT_SITE}"] = True
                        continue
                    store = site
                at, whole = (0, store.get([client], [version])[0][1]) if store else (k, rows)
                out |= {f"{what}: {slot}/{name}": v[at]
                        for slot, tree in whole.items() for name, v in tree.items()}
    return out


def _away(recorded: Leaves, seen: Leaves) -> int:
    """Drop the rows that lie at sites which are not here, on either side; return of how many."""
    places = [place for place in recorded if place.endswith(AT_SITE)]
    for place in places:
        del recorded[place]
        client = place.removesuffix(AT_SITE) + ": "
        for row in [p for p in seen if p.startswith(client) and p != f"{client}round"]:
            del seen[row]
    return len(places)


def _workers(path: Path, rows: State) -> RowStore | None:
    """Return where the rows of clients lie that these stand for; None: they are themselves."""
    away = any(slot.startswith(AWAY) for slot in rows)
    return workers_rows(path, torch.device("cpu")) if away else None


def _numbers(place: str, value: Mapping[str, Any]) -> Leaves:
    return {f"{place}: {name}": leaf
            for name, leaf in flat_leaves(value, skip=lambda key: key in LEFT_OUT)}


def _differences(recorded: Leaves, seen: Leaves) -> Iterator[str]:
    """Yield what differs, bit by bit."""
    for place, a, b in _pairs(recorded, seen):
        if a is _ABSENT or b is _ABSENT:
            yield f"{place}: exists only in {'the replay' if a is _ABSENT else 'the run'}"
        elif isinstance(a, Tensor) and isinstance(b, Tensor):
            if not (a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)):
                share = norm_share(a, b) if a.shape == b.shape else float("inf")
                yield f"{place}: the tensors differ by {share:.2g} of their norm"
        elif type(a) is not type(b) or a != b:
            yield f"{place}: recorded {a}, replayed {b}"


def _far_tensors(recorded: Leaves, seen: Leaves) -> Iterator[str]:
    """Yield tensors that differ by more than ``SHARE``, or are not there."""
    for place, a, b in _pairs(recorded, seen):
        if not (isinstance(a, Tensor) or isinstance(b, Tensor)):
            continue
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.shape != b.shape:
            yield f"{place}: there is no such tensor of this form on both sides"
        elif not norm_share(a, b) <= SHARE:
            yield f"{place}: the tensors differ by {norm_share(a, b):.2g} of their norm"


def _pairs(recorded: Leaves, seen: Leaves) -> Iterator[tuple[str, Any, Any]]:
    """Yield everything that is compared, but for what may be deleted of a run."""
    deleted = tuple(head for room in STORED for head in room  # as it may be: `verify` says so
                    if not any(place.startswith(room[0]) for place in recorded))
    for place in dict.fromkeys([*recorded, *seen]):
        if not place.startswith(deleted):
            yield place, recorded.get(place, _ABSENT), seen.get(place, _ABSENT)


def _bits(value: Tensor) -> bytes:
    return bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy())


def _counts(leaves: Leaves) -> dict[str, int]:
    """Return how much was compared, by kind."""
    kinds = {"round ": "numbers of rounds", RESULTS: "of the results",
             "server state": "tensors of the server", "row of": "of clients' rows",
             "held for": "of what the server holds", "model of": "of personal models",
             "logits": "of logits"}
    return {word: sum(place.startswith(head) for place in leaves) for head, word in kinds.items()}
