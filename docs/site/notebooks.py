"""Run the notebooks (``python -m docs.site.notebooks``) and show them as pages.

They are stored with their text output only: no pictures, no metadata of a machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from docs.site.tables import code

FOLDER = Path(__file__).parents[1] / "notebooks"
LONGEST = 400  # seconds for a cell


def notebooks() -> list[Path]:
    """Return the notebooks' files, by name."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path, folder: Path) -> Any:
    """Return the notebook as run in ``folder``, in a kernel of this Python.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    client = NotebookClient(
        book, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return book


def cleaned(book: Any) -> dict[str, Any]:
    """Return a notebook that was run, with what is kept of it."""
    cells = []
    for number, cell in enumerate(book["cells"]):
        kept = {"cell_type": cell["cell_type"], "id": f"cell-{number}", "metadata": {},
                "source": cell["source"]}
        if cell["cell_type"] == "code":
            kept |= {"execution_count": None, "outputs": [
                {"name": "stdout", "output_type": "stream", "text": said}
            ] if (said := output(cell)) else []}
        cells.append(kept)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def output(cell: Any) -> str:
    """Return what a cell printed and its last value, as text."""
    texts = []
    for out in cell.get("outputs", []):
        if out["output_type"] == "stream" and out["name"] == "stdout":
            texts.append(_joined(out["text"]))
        elif "data" in out:
            texts.append(_joined(out["data"].get("text/plain", "")) + "\n")
    return "".join(texts)


def page(path: Path) -> str:
    """Return a notebook as Markdown: its cells, and under each what it printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = _joined(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else code("python", source))
        if said := output(cell):
            parts.append(code("text", said))
    parts.append(f"*This page is the notebook `docs/notebooks/{path.name}`.*")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return a page per notebook: path in the site -> Markdown."""
    return {f"notebooks/{path.stem}.md": page(path) for path in notebooks()}


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def main() -> None:
    """Run every notebook in a folder of its own and write its output into it."""
    for path in notebooks():
        with tempfile.TemporaryDirectory() as folder:
            book = cleaned(execute(path, Path(folder)))
        path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
