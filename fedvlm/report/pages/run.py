"""The page of one run: headline, numbers, figures, clients, config, origin, method.

A run's numbers on its page: what to know first, the headline, all numbers, work and bytes.

The table of clients on a run's page: data, accuracy, its course over the rounds, bytes.

Where a run's numbers come from: config with origins, manifest, method card.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedvlm.core.errors import DataError
from fedvlm.report.collect import Run
from fedvlm.report.figures.partition import read
from fedvlm.report.pages import figures as sections_figures
from fedvlm.report.pages.html import (
    Content,
    Html,
    Section,
    cell,
    element,
    escaped,
    facts,
    items,
    join,
    lines,
    page,
    search,
    table,
)
from fedvlm.report.tables.check import NOT_COMPARABLE
from fedvlm.report.tables.metrics import DEFINED, metric

HEADLINE = (
    "personal", "global", "base_all", "new", "hm2", "hm3", "cm", "unseen", "unseen_personal",
    "targets", "personal_before_ft", "personal_worst",
)
MINUS = "\N{MINUS SIGN}"
SETTINGS = {
    "personal": "every class is some client's own",
    "base2new": "base classes are trained, new classes only tested",
    "leave_one_domain_out": "one domain is held by no client",
    "transfer": "other data sets are tested with their own class names",
}


def number(found: Any) -> float | None:
    """Return a finite number; None for anything else."""
    good = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if good and math.isfinite(found) else None


def signed(value: float) -> str:
    """Return a difference with its sign, one decimal."""
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'+' if value > 0 else MINUS}{text}"


def shown(value: float | None, digits: int = 1) -> str:
    """Return a number; an en dash where there is none."""
    return "\N{EN DASH}" if value is None else f"{value:.{digits}f}"


def caveats(run: Run, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a reader has to know before any number."""
    info, said = run.info, run.protocol
    found = [note for note in _notes(run) if NOT_COMPARABLE in note]
    if said.get("extra_data"):
        found.append(f"The method uses extra data: {said['extra_data']}.")
    if said.get("subsample") not in ("", "all", None) and said.get("setting") == "personal":
        found.append(f"Only the {said['subsample']} classes of the data set are used.")
    dropped = sorted({str(c) for r in records for c in (r.get("dropped") or {})}, key=_by_number)
    if dropped:
        found.append(f"Clients whose update was dropped in some round: {', '.join(dropped)}.")
    git = info.get("git")
    if isinstance(git, Mapping) and git.get("changed"):
        found.append("The code had changes that are in no commit; the revision alone does not "
                     "give these numbers.")
    return found


def box(found: Sequence[Content]) -> Html:
    """Return caveats in a box that stands out; nothing without any."""
    if not found:
        return Html("")
    return element("aside", element("strong", "Before you read the numbers"), items(found),
                   class_="caveats", aria_label="Caveats")


def introduction(run: Run) -> Html:
    """Return what the run is, in a few facts."""
    said = run.protocol
    shots = said.get("shots")
    setting = str(said.get("setting", ""))
    what = f"{setting}: {SETTINGS[setting]}" if setting in SETTINGS else setting
    return facts({
        "setting": what, "data set": said.get("dataset"),
        "shots per class": "all images" if shots == -1 else shots,
        "partition": said.get("partition"), "domain held out": said.get("held_out"),
        "targets": said.get("targets"), "backbone": _backbone(said),
        "rounds x local epochs": f"{said.get('rounds')} x {said.get('local_epochs')}",
        "training views per image": said.get("views"),
        "seeds": f"model {said.get('seed')}, data {said.get('data_seed')}",
        "selection": _selection(said.get("selection")),
        "trainable parameters": _count(run.info.get("trainable")),
    })


def headline(run: Run) -> Html:
    """Return the last round's main numbers, each with its meaning and its gain on zero-shot."""
    last, zero = run.last, _section(run, "zero_shot")
    cards = []
    for name in HEADLINE:
        value = number(last.get(name))
        if value is None:
            continue
        spread = number(last.get("personal_std")) if name == "personal" else None
        cards.append(element(
            "div", element("div", name, class_="name"),
            element("div", shown(value), element("small", " %"), class_="value"),
            _delta(value, number(zero.get(name))),
            element("div", metric(name).words, ".",
                    f" Standard deviation over clients {spread:.1f}." if spread is not None
                    else None, class_="what"),
            class_="number-card first" if name == "personal" else "number-card",
        ))
    if not cards:
        return element("p", "No client has a test image, so there is no headline number.")
    when = f"After round {last.get('round')}, the last one; the test set chooses nothing."
    return join([element("p", when, class_="soft"),
                 element("div", *cards, class_="numbers")])


