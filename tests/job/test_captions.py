"""Captions from a table to a model of one client; which methods take them, what refuses them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fedvlm
from fedvlm.api.adapt import adapt
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.data.images import normalise, resize_for_test
from fedvlm.export.formats import tensors
from fedvlm.export.recipe import TOLERANCE, Unheld, difference
from fedvlm.export.traced import trace
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.flags import parse
from fedvlm.job.images.texts import check_captions
from fedvlm.job.resolve import resolve
from fedvlm.models.features import texts
from fedvlm.runs.verify.answer import answer_lines
from tests import jobs

COLOURS = {"red": (190, 0, 0), "green": (0, 170, 0), "blue": (0, 0, 210)}
SHAPES = {"square": np.s_[8:24, 8:24], "bar": np.s_[14:20], "stripes": np.s_[::6]}
ONE = torch.ones(())
TAKEN = {"FedAvg", "FedProx", "Ditto", "LocalOnly", "VPT"}


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 72 drawn images of three people, with one to three captions each."""
    folder = tmp_path_factory.mktemp("trips")
    dice = np.random.default_rng(1)
    rows = []
    for i in range(72):
        colour, shape = list(COLOURS)[dice.integers(3)], list(SHAPES)[dice.integers(3)]
        pixels = dice.integers(0, 60, (32, 32, 3))
        pixels[SHAPES[shape]] += np.array(COLOURS[colour])
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        said = (f"a {colour} {shape}", f"one {shape} that is {colour}", f"{colour}, {shape}")
        rows += [[f"{i}.png", text, ("Ada", "Bo", "Cy")[i % 3], f"{colour} {shape}"]
                 for text in said[: 1 + i % 3]]
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["file", "caption", "person", "topic"], *rows])
    return folder


def words(trips: Path, output: Path, *more: str) -> list[str]:
    return ["--images", str(trips / "list.csv"), "--captions", "caption", "--clients-by", "person",
            "--backbone", "tiny", "--rounds", "2", "--output-dir", str(output), *more]


