"""Threads where nobody says how many: by the work, by the cores, asleep while they wait."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedvlm.core import threads
from fedvlm.core.threads import keep_freed_memory, sleep_while_waiting, usual_threads
from fedvlm.job import run as job_run
from tests import jobs

LARGE = {"ViT-B/16"}


def test_threads_follow_the_environment_then_the_cores() -> None:
    assert usual_threads(LARGE, {"OMP_NUM_THREADS": "3"}, 16, 2) == 3
    assert usual_threads(LARGE, {}, 16, 2) == 8
    assert usual_threads(LARGE, {"OMP_NUM_THREADS": "x"}, 16, 32) == 1


def test_small_work_takes_one_thread_unless_the_user_says_more() -> None:
    assert usual_threads({"tiny"}, {}, 16) == 1
    assert usual_threads({"tiny"}, {"OMP_NUM_THREADS": "4"}, 16) == 4
    assert usual_threads({"tiny"} | LARGE, {}, 16) == 16


def test_waiting_threads_sleep_unless_the_user_says_otherwise() -> None:
    environ: dict[str, str] = {}
    sleep_while_waiting(environ)
    assert environ == {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    for environ in ({"OMP_NUM_THREADS": "2"}, {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "9"}):
        before = dict(environ)
        sleep_while_waiting(environ)
        assert environ == before


FAULTS = """
import ctypes, resource
from fedvlm.core.threads import LARGEST, keep_freed_memory
told = [keep_freed_memory({name: "1"}) for name in ("MALLOC_ARENA_MAX", "LD_PRELOAD", "PATH")]
library, size = ctypes.CDLL(None), 4096 * 15_625
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def use():
    place = library.malloc(ctypes.c_size_t(size))
    ctypes.memset(place, 1, size)
    library.free(place)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
print(*told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="limits of glibc")
def test_freed_memory_is_kept_for_the_next_tensor() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True,
                          check=True, cwd=jobs.REPOSITORY)
    *told, faults = map(int, done.stdout.split())
    assert told[:2] == [0, 0] and told[2] >= threads.BOUNDED
    if told[2] < threads.LARGEST:
        pytest.skip("this glibc bounds what it keeps")
    assert faults < 1_000  # 62,500 without


PEAKS = """
from fedvlm.core.threads import begin_peak, keep_freed_memory, peak_mib
keep_freed_memory({})
begin_peak()
start = peak_mib()
for _ in range(4):  # freed, and kept by the C library
    block = bytearray(256 << 20)
    del block
high = peak_mib()
begin_peak()
print(start, high, peak_mib())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not os.access("/proc/self/clear_refs", os.W_OK),
    reason="the peak of Linux, limits of glibc")
def test_a_new_peak_forgets_what_came_before() -> None:
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True,
                          check=True, cwd=jobs.REPOSITORY)
    start, high, after = map(float, done.stdout.split())
    assert start + 250 < high < start + 300
    assert after < start + 10


@pytest.mark.parametrize(("most", "kept"), [(2**31, 2**31 - 1), (2**25, 2**25), (0, 0)])
def test_a_library_with_a_bound_keeps_what_it_can_or_is_left_as_it_is(
    most: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, int]]()

    def mallopt(limit: int, size: int) -> int:
        asked.append((limit, size))
        return int(limit == -1 or size <= most)

    library = SimpleNamespace(mallopt=mallopt)
    monkeypatch.setattr(threads, "ctypes", SimpleNamespace(CDLL=lambda name: library))
    assert keep_freed_memory({}) == kept
    assert [limit for limit, _ in asked].count(-1) == (kept > 0) and asked[0][0] == -3


@pytest.mark.parametrize(("number", "threads"), [("", 1), ("2", 2)])
def test_a_run_of_the_tiny_backbone_takes_one_thread(
    number: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        job_run, "prepare_run", lambda *a, **k: seen.append(torch.get_num_threads())
    )
    monkeypatch.setenv("OMP_NUM_THREADS", number)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert jobs.run(tmp_path) == 1  # what that build returns is no run
        assert seen == [threads] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
