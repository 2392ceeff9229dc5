"""Downloads from a local server: whole, cut, resumed, changed, wrong, refused; the table itself."""

from __future__ import annotations

import hashlib
import http.server
import inspect
import io
import json
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.catalog import CATALOG
from fedvlm.data.get import fetch as download_fetch
from fedvlm.data.get.download import DOWNLOADS, fetch_piece
from fedvlm.data.get.fetch import check_url, fetch
from fedvlm.data.get.offers import OFFERS, Piece, offer_of

BODY = bytes(range(256)) * 2000  # 512,000 bytes


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files``; cuts each of the first ``cuts`` answers after so many bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.etag, self.ranges, self.fail = '"one"', True, 0
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_args: object) -> None:
        return

    def do_GET(self) -> None:
        server, body = self.server, self.server.files.get(self.path)
        asked = self.headers.get("Range", "")
        server.asked.append(asked)
        if server.fail:
            server.fail -= 1
            self.send_error(503)
            return
        if body is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-") or 0)
        if not server.ranges or self.headers.get("If-Range") != server.etag:
            start = 0
        if start and start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("ETag", server.etag)
        self.end_headers()
        end = start + server.cuts.pop(0) if server.cuts else len(body)
        self.wfile.write(body[start:end])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download_fetch, "RETRY_PAUSE", 0.0)
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def quiet(_what: str, _done: int, _of: int) -> None:
    return


def md5(data: bytes) -> str:
    return "md5:" + hashlib.md5(data).hexdigest()


def test_a_whole_file_with_progress(server: Server, tmp_path: Path) -> None:
    server.files["/x.bin"] = BODY
    told: list[tuple[str, int, int]] = []
    path = tmp_path / "deep" / "x.bin"
    sha = "sha256:" + hashlib.sha256(BODY).hexdigest()
    fetch(f"{server.url}/x.bin", path, sha, lambda *step: told.append(step))
    assert path.read_bytes() == BODY and [p.name for p in path.parent.iterdir()] == ["x.bin"]
    assert ("downloading x.bin, bytes", len(BODY), len(BODY)) in told
    assert ("verifying x.bin, bytes", len(BODY), len(BODY)) in told
    fetch(f"{server.url}/x.bin", path, sha, quiet)  # there already: no new request
    assert len(server.asked) == 1


def test_a_cut_connection_goes_on_where_it_ended(server: Server, tmp_path: Path) -> None:
    server.files["/x.bin"], server.cuts = BODY, [200_000, 100_000]
    fetch(f"{server.url}/x.bin", tmp_path / "x.bin", md5(BODY), quiet)
    assert (tmp_path / "x.bin").read_bytes() == BODY
    assert server.asked == ["", "bytes=200000-", "bytes=300000-"]


def test_a_later_process_goes_on_too(server: Server, tmp_path: Path) -> None:
    server.files["/x.bin"], server.cuts = BODY, [200_000] + [0] * 9
    with pytest.raises(DataError, match="200,000 bytes are kept .* run the same command again "
                                        "later to resume"):
        fetch(f"{server.url}/x.bin", tmp_path / "x.bin", md5(BODY), quiet)
    assert not (tmp_path / "x.bin").exists()  # only whole files have their name
    assert len(server.asked) == 1 + download_fetch.MOST_TRIES
    server.cuts.clear()
    fetch(f"{server.url}/x.bin", tmp_path / "x.bin", md5(BODY), quiet)
    assert server.asked[-1] == "bytes=200000-"
    assert (tmp_path / "x.bin").read_bytes() == BODY


@pytest.mark.parametrize("case", ["changed", "no ranges", "longer part", "no note", "bad note"])
def test_what_cannot_be_gone_on_with_begins_again(
    server: Server, tmp_path: Path, case: str
) -> None:
    path, part, note = (tmp_path / n for n in ("x.bin", "x.bin.part", "x.bin.part.json"))
    server.files["/x.bin"] = BODY
    part.write_bytes(b"x" * (len(BODY) + 9 if case == "longer part" else 1000))
    if case == "bad note":
        note.write_text("{")
    elif case != "no note":
        version = '"old"' if case == "changed" else server.etag
        known = {"size": len(BODY) + 99, "version": version, "url": f"{server.url}/x.bin"}
        note.write_text(json.dumps(known))
    server.ranges = case != "no ranges"
    fetch(f"{server.url}/x.bin", path, md5(BODY), quiet)
    assert path.read_bytes() == BODY and len(list(tmp_path.iterdir())) == 1


