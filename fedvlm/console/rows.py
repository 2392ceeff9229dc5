"""What the console shows, as plain data and plain text; no screen here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from fedvlm.core.spelling import visible_text

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*%#"
FEW = 20  # clients shown one by one; above that the worst, the best and the median
_ENDS = 5
THERE = ("trained", "absent")  # states of clients that were not lost
MANY = 8  # lost clients named one by one


@dataclass(frozen=True)
class ClientRow:
    """One client after a round.

    Attributes:
        cid: client id.
        n: training images.
        loss: mean training loss of its last local epoch; None where it never trained.
        accuracy: percent on its own test split; None where it was not evaluated.
        state: ``trained``, ``absent`` (not drawn), or why it was lost: ``dropped``, ``NaN``, ``no
            answer``, ``late``, ``away``.
    """

    cid: int
    n: int
    loss: float | None = None
    accuracy: float | None = None
    state: str = "trained"


@dataclass(frozen=True)
class RoundRow:
    """One finished round (0 is the untrained model).

    Attributes:
        round: 0..T.
        seconds: wall time of the round, evaluation included.
        loss: mean training loss over the clients that worked.
        personal: unweighted mean accuracy over the clients asked, percent; None: not evaluated.
        worst: the worst client's accuracy, percent.
        bytes: sent and received by all clients in this round.
        clients: one row per client that worked or was evaluated.
        extra: further numbers for ``log.txt`` (``{"global": 71.2}``).
        asked: how many clients ``personal`` is the mean of, where it is not all of them.
    """

    round: int
    seconds: float
    loss: float | None = None
    personal: float | None = None
    worst: float | None = None
    bytes: int = 0
    clients: Sequence[ClientRow] = ()
    extra: Mapping[str, float] = field(default_factory=dict)
    asked: int | None = None


def round_line(row: RoundRow, total: int) -> str:
    """Return ``round 3/10  loss 1.234  personal 81.2 (worst 60.0)  0.4 s``.

    It never matches ``* accuracy:``, which CoOp's ``parse_test_res.py`` looks for.
    """
    parts = [f"round {row.round:>{len(str(total))}}/{total}"]
    if row.loss is not None:
        parts.append(f"loss {row.loss:.3f}")
    if row.personal is not None:
        worst = "" if row.worst is None else f"worst {row.worst:.1f}"
        said = ", ".join(part for part in (worst, of_clients(row)) if part)
        parts.append(f"personal {row.personal:.1f}{f' ({said})' if said else ''}")
    parts += [f"{name} {value:.1f}" for name, value in row.extra.items()]
    gone = [c for c in row.clients if c.state not in THERE]
    if len(gone) > MANY:
        counts = Counter(c.state for c in gone).most_common()
        parts.append(f"lost {len(gone)}: {', '.join(f'{n} {state}' for state, n in counts)}")
    elif gone:
        parts.append(f"lost: {', '.join(f'{c.cid} {c.state}' for c in gone)}")
    return "  ".join([*parts, f"{row.seconds:.1f} s"])


def of_clients(row: RoundRow) -> str:
    """Return ``2 clients`` where ``personal`` is not the mean of all; else nothing."""
    return "" if row.asked is None else f"{row.asked} client{'s' * (row.asked != 1)}"


def spark(values: Sequence[float], *, ascii_only: bool = False, width: int = 12) -> str:
    """Return the last ``width`` values as bars between their own minimum and maximum.

    The range is at least 5 (percent), so that noise does not look like a trend.
    """
    bars = _ASCII_BARS if ascii_only else _BARS
    recent = [v for v in values if math.isfinite(v)][-width:]
    if not recent:
        return ""
    low = min(recent)
    span = max(max(recent) - low, 5.0)
    return "".join(bars[min(int((v - low) / span * len(bars)), len(bars) - 1)] for v in recent)


def select_clients(clients: Sequence[ClientRow]) -> tuple[list[ClientRow], float | None]:
    """Return the clients to show, and the median accuracy where not all are shown.

    Up to 20 clients: all, by id. Above: the worst five and the best five.
    """
    if len(clients) <= FEW:
        return sorted(clients, key=lambda c: c.cid), None
    rated = sorted((c for c in clients if c.accuracy is not None), key=_accuracy)
    if not rated:
        return sorted(clients, key=lambda c: c.cid)[: 2 * _ENDS], None
    ends = rated[:_ENDS] + rated[max(_ENDS, len(rated) - _ENDS) :]
    return ends, median(_accuracy(c) for c in rated)


def _accuracy(client: ClientRow) -> float:
    return -1.0 if client.accuracy is None else client.accuracy


def human_bytes(count: float) -> str:
    """Return ``2.1 MB`` (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def clock(seconds: float) -> str:
    """Return ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_number(value: object, digits: int = 1) -> str:
    """Return a cell's text: floats rounded, None and NaN as a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def table_lines(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return rows of named cells as aligned lines under a header; columns as they first appear."""
    cells = [{one_line(k): one_line(format_number(v)) for k, v in row.items()} for row in rows]
    columns = list(dict.fromkeys(name for row in cells for name in row))
    lines = [columns, *([row.get(name, "-") for name in columns] for row in cells)]
    if len(lines) == 1:
        return []
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def one_line(value: object) -> str:
    """Return ``value`` as text on one line: control characters are escaped."""
    return visible_text(str(value))
