"""Every trainer under one protocol, on the embedded tiny backbone, in one table per data set.

python scripts/compare_methods.py --rounds 10 --seeds 1 2 3 --markdown table.md

A cell is (data set, method, seed): one run of the command line, in this process, in a folder of its
own. A cell with a ``results.json`` is done and skipped; a cell that fails is reported and the rest
goes on. Rounds, epochs, batch, views and partition are the same for all methods; everything else is
what ``configs/trainers`` declares. The one variant is ``FedAvg+FT``, FedAvg with the final
fine-tuning that FedBABU declares (5 epochs at ``OPTIM.LR``, of all trained tensors).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from fedvlm import cli  # noqa: E402
from fedvlm.errors import ConfigError, did_you_mean, fold  # noqa: E402
from fedvlm.federation.discovery import load_trainer, trainer_files  # noqa: E402

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
COMMON = ("--backbone", "tiny", "--local-epochs", "2", "--batch-size", "32", "--views", "1",
          "--shots", "16", "--frac", "1.0", "--eval-every", "1000000")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "FedAvg+FT": ("--trainer", "FedAvg", "--finetune-epochs", "5"),
}
KEYS = {  # column -> number of results.json's last round
    "personal": "personal", "before FT": "personal_before_ft", "worst client": "personal_worst",
    "global": "global", "base_all": "base_all", "new": "new",
}
NAME, SEEDS, BYTES, SECONDS = "trainer", "n", "kB/client-round", "s/round"


@dataclass(frozen=True)
class Setting:
    """A data set with its partition; ``flags`` are those of the command line."""

    title: str
    flags: tuple[str, ...]
    on_disk: bool = False


SETTINGS: Mapping[str, Setting] = {
    "eurosat": Setting(
        "EuroSAT, Dirichlet 0.3, 10 clients",
        ("--dataset", "eurosat", "--partition", "dirichlet", "--beta", "0.3", "--num-users", "10"),
        on_disk=True,
    ),
    "caltech101": Setting(
        "Caltech101, 50 base classes, disjoint classes, 10 clients",
        ("--dataset", "caltech101", "--subsample-classes", "base", "--partition", "disjoint",
         "--num-users", "10"),
        on_disk=True,
    ),
    "digits": Setting(
        "Digits (built in), Dirichlet 0.3, 8 clients",
        ("--dataset", "digits", "--partition", "dirichlet", "--beta", "0.3", "--num-users", "8"),
    ),
    "shapes": Setting(
        "Shapes (built in), 10 base classes, disjoint classes, 5 clients",
        ("--dataset", "shapes", "--subsample-classes", "base", "--partition", "disjoint",
         "--num-users", "5"),
    ),
}


@dataclass(frozen=True)
class Cell:
    """One run: where it lies and the words that start it."""

    dataset: str
    method: str
    seed: int
    folder: Path
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dataset} {self.method} seed {self.seed}"

    def result(self) -> dict[str, Any] | None:
        """Return the contents of ``results.json``; None while the run is not finished."""
        found = sorted(self.folder.rglob("results.json"))
        return json.loads(found[-1].read_text("utf-8")) if found else None

    def run(self) -> str:
        """Run it through the command line; return "" or one sentence on what went wrong."""
        self.folder.mkdir(parents=True, exist_ok=True)
        screen = self.folder / "screen.txt"
        with (
            screen.open("w", encoding="utf-8") as out,
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(out),
        ):
            code = cli.main(list(self.words))
        if code == 130:
            raise KeyboardInterrupt
        lines = screen.read_text("utf-8").strip().splitlines()
        return f"exit code {code}: {lines[-1] if lines else ''}" if code else ""


def methods(wanted: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """Return name -> flags of the methods to run; all trainers and variants by default.

    Raises:
        ConfigError: no such method.
    """
    known: dict[str, tuple[str, ...]] = {}
    for name in (load_trainer(stem).name for stem in trainer_files()):
        known[name] = ("--trainer", name)
        known |= {v: flags for v, flags in VARIANTS.items() if flags[1] == name}
    if not wanted:
        return known
    by_fold = {fold(name): name for name in known}
    for word in wanted:
        if fold(word) not in by_fold:
            raise ConfigError(f"unknown method '{word}'{did_you_mean(word, known)}")
    return {by_fold[fold(word)]: known[by_fold[fold(word)]] for word in wanted}


def cells(args: argparse.Namespace) -> Iterator[Cell]:
    """Yield what the options ask for, seed by seed: a stop leaves all methods alike."""
    wanted = methods(args.trainers)
    for seed in args.seeds:
        for dataset in args.datasets:
            setting = SETTINGS[dataset]
            root = ("--root", str(args.root)) if setting.on_disk else ()
            for method, flags in wanted.items():
                folder = args.output_dir / f"rounds{args.rounds}" / dataset / method / f"s{seed}"
                words = (
                    "run", *root, *setting.flags, *flags, *COMMON, "--rounds", str(args.rounds),
                    "--seed", str(seed), "--data-seed", str(seed), "--output-dir", str(folder),
                )
                yield Cell(dataset, method, seed, folder, words)


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return a finished run's columns; those that it lacks are left out."""
    last, info = result["results"]["last"], result["run_info"]
    found = {c: last[k] for c, k in KEYS.items() if last.get(k) is not None}
    rounds, clients = int(last["round"]), len(last["clients"])
    found[BYTES] = (info["bytes_up"] + info["bytes_down"]) / (rounds * clients) / 1000
    found[SECONDS] = info["seconds_rounds"] / rounds
    return found


