"""Metadata files in the shape in which real sets are published, each with few tiny images.

Made after the sets' documentation, none of their data is in them. A maker writes a folder and
returns what ``look`` is given below it.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image

Make = Callable[[Path], str]


@dataclass(frozen=True)
class Published:
    """One set's file.

    Attributes:
        make: writes it.
        classes: that are read.
        flags: keys that the user gives, ``CLIENTS_BY`` and ``GROUPS`` among them.
        clients: how many are read with them.
        groups: how many are read with them; 0 without.
        proposed: columns that are proposed where the user names none.
    """

    make: Make
    classes: tuple[str, ...]
    flags: dict[str, str] = field(default_factory=dict)
    clients: int = 0
    groups: int = 0
    proposed: tuple[str, ...] = ()


def picture(place: Path, shade: int = 0) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade % 256, 40, 90)).save(place)


def written(
    folder: Path, name: str, header: str, rows: Sequence[Sequence[object]], sign: str = ","
) -> str:
    text = io.StringIO()
    table = csv.writer(text, delimiter=sign, lineterminator="\r\n")
    table.writerow(header.split(","))
    table.writerows(rows)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text.getvalue(), encoding="utf-8", newline="")
    return name


def femnist(folder: Path) -> str:
    """LEAF: pixels of 28 x 28 from 0 to 1, labels 0 to 61, a file for each part."""
    for part, seed in (("train", 0), ("test", 1)):
        users = {f"f{w:04}_1{w}": {
            "x": [[(i + j + seed) % 7 / 7 for j in range(784)] for i in range(4)],
            "y": [0, 1, 10, 36],
        } for w in range(3)}
        content = {"users": list(users), "num_samples": [4] * 3, "user_data": users}
        (folder / part).mkdir(parents=True)
        (folder / part / f"all_data_0_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))
    return ""


def celeba(folder: Path) -> str:
    """LEAF: names of files, smiling 0 or 1, celebrities as users."""
    data = {}
    for user in range(3):
        names = [f"{user * 4 + i:06}.jpg" for i in range(4)]
        for name in names:
            picture(folder / "raw" / "img_align_celeba" / name)
        data[str(user)] = {"x": names, "y": [0, 1, 0, 1]}
    (folder / "data.json").write_text(json.dumps(
        {"users": list(data), "num_samples": [4] * 3, "user_data": data}))
    (folder / "classnames.txt").write_text("0 not smiling\n1 smiling\n")
    return "data.json"


def inaturalist(folder: Path) -> str:
    """The federated split of Google: user_id, image_id, class; images in folders by their id."""
    rows = []
    for i in range(12):
        name = f"{i:032x}"
        picture(folder / "images" / name[0] / name[1] / f"{name}.jpg")
        rows.append([i % 3, name, f"species {i // 3 % 2}"])
    return written(folder, "federated_train.csv", "user_id,image_id,class", rows)


def landmarks(folder: Path) -> str:
    """Landmarks-User-160k: user_id, image_id, class, where classes are numbers."""
    rows = []
    for i in range(12):
        picture(folder / "train" / f"{i:016x}.jpg")
        rows.append([i % 4, f"{i:016x}", i // 4 % 2])
    (folder / "classnames.txt").write_text("0 a tower\n1 a bridge\n")
    return written(folder, "train.csv", "user_id,image_id,label", rows)


def flair(folder: Path) -> str:
    """labels_and_metadata.json: sets of coarse labels by user; here one label is asked for."""
    rows = []
    for i in range(12):
        picture(folder / "small_images" / f"{i:05}.jpg")
        rows.append({
            "user_id": f"{i % 3}@N01", "image_id": f"{i:05}", "labels": ["plant", "structure"],
            "partition": "train" if i < 9 else "test", "main_label": ("plant", "food")[i % 2],
        })
    (folder / "labels_and_metadata.json").write_text(json.dumps(rows))
    return "labels_and_metadata.json"


def camelyon(folder: Path) -> str:
    """WILDS: an index column, no column of paths, hospitals in ``center``, numbers as split."""
    rows = []
    for i in range(20):
        patient, center = f"{i // 4:03}", i // 4
        place = f"patches/patient_{patient}_node_1/patch_patient_{patient}_node_1_x_{i}_y_8.png"
        picture(folder / place)
        rows.append([i, patient, 1, i, 8, i % 2, i // 4, center, i % 3 and 0])
    return written(folder, "metadata.csv",
                   ",patient,node,x_coord,y_coord,tumor,slide,center,split", rows)


def isic(folder: Path) -> str:
    """ISIC's archive: ``isic_id`` without an ending."""
    rows = []
    for i in range(12):
        picture(folder / "images" / f"ISIC_{i:07}.jpg")
        rows.append([f"ISIC_{i:07}", "CC-BY", 40 + i, ("nevus", "melanoma")[i % 2], f"IP_{i // 2}"])
    return written(folder, "metadata.csv",
                   "isic_id,copyright_license,age_approx,diagnosis,patient_id", rows)


