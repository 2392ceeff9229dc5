"""The ``RUNNING`` lock: one living process per folder, dead ones do not block."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.runs import lock as run_lock


def test_second_process_is_refused_by_pid_then_stale_lock_is_taken_over(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fedvlm.runs import lock as run_lock\n"
        "lock = run_lock.acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"process {child.pid} on"):
            run_lock.acquire(tmp_path)
    finally:
        child.kill()
        child.communicate()
    lock = run_lock.acquire(tmp_path)
    assert len(lock.notes) == 1 and str(child.pid) in lock.notes[0]
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def owner(**change: Any) -> str:
    return json.dumps(run_lock._self() | change)


def test_content_decides_where_the_system_lock_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "RUNNING"
    path.write_text(owner())  # alive, but nobody holds the flock
    with pytest.raises(ConfigError, match=str(os.getpid())):
        run_lock.acquire(tmp_path)
    for stale in (owner(started=1), owner(pid=2**22 + 1), owner(pid=-1), "", "garbage", "[]",
                  owner(host="elsewhere")):
        path.write_text(stale)
        run_lock.acquire(tmp_path).release()
        assert not path.exists()


def test_other_host_is_refused_without_system_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "no locks on this file system")

    monkeypatch.setattr(fcntl, "flock", flock)
    with monkeypatch.context() as elsewhere, pytest.warns(UserWarning, match="flock"):
        elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
        lock = run_lock.acquire(tmp_path)
    with pytest.warns(UserWarning, match="flock"), \
            pytest.raises(ConfigError, match=r"on elsewhere .*delete"):
        run_lock.acquire(tmp_path)
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_forked_child_of_a_dead_owner_does_not_block(tmp_path: Path) -> None:
    """A data-loader worker outlives its killed parent and keeps the flock for a while."""
    ready, done = os.pipe(), os.pipe()
    parent = os.fork()
    if parent == 0:
        run_lock.acquire(tmp_path)
        if os.fork() == 0:  # the worker
            os.write(ready[1], b"x")
            os.close(done[1])
            os.read(done[0], 1)
            os._exit(0)
        os.read(done[0], 1)
        os._exit(0)
    os.close(done[0])
    os.read(ready[0], 1)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    lock = run_lock.acquire(tmp_path)
    lock.release()
    os.close(done[1])
    for handle in ready:
        os.close(handle)
