"""``dassl.utils`` and ``dassl.metrics``: small helpers under the names that files import."""

from __future__ import annotations

import json
import os
import platform
import random
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedvlm.core.errors import DataError, did_you_mean


class Registry:
    """Names to classes; a name is taken once, unless forced.

    Args:
        name: what is registered, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._table: dict[str, Any] = {}

    def register(self, obj: Any = None, force: bool = False) -> Any:
        """Register ``obj`` under its own name, as a call or as a decorator.

        Raises:
            KeyError: the name is taken.
        """
        def add(thing: Any) -> Any:
            if thing.__name__ in self._table and not force:
                raise KeyError(f"'{thing.__name__}' is already registered in {self._name}")
            self._table[thing.__name__] = thing
            return thing

        return add if obj is None else add(obj)

    def get(self, name: str) -> Any:
        """Return what is registered as ``name`` (``KeyError`` otherwise)."""
        if name not in self._table:
            raise KeyError(f"'{name}' is not registered in {self._name}"
                           f"{did_you_mean(name, self._table)}")
        return self._table[name]

    def registered_names(self) -> list[str]:
        """Return all names."""
        return list(self._table)


def check_availability(requested: str, available: Sequence[str]) -> None:
    """Raise ``ValueError`` where ``requested`` is none of ``available``."""
    if requested not in available:
        raise ValueError(f"'{requested}' is none of {list(available)}"
                         f"{did_you_mean(requested, available)}")


def check_isfile(fpath: str) -> bool:
    """Tell whether a file is there; warn where it is not."""
    there = os.path.isfile(fpath)
    if not there:
        warnings.warn(f'No file found at "{fpath}"', stacklevel=2)
    return there


def mkdir_if_missing(dirname: str) -> None:
    """Make a folder and those above it."""
    Path(dirname).mkdir(parents=True, exist_ok=True)


def listdir_nohidden(path: str, sort: bool = False) -> list[str]:
    """Return the names in a folder that do not begin with a dot."""
    names = [name for name in os.listdir(path) if not name.startswith(".")]
    return sorted(names) if sort else names


def read_json(fpath: str) -> Any:
    """Return what a JSON file holds."""
    return json.loads(Path(fpath).read_text(encoding="utf-8"))


def write_json(obj: Any, fpath: str) -> None:
    """Write a JSON file, and its folder where missing."""
    mkdir_if_missing(str(Path(fpath).parent))
    text = json.dumps(obj, indent=4, separators=(",", ": "))
    Path(fpath).write_text(text, encoding="utf-8")


def read_image(path: str) -> Image.Image:
    """Return an image as RGB."""
    if not os.path.exists(path):
        raise OSError(f"No file exists at {path}")
    with Image.open(path) as image:
        return image.convert("RGB")


def set_random_seed(seed: int) -> None:
    """Seed random, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def setup_logger(output: str | None = None) -> None:
    """Leave the console alone: a run has its ``log.txt``."""


def collect_env_info() -> str:
    """Return Python's, torch's and the machine's versions."""
    return f"Python {platform.python_version()}, torch {torch.__version__}, {platform.platform()}"


def tolist_if_not(x: Any) -> list[Any]:
    """Return ``x`` in a list, unless it is one."""
    return x if isinstance(x, list) else list(x) if isinstance(x, tuple) else [x]


def count_num_param(model: nn.Module | None = None, params: Iterable[Any] | None = None) -> int:
    """Return the number of parameters of a module, or of parameters (or groups) given."""
    if model is not None:
        return sum(p.numel() for p in model.parameters())
    flat = [q for p in params or () for q in (p["params"] if isinstance(p, Mapping) else [p])]
    return sum(p.numel() for p in flat)


def load_checkpoint(fpath: str) -> Any:
    """Return a Dassl checkpoint; only tensors and plain values are read from it.

    Raises:
        DataError: it is missing, or would run code.
    """
    path = Path(fpath)
    if not path.is_file():
        raise DataError(f'no checkpoint at "{fpath}"')
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataError(
            f'"{fpath}" is not a plain checkpoint (Dassl pickles its warm-up scheduler into them): '
            f"save its 'state_dict' and 'epoch' alone ({type(error).__name__})"
        ) from error


