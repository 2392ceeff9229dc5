"""Whose folder is this: what ``manifest.json`` and ``results.json`` say, and when to refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlm import run_lock
from fedvlm.errors import ConfigError, DataError
from fedvlm.run_names import identity_difference, identity_digest, shortened

FORMAT = 1


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a run folder; None in a folder that holds nothing yet.

    Raises:
        DataError: there are files but no manifest, or it is damaged; nothing is touched.
    """
    path = folder / "manifest.json"
    if not path.exists():
        others = sorted(
            p.name for p in folder.iterdir()
            if p.name != run_lock.NAME and not p.name.startswith(".")
        )
        if others:
            raise DataError(
                f"'{folder}' holds {', '.join(others[:3])} but no manifest.json, so nobody can "
                "say which run that is; move it away or choose another --tag"
            )
        return None
    record = _read_json(path)
    good = (
        isinstance(record, dict) and isinstance(record.get("identity"), dict)
        and isinstance(record.get("sessions"), list)
        and identity_digest(record["identity"]) == record.get("identity_digest")
    )
    if not good:
        raise DataError(
            f"'{path}' is damaged, so nobody can say which run lies there; move the folder away "
            "or choose another --tag (nothing in it was touched)"
        )
    return dict(record)


def refuse_other(folder: Path, old: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` with the difference unless both identities are the same."""
    if identity_digest(old) == identity_digest(asked):
        return
    raise ConfigError(
        f"'{folder}' holds another run, which is neither resumed nor overwritten; what differs "
        f"(there -> asked): {shortened(identity_difference(old, asked))}; choose another --tag "
        "or --output-dir, or ask for the same again"
    )


def own_results(
    folder: Path, asked: Mapping[str, Any], notes: list[str]
) -> dict[str, Any] | None:
    """Return the folder's results if they are of the identity ``asked``; None without any.

    Damaged results count as none, with a note.

    Raises:
        ConfigError: they are of another run.
    """
    path = folder / "results.json"
    record = read_results(path)
    if record is None:
        if path.exists():
            notes.append("results.json is damaged: it will be written again")
        return None
    if record["identity_digest"] == identity_digest(asked):
        return record
    found = read_manifest(folder)
    if found is not None:
        refuse_other(folder, found["identity"], asked)
    raise ConfigError(
        f"'{path}' holds the results of another run; move it away or choose another --tag"
    )


def read_results(path: Path) -> dict[str, Any] | None:
    """Return a ``results.json`` with all its sections, or None where there is none such."""
    record = _read_json(path)
    sections = ("run_info", "protocol", "results")
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return None
    if not isinstance(record.get("identity_digest"), str):
        return None
    return record if all(isinstance(record.get(s), dict) for s in sections) else None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
