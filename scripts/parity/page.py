"""The table of all comparisons, from the stored figures."""

from __future__ import annotations

from pathlib import Path

from parity.figures import AUTHORS, GOLDEN, OTHERS, PAPER, READING, read_golden, stored_deviation

BEGIN, END = "<!-- table -->", "<!-- end -->"
GITHUB = "https://github.com"


def rows() -> list[str]:
    """Return one line per method: source, commit, what is compared, largest deviation."""
    found = []
    for path in sorted(GOLDEN.glob("*.json")):
        source, _ = read_golden(path)
        place = (f"[{source.repository}]({GITHUB}/{source.repository}) at {source.commit[:7]}"
                 if source.commit else source.repository)
        found.append(
            f"| {source.method} | {source.kind} | {place} | {source.equal} | "
            f"{stored_deviation(path):.0e} | {source.differs or 'nothing'} |"
        )
    return found


def counts() -> str:
    """Return how many methods are held to which kind of source."""
    kinds = [read_golden(path)[0].kind for path in GOLDEN.glob("*.json")]
    return (f"{len(kinds)} methods: {kinds.count(AUTHORS)} with their authors' code, "
            f"{kinds.count(OTHERS)} with code of others, {kinds.count(PAPER)} with an "
            f"implementation from the paper alone, {kinds.count(READING)} with a second one of our "
            "own reading of an abstract or a summary, since no more is to be had here.")


def table() -> str:
    """Return the count and the table."""
    head = ("| method | held to | source | compared | largest deviation | set for the comparison |",
            "|---|---|---|---|---|---|")
    return "\n".join([counts(), "", *head, *rows()])


def write_page(path: Path) -> None:
    """Replace what stands between the page's marks."""
    replace_between(path, BEGIN, END, table())


def replace_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a file, each on a line of its own."""
    before, rest = path.read_text(encoding="utf-8").split(begin)
    path.write_text("\n".join([before + begin, text, end + rest.split(end)[1]]), encoding="utf-8")
