"""Take names out of runs: ``scrub_cells.py PACK_OR_RUN_FOLDER... [--write] [--hash-names]``.

Names are those of hosts, users and folders, and those of images in notes; of run folders also in
``log.txt``; with --hash-names also those of all images: ``partition.json`` then holds keyed hashes,
and the key, one for all runs of the command, lies beside each as ``partition.key``, for the owner
alone. Packs of the first format have them in each session of the manifest and in the results' run
information. Every change is listed. No number changes; seals are computed again, and ``fedvlm
verify`` must say ok afterwards.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.data.partition.index_file import (
    KEY,
    KEYED,
    NAMES,
    RUN_FILE,
    hide_names,
    read_index_file,
)
from fedvlm.runs.bits import PLACES
from fedvlm.runs.cells import ENDING, pack_runs, runs_below, unpack_runs
from fedvlm.runs.names import RESULTS
from fedvlm.runs.private import public_facts, public_text, take_private
from fedvlm.runs.seal import seal_of
from fedvlm.runs.verify.cover import FILES, file_digest


def scrub_run(folder: Path, key: bytes = b"") -> Counter[str]:
    """Scrub the files of a run folder; return how often what changed.

    Args:
        key: hashes the names of images; empty: they stay.
    """
    changes: Counter[str] = Counter()
    covered = scrub_covered(folder, key, changes)
    for name in ("manifest.json", RESULTS):
        path = folder / name
        before = json.loads(path.read_text(encoding="utf-8"))
        record = json.loads(json.dumps(before))
        for session in record.get("sessions", ()):
            take_private(session)
        if isinstance(record.get("facts"), dict):
            record["facts"] = public_facts(record["facts"])
        info = record.get("run_info")
        if isinstance(info, dict):
            if isinstance(info.get("machine"), dict):
                info["machine"].pop("host", None)
            if isinstance(info.get("command"), str):
                info["command"] = public_text(info["command"])
            record["run_info"] = public_facts(info)
        if key and isinstance(record.get("results"), dict):
            record["results"].pop(PLACES, None)  # whoever has the list of files could read it
        changes.update(f"{name}: {key}" for key in different(before, record))
        if isinstance(record.get("covers"), dict):
            record["covers"][FILES] |= covered
        if record != before:
            if "seal" in record:
                record["seal"] = seal_of(record)
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return changes


def scrub_covered(folder: Path, key: bytes, changes: Counter[str]) -> dict[str, str]:
    """Scrub the log and, with a key, the partition; return new digests of what changed."""
    new = {}
    log, partition = folder / "log.txt", folder / RUN_FILE
    if log.is_file():
        lines = log.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        public = [public_text(line) for line in lines]
        if public != lines:
            changes["log.txt: lines"] += sum(a != b for a, b in zip(lines, public, strict=True))
            files.write_text(log, "\n".join(public))
            new[log.name] = file_digest(log)
    if key and partition.is_file():
        content = read_index_file(partition)
        if content.get(NAMES) != KEYED:
            files.write_text(partition.with_suffix(KEY), key.hex())
            partition.with_suffix(KEY).chmod(0o600)
            files.write_json(partition, hide_names(content, key))
            changes[f"{RUN_FILE}: names of images"] += 1
            new[partition.name] = file_digest(partition)
    return new


def different(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Yield the places, without numbers of list items, at which two JSON values differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before:
            if key in after:
                yield from different(before[key], after[key], f"{at}.{key}".lstrip("."))
            else:
                yield f"{at}.{key} taken out".lstrip(".")
    elif isinstance(before, list) and isinstance(after, list):
        for one, other in zip(before, after, strict=True):
            yield from different(one, other, at)
    elif before != after:
        yield f"{at} without folders"


def scrub_runs(top: Path, key: bytes = b"") -> tuple[Counter[str], list[tuple[str, Path]]]:
    """Scrub all runs below a folder; return the changes, and name and folder of each run."""
    changes: Counter[str] = Counter()
    runs = [(folder.relative_to(top).as_posix(), folder) for folder in runs_below(top)]
    for _, folder in runs:
        changes += scrub_run(folder, key)
    return changes, runs


def main(words: list[str]) -> int:
    """List the changes of each pack or folder; with --write make them."""
    write, key = "--write" in words, secrets.token_bytes(32) if "--hash-names" in words else b""
    for path in [Path(word) for word in words if not word.startswith("--")]:
        with tempfile.TemporaryDirectory() as place:
            if path.is_dir():
                top = path if write else Path(shutil.copytree(path, Path(place) / "copy"))
                changes, runs = scrub_runs(top, key)
            else:
                changes, runs = scrub_runs(unpack_runs(path, Path(place)))
            for what, count in sorted(changes.items()):
                sys.stdout.write(f"{path.name.removesuffix(ENDING)}: {what}: {count:,}\n")
            if write and changes and path.is_file():
                pack_runs(runs, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
