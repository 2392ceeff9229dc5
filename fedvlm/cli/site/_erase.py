"""``fedvlm site forget``: erase what a site keeps of runs, and say what others still hold."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from fedvlm.console.rows import human_bytes
from fedvlm.console.screen import complain, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.files import user_path
from fedvlm.distributed.noise import FILE
from fedvlm.distributed.schema import ANSWERS
from fedvlm.distributed.site_yaml import SiteYaml, read_site_yaml
from fedvlm.job.sites.messages import LOG, WENT, read_log
from fedvlm.job.sites.resident import RUNS
from fedvlm.runs import lock

SHORT = 12  # digits of a run's name, as in ``fedvlm site status``
UPDATES = (ANSWERS["work"], "masked")  # kinds of answers that hold what was learnt here


def erase(args: Namespace) -> int:
    """Erase what is kept of one run, or of all; return the exit code.

    Raises:
        ConfigError: the rules are wrong, a process serves the site, or no such run.
        DataError: something cannot be deleted, or the log cannot be read.
    """
    owner = read_site_yaml(user_path(args.opts[0]))
    server = lock.holder(owner.states / RUNS)
    if server:
        raise ConfigError(f"process {server['pid']} on {server.get('host')} serves this site: end "
                          f"it first (fedvlm site stop {args.opts[0]})")
    kept, wanted = kept_of_runs(owner), args.opts[1] if len(args.opts) > 1 else ""
    runs = [run for run in kept if run.startswith(wanted)]
    if wanted and len(runs) != 1:
        raise ConfigError(
            f"'{wanted}' is the beginning of {len(runs) or 'no'} run(s) of this site: "
            f"{', '.join(run[:SHORT] for run in kept) or 'it keeps none'}"
            f"{did_you_mean(wanted, [run[:SHORT] for run in kept])}")
    places = [place for run in runs for place in kept[run]]
    if not wanted and (owner.states / FILE).is_file():
        places.append(owner.states / FILE)
    what = "to erase" if args.dry_run else "erased"
    for place in places:
        size = sum(p.stat().st_size for p in [place, *place.rglob("*")] if p.is_file())
        if not args.dry_run:
            with files.explain_errors(place):
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        say(f"{what}: {place} ({human_bytes(size)})")
    if not places:
        say(f"{owner.states}: nothing is kept of any run")
    for run, rounds in updates_sent(owner).items():
        if run.startswith(wanted):
            say(f"run {run[:SHORT]}: updates of {len(rounds)} rounds, {min(rounds)} to "
                f"{max(rounds)}, left this site. The coordinator's models, states and copies of "
                "them hold what was learnt here: ask for fedvlm forget RUN --client SITE, its "
                "forgotten.json, and the deletion of the old run")
    complain(f"kept: {owner.states / LOG}, which holds no image and no tensor; the images in "
             f"{owner.images}; the cache of features (fedvlm features --clean)", prefix="note")
    return 0


def kept_of_runs(owner: SiteYaml) -> dict[str, list[Path]]:
    """Return what a site keeps of each run: its states, and the words it was accepted by."""
    out: dict[str, list[Path]] = {}
    if owner.states.is_dir():
        for place in sorted(owner.states.iterdir()):
            if place.is_dir() and not place.name.startswith("."):
                out.setdefault(place.name, []).append(place)
        for place in sorted((owner.states / RUNS).glob("*.json")):
            out.setdefault(place.stem, []).append(place)
    return out


def updates_sent(owner: SiteYaml) -> Mapping[str, set[int]]:
    """Return the rounds in which updates left the site, by run, as its log says."""
    out: dict[str, set[int]] = {}
    if (owner.states / LOG).is_file():
        for line in read_log(owner.states / LOG)[0]:
            if line.get("direction") == WENT and line.get("kind") in UPDATES:
                out.setdefault(str(line["run"]), set()).add(int(line["round"]))
    return out
