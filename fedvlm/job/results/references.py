"""The references of a run (``evaluation.references``): made once for all methods and model seeds.

They depend on images, partition and backbone alone, so they are kept as JSON beside the feature
store, under a digest of all that they are made of, their code included. A file that does not hold
what its digest says is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.progress import Progress
from fedvlm.evaluation import Panel
from fedvlm.evaluation.references import (
    Asked,
    order,
    references,
    template_reference,
    zero_shots,
)
from fedvlm.federation.batches import NO_WEIGHTS
from fedvlm.job.build import Built
from fedvlm.job.sources import features_of, store_dir
from fedvlm.models.features.code import PACKAGE
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.sources import FeatureSource, JoinedSource, SampleSource
from fedvlm.models.features.store import default_dir

FOLDER = "references"
STREAM = "features"


def reference_rows(
    built: Built, panel: Panel, zero_shot: Mapping[str, Any] | None,
    progress: Progress | None = None, afresh: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the references of a run, by name in the order in which they are shown.

    Args:
        panel: whose test images are judged, and whose training images count.
        zero_shot: the template's metrics (``evaluation.zero_shot``); None: no text tower.
        progress: called where images are encoded, for methods that stream something else.
        afresh: take nothing that is kept, and keep nothing: for a replay, which believes no file.

    Raises:
        DataError: an image changed meanwhile, or the feature store cannot be written.
    """
    members = built.federation.roster.present
    path = _path(built, panel, members)
    plain = None if afresh else _read(path)
    if plain is None or zero_shot is not None:
        asked = Asked(
            features_source(built, panel, members, progress), built.data, panel.clients, members,
            len(built.data.classnames), built.cfg.OPTIM.CLASS_WEIGHTS,
        )
        if plain is None:
            plain = _made(asked)
            if not afresh:
                _keep(path, plain)
        if zero_shot is not None:
            plain = plain | zero_shots(asked, built.model, zero_shot["clients"])
    return order(plain)


def _made(asked: Asked) -> dict[str, dict[str, Any]]:
    if asked.captioned:
        return {}  # no baseline is trained on captions
    if asked.sets is None:
        return references(asked)
    from fedvlm.evaluation.references import by_label  # start-up: for sets of labels only

    return by_label.label_references(asked)


def with_template(
    found: dict[str, dict[str, Any]] | None, zero_shot: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]] | None:
    """Return what sites told of their clients with ``zero_shot``; None where they told nothing."""
    if found is None or zero_shot is None:
        return found
    return order(template_reference(zero_shot["clients"]) | found)


def features_source(
    built: Built, panel: Panel, members: Sequence[int], progress: Progress | None
) -> SampleSource:
    """Return the plain features of the clients' images; those that the run has, or the store's."""
    test = built.test
    parts = test.parts if isinstance(test, JoinedSource) else (test,)
    for part in parts:
        if STREAM in getattr(part, "streams", ()):
            return part
    clients = [built.data.clients[c] for c in sorted({*members, *panel.clients})]
    every = np.unique(np.concatenate([
        np.asarray(part) for c in clients for part in (c.train, c.val, c.test)
    ]))
    features = features_of(
        built.cfg, built.backbone, built.loader, every.tolist(), None, progress, Throughput(),
        built.notes,
    )
    labels = torch.from_numpy(built.data.labels.copy())
    return FeatureSource.of(features[None], torch.from_numpy(every), labels)


def _path(built: Built, panel: Panel, members: Sequence[int]) -> Path:
    """Return where the references that need no text tower are kept."""
    backbone, identity = built.backbone, built.identity
    code = hashlib.sha256()
    for file in sorted((PACKAGE / "evaluation").rglob("*.py")):
        code.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    key = hashlib.sha256(json.dumps([
        code.hexdigest(), identity["data"], identity["images"], identity["backbone"],
        identity["transform"], identity["device"], backbone.numerics, list(panel.clients),
        list(members), torch.get_num_threads(),
        *([] if built.cfg.OPTIM.CLASS_WEIGHTS == NO_WEIGHTS else [built.cfg.OPTIM.CLASS_WEIGHTS]),
        *([] if built.data.groups is None else [hashlib.sha256(built.data.groups.tobytes())
                                                .hexdigest()]),
    ]).encode()).hexdigest()
    return (store_dir(built.cfg) or default_dir()) / FOLDER / f"{key}.json"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> dict[str, dict[str, Any]] | None:
    """Return what is kept at ``path``; None where there is nothing, or something damaged."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        found, sound = said["references"], said["sha256"] == _digest(said["references"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if sound and isinstance(found, dict) else None


def _keep(path: Path, found: Mapping[str, Any]) -> None:
    """Write references; a folder that cannot be written keeps none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {"references": found, "sha256": _digest(found)})
    except (OSError, DataError):
        return
