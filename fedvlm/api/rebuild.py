"""From a run's folder to its federation, without its images: config, tensors, counts and towers."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from yacs.config import CfgNode

from fedvlm.config.engines import of_parties
from fedvlm.console.parser import whole_number
from fedvlm.core.errors import ConfigError, DataError, did_you_mean, one_form
from fedvlm.core.files import user_path
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.rows.store import move_state
from fedvlm.core.spelling import texts_covered
from fedvlm.core.trees import Tree, cast
from fedvlm.data.datasets import templates
from fedvlm.data.datum import NO_LABEL
from fedvlm.data.locate import first_names
from fedvlm.data.partition.index_file import canonical_hash, read_index_file
from fedvlm.federation.clients import Clients
from fedvlm.federation.discovery import NO_TRUST, Trust, load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.local.images import Absent
from fedvlm.federation.rounds import Federation, FedState
from fedvlm.federation.server import Roster
from fedvlm.job.build import check_model, make_plan, pick_device
from fedvlm.job.engines.states import SITE, check_rows, take_workers_rows
from fedvlm.job.inputs import Inputs
from fedvlm.job.record import whole_state
from fedvlm.job.resolve import run_config
from fedvlm.models.vlmodel import VLModel
from fedvlm.runs.identity import read_manifest
from fedvlm.runs.names import read_partition
from fedvlm.runs.records import CPU, read_models
from fedvlm.runs.state import SavedState, open_records
from fedvlm.runs.verify.models import (
    START,
    check_covered,
    check_models,
    covered_files,
    load_state,
)


@dataclass(frozen=True)
class Rebuilt:
    """A run as its folder gives it again.

    Attributes:
        cfg: its settings; device and weights may be this call's.
        federation: method, towers and clients' counts; whoever asks for images is refused.
        state: the last, or the one that was asked for.
        covered: the files that the run's results vouch for, with their hashes.
    """

    cfg: CfgNode
    federation: Federation
    state: FedState
    covered: Mapping[str, str]


def run_folder(folder: str | Path) -> Path:
    """Return the path of a run folder.

    Raises:
        DataError: it is none; says what it is instead.
    """
    path = user_path(folder)
    if (path / "manifest.json").is_file():
        return path
    below = sorted(p.parent for p in path.glob("**/manifest.json")) if path.is_dir() else []
    near = f"; there are {len(below)} below it, the first is {below[0]}" if below else ""
    if len(below) == 1:
        near = f"; there is one below it: {below[0]}"
    if (path / "model.json").is_file() and (path / "run.py").is_file():
        near = f"; it is an exported model, and predicts by: python {path / 'run.py'} IMAGE ..."
    raise DataError(f"'{folder}' is not a run folder (it has no manifest.json){near}")


def run_digest(path: Path) -> str:
    """Return the identity digest of a run folder; empty where it has none."""
    return str((read_manifest(path) or {}).get("identity_digest", ""))


def rebuild(
    path: Path, device: str = "auto", weights: str = "",
    changes: Mapping[str, str] | None = None, trust: Trust = NO_TRUST,
    only: int | None = None,
) -> Rebuilt:
    """Return a run without its images.

    Args:
        path: a run folder, finished or not.
        device: ``auto``, ``cpu``, ``cuda``, ...
        weights: where the backbone's weights are now, if not where the run found them.
        changes: other values of config keys.
        trust: what the command says of a method's own file.
        only: the round whose state is wanted; None: the last.

    Raises:
        DataError: a file is missing or damaged, or the weights are others.
        ConfigError: the method's file is not there or not trusted, or no such device.
    """
    manifest = read_manifest(path) or {}
    covered = covered_files(path)
    moved = {"MODEL.INIT_WEIGHTS": weights} if weights else {}
    cfg = run_config(path, {"DEVICE": device, **moved, **(changes or {})}, trust)
    trainer = load_trainer(cfg.TRAINER.NAME)(cfg)
    index = read_index_file(str(path / "partition.json"))
    where = pick_device(cfg.DEVICE)
    check_model(cfg, where)
    backbone = Inputs().backbone(cfg, where)
    wanted = manifest.get("facts", {}).get("backbone_digest", backbone.digest)
    if backbone.digest != wanted:
        raise DataError(
            f"{path}: the run used other weights of {cfg.MODEL.BACKBONE.NAME} (digest "
            f"{wanted[:12]}, here {backbone.digest[:12]}); give them with weights=... or "
            "--weights FILE"
        )
    names = [str(name) for name in index["classnames"]]
    prompts, own = _texts(path, cfg, manifest.get("facts", {}))
    model = VLModel(
        backbone, names, templates=prompts, packed=not cfg.FED.PLAIN,
        bf16_text=cfg.MODEL.PREC == "bf16", sets=bool(cfg.DATASET.LABELS), client_templates=own,
    )
    counts = roster_of(path, int(cfg.FED.CLIENTS), names)
    absent = Absent(counts, int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE), str(path))
    federation = Federation(
        trainer, model, absent, make_plan(cfg, counts.train.tolist()),
        engine=LocalEngine(int(cfg.FED.CHUNK) or 1),
    )
    if (path / START).exists():  # its absence is said as it is read
        began = str(manifest.get("facts", {}).get("start", ""))
        check_covered(path, START, covered.get(START, began))
    take_start(federation, path / START)
    saved = load_state(path, manifest, covered, only)
    state = adopt_state(path, str(manifest.get("identity_digest", "")), saved, federation)
    if of_parties(cfg):
        federation.clients.store = AwayStore(SITE)
    return Rebuilt(cfg, federation, state, covered)


def _texts(
    path: Path, cfg: CfgNode, facts: Mapping[str, Any]
) -> tuple[list[str], dict[int, list[str]]]:
    """Return the templates of a run: everybody's, and those of single clients by number.

    Raises:
        DataError: the file of templates has others than when the run was made.
    """
    prompts, own = templates(cfg), dict[int, list[str]]()
    numbers = facts.get("client_texts", [])
    if numbers:
        from fedvlm.data.own.sentences import match_client_templates  # start-up: such runs only

        own = match_client_templates(cfg.DATASET.TEMPLATES, numbers)
    refuse_other_texts(path, cfg, facts, prompts, own)
    return prompts, own


def refuse_other_texts(
    path: Path, cfg: CfgNode, facts: Mapping[str, Any], shared: Sequence[str],
    own: Mapping[int, Sequence[str]],
) -> None:
    """Refuse templates that are not those of a run.

    Args:
        facts: of the run's manifest.
        shared, own: everybody's templates now, and those of single clients by number.

    Raises:
        DataError: the file of templates has others than when the run was made.
    """
    said = facts.get("templates_digest")
    if said and canonical_hash(texts_covered(shared, own)) != said:
        raise DataError(
            f"{path}: DATASET.TEMPLATES '{cfg.DATASET.TEMPLATES}' has other texts than when the "
            "run was made: give the file back as it was"
        )


def roster_of(path: Path, clients: int, classnames: Sequence[str]) -> Roster:
    """Return how many images of which class every client has (``partition.csv``)."""
    label = {name: i for i, name in reversed(list(enumerate(classnames)))}
    sizes = {part: np.zeros(clients, np.int64) for part in ("train", "val", "test")}
    classes = np.zeros((clients, len(classnames)), np.int64)
    for row in read_partition(path):
        try:
            client, images = int(row["client"]), int(row["images"])
            sizes[row["part"]][client] += images
            if row["class"] == NO_LABEL and NO_LABEL not in label:
                continue  # an image with an empty set of labels
            if row["part"] == "train" and row["class"]:  # empty where a site did not tell
                classes[client, label[row["class"]]] += images
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(f"'{path / 'partition.csv'}' is damaged: {error}") from error
    site = np.zeros(clients, np.int64)
    return Roster(sizes["train"], sizes["val"], sizes["test"], classes, site)


def take_start(federation: Federation, file: Path) -> None:
    """Let the untrained tensors be those that the run had: another machine may make others.

    Raises:
        DataError: they cannot be read, or are another method's.
    """
    try:
        start: Tree = safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"'{file}' cannot be read: {error}") from error
    ours = federation.p0
    if {n: v.shape for n, v in start.items()} != {n: v.shape for n, v in ours.items()}:
        raise DataError(
            f"'{file}' contains other tensors than {federation.trainer.name} trains now: the "
            "method's file or fedvlm has changed since then"
        )
    model = federation.model
    begin_from(federation, cast({name: start[name] for name in ours}, model.dtype, model.device))


def begin_from(federation: Federation, start: Tree) -> None:
    """Let every client begin from ``start``."""
    trainer = federation.trainer
    federation.p0 = start
    federation.clients = Clients(
        MemoryStore(), lambda c: trainer.init_client(federation.context([c]), start), start,
        federation.groups, trainer.reads_old,
    )


def adopt_state(
    path: Path, identity: str, saved: SavedState, federation: Federation
) -> FedState:
    """Return a saved state in a federation; clients' rows stay on disk.

    Raises:
        DataError: clients' rows that workers wrote are damaged.
    """
    device = federation.model.device
    if saved.records is None:
        return federation.adopt(whole_state(saved, device))
    records = open_records(path / "state", identity, saved.records)
    federation.keep_on_disk(records)
    state = federation.load(saved.round, move_state(saved.server, device), records)
    take_workers_rows(path, federation, state)
    check_rows(path, federation, state)
    return state


def kept_models(
    path: Path, device: torch.device = CPU, covered: Mapping[str, str] | None = None
) -> dict[int, Tree]:
    """Return the personal models that a run saved at its end; none where it saved none.

    Raises:
        DataError: one is damaged, or is not what the results vouch for (``covered``).
    """
    if not any((path / "models").glob("personal??????.json")):
        return {}
    if covered is not None:
        check_models(path, covered)
    kept = read_models(path / "models")
    return {c: {n: v.to(device) for n, v in tree.items()} for c, tree in kept.items()}


def whole_argument(name: str, value: object, low: int) -> int:
    """Return an argument that is a whole number from ``low`` on, as its flag takes it.

    Raises:
        ConfigError: it is none, or a number as text; in the words of the flag.
    """
    try:
        number = whole_number(low)(str(value))
    except ArgumentTypeError as error:
        raise ConfigError(f"{name} {error}") from None
    if isinstance(value, str):
        raise ConfigError(f"{name}='{value}': write a number without quotes: {number}")
    return number


def flag_client(word: str, names: Sequence[str]) -> int | str:
    """Return a flag's client: a number, but where one of ``names`` is a number a name."""
    number = word.isascii() and word.isdigit() and not any(name.isdecimal() for name in names)
    return int(word) if number else word


def check_client(
    client: int | str, clients: int, names: Sequence[str] = (), more: str = ""
) -> int:
    """Return the number of a client, from its number or, as text, its name.

    Raises:
        ConfigError: there is none such; ``more``: what else the flag takes.
    """
    if isinstance(client, str) and one_form(client) in names:
        return names.index(one_form(client))
    if isinstance(client, Integral) and not isinstance(client, bool) and 0 <= client < clients:
        return int(client)
    known, tip = f"{', named ' if names else ''}{first_names(names)}{more}", ""
    if isinstance(client, str):
        tip = did_you_mean(client, names)
        if client.isdecimal():
            tip = "; the names are numbers, so as text it is read as a name" if any(
                map(str.isdecimal, names)) else f"; write a number without quotes: {client}"
    raise ConfigError(f"no client {client}: clients are numbered 0 to {clients - 1}{known}{tip}")
