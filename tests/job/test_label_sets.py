"""Sets of labels from a table to a model of one client; which methods take them, which refuse."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import fedvlm
from fedvlm.advise.judge import judge_clients
from fedvlm.cli.main import main
from fedvlm.evaluation import label_rows, rankings
from fedvlm.federation.batches import Batch
from fedvlm.federation.plan import Plateau
from fedvlm.federation.trainer import cross_entropy
from fedvlm.job import run
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.runs.verify.answer import MAP, answer_lines, worse_names
from tests import jobs

NAMES = ("bright", "red", "striped")


@pytest.fixture(scope="module")
def chest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 72 drawn images with three labels, at three hospitals."""
    folder = tmp_path_factory.mktemp("chest")
    dice = np.random.default_rng(1)
    lines = ["file,hospital,finding"]
    for i in range(72):
        held = dice.random(3) < (0.5, 0.4, 0.3)
        pixels = dice.integers(0, 80, (32, 32, 3))
        pixels[..., 0] += 120 * held[0]
        pixels += 60 * held[1]
        pixels[::6] += 90 * held[2]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        cell = "|".join(name for name, yes in zip(NAMES, held, strict=True) if yes)
        lines.append(f"{i}.png,{('Utrecht', 'Lyon', 'Porto')[i % 3]},{cell}")
    (folder / "scans.csv").write_text("\n".join(lines) + "\n")
    return folder


def words(chest: Path, output: Path, *more: str) -> list[str]:
    return ["--images", str(chest / "scans.csv"), "--labels", "finding", "--clients-by",
            "hospital", "--backbone", "tiny", "--rounds", "2", "--output-dir", str(output), *more]


