"""Where a run comes from: command, versions, git revision, machine, determinism, times.

``manifest.json`` holds the run's identity once and one session per process that worked on it. It
names no host, user or folder: those are in ``private.json`` (``runs.private``).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedvlm.core.repository import PACKAGE
from fedvlm.core.threads import matmul_precision, tf32_allowed
from fedvlm.core.version import __version__
from fedvlm.runs.private import public_command

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
        "command": public_command(argv),
        "started": now(),
        "ended": None,
        "how": "running",
        "from_round": None,
        "versions": dict(versions()),
        "git": git_revision(PACKAGE),
        "machine": machine(),
        "determinism": determinism(),
    }


def end_session(record: dict[str, Any], how: str) -> None:
    """Note when and how (``finished``, ``interrupted``, an error's name) a session ended."""
    record.update(ended=now(), how=how)


def now() -> str:
    """Return the time in UTC, to the second, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@cache
def versions() -> Mapping[str, str | None]:
    """Return Python's version and those of the packages that make the numbers."""
    table: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            table[name] = _version(importlib.metadata.distribution(name))
        except importlib.metadata.PackageNotFoundError:
            table[name] = None
    table["fedvlm"] = __version__  # also in a checkout that is not installed
    return table


def _version(package: importlib.metadata.Distribution) -> str:
    """Return a package's version from the head of its metadata, whose rest is a long text."""
    head = (package.read_text("METADATA") or "").partition("\n\n")[0]
    found = [line[9:].strip() for line in head.splitlines() if line.startswith("Version: ")]
    return found[0] if len(found) == 1 else package.version


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

    top, _, revision = (ask("rev-parse", "--show-toplevel", "HEAD") or "").rpartition("\n")
    if not top or Path(top).resolve() != package.parent:
        return None
    changed = ask("status", "--porcelain", "--untracked-files=no", "--", package.name, "trainers")
    return {"revision": revision, "changed": None if changed is None else bool(changed)}


def machine() -> dict[str, Any]:
    """Return system, processor, cores, memory and devices."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": _torch_threads(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
    }


def determinism() -> dict[str, Any]:
    """Return the settings of PyTorch that bit-equal numbers depend on; empty before it is loaded.

    Returns:
        ``algorithms`` (only deterministic ones), ``cudnn_deterministic``, ``cudnn_benchmark``,
        ``tf32`` (in matrix products), ``cudnn_tf32``, ``matmul_precision``, ``threads``,
        ``interop_threads``, and PyTorch's build: ``torch``, ``cuda``, ``cpu_capability``,
        ``build`` (SHA-256 of its description, 16 digits).
    """
    torch = sys.modules.get("torch")  # not imported for a record's sake
    if torch is None:
        return {}
    cudnn, (products, convolutions) = torch.backends.cudnn, tf32_allowed(torch)
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": bool(cudnn.deterministic), "cudnn_benchmark": bool(cudnn.benchmark),
        "tf32": products, "cudnn_tf32": convolutions, "matmul_precision": matmul_precision(torch),
        "threads": torch.get_num_threads(), "interop_threads": torch.get_num_interop_threads(),
        "torch": str(torch.__version__), "cuda": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
    }


def device_of(identity: Mapping[str, Any]) -> dict[str, str]:
    """Return the device that an identity's run computes on.

    Returns:
        ``type`` (``cpu``, ``cuda`` or ``mps``), and its ``name``: of the processor or of that GPU.
    """
    cuda = identity.get("cuda") or {"name": _processor()}
    return {"type": str(identity.get("device", "cpu")), "name": str(cuda["name"])}


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
