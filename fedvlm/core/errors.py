"""Errors a user can meet: one short message each, with the process exit code it stands for."""

from __future__ import annotations

import difflib
import os
import traceback
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
STANDARD = Path(os.__file__).parent  # Python's own library
_LIKE = 0.6  # how like a name must be to a known one for a hint


class FedvlmError(Exception):
    """Root of the errors that are shown as one message, without a traceback."""

    exit_code = 1


class ConfigError(FedvlmError):
    """Wrong flag, key, value or combination: what, where, nearest valid name, how to mend it."""

    exit_code = 2


class MethodError(FedvlmError):
    """A method's own file failed, or one of its hooks gave what the engine cannot take."""

    exit_code = 2


class DataError(FedvlmError):
    """Missing, corrupt or inconsistent data on disk."""

    exit_code = 3


class UnreadableError(DataError):
    """An image file cannot be opened, or does not decode."""


class DivergedError(FedvlmError):
    """A non-finite loss, gradient, update or aggregate; the message names client, round, tensor."""

    exit_code = 4


class QuorumError(FedvlmError):
    """Fewer clients than the quorum answered in a round; the state before it is kept."""

    exit_code = 6


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return ``; did you mean 'X'?`` for the nearest known name (case, dash, underscore aside).

    Of several that are equally near up to ``most``; an empty string where nothing is near.
    """
    names = [f"'{name}'" for name in _nearest(word, known)[:most]]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def unknown_word(word: str, known: Sequence[str], kind: str = "word") -> str:
    """Return ``unknown word 'X'; did you mean 'Y'? (known: Y, Z)``."""
    return f"unknown {kind} '{word}'{did_you_mean(word, known)} (known: {', '.join(known)})"


def plural(number: int, word: str, many: str = "") -> str:
    """Return ``1 image``, ``2 images``; ``many`` where that is no ``s`` more."""
    return f"{number:,} {word if number == 1 else many or word + 's'}"


def nearest(word: str, known: Iterable[str], least: float = _LIKE) -> str:
    """Return the nearest known name, or an empty string where none is as near as ``least``."""
    return next(iter(_nearest(word, known, least)), "")


def _nearest(word: str, known: Iterable[str], least: float = _LIKE) -> list[str]:
    """Return the nearest known name first, and those that are as near; never what it negates."""
    folded = fold(word)
    names = {fold(k): k for k in known if folded != f"non{fold(k)}"}
    near = difflib.get_close_matches(folded, list(names), n=3, cutoff=least)
    ratio = {n: difflib.SequenceMatcher(None, n, folded).ratio() for n in near}
    return [names[n] for n in near if ratio[n] == ratio[near[0]]]


def fold(name: str) -> str:
    """Fold case, dashes, underscores, blanks and Unicode forms: ``Oxford-Pets`` == ``oxfordpets``.
    """
    return "".join(ch for ch in one_form(name).lower() if ch not in "-_ ")


def one_form(name: str) -> str:
    """Return a name in Unicode's composed form (NFC): a letter and its accent are one sign."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


NO_MEMORY = (
    "the GPU's memory does not suffice: set FED.CHUNK below the number of clients computed at once "
    "(--dry-run shows it) or a smaller --batch-size, with another --tag, since both may change the "
    "last bits; the state after the last whole round is as it was"
)


NO_MEMORY_ELSEWHERE = (
    "the GPU's memory does not suffice: end what else computes on it (nvidia-smi lists it), or use "
    "--device cpu or another card; images that were encoded stay in the cache"
)


_FULL = ("CUDA error: out of memory", "_ALLOC_FAILED", "_ALLOCATION_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Return whether a GPU's memory did not suffice.

    ``torch.OutOfMemoryError``; CUDA's own words where a card is so full that it takes no process,
    or no copy; and those of cuBLAS and cuDNN, which allocate beside PyTorch.
    """
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _FULL))


def failure_text(error: Exception) -> str:
    """Return what a method's own code failed with, on one line; a bare key gets words.

    An assertion without a message is the line that makes it.
    """
    if out_of_memory(error):
        return NO_MEMORY
    text = " ".join(str(error).split())
    if not text and isinstance(error, AssertionError) and error.__traceback__ is not None:
        text = traceback.extract_tb(error.__traceback__)[-1].line or ""
    text = text or "no message"
    missing = "there is no " if isinstance(error, KeyError) else ""
    return f"{type(error).__name__}: {missing}{text}"


def own_line(error: BaseException) -> str:
    """Return `` (mine.py, line 3, in loss)``: where a method's own file, called by us, failed.

    Empty where no frame is outside this package and the libraries, and for errors that say all.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, FedvlmError):
        return ""
    place, called = "", False
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE):
            called = True
        elif called and frame.filename[:1] != "<" and not (
            path.is_relative_to(STANDARD) or "site-packages" in path.parts
        ):
            place = f" ({path.name}, line {frame.lineno}, in {frame.name})"
    return place
