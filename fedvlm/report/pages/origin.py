"""Where a run's numbers come from, on its page: config with origins, manifest, method card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedvlm.core.errors import DataError
from fedvlm.report.pages.grid import table
from fedvlm.report.pages.html import (
    Html,
    element,
    fact_list,
    join_content,
    lines,
    search,
    to_html,
)
from fedvlm.runs.finished import FinishedRun

DEFAULT = "default"
_FIELD = re.compile(r"^([A-Z][^:\n]*):(.*(?:\n(?:[ \t]+.*)?)*)", re.MULTILINE)


def read_settings(path: Path) -> dict[str, tuple[str, str]]:
    """Return key -> (value, origin) of a ``config.yaml``; origins are the comments at line ends.

    Raises:
        DataError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    settings: dict[str, tuple[str, str]] = {}
    rows = text.splitlines()

    def walk(node: Any, at: str) -> None:
        if isinstance(node, yaml.MappingNode) and (node.value or not at):
            for key, value in node.value:
                walk(value, f"{at}.{key.value}".lstrip("."))
            return
        start, end = node.start_mark, node.end_mark
        line = rows[end.line] if end.line < len(rows) else ""
        origin = line[end.column :].strip().removeprefix("#").strip()
        settings[at] = (text[start.index : end.index], origin)

    if root is not None:
        walk(root, "")
    return settings


def config_table(run: FinishedRun) -> Html:
    """Return the resolved config as a table with a filter: what is no default first, by group."""
    try:
        settings = read_settings(run.path / "config.yaml")
    except DataError as error:
        return element("p", str(error))
    order = sorted(settings.items(), key=lambda one: (one[1][1] == DEFAULT, one[0]))
    rows = [_setting(key, value, origin) for key, (value, origin) in order]
    changed = sum(origin != DEFAULT for _, origin in settings.values())
    words = (f"{len(rows)} settings; the {changed} that differ from the defaults come first, "
            "marked at the left. Origin: the file or flag that set the value")
    return join_content([
        search("config-table", "FED, lr, flag ..."),
        table(("key", "value", "origin"), rows, caption=words, sortable=True, tall=True,
              key="config-table"),
    ])


def provenance(run: FinishedRun) -> Html:
    """Return command, versions, machine, digests and the sessions that worked on the run."""
    try:
        manifest = run.manifest()
    except DataError as error:
        return element("p", str(error))
    sessions = [s for s in manifest.get("sessions") or [] if isinstance(s, Mapping)]
    one = sessions[-1] if sessions else run.info
    layout = manifest.get("facts")
    digests = {
        "identity": run.digest, "data split": run.protocol.get("data_digest"),
        "backbone": run.protocol.get("backbone_digest"),
    }
    parts = [
        command(str(one.get("command") or "unknown"), "command"),
        fact_list({
            "in folder": one.get("folder"), "created": manifest.get("created"),
            "revision": _revision(one.get("git")),
            "chunk": layout.get("chunk") if isinstance(layout, Mapping) else None,
        }),
        element("h3", "Digests (sha256)"),
        fact_list({k: element("code", v) for k, v in digests.items() if v}),
        element("h3", "Machine"), fact_list(_plain(one.get("machine"))),
        element("h3", "Versions"), fact_list(_plain(one.get("versions"))),
    ]
    if sessions:
        heads = ("session", "started (UTC)", "ended", "how", "from round", "command")
        rows = [
            [at, s.get("started"), s.get("ended"), s.get("how"), s.get("from_round"),
             element("code", s.get("command"))]
            for at, s in enumerate(sessions, start=1)
        ]
        parts += [element("h3", "Sessions"), table(heads, rows, caption="One per process that "
                                                   "worked on this run")]
    return join_content(parts)


def gifts(run: FinishedRun) -> Html:
    """Return what the run gave away of its clients (``released.json``), as a table."""
    path = run.path / "released.json"
    if not path.is_file():
        return element("p", "No list: this run is older than released.json, or was packed without.")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        declared, sent = told["declared"], told["sent"]
        rows = [
            ["shared tensors", ", ".join(declared["shared"]), _bytes(sent["shared"])],
            ["extras", ", ".join(declared["extras"]), _bytes(sent["extras"])],
            ["numbers with an upload", ", ".join(declared["metrics"]),
             ", ".join(f"{n} ({k})" for n, k in sent["metrics"].items())],
            ["counts of images", ", ".join(declared["counts"]),
             f"once, at the start{_by_site(sent.get('counts', {}))}"],
            ["numbers of an evaluation", "by client", ", ".join(sent["rows"])],
            ["baselines", "by client", ", ".join(sent["references"])],
            ["sums over each site's own images, for baselines",
             ", ".join(declared.get("sums", ["not listed by that version"])),
             _bytes(sent["sums"]) if "sums" in sent else "not listed by that version"],
        ]
        masked = f"; {told['masked']}" if told.get("masked") else ""
        words = [f"Received by {told['to']}{masked}.",
                 *(f"{one[0].upper()}{one[1:]}." for one in told.get("tells", ())),
                 f"Never sent: {', '.join(told['never'])}."]
        cover = told["privacy"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return element("p", f"cannot read {path.name}: {' '.join(str(error).split())}")
    words.append(f"Privacy: {cover}." if cover else "No guarantee of privacy covers any of it.")
    heads = ("what", "declared", "sent in the run")
    return join_content([
        table(heads, [[c or "none" for c in row] for row in rows],
              caption="What left the clients (docs/privacy.md)"),
        *[element("p", one) for one in words],
    ])


def _by_site(counts: Mapping[str, Sequence[str]]) -> str:
    """Return which counts each site told, behind a colon; '' where all clients are here."""
    each = "; ".join(f"{site} {', '.join(names) or 'none'}" for site, names in counts.items())
    return f": {each}" if each else ""


def _bytes(sent: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {size:,} bytes" for name, size in sent.items())


def command(text: str, key: str) -> Html:
    """Return a command with a button that copies it."""
    return element(
        "div", element("pre", lines(text), id=key),
        element("button", "copy", type="button", class_="copy", data_copy=key, hidden=True),
        class_="command",
    )


def method_card(text: str) -> Html:
    """Return a method's card: its first line, then its fields; plain text where it has none."""
    if not text.strip():
        return Html("")
    title, _, rest = text.strip().partition("\n")
    parts = _FIELD.findall(rest)
    if not parts:
        return element("pre", lines(text))
    fields = [
        join_content([element("dt", name), element("dd", lines(_dedented(value)))])
        for name, value in parts
    ]
    return join_content([element("p", title), element("dl", *fields, class_="card-text")])


def _setting(key: str, value: str, origin: str) -> Html:
    return element(
        "tr", element("th", element("code", key), scope="row"),
        element("td", element("code", value)),
        element("td", origin or "unknown", class_="origin"),
        class_="changed" if origin != DEFAULT else None,
    )


def _dedented(value: str) -> str:
    """Return a field's text: paragraphs joined, deeper lines (equations) kept apart."""
    return "\n".join(" ".join(line.split()) for line in value.strip().splitlines())


def _revision(git: Any) -> str:
    if not isinstance(git, Mapping):
        return ""
    more = ", with uncommitted changes" if git.get("changed") else ""
    return f"{git.get('revision')}{more}"


def _plain(values: Any) -> dict[str, Html]:
    if not isinstance(values, Mapping):
        return {}
    return {
        str(k).replace("_", " "): to_html(", ".join(map(str, v)) if isinstance(v, list) else v)
        for k, v in values.items() if v not in (None, "", [])
    }
