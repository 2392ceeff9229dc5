"""What a file of tests leaves behind in its process: nothing that the next file could meet.

CI shares the files out between two processes as they finish, so that their order is another one
each time. A test that relies on what another file left fails in some orders only; the file that
left it fails here in each.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

OURS = ("fedvlm", "trainers")
ABSENT = "absent"
ONCE = {"load_backbone", "load_for_training"}  # of two modules: ``tests/once.py`` wraps them
WATCHED = tuple(f"os.environ['{name}" for name in ("CUDA", "FEDVLM", "HF_", "OMP_", "PYTHON"))
UNTOUCHED = {"PYTEST_CURRENT_TEST", "COLUMNS", "LINES"}  # pytest's own


def state() -> dict[str, Any]:
    """What files of tests share: the environment, PyTorch's switches, our modules' own names."""
    mask = os.umask(0)
    os.umask(mask)
    shared: dict[str, Any] = {
        "os.getcwd()": os.getcwd(),
        "os.umask": mask,
        "sys.path": tuple(sys.path),
        "gc.isenabled()": gc.isenabled(),
        "hidden from the collector": hidden(),
        "logging's level": logging.getLogger().level,
        "logging's handlers": tuple(map(id, logging.getLogger().handlers)),
    }
    shared |= {f"os.environ['{name}']": value for name, value in os.environ.items()
               if name not in UNTOUCHED}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        shared[f"signal.{name}"] = signal.getsignal(getattr(signal, name))
    return shared | switches() | dict(names())


def hidden() -> bool:
    """Whether anything is hidden from the garbage collector, as the collected suite is."""
    count = gc.get_freeze_count
    return bool(getattr(count, "real", count)())


def switches() -> dict[str, Any]:
    """PyTorch's, where it is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "torch's threads": torch.get_num_threads(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's gradients": torch.is_grad_enabled(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's TF32 of matmul": torch.backends.cuda.matmul.allow_tf32,
        "torch's TF32 of cuDNN": torch.backends.cudnn.allow_tf32,
    }


def names() -> Iterator[tuple[str, Any]]:
    """Yield what each name of our modules stands for: functions, classes, modules, constants.

    Names with an underscore before them may be a cache; only their functions and classes count.
    """
    for module in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        found = sys.modules[module]
        if not isinstance(found, ModuleType):
            continue
        yield module, id(found)
        for name, value in vars(found).items():
            if (not name.startswith("_") or callable(value)) and name not in ONCE:
                yield f"{module}.{name}", id(value)


def unchanged(file: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Pass where ``after`` has what ``before`` had, and no variable that is new and read by us.

    Libraries set some of their own when they are first loaded.

    Raises:
        AssertionError: it does not; with the file's name and the first nine differences.
    """
    left = [name for name, value in before.items() if after.get(name, ABSENT) != value]
    left += [name for name in after if name.startswith(WATCHED) and name not in before]
    assert not left, f"{file} leaves changed: {', '.join(left[:9])}"
