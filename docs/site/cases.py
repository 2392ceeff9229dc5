"""The page of all published cases: the table ``docs/results/cases.csv``, which the site filters."""

from __future__ import annotations

import csv

from docs.site.tables import escape_markup, row, table
from fedvlm.core.repository import repository

FILE, PAGE = "cases.csv", "results/cases.md"
HEAD = {
    "setting": "setting", "set": "data set", "trained": "what is trained", "method": "method",
    "personal": "personal", "gain": "gain over alone", "alone": "alone", "pooled": "pooled",
    "balanced": "balanced", "worst": "worst client", "new": "new classes", "MB": "sent (MB)",
    "seconds": "seconds", "seeds": "seeds", "shots": "images per class", "classes": "classes",
    "tuned": "tuned",
}
_ABOUT = """# All cases

Each method on each data set of each setting, mean over seeds. Type words into the field to keep the
rows that have all of them, such as `dirichlet eurosat head`; click on a heading to sort. The same
as a spreadsheet: `docs/results/cases.csv` ("sd" there is the standard deviation over seeds).

Accuracies are in percent. "Personal" is the mean over clients on their own test images, "alone" the
best that clients reach without others, "pooled" a classifier on all images in one place, "gain"
personal less alone in points. "Sent" is what all clients upload in the whole run. A method that is
not tuned is in no ranking; empty: it has no own choice of what is trained, or nothing was
measured. How settings and tuning work: [results](README.md).

"""


def pages() -> dict[str, str]:
    """Return the page; none where nothing is published."""
    path = repository() / "docs/results" / FILE
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row(*(escape_markup(one[name]) for name in HEAD))
                for one in csv.DictReader(file)]
    return {PAGE: _ABOUT + table(list(HEAD.values()), rows) + "\n"}
