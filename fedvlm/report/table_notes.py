"""What a table does not refuse but has to say: tuning per column, and the code behind its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.report.table_facts import Entry

TUNED = ("OPTIM.", "TRAINER.", "PEFT.", "MODEL.HEAD.", "FED.FINETUNE_")  # a method's own settings
CODE = ("fedvlm", "torch", "open_clip_torch")
MOST, DIGEST = 4, 8


def tuned(found: Sequence[Entry], axes: Sequence[str]) -> list[str]:
    """Return a note per method whose own settings are not the same in all its cells.

    Args:
        axes: row and column keys; what stands there needs no note.
    """
    notes = []
    methods: dict[str, list[Entry]] = {}
    for entry in found:
        if entry.config and entry.trains:
            methods.setdefault(entry.label("trainer", axes), []).append(entry)
    for name, mine in methods.items():
        keys = dict.fromkeys(k for e in mine for k in e.config if k.startswith(TUNED))
        values = {k: list(dict.fromkeys(str(e.fact(k)) for e in mine)) for k in keys
                  if k not in axes and k != "TRAINER.NAME"}
        words = [f"{k} ({', '.join(v[:MOST])}{', ...' if len(v) > MOST else ''})"
                 for k, v in values.items() if len(v) > 1]
        if words:
            notes.append(f"{name} has not the same settings in all cells: {'; '.join(words)}")
    return notes


def made_with(found: Sequence[Entry]) -> list[str]:
    """Return notes where the runs are of several versions, or of code that no commit holds."""
    notes = []
    for name in CODE:
        versions = _distinct([_part(e, "versions").get(name) for e in found])
        if len(versions) > 1:
            notes.append(f"made with several versions of {name}: {', '.join(versions)}")
    revisions = _distinct([_part(e, "git").get("revision") for e in found])
    if len(revisions) > 1:
        shown = ", ".join(r[:DIGEST] for r in revisions[:MOST])
        notes.append(f"made by {len(revisions)} revisions of the code: {shown}"
                     f"{', ...' if len(revisions) > MOST else ''}")
    changed = sum(bool(_part(e, "git").get("changed")) for e in found)
    if changed:
        notes.append(f"{changed} of {len(found)} runs were made by code with changes that are in "
                     "no commit")
    return notes


def left_out(found: Sequence[Entry]) -> list[str]:
    """Return a note where a run's means are not over all its clients."""
    said: dict[str, list[Entry]] = {}
    for entry in found:
        notes = entry.run.last.get("notes")
        for note in notes if isinstance(notes, list) else ():
            if "left out of" in str(note):
                said.setdefault(str(note), []).append(entry)
    return [
        f"{note} ({len(runs)} run(s), first {runs[0].run.path})"
        for note, runs in list(said.items())[:MOST]
    ] + ([f"and {len(said) - MOST} more such notes in the runs' results"] if len(said) > MOST
         else [])


def _part(entry: Entry, name: str) -> Mapping[str, Any]:
    found = entry.run.info.get(name)
    return found if isinstance(found, Mapping) else {}


def _distinct(values: Sequence[Any]) -> list[str]:
    return sorted({str(v) for v in values if v is not None})
