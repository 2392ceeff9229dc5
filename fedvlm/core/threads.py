"""How a process computes: threads where nobody says, those that wait, memory, TF32.

OpenMP's threads spin while they wait for the next kernel. Beside other processes that costs more
than the work itself (a demo beside two busy processes on two cores: 24 s of CPU for 4 s of work),
so without a number from the user they sleep.

The C library of Linux gives large freed tensors back to the system and gets new ones page by page,
each filled with zeros: 16 of 41 CPU seconds to encode 800 images (``docs/speed.md``). A process
that computes on the CPU keeps them for its next tensors.

Every operation of PyTorch has a word for float32 (``fp32_precision``), which decides. The older
switches (``allow_tf32``) set some of the words, and cannot be read where the words say what no
switch does. ``torch`` is given by the caller: a record is made without importing it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

#: Backbones whose kernels are too short to be shared among threads.
SMALL = ("tiny",)
#: In bytes: what is freed below it is kept. The largest number that ``mallopt`` takes, and the
#: largest of a glibc that has a bound for it (half of the largest heap of a thread, 64 bit).
LARGEST, BOUNDED = 2**31 - 1, 2**25
_TF32, _EXACT = "tf32", "ieee"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's malloc.h


def given_threads(environ: Mapping[str, str]) -> int | None:
    """Return the user's ``OMP_NUM_THREADS``; None where it is not there, or no number."""
    word = environ.get("OMP_NUM_THREADS", "")
    return int(word) if word.isascii() and word.isdigit() and int(word) > 0 else None


def sleep_while_waiting(environ: MutableMapping[str, str]) -> None:
    """Let threads that wait sleep, unless the user chose their number or how they wait.

    Works before the first import of PyTorch only.
    """
    if given_threads(environ) is None:
        environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        environ.setdefault("KMP_BLOCKTIME", "0")  # the same for Intel's and LLVM's OpenMP


def keep_freed_memory(environ: Mapping[str, str]) -> int:
    """Keep what tensors free for the next ones, unless the user sets the C library's memory.

    Resident memory then stays at its peak until the process ends. Return the bytes below which a
    tensor is kept; 0 where nothing was changed: glibc alone knows the two limits (``mallopt(3)``).
    To set only the limit of trimming would end glibc's own adjustment of the other one.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")) for name in environ):
        return 0
    try:
        ask = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return 0
    kept = next((size for size in (LARGEST, BOUNDED) if ask(_MMAP_THRESHOLD, size) == 1), 0)
    if kept:
        ask(_TRIM_THRESHOLD, LARGEST)
    return kept


def begin_peak() -> None:
    """Begin a new peak of resident memory, where the system can (Linux).

    What is garbage, and what freed tensors kept (``keep_freed_memory``), goes back first: it is not
    of what comes now.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """Return the peak of resident memory since ``begin_peak``, elsewhere of the process, MiB."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource  # optional: no such module on Windows

    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def usual_threads(
    backbones: set[str], environ: Mapping[str, str], cores: int, jobs: int = 1
) -> int:
    """Return the threads of a process: the user's number, else by the work and the cores.

    Args:
        backbones: of the runs that it does.
        cores: shared by ``jobs`` such processes.
    """
    number = given_threads(environ)
    if number is not None:
        return number
    return 1 if backbones and backbones <= set(SMALL) else max(1, cores // jobs)


def tf32_allowed(torch: Any) -> tuple[bool, bool]:
    """Return whether matrix products, and whether cuDNN's operations, may take TF32."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    words = (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision)
    return products.fp32_precision == _TF32, _TF32 in words


def forbid_tf32(torch: Any) -> None:
    """Compute float32 as float32 on a GPU, whichever switch said otherwise."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    torch.set_float32_matmul_precision("highest")
    products.allow_tf32 = cudnn.allow_tf32 = False
    for operation in (products, cudnn.conv, cudnn.rnn):
        operation.fp32_precision = _EXACT


def matmul_precision(torch: Any) -> str:
    """Return the precision of matrix products: ``highest``, ``high``, ``medium``, or a new word."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # the words say what no switch does
        return str(torch.backends.cuda.matmul.fp32_precision)
