"""Unpack tar and zip archives that come from outside: a new folder, all of it or nothing.

Refused, before or while it is written: paths that lead outside, links, devices, two members for
one file, encrypted members, and bombs (too many members, too large, too large for the archive's
own size). Everything goes into a temporary folder beside the target, renamed at the end.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.progress import Progress
from fedvlm.core.spelling import name_fault, show_name
from fedvlm.data.locate import check_relative

_BLOCK = 1 << 20
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError,
           NotImplementedError, ValueError, UnicodeError, RuntimeError, gzip.BadGzipFile)

_COMPRESSED: tuple[tuple[bytes, Callable[[IO[bytes]], object]], ...] = (
    (b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open),
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What an archive of images may be at most.

    Attributes:
        members: files and folders in it.
        size: bytes of all files.
        ratio: bytes of all files per byte of the archive; images hardly shrink.
        free: bytes that are always allowed: small text shrinks well.
    """

    members: int = 500_000
    size: int = 300 * 2**30
    ratio: float = 100.0
    free: int = 16 * 2**20

    def bytes_of(self, archive: Path) -> int:
        """Return how many bytes may come out of this archive."""
        return min(self.size, max(self.free, int(self.ratio * archive.stat().st_size)))


LIMITS = Limits()


def unpack_archive(
    archive: Path, target: Path, limits: Limits = LIMITS, progress: Progress | None = None
) -> int:
    """Unpack an archive into a new folder and return the number of files.

    The kind is read from the content, not the name: zip, tar, and tar in gzip, bzip2 or xz.

    Args:
        target: must not exist; its parent is made.
        progress: called with (what, done, of): bytes of the archive for tar, files for zip.

    Raises:
        DataError: the archive is broken or refused, the target exists, the disk is full; nothing
            was kept of it.
    """
    if target.exists() or target.is_symlink():
        raise DataError(f"{target} exists already; move it away to unpack {archive.name} there")
    try:
        with files.temporary_folder(target) as temporary:
            writer = _Writer(archive, temporary, limits)
            step = progress or (lambda what, done, of: None)
            if zipfile.is_zipfile(archive):
                _unpack_zip(archive, writer, step)
            else:
                _unpack_tar(archive, writer, step)
            if not writer.files:
                raise DataError(f"{archive}: there is no file in it")
            os.rename(temporary, target)
    except _BROKEN as error:
        raise DataError(f"{archive} is not a whole zip or tar archive: {error}; get it again "
                        "(a wrong or cut download)") from error
    except OSError as error:
        raise DataError(f"cannot unpack {archive} into {target}: {error.strerror or error}; "
                        "nothing was left there") from error
    return writer.files


class _Writer:
    """Writes members below a folder and keeps count."""

    def __init__(self, archive: Path, folder: Path, limits: Limits) -> None:
        self.archive, self.folder, self.limits = archive, folder, limits
        self.allowed = limits.bytes_of(archive)
        self.members = self.files = self.written = 0

    def refuse(self, why: str) -> DataError:
        return DataError(f"{self.archive} is refused: {why}; nothing of it was kept")

    def path(self, name: str) -> Path:
        """Return where a member goes.

        Raises:
            DataError: outside the folder, or too many members.
        """
        self.members += 1
        if self.members > self.limits.members:
            raise self.refuse(f"it has more than {self.limits.members:,} members")
        if "\\" in name or not name:
            raise self.refuse(f"a member is called '{name!r}', with a backslash or no name")
        fault = next(filter(None, map(name_fault, filter(None, name.split("/")))), "")
        if fault:
            raise self.refuse(f"a member's name {fault}: {show_name(name)}")
        if ".git" in name.casefold().split("/"):
            raise self.refuse(f"a member would be part of a git repository: {show_name(name)}")
        try:
            check_relative(name, "a member of it")
        except DataError as error:
            raise self.refuse(str(error)) from None
        return self.folder / PurePosixPath(name)

    def make_folder(self, name: str) -> None:
        path = self.path(name)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise self.refuse(f"'{name}' is a file and a folder") from None

    def make_file(self, name: str, source: IO[bytes], size: int) -> None:
        """Copy one member, never more than it declares and than is allowed."""
        path = self.path(name)
        self.check_size(size)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as out:
                left = size
                while block := source.read(min(_BLOCK, left + 1)):
                    left -= len(block)
                    if left < 0:
                        raise self.refuse(f"'{name}' is larger than it declares")
                    out.write(block)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise self.refuse(f"two members are called '{name}'") from None
        if left:
            raise self.refuse(f"'{name}' is shorter than it declares")
        self.files += 1
        self.written += size

    def check_size(self, size: int) -> None:
        if size < 0 or self.written + size > self.allowed:
            raise self.refuse(
                f"more than {self.allowed:,} bytes would come out of "
                f"{self.archive.stat().st_size:,}, which is no plausible archive of images"
            )


