"""A run folder with everything a page shows, with numbers of our choosing; a reader of pages."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.report.table_runs import write_run

VOID = {"meta", "input", "br"}
NASTY = "Fed<script>alert(1)</script>&\"'x_%$y$</style>-->"


def whole_run(
    root: Path, trainer: str = "FedAvg", clients: int = 3, rounds: int = 4, dataset: str = "Pets",
    **more: Any,
) -> Path:
    """Write a run of ``clients`` that start at 10 % and gain (client + 1) % a round."""
    score = {c: [10.0 + (c + 1) * r * 8 / rounds % 90 for r in range(rounds + 1)]
             for c in range(clients)}
    last = {
        "personal": 70.0, "personal_std": 5.0, "global": 60.0, "new": 50.0, "base_all": 40.0,
        "round": rounds,
    }
    info = {
        "notes": ["embedded tiny backbone: not comparable with papers", f"plain note {trainer}"],
        "totals": {"rounds": rounds, "local_steps": 8, "seconds": 2.5, "bytes_up": 2_000_000,
                   "bytes_down": 1_000_000, "bytes_up_by_tensor": {"text.ctx": 1_500_000,
                                                                   "head.weight": 500_000},
                   "bytes_down_by_tensor": {"text.ctx": 1_000_000}},
        "trainable": 1234, "command": f"federated_main.py --trainer '{trainer}'",
    }
    sections = {"zero_shot": {"personal": 45.5, "global": 65.0}, "untrained": {"personal": 10.0}}
    path = write_run(root, trainer, dataset, last=last, info=info, sections=sections, **more)
    records = [_record(r, score, rounds) for r in range(rounds + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    rows = ["client,domain,part,class,images"]
    rows += [f'{c},art & <b>,train,"class {c % 5}<i>",{c + 5}' for c in range(clients)]
    (path / "partition.csv").write_text("\n".join(rows) + "\n")
    (path / "config.yaml").write_text(
        "FED:\n  CLIENTS: 3  # flag --num-users\n  ROUNDS: 4  # default\nOPTIM:\n"
        "  LR: 0.01  # configs/trainers/<x>.yaml\nWORDS: 'a # b: c'  # flag --tag\n"
        "NAMES: [a, b]  # default\nEMPTY: {}  # default\n"
    )
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sessions"] = [{
        "command": f"federated_main.py --trainer '{trainer}'", "started": "2026-01-02T03:04:05Z",
        "ended": None, "how": "finished", "from_round": None, "versions": {"torch": "2.0"},
        "machine": {"host": "box<1>", "gpus": []}, "git": {"revision": "abc", "changed": True},
    }]
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def _record(r: int, score: dict[int, list[float]], rounds: int) -> dict[str, Any]:
    clients = [{"client": c, "n": 10, "correct": 5, "accuracy": v[r]} for c, v in score.items()]
    found: dict[str, Any] = {
        "round": r, "personal": sum(v[r] for v in score.values()) / len(score),
        "clients": clients, "train": {}, "bytes_up": {}, "bytes_down": {},
    }
    if r:
        found["train"] = {str(c): {"loss": 1.0 + c} for c in score}
        found["bytes_up"] = {str(c): 1000 * (c + 1) for c in score}
    if r in (1, rounds):
        k = len(score)
        found["similarity"] = {
            "clients": list(score), "to_global": {"text.ctx": [0.9] * k},
            "update": [[1.0 if i == j else 0.1 * (i - j) / k for j in range(k)] for i in range(k)],
        }
    return found


class Reader(HTMLParser):
    """Reads a page strictly: every tag closed in order, ids once, names known.

    Attributes:
        tags: how often each occurs; ids; attributes: (tag, name, value) of all.
        text: by id of the nearest enclosing element that has one.
        rows: table id -> rows of cells' text.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, str]] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[tuple[tuple[str, ...], str]] = []
        self.feed(page)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
        own = dict(attrs).get("id") or ""
        if own:
            self.ids[own] += 1
        if tag not in VOID:
            self.open.append((tag, own))

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append((tuple(key for _, key in self.open if key), data))

    def text(self, key: str = "") -> str:
        """Return the text inside the element of an id, or all of it."""
        return " ".join(
            " ".join(data for keys, data in self.words if not key or key in keys).split())


def cells_below(page: str, table: str) -> list[list[str]]:
    """Return the text of a table's rows; ``table``: what stands before its body."""
    body = page[page.index(table):]
    body = body[body.index("<tbody>"):body.index("</tbody>")]
    return [[re.sub(r"<[^>]+>", "", c) for c in re.findall(r"<t[hd][ >].*?</t[hd]>", row)]
            for row in body.split("</tr>")[:-1]]
