"""What a table sorts runs by: protocol keys, config keys, the method's name; and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.report.collect import SEEDS, Run

METRIC = "metric"  # the axis that is no property of a run
METHOD = ("trainer", "peft", "tag")  # what makes a method's name
REFERENCES = {"zero-shot": "zero_shot", "untrained": "untrained"}  # flag -> section of the results

# Protocol keys that came later: what older runs did.
BEFORE = {"server_holdout": 0, "unseen_clients": 0, "cohort": 0}

Pair = tuple[str, str]


@dataclass(frozen=True)
class RunFacts:
    """A run as a table sees it, or the reference numbers that stand in its results.

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
        return self.run.totals().get("local_steps") != 0

    def fact(self, key: str) -> Any:
        """Return a protocol or config value; None where the run has none such, or an empty one."""
        protocol = self.run.protocol
        value = (
            self.config.get(key) if key.isupper() else protocol.get(key, BEFORE.get(key))
        )
        return None if value == "" else value

    def names(self, key: str) -> bool:
        """Whether the run says anything of ``key``; one of an older version may not."""
        return bool(self.config) if key.isupper() else key in self.run.protocol or key in BEFORE

    def label(self, key: str, axes: Sequence[str]) -> str:
        """Return what stands in a table's header for ``key``.

        Args:
            key: any key but ``metric``.
            axes: all row and column keys: a part of the method's name that has an axis of its
                own is left out of ``trainer``.
        """
        if key == "trainer":
            return self._method(axes)
        value = self.fact(key)
        if key == "shots" and value == -1:
            return "all shots"
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        return "none" if value is None else str(value)

    def _method(self, axes: Sequence[str]) -> str:
        if self.reference == "zero-shot":
            return "zero-shot"
        apart = {key: "" for key in METHOD[1:] if key in axes}
        name = replace(self.run, protocol={**self.run.protocol, **apart}).method
        return f"{name}, untrained" if self.reference else name


def facts_of(runs: Iterable[Run]) -> tuple[list[RunFacts], list[str]]:
    """Return the runs with their configs, and a note per config that cannot be read."""
    entries, notes = [], []
    for run in runs:
        config: dict[str, Any] = {}
        try:
            config = run.identity_config()
        except DataError as error:
            notes.append(f"{run.path}: {error}; its hyper-parameters were not compared")
        entries.append(RunFacts(run, config))
    return entries, notes




def check_keys(keys: Iterable[str], entries: Sequence[RunFacts], flag: str) -> None:
    """Refuse keys that no run has, ``metric`` apart.

    Raises:
        ConfigError: with the nearest known key.
    """
    known = [*dict.fromkeys(k for e in entries for k in (*e.run.protocol, *e.config)), METRIC]
    for key in keys:
        if key not in known:
            short = ", ".join(k for k in known if not k.isupper())
            raise ConfigError(
                f"{flag} {key}: these runs have no such key{did_you_mean(key, known)} "
                f"(known: {short}, and config keys such as OPTIM.LR)"
            )


def filtered(
    entries: Sequence[RunFacts], where: Sequence[Pair], exclude: Sequence[Pair]
) -> list[RunFacts]:
    """Return the entries that match every ``where`` and no ``exclude``.

    Values are compared as text; ``trainer`` takes the class name or the whole label, a digest its
    first characters; several ``where`` of one key are alternatives.

    Raises:
        ConfigError: an unknown key, or nothing is left.
    """
    check_keys((k for k, _ in where), entries, "--where")
    check_keys((k for k, _ in exclude), entries, "--exclude")
    wanted = {key: [v for k, v in where if k == key] for key, _ in where}
    rest = [
        e for e in entries
        if all(any(_is(e, k, v) for v in values) for k, values in wanted.items())
        and not any(_is(e, k, v) for k, v in exclude)
    ]
    if entries and not rest:
        key, value = (*where, *exclude)[0]
        have = sorted({str(e.fact(key)) for e in entries})
        raise ConfigError(
            f"--where and --exclude leave none of {len(entries)} runs: {key} {value}"
            f"{did_you_mean(value, have)} (the runs have {key} {', '.join(have[:8])})"
        )
    return rest


def _is(entry: RunFacts, key: str, value: str) -> bool:
    fact = entry.fact(key)
    names = {"" if fact is None else str(fact)}
    if key == "trainer":
        names.add(entry.run.method)
    if key.endswith("_digest"):
        return bool(value) and any(name.startswith(value) for name in names)
    return value in names


def with_references(entries: Sequence[RunFacts], names: Sequence[str]) -> list[RunFacts]:
    """Return the entries and, for each name, the reference numbers that their results hold."""
    extra = [
        replace(e, reference=name)
        for name in names for e in entries
        if isinstance(e.run.results.get(REFERENCES[name]), Mapping)
    ]
    return [*extra, *entries]
