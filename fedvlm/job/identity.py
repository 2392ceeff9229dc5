"""What makes a run the run it is: everything that may move one of its numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.config.keys import method_schema
from fedvlm.config.sections import read_keys
from fedvlm.data.federated import FederatedData
from fedvlm.data.images import ImageLoader
from fedvlm.federation.discovery import code_digest, load_trainer, own_modules, own_sources
from fedvlm.models.backbone import Backbone
from fedvlm.runs.identity import DEVICE_KEYS, IMPORTS
from fedvlm.runs.private import public_value

# Keys that move no number: where things lie, how much is printed. All others make the identity.
WHERE = (
    "TRAIN.KEEP_STATES", "DRAFT", "CONTINUE_ELSEWHERE",
    "OUTPUT_DIR", "RESUME", "CACHE_DIR", "TAG", "DATASET.ROOT", "VERBOSE", "USE_CUDA", "VERSION",
    "DATALOADER.NUM_WORKERS", "TRAIN.PRINT_FREQ", "TRAIN.CHECKPOINT_FREQ", "TEST.KEEP_LOGITS",
    "FED.UNRELIABLE.QUORUM", "FED.ASK.REACH",  # only end a run sooner
    "TEST.EVAL_EVERY", "DEVICE", "FAST", "SINKS", "FED.STORE", "BANK.GB",
    "FED.ENGINE", "FED.WORKERS", "FED.WORKERS_AT", "FED.TOKEN_FILE", "FED.SITES_AT",
    "FED.SITE_FILE", "FED.FEDERATION", "FED.ASK.SECONDS", "FED.ASK.RETRIES",
    "FED.ASK.WAIT", "FED.ASK.REFUSALS",
    "TEST.REFERENCES", "TEST.PER_CLASS_RESULT", "TEST.COMPUTE_CMAT", "TEST.PER_IMAGE",
    "TEST.METRICS", "TEST.CALIBRATE",
    "FED.INDEX_FILE", "DATASET.FEWSHOT_FILE",  # the data digest stands for what they say
)


def run_identity(
    cfg: CfgNode, data: FederatedData, backbone: Backbone, loader: ImageLoader, chunk: int,
    device: str, proxy: str = "", features: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything that changes the run's numbers, as JSON values.

    The images count by their bytes; a trainer given as a file counts by the file's, and by those of
    the user's own modules that it imports.

    Args:
        chunk: clients stacked into one.
        device: its type, ``cpu`` or ``cuda``.
        proxy: digest of the images that the server trains on; empty where it has none.
        features: origins of features in packs that differ in bits from those made here.
    """
    identity = {
        "config": identity_config(cfg), "data": data.digest, "backbone": backbone.digest,
        "chunk": chunk, "device": device, "images": images_digest(loader, len(data.samples)),
        "transform": backbone.transform_spec.digest,
    }
    if proxy:
        identity["proxy"] = proxy
    if features:
        identity["features"] = list(features)
    if ".py" in cfg.TRAINER.NAME:
        name = str(cfg.TRAINER.NAME)
        files = own_sources(name, load_trainer(name))
        identity["trainer"] = code_digest(files)
        if more := own_modules(files):
            identity[IMPORTS] = code_digest(more)
    return identity


def images_digest(loader: ImageLoader, count: int) -> str:
    """Return the SHA-256 over the bytes of so many images."""
    images = hashlib.sha256()
    for i in range(count):
        images.update(loader.content_key(i).encode())
    return images.hexdigest()


def identity_config(cfg: CfgNode) -> dict[str, Any]:
    """Return the config keys of a run's identity: all that it reads and that may move a number.

    Without the machine's folders: what lies in them has digests in the identity.
    """
    return _without_folders(config_keys(cfg))


def config_keys(cfg: CfgNode) -> dict[str, Any]:
    """Return the keys of ``identity_config`` with their values as they were given."""
    trainer = load_trainer(cfg.TRAINER.NAME)
    node = f"TRAINER.{trainer.name.upper()}"
    config = {
        k: v for k, v in flat(cfg).items()
        if not k.startswith("TRAINER.") or k == "TRAINER.NAME" or k.startswith(f"{node}.")
        or k in trainer.foreign
    }
    return _read_keys(cfg.TRAINER.NAME, config)


def present_config(trainer: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return of the config in an identity, perhaps an older one, what counts for a method today."""
    return _without_folders(_read_keys(trainer, config))


def present_identity(
    trainer: str, identity: Mapping[str, Any], *, elsewhere: bool = False
) -> dict[str, Any]:
    """Return of an identity, perhaps an older one, what counts today (see ``present_config``).

    Args:
        elsewhere: whether the device may be another (``CONTINUE_ELSEWHERE``).
    """
    kept = {k: v for k, v in identity.items() if not elsewhere or k not in DEVICE_KEYS}
    return {**kept, "config": present_config(trainer, identity.get("config", {}))}


def _read_keys(trainer: str, config: Mapping[str, Any]) -> dict[str, Any]:
    schema = method_schema(load_trainer(trainer))
    return {k: v for k, v in read_keys(config, schema).items() if k not in WHERE}


def _without_folders(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: public_value(key, value) for key, value in config.items()}
