"""How many threads the work gets where nobody says, and what threads do that wait.

OpenMP's threads spin while they wait for the next kernel. Beside other processes that costs more
than the work itself (a demo beside two busy processes on two cores: 24 s of CPU for 4 s of work),
so without a number from the user they sleep.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

#: Backbones whose kernels are too short to be shared among threads.
SMALL = ("tiny",)


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
