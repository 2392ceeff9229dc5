"""What a table sorts runs by: protocol keys, config keys, the method's name; and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedvlm.errors import ConfigError, DataError, did_you_mean
from fedvlm.report.collect import SEEDS, Run

METRIC = "metric"  # the axis that is no property of a run
METHOD = ("trainer", "peft", "tag")  # what makes a method's name
REFERENCES = {"zero-shot": "zero_shot", "untrained": "untrained"}  # flag -> section of the results

Pair = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """A run, or the reference numbers that stand in its results.

    Attributes:
        run: where the numbers come from.
        config: the identity's config, flat (``OPTIM.LR`` -> 0.005); empty where unreadable.
        reference: empty for the run itself, else a name in ``REFERENCES``.
    """

    run: Run
    config: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""

    @property
    def seeds(self) -> tuple[Any, ...]:
        """Model seed and data seed."""
        return tuple(self.run.protocol.get(key) for key in SEEDS)

    @property
    def trains(self) -> bool:
        """Whether the run took a step; a zero-shot run's rounds and batches mean nothing."""
        totals = self.run.info.get("totals")
        return not (isinstance(totals, Mapping) and totals.get("local_steps") == 0)

    def fact(self, key: str) -> Any:
        """Return a protocol or config value; None where the run has none such, or an empty one."""
        found = self.config.get(key) if key.isupper() else self.run.protocol.get(key)
        return None if found == "" else found

    def names(self, key: str) -> bool:
        """Whether the run says anything of ``key``; one of an older version may not."""
        return bool(self.config) if key.isupper() else key in self.run.protocol

    def label(self, key: str, axes: Sequence[str]) -> str:
        """Return what stands in a table's header for ``key``.

        Args:
            key: any key but ``metric``.
            axes: all row and column keys: a part of the method's name that has an axis of its
                own is left out of ``trainer``.
        """
        if key == "trainer":
            return self._method(axes)
        found = self.fact(key)
        if key == "shots" and found == -1:
            return "all shots"
        if isinstance(found, int | float) and not isinstance(found, bool):
            return f"{key} {found:g}" if isinstance(found, float) else f"{key} {found}"
        return "none" if found is None else str(found)

    def _method(self, axes: Sequence[str]) -> str:
        if self.reference == "zero-shot":
            return "zero-shot"
        own = {key: "" for key in METHOD[1:] if key in axes}
        name = replace(self.run, protocol={**self.run.protocol, **own}).method
        return f"{name}, untrained" if self.reference else name


def entries(runs: Iterable[Run]) -> tuple[list[Entry], list[str]]:
    """Return the runs with their configs, and a note per config that cannot be read."""
    found, notes = [], []
    for run in runs:
        config: Any = None
        try:
            config = run.manifest()["identity"]["config"]
        except (DataError, KeyError, TypeError) as error:
            why = str(error) if isinstance(error, DataError) else "the manifest names no config"
            notes.append(f"{run.path}: {why}; its hyper-parameters were not compared")
        found.append(Entry(run, config if isinstance(config, dict) else {}))
    return found, notes


def known_keys(found: Sequence[Entry]) -> list[str]:
    """Return every key that a row, column or filter may name, ``metric`` last."""
    keys = {k: None for e in found for k in (*e.run.protocol, *e.config)}
    return [*keys, METRIC]


def check_keys(keys: Iterable[str], found: Sequence[Entry], flag: str) -> None:
    """Refuse keys that no run has.

    Raises:
        ConfigError: with the nearest known key.
    """
    known = known_keys(found)
    for key in keys:
        if key not in known:
            short = ", ".join(k for k in known if not k.isupper())
            raise ConfigError(
                f"{flag} {key}: these runs have no such key{did_you_mean(key, known)} "
                f"(known: {short}, and config keys such as OPTIM.LR)"
            )


def chosen(found: Sequence[Entry], where: Sequence[Pair], exclude: Sequence[Pair]) -> list[Entry]:
    """Return the entries that match every ``where`` and no ``exclude``.

    Values are compared as text; ``trainer`` takes the class name or the whole label, a digest its
    first characters; several ``where`` of one key are alternatives.

    Raises:
        ConfigError: an unknown key, or nothing is left.
    """
    check_keys((k for k, _ in where), found, "--where")
    check_keys((k for k, _ in exclude), found, "--exclude")
    wanted = {key: [v for k, v in where if k == key] for key, _ in where}
    kept = [
        e for e in found
        if all(any(_is(e, k, v) for v in values) for k, values in wanted.items())
        and not any(_is(e, k, v) for k, v in exclude)
    ]
    if found and not kept:
        key, value = (*where, *exclude)[0]
        have = sorted({str(e.fact(key)) for e in found})
        raise ConfigError(
            f"--where and --exclude leave none of {len(found)} runs: {key} {value}"
            f"{did_you_mean(value, have)} (the runs have {key} {', '.join(have[:8])})"
        )
    return kept


def _is(entry: Entry, key: str, value: str) -> bool:
    found = entry.fact(key)
    names = {"" if found is None else str(found)}
    if key == "trainer":
        names.add(entry.run.method)
    if key.endswith("_digest"):
        return bool(value) and any(name.startswith(value) for name in names)
    return value in names


def with_references(found: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """Return the entries and, for each name, the reference numbers that their results hold."""
    extra = [
        replace(e, reference=name)
        for name in names for e in found if isinstance(e.run.results.get(REFERENCES[name]), Mapping)
    ]
    return [*extra, *found]
