"""Servers and clients in the style of PFLlib, run as they are on the small network."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from parity.authors import repository
from parity.net import arguments, data, network
from parity.world import World

COMMIT = "d832e76f6a23b833038949ec1e4fdefe63a4d350"
REPOSITORY = "TsingZ0/PFLlib"
STUBS = ("h5py", "torchviz", "opacus", "utils.privacy", "utils.dlg", "utils.data_utils")
NEVER = 10**9


def pfllib_arguments(world: World, net: nn.Module, **more: Any) -> Any:
    """Return the arguments of their ``main.py`` that servers and clients read."""
    c = world.case
    return arguments(**{
        "model": net, "device": "cpu", "dataset": "", "num_classes": len(world.names),
        "global_rounds": c.rounds - 1, "local_epochs": c.epochs, "local_steps": c.epochs,
        "batch_size": max(c.sizes), "local_learning_rate": c.rate, "num_clients": len(c.sizes),
        "join_ratio": 1.0, "random_join_ratio": False, "few_shot": 0, "algorithm": "",
        "time_select": False, "goal": "", "time_threthold": NEVER, "save_folder_name": "",
        "top_cnt": NEVER, "auto_break": False, "eval_gap": NEVER, "client_drop_rate": 0.0,
        "train_slow_rate": 0.0, "send_slow_rate": 0.0, "dlg_eval": False, "dlg_gap": NEVER,
        "batch_num_per_client": 1, "num_new_clients": 0, "fine_tuning_epoch_new": 0,
        "fine_tuning_epoch": 0, "learning_rate_decay": False, "learning_rate_decay_gamma": 1.0,
        "privacy": False, "dp_sigma": 0.0, **more,
    })


def quiet() -> contextlib.AbstractContextManager[Any]:
    """Swallow what their code prints."""
    return contextlib.redirect_stdout(io.StringIO())


def served(world: World, folder: Path, module: str, name: str, *,
           after: Callable[[Any, ModuleType], None] | None = None,
           prepare: Callable[[Any], None] | None = None, **more: Any) -> Any:
    """Return a server of theirs after the case's rounds.

    Each client's loader gives all its images as one batch; nothing is evaluated or written.

    Args:
        folder: the folder of their ``main.py``.
        module, name: of the server's class.
        after: ``(server, its module)``; is called in their world after the rounds.
        prepare: is called with the server before the first round.
        more: further arguments.
    """
    batches: list[tuple[Tensor, Tensor]] = data(world)
    with repository(folder, *STUBS) as load, quiet():
        given = load("utils.data_utils")
        given.read_client_data = lambda dataset, at, **_: list(zip(*batches[at], strict=True))
        theirs = load(module)
        server = getattr(theirs, name)(
            pfllib_arguments(world, network(world), **more), 0
        )
        for k, client in enumerate(server.clients):
            client.load_train_data = lambda batch_size=None, k=k: [batches[k]]
        server.evaluate = server.evaluate_personalized = lambda *_: None
        server.evaluate_one_step = server.save_results = lambda *_: None
        server.save_global_model = lambda *_: None
        server.avg_generalization_metrics = lambda *_: 0
        server.rs_test_acc = server.rs_test_acc_per = [0.0]
        if prepare:
            prepare(server)
        server.train()
        if after:
            after(server, theirs)
    return server
