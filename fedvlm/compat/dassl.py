"""``import dassl`` for files of the CoOp family: 31 names, and ``clip`` beside them.

``with replace_dassl(): ...`` (or ``install()`` ... ``uninstall()``) puts them into ``sys.modules``;
``python -m fedvlm.compat SCRIPT ...`` runs a script of that world, such as CoOp's
``parse_test_res.py``. The main job does neither: ``--trainer ./coop.py:CoOp`` is enough.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import packaging.version
from torch.optim import RAdam
from yacs.config import CfgNode

from fedvlm.compat import clip, data, engine, optimiser, surface, tools
from fedvlm.compat.settings import default_cfg
from fedvlm.core.errors import FedvlmError


def clean_cfg(cfg: CfgNode, trainer: str) -> None:
    """Drop the nodes of all trainers but one."""
    for name in [n for n, node in cfg.TRAINER.items() if isinstance(node, CfgNode)]:
        if name != trainer.upper():
            cfg.TRAINER.pop(name)


def dassl_modules() -> dict[str, ModuleType]:
    """Return the modules by their full names, with registries of their own."""
    trainers = tools.Registry("TRAINER")  # anew: two files may both have a CoOp
    things: dict[str, Any] = {
        **vars(engine), **vars(data), **vars(optimiser), **vars(tools),
        "get_cfg_default": default_cfg, "clean_cfg": clean_cfg, "RAdam": RAdam,
        "TRAINER_REGISTRY": trainers,
        "build_trainer": lambda cfg: trainers.get(cfg.TRAINER.NAME)(cfg),
    }
    parts = {part: {n: things[n] for n in names} for part, names in surface.NAMES.items()}
    roots = surface.package("dassl", parts)
    nested = surface.package("Dassl", {f"dassl.{part}": names for part, names in parts.items()})
    return roots | nested | clip.clip_modules()


def old_setuptools() -> dict[str, ModuleType]:
    """Return ``pkg_resources`` where setuptools has none any more: OpenAI's clip.py asks it."""
    if importlib.util.find_spec("pkg_resources") is not None:
        return {}
    return surface.package("pkg_resources", {"": {"packaging": packaging}})


@contextmanager
def replace_dassl() -> Iterator[None]:
    """Have ``dassl`` and ``clip`` in ``sys.modules`` for a while."""
    with surface.replace_modules(dassl_modules()):
        yield


def install() -> None:
    """Put ``dassl`` and ``clip`` into ``sys.modules`` until ``uninstall``.

    Raises:
        FedvlmError: the real ones are imported already.
    """
    taken = [n for n in surface.ROOTS if n in sys.modules]
    if taken:
        raise FedvlmError(f"'{taken[0]}' is already imported; start a new process")
    sys.modules.update(dassl_modules())


def uninstall() -> None:
    """Take out of ``sys.modules`` what ``install`` put there."""
    for name in [n for n in sys.modules if n.partition(".")[0] in surface.ROOTS]:
        del sys.modules[name]
