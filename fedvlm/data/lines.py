"""Text files that list something, line by line."""

from __future__ import annotations

from pathlib import Path

from fedvlm.errors import DataError


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return (line number from 1, text without blanks around it) of the lines that say something.

    Raises:
        DataError: unreadable or not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8") from error
    lines = enumerate(text.splitlines(), 1)
    return [(number, line.strip()) for number, line in lines if line.strip()]
