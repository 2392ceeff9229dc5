"""Take names of hosts, users and folders out of packed runs: ``scrub_cells.py PACK... [--write]``.

Packs of the first format have them in each session of the manifest and in the results' run
information. Every change is listed: what it was stays on this machine, what it becomes is said.
No number changes; seals are computed again, and ``fedvlm verify`` must say ok afterwards.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedvlm.runs.cells import ENDING, pack_runs, runs_below, unpack_runs
from fedvlm.runs.names import RESULTS
from fedvlm.runs.private import public_facts, public_text, take_private
from fedvlm.runs.seal import seal_of


def scrub_run(folder: Path) -> Counter[str]:
    """Scrub the manifest and the results of a run folder; return how often what changed."""
    changes: Counter[str] = Counter()
    for name in ("manifest.json", RESULTS):
        path = folder / name
        before = json.loads(path.read_text(encoding="utf-8"))
        record = json.loads(json.dumps(before))
        for session in record.get("sessions", ()):
            take_private(session)
        info = record.get("run_info")
        if isinstance(info, dict):
            if isinstance(info.get("machine"), dict):
                info["machine"].pop("host", None)
            if isinstance(info.get("command"), str):
                info["command"] = public_text(info["command"])
            record["run_info"] = public_facts(info)
        changes.update(f"{name}: {key}" for key in different(before, record))
        if record != before:
            if "seal" in record:
                record["seal"] = seal_of(record)
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return changes


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


def main(words: list[str]) -> int:
    """List the changes of each pack; with --write make them."""
    write = "--write" in words
    packs = [Path(word) for word in words if not word.startswith("--")]
    for pack in packs:
        with tempfile.TemporaryDirectory() as place:
            top = unpack_runs(pack, Path(place))
            changes: Counter[str] = Counter()
            runs = []
            for folder in runs_below(top):
                changes += scrub_run(folder)
                runs.append((folder.relative_to(top).as_posix(), folder))
            for what, count in sorted(changes.items()):
                sys.stdout.write(f"{pack.name.removesuffix(ENDING)}: {what}: {count:,}\n")
            if write and changes:
                pack_runs(runs, pack)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
