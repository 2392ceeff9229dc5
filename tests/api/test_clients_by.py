"""A hospital's table from a CSV to one client's model; whose names stay on this machine."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedvlm
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.runs.private import read_private, write_private
from scripts.scrub_cells import main as scrub
from tests import jobs

HOSPITALS = ("Utrecht", "Lyon", "Porto")
FLAGS = ("--clients-by", "hospital", "--groups", "patient", "--trainer", "FedAvg", "--peft", "head",
         "--backbone", "tiny", "--rounds", "1", "--local-epochs", "1")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ward")
    dice = np.random.default_rng(0)
    lines = ["file,diagnosis,hospital,patient"]
    for p, i in product(range(18), range(3)):
        if p % 3 == 2 and p > 12:
            continue
        said = ("mole", "melanoma")[(p // 3 + i) % 2]
        pixels = dice.integers(0, 90, (32, 32, 3)) + 80 * (said == "melanoma")
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{p}_{i}.png")
        lines.append(f"{p}_{i}.png,{said},{HOSPITALS[p % 3]},P{p}")
    (folder / "ward.csv").write_text("\n".join(lines))
    return folder / "ward.csv"


@pytest.fixture(scope="module")
def place(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    words = ["--images", str(table), *FLAGS, "--min-images", "9", "--output-dir", str(output)]
    assert main(words) == 0
    return jobs.folder(output)


def test_names_are_in_the_private_file_alone(place: Path) -> None:
    assert read_private(place)["clients"] == ["Lyon", "Porto", "Utrecht"]
    for file in place.rglob("*"):
        if file.is_file() and file.name != "private.json":
            assert not any(name.encode() in file.read_bytes() for name in HOSPITALS), file


def test_a_client_without_test_images_is_named_on_the_screen_alone(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the start and in the last lines, also of a finished run; the card of its model says it."""
    few = table.with_name("few.csv")
    lines = [line for line in table.read_text().splitlines()
             if "Porto" not in line or line.endswith("P2")]
    few.write_text("\n".join(lines))
    words = ["--images", str(few), *FLAGS, "--output-dir", str(tmp_path / "out")]
    said = "lient 1 (Porto) has no test image: it is in no accuracy, and whether it gains is not"
    assert main(words) == 0
    out = capsys.readouterr().out
    begin, end = out.index(f"note: c{said}"), out.index(f"note: C{said}")
    assert begin < out.index("round 1/1") < end and out.count(said) == 2
    assert main(words) == 0
    assert f"note: C{said}" in capsys.readouterr().out
    place = jobs.folder(tmp_path / "out")
    assert (place / "log.txt").read_text().count(said.replace(" (Porto)", "")) == 2
    for file in place.rglob("*"):
        assert not file.is_file() or file.name == "private.json" or (
            b"Porto" not in file.read_bytes()), file
    run = fedvlm.load(place)
    images = sum(line.endswith("P2") for line in lines)
    assert f"never tested on its images ({images} training images)." in run.client(1).facts.untested
    assert not run.client(0).facts.untested and not run.global_model.facts.untested


