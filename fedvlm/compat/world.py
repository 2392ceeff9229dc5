"""Where a foreign file's code runs: on which model, on which device, in which type."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from yacs.config import CfgNode

from fedvlm.compat.repository.imports import Imports
from fedvlm.core.errors import FedvlmError
from fedvlm.models.vlmodel import VLModel

LOG = logging.getLogger("fedvlm.compat")  # what the file prints; INFO is not shown by default
LOW = (torch.float16, torch.bfloat16)
_stack: list[FileEnvironment] = []


@dataclass
class FileEnvironment:
    """What a file's code stands on.

    Attributes:
        model: towers and class names.
        cfg: the config in Dassl's words.
        imports: what ``import dassl`` and ``import clip`` give, and the repository's own modules.
        share: the towers' weights are one for all CLIPs that the file builds; False gives each
            its own, for files that train them.
        folder: holds the placeholder that ``clip._download`` names.
        towers: ids of the frozen tensors of CLIPs that the repository's own ``clip`` built.
        built: these CLIPs, so that the ids stay true.
    """

    model: VLModel
    cfg: CfgNode
    imports: Imports
    share: bool = True
    folder: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory, repr=False)
    towers: set[int] = field(default_factory=set, repr=False)
    built: list[nn.Module] = field(default_factory=list, repr=False)

    def weights(self) -> Path:
        """Return a file that ``torch.jit.load`` refuses and ``torch.load`` reads."""
        path = Path(self.folder.name) / "fedvlm-backbone.pt"
        if not path.exists():
            torch.save({"fedvlm.backbone": torch.zeros(1)}, path)
        return path


def here() -> FileEnvironment:
    """Return the world of the code that runs now.

    Raises:
        FedvlmError: a file asks for a model while it is loaded, before there is one.
    """
    if not _stack:
        raise FedvlmError(
            "a file written for clip loads its model during import, but the backbone is known "
            "only when the run is built: move the call into build_model"
        )
    return _stack[-1]


def inside() -> bool:
    """Tell whether a world is open."""
    return bool(_stack)


@contextmanager
def active(world: FileEnvironment) -> Iterator[None]:
    """Run a file's code: its imports resolve, its devices are the run's, its prints are logged."""
    count = torch.cuda.device_count
    _stack.append(world)
    torch.cuda.device_count = lambda: min(1, count())  # its DataParallel would hide the names
    try:
        with world.imports.active(), redirect_prints(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # old calls are the file's
            # a tensor that a file makes before it knows its numbers
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            with _RunPlace(world.model):
                yield
    finally:
        torch.cuda.device_count = count
        _stack.pop()


@contextmanager
def redirect_prints() -> Iterator[None]:
    """Send what is printed, bars of progress too, to the log ``fedvlm.compat``."""
    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            yield
    finally:
        for line in out.getvalue().splitlines():
            LOG.info("%s", line)


class _RunPlace(TorchFunctionMode):
    """``cuda``, ``half``, ``float`` and their spellings mean the run's device and type."""

    def __init__(self, model: VLModel) -> None:
        super().__init__()
        self.device, self.dtype = model.device, model.dtype

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """See ``torch.overrides``."""
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0].to(self.device)
        if func in (torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.float):
            return args[0].to(self.dtype)
        if func in (torch.Tensor.to, torch.Tensor.type):
            args = (args[0], *(self._mend(a) for a in args[1:]))
        if "device" in kwargs or "dtype" in kwargs:
            kwargs = {k: self._mend(v) if k in ("device", "dtype") else v
                      for k, v in kwargs.items()}
        return func(*args, **kwargs)

    def _mend(self, value: Any) -> Any:
        if value in LOW if isinstance(value, torch.dtype) else False:
            return self.dtype
        if isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == "cuda":
            return self.device
        return value
