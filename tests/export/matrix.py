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