def test_a_whole_part_needs_no_request(server: Server, tmp_path: Path) -> None:
    """Killed between the last byte and the rename."""
    known = {"size": len(BODY), "version": server.etag, "url": f"{server.url}/x.bin"}
    (tmp_path / "x.bin.part").write_bytes(BODY)
    (tmp_path / "x.bin.part.json").write_text(json.dumps(known))
    fetch(f"{server.url}/x.bin", tmp_path / "x.bin", md5(BODY), quiet)
    assert server.asked == [] and [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_a_wrong_checksum_deletes_the_file_and_says_so(server: Server, tmp_path: Path) -> None:
    server.files["/x.bin"] = BODY[:-1] + b"!"
    with pytest.raises(DataError, match="not the published file and was deleted") as caught:
        fetch(f"{server.url}/x.bin", tmp_path / "x.bin", md5(BODY), quiet)
    assert list(tmp_path.iterdir()) == [] and "\n" not in str(caught.value)


def test_refusals_of_the_server(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="answers 404 Not Found.*--url-base"):
        fetch(f"{server.url}/none.bin", tmp_path / "none.bin", md5(b""), quiet)
    assert len(server.asked) == 1  # no second try would help
    server.files["/x.bin"], server.fail = BODY, 2
    fetch(f"{server.url}/x.bin", tmp_path / "x.bin", md5(BODY), quiet)
    assert len(server.asked) == 4
    gone = server.url.replace(f":{server.server_address[1]}", ":9")
    with pytest.raises(DataError, match="cannot download .*nothing was downloaded"):
        fetch(f"{gone}/x.bin", tmp_path / "y.bin", md5(BODY), quiet)


def test_no_room_is_said_before_anything_is_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/x.bin"] = BODY
    full = type("Usage", (), {"free": 2 * len(BODY) - 1})
    monkeypatch.setattr(download_fetch.shutil, "disk_usage", lambda _p: full)
    with pytest.raises(DataError, match="no room in"):
        fetch(f"{server.url}/x.bin", tmp_path / "x.bin", md5(BODY), quiet)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "host/x", "http://", ""])
def test_only_http_is_asked(url: str) -> None:
    with pytest.raises(ConfigError, match="http:// or https://"):
        check_url(url)


def tarred(names: list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"hi"))
    return out.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as content:
        for name, data in members.items():
            content.writestr(name, data)
    return out.getvalue()


