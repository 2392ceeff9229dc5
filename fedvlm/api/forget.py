"""``forget``: a finished run again without a client, a group or some images (exact unlearning).

What was learnt from an image is in every tensor that came after it, so the run is done again on the
same partition without these images: from the last kept state that they never touched
(``forgetting.kept``), else from the untrained start. A client that keeps none is away from round 1
(``FED.UNRELIABLE.AWAY``): it keeps its number, so that the random streams of the others are those
of the old run (Bourtoule et al., Machine Unlearning, S&P 2021, define exactness by this
retraining).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.api.forgetting.kept import KeptStart, begin_kept, kept_start
from fedvlm.api.forgetting.known import Known, list_known
from fedvlm.api.forgetting.parting import leaving, others_at_sites, parting, runs_with
from fedvlm.api.rebuild import check_client, flag_client, run_folder
from fedvlm.api.replay import partition_differences
from fedvlm.config.build import flat
from fedvlm.config.engines import of_parties
from fedvlm.config.families import PEFT_KEYS, peft_words
from fedvlm.console.screen import progress
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import read_json
from fedvlm.data.columns.header import one_form
from fedvlm.data.datum import PARTS, refuse_targets
from fedvlm.data.federated import FederatedData
from fedvlm.data.holdout import SERVER_KEY
from fedvlm.data.partition.index_file import FORGOTTEN, seal
from fedvlm.federation.discovery import NO_TRUST, Trust, load_trainer
from fedvlm.job.describe import run_path
from fedvlm.job.inputs import Inputs, Parting, SharedInputs
from fedvlm.job.request import Request
from fedvlm.job.resolve import Job, run_config
from fedvlm.job.run import run_job
from fedvlm.runs import lock
from fedvlm.runs.finished import FinishedRun, find_finished
from fedvlm.runs.names import RESULTS
from fedvlm.runs.private import read_private
from fedvlm.runs.verify.check import inspect

AWAY, INDEX = "FED.UNRELIABLE.AWAY", "FED.INDEX_FILE"
CLIENT, GROUP, IMAGES = "client", "group", "images"
PLACE_DEPTH = 6  # folders of a run's path between OUTPUT_DIR and the run's own


@dataclass(frozen=True)
class Removal:
    """What is to be forgotten.

    Attributes:
        unit: ``client``, ``group`` or ``images``.
        words: what it is, for the screen; it may be a person's name.
        names: the images, as the partition names them.
        counts: how many images leave, by part of the clients' splits, and ``server``.
        clients: clients that keep no training image: they are away from round 1.
        touched: clients that lose an image.
        shared: images of a forgotten client that others hold too: they stay there.
    """

    unit: str
    words: str
    names: frozenset[str]
    counts: Mapping[str, int]
    clients: tuple[int, ...]
    touched: tuple[int, ...]
    shared: int = 0


@dataclass(frozen=True)
class Forgetting:
    """A run, what of it is to be forgotten, and the run without it.

    Attributes:
        path: the old run's folder; run: its numbers.
        index: the partition without what is forgotten.
        changes: config keys of the new run.
        start: where the new run begins.
        known: files and folders that still know what is forgotten, with what they are.
        parting: of a run over sites: what it is built of without the one that leaves.
    """

    path: Path
    run: FinishedRun
    removal: Removal
    index: Mapping[str, Any]
    changes: Mapping[str, str]
    start: KeptStart
    known: Known
    trust: Trust
    parting: Parting | None = None

    def lines(self) -> list[str]:
        """Return what will be done, and what it costs, for the screen."""
        gone, rows = self.removal, self.run.rounds()[1:]
        counts = ", ".join(f"{n} {part}" for part, n in gone.counts.items() if n)
        again = [row for row in rows if row["round"] > self.start.round]
        noun = "image" if sum(gone.counts.values()) == 1 else "images"
        seconds = sum(float(row["seconds"]) for row in again)
        away = f"; away from round 1: client {', '.join(map(str, gone.clients))}" \
            if gone.clients else ""
        stay = f"; {gone.shared} of its images are other clients' too and stay with them" \
            if gone.shared else ""
        begin = f"the state of round {self.start.round}" if self.start.round else \
            "the untrained model"
        return [
            f"to forget: {gone.words} ({counts} {noun} of client "
            f"{', '.join(map(str, gone.touched))}{stay}{away})",
            f"start: {begin}, {self.start.why}",
            f"cost: {len(again)} of {len(rows)} rounds, about {seconds:.1f} s of training as the "
            "run took, and the evaluations",
        ]


def plan_forgetting(
    folder: str | Path, *, client: str = "", group: str = "", images: str = "",
    changes: Mapping[str, str] | None = None, trust: Trust = NO_TRUST, look: Sequence[str] = (),
) -> Forgetting:
    """Return what forgetting takes; nothing is written here (sites that are asked log a visit).

    Args:
        folder: a finished run.
        client: a client's number or name.
        group: a value of the column that DATASET.GROUPS names.
        images: a folder of images below the data set's, or a text file of names, one a line.
        changes: other values of config keys that move no number (``DATASET.ROOT``).
        look: more folders in which exports and packs may lie.

    Raises:
        ConfigError: no such client or group, a run of sites, or nobody would be left;
            no such folder to look in.
        DataError: no finished run, damage, other data than the run's, or no such image.
    """
    path = run_folder(folder).resolve()
    verdict = inspect(path)
    if verdict.damage:
        raise DataError(f"{verdict.sentence()}; a damaged run names no images to forget")
    run = find_finished(path)
    if run is None:
        raise DataError(f"'{path}' is not finished: finish it first (the same command goes on), or "
                        "delete it")
    if len(path.parents) <= PLACE_DEPTH:
        raise DataError(f"'{path}' is not in an output folder any more: forgetting writes a new "
                        "run beside it; move it back below OUTPUT_DIR")
    cfg = run_config(path, {**(changes or {}), "SINKS": "()", "RESUME": ""}, trust)
    if of_parties(cfg):
        if group or bool(images) == bool(client):
            raise ConfigError(
                f"'{path}': the clients' images are at their sites, and nobody knows here which "
                "are whose. A whole site leaves with --client SITE; for a client, a patient or "
                "images of it the owner first takes them from its lists (fedvlm site forget "
                "site.yaml --client K, or --images LIST), then --client K or --images SITE here "
                "(docs/audit.md)")
        return _plan_parting(path, run, cfg, client, images, changes, trust, look)
    data = Inputs().data(cfg, progress)
    for clause in partition_differences(data, path):
        raise DataError(f"{path}: {clause}: the images here are not those of the run; give their "
                        "place with --root")
    removal = _removal(path, data, client, group, images)
    if removal.clients and str(cfg.FED.WEIGHTING) == "agnostic":
        raise ConfigError(
            f"{path}: FED.WEIGHTING agnostic needs every client in each round, and a forgotten one "
            "is away: run again without the client's images"
        )
    index = _index_without(data, removal, run, path)
    output = path.parents[PLACE_DEPTH]
    file = output / "forget" / f"{index['sha256'][:8]}.json"
    away = [str(flat(cfg)[AWAY]), *(f"{c}:1-" for c in removal.clients)]
    return Forgetting(
        path, run, removal, index,
        {**(changes or {}), "SINKS": "()", "RESUME": "", "OUTPUT_DIR": str(output),
         INDEX: str(file), "DATASET.FEWSHOT_FILE": "", AWAY: ",".join(filter(None, away))},
        kept_start(path, run, cfg, removal.touched, trust, bool(removal.counts["train"])),
        list_known(path, output, run, cfg, removal.names, look), trust,
    )


def carry_out(plan: Forgetting) -> Path:
    """Do the run again without what is forgotten; return its folder, with the certificate.

    Raises:
        FedvlmError: as a run.
    """
    if plan.parting is None:
        index = Path(plan.changes[INDEX])
        with files.explain_errors(index):
            index.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(index, plan.index)
    cfg = run_config(plan.path, plan.changes, plan.trust)
    origin = f"{plan.path.name}/config.yaml"
    ours = {AWAY, INDEX, *(PEFT_KEYS if _names_peft(plan.path, cfg) else ())}
    origins = {key: "fedvlm forget" if key in ours else origin for key in flat(cfg)}
    job, inputs = Job(cfg, origins), plan.parting or SharedInputs()
    if plan.start.round:
        begin_kept(plan.path, plan.run, job, plan.start.round, inputs)
    done = run_job(job, Request(), inputs)
    if done is None or not (done[1] / "forgotten.json").is_file():
        raise DataError(f"'{plan.path}': the run without the images wrote no certificate")
    return done[1]


def _names_peft(path: Path, cfg: CfgNode) -> bool:
    """Tell whether a run's folder has the trainable set in its method's name, as chosen ones do."""
    words = peft_words(*(flat(cfg)[key] for key in PEFT_KEYS))
    chosen = f"{load_trainer(cfg.TRAINER.NAME).name}-{words}"
    return run_path(cfg, "data", chosen).relative().parts[3] == path.parents[2].name


def delete_run(path: Path) -> None:
    """Delete a run's folder with all that it learnt.

    Raises:
        ConfigError: a process works in it.
        DataError: it cannot be deleted.
    """
    lock.refuse_busy(run_folder(path))
    with files.explain_errors(path):
        shutil.rmtree(path)


def _plan_parting(
    path: Path, run: FinishedRun, cfg: CfgNode, client: str, images: str,
    changes: Mapping[str, str] | None, trust: Trust, look: Sequence[str],
) -> Forgetting:
    """Return what it takes that a site leaves, or a part of it."""
    if cfg.FED.SECURE_SUM:
        raise ConfigError(
            f"'{path}' has secure sums (FED.SECURE_SUM): the same run without {client or images} "
            "would show what it sent, as the difference of two sums. Delete the run, and train "
            "again without the site and with another --seed"
        )
    left = leaving(path, cfg, client, images)
    counts = left.counts | {"server": 0}
    inputs, more = parting(path, run, cfg, left, counts)
    output = path.parents[PLACE_DEPTH]
    away = [str(flat(cfg)[AWAY]), *(f"{c}:1-" for c in left.clients)]
    return Forgetting(
        path, run,
        Removal(left.unit, left.words, frozenset(), counts, left.clients, left.touched), {},
        {**(changes or {}), **more, "SINKS": "()", "RESUME": "", "OUTPUT_DIR": str(output),
         AWAY: ",".join(filter(None, away))},
        KeptStart(0, "as sites keep their newest states only"),
        [*list_known(path, output, run, cfg, frozenset(), look),
         *runs_with({told["data"] for told in left.told.values()}, path, output),
         *others_at_sites(path, left)],
        trust, inputs,
    )


def _removal(
    path: Path, data: FederatedData, client: str, group: str, images: str
) -> Removal:
    """Return what the words mean."""
    if sum(map(bool, (client, group, images))) != 1:
        raise ConfigError("say what to forget: --client K, --group ID, or --images FOLDER_OR_LIST")
    refuse_targets("fedvlm forget", unlabelled=any(len(c.unlabelled) for c in data.clients))
    shared = 0
    if client:
        called = read_private(path)["clients"]
        number = check_client(flag_client(client, called), len(data.clients), called)
        held = _names(data, [number])
        others = _names(data, [c for c in range(len(data.clients)) if c != number])
        shared = len(held & others)
        unit, names = CLIENT, held - others
        if not held:
            raise ConfigError(f"--client {client}: it holds no image of this run: it was "
                              "forgotten before")
        words, gone = f"client {client}", {number}
    else:
        unit, gone = (GROUP, set[int]()) if group else (IMAGES, set[int]())
        names = _of_group(data, group) if group else named_images(
            images, {d.key: d.impath for d in data.samples})
        words = f"group {group}" if group else f"{len(names)} images of {images}"
    lists = [{p: [data.samples[i].key for i in getattr(c, p)] for p in PARTS}
             for c in data.clients]
    counts = {p: sum(k in names for one in lists for k in one[p]) for p in PARTS}
    counts["server"] = sum(data.samples[i].key in names for i in data.server)
    if shared:
        counts |= {p: len(lists[min(gone)][p]) for p in PARTS}
    touched = {c for c, one in enumerate(lists) if any(k in names for p in PARTS for k in one[p])}
    gone |= {c for c, one in enumerate(lists) if one["train"] and names.issuperset(one["train"])}
    if len(gone) == len(lists):
        raise ConfigError(f"to forget {words} leaves no client with a training image: delete the "
                          f"run instead, '{path}'")
    return Removal(unit, words, frozenset(names), counts, tuple(sorted(gone)),
                   tuple(sorted(touched | gone)), shared)


def _names(data: FederatedData, clients: Sequence[int]) -> set[str]:
    """Return the images that some clients hold."""
    return {data.samples[i].key for c in clients for p in PARTS
            for i in getattr(data.clients[c], p)}


def _of_group(data: FederatedData, group: str) -> set[str]:
    known = {d.group for d in data.samples if d.group is not None}
    if not known:
        raise ConfigError(f"--group {group}: this run's images have no groups (DATASET.GROUPS "
                          "names the column); give them with --images")
    if group not in known:
        raise ConfigError(f"--group {group}: no image of the run is of this group"
                          f"{did_you_mean(group, known)}")
    return {d.key for d in data.samples if d.group == group}


def named_images(word: str, known: Mapping[str, str], whose: str = "run") -> set[str]:
    """Return which known images are in a folder, or in a text file of names or paths.

    Args:
        word: of ``--images``.
        known: names of images, and where they are.

    Raises:
        DataError: neither a folder nor such a file, none of the images, or others beside them.
    """
    path = files.user_path(word)
    if path.is_dir():
        root = path.resolve()
        found = {k for k, at in known.items() if Path(at).resolve().is_relative_to(root)
                 or Path(at).absolute().is_relative_to(path.absolute())}  # a link in the folder
        if not found:
            raise DataError(f"--images {word}: no image of the {whose} is in this folder")
        return found
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = [s.strip() for s in text.splitlines() if s.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--images {word}: neither a folder nor a text file of names, one a line "
                        f"({error})") from None
    by_name = {one_form(k): k for k in known}
    by_path = {one_form(str(Path(at).resolve())): k for k, at in known.items()}
    at = {s: s if s in known else by_name.get(one_form(s)) or by_path.get(
        one_form(str(files.user_path(s).resolve()))) for s in lines}
    found, lacking = {k for k in at.values() if k}, [s for s in lines if not at[s]]
    if lacking or not found:
        near = did_you_mean(lacking[0], known) if lacking else ""
        raise DataError(f"--images {word}: {len(lacking)} of its {len(lines)} names are no image "
                        f"of the {whose}{f' (first: {lacking[0]})' if lacking else ''}{near}")
    return found


def _index_without(
    data: FederatedData, gone: Removal, run: FinishedRun, path: Path
) -> dict[str, Any]:
    """Return the run's index file without the images, and with what is to be certified."""
    content = {k: v for k, v in data.index_file().items() if k not in ("format", "sha256")}
    before = content.pop(FORGOTTEN, {})
    # A forgotten client's lists empty whole: what others hold too stays with them.
    content["clients"] = [
        {"domain": "" if c in gone.clients else one["domain"],
         **{p: [] if c in gone.clients else [k for k in one[p] if k not in gone.names]
            for p in PARTS}}
        for c, one in enumerate(content["clients"])
    ]
    content["skipped"] = [k for k in content["skipped"] if k not in gone.names]
    if SERVER_KEY in content:
        content[SERVER_KEY] = [k for k in content[SERVER_KEY] if k not in gone.names]
    domain = [o.indices for o in data.others if o.kind == "domain"]
    tests = {data.samples[i].key for at in (data.global_test, data.new_test, *domain) for i in at}
    text = "\n".join([run.digest, *sorted(gone.names)])
    results = read_json(path / RESULTS) or {}
    content[FORGOTTEN] = {
        "unit": gone.unit, "clients": sorted({*before.get("clients", ()), *gone.clients}),
        "images": dict(gone.counts), "digest": hashlib.sha256(text.encode()).hexdigest(),
        "of": run.digest, "of_results": results.get("seal", ""),
        "tests": sorted(tests - gone.names),
    }
    return seal(content)
