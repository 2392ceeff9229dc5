"""``fedvlm site check``, ``site_status`` and ``stop``: what is here, what leaves, who serves it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedvlm.console.rows import clock, human_bytes, table_lines
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError, DataError, plural
from fedvlm.core.files import user_path
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.own.site import SiteFile, read_site
from fedvlm.distributed.flower.outpost import read_status
from fedvlm.distributed.ledger import Ledger
from fedvlm.distributed.site_yaml import SiteYaml, read_site_yaml
from fedvlm.distributed.store import SiteStore
from fedvlm.distributed.terms import Terms
from fedvlm.job.sites.party import find_unreadable
from fedvlm.job.sites.received import read_rows, row_lines
from fedvlm.job.sites.resident import RUNS
from fedvlm.runs import lock

SAMPLE, FIRST = 64, 4  # images that are decoded; problems of a kind that are named
PATIENCE = 30.0  # seconds for a process to end


@dataclass
class Findings:
    """What a look at a site found.

    Attributes:
        problems: what has to be mended before it takes part.
        remarks: what the site's owner should know.
        clients: by id, images by part and classes in training.
        told: by id, what a server would be told.
        decoded: images that were, ``of`` all.
    """

    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    clients: dict[int, dict[str, int]] = field(default_factory=dict)
    told: dict[int, dict[str, Any]] = field(default_factory=dict)
    decoded: int = 0
    of: int = 0


def check(args: Namespace) -> int:
    """Load one site's images alone and say what is there; return the exit code.

    Raises:
        ConfigError: the rules are wrong.
        DataError: the site file is.
    """
    path = user_path(args.opts[0])
    sample = None if args.full else SAMPLE if args.sample is None else args.sample
    if path.suffix == ".json" and path.is_file() and not read_site(path).clients:
        return _check_server(args, path, sample)
    if args.images:
        raise ConfigError("--images needs a coordinator's site.json: a party's site.yaml "
                          "already gives the folder of its images; drop --images")
    owner = read_site_yaml(path)
    file = read_site(owner.file)
    report = findings(owner, file, sample)
    code = DataError.exit_code if report.problems else 0
    if args.json:
        say(json.dumps({
            "site": str(owner.file), "dataset": file.dataset, "classes": len(file.classnames),
            "public": len(file.public), "clients": report.clients, "told": report.told,
            "decoded": report.decoded, "problems": report.problems, "remarks": report.remarks,
            "exit_code": code,
        }, indent=1))
        return code
    say(f"{owner.file}: {file.dataset}, {len(file.classnames)} classes, images in {owner.images}",
        *table_lines([{"client": c} | row for c, row in report.clients.items()]))
    if file.public:
        say(f"public test set: {len(file.public):,} images")
    say(f"allowed: {', '.join(owner.terms.trainers or ())} on "
        f"{', '.join(owner.terms.backbones or ())}{_limits(owner.terms)}")
    complain(*report.remarks, prefix="note")
    complain(*report.problems, prefix="problem")
    say(_verdict(report))
    return code


def _check_server(args: Namespace, path: Path, sample: int | None) -> int:
    """Say what is in a coordinator's file, which has no owner's rules; return the exit code."""
    file = read_site(path)
    folder = user_path(args.images) if args.images else path.parent
    out = Findings()
    _images(out, file, folder, sample)
    lists = {"public test set": file.public, "images for training": file.server}
    code = DataError.exit_code if out.problems else 0
    if args.json:
        say(json.dumps({
            "site": str(path), "dataset": file.dataset, "classes": len(file.classnames),
            "public": len(file.public), "server": len(file.server), "decoded": out.decoded,
            "problems": out.problems, "exit_code": code,
        }, indent=1))
        return code
    say(f"{path}: site file of a coordinator: {file.dataset}, {len(file.classnames)} classes, no "
        "client",
        *(f"{what}: {len(rows):,} images in {folder}" for what, rows in lists.items() if rows))
    complain(*out.problems, prefix="problem")
    if not file.public:
        complain("without public images a run has no global number", prefix="note")
    say(_verdict(out))
    return code


def _verdict(out: Findings) -> str:
    part = f"{out.decoded} of {out.of}" if out.decoded < out.of else f"{out.decoded}"
    return f"{part} images decoded; " + (
        f"{len(out.problems)} problem(s)" if out.problems else "nothing is wrong")


def findings(owner: SiteYaml, file: SiteFile, sample: int | None) -> Findings:
    """Return what there is to say of a site.

    Args:
        sample: images to decode, spread over all; None: every one.
    """
    out = Findings()
    if not file.clients:
        out.problems.append("the site file has no clients: it belongs to a server")
    for client, lists in file.clients.items():
        classes = Counter(label for _, label in lists["train"])
        out.clients[client] = {p: len(lists[p]) for p in PARTS} | {"classes": len(classes)}
        counts = {p: len(lists[p]) for p in PARTS} | {
            "classes": [classes[label] for label in range(len(file.classnames))]}
        out.told[client] = owner.terms.tell(counts)
        _of_client(out, client, lists, owner.terms)
    _images(out, file, owner.images, sample)
    return out


def _images(out: Findings, file: SiteFile, folder: Path, sample: int | None) -> None:
    """Note which images of a file are not below ``folder``, or do not decode."""
    images = [Datum(str(folder / path), 0, 0, "", path) for path in file.paths()]
    here = [d for d in images if d.path.is_file()]
    lost = [d.key for d in images if not d.path.is_file()]
    if lost:
        out.problems.append(f"{len(lost)} of {len(images)} images are missing in '{folder}', "
                            f"the first '{lost[0]}'")
    _decode(out, here, sample)


def _of_client(
    out: Findings, client: int, lists: dict[str, list[tuple[str, int]]], terms: Terms
) -> None:
    """Note what is the matter with a client's lists, and what of them is not told."""
    train, test = len(lists["train"]), len(lists["test"])
    if not train:
        out.problems.append(f"client {client} has no training image")
    elif train < terms.count:
        out.problems.append(
            f"client {client} has {plural(train, 'training image')}, fewer than the "
            f"{terms.count} that the rule 'count' requires: remove the client, or lower the rule"
        )
    both = {path for path, _ in lists["train"]} & {path for path, _ in lists["test"]}
    if both:
        out.problems.append(f"client {client}: {len(both)} images are in both train and test, "
                            f"the first '{min(both)}'")
    if not test:
        out.remarks.append(f"client {client} has no test image: its model is not evaluated")
    elif test < terms.count:
        out.remarks.append(f"client {client} has {plural(test, 'test image')}: no result of its "
                           "model is sent (rule 'count')")
    if not out.told[client]["classes"]:
        out.remarks.append(f"client {client} has a class with fewer than {terms.count} training "
                           "images: its class counts are not sent (rule 'count'), nor are this "
                           "site's sums for baselines, from which they follow")


