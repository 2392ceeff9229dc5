"""Folders of images in the shapes that people have, a few images each; names say what they are."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.miniatures.own import write_image, write_tree

CLASSES = ["cat", "cow", "dog", "emu"]
WNIDS = {"n01443537": "goldfish", "n01629819": "European fire salamander",
         "n01641577": "bullfrog", "n01644900": "tailed frog"}  # fmt: skip


def classes(folder: Path) -> None:
    write_tree(folder, [""], CLASSES, 6)


def train_val_test(folder: Path) -> None:
    write_tree(folder, ["train", "valid", "test"], CLASSES, 4)


def train_val(folder: Path) -> None:
    write_tree(folder, ["train", "val"], CLASSES, 4)


def train_only(folder: Path) -> None:
    write_tree(folder, ["train"], CLASSES, 6)


def domains(folder: Path) -> None:
    write_tree(folder, ["Art", "Photo", "Sketch"], CLASSES, 6)


def domain_parts(folder: Path) -> None:
    parts = [f"{d}/{p}" for d in ("Art", "Photo") for p in ("train", "test")]
    write_tree(folder, parts, CLASSES, 3)


def inside(folder: Path) -> None:
    """Two folders deep, as archives of archives are; classes as folders of folders."""
    write_tree(folder / "release" / "images", [""], CLASSES, 6)
    (folder / "README.txt").write_text("about")


def tiny_imagenet(folder: Path) -> None:
    for wnid in WNIDS:
        write_tree(folder / "train" / wnid, [""], ["images"], 4)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    lines = []
    for n, wnid in enumerate([*WNIDS, *WNIDS]):
        write_image(folder / "val" / "images" / f"val_{n}.png", 900 + n)
        lines.append(f"val_{n}.png\t{wnid}\t0\t0\t8\t8")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines))
    for n in range(12):
        write_image(folder / "test" / "images" / f"test_{n}.png", 800 + n)
    (folder / "wnids.txt").write_text("\n".join(reversed(WNIDS)))
    words = [f"{wnid}\t{name}, other" for wnid, name in WNIDS.items()] + ["n00001740\tentity"]
    (folder / "words.txt").write_text("\n".join(words))


def _keys(folder: Path) -> list[str]:
    write_tree(folder, [""], CLASSES, 4)
    return [f"{name}/{n}.png" for name in CLASSES for n in range(4)]


def _part(key: str) -> str:
    return "test" if key.endswith("3.png") else "train"


def csv(folder: Path) -> None:
    keys = _keys(folder / "images")
    rows = [f"{key},{key.split('/')[0]},{_part(key)}" for key in keys]
    for key in keys:  # the folders say nothing: codes of the photographer
        (folder / "images" / key).rename(folder / "images" / key.replace("/", "-"))
    rows = [row.replace("/", "-", 1) for row in rows]
    (folder / "labels.csv").write_text("\n".join(["filename,class,split", *rows]))


def csv_by_part(folder: Path) -> None:
    keys = _keys(folder / "all" / "img")
    for key in keys:
        (folder / "all" / "img" / key).rename(folder / "all" / "img" / key.replace("/", "_"))
    for part in ("train", "test"):
        mine = [key for key in keys if _part(key) == part]
        rows = [f"{key.replace('/', '_')},{key.split('/')[0]}" for key in mine]
        (folder / "all" / f"{part}.csv").write_text("\n".join(["image,label", *rows]))


def jsonl(folder: Path) -> None:
    keys = _keys(folder / "pictures")
    for key in keys:
        (folder / "pictures" / key).rename(folder / "pictures" / key.replace("/", "-"))
    rows = [{"path": key.replace("/", "-"), "label": key.split("/")[0], "split": _part(key),
             "boxes": [1, 2]} for key in keys]
    (folder / "table.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def metadata_csv(folder: Path) -> None:
    """Hugging Face's imagefolder: metadata beside the images of each part."""
    for part in ("train", "test"):
        rows = []
        for n, name in enumerate(CLASSES * 3):
            write_image(folder / part / f"{n:04}.png", n + 100 * (part == "test"))
            rows.append(f"{n:04}.png,{name},a caption")
        (folder / part / "metadata.csv").write_text("\n".join(["file_name,label,text", *rows]))


