"""Fetch one file over HTTP: it grows as ``<name>.part``, a cut transfer goes on, sums are checked.

A note beside the part says which version of the file the server sends, so that a later process
too goes on from there, and starts again where the server's file has changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.progress import Progress

TIMEOUT = 60.0  # seconds without a byte
MOST_TRIES = 5  # in a row that bring nothing
RETRY_PAUSE = 1.0  # seconds before the second try, doubled each time
_BLOCK = 1 << 20
_BROKEN = (OSError, http.client.HTTPException)  # urllib's errors are OSErrors


@dataclasses.dataclass(frozen=True)
class _Head:
    """The whole file by a server's answer: size (-1 unknown) and version ("" unknown)."""

    size: int
    version: str
    url: str


class _Interruption(Exception):
    """The other side failed; trying again may help."""


def check_url(url: str) -> None:
    """Refuse what is not plain HTTP.

    Raises:
        ConfigError: another scheme or no host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"'{url}' is no address to download from; give http:// or https://")


def fetch(url: str, path: Path, checksum: str, progress: Progress) -> Path:
    """Download one file to ``path``, going on from ``<path>.part``; return ``path``.

    Args:
        checksum: ``md5:<hex>`` or ``sha256:<hex>`` of the whole file.

    Raises:
        DataError: no connection, the server's refusal, wrong checksum (the file is deleted), no
            room. What was fetched before a cut stays, and the next call goes on from there.
    """
    part, note = path.with_name(path.name + ".part"), path.with_name(path.name + ".part.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            _fill(url, part, note, progress)
            os.replace(part, path)
        note.unlink(missing_ok=True)
        _verify(path, checksum, url, progress)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}; fix that and run the "
                        "same command again to resume") from error
    return path


def _fill(url: str, part: Path, note: Path, progress: Progress) -> None:
    """Fetch until the file is whole; give up after MOST_TRIES answers without a new byte."""
    failed = 0
    while failed < MOST_TRIES:
        if failed:
            time.sleep(RETRY_PAUSE * 2 ** (failed - 1))
        before = part.stat().st_size if part.is_file() else 0
        try:
            if _go_on(url, part, note, progress):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            _refuse_answer(error, url)
            reason = f"the server answers {error.code} {error.reason}"
        except _Interruption as error:
            reason = str(error)
        have = part.stat().st_size if part.is_file() else 0
        failed = 0 if have > before else failed + 1
    if not have:
        raise DataError(f"cannot download {url}: {reason}; nothing was downloaded: check the "
                        "network, or give another address with --url-base")
    raise DataError(f"cannot download {url}: {reason}; {have:,} bytes are kept in {part.parent}, "
                    "so run the same command again later to resume")


def _refuse_answer(error: urllib.error.HTTPError, url: str) -> None:
    """Say at once what no second try will change."""
    if error.code < 500 and error.code not in (408, 425, 429):
        raise DataError(f"cannot download {url}: the server answers {error.code} {error.reason}; "
                        "get the file from another address with --url-base, or by hand") from error


def _go_on(url: str, part: Path, note: Path, progress: Progress) -> bool:
    """Fetch from where the part ends; return whether the file is whole now."""
    offset, last = _resume_point(part, note, url)
    if offset == last.size:
        return True
    headers = {"User-Agent": "fedvlm", "Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": last.version}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (check_url saw it)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == 416 and offset:  # the part is longer than the file: begin again
            part.unlink(missing_ok=True)
            return False
        raise
    except _BROKEN as error:
        raise _Interruption(_words(error)) from error
    with answer:
        head, start = _head(answer, url)
        if start and (start != offset or head.size != last.size):
            part.unlink(missing_ok=True)  # not what was asked for
            return False
        _check_room(part, head.size, start)
        note.write_text(json.dumps(dataclasses.asdict(head)), encoding="utf-8")
        return _copy(answer, part, start, head.size, progress)


def _resume_point(part: Path, note: Path, url: str) -> tuple[int, _Head]:
    """Return from which byte to go on, and the version of the file these bytes are of.

    Without a note of the version, or from another address, the bytes cannot be trusted: 0.
    """
    try:
        last = _Head(**json.loads(note.read_text(encoding="utf-8")))
        offset = part.stat().st_size
        if last.url == url and last.version and 0 < offset <= last.size:
            return offset, last
    except (OSError, ValueError, TypeError):
        pass
    return 0, _Head(-1, "", url)


def _head(answer: Any, url: str) -> tuple[_Head, int]:
    """Return the whole file's size and version by an answer, and the byte that it starts at."""
    # A weak ETag may not be used to go on (RFC 9110, 13.1.5).
    tag = answer.headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")
    length = answer.headers.get("Content-Length", "")
    size, start = int(length) if length.isdigit() else -1, 0
    if answer.status == 206:
        content_range = answer.headers.get("Content-Range", "").removeprefix("bytes ")
        span, _, total = content_range.partition("/")
        first = span.partition("-")[0]
        if not first.isdigit() or not total.isdigit():
            raise _Interruption(f"the server's Content-Range is '{content_range}'")
        size, start = int(total), int(first)
    return _Head(size, version, url), start


def _copy(answer: Any, part: Path, start: int, size: int, progress: Progress) -> bool:
    """Append the answer to the part; a lost connection keeps what has come."""
    with open(part, "r+b" if start else "wb") as out:
        out.seek(start)
        have = start
        while True:
            try:
                block = answer.read1(_BLOCK)
            except _BROKEN as error:
                raise _Interruption(_words(error)) from error
            if not block:
                break
            out.write(block)
            have += len(block)
            progress(f"downloading {part.name.removesuffix('.part')}, bytes", have, max(size, have))
        out.truncate()
    return size < 0 or have == size


def _check_room(part: Path, size: int, start: int) -> None:
    """Refuse before the disk is full: the rest of the file, and as much again unpacked."""
    need, free = max(size - start, 0) + max(size, 0), shutil.disk_usage(part.parent).free
    if need > free:
        raise DataError(f"no room in {part.parent}: {need / 1e9:.1f} GB are needed to download and "
                        f"unpack, {free / 1e9:.1f} GB are free; free some, or take another --root")


def _verify(path: Path, checksum: str, url: str, progress: Progress) -> None:
    kind, _, published = checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    done, size = 0, path.stat().st_size
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            progress(f"verifying {path.name}, bytes", done, size)
    if digest.hexdigest() != published.lower():
        path.unlink()
        raise DataError(f"{url} has {kind} {digest.hexdigest()}, not {published}: it is not "
                        "the published file and was deleted; run the command again, or name a "
                        "mirror with --url-base")


def _words(error: BaseException) -> str:
    """Return why a connection failed, in a line."""
    reason = getattr(error, "reason", None) or error
    return " ".join(str(reason).split()) or type(error).__name__
