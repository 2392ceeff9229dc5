"""``log.txt`` with Dassl's ending, so that CoOp's ``parse_test_res.py`` reads our runs.

That script arms itself at a line equal to ``Finish training`` (or ``=> result``) and then takes the
last ``* accuracy: NUMBER%``. So nothing before the closing block may be such a line, and nothing
follows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlm.console.rows import RoundRow, one_line, round_line, table_lines
from fedvlm.core.errors import FedvlmError


@dataclass(frozen=True)
class Headline:
    """The run's headline: what CoOp's tables read.

    Attributes:
        total, correct: test images of all clients, pooled.
        accuracy: percent; the unweighted mean over clients, which is not ``correct / total``
            where clients hold different numbers of test images.
        macro_f1: percent, mean over clients.
    """

    total: int
    correct: int
    accuracy: float
    macro_f1: float


class LogFile:
    """Same subscriber as ``Console``, writing to a file; appends, so a resumed run has one log.

    Args:
        measure: what the one number of a client is.
        publish: changes each line to what may be published of it (``runs.private.public_text``).
    """

    def __init__(
        self, path: Path, total_rounds: int, measure: str = "accuracy",
        publish: Callable[[str], str] = str,
    ) -> None:
        self.path, self.total, self.measure = path, total_rounds, measure
        self._publish = publish

    def header(self, info: Mapping[str, object], config: Sequence[str] = ()) -> None:
        """Write what runs, then the config lines (``config.config_lines``)."""
        self._write([f"{key}: {value}" for key, value in info.items()])
        self._write(["** config **", *config, "************"])

    def round_started(self, round_: int, cids: Sequence[int]) -> None:
        """Write nothing: a round is logged when it is done."""

    def round_finished(self, row: RoundRow) -> None:
        """Write the round's line and, where evaluated, one line per client."""
        clients = [
            f"  client {c.cid}  n {c.n}  {self.measure} {c.accuracy:.2f}"
            for c in row.clients
            if c.accuracy is not None
        ]
        self._write([round_line(row, self.total), *clients])

    def notes(self, notes: Iterable[str]) -> None:
        """Write remarks."""
        self._write([f"note: {note}" for note in notes])

    def result(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Write the final table."""
        self._write(table_lines(rows))

    def lines(self, lines: Sequence[str]) -> None:
        """Write lines of text as they are."""
        self._write(lines)

    def finish(
        self, headline: Headline | None = None, trained: bool = True,
        classes: Sequence[Sequence[str]] = (),
    ) -> None:
        """Write Dassl's closing block; without a headline (stopped early) nothing.

        Args:
            classes: Dassl's lines by class, which follow the block: cells that tabs join.
            trained: False for an evaluation alone, which Dassl's log does not call training.

        Raises:
            FedvlmError: the headline is not a number, so a parser would read nonsense.
        """
        if headline is None:
            return
        if not (math.isfinite(headline.accuracy) and math.isfinite(headline.macro_f1)):
            raise FedvlmError(f"{self.path}: the final accuracy is not a number")
        block = [
            *(["Finish training"] if trained else []),
            "=> result",
            f"* total: {headline.total:,}",
            f"* correct: {headline.correct:,}",
            *self._two_means(headline),
            f"* accuracy: {headline.accuracy:.1f}%",
            f"* error: {100 - headline.accuracy:.1f}%",
            f"* macro_f1: {headline.macro_f1:.1f}%",
        ]
        self._write(block)
        if classes:
            self._append("".join("\t".join(map(one_line, cells)) + "\n" for cells in classes))

    @staticmethod
    def _two_means(headline: Headline) -> list[str]:
        """Return the line on what the accuracy is a mean of, which the parser does not read."""
        if not headline.total:
            return []
        pooled = 100 * headline.correct / headline.total
        same = f"{pooled:.1f}" == f"{headline.accuracy:.1f}"
        return [] if same else [f"(accuracy: mean over clients; correct / total is {pooled:.1f}%)"]

    def _write(self, lines: Sequence[str]) -> None:
        """Append; free text can neither break a line nor look like Dassl's result."""
        self._append("".join(f"{one_line(self._publish(line))}\n" for line in lines))

    def _append(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
