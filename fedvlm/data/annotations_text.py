"""Annotations in text files: Oxford-IIIT Pets, SUN397 and UCF101, class names cleaned as CoOp does.

Sources: the sets' own release notes; the clean-ups are CoOp's, so that prompts read the same.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedvlm.data.annotations_base import Annotated, labelled, lines_of, number
from fedvlm.data.datum import Datum
from fedvlm.data.facts import Facts
from fedvlm.errors import DataError


def read_pets(home: Path, facts: Facts) -> Annotated:
    """Read ``annotations/{trainval,test}.txt``: ``Breed_Name_12 <label from 1> <...>`` a line.

    The class is the breed in lower case: ``Egyptian_Mau_3`` is of class ``egyptian_mau``.

    Raises:
        DataError: a file is missing or malformed.
    """
    images = home / facts.image_dir

    def rows(name: str) -> list[Datum]:
        found = []
        for n, line in enumerate(lines_of(home, name, f"{facts.name}: {name}", facts.source), 1):
            words, where = line.split(), f"{home / name}:{n}"
            if words[0].startswith("#"):
                continue
            breed = words[0].rpartition("_")[0].lower()
            if len(words) < 2 or not breed:
                raise DataError(f"{where}: a line is '<Breed>_<number> <label> ...', not '{line}'")
            label = number(words[1], where) - 1
            found.append(labelled(images, f"{words[0]}.jpg", label, breed, where))
        return found

    names = ("annotations/trainval.txt", "annotations/test.txt")
    return Annotated(rows(names[0]), " and ".join(names), rows(names[1]))


def sun_name(path: str) -> str:
    """Return the class name of SUN397's ``/a/apse/indoor``: ``indoor apse`` (no first letter)."""
    return " ".join(reversed(path.strip("/").split("/")[1:]))


def read_sun(home: Path, facts: Facts) -> Annotated:
    """Read ``ClassName.txt`` (labels by line), ``Training_01.txt`` and ``Testing_01.txt``.

    Lines are ``/a/abbey`` and ``/a/abbey/sun_abc.jpg``. The lists lie in the set's folder, where
    CoOp wants them, or beside the images.

    Raises:
        DataError: a list is missing or names a class that ClassName.txt does not.
    """
    images = home / facts.image_dir
    beside = images if not (home / "ClassName.txt").is_file() else home
    what = f"{facts.name}: ClassName.txt"
    classes = lines_of(beside, "ClassName.txt", what, facts.source)
    label_of = {name.strip("/"): label for label, name in enumerate(classes)}

    def rows(name: str) -> list[Datum]:
        lists = home if (home / name).is_file() else images
        found = []
        for n, line in enumerate(lines_of(lists, name, f"{facts.name}: {name}", facts.source), 1):
            key = line.strip("/")
            folder, where = key.rpartition("/")[0], f"{lists / name}:{n}"
            if folder not in label_of:
                raise DataError(f"{where}: '{folder}' is not a class of ClassName.txt")
            found.append(labelled(images, key, label_of[folder], sun_name(folder), where))
        return found

    names = ("Training_01.txt", "Testing_01.txt")
    return Annotated(rows(names[0]), " and ".join(names), rows(names[1]))


def ucf_name(action: str) -> str:
    """Return the class name, and CoOp's folder, of an action: ``YoYo`` is ``Yo_Yo``."""
    return "_".join(re.findall("[A-Z][^A-Z]*", action))


def read_ucf(home: Path, facts: Facts) -> Annotated:
    """Read ``ucfTrainTestlist/{classInd,trainlist01,testlist01}.txt``; images are mid-frames.

    Lines are ``1 ApplyEyeMakeup`` and ``ApplyEyeMakeup/v_x.avi 1``; the image of the latter is
    ``Apply_Eye_Makeup/v_x.jpg``.

    Raises:
        DataError: a list is missing or names an action that classInd.txt does not.
    """
    images, folder = home / facts.image_dir, "ucfTrainTestlist"
    what = f"{facts.name}: {folder}/classInd.txt"
    label_of: dict[str, int] = {}
    for line in lines_of(home, f"{folder}/classInd.txt", what, facts.source):
        word, _, action = line.partition(" ")
        label_of[action.strip()] = number(word, f"{home / folder}/classInd.txt") - 1

    def rows(name: str) -> list[Datum]:
        found = []
        text = lines_of(home, name, f"{facts.name}: {name}", facts.source)
        for n, line in enumerate(text, 1):
            action, _, file = line.split()[0].partition("/")
            where, classname = f"{home / name}:{n}", ucf_name(action)
            if action not in label_of:
                raise DataError(f"{where}: '{action}' is not an action of classInd.txt")
            key = f"{classname}/{file.removesuffix('.avi')}.jpg"
            found.append(labelled(images, key, label_of[action], classname, where))
        return found

    names = (f"{folder}/trainlist01.txt", f"{folder}/testlist01.txt")
    return Annotated(rows(names[0]), " and ".join(names), rows(names[1]))