def all_numbers(run: Run) -> Html:
    """Return every accuracy of the run: zero-shot, untrained, chosen on validation, last."""
    sections = {
        "zero-shot": _section(run, "zero_shot"), "untrained": _section(run, "untrained"),
        f"round {run.last.get('round')}": run.last,
    }
    chosen = _section(run, "selected")
    if chosen:
        sections[f"round {chosen.get('round')} (best on validation)"] = chosen
    present = {k: v for k, v in sections.items() if v}
    names = [n for n in run.last if number(run.last.get(n)) is not None and _accuracy(n)]
    rows = []
    for name in names:
        values = [number(part.get(name)) for part in present.values()]
        rows.append([name, *(cell(shown(v), v) for v in values), metric(name).words])
    return table(["%", *present, "meaning"], rows, caption="All numbers are percentages")


def work(run: Run) -> Html:
    """Return totals: rounds, steps, samples, tower passes, seconds, bytes."""
    totals = run.info.get("totals")
    if not isinstance(totals, Mapping):
        return Html("")
    words = {
        name: (_seconds(v) if name == "seconds" else megabytes(v) if name.startswith("bytes")
               else f"{v:,.0f}")
        for name, found in totals.items() if (v := number(found)) is not None
    }
    return facts({name.replace("_", " "): text for name, text in words.items()})


def traffic(run: Run) -> Html:
    """Return the bytes of each tensor in the whole run, all clients, both ways."""
    totals = run.info.get("totals")
    totals = totals if isinstance(totals, Mapping) else {}
    up, down = (totals.get(f"bytes_{way}_by_tensor") or {} for way in ("up", "down"))
    names = list(dict.fromkeys([*up, *down]))
    if not names:
        return element("p", "Nothing was sent: no tensor is shared.")
    most = sum(number(v) or 0.0 for v in up.values()) or 1.0
    rows = [
        [element("code", name), cell(megabytes(up.get(name, 0)), number(up.get(name, 0))),
         cell(megabytes(down.get(name, 0)), number(down.get(name, 0))),
         cell(f"{100 * (number(up.get(name)) or 0) / most:.1f} %", number(up.get(name, 0)))]
        for name in names
    ]
    return table(["tensor", "sent by clients", "sent to clients", "share of sent"], rows,
                 caption="Bytes in the whole run, all clients (1 MB = 1,000,000 bytes)",
                 sortable=True)


def remarks(run: Run) -> Html:
    """Return the run's notes that are no caveats."""
    return items(note for note in _notes(run) if NOT_COMPARABLE not in note)


def megabytes(found: Any) -> str:
    """Return bytes as MB."""
    value = number(found) or 0.0
    return f"{value:,.0f} B" if value < 1000 else f"{value / 1e6:,.3f} MB"


def _notes(run: Run) -> list[str]:
    notes = run.info.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _section(run: Run, name: str) -> Mapping[str, Any]:
    found = run.results.get(name)
    return found if isinstance(found, Mapping) else {}


def _delta(value: float, zero: float | None) -> Html:
    if zero is None:
        return Html("")
    gain = value - zero
    kind = "up" if round(gain, 1) > 0 else "down" if round(gain, 1) < 0 else ""
    return element("div", element("span", signed(gain), class_=kind or None),
                   f" on zero-shot ({zero:.1f})", class_="delta")


def _accuracy(name: str) -> bool:
    found = DEFINED.get(name)
    return found.unit == "%" if found else name.startswith("target.") or name == "val"


def _backbone(said: Mapping[str, Any]) -> str:
    digest = str(said.get("backbone_digest", ""))[:8]
    tag = said.get("weights")
    return f"{said.get('backbone')}{f' ({tag})' if tag else ''}{f', {digest}' if digest else ''}"


def _selection(found: Any) -> str:
    return "last round; one chosen by validation beside it" if found == "val" else "last round"


def _count(found: Any) -> str:
    value = number(found)
    return "" if value is None else f"{value:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 600 else f"{value / 60:,.1f} min"


def _by_number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (-1, text)


LENGTH = 40  # points of a client's curve at most
FEW = 30  # clients whose table is shown whole
OWN = {"client", "n", "correct", "accuracy"}  # keys of a client with a column of their own


