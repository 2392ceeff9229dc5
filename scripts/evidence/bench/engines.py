"""``bench engines``: the same run by several engines, and what each of them takes.

Whole commands in processes of their own: a short run and a longer one, so that what a start costs
and what a round costs are known separately. CPU seconds are those of the driver and of all
processes that it ends; memory is the sum of their peaks. ``loopback`` is ``--engine flower`` over a
federation on this machine, which runs meanwhile: what its processes take in a run is that run's.
Checkpoints are written after every round; nothing is evaluated between the ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from evidence.bench import machine
from evidence.bench.machine import Measurements
from fedvlm.config.engines import FLOWER, LOCAL, WORKERS
from fedvlm.console.rows import table_lines
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.repository import PACKAGE
from fedvlm.job.engines.flower import loopback, split_evenly, why_not_installed

SHORT = 1  # rounds of the short run
LOOK = 0.1  # seconds between looks at the processes
AIM = 1.2  # CPU of a round by workers over the local engine's
SHARE = 0.1  # of a start that the rounds have to take, or they cannot be told from its noise
FAILED = " failed: "
LOOPBACK = "loopback"
ALL = (LOCAL, WORKERS, LOOPBACK)
COUNTS = ("cpu", "wall", "memory", "processes", "bytes")


def words_of(
    trainer: str, clients: int, rounds: int, engine: str, workers: int, output: Path,
    federation: Path,
) -> tuple[str, ...]:
    """Return a run's words.

    Args:
        engine: of ``ALL``.
        federation: its folder, for ``LOOPBACK``; it has as many sites as workers.
    """
    more: tuple[str, ...] = ("--engine", engine, "--workers", str(workers))
    if engine == LOOPBACK:
        more = ("--engine", FLOWER, "--federation", str(federation), "FED.SITES",
                split_evenly(clients, workers))
    return (
        "run", "--demo", "--trainer", trainer, "--partition", "iid", "--num-users", str(clients),
        "--rounds", str(rounds), "--local-epochs", "1", "--eval-every", "1000000", "--output-dir",
        str(output), *(more if engine != LOCAL else ()), "--opts", "TEST.REFERENCES", "False",
    )


def measure(
    words: Sequence[str], environ: dict[str, str], output: Path,
    beside: Callable[[], Collection[int]] = lambda: (),
) -> Measurements:
    """Run a command and return what it took (``COUNTS``).

    Args:
        beside: ids of processes that work for it and are not its own.

    Raises:
        FedvlmError: it failed; says what it said last.
    """
    began, peaks, seen = time.perf_counter(), dict[int, int](), dict[int, float]()
    before = {pid: _spent(pid) for pid in beside()}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "fedvlm", *words], env=environ, stdout=said, stderr=said
        )
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            below = _family(process.pid)
            for member in below:
                seen[member] = max(seen.get(member, 0.0), _spent(member, ended=False))
            for member in {*below, *beside()}:
                peaks[member] = max(peaks.get(member, 0), _peak(member))
            time.sleep(LOOK)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            last = said.read().strip().rpartition("\n")[2]
            raise FedvlmError(f"fedvlm {' '.join(words)}{FAILED}{last.removeprefix('error: ')}")
    frames = [json.loads(p.read_text()) for p in output.rglob("frames.json")]
    others = sum(_spent(pid) - before.get(pid, 0.0) for pid in beside())
    # Of processes that nobody waited for, the system tells nothing: what was seen counts.
    ours = max(usage.ru_utime + usage.ru_stime, sum(seen.values()))
    return {
        "cpu": ours + others, "wall": time.perf_counter() - began,
        "memory": sum(peaks.values()), "processes": len(peaks),
        "bytes": sum(sum(told.values()) for told in frames),
    }


def _family(pid: int) -> list[int]:
    """Return a process and those that it began (Linux)."""
    out = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            out += [member for child in task.read_text().split() for member in _family(int(child))]
        except OSError:
            continue
    return out


def _nobody() -> Collection[int]:
    return ()


def _spent(pid: int, ended: bool = True) -> float:
    """Return the CPU seconds of a process; 0 where it is gone.

    Args:
        ended: also those of processes that it began, and that ended.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15 if ended else 13])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def _peak(pid: int) -> int:
    """Return the most memory that a process ever had, in bytes; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0


def run(
    trainer: str = "FedTV", *, clients: int = 40, rounds: int = 4, workers: int = 2,
    repeats: int = 3, threads: int = 1, engines: Sequence[str] = (LOCAL, WORKERS),
    say: Callable[[str], None] = lambda _: None,
) -> Measurements:
    """Measure and return a record of plain JSON values.

    Args:
        trainer: the method.
        rounds: by which the longer run is longer.
        repeats: pairs of runs of each engine, in turn; medians count.
        threads: of every process.
        engines: of ``ALL``; one that is not installed is named and skipped.

    Raises:
        ConfigError: a number below 1, or nothing is left to measure.
        FedvlmError: no run of any engine came to its end.
    """
    numbers = {"clients": clients, "rounds": rounds, "workers": workers, "repeats": repeats,
               "threads": threads}
    machine.refuse_below_one(**numbers)
    skipped = _lacking(engines)
    engines = [name for name in engines if name not in skipped]
    if not engines:
        raise ConfigError("; ".join(skipped.values()))
    took: dict[str, dict[int, list[Measurements]]] = {name: {} for name in engines}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        federation, beside = place / "federation", _nobody
        if LOOPBACK in engines:
            say("the federation")
            beside = stack.enter_context(loopback(federation, workers, say))
        environ = os.environ | {
            "OMP_NUM_THREADS": str(threads), "FEDVLM_CACHE": str(place / "cache"),
            "PYTHONPATH": os.pathsep.join(
                [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
        say("the features")
        measure(words_of(trainer, clients, SHORT, LOCAL, workers, place / "warm", federation),
                environ, place / "warm")
        for turn in range(repeats):
            for engine, length in product(engines, (SHORT, SHORT + rounds)):
                if engine in failed:
                    continue
                say(f"{engine}, {length} round(s), {turn + 1} of {repeats}")
                output = place / f"{engine}{length}-{turn}"
                words = words_of(trainer, clients, length, engine, workers, output, federation)
                try:
                    took[engine].setdefault(length, []).append(measure(
                        words, environ, output, beside if engine == LOOPBACK else _nobody))
                except FedvlmError as error:  # the others are measured all the same
                    failed[engine] = str(error).partition(FAILED)[2] or str(error)
                    say(f"{engine} has no row: {failed[engine]}")
                    continue
                if length > SHORT:  # on the screen, whatever becomes of the others
                    say(_so_far(engine, _engine(took[engine], rounds), turn + 1))
    if len(failed) == len(engines):
        raise FedvlmError("; ".join(failed.values()))
    each = {name: _engine(took[name], rounds) for name in engines if name not in failed}
    both = LOCAL in each and WORKERS in each
    return {
        "setting": {"trainer": trainer, **numbers}, "engines": each, "skipped": skipped,
        "failed": failed,
        "ratio": each[WORKERS]["cpu_round"] / max(each[LOCAL]["cpu_round"], 1e-9) if both else None,
        "aim": AIM, "load": {"after": machine.load(), "cores": machine.cores()},
    }


def _lacking(engines: Sequence[str]) -> dict[str, str]:
    """Return for engines that cannot run here what they lack."""
    told = {name: why_not_installed() for name in engines if name == LOOPBACK}
    return {name: why for name, why in told.items() if why}


def _engine(runs: dict[int, list[Measurements]], rounds: int) -> Measurements:
    """Return what an engine takes to start, in a round, and in memory."""
    short, long_ = (
        {name: median(one[name] for one in runs[length]) for name in COUNTS}
        for length in (SHORT, SHORT + rounds)
    )
    each: dict[str, Any] = {n: (long_[n] - short[n]) / rounds for n in ("cpu", "wall", "bytes")}
    return {
        "cpu_start": short["cpu"] - SHORT * each["cpu"],
        "wall_start": short["wall"] - SHORT * each["wall"],
        "cpu_round": each["cpu"], "wall_round": each["wall"], "bytes_round": each["bytes"],
        "memory": long_["memory"], "processes": long_["processes"],
    }


def lines(record: Measurements) -> list[str]:
    """Return the report."""
    s, load, engines = record["setting"], record["load"], record["engines"]
    ratio = record["ratio"]
    faint = [name for name, e in engines.items()
             if s["rounds"] * e["cpu_round"] < SHARE * e["cpu_start"]]
    verdict = [] if ratio is None else [
        f"a round by workers takes {ratio:.2f} times the CPU of a local one, "
        f"{'within' if ratio <= record['aim'] else 'above'} the aim of {record['aim']:g}"]
    if faint:
        verdict = [f"{s['rounds']} rounds of {', '.join(faint)} take less than {SHARE:.0%} of a "
                   "start, so what a round takes is mostly noise: more --rounds, or --clients"]
    local = engines.get(LOCAL, {}).get("cpu_round", 0.0)
    return [
        f"{s['trainer']}, {s['clients']} clients, {s['rounds']} rounds, {s['workers']} workers of "
        f"{s['threads']} thread(s); medians of {s['repeats']}; load average {load['after']:.1f} on "
        f"{load['cores']} core(s)",
        *table_lines([_row(name, engine, local) for name, engine in engines.items()]),
        *(f"{name} is skipped: {why}" for name, why in record["skipped"].items()),
        *(f"{name} has no row: {why}" for name, why in record["failed"].items()),
        *verdict,
        "a round without its evaluation; x local: CPU of a round over that of local, which other "
        "work on the machine moves least; start: what a run takes beside its rounds; memory: sum "
        "of the peaks of its processes; frames: bytes both ways in a round",
    ]


def _so_far(name: str, e: Measurements, turns: int) -> str:
    """Return an engine's row on one line, while others are still to be measured."""
    cells = [(what, value) for what, value in _row(name, e, 0.0).items() if what != "engine"]
    told = ", ".join(f"{what} {value}" for what, value in cells if value != "-")
    return f"{name}, median of {turns}: {told}"


def _row(name: str, e: Measurements, local: float) -> dict[str, object]:
    return {
        "engine": name, "CPU s/round": f"{e['cpu_round']:.3f}",
        "x local": f"{e['cpu_round'] / local:.2f}" if local > 0 else "-",
        "wall s/round": f"{e['wall_round']:.3f}", "start CPU s": f"{e['cpu_start']:.1f}",
        "start wall s": f"{e['wall_start']:.1f}", "processes": f"{e['processes']:.0f}",
        "memory": f"{e['memory'] / 2**20:.0f} MiB",
        "frames": f"{e['bytes_round'] / 2**20:.2f} MiB" if e["bytes_round"] else "-",
    }