def ham10000(folder: Path) -> str:
    """HAM10000: lesions with several images, which lie in two folders."""
    rows = []
    for i in range(12):
        picture(folder / f"HAM10000_images_part_{1 + i // 6}" / f"ISIC_{i:07}.jpg")
        rows.append([f"HAM_{i // 2:07}", f"ISIC_{i:07}", ("nv", "mel")[i // 2 % 2], "histo", 50])
    return written(folder, "HAM10000_metadata.csv", "lesion_id,image_id,dx,dx_type,age", rows)


def pad_ufes(folder: Path) -> str:
    """PAD-UFES-20: patients with lesions with images."""
    rows = []
    for i in range(12):
        picture(folder / "images" / f"PAT_{i // 3}_{i}_{i}.png")
        rows.append([f"PAT_{i // 3}", i // 2, ("ACK", "BCC")[i % 2], f"PAT_{i // 3}_{i}_{i}.png"])
    return written(folder, "metadata.csv", "patient_id,lesion_id,diagnostic,img_id", rows)


def chexpert(folder: Path) -> str:
    """CheXpert: the patient in the path; findings are 1, 0, -1 (uncertain) or empty."""
    rows = []
    for i in range(12):
        place = f"CheXpert-v1.0-small/train/patient{i // 3:05}/study1/view{i}_frontal.jpg"
        picture(folder / place)
        said = ("1.0", "0.0", "1.0", "-1.0", "0.0", "")[i % 6]
        rows.append([place, "Female", "Frontal", said, "0.0"])
    return written(folder, "train.csv", "Path,Sex,Frontal/Lateral,Edema,Fracture", rows)


def mimic(folder: Path) -> str:
    """MIMIC-CXR-JPG: three identifiers; the folders are made of them."""
    rows = []
    for i in range(12):
        subject, study = 10000032 + i // 3, 50414267 + i // 2
        picture(folder / f"files/p10/p{subject}/s{study}/{i:08x}-aa.jpg")
        rows.append([f"{i:08x}-aa", subject, study, ("No Finding", "Edema")[i % 2],
                     ("train", "train", "validate", "test")[i % 4]])
    return written(folder, "mimic.csv", "dicom_id,subject_id,study_id,finding,split", rows)


def breakhis(folder: Path) -> str:
    """BreakHis: class folders; the slide (a patient's) is in the name of the file."""
    for i in range(12):
        kind, word = (("B", "benign"), ("M", "malignant"))[i % 2]
        slide = f"14-22549{'ABCD'[i % 4]}{'XY'[i % 2]}"
        picture(folder / word / f"SOB_{kind}_A-{slide}-40-{i:03}.png")
    return ""


def iwildcam(folder: Path) -> str:
    """WILDS: an index column, camera traps in ``location``, sequences, split by words."""
    rows = []
    for i in range(12):
        picture(folder / "train" / f"{i:08}.jpg")
        rows.append([i, ("train", "val", "test")[i // 4], 3 + i // 2, f"s{i // 2}",
                     ("elephant", "impala")[i % 2], f"{i:08}.jpg"])
    return written(folder, "metadata.csv", ",split,location,seq_id,species,filename", rows)


def fmow(folder: Path) -> str:
    """WILDS: ``img_filename``, region and country of each picture."""
    rows = []
    for i in range(12):
        picture(folder / "images" / f"rgb_img_{i}.png")
        rows.append([("train", "val", "test")[i % 3], f"rgb_img_{i}.png",
                     ("airport", "barn")[i // 3 % 2], ("FRA", "NLD", "PRT")[i // 4], "2016-01-01"])
    return written(folder, "rgb_metadata.csv",
                   "split,img_filename,category,country_code,timestamp", rows)


def pacs(folder: Path) -> str:
    """PACS, VLCS, Office-Home: ``<domain>/<class>``."""
    for domain in ("photo", "sketch", "cartoon"):
        for name in ("dog", "horse"):
            for i in range(5):
                picture(folder / domain / name / f"pic_{i:03}.jpg")
    return ""


def domainnet(folder: Path) -> str:
    """A table beside DomainNet's folders, with tabs."""
    rows = []
    for i in range(12):
        domain, name = ("clipart", "real")[i % 2], ("bird", "bus")[i // 2 % 2]
        picture(folder / domain / name / f"{domain}_{i}.jpg")
        rows.append([f"{domain}/{name}/{domain}_{i}.jpg", name, domain])
    return written(folder, "list.tsv", "path,class,domain", rows, "\t")


def imagefolder_csv(folder: Path) -> str:
    """Hugging Face: ``metadata.csv`` in the folder, with any more columns."""
    rows = []
    for i in range(12):
        picture(folder / f"{i:04}.png")
        rows.append([f"{i:04}.png", ("Möwe", "Amsel, rot")[i % 2], ("Köln", "Graz")[i // 2 % 2]])
    return written(folder, "metadata.csv", "file_name,label,hospital", rows)


def imagefolder_jsonl(folder: Path) -> str:
    """Hugging Face: ``metadata.jsonl``, numbers and texts mixed."""
    lines = []
    for i in range(12):
        picture(folder / f"{i:04}.png")
        lines.append(json.dumps({"file_name": f"{i:04}.png", "label": ("cat", "dog")[i % 2],
                                 "client_id": i // 4, "box": [1, 2]}))
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return ""


def imagefolder_parquet(folder: Path) -> str:
    """Hugging Face: ``metadata.parquet``."""
    arrow = pytest.importorskip("pyarrow")
    for i in range(12):
        picture(folder / f"{i:04}.png")
    table = arrow.table({
        "file_name": [f"{i:04}.png" for i in range(12)],
        "label": [("cat", "dog")[i % 2] for i in range(12)],
        "subject": [i // 3 for i in range(12)],
    })
    importlib.import_module("pyarrow.parquet").write_table(table, folder / "metadata.parquet")
    return ""


def pandas_index(folder: Path) -> str:
    """``DataFrame.to_csv`` with its index."""
    rows = []
    for i in range(12):
        picture(folder / "img" / f"{i}.png")
        rows.append([i, f"img/{i}.png", ("cat", "dog")[i % 2], f"w{i // 3}"])
    return written(folder, "frame.csv", ",filepath,category,writer", rows)


def semicolons(folder: Path) -> str:
    """A spreadsheet of a country whose decimal sign is the comma."""
    rows = []
    for i in range(12):
        picture(folder / f"{i}.png")
        scanner = "CT" if i % 4 < 2 else "MR"
        rows.append([f"{i}.png", ("cat", "dog")[i % 2], f"Ward {i // 6}", scanner, "1,5"])
    return written(folder, "list.csv", "File,Class,Institution,scanner,mm", rows, ";")


def own_folders(folder: Path) -> str:
    """``<client>/<class>`` where clients do not share all classes, so that no domain tree is."""
    for client, names in (("anna", ("cat", "dog")), ("ben", ("dog", "cow")), ("cleo", ("cow",))):
        for name in names:
            for i in range(5):
                picture(folder / client / name / f"{i}.jpg")
    return ""


PATH = ("path=patches/patient_{patient}_node_{node}/patch_patient_{patient}_node_{node}"
        "_x_{x_coord}_y_{y_coord}.png,split=-")
PUBLISHED = {
    "FEMNIST (LEAF)": Published(
        femnist, ("the capital letter A", "the digit 0", "the digit 1", "the small letter a"),
        {"CLIENTS_BY": "user"}, 3, 0, ("user",)),
    "CelebA (LEAF)": Published(
        celeba, ("not smiling", "smiling"), {"CLIENTS_BY": "user"}, 3, 0, ("user",)),
    "iNaturalist-User": Published(
        inaturalist, ("species 0", "species 1"), {"CLIENTS_BY": "user_id"}, 3, 0, ("user_id",)),
    "Landmarks-User": Published(
        landmarks, ("a tower", "a bridge"), {"CLIENTS_BY": "user_id"}, 4, 0, ("user_id",)),
    "FLAIR": Published(
        flair, ("food", "plant"), {"CLIENTS_BY": "user_id", "COLUMNS": "classname=main_label"},
        3, 0, ("user_id",)),
    "Camelyon17 (WILDS)": Published(
        camelyon, ("no tumor", "tumor"),
        {"CLIENTS_BY": "center", "GROUPS": "patient", "COLUMNS": PATH}, 5, 5,
        ("center", "patient")),
    "ISIC": Published(
        isic, ("melanoma", "nevus"), {"GROUPS": "patient_id"}, 0, 6, ("patient_id",)),
    "HAM10000": Published(ham10000, ("mel", "nv"), {"GROUPS": "lesion_id"}, 0, 6, ("lesion_id",)),
    "PAD-UFES-20": Published(
        pad_ufes, ("ACK", "BCC"), {"GROUPS": "patient_id"}, 0, 4, ("patient_id",)),
    "CheXpert": Published(
        chexpert, ("edema", "no edema"),
        {"GROUPS": "patient{group}", "COLUMNS": "classname=Edema"}, 0, 4),
    "MIMIC-CXR": Published(
        mimic, ("Edema", "No Finding"), {"GROUPS": "subject_id", "COLUMNS": "split=-"}, 0, 4,
        ("subject_id",)),
    "BreakHis": Published(
        breakhis, ("benign", "malignant"), {"GROUPS": "SOB_*_*-{year}-{group}-*-*.png"}, 0, 4),
    "iWildCam (WILDS)": Published(
        iwildcam, ("elephant", "impala"), {"GROUPS": "location"}, 0, 6, ("location",)),
    "FMoW (WILDS)": Published(fmow, ("airport", "barn"), {"CLIENTS_BY": "country_code"}, 3),
    "PACS, VLCS, Office-Home": Published(
        pacs, ("dog", "horse"), {"CLIENTS_BY": "{client}/{class}/*"}, 3),
    "DomainNet with tabs": Published(domainnet, ("bird", "bus"), {"CLIENTS_BY": "domain"}, 2),
    "imagefolder, CSV": Published(
        imagefolder_csv, ("Amsel, rot", "Möwe"), {"CLIENTS_BY": "hospital"}, 2, 0, ("hospital",)),
    "imagefolder, JSON lines": Published(
        imagefolder_jsonl, ("cat", "dog"), {"CLIENTS_BY": "client_id"}, 3, 0, ("client_id",)),
    "imagefolder, parquet": Published(
        imagefolder_parquet, ("cat", "dog"), {"CLIENTS_BY": "subject"}, 4, 0, ("subject",)),
    "pandas with its index": Published(
        pandas_index, ("cat", "dog"), {"CLIENTS_BY": "writer"}, 4, 0, ("writer",)),
    "semicolons": Published(
        semicolons, ("cat", "dog"), {"CLIENTS_BY": "institution,scanner"}, 4, 0, ("Institution",)),
    "own folders": Published(
        own_folders, ("cat", "cow", "dog"), {"CLIENTS_BY": "{client}/{class}/*.jpg"}, 3),
}  # fmt: skip
