"""``fedvlm site``: files of a party, what is wrong with them, and what is kept for runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.data.own import site as own_site
from fedvlm.data.own.site import read_site
from fedvlm.distributed.ledger import Ledger
from fedvlm.distributed.site_yaml import read_site_yaml
from fedvlm.distributed.terms import Terms

RUN = "cd" * 16


def images(folder: Path, classes: dict[str, int]) -> Path:
    """Write a tree of train and test images; as many of each class in both parts."""
    for part in ("train", "test"):
        for k, (name, count) in enumerate(classes.items()):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (60 * k, 9 * i, len(part))).save(
                    folder / part / name / f"{i}.png"
                )
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classes.txt").write_text("red fox\ncat\ndog\n")
    images(tmp_path / "photos", {"Red_Fox": 3, "dog": 6})
    return tmp_path


def make(*words: str) -> int:
    return main(["site", "make", "--classes", "classes.txt", *words])


def test_a_folder_becomes_a_site_that_is_checked(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images(place / "open", {"cat": 1, "dog": 1, "red-fox": 1})
    assert make("--client", "3", "photos", "--public", "open", "--to", "clinic") == 0
    file = read_site(place / "clinic" / "site.json")
    assert file.classnames == ["red fox", "cat", "dog"] and list(file.clients) == [3]
    assert {label for _, label in file.clients[3]["train"]} == {0, 2}
    assert len(file.public) == 6 and len(file.paths()) == 18 + 6
    rules = place / "clinic" / "site.yaml"
    owner = read_site_yaml(rules)
    assert owner.terms == Terms(("ViT-B/16",), ("FedAvg",), count=5, weights=())
    capsys.readouterr()
    assert main(["site", "check", str(rules)]) == 0
    said = capsys.readouterr()
    assert "3       9      0    9     2" in said.out and "nothing is wrong" in said.out
    assert "a class with fewer than 5 training images: its class counts are not sent" in said.err
    (place / "photos" / "train" / "dog" / "1.png").write_bytes(b"no image")
    (place / "photos" / "test" / "dog" / "2.png").unlink()
    assert main(["site", "check", str(rules), "--full", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["told"]["3"] == {"train": 9, "val": 0, "test": 9, "classes": []}
    assert [p.split(",")[0].split(":")[0] for p in told["problems"]] == [
        f"1 of 24 images are missing in '{place}'", "1 images cannot be decoded"
    ]
    assert make("--client", "3", "photos", "--to", "clinic") == 2  # nothing is overwritten


def test_prompts_use_the_agreed_names_and_that_is_said_once(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two clients with folders whose names run together."""
    (place / "classes.txt").write_text("AdiposeTissue\ndog\n")
    for name in ("one", "two"):
        images(place / name, {"AdiposeTissue": 3, "dog": 3})
    assert make("--client", "0", "one", "--client", "1", "two", "--to", "clinic") == 0
    said = capsys.readouterr()
    assert "is read as" not in said.out + said.err
    assert (said.out + said.err).count("prompts use the names of the list as they are: "
                                       "AdiposeTissue; to have words in them, write 'adipose "
                                       "tissue' there, at all parties alike (1 of 2 names)") == 1
    file = read_site(place / "clinic" / "site.json")
    assert file.classnames == ["AdiposeTissue", "dog"]
    assert {label for _, label in file.clients[0]["train"]} == {0, 1}


