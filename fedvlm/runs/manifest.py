"""Where a run comes from: command, versions, git revision, machine, times.

``manifest.json`` holds the run's identity once and one session per process that worked on it.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedvlm.core.repository import PACKAGE
from fedvlm.core.version import __version__

PACKAGES = (
    "fedvlm", "torch", "torchvision", "open_clip_torch", "transformers", "peft", "safetensors",
    "numpy", "yacs", "pillow",
)
#: What has to stay the same between sessions for bit-equal numbers.
_SAME = ("versions", "machine", "git")


def session(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Describe this process; ``ended`` is filled in by ``end_session``.

    Args:
        argv: the command line, ``sys.argv`` by default.
    """
    argv = list(sys.argv if argv is None else argv)
    return {
        "command": shlex.join(argv),
        "folder": os.getcwd(),
        "pid": os.getpid(),
        "started": now(),
        "ended": None,
        "how": "running",
        "from_round": None,
        "versions": versions(),
        "git": git_revision(PACKAGE),
        "machine": machine(),
    }


def end_session(record: dict[str, Any], how: str) -> None:
    """Note when and how (``finished``, ``interrupted``, an error's name) a session ended."""
    record.update(ended=now(), how=how)


def now() -> str:
    """Return the time in UTC, to the second, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def versions() -> dict[str, str | None]:
    """Return Python's version and those of the packages that make the numbers."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str | None]:
    table: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            table[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            table[name] = None
    table["fedvlm"] = __version__  # also in a checkout that is not installed
    return table


def git_revision(package: Path) -> dict[str, Any] | None:
    """Return revision and dirtiness of the checkout that ``package`` is the top folder of.

    None without git, and for an installed copy: a repository further up is not ours.
    """
    def ask(*words: str) -> str | None:
        command = ["git", "-C", str(package.parent), *words]
        try:
            process = subprocess.run(  # noqa: S603 (fixed words, no shell)
                command, capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return process.stdout.strip()

    top = ask("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != package.parent:
        return None
    revision = ask("rev-parse", "HEAD")
    if revision is None:
        return None
    changed = ask("status", "--porcelain", "--untracked-files=no", "--", package.name, "trainers")
    return {"revision": revision, "changed": None if changed is None else bool(changed)}


def machine() -> dict[str, Any]:
    """Return host, system, processor, cores, memory and devices."""
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": _torch_threads(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
    }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Say what differs between two sessions that bit-equal numbers depend on."""
    lines = []
    for part in _SAME:
        old, new = before.get(part) or {}, after.get(part) or {}
        if part == "machine":
            old, new = ({k: v for k, v in m.items() if k not in ("host", "memory_gib")}
                        for m in (old, new))
        lines += [f"{part}.{key}: {old.get(key)} -> {new.get(key)}"
                  for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    return lines


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _torch_threads() -> int | None:
    torch = sys.modules.get("torch")  # not imported for a record's sake
    return torch.get_num_threads() if torch is not None else None


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
