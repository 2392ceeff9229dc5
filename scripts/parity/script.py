"""Training scripts of the LG-FedAvg family, run whole as they are, on the small network."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from parity.authors import repository
from parity.net import arguments, encode
from parity.pfllib import NEVER, quiet
from parity.world import World


def script_arguments(world: World, **more: Any) -> Any:
    """Return what their ``args_parser`` returns."""
    c = world.case
    return arguments(**{
        "gpu": -1, "dataset": "cifar10", "num_users": len(c.sizes), "epochs": c.rounds,
        "frac": 1.0, "local_bs": max(c.sizes), "local_ep": c.epochs, "lr": c.rate,
        "test_freq": NEVER, "save_every": NEVER, "m_tr": NEVER, "m_ft": NEVER, "load_fed": "n",
        "shard_per_user": 0, "model": "", "iid": False, "results_save": "1", "seed": 1,
        "momentum": c.momentum, "wd": c.decay, "unbalanced": False, "server_data_ratio": 0.0,
        **more,
    })


def executed(world: World, folder: Path, script: str, args: Any, net: nn.Module,
             functions: Mapping[str, Mapping[str, Any]], *stubs: str,
             files: Callable[[], None] | None = None) -> dict[str, Any]:
    """Run a script as ``__main__`` in an empty folder; return its variables at the end.

    Args:
        args: what its parser returns.
        net: what its ``get_model`` returns.
        functions: of its modules, ``{module: {name: value}}``; such a module is not imported.
        stubs: packages that it imports and that what is compared does not need.
        files: is called in the empty folder, and may write what the script reads.
    """
    z, y = encode(world, world.images), world.labels
    users = {k: rows.copy() for k, rows in enumerate(world.rows)}
    given = {
        "utils.options": {"args_parser": lambda: args},
        "utils.train_utils": {
            "get_data": lambda _: (list(zip(z, y, strict=True)), None, users, users),
            "get_model": lambda _: net, "read_data": None,
        },
        **functions,
    }
    here = Path.cwd()
    with repository(folder, *stubs), tempfile.TemporaryDirectory() as empty, quiet():
        for name, members in given.items():
            module = ModuleType(name)
            vars(module).update(members)
            sys.modules[name] = module
        os.chdir(empty)
        Path("save").mkdir()
        if files:
            files()
        try:
            return runpy.run_path(str(folder / script), run_name="__main__")
        finally:
            os.chdir(here)
