"""A stop is Ctrl-C whatever its signal: finished rounds are saved, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedvlm.core import files, signals
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.federation.rounds import RoundStarted
from fedvlm.job.record import Recorder
from tests import jobs

WORDS = ("--trainer", "LG-FedAvg", "--rounds", "5", "--num-users", "4", "TRAIN.CHECKPOINT_FREQ",
         "3", "TRAINER.LG-FEDAVG.WARMUP_ROUNDS", "1", "FED.FRAC", "0.5")
STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """Handlers as the command has them, taken back afterwards."""
    before = {s: signal.getsignal(s) for s in (*signals.STOPS, signals.SAVE)}
    signals.install_handlers()
    yield
    files.on_write_point = None
    signals.save_asked()
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed")
    assert jobs.run(output, *WORDS) == 0
    return output


def at_round(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call ``act`` whenever a round begins."""
    call = Recorder.__call__

    def hook(self: Recorder, event: object) -> None:
        call(self, event)  # type: ignore[arg-type]
        if isinstance(event, RoundStarted):
            act(event.round)

    monkeypatch.setattr(Recorder, "__call__", hook)


def rounds_saved(output: Path) -> list[int]:
    found = jobs.folder(output).glob("state/round_*.json")
    return sorted(int(p.stem.removeprefix("round_")) for p in found)


def told(output: Path) -> str:
    return json.loads((jobs.folder(output) / "manifest.json").read_text())["sessions"][-1]["how"]


@pytest.mark.parametrize(("signum", "store"), [
    (signal.SIGINT, "memory"), (signal.SIGTERM, "disk"),
    *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        (signal.SIGHUP, "memory"), (signal.SIGINT, "disk"), (signal.SIGTERM, "memory"),
        (signal.SIGHUP, "disk"),
    )),
])
def test_a_stop_saves_the_last_whole_round(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], signum: signal.Signals, store: str,
) -> None:
    """Round 2 is in no checkpoint of every third round; after the stop it is."""
    words = (*WORDS, "FED.STORE", store)
    with monkeypatch.context() as patch:
        at_round(patch, lambda round_: os.kill(os.getpid(), signum) if round_ == 3 else None)
        assert jobs.run(tmp_path, *words) == STOPS[signum]
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("interrupted: finished rounds are saved in ")
    assert rounds_saved(tmp_path)[-1] == 2 and told(tmp_path) == "interrupted"
    assert not (jobs.folder(tmp_path) / "RUNNING").exists()
    assert jobs.run(tmp_path, *words) == 0
    assert "resuming after round 2" in capsys.readouterr().out
    jobs.same(undisturbed, tmp_path)


def test_a_stop_in_the_middle_of_a_round(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the clients of round 3 have worked; nothing of it is kept."""
    put = MemoryStore.put

    def hook(self: MemoryStore, round_: int, *rest: object) -> None:
        put(self, round_, *rest)  # type: ignore[arg-type]
        if round_ == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "put", hook)
        assert jobs.run(tmp_path, *WORDS) == 143
    assert rounds_saved(tmp_path)[-1] == 2
    assert jobs.run(tmp_path, *WORDS) == 0
    jobs.same(undisturbed, tmp_path)


@pytest.mark.parametrize(
    "name", ["r000003.safetensors", "round_0003.safetensors", "round_0003.json"]
)
def test_a_stop_waits_for_a_checkpoint_in_the_writing(
    undisturbed: Path, tmp_path: Path, name: str
) -> None:
    sent: list[str] = []

    def hook(point: str) -> None:
        if name in point and not sent:
            sent.append(point)
            os.kill(os.getpid(), signal.SIGTERM)

    files.on_write_point = hook
    assert jobs.run(tmp_path, *WORDS) == 143 and sent
    files.on_write_point = None
    assert rounds_saved(tmp_path)[-1] == 3
    assert jobs.run(tmp_path, *WORDS) == 0
    jobs.same(undisturbed, tmp_path)


def test_sigusr1_saves_after_the_round(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved: dict[int, list[int]] = {}

    def act(round_: int) -> None:
        saved[round_] = rounds_saved(tmp_path)
        if round_ == 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    at_round(monkeypatch, act)
    assert jobs.run(tmp_path, *WORDS) == 0
    assert saved[1] == [0] and saved[2][-1] == 1 and saved[3][-1] == 1
    assert capsys.readouterr().out.count("saved after round 1 (SIGUSR1)") == 1
    jobs.same(undisturbed, tmp_path)


def test_the_command_itself(tmp_path: Path) -> None:
    """``python -m fedvlm`` listens from its start, and leaves what nohup set alone."""
    words = [sys.executable, "-m", "fedvlm", *jobs.argv(tmp_path, "--rounds", "400")]
    run = subprocess.Popen(
        words, cwd=jobs.REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN) and None,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("round_*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    run.send_signal(signal.SIGHUP)
    run.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 143 and "finished rounds are saved" in said
    assert told(tmp_path) == "interrupted" and not list(tmp_path.rglob("RUNNING"))
