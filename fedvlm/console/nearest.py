"""The nearest path to one that does not exist."""

from __future__ import annotations

from pathlib import Path

from fedvlm.core.errors import nearest


def nearest_path(path: Path) -> str:
    """Return ``; did you mean 'output/eurosat'?`` for a folder that does not exist; '' for none.

    The first name that is missing is compared with the folders that stand where it should; a file
    stands for its folder.
    """
    try:
        if path.is_file():
            return f"; did you mean its folder, '{path.parent}'?"
        above = next(folder for folder in path.absolute().parents if folder.is_dir())
        names = [entry.name for entry in above.iterdir() if entry.is_dir()]
    except OSError:
        return ""
    missing, *below = path.absolute().relative_to(above).parts
    name = nearest(missing, names)
    if name:
        whole = above.joinpath(name, *below)
        return f"; did you mean '{_typed(whole if whole.is_dir() else above / name, path)}'?"
    shared = len(path.parts) > len(below) + 1 and above != Path(above.anchor)
    return f"; the nearest existing folder is {_typed(above, path)}" if shared else ""


def _typed(path: Path, example: Path) -> str:
    """Return a path as the example was typed: relative where that was."""
    if example.is_absolute() or not path.is_relative_to(Path.cwd()):
        return str(path)
    return str(path.relative_to(Path.cwd()))