@pytest.fixture(scope="module")
def whole(chest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole")
    assert main(words(chest, output, "--trainer", "FedAvg", "--peft", "head")) == 0
    return output


def test_the_loss_is_a_binary_cross_entropy_for_each_label() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 3, generator=draw)
    sets = torch.tensor([[0.0, 0, 0], [1, 0, 1], [0, 1, 0]])
    y = torch.tensor([[0, 1, 2, 1, 0], [2, 2, 0, 1, 0]])
    w = torch.tensor([[1.0, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    loss = cross_entropy(logits, Batch({}, y, w, sets=sets))
    for k, n in ((0, 5), (1, 3)):
        p = logits[k, :n].sigmoid()
        t = sets[y[k, :n]]
        plain = -(t * p.log() + (1 - t) * (1 - p).log()).sum(1).mean()
        assert float(loss[k]) == pytest.approx(float(plain), rel=1e-5)
    one_class = cross_entropy(logits, Batch({}, y, w))
    assert float(one_class[0]) == pytest.approx(float(F.cross_entropy(logits[0], y[0])), rel=1e-5)


def test_a_run_says_map_everywhere(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = jobs.results(whole)
    last, found = results["last"], results["references"]
    assert last["personal"] > results["untrained"]["personal"] > found["chance"]["personal"]
    assert list(found) == ["chance", "zero_shot", "logreg", "afl", "pooled"]
    assert {"personal_auroc", "personal_macro_f1", "personal_sensitivity"} <= last.keys()
    assert [one["name"] for one in results["labels"]["labels"]] == list(NAMES)
    assert all("." not in key for row in last["clients"] for key in row)
    lines = answer_lines(results, "FedAvg")
    assert lines[0].split() == ["mAP", "(%)", "personal", "AUROC"]
    assert "points of mAP" in lines[4] and "accuracy" not in "\n".join(lines[:5])
    record = json.loads((jobs.folder(whole) / "results.json").read_text())
    assert record["protocol"]["target"] == "labels"
    assert main(["verify", str(jobs.folder(whole))]) == 0
    assert main(["verify", str(jobs.folder(whole)), "--replay", "1"]) == 0
    capsys.readouterr()
    assert main(["table", str(whole)]) == 0
    assert "An image has a set of labels" in capsys.readouterr().out
    assert main(["table", str(whole), "--metric", "personal_auroc"]) == 0
    assert main(["report", str(jobs.folder(whole))]) == 0
    page = (jobs.folder(whole) / "report.html").read_text()
    assert page.count(">mAP (%)<") == 2 and "sensitivity at 90 % specificity" in page
    assert "positives (%)" not in page and ">accuracy (%)<" not in page
    assert "personal accuracy" not in page.lower() and "personal mAP" in page
    log = (jobs.folder(whole) / "log.txt").read_text()
    assert "mAP" in log and re.findall(r"accuracy(?!:)", log) == []  # Dassl's line stays
    capsys.readouterr()


def test_the_screen_alone_names_who_does_better_alone(
    chest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hospitals = ("Lyon", "Porto", "Utrecht")
    answer = {"worse": [0, 2], "of": 3, "verdict": "unclear", "alone": {"reference": "logreg"}}
    rows = [{"client": c, "n": 9, "accuracy": 50.0} for c in range(3)]
    told = {"last": {"clients": rows}, "references": {"logreg": {"clients": rows}}}
    line = "clients 0, 2 by name: 'Lyon', 'Utrecht'"
    assert worse_names(told | {"answer": answer}, hospitals) == [line]
    assert worse_names(told | {"answer": answer}, ()) == []
    assert worse_names(told | {"answer": answer | {"worse": [0, 1, 2]}}, hospitals) == []
    assert worse_names(told | {"answer": answer | {"worse": [1]}}, hospitals)[0].startswith(
        "client 1 by")
    sure = {"logreg": {"clients": [rows[0], rows[1] | {"accuracy": 100.0, "n": 900}, rows[2]]}}
    every = told | {"references": sure, "answer": answer | {"worse": [0, 1, 2]}}
    assert worse_names(every | {"last": {"clients": [{**row, "n": 900} for row in rows]}},
                       hospitals) == ["clients 1, 0, 2 by name: 'Porto', 'Lyon', 'Utrecht'"]
    monkeypatch.setattr(run, "worse_names", lambda _, names: worse_names(
        told | {"answer": answer}, names))  # in this run every client does better alone
    command = words(chest, tmp_path, "--trainer", "ZeroShot", "--rounds", "1")
    for _ in range(2):  # the run, and the finished run shown again
        assert main(command) == 0
        assert line in capsys.readouterr().out
    texts = [path.read_text(errors="replace") for path in jobs.folder(tmp_path).rglob("*")
             if path.is_file() and path.name != "private.json"]
    assert len(texts) > 5 and not any("Utrecht" in text for text in texts)


def test_rounds_auto_names_what_it_watches(chest: Path, tmp_path: Path) -> None:
    notes = resolve(parse(words(chest, tmp_path, "--rounds", "auto"))).notes
    assert any("validation mAP is flat" in note for note in notes)
    flat = Plateau(1, [0], 2, MAP, {2: 50.0, 4: 50.0})
    assert "validation mAP is flat" in flat.sentence(4, 9)
    assert "validation mAP was not flat yet" in flat.sentence(6, 9)


def test_what_a_client_takes_home(
    chest: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thresholds and temperature of validation images go into predictions and exports."""
    model = fedvlm.load(jobs.folder(whole)).client(0)
    fixed = jobs.results(whole)["labels"]["clients"][0]
    assert model.facts.thresholds == tuple(fixed["thresholds"])
    said = model.predict([chest / "0.png", chest / "1.png"])
    p = (said.logits.double() / fixed["temperature"]).sigmoid().numpy()
    np.testing.assert_allclose(said.probabilities, p)
    assert said.classes[0] == "|".join(
        n for n, value, t in zip(NAMES, p[0], fixed["thresholds"], strict=True) if value >= t)
    capsys.readouterr()
    run = str(jobs.folder(whole))
    assert main(["predict", run, str(chest / "0.png"), "--client", "0", "--json"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["probabilities"]["red"] == pytest.approx(p[0][NAMES.index("red")], abs=1e-5)
    model.export(tmp_path / "model")
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["sets"] == {"temperature": fixed["temperature"],
                            "thresholds": fixed["thresholds"]}
    assert "sigmoid(logit / " in (tmp_path / "model" / "README.md").read_text()


def test_thresholds_are_those_of_validation_images(whole: Path) -> None:
    """The run's own numbers again: the client's model on its validation images, through the API."""
    run, built = fedvlm.load(jobs.folder(whole)), jobs.results(whole)["labels"]["clients"]
    model = run.client(1)
    index = json.loads((jobs.folder(whole) / "partition.json").read_text())
    folder = Path(run.config.DATASET.ROOT) / run.config.DATASET.DIR
    keys = index["clients"][1]["val"]
    cells = dict(line.split(",")[::2] for line in
                 (folder / "scans.csv").read_text().splitlines()[1:])
    truth = np.array([[name in cells[key].split("|") for name in NAMES] for key in keys])
    logits = model.predict([folder / key for key in keys]).logits.numpy()
    fixed = label_rows.fix(truth, logits)
    assert built[1]["temperature"] == pytest.approx(fixed.temperature)
    assert built[1]["thresholds"] == pytest.approx(fixed.thresholds.tolist(), abs=1e-4)


def test_a_logit_is_compared_with_that_of_a_neutral_prompt(whole: Path) -> None:
    """A cosine times 100 is far above 0 for every image; less a neutral prompt's it says yes or no.
    """
    model = fedvlm.load(jobs.folder(whole)).client(0).model
    with torch.no_grad():
        text = model.anchor("template", 0)
        neutral = model.with_classes(["something"]).anchor("template", 0)
        z = torch.randn(1, 9, model.embed_dim, generator=torch.Generator().manual_seed(0))
        logits = model.logits(z, text[None])[0]
    unit = F.normalize(z[0], dim=-1)
    torch.testing.assert_close(logits, model.scale * (unit @ text.T - unit @ neutral.T))


TAKE = (
    ("FedProx", "head"), ("LocalOnly", "head"), ("FedPer", "feature+head"),
    ("FedRep", "feature+head"), ("Ditto", "head"), ("PromptFL", ""), ("CLIP-Adapter", ""),
    ("FedAvg", "lora"), ("ZeroShot", ""),
)


@pytest.mark.parametrize(("method", "peft"), TAKE)
def test_methods_that_take_sets(method: str, peft: str, chest: Path, tmp_path: Path) -> None:
    more = ["--peft", peft] if peft else []
    assert main(words(chest, tmp_path, "--trainer", method, *more, "--rounds", "1", "--opts",
                      "TEST.REFERENCES", "False")) == 0
    last = jobs.results(tmp_path)["last"]
    assert 0 < last["personal"] <= 100 and "personal_auroc" in last


@pytest.mark.parametrize("method", ["FedTV", "FedProto", "MOON", "AFL", "Tip-Adapter", "KgCoOp"])
def test_methods_that_need_one_class_refuse(
    method: str, chest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(chest, tmp_path, "--trainer", method)) == 2
    assert f"{method} needs one class for each image" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(("more", "says"), [
    (("--subsample", "base"), "DATASET.SUBSAMPLE_CLASSES needs one class"),
    (("--opts", "TEST.COMPUTE_CMAT", "True"), "TEST.COMPUTE_CMAT needs one class"),
    (("--opts", "DATASET.SERVER_HOLDOUT", "1"), "DATASET.SERVER_HOLDOUT needs one class"),
    (("--engine", "workers"), "FED.ENGINE workers: what another process tells of its clients"),
    (("FED.HOSTILE", "0.4", "FED.ATTACK", "label_flip"), "FED.ATTACK label_flip changes the class"),
])
def test_what_asks_for_one_class_is_refused(
    more: tuple[str, ...], says: str, chest: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words(chest, tmp_path, "--trainer", "FedAvg", "--peft", "head", *more)) == 2
    assert says in capsys.readouterr().err and not list(tmp_path.rglob("*"))


def test_advise_judges_what_a_run_shows_and_its_command_runs(
    chest: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the same images: 54 are judged without opening the 200 on which the run is tested."""
    monkeypatch.setattr("fedvlm.advise.sets.fold_count", lambda groups: 6)
    table = many_tests(tmp_path)
    judged: list[Any] = []  # once: the page is of the same result as the JSON

    def judge_once(*asked: Any) -> Any:
        judged.append(judged[0] if judged else judge_clients(*asked))
        return judged[0]

    monkeypatch.setattr("fedvlm.advise.judge.judge_clients", judge_once)
    data = ["--images", str(table), "--labels", ",".join(NAMES), "--clients-by", "hospital",
            "--backbone", "tiny"]
    capsys.readouterr()
    assert main(["advise", "--json", *data]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measure"] == MAP and found["method"] in ("FedAvg", "Ditto")
    command = shlex.split(found["command"])
    assert command[:2] == ["fedvlm", "run"] and command[2 : 2 + len(data)] == data
    assert main([*command[1:], "--output-dir", str(tmp_path / "out")]) == 0
    results = jobs.results(tmp_path / "out")
    there, reached, answer = results["references"], found["reached"], results["answer"]
    margin = math.hypot(found["margin"], answer["margin"])
    for mine, own in (("logreg", "logreg"), ("AFL", "afl"), ("pooled", "pooled")):
        assert abs(reached[mine]["personal"] - there[own]["personal"]) < margin, mine
        assert abs(reached[mine]["auroc"] - there[own]["personal_auroc"]) < margin, mine
    assert abs(found["points"] - answer["points"]) < margin < 20
    assert reached["pooled"]["personal"] > reached["logreg"]["personal"]
    assert {"federate": -1, "do not federate": 1}.get(found["verdict"], 0) != {
        "pays": 1, "costs": -1}.get(answer["verdict"], 2)
    capsys.readouterr()
    assert main(["advise", *data]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["mAP", "(%),"] and "AUROC" in lines[1]
    assert not any("accuracy" in line or "class-balanced" in line for line in lines)
    assert len(judged) == 2


def many_tests(folder: Path) -> Path:
    """A table with a column of 0 and 1 for each label: 54 training images, 200 test images."""
    dice, lines = np.random.default_rng(3), [f"file,split,hospital,{','.join(NAMES)}"]
    for i in range(254):
        held = dice.random(3) < (0.5, 0.4, 0.4)
        pixels = dice.integers(0, 80, (32, 32, 3))
        pixels[..., 0] += 25 * held[0]
        pixels += 12 * held[1]
        pixels[::6] += 20 * held[2]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{'train' if i < 54 else 'test'},{('Utrecht', 'Lyon')[i % 2]},"
                     f"{','.join(str(int(one)) for one in held)}")
    (folder / "scans.csv").write_text("\n".join(lines) + "\n")
    return folder / "scans.csv"


@pytest.fixture(scope="module")
def elsewhere(chest: Path) -> Path:
    """Another hospital's table: columns in another order, a part of its own for each image."""
    lines = ["file,split,red,striped,bright"]
    for row in (chest / "scans.csv").read_text().splitlines()[1:]:
        file, _, cell = row.split(",")
        part = ("train", "val", "test")[int(file.split(".")[0]) % 3]
        held = [int(name in cell.split("|")) for name in ("red", "striped", "bright")]
        lines.append(f"{file},{part},{','.join(map(str, held))}")
    (chest / "other.csv").write_text("\n".join(lines) + "\n")
    return chest / "other.csv"


def other_truth(table: Path, part: str) -> tuple[list[Path], np.ndarray]:
    """Files and labels (in the run's order) of a part of a table."""
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    rows = [row for row in rows if row[1] == part]
    truth = np.array([[int(row[4]), int(row[2]), int(row[3])] for row in rows])
    return [table.parent / row[0] for row in rows], truth


OTHER = ("--labels", "red,striped,bright")


def test_evaluate_on_another_table_of_sets(
    whole: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    run = str(jobs.folder(whole))
    assert main(["evaluate", run, "--images", str(elsewhere), *OTHER, "--client", "1",
                 "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    files, truth = other_truth(elsewhere, "test")
    model = fedvlm.load(run).client(1)
    said = model.predict(files)
    ap = rankings.average_precision(truth, said.logits.numpy())
    assert row["mAP"] == pytest.approx(100 * ap.mean()) and row["images"] == len(files) == 24
    assert row["macro_f1"] == pytest.approx(100 * rankings.f1(truth, said.found).mean())
    assert main(["evaluate", run, "--images", str(elsewhere), "--labels", "bright,red"]) == 0
    assert "over 2 of the run's 3 labels" in capsys.readouterr().err


def test_the_doctor_counts_labels_and_no_classes(
    chest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three, though images without a label are dealt as a fourth class."""
    yaml = str(tmp_path / "chest.yaml")
    assert main(["data", "add", str(chest / "scans.csv"), "--labels", "finding", "--to",
                 yaml]) == 0
    capsys.readouterr()
    assert main(["doctor", "--root", str(chest.parent), "--dataset-config-file", yaml]) == 0
    assert "3 labels  " in capsys.readouterr().out.splitlines()[1]


def test_adapt_a_new_hospital_to_sets(whole: Path, elsewhere: Path) -> None:
    """Answers follow the run's order of labels; thresholds are of its own validation images."""
    from fedvlm.api.adapt import adapt

    model, notes = adapt(jobs.folder(whole), elsewhere, epochs=2, labels=OTHER[1])
    files, truth = other_truth(elsewhere, "test")
    after = rankings.average_precision(truth, model.predict(files).logits.numpy())
    before = rankings.average_precision(
        truth, fedvlm.load(jobs.folder(whole)).global_model.predict(files).logits.numpy())
    said = next(note for note in notes if "test images: mAP" in note)
    assert f"{100 * before.mean():.1f} before, {100 * after.mean():.1f} after" in said
    files, truth = other_truth(elsewhere, "val")
    fixed = label_rows.fix(truth, model.predict(files).logits.numpy())
    assert model.facts.temperature == pytest.approx(fixed.temperature)
    np.testing.assert_allclose(model.facts.thresholds, fixed.thresholds)


def test_a_table_to_measure_on_need_not_be_one_to_train_on(
    whole: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test images alone, a label that none has, one column of 0 and 1; validation images stay."""
    from fedvlm.api.adapt import adapt

    run, table = str(jobs.folder(whole)), elsewhere.with_name("measured.csv")
    rows = [line.split(",") for line in elsewhere.read_text().splitlines()]
    table.write_text("\n".join([",".join(rows[0]), *(
        f"{row[0]},test,{row[2]},0,{row[4]}" for row in rows[1:] if row[1] == "test")]))
    model = fedvlm.load(run).global_model
    files, truth = other_truth(elsewhere, "test")
    ap = rankings.average_precision(truth, model.predict(files).logits.numpy())
    for labels, mean, said in ((OTHER[1], ap[:2].mean(), "labels (striped: on no image"),
                               ("red", ap[1], "over 1 of the run's 3 labels;")):
        words = ["evaluate", run, "--images", str(table), "--labels", labels]
        assert main([*words, "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert row["mAP"] == pytest.approx(100 * mean) and row["images"] == len(files)
        assert main(words) == 0 and said in capsys.readouterr().err
    assert main(["adapt", run, "--images", str(table), "--labels", "red", "--to", "x"]) == 3
    assert "no column for the label 'bright'" in capsys.readouterr().err
    table.write_text(elsewhere.read_text().replace(",test,", ",train,"))
    adapted, notes = adapt(run, table, labels=OTHER[1])
    files, truth = other_truth(elsewhere, "val")
    fixed = label_rows.fix(truth, adapted.predict(files).logits.numpy())
    np.testing.assert_allclose(adapted.facts.thresholds, fixed.thresholds)
    assert "24 validation images: mAP" in notes[-1] and not adapted.facts.metrics
    table.write_text(table.read_text().replace(",val,", ",train,"))
    adapted, notes = adapt(run, table, labels=OTHER[1])
    assert any("temperature 1 and all thresholds at 0.5" in note for note in notes)
    assert not adapted.facts.thresholds


def test_adapt_trains_on_the_new_labels(whole: Path, elsewhere: Path, tmp_path: Path) -> None:
    """With a label turned round everywhere, its training turns the model's answers round."""
    from fedvlm.api.adapt import adapt

    (elsewhere.parent / "turned.csv").write_text("\n".join(
        line if i == 0 else ",".join([*line.split(",")[:2], str(1 - int(line.split(",")[2])),
                                      *line.split(",")[3:]])
        for i, line in enumerate(elsewhere.read_text().splitlines())))
    model, _ = adapt(jobs.folder(whole), elsewhere.parent / "turned.csv", epochs=60,
                     labels=OTHER[1])
    files, truth = other_truth(elsewhere, "train")
    areas = rankings.auroc(truth, model.predict(files).logits.numpy())
    assert areas[NAMES.index("red")] < 0.3 and areas[NAMES.index("striped")] > 0.5


@pytest.mark.parametrize(("labels", "says"), [
    ("red,striped,brighter", "'brighter'"),
    ("red,striped", "no column for the label 'bright'"),
])
def test_labels_that_do_not_fit_the_run(
    labels: str, says: str, whole: Path, elsewhere: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = elsewhere.with_name("renamed.csv")
    table.write_text(elsewhere.read_text().replace("bright", "brighter") if "brighter" in labels
                     else elsewhere.read_text())
    assert main(["adapt", str(jobs.folder(whole)), "--images", str(table), "--labels", labels,
                 "--to", str(tmp_path / "model")]) == 3
    said = capsys.readouterr().err
    assert says in said and not (tmp_path / "model").exists()


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_partitions_go_by_the_rarest_label(kind: str, chest: Path, tmp_path: Path) -> None:
    command = words(chest, tmp_path, "--trainer", "FedAvg", "--peft", "head", "--partition", kind,
                    "--num-users", "2", "--rounds", "1", "--opts", "TEST.REFERENCES", "False")
    at = command.index("--clients-by")
    assert main(command[:at] + command[at + 2 :]) == 0
    lines = (jobs.folder(tmp_path) / "partition.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    assert {row[3] for row in rows} == {*NAMES, "no label"}
    assert sum(int(row[4]) for row in rows) == 72, "each image is dealt once, as its rarest label"
