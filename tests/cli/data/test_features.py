"""``fedvlm features``: whole sets ahead of the runs, the list of stores, and the clean-up."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.data import image_records, images
from fedvlm.models.features.inventory import list_stores
from fedvlm.models.features.store import FeatureStore

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "datasets" / "custom_folders.yaml"
CLASSES, TRAIN, TEST = 4, 3, 2
EVERY = CLASSES * (TRAIN + TEST)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small set in DATA and an empty cache."""
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("test", TEST)):
        for c in range(CLASSES):
            folder = tmp_path / "DATA" / "my_set" / "images" / part / f"class_{c}"
            folder.mkdir(parents=True)
            for n in range(count):
                pixels = draw.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{n}.png")
    return tmp_path


def words(place: Path, *more: str) -> list[str]:
    return ["--root", f"{place}/DATA", "--dataset-config-file", str(CONFIG), "--backbone", "tiny",
            *more]


def features(place: Path, *more: str) -> int:
    return main(["features", *words(place, *more)])


def run(place: Path, out: str, *more: str) -> tuple[str, str]:
    """Do a small run; return its note on the features and its log."""
    line = ["--shots", "1", "--rounds", "1", "--num-users", "2", "--trainer", "promptfl",
            "--output-dir", f"{place}/{out}"]
    assert main(["run", *words(place, *line, *more)]) == 0
    (found,) = (place / out).rglob("results.json")
    log = (found.parent / "log.txt").read_text()
    notes = json.loads(found.read_text())["run_info"]["notes"]
    (note,) = [n for n in notes if "image features:" in n]
    return note, log


def store(place: Path) -> Path:
    return place / "cache" / "features"


def test_a_run_on_a_precomputed_set_encodes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = CLASSES * (1 + TEST)
    note, log = run(place, "cold", "CACHE_DIR", f"{place}/other")
    assert f"image features: {used} encoded in " in note and "images/s" in note and note in log
    assert features(place) == 0
    said = capsys.readouterr().out
    assert f"MyImages: {CLASSES * TRAIN}/0/{CLASSES * TEST} images in train/val/test" in said
    assert f"{EVERY} encoded in " in said and str(store(place)) in said
    note, _ = run(place, "warm")
    assert f"image features: all {used} from the cache" in note
    metrics = [next((place / out).rglob("metrics.jsonl")) for out in ("cold", "warm")]
    first, second = (json.loads(m.read_text().splitlines()[-1]) for m in metrics)
    for record in (first, second):
        del record["seconds"], record["seal"]  # the seal is over the seconds, too
    assert first == second


