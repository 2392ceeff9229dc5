"""What may be published of a run names no host, no user and no folder of its machine."""

from __future__ import annotations

import getpass
import json
import lzma
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from fedvlm.api.rebuild import run_folder
from fedvlm.cli.main import main
from fedvlm.data.datum import Datum
from fedvlm.data.federated import duplicate_notes
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import say_broken
from fedvlm.job.resolve import run_config
from fedvlm.runs import private
from fedvlm.runs.cells import pack_runs
from fedvlm.runs.identity import identity_digest
from fedvlm.runs.names import PACKED_FILES
from fedvlm.runs.private import (
    NAME,
    public_command,
    public_text,
    public_value,
    read_private,
    write_private,
)
from tests import jobs

NET = '''"""A method of the test: nothing more."""
from fedvlm.method import PeftTrainer


class Mine(PeftTrainer):
    """FedAvg under another name."""

    name = "Mine"
'''


@pytest.mark.parametrize(("text", "published"), [
    ("read from /home/ann/data/x.csv: 3 rows", "read from x.csv: 3 rows"),
    ("'/srv/a b/c d' is read-only", "'c d' is read-only"),
    ("~/.cache/fedvlm/features (2 GiB)", "features (2 GiB)"),
    ("600/240/360 images/s, ViT-B/16, a/b and ../c/d", None), ("http://host/a/b", None),
    ("a root '/' or / alone", None),
])
def test_a_text_keeps_the_last_name_of_a_path(text: str, published: str | None) -> None:
    assert public_text(text) == (text if published is None else published)


@pytest.mark.parametrize(("value", "published"), [
    ("/data/clip/b16.pt", "b16.pt"), ("local-dir:/data/clip", "local-dir:clip"),
    ("folder:~/proxy", "folder:proxy"), ("/home/ann/net.py:Net", "net.py:Net"),
    ("/home/ann", "~"), ("/a/x.csv,/b/y.csv", "x.csv,y.csv"),
    ("./net.py:Net", None), ("local-dir:../shared/w", None), ("ViT-B/16", None),
    ("a photo of a {}, a kind of /", None), ("laion2b", None), (0.5, None),
])
def test_a_value_keeps_the_last_name_of_a_path(value: object, published: str | None) -> None:
    assert public_value("KEY", value) == (value if published is None else published)


def test_addresses_are_hidden() -> None:
    assert public_value("FED.SITES_AT", "10.0.0.1:7,unix:/a/b") == "...,..."
    words = ["/opt/fedvlm/__main__.py", "run", "--sites-at", "10.0.0.1:7", "--root=/a/b", "--tag",
             "a b"]
    assert public_command(words) == "fedvlm run --sites-at ... --root=... --tag 'a b'"


def test_notes_that_name_images_are_counts_in_public(tmp_path: Path) -> None:
    """As the data write them: what is cut here has to be what they say."""
    (note,) = say_broken("ward", ["Cork/c: 4.jpg (broken)", "b.jpg (broken)"], "skip")
    assert public_text(f"note: {note}") == "note: 2 image(s) do not decode and are left out"
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"the same")
    samples = [Datum(str(tmp_path / n), 0, key=f"Cork (x)/{n}") for n in ("a.png", "b.png")]
    at = [np.array([0]), np.array([1])]
    (note,) = duplicate_notes(at[:1], at[1:], samples, ImageRecords(None))
    assert "(first: Cork (x)/b.png), so" in note and "Cork" not in public_text(note)


