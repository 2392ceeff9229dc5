"""Where two runs differ before their first round: settings, data, code, machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedvlm import manifest
from fedvlm.report.compare_read import Side
from fedvlm.run_names import identity_difference


@dataclass(frozen=True)
class Difference:
    """What differs, each ``KEY: A -> B``.

    Attributes:
        numbers: the runs' identities: whatever changes numbers.
        method: of these, settings that only one of two methods has.
        elsewhere: config keys outside the identity: where things lie, how much is said.
        machine: versions, code, processor: equal configs give equal bits only on equal ones.
        known: whether both manifests name an identity.
        dirty: whether a checkout had changes of its own, so that equal revisions say little.
    """

    numbers: list[str] = field(default_factory=list)
    method: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    machine: list[str] = field(default_factory=list)
    known: bool = True
    dirty: bool = False

    @property
    def equal(self) -> bool:
        """Whether the runs should have the same bits."""
        return self.known and not (self.numbers or self.method or self.machine)


def difference(a: Side, b: Side) -> Difference:
    """Return where two runs differ in config, data, code and machine."""
    machine = manifest.differences(_session(a), _session(b))
    outside = identity_difference(_outside(a), _outside(b)) if a.config and b.config else []
    dirty = any((_session(side).get("git") or {}).get("changed") for side in (a, b))
    if not (a.identity and b.identity):
        return Difference([], [], outside, machine, known=False, dirty=dirty)
    numbers: list[str] = []
    method: list[str] = []
    for line in identity_difference(a.identity, b.identity):
        short = line.removeprefix("config.")
        one_sided = ": absent -> " in short or short.endswith(" -> absent")
        own = short.startswith("TRAINER.") and one_sided
        (method if own else numbers).append(short)
    return Difference(numbers, method, outside, machine, dirty=dirty)


def moved(side: Side) -> list[str]:
    """Return what changed between the sessions of one run: its rounds are not of one machine."""
    sessions = side.manifest.get("sessions")
    known = [s for s in sessions if isinstance(s, dict)] if isinstance(sessions, list) else []
    found: dict[str, None] = {}
    for later in known[1:]:
        found |= dict.fromkeys(manifest.differences(known[0], later))
    return list(found)


def _outside(side: Side) -> dict[str, Any]:
    """Return the config keys that are not part of the identity, other trainers' nodes left out."""
    inside = side.identity.get("config", {})
    return {
        k: v for k, v in side.config.items() if k not in inside and not k.startswith("TRAINER.")
    }


def _session(side: Side) -> Mapping[str, Any]:
    sessions = side.manifest.get("sessions")
    first = sessions[0] if isinstance(sessions, list) and sessions else None
    return first if isinstance(first, Mapping) else {}