def test_a_warm_start_reads_and_decodes_no_image(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert features(place) == 0

    def never(*_: object) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setattr(image_records, "_read", never)
    monkeypatch.setattr(images.ImageLoader, "_decode", never)
    note, _ = run(place, "warm")
    assert "all" in note


def test_every_view_is_encoded(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert features(place, "--views", "2", "DATALOADER.NUM_WORKERS", "3") == 0
    said = capsys.readouterr().out
    assert f"{EVERY + 2 * CLASSES * TRAIN} encoded" in said and "3 thread(s)" in said
    rows = sorted(info.rows for info in list_stores(store(place)))
    assert rows == [CLASSES * TRAIN, CLASSES * TRAIN, EVERY]
    note, _ = run(place, "out", "--views", "2")
    assert "image features: all" in note


def test_only_what_changed_is_encoded_again(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert features(place) == 0
    image = next((place / "DATA").rglob("class_1/0.png"))
    Image.fromarray(np.zeros((12, 12, 3), dtype=np.uint8)).save(image)
    capsys.readouterr()
    assert features(place) == 0
    assert f"1 encoded, {EVERY - 1} from the cache" in capsys.readouterr().out


def test_verify_reads_files_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert features(place) == 0
    (records,) = (place / "cache" / "fedvlm" / "images").glob("*.json")
    content = json.loads(records.read_text())
    path = next(p for p in content["images"] if "class_2" in p)
    image = Path(path)
    Image.fromarray(np.zeros((12, 12, 3), dtype=np.uint8)).save(image)
    now = image.stat()  # the record is made to claim that it knows the file as it is now
    content["images"][path][:3] = [now.st_size, now.st_mtime_ns, now.st_ctime_ns]
    records.write_text(json.dumps(content))
    capsys.readouterr()
    assert features(place) == 0
    assert f"all {EVERY} from the cache" in capsys.readouterr().out
    assert features(place, "--verify") == 0
    said = capsys.readouterr()
    assert f"1 encoded, {EVERY - 1} from the cache" in said.out
    assert f"verified {EVERY} image files: 1 changed without another date" in said.err


def test_list_says_what_a_store_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "--list"]) == 0
    assert "no feature store" in capsys.readouterr().out
    assert features(place) == 0
    capsys.readouterr()
    assert main(["features", "--list"]) == 0
    said = capsys.readouterr().out
    row = said.splitlines()[1]
    assert re.search(rf"tiny +embedded +{EVERY} +test view, 32 px", row), said
    (info,) = list_stores(store(place))
    assert info.size == sum(f.stat().st_size for f in store(place).iterdir())
    assert abs(info.used - time.time()) < 60


def age(info_path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(info_path, (then, then))


def test_clean_deletes_what_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert features(place, "--views", "2") == 0
    (place / "cache" / "features" / "mine.sqlite").write_text("not ours")
    stores = list_stores(store(place))
    for days, info in zip((1, 10, 40), stores, strict=True):
        age(next(f for f in info.files if f.suffix == ".sqlite"), days)
    capsys.readouterr()
    assert main(["features", "--clean", "--older-than", "30", "--dry-run"]) == 0
    assert "would delete 1 store(s)" in capsys.readouterr().out
    assert len(list_stores(store(place))) == 3
    assert main(["features", "--clean", "--older_than=30"]) == 0
    assert "deleted 1 store(s)" in capsys.readouterr().out
    assert {i.name for i in list_stores(store(place))} == {i.name for i in stores[:2]}
    assert main(["features", "--clean", "--older-than", "5", "--backbone", "Tiny"]) == 0
    assert [i.name for i in list_stores(store(place))] == [stores[0].name]
    assert main(["features", "--clean", "--all"]) == 0
    assert [f.name for f in store(place).iterdir()] == ["mine.sqlite"]
    assert main(["features", "--clean", "--all"]) == 0
    assert "nothing to delete" in capsys.readouterr().out


def test_clean_keeps_a_store_in_use(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert features(place) == 0
    (info,) = list_stores(store(place))
    index = next(f for f in info.files if f.suffix == ".sqlite")
    width = int(info.about["width"])
    with FeatureStore(index, width) as held:
        assert main(["features", "--clean", "--all"]) == 0
        assert len(held) == EVERY
    said = capsys.readouterr()
    assert "in use by a running process: kept" in said.err and "nothing to delete" in said.out
    assert len(list_stores(store(place))) == 1


@pytest.mark.parametrize(("line", "says"), [
    ("--clean", "--older-than DAYS, --backbone X or --all"),
    ("--clean --all --older-than 3", "drop one of them"),
    ("--clean --al", "did you mean '--all'?"),
    ("--clean --dataset x --all", "--clean cannot be combined with '--dataset'"),
    ("--list --clean", "cannot be combined with"),
    ("--list --verify", "--list cannot be combined with '--verify'"),
    ("--older-than 3 --demo", "needs --clean"),
    ("--demo --plain", "drop --plain"),
    ("--demo --seeds 1 2", "drop --seeds"),
    ("--root /nowhere", "--dataset"),
    ("--root /nowhere --dataset caltech", "did you mean"),
])
def test_mistakes_are_one_sentence(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path))
    assert main(["features", *line.split()]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and says in said[0], said


def test_unknown_backbone_of_clean_names_those_there(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert features(place) == 0
    assert main(["features", "--clean", "--backbone", "tinny"]) == 2
    assert "did you mean 'tiny'?" in capsys.readouterr().err


def test_damaged_and_older_files_are_listed_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path))
    folder = tmp_path / "features"
    folder.mkdir()
    (folder / f"{'a' * 40}.sqlite").write_bytes(b"not a database" * 100)
    (folder / f"{'b' * 40}.sqlite.corrupt-1").write_bytes(b"x")
    (folder / f"{'c' * 40}.rows").write_bytes(b"x" * 8)
    (folder / f"{'d' * 40}.sqlite").write_bytes(b"")
    assert main(["features", "--list"]) == 0
    said = capsys.readouterr().out
    states = " ".join(said.splitlines()[1:5])
    assert states.count("damaged") == 2
    assert "left behind" in states and "older fedvlm" in states
    assert main(["features", "--clean", "--all"]) == 0
    assert list(folder.iterdir()) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "--help"]) == 0
    assert "--older-than DAYS" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that others share is listed all the same; deleting from it is refused in words."""
    assert features(place) == 0
    capsys.readouterr()
    real, asked = os.access, []

    def access(path: Path, mode: int) -> bool:
        asked.append(path)
        return False if path == store(place) else real(path, mode)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert main(["features", "--list"]) == 0
    out = capsys.readouterr().out
    assert asked and "tiny" in out and f" {EVERY} " in out and "older fedvlm" not in out
    assert main(["features", "--clean", "--all"]) == 3
    assert "cannot delete the feature store" in capsys.readouterr().err
