"""Exact unlearning: the bits of a run that never saw the images, a certificate, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedvlm.api.forget import carry_out, named_images, plan_forgetting
from fedvlm.api.forgetting.kept import first_round
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.partition.index_file import read_index_file
from fedvlm.runs.finished import read_finished
from fedvlm.runs.seal import seal_of
from tests import jobs

# A method with personal tensors, cohorts drawn in each round, and a client that others outweigh.
WORDS = ("--trainer", "FedPer", "--num-users", "4", "--partition", "dirichlet", "--frac", "0.5",
         "--rounds", "3", "TEST.REFERENCES", "False")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four clients."""
    output = tmp_path_factory.mktemp("run")
    assert jobs.run(output, *WORDS) == 0
    return jobs.folder(output)


@pytest.fixture(scope="module")
def without(run: Path) -> Path:
    """The same run without client 1."""
    assert main(["forget", str(run), "--client", "1"]) == 0
    (found,) = [p for p in run.parents[6].rglob("index-*/*") if p.is_dir()]
    return found


def test_the_bits_are_those_of_a_run_from_which_it_is_away(without: Path, tmp_path: Path) -> None:
    """Another way to the same run: all images are there, and the client is away by its key."""
    assert jobs.run(tmp_path / "away", *WORDS, "FED.UNRELIABLE.AWAY", "1:1-") == 0
    shutil.copytree(without, tmp_path / "new" / "run")
    ours, theirs = jobs.state(tmp_path / "new"), jobs.state(tmp_path / "away")
    assert ours.keys() == theirs.keys() and any(n.startswith("clients|2") for n in ours)
    assert not any(n.startswith("clients|1|") for n in ours)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_its_numbers_differ_from_those_of_the_old_run(run: Path, without: Path) -> None:
    """Else the test of the bits would say nothing."""
    old, new = read_finished(run), read_finished(without)
    assert old is not None and new is not None
    assert old.rounds()[-1]["train"] != new.rounds()[-1]["train"]


