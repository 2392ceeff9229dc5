"""Archives from outside: good ones come out whole, crafted ones leave nothing, anywhere."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.get.unpack import Limits, unpack_archive

FILES = {"set/images/cat/1.jpg": b"\xff\xd8cat", "set/images/dog/é 1.jpg": b"\xff\xd8dog",
         "set/empty.txt": b""}  # fmt: skip


def tar_bytes(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in members:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def good_tar() -> bytes:
    folder = member("set/hollow", tarfile.DIRTYPE)
    return tar_bytes([(folder, b""), *((member(n), data) for n, data in FILES.items())])


def good_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as content:
        content.writestr("set/hollow/", b"")
        for name, data in FILES.items():
            content.writestr(name, data)


def everything_in(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")}


PACK: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress,
}  # fmt: skip


@pytest.mark.parametrize("kind", [*PACK, "zip"])
def test_a_good_archive_comes_out_whole(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / "download"  # the kind is told by content
    if kind == "zip":
        good_zip(archive)
    else:
        archive.write_bytes(PACK[kind](good_tar()))
    told: list[tuple[int, int]] = []
    target = tmp_path / "new" / "out"
    many = unpack_archive(archive, target, progress=lambda _w, n, of: told.append((n, of)))
    assert many == len(FILES)
    for name, data in FILES.items():
        assert (target / name).read_bytes() == data
    assert (target / "set" / "hollow").is_dir()
    assert told and all(0 <= n <= of for n, of in told)
    assert everything_in(tmp_path / "new") == {"out"} | {
        f"out/{p}" for p in everything_in(target)
    }


def refused(tmp_path: Path, data: bytes, says: str, limits: Limits | None = None) -> None:
    """The archive is refused with this sentence and leaves nothing behind."""
    archive = tmp_path / "bad.archive"
    archive.write_bytes(data)
    place = tmp_path / "deep" / "root"
    place.mkdir(parents=True)
    before = everything_in(tmp_path)
    with pytest.raises(DataError, match=says) as caught:
        unpack_archive(archive, place / "out", limits or Limits())
    assert "\n" not in str(caught.value)
    assert everything_in(tmp_path) == before


BAD_MEMBERS = {
    "up": (member("../evil"), "without '..'"),
    "up inside": (member("set/../../../evil"), "without '..'"),
    "absolute": (member("/tmp/fedvlm-evil"), "relative path"),
    "drive": (member("C:/evil"), "relative path"),
    "backslash": (member("..\\evil"), "backslash"),
    "symbolic link": (member("set/link", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
    "hard link": (member("set/hard", tarfile.LNKTYPE, "set/ok"), "is a link"),
    "device": (member("set/null", tarfile.CHRTYPE), "a device"),
    "block device": (member("set/disk", tarfile.BLKTYPE), "a device"),
    "pipe": (member("set/pipe", tarfile.FIFOTYPE), "a device"),
    "twice": (member("set/ok"), "two members are called 'set/ok'"),
    "twice, spelled otherwise": (member("set/./ok"), "two members"),
    "a file as folder": (member("set/ok/below"), "two members"),
}


@pytest.mark.parametrize("case", BAD_MEMBERS)
def test_a_crafted_tar_is_refused(tmp_path: Path, case: str) -> None:
    info, says = BAD_MEMBERS[case]
    refused(tmp_path, gzip.compress(tar_bytes([(member("set/ok"), b"ok"), (info, b"")])), says)


def test_a_tar_that_writes_through_its_own_link_is_refused(tmp_path: Path) -> None:
    link = member("set/out", tarfile.SYMTYPE, "../../..")
    refused(tmp_path, tar_bytes([(link, b""), (member("set/out/evil"), b"x")]), "is a link")


def zip_bytes(members: list[tuple[zipfile.ZipInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as content:
        for info, data in members:
            content.writestr(info, data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def zip_member(name: str, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


BAD_ZIPS = {
    "up": (zip_member("../evil"), "without '..'"),
    "absolute": (zip_member("/tmp/fedvlm-evil"), "relative path"),
    "link": (zip_member("set/link", stat.S_IFLNK | 0o777), "is a link"),
    "device": (zip_member("set/null", stat.S_IFCHR | 0o666), "is a link or a device"),
    "twice": (zip_member("set/ok"), "two members"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", BAD_ZIPS)
def test_a_crafted_zip_is_refused(tmp_path: Path, case: str) -> None:
    info, says = BAD_ZIPS[case]
    refused(tmp_path, zip_bytes([(zip_member("set/ok"), b"ok"), (info, b"/etc")]), says)


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    data = bytearray(zip_bytes([(zip_member("set/ok"), b"secret")]))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    refused(tmp_path, bytes(data), "'set/ok' is encrypted")


SMALL = Limits(members=5, size=10_000, ratio=10.0, free=1000)


def test_bombs_are_refused(tmp_path: Path) -> None:
    zeros = bytes(9000)
    many = [(member(f"{i}"), b"") for i in range(6)]
    cases = {
        "ratio in gzip": (gzip.compress(tar_bytes([(member("a"), zeros)])), "bytes"),
        "ratio in zip": (zip_bytes([(zip_member("a"), zeros)]), "would come out of"),
        "size": (tar_bytes([(member("a"), bytes(10_001))]), "more than 10,000 bytes"),
        "members of a tar": (tar_bytes(many), "more than 5 members"),
        "members of a zip": (zip_bytes([(zip_member(str(i)), b"") for i in range(6)]), "5 members"),
    }
    for case, (data, says) in cases.items():
        folder = tmp_path / case
        folder.mkdir()
        refused(folder, data, says, SMALL)


def test_a_bomb_in_a_header_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    """A pax header of 50 MB that shrinks to 50 kB."""
    info = member("a")
    info.pax_headers = {"comment": "x" * 50_000_000}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO())
    refused(tmp_path, gzip.compress(out.getvalue(), 1), "bytes come out of it")


def test_a_zip_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    data = bytearray(zip_bytes([(zip_member("a"), b"x" * 5000)]))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        data[(at := data.index(signature) + offset) : at + 4] = struct.pack("<I", 10)
    refused(tmp_path, bytes(data), "not a whole zip|larger than it declares")


@pytest.mark.parametrize("kind", [*PACK, "zip"])
def test_a_cut_archive_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "zip":
        good_zip(tmp_path / "z")
        data = (tmp_path / "z").read_bytes()
        (tmp_path / "z").unlink()
    else:
        data = PACK[kind](good_tar())
    cut = 700 if kind == "tar" else len(data) * 2 // 3
    refused(tmp_path, data[:cut], "not a whole zip or tar|shorter than it declares")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_header_is_not_taken_for_the_end(tmp_path: Path, place: int) -> None:
    data = bytearray(tar_bytes([(member(str(i)), b"x") for i in range(3)]))
    data[place * 1024 + 150] ^= 0xFF  # in the header's checksum; a member is header and one block
    refused(tmp_path, bytes(data), "not a whole zip or tar")


@pytest.mark.parametrize("data", [b"", b"<html>not found</html>" * 60, bytes(10_240)])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, data, "not a whole zip or tar|no file in it")


def test_an_existing_target_is_left_alone(tmp_path: Path) -> None:
    good_zip(tmp_path / "z")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(DataError, match="exists already"):
        unpack_archive(tmp_path / "z", tmp_path / "out")
    assert everything_in(tmp_path / "out") == {"mine"}


def test_a_missing_archive_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot unpack"):
        unpack_archive(tmp_path / "nowhere.zip", tmp_path / "out")
    assert everything_in(tmp_path) == set()
