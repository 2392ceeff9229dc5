"""``fedvlm site forget`` and ``prune``: erase what a site keeps of runs, or old lines of its log.

With ``--client``, ``--images`` or ``--group`` (a patient's, for one) these leave the site's lists,
too, and the coordinator does its run again with what is left (``fedvlm forget RUN --client K``,
``--images SITE``). States of all runs go then: each may have been trained with what leaves.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvlm.api.forget import named_images
from fedvlm.console.rows import human_bytes
from fedvlm.console.screen import complain, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, did_you_mean, one_form
from fedvlm.core.files import user_path
from fedvlm.data.datum import PARTS
from fedvlm.data.own.site import SiteFile, read_groups, read_site
from fedvlm.distributed.noise import FILE
from fedvlm.distributed.schema import ANSWERS
from fedvlm.distributed.site_yaml import SiteYaml, read_site_yaml
from fedvlm.distributed.sums.site import ASKED, READ
from fedvlm.job.sites.messages import (
    LOG,
    OWNER,
    PRUNED,
    SUMS_ANEW,
    WENT,
    WITHDRAWN,
    MessageLog,
    prune_log,
    whole_log,
)
from fedvlm.job.sites.resident import RUNS, serving

SHORT = 12  # digits of a run's name, as in ``fedvlm site status``
UPDATES = (ANSWERS["work"], "masked")  # kinds of answers that hold what was learnt here
DAY = 86400.0  # seconds
RUN_NAME = re.compile(r"[0-9a-f]{16,64}")  # of a folder that holds states of a run


def erase(args: Namespace) -> int:
    """Erase what is kept of one run, or of all; return the exit code.

    What protects earlier messages stays: the secret of noise and masks (``FILE``), and what was
    answered for secure sums (``READ``, ``ASKED``). Without them the coordinator could ask again for
    fewer clients, and the difference would be one client's update. They hold no image, no tensor.

    Raises:
        ConfigError: the rules are wrong, a process serves the site, or no such run.
        DataError: something cannot be deleted, or the log was changed.
    """
    owner = read_site_yaml(user_path(args.opts[0]))
    with serving(owner):
        if not args.client and not args.images and not args.group:
            return _erase(owner, args.opts[1] if len(args.opts) > 1 else None, args.dry_run)
        client = int(args.client[0][0]) if args.client else None
        old = replace(read_site(owner.file), groups=read_groups(owner.file))
        file, words = lists_without(owner, old, client, args.images, args.group)
        say(*words)
        _erase(owner, None, args.dry_run,
               "--images SITE" if client is None else f"--client {client}")
        if not args.dry_run:  # after the states: else a second try would find no image
            MessageLog(owner.states).enter(
                OWNER, {"kind": WITHDRAWN, "images": len({*old.paths()} - {*file.paths()})})
            file.write(owner.file)
            say(f"wrote {owner.file}; earlier copies of it still name what left")
        return 0


def lists_without(
    owner: SiteYaml, file: SiteFile, client: int | None, images: str, group: str = ""
) -> tuple[SiteFile, list[str]]:
    """Return a site's file without a client, or without images, and what is to be said of it.

    A client that keeps fewer training images than may be told leaves with all that it has. Images
    of a client that leaves stay with those of the site that have them, too.

    Args:
        client: its number; None: ``images`` counts, a folder, or a text file of names.
        group: whose images they are instead, as ``site make --groups`` wrote it down.

    Raises:
        ConfigError: no such client or group, or no client would be left.
        DataError: no such image.
    """
    if client is None:
        names = _of_group(file, group) if group else named_images(
            images, {p: str(owner.images / p) for p in file.paths()}, "site")
        lists = {c: {p: [row for row in held[p] if row[0] not in names] for p in PARTS}
                 for c, held in file.clients.items()}
    else:
        if client not in file.clients:
            raise ConfigError(f"--client {client}: this site has the clients "
                              f"{', '.join(map(str, file.clients))}")
        stay = {c: held for c, held in file.clients.items() if c != client}
        shared = set(replace(file, clients=stay).paths())
        names = set(replace(file, clients={client: file.clients[client]}).paths()) - shared
        lists = stay
    small = [c for c, held in lists.items() if len(held["train"]) < owner.terms.count
             and held != file.clients[c]]
    left = {c: held for c, held in lists.items() if c not in small}
    if not left:
        raise ConfigError("no client of this site would be left: erase all that it keeps (fedvlm "
                          "site forget site.yaml), and the whole site leaves at the coordinator "
                          "(fedvlm forget RUN --client SITE)")
    counts = {p: sum(len(held[p]) for held in file.clients.values())
              - sum(len(held[p]) for held in left.values()) for p in PARTS}
    touched = ", ".join(str(c) for c, held in file.clients.items() if left.get(c) != held)
    words = ["leaving the lists: " + ", ".join(f"{n} {p}" for p, n in counts.items())
             + f" images of client {touched or 'none'}"]
    words += [f"client {c} leaves with all its images: fewer than {owner.terms.count} training "
              "images would be left (rule 'count')" for c in small]
    public, server = ([row for row in rows if row[0] not in names]
                      for rows in (file.public, file.server))
    return replace(file, clients=left, public=public, server=server), words


def _of_group(file: SiteFile, group: str) -> set[str]:
    known, group = sorted(set(file.groups.values())), one_form(group)
    if group not in known:
        raise ConfigError(f"--group {group}: no image of this site is in this group"
                          f"{did_you_mean(group, known)}" if known else
                          f"--group {group}: this site's lists have no groups, which fedvlm site "
                          "make --groups COLUMN writes: list the images with --images")
    return {name for name, held in file.groups.items() if held == group}


def _erase(
    owner: SiteYaml, wanted: str | None, dry_run: bool, leaves: str = "--client SITE"
) -> int:
    log: list[dict[str, Any]] = []
    if (owner.states / LOG).is_file():  # whole, or nobody can say which updates left
        log = [json.loads(body) for body in whole_log(owner.states / LOG).bodies]
    kept = kept_of_runs(owner)
    runs = [run for run in kept if run.startswith(wanted or "")]
    if wanted is not None:
        require_one(wanted, runs, list(kept))
    places = [place for run in runs for place in kept[run]]
    what = "to erase" if dry_run else "erased"
    for place in places:
        held = [p for p in [place, *place.rglob("*")] if p.is_file() and p.name != ASKED]
        size = sum(p.stat().st_size for p in held)
        if not dry_run:
            _delete(place)
        say(f"{what}: {place} ({human_bytes(size)})")
    if not places:
        say(f"{owner.states}: nothing is kept of any run")
    for run, rounds in updates_sent(log).items():
        if run.startswith(wanted or ""):
            say(f"run {run[:SHORT]}: updates of {len(rounds)} rounds, {min(rounds)} to "
                f"{max(rounds)}, left this site. The coordinator's models, states and copies of "
                f"them hold what was learnt here: ask for fedvlm forget RUN {leaves}, its "
                "forgotten.json, and the deletion of the old run")
    if any(line["kind"] == PRUNED for line in log):
        complain("older lines of the log were removed by its owner: runs of that time are not "
                 "listed here", prefix="note")
    complain(f"kept in {owner.states}: {LOG}; {FILE}, {READ} and {ASKED} of a run, which keep "
             "anybody from asking again for single updates. None of them holds an image or a "
             f"tensor. Kept, too: the images in {owner.images}; models that fedvlm site export "
             "wrote; the page of fedvlm site record; the cache of features (fedvlm features "
             "--clean)", prefix="note")
    return 0


def require_one(wanted: str, runs: Sequence[str], kept: Sequence[str]) -> None:
    """Refuse a word that is not the beginning of one run's name (``ConfigError``).

    Args:
        runs: those of ``kept`` that begin with it.
    """
    if not wanted or len(runs) != 1:
        several = f"begins {len(runs)} runs" if wanted and runs else "begins no run"
        raise ConfigError(
            f"'{wanted}' {several} that this site keeps: "
            f"{', '.join(run[:SHORT] for run in kept) or 'it keeps none'}"
            f"{did_you_mean(wanted, [run[:SHORT] for run in kept])}")


def _delete(place: Path) -> None:
    """Delete a file, or a folder but for what it answered for secure sums."""
    with files.explain_errors(place):
        if not place.is_dir():
            place.unlink()
        elif (place / ASKED).is_file():
            for one in place.iterdir():
                if one.name != ASKED:
                    shutil.rmtree(one) if one.is_dir() else one.unlink()
        else:
            shutil.rmtree(place)


def kept_of_runs(owner: SiteYaml) -> dict[str, list[Path]]:
    """Return what a site keeps of each run: its states, and the words it was accepted by."""
    out: dict[str, list[Path]] = {}
    images = owner.images.resolve()
    if owner.states.is_dir():
        for place in sorted(owner.states.iterdir()):
            if RUN_NAME.fullmatch(place.name) and place.is_dir() and not place.is_symlink() \
                    and not images.is_relative_to(place.resolve()) \
                    and {p.name for p in place.iterdir()} != {ASKED}:
                out.setdefault(place.name, []).append(place)
        for place in sorted((owner.states / RUNS).glob("*.json")):
            out.setdefault(place.stem, []).append(place)
    return out


def updates_sent(log: Sequence[Mapping[str, Any]]) -> Mapping[str, set[int]]:
    """Return the rounds in which updates left the site, by run, as its log says."""
    out: dict[str, set[int]] = {}
    for line in log:
        if line["direction"] == WENT and line["kind"] in UPDATES:
            out.setdefault(str(line["run"]), set()).add(int(line["round"]))
    return out


def prune(args: Namespace) -> int:
    """Remove what the owner says; return the exit code.

    Raises:
        ConfigError: the rules are wrong, or the site is being served.
        DataError: the log was changed, or a file cannot be written.
    """
    owner = read_site_yaml(user_path(args.opts[0]))
    states = owner.states
    with serving(owner):
        if args.sums:
            read, log = states / READ, MessageLog(states)
            if read.is_file():
                with files.explain_errors(read):
                    log.enter(OWNER, {"kind": SUMS_ANEW})
                    read.unlink()
                say("the next secure sums may be over other sites or clients than those so far, or "
                    "under other weights: whoever has both sums learns the difference")
            else:
                say("this site has not helped to read a secure sum")
        if args.days is not None:
            count = prune_log(states / LOG, time.time() - DAY * args.days)
            say(f"{count} lines of {states / LOG} were removed" if count else
                f"no line was removed: in {states / LOG} no whole run, up to a start of the site, "
                f"is older than {args.days} days")
            say(f"fedvlm site record {args.opts[0]} prints the last seal: keep it instead of older "
                "ones")
    return 0
