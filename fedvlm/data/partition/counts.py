"""Who holds how much: images counted by client, domain, part and class, as rows and as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.core.spelling import cell_text
from fedvlm.data.datum import PARTS
from fedvlm.data.federated import FederatedData

COUNT_COLUMNS = ("client", "domain", "part", "class", "images")


def count_rows(data: FederatedData) -> list[dict[str, Any]]:
    """Return one row per (client, part, domain, class) that has images, in that order.

    A row holds ``client`` (from 0), ``domain`` (the images' own, empty in a set without domains),
    ``part`` (train, val or test), ``class`` (its name) and ``images`` (how many, at least 1).
    Of a set of labels the class is the one by which the image was dealt, its rarest label.
    Domains and classes come in the set's order, so a class without a client has no row.
    """
    rows: list[dict[str, Any]] = []
    labels, names = data.dealt_as()
    for number, client in enumerate(data.clients):
        for part in PARTS:
            at = getattr(client, part)
            pairs = zip(data.domains[at].tolist(), labels[at].tolist(), strict=True)
            for (domain, label), images in sorted(Counter(pairs).items()):
                name = data.domain_names[domain] if data.domain_names else ""
                values = (number, name, part, names[label], images)
                rows.append(dict(zip(COUNT_COLUMNS, values, strict=True)))
    return rows


def known_rows(
    sizes: Mapping[str, Sequence[int]], classes: Sequence[Sequence[int]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the rows of clients at other sites, from the counts that the sites sent.

    A class is empty where only the number of all images of a part is known.

    Args:
        sizes: by part, images of each client.
        classes: training images of each client by class, ``[N, C]``; all 0 where it is not known.
        names: of the classes.
    """
    rows = []
    for number, counts in enumerate(classes):
        by_class = [(name, int(n)) for name, n in zip(names, counts, strict=False) if n]
        for part in PARTS:
            whole = [("", int(sizes[part][number]))]
            for name, images in (by_class or whole) if part == "train" else whole:
                if images:
                    row = (number, "", part, name, images)
                    rows.append(dict(zip(COUNT_COLUMNS, row, strict=True)))
    return rows


def partition_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header line (a run's ``partition.csv``)."""
    text = io.StringIO()
    table = csv.DictWriter(text, COUNT_COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows({k: cell_text(v) for k, v in row.items()} for row in rows)
    return text.getvalue()
