"""A site's own secret for the noise of its clients: nobody else can draw it, and subtract it.

32 bytes from the operating system, kept beside the site's states, for its user only. The noise of a
step is a function of the secret, the run, what the client started from and what it received: asked
again for the same work, as after a loss or a kill, a site answers with the same bits; asked for
other work it never uses the same noise twice, whose difference would show what it hides.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.trees import Tree

FILE, LENGTH = ".noise", 32


def site_secret(folder: Path) -> bytes:
    """Return the secret of the site whose states are in ``folder``; made where there is none.

    Raises:
        DataError: it cannot be read or written, or is damaged.
    """
    path = folder / FILE
    with files.explain_errors(path):
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, os.urandom(LENGTH), private=True)
        secret = path.read_bytes()
    if len(secret) != LENGTH:
        raise DataError(f"{path} is damaged: a site's secret has {LENGTH} bytes; delete it (rounds "
                        "that are repeated then have other noise)")
    return secret


def client_keys(
    secret: bytes, run: str, round_: int, accepted: Mapping[int, int],
    downloads: Mapping[int, Tree],
) -> dict[int, bytes]:
    """Return a key for the noise of each client's work in a round.

    Args:
        run: its name.
        accepted: the version that each client starts from.
        downloads: what each receives.
    """
    out = {}
    for client, version in accepted.items():
        key = hashlib.sha256(secret + repr((run, round_, client, version)).encode())
        for name, leaf in sorted(downloads[client].items()):
            key.update(repr((name, str(leaf.dtype), tuple(leaf.shape))).encode())
            flat = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            key.update(flat.numpy().tobytes())
        out[client] = key.digest()
    return out