def test_lists_are_made_again_without_touching_the_rules(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--client", "3", "photos", "--to", "clinic")
    assert make(*words) == 0
    file, rules = place / "clinic" / "site.json", place / "clinic" / "site.yaml"
    assert file.stat().st_mode & 0o77 == 0  # it has the names of files
    rules.write_text(rules.read_text().replace("count: 5", "count: 2"))
    Image.new("RGB", (8, 8)).save(place / "photos" / "train" / "dog" / "new.png")
    assert make(*words) == 2
    assert "or remove site.json first (site.yaml and the states stay" in capsys.readouterr().err
    file.unlink()
    assert make(*words) == 0
    assert "count: 2" in rules.read_text() and "train/dog/new.png" in file.read_text()


def test_a_party_s_table_keeps_patients_whole(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The columns are read as a run reads them, and what is not obeyed is said."""
    lines = [f"{p.parent.name}/{p.name};{p.parent.name};{p.stem};Lyon"
             for p in sorted(Path("photos/train").rglob("*.png"))]
    table = Path("photos/train/list.csv")
    table.write_text("\n".join(["Datei;Befund;patient;hospital", *lines]))
    words = ("--client", "0", str(table), "--columns", "path=Datei,classname=Befund")
    assert make(*words, "--groups", "patient", "--to", "clinic") == 0
    lists = read_site(place / "clinic" / "site.json").clients[0]
    held = [{Path(path).stem for path, _ in lists[part]} for part in ("train", "val", "test")]
    assert sum(map(len, held)) == len(set().union(*held)) == 6
    capsys.readouterr()
    assert make(*words, "--to", "loose") == 0
    said = capsys.readouterr().out
    assert "note: list.csv: the column 'patient' (6 values) seems to say which images" in said
    assert "each class was cut 50/20/30" in said
    assert "--clients-by" not in said and "simulated" not in said  # they are this client's
    table.write_text(table.read_text().replace("Lyon", "Ghent", 3))
    assert make(*words, "--to", "two") == 0
    said = capsys.readouterr().out
    assert "the column 'hospital' (2 values) seems to say whose images they are; here all are " \
        "client 0: cut the table by that column" in said and "--clients-by" not in said
    for column, flag in (("caption", "--captions"), ("findings", "--labels")):
        table.write_text(f"path,{column}\ndog/1.png,a dog\ndog/2.png,another dog\n")
        assert make("--client", "0", str(table), "--to", "bare") == 3
        said = capsys.readouterr().err
        assert f"'{column}' seems to hold" in said and flag not in said
        assert "a site file needs one class for each image: --columns classname=COLUMN" in said
    table.write_text("path,label\ndog/1.png,\ndog/2.png,dog\nRed_Fox/2.png,cat\n")
    assert make("--client", "0", str(table), "--to", "bare") == 2
    assert "a site file needs one class for each image, and some" in capsys.readouterr().err


def test_images_that_a_table_names_and_nobody_has_are_said_at_once(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Path("photos/train/list.csv")
    lines = [f"{p.parent.name}/{p.name},{p.parent.name}"
             for p in sorted(Path("photos/train").rglob("*.png"))]
    table.write_text("\n".join(["path,label", *lines, *(f"dog/gone{n}.png,dog" for n in range(5))]))
    words = ("--client", "0", str(table), "--to", "clinic")
    assert make(*words) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"problem: 5 of {len(lines) + 5} images are missing or cannot be read below" in said
    assert said.count("gone") == 3 and "take their lines out of the list, remove" in said
    (place / "clinic" / "site.json").unlink()
    table.write_text("\n".join(["path,label", *lines]))
    assert make(*words) == 0
    assert "problem" not in capsys.readouterr().err


def test_a_patient_is_withdrawn_by_name(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{p.parent.name}/{p.name},{p.parent.name},P{p.stem}"
             for p in sorted(Path("photos/train").rglob("*.png"))]
    table = Path("photos/train/list.csv")
    table.write_text("\n".join(["path,label,patient", *lines]))
    words = ("--client", "0", str(table), "--groups", "patient", "--to", "clinic")
    assert make(*words) == 0
    beside, file = place / "clinic" / "site.groups.json", place / "clinic" / "site.json"
    assert beside.stat().st_mode & 0o77 == 0 and "P1" not in file.read_text()
    made = beside.read_text()
    for said, damage in (("wrote clinic/site.groups.json", "{"), ("", made)):
        beside.write_text(damage)
        capsys.readouterr()
        assert make(*words) == 0 and beside.read_text() == made
        out = capsys.readouterr().out
        assert "there already" in out and said in out and ("site.groups" in out) == bool(said)
    rules = place / "clinic" / "site.yaml"
    rules.write_text(rules.read_text().replace("count: 5", "count: 1"))
    before = set(read_site(file).paths())
    assert main(["site", "forget", str(rules), "--group", "P9"]) == 2
    assert "--group P9: no image of this site is in this group" in capsys.readouterr().err
    assert main(["site", "forget", str(rules), "--group", "P1", "--client", "0"]) == 2
    assert "not two of them" in capsys.readouterr().err
    write = own_site.files.write_text

    def killed(path: Path, *words: Any, **more: Any) -> None:
        if path.name == "site.json":
            raise KeyboardInterrupt
        write(path, *words, **more)

    with monkeypatch.context() as patch:  # killed between the two files
        patch.setattr(own_site.files, "write_text", killed)
        assert main(["site", "forget", str(rules), "--group", "P1"]) == 130
    assert main(["site", "forget", str(rules), "--group", "P1"]) == 0
    gone = {path for path in before if Path(path).stem == "1"}
    assert len(gone) == 2 and set(read_site(file).paths()) == before - gone
    assert set(json.loads(beside.read_text())) == before - gone
    beside.unlink()
    assert main(["site", "forget", str(rules), "--group", "P2"]) == 2
    assert "this site's lists have no groups" in capsys.readouterr().err


def test_a_patient_has_one_name_in_all_spellings_and_leaves_the_public_images_too(
    place: Path,
) -> None:
    for part in ("train", "test"):
        folder = Path("photos") / part
        lines = [f"{p.parent.name}/{p.name},{p.parent.name},Zo\u00eb {p.stem}"
                 for p in sorted(folder.rglob("*.png"))]
        (folder / "list.csv").write_text("\n".join(["path,label,patient", *lines]))
    words = ("--client", "0", "photos/train/list.csv", "--public", "photos/test/list.csv")
    assert make(*words, "--groups", "patient", "--to", "clinic") == 0
    rules, file = place / "clinic" / "site.yaml", place / "clinic" / "site.json"
    rules.write_text(rules.read_text().replace("count: 5", "count: 1"))
    before = read_site(file)
    assert any(Path(path).stem == "1" for path, _ in before.public)
    assert main(["site", "forget", str(rules), "--group", "Zoe\u0308 1"]) == 0  # as macOS spells
    after = read_site(file)
    assert set(after.paths()) == {p for p in before.paths() if Path(p).stem != "1"}
    assert after.public == [row for row in before.public if Path(row[0]).stem != "1"]


def test_a_server_s_file_has_names_and_public_images_only(place: Path) -> None:
    assert make("--public", "photos", "--to", "server") == 0
    file = read_site(place / "server" / "site.json")
    assert not file.clients and len(file.public) == 18
    assert not (place / "server" / "site.yaml").exists()


def test_a_server_s_file_is_checked_and_keeps_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make("--public", "photos", "--to", "server") == 0
    assert main(["site", "check", "server/site.json", "--images", "photos"]) == 0
    said = capsys.readouterr().out
    assert "server/site.json: site file of a coordinator: photos, 3 classes, no client" in said
    assert "public test set: 18 images in " in said and "18 images decoded; nothing" in said
    assert main(["site", "check", "server/site.json", "--images", "photos", "--sample", "9"]) == 0
    assert "9 of 18 images decoded; nothing" in capsys.readouterr().out
    (place / "photos" / "test" / "dog" / "2.png").unlink()
    assert main(["site", "check", "server/site.json", "--images", "photos", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["public"] == 18
    for words in (["status", "server"], ["stop", "server/site.json"]):
        assert main(["site", *words]) == 2
        assert "a coordinator has none and keeps nothing for runs" in capsys.readouterr().err
    assert make("--client", "3", "photos", "--to", "clinic") == 0
    assert main(["site", "status", "clinic"]) == 2
    assert main(["site", "check", "clinic/site.json"]) == 2
    assert "clinic/site.json' is a list of images; the owner's rules are in clinic/site.yaml" in (
        capsys.readouterr().err)


@pytest.mark.parametrize(("words", "said"), [
    (("FED.DP.CLIP", "0.1"), "FED.DP.UNIT client: over sites only single images can be hidden"),
    (("FED.DP.UNIT", "group"), "FED.DP.UNIT group: over sites only single images can be hidden"),
    (("--groups", "patient"), "drop --groups; the parties say it in fedvlm site make"),
    (("FED.HOSTILE", "0.5"), "FED.HOSTILE 0.5: attackers are simulated, but the clients of this"),
])  # fmt: skip
def test_a_coordinator_refuses_what_no_site_can_do_before_it_asks_one(
    words: tuple[str, ...], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make("--to", "server") == 0
    assert main(["run", "--engine", "sites", "--sites-at", "nobody", "--site-file",
                 "server/site.json", "--num-users", "2", "--trainer", "FedAvg", "--backbone",
                 "tiny", "FED.ASK.REACH", "3", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_clients_of_a_run_become_sites_to_try_things_out(tmp_path: Path) -> None:
    words = ("--demo", "--num-users", "2", "--shots", "1")
    assert main(["site", "make", "--split", "0,1", "--to", str(tmp_path / "t"), *words]) == 0
    files = {n: read_site(tmp_path / "t" / n / "site.json") for n in ("site0", "site1", "server")}
    assert [list(file.clients) for file in files.values()] == [[0], [1], []]
    assert [bool(file.public) for file in files.values()] == [False, False, True]
    for name, file in files.items():
        there = {p.relative_to(tmp_path / "t" / name / "images").as_posix()
                 for p in (tmp_path / "t" / name / "images").rglob("*.png")}
        assert there == set(file.paths())


@pytest.mark.parametrize(("words", "code", "said"), [
    (["make", "--classes", "classes.txt", "--client", "3"], 2, "expected a number and a folder"),
    (["make", "--client", "3", "photos", "--to", "x"], 2, "needs --classes FILE"),
    (["make", "--classes", "classes.txt", "--client", "3", "photos", "--to", "x",
      "--template", "fox"], 2, "has no {} for the class name"),
    (["make", "--split", "0,1", "--client", "0", "photos", "--to", "x"], 2,
     "--client does not go with it"),
    (["make", "--classes", "few.txt", "--client", "3", "photos", "--to", "x"], 3,
     "no class 'Red_Fox'; did you mean 'red fx'?"),
    (["chek", "site.yaml"], 2, "did you mean 'check'?"),
    (["check"], 2, "check needs one FILE"),
    (["check", "site.yaml", "--demo"], 2, "check does not read --demo"),
    (["check", "nowhere.yaml"], 2,
     "'nowhere.yaml' does not exist; create it with fedvlm site make"),
])  # fmt: skip
def test_mistakes_get_a_sentence(
    words: list[str], code: int, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "few.txt").write_text("red fx\ndog\n")
    assert main(["site", *words]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("text", "said"), [
    ("allow: {trainers: [FedAvg], backbones: [tiny], runds: 3}", "did you mean 'allow.rounds'?"),
    ("allow: {trainers: [./a.py:A], backbones: [tiny]}", "files are not allowed"),
    ("allow: {trainers: [A], backbones: [tiny], count: 0}", "allow.count is a whole number from 1"),
    ("allow: {backbones: [tiny]}", "allow.trainers is missing"),
    ("allow: {trainers: [A], backbones: [tiny], logits: 1}", "allow.logits is true or false"),
    ("allow: {trainers: [A], backbones: [tiny]}\nstates: 3", "states is a path"),
])  # fmt: skip
def test_rules_that_say_nothing_clear_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said.replace("?", r"\?").replace("[", r"\[")):
        read_site_yaml(path)


def test_status_says_what_is_kept_for_which_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.distributed.test_site import CPU, hold_store, state

    (tmp_path / "site.yaml").write_text("allow: {trainers: [A], backbones: [tiny]}")
    assert main(["site", "status", str(tmp_path / "site.yaml")]) == 0
    assert "no run has used this site yet" in capsys.readouterr().out
    with hold_store(tmp_path / "states", RUN, CPU) as store:
        store.put(2, [4, 5], state([4, 5], 2))
        store.keep({})
    Ledger(tmp_path / "states" / RUN).enter("work", 2, 1000, 2000, 61.0, False)
    assert main(["site", "status", str(tmp_path / "site.yaml")]) == 0
    said = capsys.readouterr().out
    assert f"run {RUN[:12]}: 2 clients (2 of round 2)" in said
    assert "served up to round 2: 1 work; 1.0 kB received, 2.0 kB sent, 1:01 of work" in said
    (record,) = (tmp_path / "states" / RUN).glob("s*.json")
    record.write_text("{")
    assert main(["site", "status", str(tmp_path / "site.yaml"), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["runs"][0]["damage"]
