"""Which processes listen on TCP (read from ``/proc``), and the list that they are compared with.

The list is the table *Listeners* of ``docs/deployment.md``: process, address, engine.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path

from tests.jobs import REPOSITORY

LISTENS = "0A"  # the state of a socket that waits for callers


def marked(mark: str) -> list[int]:
    """Return the processes that have a word in their environment, which their children inherit."""
    out = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                out.append(int(path.parent.name))
        except OSError:
            continue
    return sorted(out)


def tcp_listeners(pids: Iterable[int]) -> set[tuple[int, str, int]]:
    """Return (process, address, port) of all that listens on TCP among some processes."""
    waiting: dict[str, tuple[str, int]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                host, _, port = words[1].partition(":")
                waiting[words[9]] = _address(host), int(port, 16)
    found = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                told = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            except OSError:
                continue
            if told and told[1] in waiting:
                found.add((pid, *waiting[told[1]]))
    return found


def _address(host: str) -> str:
    words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def listed() -> dict[str, str]:
    """Return the written list: process -> the address at which it listens."""
    page = (REPOSITORY / "docs" / "deployment.md").read_text(encoding="utf-8")
    table = page.partition("## 7. Listeners\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1].strip("`") for row in rows}