def test_a_broken_image_is_named_on_the_screen_and_in_the_private_file_alone(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ward = Path(shutil.copytree(table.parent, tmp_path / "ward")) / table.name
    (ward.parent / "Lyon").mkdir()
    (ward.parent / "Lyon" / "c004.png").write_bytes(b"no image")
    ward.write_text(f"{ward.read_text()}\nLyon/c004.png,mole,Lyon,P99")
    words = ["--images", str(ward), *FLAGS, "--output-dir", str(tmp_path / "out")]
    assert main(words) == 0
    said = "1 image(s) do not decode and are left out"
    out = capsys.readouterr()
    assert f"{said}: Lyon/c004.png (cannot identify image file)" in out.out + out.err
    folder = jobs.folder(tmp_path / "out")
    assert read_private(folder)["notes"] == [f"{said}: Lyon/c004.png (cannot identify image file)"]
    assert read_private(folder)["clients"] == ["Lyon", "Porto", "Utrecht"]
    assert said in json.loads((folder / "manifest.json").read_text())["facts"]["notes"]
    assert f"note: {said}\n" in (folder / "log.txt").read_text()
    assert scrub([str(folder), "--write", "--hash-names"]) == 0  # the partition names images
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "private.json":
            assert b"c004" not in file.read_bytes() and b"Lyon" not in file.read_bytes(), file


def test_a_small_client_is_a_new_one(place: Path) -> None:
    results = jobs.results(place.parents[6])
    assert [row["client"] for row in results["last"]["unseen_clients_rows"]] == [1]
    assert {row["client"] for row in results["last"]["clients"]} == {0, 2}
    log = (place / "log.txt").read_text()
    assert "clients with fewer than 9 training images never train" in log


def test_a_model_is_asked_for_by_name(place: Path, table: Path, capsys: pytest.CaptureFixture[str]
                                      ) -> None:
    image = str(table.parent / "0_0.png")
    assert main(["predict", str(place), image, "--client", "Utrecht"]) == 0
    assert "client-2 (Utrecht)" in capsys.readouterr().out
    run = fedvlm.load(place)
    assert run.client_names == ("Lyon", "Porto", "Utrecht")
    with pytest.raises(ConfigError, match=r"no client Portu: clients are numbered 0 to 2, named "
                                          r"Lyon, Porto, Utrecht \(also: global, all\); did you "
                                          r"mean 'Porto'"):
        run.named("Portu")
    (place / "private.json").rename(place / "away")
    try:
        assert fedvlm.load(place).client_names == ()
    finally:
        (place / "away").rename(place / "private.json")


def test_names_that_are_numbers_are_never_taken_for_others(
    place: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of clients named 1, 2 and 3 a flag's ``1`` is the one of that name, which is number 0."""
    names, image = read_private(place)["clients"], str(table.parent / "0_0.png")
    write_private(place, clients=["1", "2", "3"])
    try:
        run = fedvlm.load(place)
        for word, shown in (("1", "client-0 (1)"), ("3", "client-2 (3)")):
            assert main(["predict", str(place), image, "--client", word]) == 0
            assert shown in capsys.readouterr().out
        assert run.client("1").owner == run.client(0).owner == "client 0 of 3 (from 0)"
        assert run.client(np.int64(1)).owner == "client 1 of 3 (from 0)"  # type: ignore[arg-type]
        for verb in (["predict", str(place), image], ["forget", str(place), "--dry-run"]):
            assert main([*verb, "--client", "0"]) == 2
            said = capsys.readouterr().err
            assert "no client 0: clients are numbered 0 to 2, named 1, 2, 3" in said
            assert "the names are numbers, so as text it is read as a name" in said
    finally:
        write_private(place, clients=names)


def test_a_client_has_the_templates_of_its_name(table: Path, tmp_path: Path) -> None:
    """Also where the names are gone: what is recorded is numbers."""
    file = tmp_path / "texts.json"
    file.write_text('{"clients": {"Utrecht": ["een foto van een {}."], "Lyon": "une photo: {}"}}')
    words = ["--images", str(table), "--clients-by", "hospital", "--trainer", "ZeroShot",
             "--backbone", "tiny", "--rounds", "1", "--output-dir", str(tmp_path / "out")]
    assert main([*words, "DATASET.TEMPLATES", str(file)]) == 0
    place = jobs.folder(tmp_path / "out")
    for said in place.rglob("*"):
        if said.is_file() and said.name != "private.json":
            assert not any(name.encode() in said.read_bytes() for name in HOSPITALS), said
    write_private(place, clients=[])
    run = fedvlm.load(place)
    assert run.client_names == ()
    texts = [run.client(c).model.templates[0] for c in range(3)]
    assert texts[::2] == ["une photo: {}", "een foto van een {}."]
    assert texts[1] == run.global_model.model.templates[0]


def test_the_run_replays_and_resumes(
    place: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(place), "--replay", "1"]) == 0, capsys.readouterr()
    words = ["--images", str(table), *FLAGS, "--min-images", "9", "--resume", str(place),
             "--output-dir", str(place.parents[6])]
    assert main(words) == 0
    assert main([*words, "DATASET.GROUPS", ""]) == 2
    assert "DATASET.GROUPS" in capsys.readouterr().err


def test_the_page_names_clients_and_runs_no_name(place: Path, tmp_path: Path) -> None:
    names = read_private(place)["clients"]
    write_private(place, clients=["<b>Lyon", *names[1:]])
    try:
        assert main(["report", str(place), "--into", str(tmp_path / "page.html")]) == 0
    finally:
        write_private(place, clients=names)
    text = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;Lyon" in text and "<b>Lyon" not in text and "Utrecht" in text
    assert "this page is not for others" in text


def test_the_margin_takes_a_patient_for_one_draw(place: Path) -> None:
    """Patients have three images, all on one side."""
    results = jobs.results(place.parents[6])
    (pair,) = [one for name, one in results["paired"].items() if name.startswith("last|")]
    assert (pair["by"], results["answer"]["paired"]) == ("group", "group")
    assert results["answer"]["margin"] == pair["margin"]
    told = (place / "log.txt").read_text()
    assert pair["margin"] > 50  # so wide that no sentence tells it
    assert "they cannot show a difference (95 % margin, paired by group of test images)" in told


def test_the_doctor_finds_a_group_on_two_sides(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *rows = table.read_text().splitlines()
    parts = [("train", "test", "train")[i % 3] for i in range(len(rows))]
    torn = table.with_name("torn.csv")
    torn.write_text("\n".join([f"{header},split", *map(",".join, zip(rows, parts, strict=True))]))
    words = ["data", "add", str(torn), "--to", str(tmp_path / "torn.yaml")]
    assert main([*words, "--groups", "patient"]) == 3
    assert "stand on two sides of the split" in capsys.readouterr().err
    assert main([*words, "--groups", "patient", "--columns", "split=-"]) == 0
    (tmp_path / "torn.yaml").unlink()
    assert main(words) == 0
    words = ["doctor", "--root", str(table.parent.parent), "--dataset-config-file",
             str(tmp_path / "torn.yaml")]
    assert main(words) == 0
    assert main([*words, "--groups", "patient"]) != 0
    assert "stand on two sides of the split" in capsys.readouterr().out


def test_the_partition_is_not_dealt_anew(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--images", str(table), *FLAGS, "--output-dir", str(tmp_path)]
    assert main([*words, "--partition", "dirichlet"]) == 2
    assert "drop one of the two" in capsys.readouterr().err
    assert main([*words, "--min-images", "99"]) == 2
    assert "FED.MIN_IMAGES 99: none of the 3 clients" in capsys.readouterr().err
    assert main(["--demo", "--clients-by", "hospital", "--output-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "name a column of a table of its images" in said
    assert "Shapes is a known set, which is read without it: drop --clients-by" in said


def test_the_yaml_of_data_add_is_the_same_run(
    table: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yaml = tmp_path / "ward.yaml"
    words = ["--clients-by", "hospital", "--groups", "patient"]
    assert main(["data", "add", str(table), *words, "--to", str(yaml)]) == 0
    text = yaml.read_text()
    assert 'CLIENTS_BY: "hospital"' in text and 'GROUPS: "patient"' in text
    assert not any(name in text for name in HOSPITALS)
    root = str(table.parent.parent)
    assert main(["doctor", "--root", root, "--dataset-config-file", str(yaml)]) == 0
    words = ["--dataset-config-file", str(yaml), *FLAGS[4:], "--min-images", "9"]
    assert main([*words, "--output-dir", str(tmp_path / "out")]) == 0
    again = jobs.results(tmp_path / "out")
    first = jobs.results(place.parents[6])
    assert again["last"]["personal"] == first["last"]["personal"]
