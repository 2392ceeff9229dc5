"""The table of clients on a run's page: data, accuracy, its course over the rounds, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.report.collect import as_float
from fedvlm.report.pages.grid import table
from fedvlm.report.pages.html import Content, Html, cell, decimal, element, signed_text
from fedvlm.report.pages.numbers import FEW, megabyte_text
from fedvlm.runs.names import read_partition
from fedvlm.runs.private import read_private
from fedvlm.runs.verify.answer import alone_by_client, measure_word

LENGTH = 40  # points of a client's curve at most
COLUMNS = {"client", "n", "correct", "accuracy"}  # keys of a client with a column of their own
PLAIN = {  # what is no percentage: its unit and decimals
    "positives": ("", 0), "broken": ("", 0), "temperature": ("", 3), "nll": (" (nats)", 3),
    "nll_calibrated": (" (nats)", 3),
}


def client_table(
    folder: Path, records: Sequence[Mapping[str, Any]], results: Mapping[str, Any]
) -> Html:
    """Return one row per client, as the last evaluated round found it; nothing without any.

    Args:
        folder: the run's; its ``partition.csv`` gives domains, classes and training images.
        records: the run's rounds.
        results: the run's, of whose answer is what each client reaches alone.
    """
    evaluated = [r for r in records if r.get("clients")]
    if not evaluated:
        return Html("")
    data = _holdings(folder)
    rounds: list[dict[int, Mapping[str, Any]]] = [
        {int(one["client"]): one for one in record["clients"]} for record in evaluated]
    first, last = rounds[0], rounds[-1]
    curves = {c: [as_float(one.get(c, {}).get("accuracy")) for one in rounds] for c in last}
    values = [v for curve in curves.values() for v in curve if v is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    more = [k for k in dict.fromkeys(k for one in last.values() for k in one)
            if k not in COLUMNS and any(as_float(one.get(k)) is not None for one in last.values())]
    domains = any(one["domain"] for one in data.values())
    sent = [_bytes(records, way) for way in ("up", "down")]
    names = read_private(folder)["clients"]
    measure = measure_word(next(iter(last.values()), {}))
    baseline, alone = alone_by_client(results)
    heads: list[Content] = ["client", *(["name"] if names else []),
                            *(["domain"] if domains else []), *_counts(data), "test images",
                            f"{measure} (%)",
                            *(["alone (%)", "gain on alone"] if alone else []),
                            "gain on start", "over rounds",
                            *(name + PLAIN.get(name, (" (%)", 1))[0] for name in more),
                            "last loss", "sent", "received"]
    rows: list[Sequence[Content]] = []
    for client, one in last.items():
        there = data.get(client, {})
        accuracy, start = as_float(one.get("accuracy")), as_float(
            first.get(client, {}).get("accuracy"))
        own = alone.get(client)
        rows.append([
            client, *([names[client] if client < len(names) else ""] if names else []),
            *([str(there.get("domain", ""))] if domains else []),
            *(there.get(key, 0) for key in _counts(data).values()), one.get("n", 0),
            cell(decimal(accuracy), accuracy),
            *([cell(decimal(own), own), _gain(accuracy, own)] if alone else []),
            _gain(accuracy, start),
            _spark(curves[client], low, high),
            *(cell(decimal(as_float(one.get(k)), PLAIN.get(k, ("", 1))[1]), as_float(one.get(k)))
              for k in more),
            _loss(records, client),
            *(cell(megabyte_text(by.get(client, 0)), by.get(client, 0)) for by in sent),
        ])
    words = (
        f"{len(rows)} clients after round {evaluated[-1].get('round')}; gain: on the untrained "
        f"model of round {evaluated[0].get('round')}; curves from {low:.0f} to {high:.0f} %"
    )
    if alone:
        words += f"; alone: {baseline}"
    if names:
        words += "; the names are this machine's (private.json): this page is not for others"
    return table(heads, rows, caption=words, sortable=True, tall=len(rows) > FEW,
                 key="client-table")


def _gain(value: float | None, other: float | None) -> Html:
    gain = None if value is None or other is None else value - other
    return cell("" if gain is None else signed_text(gain), gain)


def _holdings(folder: Path) -> dict[int, dict[str, Any]]:
    """Return what each client holds: domain, training images, classes; empty where unknown."""
    try:
        rows = read_partition(folder)
    except DataError:
        return {}
    holdings: dict[int, dict[str, Any]] = {}
    for row in rows:
        if not str(row["client"]).isdigit() or not str(row["images"]).isdigit():
            continue
        one = holdings.setdefault(
            int(row["client"]), {"domains": set(), "train": 0, "classes": set()})
        if row["part"] == "train" and int(row["images"]):
            one["domains"].add(row["domain"] or "")
            one["classes"].add(row["class"])
            one["train"] += int(row["images"])
    for one in holdings.values():
        one["domain"] = ", ".join(sorted(d for d in one.pop("domains") if d))
        one["classes"] = len(one["classes"])
    return holdings


def _counts(data: Mapping[int, Any]) -> dict[str, str]:
    """Return heading -> key of what is known of the clients' data."""
    return {"training images": "train", "classes": "classes"} if data else {}


def _bytes(records: Sequence[Mapping[str, Any]], way: str) -> dict[int, float]:
    total: dict[int, float] = {}
    for record in records:
        for client, count in (record.get(f"bytes_{way}") or {}).items():
            total[int(client)] = total.get(int(client), 0.0) + (as_float(count) or 0.0)
    return total


def _loss(records: Sequence[Mapping[str, Any]], client: int) -> Html:
    """Return the loss of the last round that the client took part in."""
    for record in reversed(records):
        training = (record.get("train") or {}).get(str(client))
        if isinstance(training, Mapping):
            value = as_float(training.get("loss"))
            return cell(decimal(value, 3), value)
    return cell(decimal(None), None)


def _spark(curve: Sequence[float | None], low: float, high: float) -> Html:
    """Return a client's accuracy over the evaluated rounds as a small line, ranked by its last."""
    every = [(i, v) for i, v in enumerate(curve) if v is not None]
    step = max(-(-len(every) // LENGTH), 1)
    drawn = every[::-step][::-1]  # the last round stays
    wide, span = max(len(curve) - 1, 1), (high - low) or 1.0
    points = " ".join(
        f"{1 + 98 * i / wide:.0f},{19 - 18 * (v - low) / span:.1f}" for i, v in drawn
    )
    line = element(
        "svg", element("polyline", points=points, vector_effect="non-scaling-stroke"),
        class_="spark", viewBox="0 0 100 20", preserveAspectRatio="none", aria_hidden="true",
    )
    return cell(line if len(drawn) > 1 else "", every[-1][1] if every else None)