def metadata_jsonl(folder: Path) -> None:
    """One metadata file, whose paths say the part and the class."""
    rows = []
    for part in ("train", "validation"):
        for n, name in enumerate(CLASSES * 3):
            key = f"{part}/{name}/{n}.png"
            write_image(folder / key, n + 100 * (part == "train"))
            rows.append(json.dumps({"file_name": key, "text": "a caption"}))
    (folder / "metadata.jsonl").write_text("\n".join(rows))


def words(folder: Path) -> None:
    write_tree(folder, ["train", "test"], list(WNIDS), 4)
    lines = [f"{wnid}\t{name}, other" for wnid, name in WNIDS.items()]
    (folder / "words.txt").write_text("\n".join(lines))


def classnames(folder: Path) -> None:
    write_tree(folder / "images", [""], list(WNIDS), 6)
    lines = [f"{wnid} {name}" for wnid, name in WNIDS.items()]
    (folder / "classnames.txt").write_text("\n".join(lines))


def names_json(folder: Path) -> None:
    write_tree(folder, [""], ["0", "1", "2", "3"], 6)
    (folder / "names.json").write_text(json.dumps(list(WNIDS.values())))


def parquet(folder: Path) -> None:
    """As the Hub keeps a set: images and class numbers inside, names in the schema."""
    arrow = pytest.importorskip("pyarrow")
    files = pytest.importorskip("pyarrow.parquet")
    names = [{"names": CLASSES, "_type": "ClassLabel"}, {"_type": "Image"}]
    features = {"info": {"features": {"label": names[0], "image": names[1]}}}
    (folder / "data").mkdir(parents=True)
    for part in ("train", "test"):
        rows = []
        for n in range(12):
            pixels = np.random.default_rng([n, len(part)]).integers(0, 256, (8, 8, 3), np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "PNG")
            rows.append({"image": {"bytes": buffer.getvalue(), "path": None}, "label": n % 4})
        table = arrow.Table.from_pylist(rows)
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
        files.write_table(table, folder / "data" / f"{part}-00000-of-00001.parquet")


def parquet_of_paths(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    files = pytest.importorskip("pyarrow.parquet")
    rows = [{"file_name": key, "class": key.split("/")[0], "split": _part(key)}
            for key in _keys(folder / "images")]
    files.write_table(arrow.Table.from_pylist(rows), folder / "index.parquet")


# Shape -> (its maker, words of what is understood, classes, train/val/test)
SHAPES: dict[str, tuple[Callable[[Path], None], str, list[str], tuple[int, int, int]]] = {
    "classes": (classes, "class folders", CLASSES, (12, 4, 8)),
    "train_val_test": (train_val_test, "train, val, test folders", CLASSES, (16, 16, 16)),
    "train_val": (train_val, "train, val folders", CLASSES, (16, 0, 16)),
    "train_only": (train_only, "a train folder only", CLASSES, (16, 0, 8)),
    "domains": (domains, "a domain tree", CLASSES, (36, 12, 24)),
    "domain_parts": (domain_parts, "a domain tree", CLASSES, (24, 0, 24)),
    "inside": (inside, "class folders", CLASSES, (12, 4, 8)),
    "tiny_imagenet": (tiny_imagenet, "Tiny-ImageNet", list(WNIDS.values()), (16, 0, 8)),
    "csv": (csv, "a table, labels.csv", CLASSES, (12, 0, 4)),
    "csv_by_part": (csv_by_part, "a table, all/train.csv,all/test.csv", CLASSES, (12, 0, 4)),
    "jsonl": (jsonl, "a table, table.jsonl", CLASSES, (12, 0, 4)),
    "metadata_csv": (metadata_csv, "metadata.csv", CLASSES, (12, 0, 12)),
    "metadata_jsonl": (metadata_jsonl, "a table, metadata.jsonl", CLASSES, (12, 0, 12)),
    "words": (words, "train, test folders", list(WNIDS.values()), (16, 0, 16)),
    "classnames": (classnames, "class folders", list(WNIDS.values()), (12, 4, 8)),
    "names_json": (names_json, "class folders", list(WNIDS.values()), (12, 4, 8)),
    "parquet": (parquet, "parquet", CLASSES, (12, 0, 12)),
    "parquet_of_paths": (parquet_of_paths, "a table, index.parquet", CLASSES, (12, 0, 4)),
}  # fmt: skip