@pytest.fixture(scope="module")
def whole(trips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole")
    assert main(words(trips, output, "--trainer", "FedAvg", "--peft", "feature", "--lr", "0.05",
                      "--rounds", "6")) == 0
    return output


def captions_of(trips: Path) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    with (trips / "list.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            out.setdefault(row["file"], []).append(row["caption"])
    return out


def test_a_run_says_recall_everywhere(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, folder = jobs.results(whole), jobs.folder(whole)
    last, start = results["last"], results["untrained"]
    assert last["personal"] > start["personal"] + 5
    assert last["personal_i2t_r10"] >= last["personal_i2t_r5"] >= last["personal_i2t_r1"]
    for row in last["clients"]:
        assert row["accuracy"] == pytest.approx((row["i2t_r1"] + row["t2i_r1"]) / 2)
    assert list(results["references"]) == ["zero_shot"]
    assert results["references"]["zero_shot"]["personal"] == pytest.approx(start["personal"])
    (line,) = answer_lines(results, "FedAvg")
    assert "each client alone: not known, together:" in line and "LocalOnly" in line
    record = json.loads((folder / "results.json").read_text())
    assert record["protocol"]["target"] == "captions"
    assert main(["verify", str(folder)]) == 0
    assert main(["verify", str(folder), "--replay", "1"]) == 0
    capsys.readouterr()
    assert main(["table", str(whole), "--metric", "personal_t2i_r5"]) == 0
    assert "Images have captions" in capsys.readouterr().out
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "recall@1" in page and "personal accuracy" not in page.lower()


def test_the_numbers_are_those_of_sorting(trips: Path, whole: Path) -> None:
    """A client's recall again, from its model through the API, image by image."""
    run, said = fedvlm.load(jobs.folder(whole)), captions_of(trips)
    keys = json.loads((jobs.folder(whole) / "partition.json").read_text())["clients"][1]["test"]
    pairs = [(i, text) for i, key in enumerate(keys) for text in said[key]]
    near, names = run.client(1).similarities([trips / key for key in keys], [t for _, t in pairs])
    assert [Path(name).name for name in names] == keys
    row = jobs.results(whole)["last"]["clients"][1]
    assert (row["n"], row["captions"]) == (len(keys), len(pairs))
    s = near.numpy()
    to_text = [max(s[i, j] for j, (k, _) in enumerate(pairs) if k == i)
               > max(s[i, j] for j, (k, _) in enumerate(pairs) if k != i) + 1e-6
               for i in range(len(keys))]
    to_image = [all(s[k, j] > s[i, j] + 1e-6 for i in range(len(keys)) if i != k)
                for j, (k, _) in enumerate(pairs)]
    assert row["i2t_r1"] == pytest.approx(100 * np.mean(to_text))
    assert row["t2i_r1"] == pytest.approx(100 * np.mean(to_image))


def test_what_a_client_takes_home(
    trips: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = str(jobs.folder(whole)), tmp_path / "texts.txt"
    file.write_text("a red square\n\na blue bar\n")
    asked = ["predict", run, str(trips / "0.png"), "--client", "Ada", "--texts", str(file)]
    capsys.readouterr()
    assert main([*asked, "--json", "--top", "2"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(line["texts"]) == ["a blue bar", "a red square"]
    assert line["cosines"][0] >= line["cosines"][1]
    assert main(asked) == 0
    assert "cosine" in capsys.readouterr().out
    file.write_text("\n")
    assert main(asked) == 3
    assert "holds no text" in capsys.readouterr().err
    model = fedvlm.load(run).client(0)
    with pytest.raises(ConfigError, match="--texts FILE"):
        model.predict([trips / "0.png"])
    assert model.export(tmp_path / "model").difference <= TOLERANCE
    with Image.open(trips / "0.png") as image:
        pixels = normalise(resize_for_test(image, model.model.backbone.transform_spec),
                           model.model.backbone.transform_spec)[None]
    said = tensors.read(tmp_path / "model")(pixels)[0]
    own = model.features([trips / "0.png"])[0]
    assert torch.allclose(said, own / own.norm(), atol=1e-5)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "for images and captions" in card and "## Classes" not in card
    assert '"feature": feature' in (tmp_path / "model" / "run.py").read_text()
    with pytest.raises(ConfigError, match="an adapter on the image feature, which the format"):
        model.export(tmp_path / "clip", "open_clip")
    with pytest.raises(ConfigError, match=r"these have captions \(DATASET.CAPTIONS\)"):
        adapt(run, trips)
    assert not (tmp_path / "clip").exists()


def test_evaluate_is_the_recall_of_sorting(
    trips: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a table that has test lines only and another column's name; no text is there twice."""
    run, lines = str(jobs.folder(whole)), dict[str, str]()
    for key, told in captions_of(trips).items():
        lines |= {text: key for text in told if text not in lines}
    keys, table = sorted({*lines.values()}), trips / "tests.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["file", "says", "split"], *(
            [key, text, "test"] for text, key in sorted(lines.items(), key=lambda one: one[1]))])
    near, _ = fedvlm.load(run).client(1).similarities([trips / key for key in keys], [*lines])
    own = np.array([[key == lines[text] for text in lines] for key in keys])
    s = near.numpy()
    image = [(row >= row[mine].max())[~mine].sum() for row, mine in zip(s, own, strict=True)]
    text = [(column > column[mine]).sum() for column, mine in zip(s.T, own.T, strict=True)]
    asked = ["evaluate", run, "--images", str(table), "--captions", "says", "--client", "Bo"]
    capsys.readouterr()
    assert main([*asked, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["images"], row["captions"]) == (len(keys), len(lines))
    for way, found in (("i2t", image), ("t2i", text)):
        for k in (1, 5, 10):
            assert row[f"{way}_r{k}"] == pytest.approx(100 * np.mean(np.array(found) < k))
    assert row["recall@1"] == pytest.approx((row["i2t_r1"] + row["t2i_r1"]) / 2)
    assert main(asked) == 0
    assert f"among all {len(lines)} captions" in capsys.readouterr().err
    assert main(asked[:4]) == 3  # the run's own column is not there
    assert "has no column 'caption'" in capsys.readouterr().err
    assert main(["evaluate", run, "--dataset", "dtd"]) == 2
    assert "is evaluated on a table with captions: --images" in capsys.readouterr().err


def test_evaluate_finds_what_the_run_found(
    trips: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the run's own test images in another order; most captions are those of many images."""
    said = captions_of(trips)
    clients = json.loads((jobs.folder(whole) / "partition.json").read_text())["clients"]
    keys = sorted(key for client in clients for key in client["test"])
    table = trips / "again.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["file", "caption", "split"], *(
            [key, text, "test"] for key in keys for text in said[key])])
    capsys.readouterr()
    asked = ["evaluate", str(jobs.folder(whole)), "--images", str(table), "--client", "global"]
    assert main([*asked, "--json"]) == 0
    row, last = json.loads(capsys.readouterr().out), jobs.results(whole)["last"]
    assert row["images"] == len(keys) and row["captions"] == sum(len(said[k]) for k in keys)
    assert row["recall@1"] == pytest.approx(last["global"])
    for name in (f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)):
        assert row[name] == pytest.approx(last[f"global_{name}"]), name


def test_a_note_counts_images_without_a_caption_of_their_own(trips: Path, whole: Path) -> None:
    said = captions_of(trips)
    alike = sum(all(any(text in said[k] for k in said if k != key) for text in said[key])
                for key in said)
    facts = json.loads((jobs.folder(whole) / "manifest.json").read_text())["facts"]
    assert 0 < alike < len(said)
    assert f"{alike} of 72 images have only captions that other images" in str(facts["notes"])


def test_texts_are_encoded_once(
    trips: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a caption was encoded again")

    monkeypatch.setattr(texts, "_encoded", never)
    assert main(words(trips, tmp_path, "--trainer", "FedProx", "--peft", "feature")) == 0


@pytest.mark.parametrize(("method", "peft"), [
    ("Ditto", "lora"), ("LocalOnly", "adapter"), ("FedProx", "lora"), ("VPT", ""),
])
def test_methods_that_take_captions(method: str, peft: str, trips: Path, tmp_path: Path) -> None:
    given = ["--peft", peft] if peft else []
    assert main(words(trips, tmp_path, "--trainer", method, *given, "--lr", "0.01")) == 0
    results = jobs.results(tmp_path)
    losses = [row["train"] for row in map(json.loads, (
        jobs.folder(tmp_path) / "metrics.jsonl").read_text().splitlines()[1:])]
    (line,) = answer_lines(results, method)
    assert ("each client alone: not known" in line) == (method != "LocalOnly")
    first, last = (np.mean([told["loss"] for told in one.values()]) for one in losses)
    assert last < first and results["last"]["personal"] is not None
    model = fedvlm.load(jobs.folder(tmp_path)).client(1)
    if method == "VPT":  # what only a graph holds
        traced = trace(model.trained, Unheld(method, ""))
        assert traced.card["classnames"] == [] and traced.logits.norm(dim=-1).allclose(ONE)
        assert difference(traced.module(model.model)(traced.pixels), traced.logits) <= TOLERANCE
    if (method, peft) == ("FedProx", "lora"):  # both towers, the image's with its LoRA
        model.export(tmp_path / "clip", "open_clip")
        config = json.loads((tmp_path / "clip" / "open_clip_config.json").read_text())
        state = load_file(tmp_path / "clip" / "open_clip_model.safetensors")
        assert config["model_cfg"] and any(name.startswith("transformer.") for name in state)
        assert not (tmp_path / "clip" / "classifier.safetensors").exists()


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_partitions_go_by_topic(kind: str, trips: Path, tmp_path: Path) -> None:
    command = words(trips, tmp_path, "--trainer", "FedAvg", "--peft", "feature", "--partition",
                    kind, "--num-users", "3", "--rounds", "1", "FED.BETA", "0.3")
    at = command.index("--clients-by")
    assert main(command[:at] + command[at + 2 :]) == 0
    lines = (jobs.folder(tmp_path) / "partition.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    assert {row[3] for row in rows} == {f"{c} {s}" for c in COLOURS for s in SHAPES}
    assert sum(int(row[4]) for row in rows) == 72, "each image is dealt once, with its captions"


def test_the_cache_is_the_plain_computation(trips: Path, tmp_path: Path) -> None:
    found = []
    for place, more in (("fast", []), ("plain", ["--plain"])):
        assert main(words(trips, tmp_path / place, "--trainer", "FedAvg", "--peft", "lora",
                          "--rounds", "1", *more)) == 0
        told = json.loads((jobs.folder(tmp_path / place) / "metrics.jsonl").read_text()
                          .splitlines()[1])["train"]
        found.append([told[c]["loss"] for c in sorted(told)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_every_other_method_says_why_not(trips: Path, tmp_path: Path) -> None:
    taken = set()
    for name in sorted(trainer_files()):
        (job,) = resolve(parse(words(trips, tmp_path, "--trainer", name))).jobs
        trainer = load_trainer(job.cfg.TRAINER.NAME)(job.cfg)
        try:
            check_captions(job.cfg, trainer)
            taken.add(trainer.name)
        except ConfigError as error:
            assert "needs one class for each image" in str(error), name
    assert taken == TAKEN


REFUSED = {
    "a prompt": (("--trainer", "FedAvg", "--peft", "prompt"), "frozen text tower"),
    "a head": (("--trainer", "FedAvg", "--peft", "head"), "frozen text tower"),
    "labels, too": (("--trainer", "FedAvg", "--labels", "topic"), "give one of the two"),
    "an engine": (("--trainer", "FedAvg", "--engine", "workers"), "--engine local"),
    "classes": (("--trainer", "FedAvg", "--opts", "TEST.COMPUTE_CMAT", "True"),
                "TEST.COMPUTE_CMAT needs one class"),
    "logits": (("--trainer", "FedAvg", "--opts", "TEST.KEEP_LOGITS", "True"),
               "TEST.KEEP_LOGITS needs one class"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_classes_is_refused_before_a_folder_is_made(
    case: str, trips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more, said = REFUSED[case]
    assert main(words(trips, tmp_path / "runs", *more)) in (2, 3)
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("manifest.json"))


def test_advise_and_packs_refuse(
    trips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "trips.yaml"
    assert main(["data", "add", str(trips / "list.csv"), "--captions", "caption", "--clients-by",
                 "person", "--to", str(place)]) == 0
    assert "--trainer FedAvg --peft lora" in capsys.readouterr().out
    assert main(["advise", "--dataset-config-file", str(place), "--backbone", "tiny"]) == 2
    assert "fedvlm advise needs one class for each image" in capsys.readouterr().err
