"""Weights files: reading them without running anything in them, and downloading a tag."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import safetensors.torch
import torch
from torch import Tensor, nn

from fedvlm.core.errors import DataError
from fedvlm.models.load.torchscript import check_archive, is_torchscript, read_torchscript

MOST_HEADER = 8 << 20  # bytes of a safetensors header: 100 times that of a large CLIP
NUMPY_RATIO = 16  # what a packed .npz may unpack to; trained weights hardly shrink
WAYS_OUT = (
    "use --backbone tiny (embedded), a local file with --weights FILE, "
    "or a folder with --weights local-dir:FOLDER"
)

_HUB, _HUB_FILE = "huggingface.co", "open_clip_model.safetensors"
GIGABYTES = {  # of float32 weights, by open_clip's name without -quickgelu
    "RN50": 0.4, "RN101": 0.5, "ViT-B-32": 0.6, "ViT-B-16": 0.6, "ViT-L-14": 1.7,
    "ViT-L-14-336": 1.7, "ViT-H-14": 3.9, "ViT-g-14": 5.5, "ViT-B-16-SigLIP": 0.8,
}


def refuse_odd(path: Path) -> None:
    """Refuse containers that ``torch.load`` would unpack, before it sees them.

    Raises:
        DataError: a tar archive (as PyTorch wrote before 0.2), TorchScript, or a zip that is no
            plain one.
    """
    if path.suffix == ".safetensors":
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
        if size > MOST_HEADER:
            raise DataError(f"'{path}' has a header of {size:,} bytes, far more tensors than any "
                            f"model; at most {MOST_HEADER:,} are read")
    if is_torchscript(path):
        raise DataError(f"'{path}' is TorchScript: give it with --weights, or use safetensors")
    if zipfile.is_zipfile(path):
        check_archive(path, NUMPY_RATIO if path.suffix == ".npz" else 1)
    elif tarfile.is_tarfile(path):
        raise DataError(f"'{path}' is a tar archive: save the weights as safetensors")


def load_file(model: nn.Module, path: Path, parts: tuple[str, ...] = ()) -> None:
    """Fill a model from a weights file; no code in the file is executed.

    Args:
        parts: beginnings of the names that are taken from it; none: all are.

    Raises:
        DataError: unreadable file, or tensors that do not fit the model.
    """
    from open_clip.factory import load_checkpoint, load_state_dict  # start-up: 3 s

    try:
        if is_torchscript(path):
            state = read_torchscript(path)
            for extra in ("input_resolution", "context_length", "vocab_size"):
                state.pop(extra, None)
            model.load_state_dict(state, strict=True)
        else:
            refuse_odd(path)
            if parts:
                state = load_state_dict(str(path), device="cpu", weights_only=True)
                model.load_state_dict({
                    n: v.reshape(()) if n == "logit_scale" else v  # some files have one of [1]
                    for n, v in state.items() if n.startswith(parts)
                })
                return
            load_checkpoint(model, str(path), strict=True, weights_only=True, device="cpu")
    except DataError:
        raise
    except pickle.UnpicklingError as error:
        raise DataError(
            f"'{path}' contains pickled code, which is refused: use safetensors"
        ) from error
    except (IndexError, KeyError, EOFError) as error:
        raise DataError(
            f"'{path}' is not a weights file of this model (safetensors, state dict or OpenAI's "
            "TorchScript)"
        ) from error
    except Exception as error:  # torch, safetensors and zip each have kinds of their own
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"cannot load weights from '{path}': {reason}") from error


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict file (.safetensors, .pth, .bin); no code in it is run.

    Raises:
        DataError: absent, unreadable, or with something else in it.
    """
    if not path.is_file():
        raise DataError(f"no weights file '{path}'")
    refuse_odd(path)
    try:
        state = safetensors.torch.load_file(path) if path.suffix == ".safetensors" else (
            torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # torch, safetensors and zip each have kinds of their own
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"cannot read weights from '{path}': {reason}") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise DataError(f"'{path}' is no state dict (names and tensors)")
    return state


def download(tag: str, build: str, cfg: dict[str, Any]) -> Path:
    """Return the file of a pretrained tag, from the cache or the network.

    Raises:
        DataError: not in the cache and not to be had; the message names the ways out.
    """
    from open_clip.pretrained import download_pretrained  # start-up: 3 s

    try:
        with quiet_hub():
            return Path(download_pretrained(cfg))
    except Exception as error:  # network libraries raise many kinds
        raise DataError(absent_weights(tag, build, cfg)) from error


def absent_weights(tag: str, build: str, cfg: dict[str, Any]) -> str:
    """Return which file is needed, how large it is, and how to bring it here without a network."""
    why = "the download failed" if hub_is_reachable() else "this machine has no access to the hub"
    name = build.removesuffix("-quickgelu")
    owner, repo, file = (*str(cfg.get("hf_hub", "")).split("/", 2), "", "")[:3]
    url = str(cfg.get("url", ""))
    if repo:
        url = f"https://{_HUB}/{owner}/{repo}/resolve/main/{file.strip('/') or _HUB_FILE}"
    if not url:
        return f"the weights '{tag}' of {build} are not on this machine, and {why}: {WAYS_OUT}"
    size = GIGABYTES.get(name)
    form = Path(url).suffix
    here = f"{name}-{tag}{form}"
    return (
        f"the weights '{tag}' of {build} are not on this machine, and {why}. On a machine with "
        f"network access run: curl -L -o {here} {url}{f' (about {size:g} GB)' if size else ''}; "
        f"then copy {here} to this machine and add --weights FOLDER/{here} to the command. To try "
        "fedvlm without weights: --backbone tiny"
    )


def hub_is_open() -> bool:
    """Whether absent weights could be downloaded now."""
    from huggingface_hub import constants  # start-up: 0.3 s

    return not constants.HF_HUB_OFFLINE and hub_is_reachable()


def hub_is_reachable() -> bool:
    """False when the hub's name does not resolve: its client would retry for most of a minute."""
    from huggingface_hub import constants  # start-up: 0.3 s

    if any(os.environ.get(k) for k in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(urlparse(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


@contextmanager
def private_rng(seed: int = 0) -> Iterator[None]:
    """Seed torch's CPU generator inside the block only."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield


@contextmanager
def quiet_hub(*, local: bool = False) -> Iterator[None]:
    """Keep the hub's client off the screen inside the block.

    It is kept off the network as well if all is ``local`` or the hub cannot be reached.
    """
    from huggingface_hub import constants  # start-up: 0.3 s

    logger = logging.getLogger("huggingface_hub")
    before = logger.level, constants.HF_HUB_OFFLINE
    logger.setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = local or before[1] or not hub_is_reachable()
    try:
        yield
    finally:
        logger.setLevel(before[0])
        constants.HF_HUB_OFFLINE = before[1]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars off the screen inside the block."""
    from transformers.utils import logging as bars  # start-up: 2 s

    visible = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if visible:
            bars.enable_progress_bar()
