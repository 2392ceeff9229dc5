"""Numbers of runs as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.report.collect import collect, no_runs, run_folders
from fedvlm.runs.metrics import read_chain, read_metrics

if TYPE_CHECKING:
    import pandas

CLIENT = "clients"  # of a round's record: rows per client


def frame(rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> pandas.DataFrame:
    """Return rows, or columns, as a DataFrame.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        import pandas  # optional: fedvlm[pandas]
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise ConfigError(
            "DataFrames need pandas: pip install 'fedvlm[pandas]' (or pip install pandas)"
        ) from None
    return pandas.DataFrame(rows)


def metrics(path: Path) -> pandas.DataFrame:
    """Return a row per round of a run folder: its plain numbers (``metrics.jsonl``).

    Mappings become columns with a dot (``counters.steps``); what is told by client is left out:
    ``clients`` has it.

    Raises:
        DataError: the file is damaged.
    """
    return frame([_plain(record) for record in _rounds(path)])


def clients(path: Path) -> pandas.DataFrame:
    """Return a row per evaluated round and client: ``round``, ``client``, ``accuracy``, ..."""
    return frame([
        {"round": record["round"]}
        | {k: v for k, v in row.items() if not isinstance(v, dict | list)}
        for record in _rounds(path) for row in record.get(CLIENT, ())
    ])


def results(folder: str | Path = "output") -> pandas.DataFrame:
    """Return a row per finished run at or below a folder: its path, protocol and last numbers.

    A pack of runs, or a folder of packs (``docs/results/cells``), stands for what it holds.
    Columns: ``run``, ``method``, ``seal`` (``unsealed``: made before runs were sealed), what a
    table must not mix (``dataset``, ``shots``, ``partition``, ``seed``, ...) and the metrics of the
    last round by name. Damaged runs are left out; they are in ``attrs["problems"]``, one message
    each.

    Raises:
        DataError: no such folder, or no finished run below it.
        ConfigError: pandas is not installed.
    """
    folders = run_folders([str(folder)])
    found = collect(folders)
    if not found.runs:
        raise no_runs(folders, found)
    rows = []
    for run in found.runs:
        last = {k: v for k, v in run.last.items() if isinstance(v, int | float | None)}
        about = {"run": str(run.path), "method": run.method, "seal": run.seal}
        rows.append(about | dict(run.protocol) | last)
    table = frame(rows)
    table.attrs["problems"] = found.problems
    return table


def _rounds(path: Path) -> list[dict[str, Any]]:
    """Return the records of a run's rounds; the last line of one that was killed may be cut."""
    file = path / "metrics.jsonl"
    broken = read_chain(file).broken
    if broken:
        raise DataError(f"'{file}': {broken}; fedvlm verify {path} checks the whole run")
    return read_metrics(file)[0]


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers and words by dotted name; lists and what is told by client are left out."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            if not all(str(k).isdigit() for k in value):
                out |= {f"{key}.{k}": v for k, v in _plain(value).items()}
        elif not isinstance(value, list):
            out[key] = value
    return out