def test_nothing_of_the_client_is_left(run: Path, without: Path) -> None:
    before = read_index_file(run / "partition.json")["clients"][1]
    after = read_index_file(without / "partition.json")
    text = (without / "partition.json").read_text()
    assert before["train"] and not any(after["clients"][1][p] for p in ("train", "val", "test"))
    assert not [name for p in ("train", "val", "test") for name in before[p] if f'"{name}"' in text]
    for line in (without / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert 1 not in [c["client"] for c in row.get("clients", ())]
        assert 1 not in row.get("participants", ())


def test_the_certificate_names_both_runs_and_is_covered(
    run: Path, without: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads((without / "forgotten.json").read_text())
    old, new = read_finished(run), read_finished(without)
    assert old is not None and new is not None
    assert (told["of"], told["without"]) == (old.digest, new.digest)
    assert told["of_results"] == json.loads((run / "results.json").read_text())["seal"]
    assert told["seal"] == seal_of(told) and told["clients"] == [1] and told["from_round"] == 1
    copy = shutil.copytree(without, tmp_path / "copy")
    told["clients"] = [2]
    (copy / "forgotten.json").write_text(json.dumps(told | {"seal": seal_of(told)}))
    assert main(["verify", str(copy)]) == 3
    assert "forgotten.json is damaged" in capsys.readouterr().out


def test_the_run_without_can_be_replayed(without: Path) -> None:
    assert main(["verify", "--replay", "10", str(without)]) == 0


def test_dry_run_says_the_cost_and_writes_nothing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(run.parents[6].rglob("*"))
    assert main(["forget", str(run), "--client", "2", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "start: the untrained model" in told and "cost: 3 of 3 rounds, about" in told
    assert str(run) in told and sorted(run.parents[6].rglob("*")) == before


def test_the_old_run_is_deleted_where_that_is_asked_for(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, *WORDS, "--rounds", "1") == 0
    old = jobs.folder(tmp_path)
    assert main(["forget", str(old), "--client", "0", "--delete-old"]) == 0
    assert not old.exists() and read_finished(jobs.folder(tmp_path)) is not None


def test_listed_images_are_forgotten_at_clients_that_stay(run: Path, tmp_path: Path) -> None:
    held = read_index_file(run / "partition.json")["clients"][2]
    file = tmp_path / "withdrawn.txt"
    file.write_text("\n".join([held["train"][0], held["test"][0]]))
    plan = plan_forgetting(run, images=str(file))
    gone = plan.removal
    assert gone.names == {held["train"][0], held["test"][0]} and gone.clients == ()
    assert gone.counts == {"train": 1, "val": 0, "test": 1, "server": 0}
    assert held["test"][0] not in plan.index["forgotten"]["tests"]
    assert held["test"][1] in plan.index["forgotten"]["tests"]
    assert first_round(plan.run, [2]) == 1


def patients(folder: Path) -> Path:
    """A table of images of ten patients, two classes, three images each."""
    lines = ["path,label,patient,split"]
    for at in range(30):
        person, label = at // 3, ("cat", "dog")[at // 3 % 2]
        image = Image.new("RGB", (32, 32), (8 * at, 40 * (at % 3), 250 - 8 * at))
        image.save(folder / f"{at}.png")
        lines.append(f"{at}.png,{label},p{person},{'test' if person > 5 else 'train'}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


def test_a_patient_is_forgotten_in_all_splits(tmp_path: Path) -> None:
    """The bits are those of a run on a folder where this patient never was."""
    data = tmp_path / "data"
    data.mkdir()
    table = patients(data)
    words = ["run", "--images", str(table), "--groups", "patient", "--num-users", "2",
             "--backbone", "tiny", "--rounds", "2", "--trainer", "FedAvg", "--partition", "iid",
             "--output-dir", str(tmp_path / "out"), "TEST.REFERENCES", "False"]
    assert main(words) == 0
    run = jobs.folder(tmp_path / "out")
    with pytest.raises(ConfigError, match="no image of the run is of this group; did you mean 'p"):
        plan_forgetting(run, group="p33")
    plan = plan_forgetting(run, group="p0")
    assert plan.removal.counts["train"] + plan.removal.counts["val"] == 3
    new = carry_out(plan)
    names = {"0.png", "1.png", "2.png"}
    assert not any(f'"{n}"' in (new / "partition.json").read_text() for n in names)
    assert plan.start.why == "as the images were trained on in round 1"
    second = plan_forgetting(new, group="p7")  # of the test images, after another
    assert "(they were not trained on: " in second.start.why
    known = {place for place, _ in second.known}
    assert {run, new, Path(plan.changes["FED.INDEX_FILE"])} <= known
    test = carry_out(second)
    told = json.loads((test / "forgotten.json").read_text())
    assert told["unit"] == "group" and told["images"]["test"] == 3 and "p7" not in str(told)
    assert not any(f'"{n}.png"' in (test / "partition.json").read_text() for n in (0, 21, 22, 23))


def test_bad_words_are_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clients are numbered 0 to 3"):
        plan_forgetting(run, client="7")
    with pytest.raises(ConfigError, match="say what to forget: --client K, --group ID"):
        plan_forgetting(run)
    with pytest.raises(ConfigError, match="have no groups"):
        plan_forgetting(run, group="p1")
    (tmp_path / "list.txt").write_text("nobody.png\n")
    with pytest.raises(DataError, match=r"1 of its 1 names are no image of the run \(first: nob"):
        plan_forgetting(run, images=str(tmp_path / "list.txt"))
    with pytest.raises(DataError, match="neither a folder nor a text file"):
        plan_forgetting(run, images=str(tmp_path / "absent.txt"))
    with pytest.raises(DataError, match="no image of the run is in this folder"):
        plan_forgetting(run, images=str(tmp_path))
    with pytest.raises(ConfigError, match="images are at their sites"):
        plan_forgetting(run, group="p1", changes={"FED.ENGINE": "sites"})
    with pytest.raises(ConfigError, match="nothing is kept of what its sites told"):
        plan_forgetting(run, client="1", changes={"FED.ENGINE": "sites"})
    with pytest.raises(DataError, match="not a run folder"):
        plan_forgetting(tmp_path, client="1")


def test_a_client_cannot_be_forgotten_twice_nor_all_of_them(without: Path, run: Path) -> None:
    with pytest.raises(ConfigError, match="holds no image of this run: it was forgotten before"):
        plan_forgetting(without, client="1")
    every = [n for c in read_index_file(run / "partition.json")["clients"] for n in c["train"]]
    file = run.parents[6] / "all.txt"
    file.write_text("\n".join(every))
    with pytest.raises(ConfigError, match="leaves no client with a training image"):
        plan_forgetting(run, images=str(file))


def test_an_image_that_is_a_link_in_the_folder_is_of_the_folder(tmp_path: Path) -> None:
    """As where a site's folders are links into a store of images."""
    for name in ("store/b.png", "pat7/a.png", "pat8/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "pat7/b.png").symlink_to(tmp_path / "store/b.png")
    known = {n: str(tmp_path / n) for n in ("pat7/a.png", "pat7/b.png", "pat8/c.png")}
    assert named_images(str(tmp_path / "pat7"), known) == {"pat7/a.png", "pat7/b.png"}


def test_a_list_of_names_is_read_as_tables_are(tmp_path: Path) -> None:
    """With the mark that spreadsheets write first, and accents as two signs or one."""
    one, two = "M\u00fcller/a.png", "Mu\u0308ller/b.png"
    known = {one: str(tmp_path / one), two: str(tmp_path / two)}
    file = tmp_path / "list.txt"
    file.write_text(f"Mu\u0308ller/a.png\n{tmp_path}/M\u00fcller/b.png\n", encoding="utf-8-sig")
    assert named_images(str(file), known) == {one, two}
    file.write_text("Muller/a.png\n")
    with pytest.raises(DataError, match="1 of its 1 names are no image of the run"):
        named_images(str(file), known)


def test_the_new_run_keeps_the_trainable_set_in_its_name(tmp_path: Path) -> None:
    """A chosen one is part of the method's folder; with a tag behind it, too."""
    words = ("--trainer", "FedAvg", "--peft", "head", "--rounds", "1", "--num-users", "3",
             "--tag", "t", "TEST.REFERENCES", "False")
    assert jobs.run(tmp_path, *words) == 0
    run = jobs.folder(tmp_path)
    assert main(["forget", str(run), "--client", "1"]) == 0
    assert run.parents[2].name == "FedAvg-head-t"
    assert [p.name for p in run.parents[3].iterdir()] == ["FedAvg-head-t"]
    assert len(list(run.parents[1].glob("index-*"))) == 1