def test_a_private_file_that_is_gone_or_damaged_is_empty(tmp_path: Path) -> None:
    empty = {"sessions": [], "config": {}, "clients": [], "notes": []}
    assert read_private(tmp_path) == empty
    for text in ("", "[]", "{", '{"sessions": 1, "config": 2}'):
        (tmp_path / NAME).write_text(text)
        assert read_private(tmp_path) == empty
    write_private(tmp_path, {"command": "x"}, {"DATASET.ROOT": "/a/b"})
    write_private(tmp_path, {"command": "y"})
    assert read_private(tmp_path) == {
        "sessions": [{"command": "x"}, {"command": "y"}], "config": {"DATASET.ROOT": "/a/b"},
        "clients": [], "notes": [],
    }
    write_private(tmp_path, clients=["Graz", "Köln"])
    write_private(tmp_path, {"command": "z"})
    assert read_private(tmp_path)["clients"] == ["Graz", "Köln"]
    (tmp_path / NAME).write_text('{"sessions": [], "config": {}, "clients": [1]}')
    assert read_private(tmp_path)["clients"] == []


def test_no_name_of_the_machine_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run from folders of a user, with a method's file of theirs, as it lies and packed."""
    secret = tmp_path / "annas-secret-home"
    (secret / "work").mkdir(parents=True)
    monkeypatch.setattr(socket, "gethostname", lambda: "annas-secret-host")
    monkeypatch.setattr(getpass, "getuser", lambda: "annas-secret-user")
    private._names.cache_clear()
    monkeypatch.chdir(secret / "work")
    net = secret / "net.py"
    net.write_text(NET)
    output = secret / "output"
    (secret / "cache").symlink_to(os.environ["FEDVLM_CACHE"])  # the tests' own has the features
    words = ("--trainer", f"{net}:Mine", "DATASET.ROOT", str(secret), "CACHE_DIR",
             str(secret / "cache"))
    assert jobs.run(output, *words) == 0
    folder = jobs.folder(output)
    kept = read_private(folder)
    assert kept["sessions"][0]["host"] == "annas-secret-host"
    assert kept["sessions"][0]["folder"] == str(secret / "work")
    assert kept["config"]["TRAINER.NAME"] == f"{net}:Mine"
    assert str(run_config(folder, {}).TRAINER.NAME) == f"{net}:Mine"
    for name in PACKED_FILES:
        text = (folder / name).read_text()
        assert "annas-secret" not in text and str(tmp_path) not in text, name
    path = tmp_path / "one.cells.xz"
    pack_runs([("one", folder)], path)
    assert b"annas-secret" not in lzma.decompress(path.read_bytes())

    # It is the same run from another folder, and goes on without its private file.
    results = (folder / "results.json").read_bytes()
    assert jobs.run(output, *words) == 0 and (folder / "results.json").read_bytes() == results
    assert run_folder(folder) == folder and main(["verify", str(folder)]) == 0
    assert main(["verify", "--replay", "1", str(folder)]) == 0
    (folder / NAME).unlink()
    assert main(["show", str(folder)]) == 0 and main(["verify", str(folder)]) == 0
    private._names.cache_clear()


def test_a_folder_of_format_1_loses_them_when_it_goes_on(tmp_path: Path) -> None:
    fixture = Path(__file__).resolve().parents[1] / "fixtures" / "v0.1" / "runs"
    place = "base2new/Shapes/shots_2/FedPer-interrupted/tiny/disjoint-K2-f1/seed1-data1"
    folder = tmp_path / place
    shutil.copytree(fixture / place, folder)
    before = json.loads((folder / "manifest.json").read_text())
    words = ["--demo", "--trainer", "FedPer", "--num-users", "2", "--shots", "2", "PEFT.N_CTX", "2",
             "FED.PARTITION", "disjoint", "PEFT.WIDTH", "4", "--rounds", "4",
             "--tag", "interrupted", "--output-dir"]
    assert main([*words, str(tmp_path)]) == 0
    after = json.loads((folder / "manifest.json").read_text())
    assert (before["format"], after["format"], after["draft"]) == (1, 2, False)
    assert after["identity"] == before["identity"]
    assert after["identity_digest"] == identity_digest(after["identity"])
    assert all("folder" not in s and "host" not in s["machine"] for s in after["sessions"])
    first = read_private(folder)["sessions"][0]
    assert (first["folder"], first["host"]) == ("/fixture", "machine")