def spread(values: Sequence[float]) -> str:
    """Return mean ± sample standard deviation (n - 1); of one value, the value."""
    if not values:
        return "-"
    if any(not math.isfinite(v) for v in values):
        return "not finite"
    mean = f"{statistics.fmean(values):.1f}"
    return mean + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def row(label: str, runs: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a line of the table over seeds."""
    columns = {c: [r[c] for r in runs if c in r] for c in (*KEYS, BYTES, SECONDS)}
    shown = [spread(columns[c]) for c in KEYS]
    traffic, seconds = columns[BYTES], columns[SECONDS]
    return [
        label, str(len(runs)), *shown, spread(sorted(set(traffic))) if traffic else "-",
        f"{statistics.fmean(seconds):.2f}" if seconds else "-",
    ]


def table(dataset: str, done: Sequence[tuple[Cell, Mapping[str, Any]]]) -> list[str]:
    """Return a data set's table in markdown; ``done`` holds its finished cells."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for cell, result in done:
        by_method.setdefault(cell.method, []).append(result)
    body = [row(method, [numbers(r) for r in runs]) for method, runs in by_method.items()]
    head = [NAME, SEEDS, *KEYS, BYTES, SECONDS]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = [head, ["-" * w for w in widths], *body]
    return [f"## {SETTINGS[dataset].title}", ""] + [
        "| " + " | ".join(v.ljust(w) for v, w in zip(line, widths)) + " |" for line in lines
    ]


def tables(todo: Sequence[Cell], failures: Mapping[Cell, str]) -> list[str]:
    """Return all tables, then what failed and what is missing."""
    found = [(cell, result) for cell in todo if (result := cell.result()) is not None]
    lines: list[str] = []
    for dataset in dict.fromkeys(cell.dataset for cell in todo):
        lines += [*table(dataset, [d for d in found if d[0].dataset == dataset]), ""]
    finished = {cell for cell, _ in found}
    lines += [f"- failed: {cell}: {why}" for cell, why in failures.items()]
    return lines + [
        f"- missing: {cell}" for cell in todo if cell not in finished and cell not in failures
    ]


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--datasets", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--trainers", nargs="+", help="method names; all by default")
    parser.add_argument("--root", type=Path, default=DATA, help="folder of eurosat and caltech-101")
    parser.add_argument("--output-dir", type=Path, default=Path("output/compare"))
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    parser.add_argument("--dry", action="store_true", help="list the cells, run nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, print the tables; 1 if a cell failed."""
    args = options(words)
    todo, failures = list(cells(args)), {}
    for i, cell in enumerate(todo, 1):
        done = cell.result() is not None
        if args.dry or done:
            print(f"{'done' if done else 'to do'}  {cell}", flush=True)
            continue
        began = time.perf_counter()
        why = cell.run()
        if why:
            failures[cell] = why
        seconds = time.perf_counter() - began
        print(f"{i}/{len(todo)} {cell}: {why or 'done'} ({seconds:.1f} s)", flush=True)
    if args.dry:
        return 0
    lines = tables(todo, failures)
    print("\n".join(["", *lines]))
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on")
