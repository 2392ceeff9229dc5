"""Two runs client by client, and image by image where both kept their logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedvlm.report.compare_logits import logits_tests
from fedvlm.report.compare_read import Side
from fedvlm.report.compare_text import Row, Section, interval, p_value, plain, signed
from fedvlm.report.paired import FEWEST, METHODS, McNemar, Paired, paired

MOST = 40  # clients shown one by one; of more, those that lost and gained most
ENDS = 10
ONE_SEED = "of these clients and seeds alone: what other seeds would give, --over-seeds says"

Line = dict[str, Any]


def sections(a: Side, b: Side, rounds: tuple[int, int]) -> tuple[list[Section], dict[str, Any]]:
    """Return the sections of clients and images of one partition, and their data.

    Args:
        rounds: the evaluated round of A, and that of B.
    """
    lines, left = client_lines(a.record(rounds[0]), b.record(rounds[1]))
    found = paired([x["a"] for x in lines], [x["b"] for x in lines])
    data: dict[str, Any] = {
        "clients": lines, "per_client": asdict(found) if found else None, "methods": METHODS,
    }
    said = [f"no test images for client {', '.join(map(str, left))}: left out"] if left else []
    if found is None:
        return [Section("Clients", [*said, "no client was evaluated in both runs"])], data
    rows = [_row(x) for x in _shown(lines)]
    if len(rows) < len(lines):
        said.append(f"{ENDS} that lost and {ENDS} that gained most of {len(lines)} clients")
    after = [*spread_lines(found, "client"), ONE_SEED]
    out = [Section("Clients, personal accuracy in %", said, rows, after)]
    both_last = a.finished and b.finished
    tests, why = logits_tests(a, b) if both_last else ({}, "")
    data["images"] = {name: asdict(test) for name, test in tests.items()}
    if tests or why:
        rows = [_test_row(name, test) for name, test in tests.items()]
        method = ["McNemar's exact test, two-sided"] if tests else []
        out.append(Section("Test images, last round", [*method, why], rows))
    return out, data


def client_lines(
    a: Mapping[str, Any], b: Mapping[str, Any]
) -> tuple[list[Line], list[int]]:
    """Return ``client, n, a, b, difference`` per client that both evaluated; and who is left out.

    Args:
        a, b: evaluated records with ``clients``.
    """
    left, right = ({row["client"]: row for row in side.get("clients", [])} for side in (a, b))
    lines, out = [], []
    for client in sorted(set(left) | set(right)):
        x, y = (side.get(client, {}).get("accuracy") for side in (left, right))
        if x is None or y is None:
            out.append(client)
            continue
        n = left[client].get("n")
        lines.append({"client": client, "n": n, "a": x, "b": y, "difference": y - x})
    return lines, out


def spread_lines(found: Paired, what: str) -> list[str]:
    """Return the statistics of paired numbers in words.

    Args:
        what: is paired: ``client``, ``seed``.
    """
    lines = [
        f"mean difference {signed(found.difference)} over {found.n} {what}"
        f"{'s' if found.n > 1 else ''}; B is better for {found.wins}, equal for {found.ties}, "
        f"worse for {found.losses}"
    ]
    if found.wins == found.losses == 0:
        return [*lines, f"every {what} is equal: nothing to test"]
    if found.t is None:
        return [*lines, f"one {what} alone has no interval"]
    lines.append(f"95 % intervals: t {interval(found.t)}, bootstrap {interval(found.bootstrap)}")
    unequal = found.wins + found.losses
    lines.append(
        f"signed-rank p {p_value(found.wilcoxon)}" if found.wilcoxon is not None else
        f"no signed-rank test: {unequal} unequal {what}s, fewer than {FEWEST}"
    )
    return [*lines, METHODS]


def _shown(lines: Sequence[Line]) -> list[Line]:
    if len(lines) <= MOST:
        return list(lines)
    ranked = sorted(lines, key=lambda x: (x["difference"], x["client"]))
    return ranked[:ENDS] + ranked[-ENDS:]


def _row(line: Line) -> Row:
    return {
        "client": str(line["client"]), "n": str(line["n"]), "A": plain(line["a"]),
        "B": plain(line["b"]), "B - A": signed(line["difference"]),
    }


def _test_row(name: str, test: McNemar) -> Row:
    counts = {
        "images": test.n, "both right": test.both, "only A": test.only_a, "only B": test.only_b,
        "neither": test.neither,
    }
    return {"model": name} | {k: str(v) for k, v in counts.items()} | {"p": p_value(test.p)}
