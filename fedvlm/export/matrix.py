"""Which method goes into which format: exported, refused and why, largest difference of logits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedvlm.core.errors import ConfigError
from fedvlm.export.trained import TrainedModel
from fedvlm.export.write import FORMATS, export


@dataclass(frozen=True)
class MatrixCell:
    """One attempt.

    Attributes:
        name: of the model.
        format: of ``FORMATS``.
        difference: of the logits read back (``Exported.difference``); None where it was refused.
        reason: why it was.
    """

    name: str
    format: str
    difference: float | None
    reason: str = ""


def try_exports(
    models: Mapping[str, TrainedModel], formats: Iterable[str] = tuple(FORMATS)
) -> list[MatrixCell]:
    """Export every model in every format into a temporary folder and read it back.

    A refusal (``ConfigError``) is a cell; whatever else goes wrong is raised.
    """
    cells = []
    chosen = tuple(formats)
    with tempfile.TemporaryDirectory() as place:
        for number, (name, trained) in enumerate(models.items()):
            for form in chosen:
                folder = Path(place) / f"{number}-{form}"
                try:
                    cells.append(MatrixCell(name, form, export(trained, folder, form).difference))
                except ConfigError as error:
                    cells.append(MatrixCell(name, form, None, str(error)))
    return cells


def markdown(cells: Iterable[MatrixCell]) -> str:
    """Return a table, models in rows and formats in columns, with the reasons as footnotes."""
    rows: dict[str, dict[str, MatrixCell]] = {}
    for cell in cells:
        rows.setdefault(cell.name, {})[cell.format] = cell
    formats = list(dict.fromkeys(form for row in rows.values() for form in row))
    notes: list[str] = []

    def text(cell: MatrixCell | None) -> str:
        if cell is None:
            return ""
        if cell.difference is not None:
            return f"{cell.difference:.0e}"
        if cell.reason not in notes:
            notes.append(cell.reason)
        return f"refused ({notes.index(cell.reason) + 1})"

    lines = [f"| model | {' | '.join(formats)} |", f"|---|{'---|' * len(formats)}"]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(text(row.get(f)) for f in formats)} |")
    return "\n".join(lines + [""] + [f"{i}. {note}" for i, note in enumerate(notes, 1)]) + "\n"