def save_checkpoint(
    state: dict[str, Any], save_dir: str, is_best: bool = False,
    remove_module_from_keys: bool = True, model_name: str = "",
) -> None:
    """Write a checkpoint as Dassl does: ``model.pth.tar-<epoch>`` and the file ``checkpoint``."""
    mkdir_if_missing(save_dir)
    if remove_module_from_keys:
        state["state_dict"] = OrderedDict(
            (k.removeprefix("module."), v) for k, v in state["state_dict"].items())
    name = model_name or f"model.pth.tar-{state['epoch']}"
    torch.save(state, Path(save_dir) / name)
    (Path(save_dir) / "checkpoint").write_text(f"{name}\n", encoding="utf-8")
    if is_best:
        torch.save(state, Path(save_dir) / "model-best.pth.tar")


def resume_from_checkpoint(
    fdir: str, model: nn.Module, optimizer: Any = None, scheduler: Any = None
) -> int:
    """Load the newest checkpoint of a folder and return its epoch."""
    name = (Path(fdir) / "checkpoint").read_text(encoding="utf-8").strip()
    checkpoint = load_checkpoint(str(Path(fdir) / name))
    model.load_state_dict(checkpoint["state_dict"])
    return int(checkpoint["epoch"])


def load_pretrained_weights(model: nn.Module, weight_path: str) -> None:
    """Load the tensors of a checkpoint whose names and shapes fit; warn where none does."""
    state = load_checkpoint(weight_path)
    state = state.get("state_dict", state)
    own = model.state_dict()
    fit = {k: v for k, v in ((k.removeprefix("module."), v) for k, v in state.items())
           if k in own and own[k].shape == v.shape}
    if not fit:
        warnings.warn(f"no tensor in {weight_path} fits the model", stacklevel=2)
    model.load_state_dict(own | fit)


def compute_accuracy(output: Any, target: Tensor, topk: Sequence[int] = (1,)) -> list[Tensor]:
    """Return the accuracy in % within the first k, one ``[1]`` tensor for each of ``topk``."""
    logits = output[0] if isinstance(output, (tuple, list)) else output
    order = logits.topk(min(max(topk), logits.shape[1]), dim=1).indices
    right = order == target.view(-1, 1)
    return [right[:, :k].any(1).float().mean().mul(100).view(1) for k in topk]


class AverageMeter:
    """A running mean; with ``ema`` an exponential one."""

    def __init__(self, ema: bool = False) -> None:
        self.ema = ema
        self.reset()

    def reset(self) -> None:
        """Forget."""
        self.val = self.avg = self.sum = self.count = 0.0

    def update(self, val: Any, n: int = 1) -> None:
        """Add a value that stands for ``n``."""
        self.val = float(val)
        self.sum, self.count = self.sum + self.val * n, self.count + n
        mean = self.sum / self.count
        self.avg = self.avg * 0.9 + self.val * 0.1 if self.ema and self.count > n else mean


class MetricMeter:
    """One running mean per name."""

    def __init__(self, delimiter: str = " ") -> None:
        self.delimiter = delimiter
        self.meters: defaultdict[str, AverageMeter] = defaultdict(AverageMeter)

    def update(self, input_dict: Mapping[str, Any] | None) -> None:
        """Add a dict of numbers."""
        for name, value in (input_dict or {}).items():
            self.meters[name].update(value)

    def __str__(self) -> str:
        """``name value (mean)`` of all."""
        return self.delimiter.join(
            f"{name} {m.val:.4f} ({m.avg:.4f})" for name, m in self.meters.items())


class SummaryWriter:
    """TensorBoard's writer, which writes nothing: ``SINKS`` is fedvlm's way to TensorBoard."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.log_dir = str(args[0]) if args else str(more.get("log_dir", ""))

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a call that does nothing (``add_scalar``, ``flush``, ``close``)."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **more: None
