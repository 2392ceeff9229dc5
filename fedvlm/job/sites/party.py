"""A party's side: a site on its own images, under its owner's rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError
from fedvlm.core.progress import Progress
from fedvlm.data.datum import Datum
from fedvlm.data.image_records import records_of
from fedvlm.data.images import find_broken
from fedvlm.data.own.site import read_site
from fedvlm.distributed.facts import digest
from fedvlm.distributed.noise import site_secret
from fedvlm.distributed.site import Site
from fedvlm.distributed.site_yaml import SiteYaml
from fedvlm.distributed.terms import Refused
from fedvlm.evaluation import Panel
from fedvlm.evaluation.references.suite import Asked
from fedvlm.job.build import build_run
from fedvlm.job.identity import config_keys
from fedvlm.job.inputs import SiteInputs
from fedvlm.job.results.references import features_source


def config_plain(cfg: CfgNode) -> dict[str, Any]:
    """Return the keys of a run's identity as they travel."""
    plain: dict[str, Any] = json.loads(json.dumps(config_keys(cfg)))
    return plain


def shared_facts(identity: Mapping[str, Any]) -> dict[str, str]:
    """Return what of a run's identity its workers must share though no config key tells it.

    Keys that say where data lie and what computes travel nowhere: digests of what is there do.
    """
    return {
        "data": digest(identity["data"]), "images": digest(identity["images"]),
        "packed features": digest(identity.get("features", [])), "device": str(identity["device"]),
    }


def find_unreadable(
    images: Sequence[Datum], own: Mapping[str, str], progress: Progress | None = None
) -> list[str]:
    """Return name and reason of each image that does not decode; good ones are read once.

    Args:
        own: config keys of this machine: where it is kept which files are good.

    Raises:
        DataError: files that do not exist.
    """
    records = records_of(images, build_config(None, None, own, [], default_schema())[0])
    records.progress = progress
    return find_broken({"images": images}, records)[1]


def open_site(
    owner: SiteYaml, cfg: CfgNode, say: Callable[[str], None] = lambda words: None,
    progress: Progress | None = None,
) -> Site:
    """Return a site that is ready to answer; it has opened its own images and nothing else.

    Args:
        cfg: of the run; the coordinator's must be the same.
        say: hears what is for the site's own log.

    Raises:
        ConfigError: the owner does not allow this run (before any image is read), or whatever of
            it cannot work.
        DataError: the site file or an image has an invalid value.
    """
    config = config_plain(cfg)
    try:
        owner.terms.admit(config)
    except Refused as error:
        raise ConfigError(str(error)) from error
    file = read_site(owner.file)
    built = build_run(cfg, progress, inputs=SiteInputs(file, owner.images))

    def baselines(clients: Sequence[int]) -> Asked:
        """Return what baselines are made of; features are encoded when they are first asked."""
        panel = Panel(clients, len(clients))
        return Asked(
            features_source(built, panel, clients, progress), built.data, clients, clients,
            len(built.data.classnames), cfg.OPTIM.CLASS_WEIGHTS,
        )

    return Site(
        built.federation, list(file.clients), owner.states, config, file.digest, say, owner.terms,
        baselines, site_secret(owner.states),
    )
