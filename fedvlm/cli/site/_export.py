"""``fedvlm site export``: a party's own model, made at the site from what the site keeps."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from yacs.config import CfgNode

from fedvlm.cli.site._erase import SHORT, kept_of_runs, require_one
from fedvlm.cli.site._serve import LOCAL
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path
from fedvlm.distributed.site_yaml import SiteYaml, read_site_yaml
from fedvlm.distributed.terms import Refused
from fedvlm.evaluation.scores import ABSENT
from fedvlm.export.trained import Facts, TrainedModel, untested_model
from fedvlm.export.write import check_target, export
from fedvlm.job.run import threads_of
from fedvlm.job.sites.received import (
    FILE,
    alone_words,
    own_model,
    read_received,
    read_rows,
)
from fedvlm.job.sites.resident import Resident
from fedvlm.runs.verify.answer import measure_word


def site_export(args: Namespace) -> int:
    """Write the model of one client of the site; return the exit code.

    Raises:
        ConfigError: no such run or client, a folder that is there, a method that the format cannot
            hold, or a run that the owner does not allow any more.
        DataError: what the site keeps of the run is gone or damaged.
    """
    folder, client = user_path(args.to), int(args.client[0][0])
    check_target(folder, args.format)
    words = args.opts[1:]
    wanted = words.pop(0) if len(words) % 2 else None
    own = args.flags | dict(zip(words[::2], words[1::2], strict=True))
    owner = read_site_yaml(user_path(args.opts[0]))
    trained, said = model_of(owner, wanted, client, {k: v for k, v in own.items() if k in LOCAL},
                             args.licence)
    complain(said, prefix="note")
    done = export(trained, folder, args.format)
    say(f"{done.folder}: {done.format}, read back, largest logit difference {done.difference:.1e}")
    return 0


def model_of(
    owner: SiteYaml, wanted: str | None, client: int, own: dict[str, str], licence: str = "",
) -> tuple[TrainedModel, str]:
    """Return a client's model as the site last evaluated it, and of which round it is.

    Args:
        wanted: what the run's name begins with; None: the one run that is there.
        own: keys of this machine.

    Raises:
        ConfigError, DataError: as ``site_export``.
    """
    run = _chosen(owner, wanted)
    frame = read_received(owner.states / run)
    resident = Resident(owner, own, lambda words: None, progress)
    if client not in resident.file.clients:
        raise ConfigError(f"--client {client}: this site has the clients "
                          f"{', '.join(map(str, resident.file.clients))}")
    try:
        site, cfg = resident.site_of(run)
        with threads_of(cfg):
            params, row = own_model(site, frame, client)
    except Refused as error:
        raise ConfigError(f"run {run[:SHORT]}: {error}") from error
    finally:
        progress.clear()
    fed, round_ = site.federation, int(frame.values["round"])
    alone = alone_words(read_rows(owner.states / run), client, owner.terms.baselines)
    untested = untested_model(int(fed.roster.train[client]), int(fed.roster.test[client]))
    facts = _facts(cfg, client, row, round_, run, licence, alone, untested)
    model = fed.model.of_clients([client])
    number = row.get("accuracy")
    reached = "" if number is None or row.get(ABSENT) else (
        f"; {measure_word(row)} {number:.1f} on its own {row['n']} test images here, {alone}")
    return TrainedModel(fed.trainer, model, params, facts), (
        f"{fed.trainer.name}: the model of client {client} after round {round_} of "
        f"{cfg.FED.ROUNDS}{reached}")


def _chosen(owner: SiteYaml, wanted: str | None) -> str:
    """Return the run whose name begins with a word (``ConfigError``: not one)."""
    kept = list(kept_of_runs(owner))
    there = [run for run in kept if (owner.states / run / FILE).is_file()]
    if wanted is not None:
        found = [run for run in kept if run.startswith(wanted)]
        require_one(wanted, found, kept)
        if found[0] not in there:
            raise ConfigError(
                f"run {found[0][:SHORT]}: no evaluation of personal models by this version of "
                "fedvlm reached this site, and without it there is no model: the coordinator runs "
                "the same command again")
        return found[0]
    if len(there) != 1:
        several = ", ".join(run[:SHORT] for run in there)
        raise ConfigError(
            f"this site has models of {len(there)} runs, {several}: name one behind the file "
            "(fedvlm site status says more)" if there else
            f"'{owner.states}' has no model of a run: none was evaluated here yet")
    return there[0]


def _facts(
    cfg: CfgNode, client: int, row: dict[str, Any], round_: int, run: str, licence: str,
    alone: str, untested: str,
) -> Facts:
    """Return what the model's card says."""
    number = None if row.get(ABSENT) else row.get("accuracy")
    return Facts(
        f"client {client} of {cfg.FED.CLIENTS} (from 0)",
        f"{cfg.DATASET.NAME}, one client of {cfg.FED.CLIENTS} at sites",
        {} if number is None else {measure_word(row): float(number)}, licence, "",
        (f"round {round_} of at most {cfg.FED.ROUNDS}, run {run[:SHORT]}, made at its site",
         *(() if number is None else (
             f"on the client's own {row['n']} test images: {alone}, this model {number:.1f} %",))),
        images=int(row.get("n") or 0), untested=untested,
    )
