"""The map read for a case in words."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fedvlm.advise import like
from fedvlm.advise.ways import AFL, AFL_PRIOR, DITTO, FEDAVG, cost_words, method_flags
from fedvlm.cli import main as cli
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.job.flags import parse
from fedvlm.recipes.counts import SHAPES

HEAD = ("set,clients,images,skew,shift,method,seeds,personal,balanced,worst,hurt,gain,gain_se,"
        "balanced_gain,balanced_gain_se\n")
WAYS = {way: method for method, way in like.METHODS.items()}


def cell(
    name: str, clients: int, images: int, skew: str, alone: float, gain: float, **less: float,
) -> str:
    """Return the rows of a cell in which Ditto is the best way.

    Args:
        less: by method of the map, points below Ditto.
    """
    start = f"{name},{clients},{images},{skew},no"
    ways = {"shared": 3.0, "ridge": 6.0, "ridge+shares": 4.0, "personal": 0.0} | less
    return f"{start},alone,20,{alone},40,30,0,0,0,0,0\n" + "".join(
        f"{start},{method},20,{alone + points},{alone + 2 * points},50,5,{points},0.4,9,0.5\n"
        for method, points in (*((way, gain - down) for way, down in ways.items()),
                               ("together", 99.0)))  # the best of all, which no command runs


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "map.csv"
    file.write_text(HEAD + cell("EuroSAT", 10, 5, "0.3", 60, 9.5)
                    + cell("EuroSAT", 50, 50, "0.3", 70, 1)
                    + cell("DescribableTextures", 10, 5, "0.3", 40, 7)
                    + cell("EuroSAT", 10, 5, "two classes", 96, -0.5)
                    + cell("DTD", 10, 5, "even", 50, 20) + cell("EuroSAT", 10, 5, "even", 50, 0))
    return file


@pytest.mark.parametrize(("text", "case"), [
    ("10 clients, 4 images, skew 0.3", like.Case(10, 4, "0.3")),
    ("2 clients; 100 images each; iid", like.Case(2, 100, "even")),
    ("50 users, 10 samples a client, skew disjoint, shift", like.Case(50, 10, "two classes", True)),
    ("5 sites, 8 images, beta 0.7", like.Case(5, 8, "1")),
    ("ten clients, twenty images, two classes", like.Case(10, 20, "two classes")),
    ("3 hospitals, 8 images, iid", like.Case(3, 8, "even")),
    ("five centres, 1 sample a client, skew 1", like.Case(5, 1, "1")),
    ("5 clients, 8 images, skew .12", like.Case(5, 8, "0.1")),
    ("10 Clients, 1,000 images, skew 0,3", like.Case(10, 1000, "0.3")),
    ("skew 0.3,10 clients,4 images", like.Case(10, 4, "0.3")),
    ("10 clients, 16 shots, iid", like.Case(10, 160, "even")),
    ("10 clients,4 images,skew 0,3 and shift", like.Case(10, 4, "0.3", True)),
    ("12 hospitals, 30 images each, differing scanners, 0.3", like.Case(12, 30, "0.3", True)),
    ("12 hospitals with 30 images each and another scanner each, iid",
     like.Case(12, 30, "even", True)),
    ("10 clients, 2 images a class, iid", like.Case(10, 20, "even")),
    ("10 clients, 2 images per class, disjoint", like.Case(10, 4, "two classes")),
    ("10 sites, 9 images per hospital, classes of their own", like.Case(10, 9, "two classes")),
])
def test_a_case_in_words(text: str, case: like.Case) -> None:
    assert like.read_case(text) == case


@pytest.mark.parametrize(("text", "says"), [
    ("10 clients, skew 0.3", "--like lacks images"), ("10 hens", "does not understand '10 hens'"),
    ("3 clients, 8 images, different scaners", "nearest phrase: 'differing scanners'"),
    ("3 clients, 8 images, skewed", "nearest phrase: 'skew 0.3'"),
    ("1 client, 3 images, iid", "at least 2 clients"), ("", "lacks clients and images and skew"),
])
def test_a_case_that_is_none(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        like.read_case(text)


def test_the_nearest_cell_of_each_set_decides(table: Path) -> None:
    yes = like.read_like("12 clients, 4 images, skew 0.3", table).lines
    assert any("10 x 5" in x and "EuroSAT" in x and "+9.5 +- 0.8" in x for x in yes)
    assert yes[0].endswith("training; together: Ditto, personal heads")
    assert len({x.index("10 x 5") for x in yes if "10 x 5" in x}) == 1  # a column
    assert ("Verdict: federate: together is clearly better on 2 of 2 sets; 1 set has no such cell."
            in yes)
    no = like.read_like("10 clients, 5 images, two classes", table).lines
    assert any(line.startswith("Verdict: do not federate") for line in no)
    open_ = like.read_like("10 clients, 5 images, iid", table).lines
    assert any(line.startswith("Verdict: cannot say") for line in open_)
    far = like.read_like("100 clients, 200 images, skew 0.3", table).lines
    assert any("no cell near" in line for line in far) and any("cannot say" in x for x in far)
    assert "too few images" not in "\n".join(far)  # the map does not know why


def test_the_advised_way_has_a_command_and_a_price(table: Path) -> None:
    """As an advice on images ends; the way is taken over all sets, by the same rule."""
    case = "12 clients, 4 images, skew 0.3"
    told = like.read_like(case, table)
    run = "fedvlm run --images FOLDER --clients-by '{client}/{class}/*' "
    assert told.lines[-4:-1] == [
        "Gain over working alone, mean of EuroSAT, DescribableTextures: AFL +2.2, AFL plus own "
        "class shares +4.2, FedAvg +5.2, Ditto +8.2. Of these Ditto is the simplest that is "
        "neither clearly nor 2 points below the best.",
        f"Next: {run}{method_flags(DITTO)}",
        f"It costs {cost_words(DITTO, 512, 10)}, with 10 classes and 512 features (ViT-B/16)."]
    assert SHAPES[like.BACKBONE].embed == like.WIDTH
    assert default_schema()["MODEL.BACKBONE.NAME"].default == like.BACKBONE
    found = told.record
    assert found["method"] == DITTO and found["command"] == run + method_flags(DITTO)
    assert found["gains"] == {AFL: 2.25, AFL_PRIOR: 4.25, FEDAVG: 5.25, DITTO: 8.25}
    assert found["cells"][0]["gains"][AFL] == 3.5 and "alone_command" not in found
    assert parse(shlex.split(str(found["command"]))[2:]).images == "FOLDER"


@pytest.mark.parametrize(("less", "way"), [
    ({"ridge": 1.9}, DITTO), ({"ridge": 0.7}, AFL), ({"ridge+shares": 0.7}, AFL_PRIOR),
    ({"shared": 0.7}, FEDAVG),
])
def test_a_simple_way_that_is_as_good_is_advised(
    table: Path, less: dict[str, float], way: str,
) -> None:
    """Each gain is known to 0.8 points: a difference of 1.9 is clear, one of 0.7 is not."""
    table.write_text(HEAD + cell("EuroSAT", 10, 5, "0.3", 60, 9.5, **less))
    found = like.read_like("10 clients, 5 images, skew 0.3", table).record
    assert found["method"] == way and found["verdict"].startswith("federate")
    assert found["cells"][0]["together"]["personal"] == 69.5 - less.get(WAYS[way], 0)


def test_the_verdict_is_on_the_way_that_is_advised(table: Path) -> None:
    """Not on a way that is hardly better, and not the advised one."""
    table.write_text(HEAD + cell("EuroSAT", 10, 5, "0.3", 60, 1.6, ridge=0.8))
    found = like.read_like("10 clients, 5 images, skew 0.3", table)
    assert found.record["method"] == AFL and found.record["verdict"].startswith("do not federate")
    alone = ("fedvlm run --images FOLDER --clients-by '{client}/{class}/*' --trainer LocalOnly "
             "--peft head --lr 0.5 --rounds 50")
    assert found.record["alone_command"] == alone
    assert found.lines[-4] == f"Next: each client uses only its own images: {alone}"
    assert found.lines[-3].startswith("To check that sharing does not pay: fedvlm run --images F")
    none = like.read_like("100 clients, 200 images, skew 0.3", table)
    assert "command" not in none.record and none.lines[-2].startswith("Verdict: cannot say")


def test_sets_without_such_a_cell_are_named_and_counted(table: Path) -> None:
    one = like.read_like("50 clients, 50 images, skew 0.3", table).lines
    assert sum("no cell near: its cells end at 10 clients" in line for line in one) == 2
    part = like.read_like("50 clients, 5 images, skew 0.3", table).lines
    assert sum("no cell near: the map has only a part" in line for line in part) == 1
    many = like.read_like("1000 clients, 5 images, skew 0.3", table).lines
    assert [line.rpartition("its cells end at ")[2] for line in many if "end at" in line] == [
        "50 clients", "10 clients", "10 clients"]
    assert any(line.endswith("on 1 of 1 sets; 2 sets have no such cell.") for line in one)
    table.write_text(table.read_text() + cell("EuroSAT", 10, 5, "0.3", 60, 3).replace(
        ",no,", ",yes,"))
    shifted = like.read_like("10 clients, 5 images, skew 0.3, scanners", table).lines
    assert sum("not run with simulated scanners" in line for line in shifted) == 2
    assert any("+3.0" in line for line in shifted)


def test_disjoint_reads_no_cell_whose_clients_share_a_class(table: Path) -> None:
    """Ten clients with two of ten classes each: every class is at two of them."""
    words = "10 clients, 5 images, "
    assert any("clearly better on 0 of 1" in line or "do not federate" in line
               for line in like.read_like(words + "two classes", table).lines)
    none = like.read_like(words + "disjoint", table).lines
    assert any(line.startswith("Verdict: cannot say: the map has no cell") for line in none)
    assert any("should_we_federate.md" in line for line in none)
    table.write_text(table.read_text() + cell("EuroSAT", 5, 5, "two classes", 96, -0.5))
    own = like.read_like(words + "disjoint", table).lines
    assert any(line.startswith("Verdict: do not federate") for line in own)
    assert any("5 x 5" in line for line in own)


@pytest.mark.parametrize(("word", "told"), [
    ("iid", "10 clients, 5 images each, iid (all classes evenly)"),
    ("disjoint", "10 clients, 5 images each, disjoint:"),
    ("skew 0.7", "10 clients, 5 images each, skew 0.7 (Dirichlet 1)"),
    ("0.3, shift", "10 clients, 5 images each, skew 0.3, simulated scanners in turn"),
])
def test_the_case_is_told_in_the_users_words(table: Path, word: str, told: str) -> None:
    assert told in like.read_like(f"10 clients, 5 images, {word}", table).lines[0]


def test_images_a_class_are_of_the_set_s_classes(table: Path) -> None:
    """Caltech101 has 101 of them: one image of each is 101 images."""
    table.write_text(HEAD + cell("EuroSAT", 10, 10, "even", 40, 35.0) + "".join(
        cell("Caltech101", 10, n, "even", 40, gain) for n, gain in ((5, 3.0), (100, 38.0))))
    lines = like.read_like("10 clients, 1 image a class, iid", table).lines
    assert "Images a class: 1, read as 10 each, of 10 classes; Caltech101: 101 of 101" in lines
    assert any("10 x 100" in line and "+38.0" in line for line in lines)
    assert any(line.startswith("Verdict: federate") for line in lines)
    two = like.read_like("10 clients, 1 image a class, two classes", table).lines
    assert "Images a class: 1, read as 2 each, of two classes" in two


def test_of_one_draw_nothing_is_promised(table: Path) -> None:
    table.write_text(HEAD + cell("EuroSAT", 10, 5, "0.3", 60, 9.5)
                     .replace(",20,", ",1,").replace(",0.4,", ",nan,"))
    lines = like.read_like("10 clients, 5 images, skew 0.3", table).lines
    assert any("+9.5 (one draw)" in line for line in lines)
    assert any(line.startswith("Verdict: cannot say") for line in lines)


def test_a_map_that_is_none_is_a_data_error(tmp_path: Path, table: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="lacks the column"):
        like.read_map(bad)
    bad.write_text(HEAD + "".join(line for line in cell("EuroSAT", 5, 5, "1", 9, 9).splitlines(True)
                                  if ",ridge," not in line))
    with pytest.raises(DataError, match="lacks rows of ridge"):
        like.read_map(bad)
    table.write_text(table.read_text().replace("9.5", "much", 1))
    with pytest.raises(DataError, match="cannot be read as a map"):
        like.read_map(table)


def test_where_the_map_lies_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(like, "PLACE", Path("no/such/place/map.csv"))
    assert cli.main(["advise", "--like", "10 clients, 5 images, iid"]) == 2
    assert "not part of an installed package" in capsys.readouterr().err
    assert cli.main(["advise", "--like", "10 clients, 5 images, iid", "--map", "x.csv"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_the_verb_reads_it(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", "--like", "10 clients, 5 images, skew 0.3", "--map", str(table)]
    assert cli.main(words) == 0
    assert "Verdict: federate" in capsys.readouterr().out


def test_the_cells_as_json(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", "--like", "10 clients, 5 images, skew 0.3", "--map", str(table)]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == ("federate: together is clearly better on 2 of 2 sets; 1 set has "
                                "no such cell.")
    first, second = found["cells"]
    assert (first["set"], second["set"]) == ("EuroSAT", "DescribableTextures")
    assert first["alone"]["personal"] == 60 and first["together"]["personal"] == 69.5
    assert (first["clients"], first["images"], first["gain"], first["hurt"]) == (10, 5, 9.5, 5)
    assert first["margin"] == pytest.approx(0.4 * 2.093, abs=1e-3)
    assert cli.main([*words, "--images", str(table.parent), "FED.BETA", "1"]) == 2
    assert ("--like reads the published map and no images: drop --images, FED.BETA, or drop --like "
            "for an advice on your own images") in capsys.readouterr().err
