"""What the columns of a table mean, and bad input: one sentence that says where and what to do."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError, FedvlmError
from fedvlm.data.columns.header import Header, Wish, proposals, read_header
from fedvlm.data.datasets import ONE_CLASS, name_untested, untested_words
from fedvlm.data.own.add import OwnSet, understand, yaml_text
from tests.data.columns.publishers import picture, written

HEADER = "file,class,hospital,patient"


def read(folder: Path, word: str = "t.csv", **flags: str) -> OwnSet:
    given = {f"DATASET.{key}": value for key, value in flags.items()}
    return understand(folder / word, {"CACHE_DIR": str(folder / ".cache")} | given)


def ward(folder: Path, header: str = HEADER, **cells: str) -> Path:
    """A table of 12 images; ``cells`` replace a row's cell, ``hospital3=""`` that of row 3."""
    rows = []
    for i in range(12):
        picture(folder / f"{i}.png", i)
        row = {"file": f"{i}.png", "class": ("cat", "dog")[i % 2],
               "hospital": ("Lyon", "Porto")[i // 6], "patient": f"P{i // 2}"}
        row |= {k: cells[f"{k}{i}"] for k in row if f"{k}{i}" in cells}
        rows.append([row.get(k, "x") for k in header.split(",")])
    written(folder, "t.csv", header, rows)
    return folder


def test_the_reported_hospital_table_is_read(tmp_path: Path) -> None:
    """It was refused once, with "did you mean 'split'?"."""
    own = read(ward(tmp_path))
    assert own.keys["FED.PARTITION"] == "dirichlet"  # no client is taken from a column unasked
    notes = "\n".join(own.notes)
    assert "the column 'hospital' (2 values) seems to say whose images they are" in notes
    assert "columns not used: hospital, patient" in notes and "did you mean 'split'" not in notes
    own = read(tmp_path, CLIENTS_BY="hospital")
    assert own.data.client_names == ["Lyon", "Porto"]
    assert own.keys["FED.PARTITION"] == "natural" and own.keys["FED.CLIENTS"] == 2
    assert "--clients-by" not in "\n".join(own.notes)


@pytest.mark.parametrize(("client", "group"), [
    ("Klinik", "Patienten_ID"), ("Krankenhaus", "Patient"), ("Zentrum", "patient"),
    ("H\u00f4pital", "Patient"), ("Ho\u0302pital", "id_patient"), ("clinique", "patient"),
    ("Cl\u00ednica", "Paciente"), ("Klinik", "Pat-ID"), ("site", "PatID"), ("User-ID", "MRN"),
    ("site_id", "PatientID"), ("Center", "Patient-Nr"),
])
def test_columns_in_other_languages_are_proposed(client: str, group: str) -> None:
    header = Header({}, (), (), (client, group))
    said = proposals(header, [["A", "1"], ["B", "2"]])
    assert f"--clients-by {client} gives each" in said[0] and f"--groups {group} keeps" in said[1]


def test_tables_of_other_hands(tmp_path: Path) -> None:
    """Windows' paths are read; two spellings of a name are said, a client's without the name."""
    (tmp_path / "scans").mkdir()
    ward(tmp_path, class1="Dog", hospital2="LYON")
    table = (tmp_path / "t.csv").read_text()
    for i in range(12):
        (tmp_path / f"{i}.png").rename(tmp_path / "scans" / f"{i}.png")
        table = table.replace(f"\n{i}.png", f"\nscans\\{i}.png")
    (tmp_path / "t.csv").write_text(table)
    own = read(tmp_path, CLIENTS_BY="hospital")
    assert sorted(d.key for d in own.data.all())[0] == "scans/0.png"
    for notes in (own.notes, own.decided):
        said = [note for note in notes if "write them alike" in note]
        assert said[0].startswith("1 of 3 classes differ") and "('Dog', 'dog')" in said[0]
        assert said[1].startswith("1 of 3 clients differ") and "LYON" not in said[1]
    assert "write them alike" not in str(read(ward(tmp_path / "plain")).notes)
    own = read(ward(tmp_path / "answers", **{f"class{i}": ("no", "yes")[i % 2] for i in range(12)}))
    assert "no, yes name nothing: --classnames no=NAME,yes=NAME sets" in str(own.notes)
    with pytest.raises(FedvlmError, match="path=COLUMN,classname=COLUMN$"):
        read(ward(tmp_path / "german", "Datei,Befund,Klinik"))


@pytest.mark.parametrize(("flags", "cells", "says"), [
    ({"CLIENTS_BY": "hopital"}, {}, r"--clients-by hopital: .* has no column 'hopital'; did you "
                                    r"mean 'hospital'\? \(it has file, class, hospital, patient\)"),
    ({"GROUPS": "patent"}, {}, r"--groups patent: .*did you mean 'patient'\?"),
    ({"CLIENTS_BY": "hospital"}, {"hospital3": ""}, r"line 5: the cell 'hospital' is empty"),
    ({"GROUPS": "hospital,patient"}, {"patient3": " "}, r"line 5: the cell 'patient' is empty"),
    ({"CLIENTS_BY": "hospital"}, {f"hospital{i}": "Lyon" for i in range(12)},
     "there is one client only; a federation needs two"),
    ({"CLIENTS_BY": "hospital", "GROUPS": "patient"}, {"patient1": "P4"},
     r"'P4', at 'Lyon' and 'Porto'"),
    ({"CLIENTS_BY": "dx"}, {},
     r"t.csv: 'dx' is named by --clients-by, so no column is left for the class: .*classname=COL"),
    ({"GROUPS": "dx"}, {}, r"'dx' is named by --groups, so no column is left for the class"),
    ({"COLUMNS": "clas=dx"}, {}, r"DATASET.COLUMNS 'clas=dx'; did you mean 'classname'\?"),
    ({"COLUMNS": "classname=dx,classname=class"}, {}, "classname is dx and class; keep one"),
    ({"COLUMNS": "patient=dx"}, {}, "patients, and other groups that stay whole, go by --groups"),
    ({"COLUMNS": "classname=dx"}, {}, r"DATASET.COLUMNS classname=dx: .* has no column 'dx'"),
    ({"COLUMNS": "path={ward}/{file}"}, {}, "has no column 'ward'"),
    ({}, {f"class{i}": "cat" for i in range(12)}, "there is one class only, cat"),
    ({"COLUMNS": "domain=hospital"}, {f"class{i}": "cat" for i in range(12)},
     "there is one class only, cat"),
    ({"CLIENTS_BY": "hospital"}, {f"class{i}": "cat" for i in range(12)},
     "there is one class only, cat; .*--columns classname=COLUMN"),
    ({}, {"class3": "cat|dog"}, r"line 5: the class 'cat\|dog' is a set of labels"),
    ({}, {"class3": "cat; dog"}, r"line 5: the class 'cat; dog' is a set of labels"),
    ({}, {"class3": '["cat", "dog"]'}, "is a set of labels"),
    ({}, {"file3": "0.png"}, r"'0.png' is also on line 2; if two files have one name, write each "
                             r"with its folder \(.*\); if it is one, take a line out"),
    ({}, {"file0": "a.dcm"}, r"a.dcm is a DICOM file.*docs/own_data.md, 'DICOM'"),
    ({"CLIENTS_BY": "{client}/{class}"}, {}, "does not say it|is not of that form"),
    ({"GROUPS": "scan{group}.png"}, {}, r"--groups 'scan\{group\}.png': '0.png' is not of that"),
])  # fmt: skip
def test_bad_input_is_one_sentence(
    flags: dict[str, str], cells: dict[str, str], says: str, tmp_path: Path
) -> None:
    ward(tmp_path, "file,dx,hospital" if "dx" in flags.values() else HEADER, **cells)
    with pytest.raises(FedvlmError, match=says) as caught:
        read(tmp_path, **flags)
    assert "\n" not in str(caught.value)


def test_two_files_of_one_name_at_two_hospitals(tmp_path: Path) -> None:
    """The folder in the column tells them; a name that two files have is asked for."""
    rows = []
    for place, i in product(("Lyon", "Porto"), range(4)):
        picture(tmp_path / place / "mri" / f"scan{i}.png", i)
        rows.append([f"scan{i}.png", ("cat", "dog")[i % 2], place])
    written(tmp_path, "t.csv", "file,class,hospital", rows)
    with pytest.raises(FedvlmError, match=r"'scan0.png' is also on line 2; if two files"):
        read(tmp_path)
    written(tmp_path, "t.csv", "file,class,hospital", rows[:4])
    with pytest.raises(FedvlmError, match=r"2 files are called 'scan0.png' \(Lyon/mri/scan0"):
        read(tmp_path)
    rows = [[f"{place}/mri/{file}", name, place] for file, name, place in rows]
    written(tmp_path, "t.csv", "file,class,hospital", rows)
    assert read(tmp_path, CLIENTS_BY="hospital").data.client_names == ["Lyon", "Porto"]
    start = f"data/{tmp_path.name}/"  # as the shell's folder shows them
    rows = [[start + file, *more] for file, *more in rows]
    written(tmp_path, "t.csv", "file,class,hospital", rows)
    with pytest.raises(FedvlmError, match=f"line 2: paths are read from the folder {tmp_path}: "
                                          f"write 'Lyon/mri/scan0.png', without '{start}'$"):
        read(tmp_path)


def test_a_folder_of_dicom_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.dcm").write_bytes(b"DICM")
    with pytest.raises(FedvlmError, match="1.dcm is a DICOM file"):
        understand(tmp_path)


def test_a_client_of_one_class_is_said_and_allowed(tmp_path: Path) -> None:
    cells = {f"class{i}": "dog" for i in range(6)}
    own = read(ward(tmp_path, **cells), CLIENTS_BY="hospital")
    assert "1 of 2 clients have images of one class only" in "\n".join(own.notes)
    assert ONE_CLASS not in own.notes


def test_where_every_client_has_one_class_the_first_note_says_so(tmp_path: Path) -> None:
    """Alone is right by naming it, unless a test image has another class."""
    cells = {f"class{i}": ("dog", "cat")[i // 6] for i in range(12)}
    own = read(ward(tmp_path, **cells), CLIENTS_BY="hospital")
    assert own.data.notes[0] == ONE_CLASS in own.notes and "boundary" not in str(own.notes)
    rows = [[f"{i}.png", cells[f"class{i}"], ("Lyon", "Porto")[i // 6], "train"] for i in range(12)]
    rows[5][1:] = ["cat", "Lyon", "test"]
    rows[11][1:] = ["dog", "Porto", "test"]
    written(tmp_path, "t.csv", "file,class,hospital,split", rows)
    own = read(tmp_path, CLIENTS_BY="hospital")
    assert ONE_CLASS not in own.notes and "2 of 2 clients have images of one" in str(own.notes)


def test_a_client_without_test_images_is_said_and_named_on_the_screen_only(tmp_path: Path) -> None:
    cells = {f"hospital{i}": "Graz" for i in (10, 11)}
    own = read(ward(tmp_path, **cells), CLIENTS_BY="hospital", GROUPS="patient")
    bare = "client 0 has no test image: it is in no accuracy, and whether it gains is not known"
    assert own.notes[-1] == bare and "Graz" not in yaml_text(own) and bare not in own.decided
    assert own.shown == [*own.notes[:-1], bare.replace("client 0", "client 0 (Graz)")]
    assert untested_words([0, 2], ["A", "B", "C"]).startswith("clients 0 (A), 2 (C) have no test")
    assert untested_words(range(7)).startswith("clients 0, 1, 2, 3, 4 and 2 more have no test")
    assert not untested_words([]) and name_untested(["a"], [], []) == ["a"]
    assert "no test image" not in str(read(ward(tmp_path / "b"), CLIENTS_BY="hospital").notes)


def test_a_table_without_any_test_image_is_said_first(tmp_path: Path) -> None:
    cells = {f"class{i}": f"c{i // 2}" for i in range(12)} | {
        f"hospital{i}": ("Lyon", "Porto")[i % 2] for i in range(12)}
    own = read(ward(tmp_path, **cells), CLIENTS_BY="hospital")
    assert own.data.notes[0].endswith(
        "there is no test image, so a run measures no accuracy and cannot say whether to federate: "
        "give more images (two of one class at one client make a test), or a test part")
    assert "is in no accuracy" not in str(own.notes)


@pytest.mark.parametrize(("names", "slip"), [
    (("TumorEpithelium", "TumorEpithelum"), True), (("polyp", "Polpy"), False),
    (("adenoma", "adenomas"), True), (("tumor type A", "tumor type B"), False),
    (("typical tissue", "atypical tissue"), False), (("class grade 1", "class grade 2"), False),
])
def test_a_class_of_one_image_that_is_nearly_another_is_asked_about(
    names: tuple[str, str], slip: bool, tmp_path: Path
) -> None:
    cells = {f"class{i}": names[0] for i in range(0, 12, 2)} | {"class4": names[1]}
    own = read(ward(tmp_path, **cells))
    said = f"'{names[1]}' has 1 image; is it '{names[0]}' (5)?"
    assert (said in own.notes) == (said in own.decided) == slip
    more = cells | {"class2": names[1], "class6": names[1]}
    assert "is it" not in str(read(ward(tmp_path, **more)).notes)
    sets = {f"class{i}": cells.get(f"class{i}", "dog") + "|dog" * (i % 3 == 0) for i in range(12)}
    assert (said in read(ward(tmp_path, **sets), LABELS="class").notes) == slip


def test_a_client_with_test_images_only_is_no_client(tmp_path: Path) -> None:
    rows = []
    for i in range(12):
        picture(tmp_path / f"{i}.png", i)
        place = ("Lyon", "Porto", "Graz")[i // 4]
        split = "test" if place == "Graz" or i % 4 == 3 else "train"
        rows.append([f"{i}.png", ("cat", "dog")[i // 2 % 2], place, split])
    written(tmp_path, "t.csv", "file,class,hospital,split", rows)
    own = read(tmp_path, CLIENTS_BY="hospital")
    assert own.data.client_names == ["Lyon", "Porto"]
    assert "1 of 3 have no training image and are no clients" in "\n".join(own.notes)


def test_names_count_by_their_numbers(tmp_path: Path) -> None:
    cells = {f"hospital{i}": f"site {i // 3 * 5}" for i in range(12)}
    own = read(ward(tmp_path, **cells), CLIENTS_BY="hospital")
    assert own.data.client_names == ["site 0", "site 5", "site 10", "site 15"]


def test_a_name_that_no_screen_can_show_is_refused(tmp_path: Path) -> None:
    rows = [{"file": f"{i}.png", "class": "ab"[i % 2], "user": f"u{i // 2}"} for i in range(8)]
    rows[3]["user"] = "e\u202evil"
    for i in range(8):
        picture(tmp_path / f"{i}.png", i)
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(FedvlmError, match=r"line 4: the name 'e\\u202evil' holds a mark"):
        read(tmp_path, "t.jsonl", CLIENTS_BY="user")


def test_groups_that_leave_no_test_image_are_said(tmp_path: Path) -> None:
    cells = {f"patient{i}": f"P{i // 6}" for i in range(12)}
    own = read(ward(tmp_path, **cells), CLIENTS_BY="hospital", GROUPS="patient")
    assert not own.data.test and own.data.train_x
    assert "--groups patient: whole groups (2) leave no test image" in str(own.notes)
    assert "no test image" not in str(read(ward(tmp_path / "b"), GROUPS="patient").notes)


@pytest.mark.parametrize("header", ["file,class,hospital,patient", "file,finding,hospital,patient"])
def test_class_names_are_words_as_those_of_folders(header: str, tmp_path: Path) -> None:
    """A config that was written earlier has no such key and keeps its names."""
    word = header.split(",")[1]
    ward(tmp_path)
    rows = [[f"{i}.png", ("AnnualCrop", "MRI_scan")[i % 2], "x", "y"] for i in range(12)]
    written(tmp_path, "t.csv", header, rows)
    own = read(tmp_path, **({"LABELS": word} if word == "finding" else {}))
    assert own.keys["DATASET.CLASSNAMES"] == "words"
    assert (own.data.label_names or own.data.classnames) == ["annual crop", "MRI scan"]
    assert "AnnualCrop is read as 'annual crop' (1 of 2 names" in str(own.notes)
    own = read(tmp_path, CLASSNAMES="field,scan", COLUMNS=f"classname={word}")
    assert own.data.classnames == ["field", "scan"]


def test_all_faults_of_a_kind_are_told_at_once(tmp_path: Path) -> None:
    """A table by hand was mended in eight starts, each of which told one line."""
    cells = {"hospital3": "", "hospital5": "", "hospital8": "", "patient6": " ",
             "file9": "C:\\x\\9.png", "file10": "C:\\x\\10.png"}
    ward(tmp_path, **cells)
    with pytest.raises(FedvlmError) as caught:
        read(tmp_path, CLIENTS_BY="hospital", GROUPS="patient")
    clients, groups, paths = str(caught.value).splitlines()
    assert "line 5: the cell 'hospital' is empty; fill" in clients
    assert clients.endswith("(the same on 2 more lines: 7, 10)")
    assert "line 8: the cell 'patient' is empty" in groups and "the same" not in groups
    assert "line 11: 'C:\\x\\9.png'" in paths and paths.endswith("(the same on 1 more line: 12)")
    ward(tmp_path, file4="0.png", file7="0.png", file9="1.png")
    with pytest.raises(FedvlmError, match=r"line 6: '0.png' is also on line 2; .* \(the same on 2 "
                                          r"more lines: 9, 11\)$"):
        read(tmp_path)


@pytest.mark.parametrize(("header", "meant"), [
    ("Image Index,class", {"path": 0, "classname": 1}),  # NIH ChestX-ray14
    ("Image-ID,Diagnosis", {"path": 0, "classname": 1}),
    ("image_id,dx,lesion_id", {"path": 0, "classname": 1}),  # ISIC
    ("imageId,image_id,scientificName,dx", {"path": 1, "classname": 3}),  # as they were before
])
def test_usual_columns_are_known_however_they_are_written(
    header: str, meant: dict[str, int]
) -> None:
    assert read_header(header.split(","), Path("t.csv"), False).at == meant


def test_a_class_is_not_found_in_a_column_that_was_none_before() -> None:
    """Classes are those of the folders, as ever: a saved set means what it meant."""
    assert read_header(["file_name", "Common-Name"], Path("t.csv"), True).at == {"path": 0}


def test_a_header_that_lacks_something_is_shown_whole() -> None:
    names = ["Bild", "Pleural_Effusion", "Fluss-Lauf", "StrassenBelag", "Hospital", "Alter"]
    wish = Wish(labels=("Fluss-Lauf", "StrassenBelag"))
    with pytest.raises(DataError, match="must name the column path, sep") as caught:
        read_header(names, Path("t.csv"), False, wish)
    assert "it names Bild, Pleural_Effusion, Fluss-Lauf, StrassenBelag, Hospital, Alter; where" in (
        str(caught.value).replace("'", ""))
    assert "classname" not in str(caught.value) and str(caught.value).endswith("path=COLUMN")
    nih = ["Image Index", "Finding Labels", "Follow-up #", "Patient ID"]
    with pytest.raises(DataError, match="--labels 'Finding Labels' reads it as sets"):
        read_header(nih, Path("t.csv"), False)
    (said,) = proposals(read_header(nih, Path("t.csv"), False, Wish(labels=(nih[1],))),
                        [["a", "b", "0", "1"]])
    assert "--groups 'Patient ID' keeps" in said