def clients(folder: Path, records: Sequence[Mapping[str, Any]]) -> Html:
    """Return one row per client, as the last evaluated round found it; nothing without any.

    Args:
        folder: the run's; its ``partition.csv`` gives domains, classes and training images.
        records: the run's rounds.
    """
    evaluated = [r for r in records if r.get("clients")]
    if not evaluated:
        return Html("")
    data = holdings(folder)
    first, last = (_by_client(r) for r in (evaluated[0], evaluated[-1]))
    curves = {c: [number(_by_client(r).get(c, {}).get("accuracy")) for r in evaluated]
              for c in last}
    values = [v for curve in curves.values() for v in curve if v is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    more = [k for k in dict.fromkeys(k for one in last.values() for k in one)
            if k not in OWN and any(number(one.get(k)) is not None for one in last.values())]
    domains = any(own["domain"] for own in data.values())
    sent = {way: _bytes(records, way) for way in ("up", "down")}
    heads: list[Content] = ["client", *(["domain"] if domains else []), *_counts(data),
                            "test images", "accuracy (%)", "gain on start", "over rounds",
                            *(f"{name} (%)" for name in more), "last loss", "sent", "received"]
    rows = []
    for client, one in last.items():
        own = data.get(client, {})
        accuracy, start = number(one.get("accuracy")), number(
            first.get(client, {}).get("accuracy"))
        gain = None if accuracy is None or start is None else accuracy - start
        rows.append([
            client, *([str(own.get("domain", ""))] if domains else []),
            *(own.get(key, 0) for key in _counts(data).values()), one.get("n", 0),
            cell(shown(accuracy), accuracy), cell("" if gain is None else signed(gain), gain),
            _spark(curves[client], low, high),
            *(cell(shown(number(one.get(k))), number(one.get(k))) for k in more),
            _loss(records, client),
            *(cell(megabytes(sent[way].get(client, 0)), sent[way].get(client, 0))
              for way in ("up", "down")),
        ])
    said = (f"{len(rows)} clients after round {evaluated[-1].get('round')}; gain: on the untrained "
            f"model of round {evaluated[0].get('round')}; curves from {low:.0f} to {high:.0f} %")
    return table(heads, rows, caption=said, sortable=True, tall=len(rows) > FEW, key="client-table")


def holdings(folder: Path) -> dict[int, dict[str, Any]]:
    """Return what each client holds: domain, training images, classes; empty where unknown."""
    try:
        rows = read(folder / "partition.csv")
    except DataError:
        return {}
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        if not str(row["client"]).isdigit() or not str(row["images"]).isdigit():
            continue
        own = found.setdefault(int(row["client"]), {"domains": set(), "train": 0, "classes": set()})
        if row["part"] == "train" and int(row["images"]):
            own["domains"].add(row["domain"] or "")
            own["classes"].add(row["class"])
            own["train"] += int(row["images"])
    for own in found.values():
        own["domain"] = ", ".join(sorted(d for d in own.pop("domains") if d))
        own["classes"] = len(own["classes"])
    return found


def _counts(data: Mapping[int, Any]) -> dict[str, str]:
    """Return heading -> key of what is known of the clients' data."""
    return {"training images": "train", "classes": "classes"} if data else {}


def _by_client(record: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {int(one["client"]): one for one in record["clients"]}


def _bytes(records: Sequence[Mapping[str, Any]], way: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for record in records:
        for client, count in (record.get(f"bytes_{way}") or {}).items():
            found[int(client)] = found.get(int(client), 0.0) + (number(count) or 0.0)
    return found


def _loss(records: Sequence[Mapping[str, Any]], client: int) -> Html:
    """Return the loss of the last round that the client took part in."""
    for record in reversed(records):
        found = (record.get("train") or {}).get(str(client))
        if isinstance(found, Mapping):
            value = number(found.get("loss"))
            return cell(shown(value, 3), value)
    return cell(shown(None), None)


def _spark(curve: Sequence[float | None], low: float, high: float) -> Html:
    """Return a client's accuracy over the evaluated rounds as a small line, ranked by its last."""
    known = [(i, v) for i, v in enumerate(curve) if v is not None]
    step = max(-(-len(known) // LENGTH), 1)
    kept = known[::-step][::-1]  # the last round stays
    wide, span = max(len(curve) - 1, 1), (high - low) or 1.0
    points = " ".join(
        f"{1 + 98 * i / wide:.0f},{19 - 18 * (v - low) / span:.1f}" for i, v in kept
    )
    drawn = element(
        "svg", element("polyline", points=points, vector_effect="non-scaling-stroke"),
        class_="spark", viewBox="0 0 100 20", preserveAspectRatio="none", aria_hidden="true",
    )
    return cell(drawn if len(kept) > 1 else "", known[-1][1] if known else None)


DEFAULT = "default"
_FIELD = re.compile(r"^([A-Z][^:\n]*):(.*(?:\n(?:[ \t]+.*)?)*)", re.MULTILINE)


def settings(path: Path) -> dict[str, tuple[str, str]]:
    """Return key -> (value, origin) of a ``config.yaml``; origins are the comments at line ends.

    Raises:
        DataError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    found: dict[str, tuple[str, str]] = {}
    written = text.splitlines()

    def walk(node: Any, at: str) -> None:
        if isinstance(node, yaml.MappingNode) and (node.value or not at):
            for key, value in node.value:
                walk(value, f"{at}.{key.value}".lstrip("."))
            return
        start, end = node.start_mark, node.end_mark
        line = written[end.line] if end.line < len(written) else ""
        origin = line[end.column :].strip().removeprefix("#").strip()
        found[at] = (text[start.index : end.index], origin)

    if root is not None:
        walk(root, "")
    return found


def config(run: Run) -> Html:
    """Return the resolved config as a table with a filter: what is no default first, by group."""
    try:
        found = settings(run.path / "config.yaml")
    except DataError as error:
        return element("p", str(error))
    order = sorted(found.items(), key=lambda one: (one[1][1] == DEFAULT, one[0]))
    rows = [_setting(key, value, origin) for key, (value, origin) in order]
    changed = sum(origin != DEFAULT for _, origin in found.values())
    said = (f"{len(rows)} settings; the {changed} that are no default come first, marked at the "
            "left. Origin: the file or flag that set the value")
    return join([
        search("config-table", "FED, lr, flag ..."),
        table(("key", "value", "origin"), rows, caption=said, sortable=True, tall=True,
              key="config-table"),
    ])


def manifest(run: Run) -> Html:
    """Return command, versions, machine, digests and the sessions that worked on the run."""
    try:
        found = run.manifest()
    except DataError as error:
        return element("p", str(error))
    sessions = [s for s in found.get("sessions") or [] if isinstance(s, Mapping)]
    one = sessions[-1] if sessions else run.info
    said = run.protocol
    facts_of = found.get("facts") if isinstance(found.get("facts"), Mapping) else {}
    git = one.get("git")
    digests = {
        "identity": run.digest, "data split": said.get("data_digest"),
        "backbone": said.get("backbone_digest"),
    }
    parts = [
        command(str(one.get("command") or "unknown"), "command"),
        facts({
            "in folder": one.get("folder"), "created": found.get("created"),
            "revision": _revision(git), "chunk": (facts_of or {}).get("chunk"),
        }),
        element("h3", "Digests (sha256)"),
        facts({k: element("code", v) for k, v in digests.items() if v}),
        element("h3", "Machine"), facts(_plain(one.get("machine"))),
        element("h3", "Versions"), facts(_plain(one.get("versions"))),
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
    return join(parts)


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
    found = _FIELD.findall(rest)
    if not found:
        return element("pre", lines(text))
    fields = [
        join([element("dt", name), element("dd", lines(_dedented(value)))])
        for name, value in found
    ]
    return join([element("p", title), element("dl", *fields, class_="card-text")])


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
    more = ", with changes that are in no commit" if git.get("changed") else ""
    return f"{git.get('revision')}{more}"


def _plain(found: Any) -> dict[str, Html]:
    if not isinstance(found, Mapping):
        return {}
    return {
        str(k).replace("_", " "): escaped(", ".join(map(str, v)) if isinstance(v, list) else v)
        for k, v in found.items() if v not in (None, "", [])
    }


def run_page(run: Run, card: str = "", title: str = "", origin: str = "") -> str:
    """Return a run's page as one HTML document; the same files give the same text.

    Args:
        card: the method's card; empty for unknown.
        title: instead of method and data set.
        origin: the command that makes the page.
    """
    records = run.rounds()
    warned = caveats(run, records)
    intro = join([introduction(run), box(warned)])
    parts = [
        Section("headline", "Headline", headline(run)),
        Section("numbers", "All numbers", all_numbers(run)),
        Section("figures", "Figures", sections_figures.of_run(run, records)),
        Section("clients-section", "Clients", clients(run.path, records)),
        Section("work", "Work and traffic", join([
            work(run), traffic(run)])),
        Section("config", "Config", config(run)),
        Section("manifest", "Manifest", manifest(run)),
        Section("method", "Method card", method_card(card) or _no_card(run)),
        Section("notes", "Notes", remarks(run)),
    ]
    name = title or f"{run.method} on {run.protocol.get('dataset', 'unknown data')}"
    return page(name, intro, parts, origin)


def _no_card(run: Run) -> Html:
    return element("p", f"The file of {run.protocol['trainer']} was not found, so its card is not "
                   "shown.")