def _unpack_zip(archive: Path, writer: _Writer, step: Progress) -> None:
    with zipfile.ZipFile(archive) as content:
        infos = content.infolist()
        if len(infos) > writer.limits.members:
            raise writer.refuse(f"it has more than {writer.limits.members:,} members")
        writer.check_size(sum(info.file_size for info in infos))
        for done, info in enumerate(infos):
            step("unpacking files", done, len(infos))
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.flag_bits & 1:
                raise writer.refuse(f"'{info.filename}' is encrypted")
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise writer.refuse(f"'{info.filename}' is a link or a device")
            if info.is_dir():
                writer.make_folder(info.filename)
                continue
            with content.open(info) as source:
                writer.make_file(info.filename, source, info.file_size)


def _unpack_tar(archive: Path, writer: _Writer, step: Progress) -> None:
    total = archive.stat().st_size
    with (
        _plain_stream(archive, writer) as stream,
        tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as tar,
    ):
        for info in tar:
            step("unpacking bytes", min(stream.raw.tell(), total), total)
            if info.isdir():
                if info.name.strip("./"):  # "./" is the folder itself
                    writer.make_folder(info.name)
                continue
            if not info.isreg() or info.issparse():
                raise writer.refuse(f"'{info.name}' is a link, a device or a sparse file")
            source = tar.extractfile(info)
            writer.make_file(info.name, cast(IO[bytes], source), info.size)
        stream.check_end(tar.offset)


class _Meter:
    """A stream that refuses to give more than is allowed: headers too can be bombs."""

    def __init__(self, raw: IO[bytes], plain: IO[bytes], writer: _Writer) -> None:
        self.raw, self.plain, self.writer, self.count = raw, plain, writer, 0
        self.tail = (b"", b"")  # the last two blocks given

    def read(self, size: int = -1) -> bytes:
        block = self.plain.read(size)
        self.count += len(block)
        self.tail = (self.tail[1], block)
        # A member costs up to three blocks of header and padding beside its bytes.
        if self.count > self.writer.allowed + 2048 * (self.writer.members + 64):
            raise self.writer.refuse(
                f"more than {self.writer.allowed:,} bytes come out of it, too many for images"
            )
        return block

    def check_end(self, offset: int) -> None:
        """Refuse a tar whose members end at ``offset`` without its mark, a block of zeros.

        tarfile takes a cut or broken header for the end of the archive and says nothing.
        """
        tail = b"".join(self.tail)
        start = offset - (self.count - len(tail))
        if start < 0 or tail[start : start + 512] != bytes(512):
            raise tarfile.ReadError("it ends before its end mark")
        while self.read(_BLOCK):  # to the end, where the checksum of the compression is
            pass


@contextlib.contextmanager
def _plain_stream(archive: Path, writer: _Writer) -> Iterator[_Meter]:
    """Open the archive and undo its compression, named by its first bytes."""
    with open(archive, "rb") as raw:
        head = raw.read(6)
        raw.seek(0)
        undo = next((way for magic, way in _COMPRESSED if head.startswith(magic)), None)
        yield _Meter(raw, cast(IO[bytes], undo(raw)) if undo else raw, writer)
