"""Run the classes of ``docs/repositories.md`` again and write their outcomes into its table.

    python scripts/repository_table.py FOLDER --root DATA/
    python scripts/repository_table.py FOLDER --root DATA/ GLP_OT TCP    # these classes alone

FOLDER holds the repositories, each under the name that the table gives it, at its commit. Their
code runs with your rights. A row is one command, two rounds of two clients on EuroSAT; of what it
says the page keeps "runs", or the sentence of the refusal. About an hour on one core.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "repositories.md"
BEGIN, END = "<!-- table -->", "<!-- end -->"
HEAD = ("class", "repository", "file", "settings", "outcome", "remark")
COMMON = """run --dataset eurosat --num-users 2 --shots 2 --rounds 2 --local-epochs 1
            --backbone tiny TEST.REFERENCES False"""
ALONE = ("--backbone",)  # a flag of COMMON that a row gives itself


@dataclass(frozen=True)
class Row:
    """A class of the table; ``file`` and ``settings`` lie in its repository."""

    name: str
    repository: str
    file: str
    settings: str
    outcome: str
    remark: str

    @property
    def folder(self) -> str:
        """The repository's name: ``CoOp`` of ``[CoOp](https://...) ff61507``."""
        return self.repository.partition("[")[2].partition("]")[0]

    def words(self, folder: Path) -> list[str]:
        """Return the words behind ``fedvlm``, but for data and output."""
        own, words = self.settings.split(), COMMON.split()
        for flag in ALONE:
            if flag in own:
                at = words.index(flag)
                del words[at : at + 2]
        own = [str(folder / self.folder / w) if w.endswith(".yaml") else w for w in own]
        file = folder / self.folder / self.file
        return [*words, "--trainer", f"{file}:{self.name}", *own]

    def __str__(self) -> str:
        """Return the line of the table."""
        file, settings = f"`{self.file}`", f"`{self.settings}`" if self.settings else ""
        cells = (self.name, self.repository, file, settings, self.outcome, self.remark)
        return f"| {' | '.join(cells)} |"


def rows_of(page: str) -> Iterator[Row]:
    """Yield the rows of the page's table.

    Raises:
        ValueError: a line that is no row.
    """
    for line in page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]:
        name, where, file, settings, *rest = (c.strip() for c in line.strip("| ").split(" | "))
        yield Row(name, where, file.strip("`"), settings.strip("`"), *[*rest, ""][:2])


def outcome(row: Row, folder: Path, root: Path) -> str:
    """Run a row's command; return what became of it."""
    with tempfile.TemporaryDirectory() as output:
        done = subprocess.run(  # noqa: S603 (what the user names)
            [sys.executable, "-m", "fedvlm", *row.words(folder), "--root", str(root),
             "--output-dir", output],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )
    if done.returncode == 0:
        return "runs"
    errors = [w for w in done.stderr.splitlines() if w.startswith("error: ")] or ["no sentence"]
    said = errors[0].removeprefix("error: ").replace("|", "/").replace(f"{folder}/", "")
    said = said.replace(str((folder / row.folder).resolve()), row.folder)
    return f"refused: {re.sub(r'[`*_]', lambda m: chr(92) + m.group(), said)}"


def write(page: str, rows: Sequence[Row]) -> str:
    """Return the page with these rows."""
    before, _, rest = page.partition(BEGIN)
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}", *map(str, rows)]
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}"


def main(words: Sequence[str]) -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("classes", nargs="*")
    args = parser.parse_intermixed_args(words)
    rows = list(rows_of(PAGE.read_text(encoding="utf-8")))
    for i, row in enumerate(rows):
        if args.classes and row.name not in args.classes:
            continue
        found = outcome(row, args.folder.resolve(), args.root.resolve())
        rows[i] = replace(row, outcome=found)
        print(f"{datetime.datetime.now():%H:%M} {row.name}: {found}", flush=True)
        PAGE.write_text(write(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