def tree(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def test_a_piece_is_put_in_its_place(server: Server, tmp_path: Path) -> None:
    body = tarred(["dtd/images/a/1.jpg", "dtd/labels/x.txt"])
    server.files["/set.tar.gz"] = body
    piece = Piece(f"{server.url}/set.tar.gz", md5(body), (("dtd/images", "dtd/images"),))
    assert fetch_piece(piece, tmp_path, "", quiet) == [tmp_path / "dtd/images"]
    assert tree(tmp_path) == ["dtd/images/a/1.jpg"] and not (tmp_path / DOWNLOADS).exists()
    (tmp_path / "dtd/images/a/mine.jpg").write_text("mine")
    assert fetch_piece(piece, tmp_path, "", quiet) == []  # there already, left alone
    assert len(server.asked) == 1 and "dtd/images/a/mine.jpg" in tree(tmp_path)


def test_an_archive_in_an_archive_and_a_plain_file(server: Server, tmp_path: Path) -> None:
    body = zipped({"c/in.tar.gz": tarred(["101/a/1.jpg"]), "c/more.txt": b""})
    server.files |= {"/mirror/c.zip": body, "/mirror/l.mat": b"mat"}
    puts = (("101", "caltech/101"),)
    piece = Piece("http://nowhere.invalid/c.zip", md5(body), puts, "c/in.tar.gz")
    plain = Piece("http://nowhere.invalid/l.mat", md5(b"mat"), (("", "flowers/l.mat"),))
    for one in (piece, plain):
        fetch_piece(one, tmp_path, f"{server.url}/mirror/", quiet)
    assert tree(tmp_path) == ["caltech/101/a/1.jpg", "flowers/l.mat"]


@pytest.mark.parametrize(
    ("names", "says"),
    [(["other/1.jpg"], "the archive holds no 'dtd/images'"), (["../evil"], "is refused")],
)
def test_a_bad_archive_places_nothing(
    server: Server, tmp_path: Path, names: list[str], says: str
) -> None:
    body = tarred(names)
    server.files["/set.tar.gz"] = body
    piece = Piece(f"{server.url}/set.tar.gz", md5(body), (("dtd/images", "dtd/images"),))
    with pytest.raises(DataError, match=says):
        fetch_piece(piece, tmp_path, "", quiet)
    assert tree(tmp_path) == [f"{DOWNLOADS}/set.tar.gz"]


def test_the_table_fits_the_facts() -> None:
    """Every piece has a checksum and lands in the folder that the set's reader looks in."""
    assert set(OFFERS) <= set(CATALOG)
    for name, offer in OFFERS.items():
        info = CATALOG[name]
        assert offer.terms and offer.page.startswith("https://") and (offer.pieces or offer.rest)
        assert offer.size or not offer.pieces
        if offer.pieces is None:
            continue
        places = []
        for piece in offer.pieces():
            check_url(piece.url)
            kind, _, value = piece.checksum.partition(":")
            assert (kind, len(value)) in (("md5", 32), ("sha256", 64)) and int(value, 16)
            assert piece.file and piece.puts
            places += [place for _, place in piece.puts]
        assert all(p.startswith(f"{info.folder}/") for p in places)
        if info.image_dir:
            assert f"{info.folder}/{info.image_dir}" in places


def test_the_rows_that_spell_their_source_out_are_torchvisions() -> None:
    import torchvision

    for name, kind in (("Caltech101", "Caltech101"), ("EuroSAT", "EuroSAT")):
        source = inspect.getsource(getattr(torchvision.datasets, kind).download)
        make = OFFERS[name].pieces
        assert make is not None
        for piece in make():
            assert piece.url in source and piece.checksum.removeprefix("md5:") in source


def test_a_set_without_a_row_is_fetched_by_hand() -> None:
    assert offer_of("Nobody", "https://example.org/x").pieces is None


def test_a_torchvision_without_the_attributes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    monkeypatch.delattr(torchvision.datasets.DTD, "_MD5")
    make = OFFERS["DescribableTextures"].pieces
    assert make is not None
    with pytest.raises(DataError, match="does not say where to get DTD .*by hand"):
        make()


def test_only_the_data_command_can_download() -> None:
    """No run reaches the downloader: nothing else imports it (the table of offers is free)."""
    package = Path(download_fetch.__file__).parents[2]
    users = {
        p.relative_to(package).as_posix() for p in package.rglob("*.py")
        if re.search(r"fedvlm\.data\.get\.(download|fetch)\b", p.read_text("utf-8"))
    }  # fmt: skip
    assert users == {"cli/data/data.py", "data/get/download.py"}


def test_what_a_process_left_that_was_killed_at_its_end_goes(
    server: Server, tmp_path: Path
) -> None:
    """Everything is in its place; the archive, its note and half a folder were still there."""
    (tmp_path / "eurosat").mkdir()
    folder = tmp_path / DOWNLOADS
    for name in ("x.zip", "x.zip.part", "x.zip.part.json", "x.zip.unpacked/b/c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"1")
    piece = Piece(f"{server.url}/x.zip", md5(b""), (("2750", "eurosat"),))
    assert fetch_piece(piece, tmp_path, "", quiet) == [] and server.asked == []
    assert [p.name for p in tmp_path.iterdir()] == ["eurosat"]
