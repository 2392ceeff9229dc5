"""A place in a notebook's output that is written over: progress that does not flood the cell.

Works wherever IPython's kernel runs (Jupyter, VS Code, Colab) and needs no widgets. A notebook
whose output is captured or redirected gets plain lines, as a file does.
"""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

PAUSE = 1.0  # seconds between two drawings


def in_notebook(stream: TextIO | None) -> bool:
    """Tell whether what is written to ``stream`` goes below a cell; imports nothing."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    kernel = getattr(get(), "kernel", None) if get is not None else None
    return kernel is not None and type(stream).__module__.startswith("ipykernel.")


class NotebookText:
    """Text below the cell that runs; the first ``show`` makes it, the others write over it."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = 0.0

    @property
    def due(self) -> bool:
        """Whether the last drawing is long enough ago."""
        return self._handle is None or time.monotonic() - self._last >= PAUSE

    def show(self, text: str) -> None:
        """Write ``text``, in a font of one width."""
        from IPython.display import display  # optional: ipython, which a notebook brings

        self._last = time.monotonic()
        said = {"text/plain": text}
        if self._handle is None:
            self._handle = display(said, raw=True, display_id=True)
        else:
            self._handle.update(said, raw=True)