def _decode(out: Findings, images: list[Datum], sample: int | None) -> None:
    """Decode some images, spread over all, and note those that do not."""
    step = 1 if sample is None else max(1, -(-len(images) // max(sample, 1)))
    some = images[::step] if sample != 0 else []
    if not some:
        return
    try:
        broken = find_unreadable(some, {}, progress)
    finally:
        progress.clear()
    out.decoded, out.of = len(some), len(images)
    if broken:
        first = "; ".join(broken[:FIRST]) + ("; ..." if len(broken) > FIRST else "")
        out.problems.append(f"{len(broken)} images cannot be decoded: {first}")


def _limits(terms: Terms) -> str:
    limits = {"rounds": terms.rounds, "steps": terms.steps, "bytes": terms.bytes,
              "seconds": terms.seconds}
    words = [f"{name} {value:,}" for name, value in limits.items() if value]
    words += [f"counts of at least {terms.count}"] if terms.count > 1 else []
    words += ["updates in secure sums only"] if terms.sums else []
    return "; ".join(["", *words, f"logits {'are sent' if terms.logits else 'are not sent'}",
                      f"baselines {'are sent' if terms.baselines else 'are not sent'}"])


def site_status(args: Namespace) -> int:
    """Say what a site keeps for which run; return the exit code.

    Raises:
        ConfigError: the rules are wrong.
        DataError: an account is damaged.
    """
    owner = read_site_yaml(user_path(args.opts[0]))
    runs = [_run(path) for path in sorted(_folders(owner.states))]
    code = DataError.exit_code if any(run["damage"] for run in runs) else 0
    server = lock.holder(owner.states / RUNS)
    over = read_status(user_path(args.opts[0]).parent) if server else {}
    if args.json:
        say(json.dumps({"states": str(owner.states), "served_by": server, "flower": over,
                        "runs": runs}, indent=1))
        return code
    say(f"served by process {server['pid']} on {server.get('host')} since {server.get('since')}"
        if server else "nobody serves it")
    if over:
        say(f"over Flower to {over.get('address')} as {over.get('name')}: {over.get('state')} "
            f"since {over.get('since')}")
    if not runs:
        say(f"{owner.states}: no run has used this site yet")
        return 0
    for run in runs:
        versions = Counter(run["versions"].values())
        newest = ", ".join(f"{n} of round {v}" for v, n in sorted(versions.items(), reverse=True))
        say(f"run {run['run'][:12]}: {len(run['versions'])} clients ({newest or 'none trained'}), "
            f"{human_bytes(run['disk'])} on disk, last at {run['last'] or '-'}",
            f"  served up to round {run['round']}: "
            f"{', '.join(f'{n} {op}' for op, n in run['answers'].items()) or 'nothing'}; "
            f"{human_bytes(run['down'])} received, {human_bytes(run['up'])} sent, "
            f"{clock(run['seconds'])} of work",
            *(f"  {line}" for line in row_lines(run["own"], owner.terms.baselines)))
        complain(*run["damage"], prefix="problem")
    return code


def stop(args: Namespace) -> int:
    """End the process that serves a site; return the exit code.

    Raises:
        ConfigError: the rules are wrong, or it is on another machine, another user's, or stays.
    """
    owner = read_site_yaml(user_path(args.opts[0]))
    place = owner.states / RUNS
    server = lock.holder(place)
    if not server:
        say(f"no process serves {args.opts[0]}")
        return 0
    who = f"process {server['pid']} on {server.get('host')}"
    if server.get("host") != socket.gethostname():
        raise ConfigError(f"{who} serves {args.opts[0]}: stop it there{lock.way_out(place)}")
    try:
        os.kill(int(server["pid"]), signal.SIGTERM)
    except OSError as error:
        raise ConfigError(f"{who} cannot be stopped: {error.strerror}") from error
    until = time.monotonic() + PATIENCE
    while lock.holder(place):
        if time.monotonic() > until:
            raise ConfigError(f"{who} was asked to stop but is still running: check again with "
                              "fedvlm site status")
        time.sleep(0.05)
    say(f"{who} has stopped; states are in {owner.states}")
    return 0


def _folders(states: Path) -> list[Path]:
    if not states.exists():
        return []
    if not states.is_dir():
        raise DataError(f"'{states}' is a file, but states need a folder")
    return [p for p in states.iterdir() if p.is_dir() and not p.name.startswith(".")]


def _run(folder: Path) -> dict[str, Any]:
    """Return what is kept for a run, as JSON values."""
    store, account = SiteStore(folder.parent, folder.name, torch.device("cpu")), Ledger(folder)
    done = account.read()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(done.last)) if done.last else ""
    versions: dict[int, int] = {}
    for client, version in store.rows():
        versions[client] = max(version, versions.get(client, 0))
    return {
        "run": folder.name, "versions": versions, "damage": list(store.damage),
        "disk": sum(p.stat().st_size for p in folder.iterdir() if p.is_file()),
        "round": done.round, "answers": dict(done.answers), "down": done.down, "up": done.up,
        "seconds": done.seconds, "last": stamp, "own": read_rows(folder),
    }
