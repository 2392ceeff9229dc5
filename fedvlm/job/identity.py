"""What makes a run the run it is: everything that may move one of its numbers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.compat.files import load_trainer
from fedvlm.config.build import flat
from fedvlm.config.keys import default_schema
from fedvlm.config.option import declare
from fedvlm.data.federated import FederatedData
from fedvlm.data.images import ImageLoader
from fedvlm.models.backbone import Backbone

# Keys that move no number: where things lie, how much is said. All others make the identity.
WHERE = (
    "OUTPUT_DIR", "RESUME", "CACHE_DIR", "TAG", "DATASET.ROOT", "VERBOSE", "USE_CUDA", "VERSION",
    "DATALOADER.NUM_WORKERS", "TRAIN.PRINT_FREQ", "TRAIN.CHECKPOINT_FREQ", "TEST.KEEP_LOGITS",
    "TEST.EVAL_EVERY", "DEVICE", "SINKS",
    "FED.INDEX_FILE", "DATASET.FEWSHOT_FILE",  # the data digest stands for what they say
)


def run_identity(
    cfg: CfgNode, data: FederatedData, backbone: Backbone, loader: ImageLoader, chunk: int,
    device: str, proxy: str = "",
) -> dict[str, Any]:
    """Return everything that changes the run's numbers (DESIGN 4.10), as JSON values.

    The images count by their bytes; a trainer given as a file counts by the file's.

    Args:
        chunk: clients stacked into one.
        device: its type, ``cpu`` or ``cuda``.
        proxy: digest of the images that the server trains on; empty where it has none.
    """
    images = hashlib.sha256()
    for i in range(len(data.samples)):
        images.update(loader.content_key(i).encode())
    identity = {
        "config": identity_config(cfg), "data": data.digest, "backbone": backbone.digest,
        "chunk": chunk, "device": device, "images": images.hexdigest(),
        "transform": backbone.transform_spec.digest,
    }
    if proxy:
        identity["proxy"] = proxy
    if ".py" in cfg.TRAINER.NAME:
        file = Path(cfg.TRAINER.NAME.partition(":")[0]).expanduser()
        files = getattr(load_trainer(cfg.TRAINER.NAME), "sources", [file])
        text = b"".join(path.read_bytes() for path in files)
        identity["trainer"] = hashlib.sha256(text).hexdigest()
    return identity


def identity_config(cfg: CfgNode) -> dict[str, Any]:
    """Return the config keys of a run's identity: all that may move a number.

    A key that came after others is left out while it changes nothing (``Option.neutral``).
    """
    trainer = load_trainer(cfg.TRAINER.NAME)
    node = f"TRAINER.{trainer.name.upper()}"
    foreign = dict(getattr(trainer, "foreign", {}))
    schema = declare(default_schema() | foreign, node, trainer.options)
    return {
        k: v for k, v in flat(cfg).items()
        if k not in WHERE
        and (not k.startswith("TRAINER.") or k == "TRAINER.NAME" or k.startswith(f"{node}.")
             or k in foreign)
        and (k not in schema or schema[k].neutral is None or v != schema[k].neutral)
    }
