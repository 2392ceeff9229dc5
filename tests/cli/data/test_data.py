"""``fedvlm data``: splits that runs then find, downloads, and a message for every error."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.data.get.offers import OFFERS, Offer, Piece
from fedvlm.data.layouts import cached_split_path, prepared_name
from tests import jobs
from tests.data.miniatures.published import tree_of

CLASSES = ["AnnualCrop", "Forest", "River", "SeaLake"]


def write_tree(folder: Path, classes: list[str], each: int = 10) -> None:
    for c, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for n in range(each):
            pixels = np.random.default_rng([c, n]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{n}.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tree(tmp_path / "data" / "eurosat" / "2750", CLASSES)
    return tmp_path / "data"


def prepare(root: Path, *more: str, name: str = "eurosat") -> int:
    return main(["data", "prepare", name, "--root", str(root), *more])


def everything(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")}


RUN = ("--backbone", "tiny", "--shots", "2", "--rounds", "1", "--num-users", "2",
       "--local-epochs", "1", "--trainer", "PromptFL")  # fmt: skip


def run(root: Path, out: Path, *more: str) -> int:
    words = ["run", "--root", str(root), "--dataset", "eurosat", *RUN, "--output-dir", str(out)]
    return main([*words, *more])


def test_a_run_needs_a_split_and_says_whose_it_is(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(root)
    assert run(root, tmp_path / "none") == 3
    assert "data prepare EuroSAT" in capsys.readouterr().err  # nothing is invented silently
    assert prepare(root) == 0
    said = capsys.readouterr().out
    place = cached_split_path("EuroSAT", root / "eurosat")
    assert str(place) in said and "4 classes, 20/8/12 images" in said and place.is_file()
    assert everything(root) == before  # nothing among the user's files
    assert run(root, tmp_path / "out") == 0
    record = json.loads((jobs.folder(tmp_path / "out") / "results.json").read_text())
    assert "not the published split" in json.dumps(record)


def test_into_the_dataset_it_is_written_once_and_never_over_another(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = root / "eurosat" / prepared_name("EuroSAT")
    assert prepare(root, "--into-dataset") == 0 and place.is_file()
    content = json.loads(place.read_text())
    assert {row[2] for row in content["train"]} == {"Annual Crop Land", "Forest", "River",
                                                    "Sea or Lake"}  # fmt: skip
    assert not list(root.rglob("split_zhou_*"))
    assert not cached_split_path("EuroSAT", root / "eurosat").exists()
    capsys.readouterr()
    assert prepare(root, "--into_dataset") == 0  # the same again
    assert "there already" in capsys.readouterr().out
    bytes_before = place.read_bytes()
    assert prepare(root, "--into-dataset", "--seed", "1") == 3
    assert "holds another split" in capsys.readouterr().err and place.read_bytes() == bytes_before


def test_the_cache_of_the_config_and_two_roots(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_tree(other / "eurosat" / "2750", CLASSES, 5)
    cache = tmp_path / "cache"
    assert prepare(root, "--cache-dir", str(cache)) == 0
    assert prepare(other, "--cache-dir", str(cache)) == 0
    files = list(cache.rglob("split_fedvlm_EuroSAT.json"))
    assert len(files) == 2 and not cached_split_path("EuroSAT", root / "eurosat").exists()
    assert run(root, tmp_path / "out", "--print-config", "CACHE_DIR", str(cache)) == 0


def test_a_published_split_goes_first(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "eurosat" / "split_zhou_EuroSAT.json").write_text("{}")
    assert prepare(root) == 0
    assert "split_zhou_EuroSAT.json exists and takes precedence" in capsys.readouterr().out


def test_an_own_set_without_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tmp_path / "mine" / "pics", ["red", "blue"])
    words = ("--dir", "mine", "--image-dir", "pics")
    assert prepare(tmp_path, *words, name="Mine") == 2
    assert "add --into-dataset" in capsys.readouterr().err
    assert prepare(tmp_path, *words, "--into-dataset", name="Mine") == 0
    told = capsys.readouterr().out.splitlines()[-1].partition("use it with ")[2].split()
    assert (tmp_path / "mine" / prepared_name("Mine")).is_file()
    words = ("run", "--root", str(tmp_path), *RUN, "--output-dir", str(tmp_path / "out"))
    assert main([*words, *told]) == 0
    record = json.loads((jobs.folder(tmp_path / "out") / "results.json").read_text())
    assert "not the published split" in json.dumps(record)


def test_a_read_only_cache_is_said(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert prepare(root, "--cache-dir", str(tmp_path / "file")) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["prepair"], 2, "did you mean 'prepare'"),
        (["prepare"], 2, "data: prepare needs a data set"),
        (["prepare", "eurosat"], 3, "DATASET.ROOT is empty"),
        (["prepare", "eurosatt", "--root", "{root}"], 2, "did you mean 'EuroSAT'"),
        (["prepare", "imagenet", "--root", "{root}"], 2, "nothing to prepare"),
        (["download", "eurosatt", "--root", "{root}"], 2, "did you mean 'EuroSAT'"),
        (["download", "shapes", "--root", "{root}"], 2, "built in"),
        (["download", "cars", "--root", "{root}"], 3, "cannot be downloaded automatically"),
        (["download", "dtd", "--root", "{root}/none"], 3, "does not exist"),
        (["download", "dtd", "--root", "{root}", "--url-base", "ftp://x"], 2, "http://"),
        (["list", "more"], 2, "unknown word 'more'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    assert main(["data", *(w.replace("{root}", str(tmp_path)) for w in words)]) == code
    err = capsys.readouterr().err
    assert says in err and err.startswith("error: ") and err.count("\n") == 1
    assert everything(tmp_path) == set()


def test_help_and_list(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["data"], ["data", "--help"], ["data", "prepare", "-h"]):
        assert main(words) == 0
        assert "--into-dataset" in capsys.readouterr().out
    assert main(["data", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "MIT" in lines["EuroSAT"] and "yes, 0.09 GB" in lines["EuroSAT"]
    assert "by hand" in lines["StanfordCars"] and "built in" in lines["Digits"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        return


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "www").mkdir()
    handler = functools.partial(Quiet, directory=str(tmp_path / "www"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_download_verifies_unpacks_and_says_what_is_left(
    tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as content:
        content.writestr("2750/Forest/1.jpg", b"jpg")
    (tmp_path / "www" / "EuroSAT.zip").write_bytes(out.getvalue())
    root = tmp_path / "data"
    root.mkdir()
    words = ["data", "download", "eurosat", "--root", str(root), "--url-base", mirror]
    assert main(words) == 3  # not the published file
    assert "not the published file and was deleted" in capsys.readouterr().err
    assert not [p for p in root.rglob("*") if p.is_file()]
    url = "http://nowhere.invalid/EuroSAT.zip"
    md5 = hashlib.md5(out.getvalue()).hexdigest()
    piece = Piece(url, f"md5:{md5}", (("2750", "eurosat/2750"),))
    offer = Offer("MIT", "https://example.org", 0.1, lambda: (piece,))
    monkeypatch.setitem(OFFERS, "EuroSAT", offer)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "terms: MIT" in said and f"wrote {root}/eurosat/2750" in said
    assert "the download does not include the published split split_zhou_EuroSAT.json" in said
    assert everything(root) == {"eurosat", "eurosat/2750", "eurosat/2750/Forest",
                                "eurosat/2750/Forest/1.jpg"}  # fmt: skip
    assert main(words) == 0
    assert "there already:" in capsys.readouterr().out


def test_a_cache_that_cannot_be_made_is_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree_of("EuroSAT", tmp_path / "DATA", without=("split",))
    (tmp_path / "file").write_text("")
    words = ["data", "prepare", "eurosat", "--root", f"{tmp_path}/DATA"]
    assert main([*words, "--cache-dir", f"{tmp_path}/file/cache"]) == 3
    said = capsys.readouterr().err
    assert "cannot make the folder" in said and "--cache-dir" in said and "deleted" not in said


def test_a_download_into_a_folder_to_come_says_how_to_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "download", "eurosat", "--root", f"{tmp_path}/DATA"]) == 3
    assert f"to start with an empty one: mkdir -p {tmp_path}/DATA" in capsys.readouterr().err
