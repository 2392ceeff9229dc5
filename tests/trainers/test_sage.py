"""SAGE: its loss against the equations, image by image; images without a label in a whole run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.data.partition.index_file import seal
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import cross_entropy
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.job.results.against import next_step
from fedvlm.runs.verify.answer import answer_sentences
from tests import jobs

HOSPITALS = ("Utrecht", "Lyon", "Porto")


def sage(tau: float = 0.6, half: float = 0.1) -> Any:
    request = parse(["--demo", "--trainer", "SAGE", "TRAINER.SAGE.TAU", str(tau),
                     "TRAINER.SAGE.HALF", str(half)])
    return load_trainer("SAGE")(resolve(request).jobs[0].cfg)


def by_hand(p: np.ndarray, q: np.ndarray, label: int, tau: float, half: float) -> float:
    """Return the loss of one image by the paper's equations, in plain numbers."""
    if label >= 0:
        return -math.log(p[label])
    c, d = p.max(), q.max()
    if c < tau and d < tau:
        return 0.0
    share = 2.0 ** (-abs(c - d) / half) if c >= tau else 0.0
    target = np.zeros(len(p))
    target[p.argmax()] += share
    target[q.argmax()] += 1 - share
    return float(-(target * np.log(p)).sum())


def test_the_loss_is_that_of_the_equations() -> None:
    draw = torch.Generator().manual_seed(3)
    mine, other = (2.5 * torch.randn(3, 12, 4, generator=draw, dtype=torch.float64)
                   for _ in range(2))
    y = torch.randint(-1, 4, (3, 12), generator=draw)
    y[2] = -1  # a client without any label
    w = torch.ones(3, 12, dtype=torch.float64)
    w[1, 9:] = 0
    loss = sage().mixed(mine, other, Batch({}, y, w))
    kinds = set()
    for k, n in enumerate((12, 9, 12)):
        p, q = (z[k, :n].softmax(-1).numpy() for z in (mine, other))
        each = [by_hand(p[i], q[i], int(y[k, i]), 0.6, 0.1) for i in range(n)]
        bare = y[k, :n].numpy() < 0
        parts = [np.mean(np.array(each)[m]) if m.any() else 0.0 for m in (~bare, bare)]
        assert float(loss[k]) == pytest.approx(sum(parts), rel=1e-12)
        kinds |= {(bool(a >= 0.6), bool(b >= 0.6)) for a, b, u in zip(
            p.max(1), q.max(1), bare, strict=True) if u}
    assert len(kinds) == 4  # all cases of the two thresholds are among them


def test_no_gradient_goes_through_a_pseudo_label() -> None:
    """Where both models agree and are sure it is the cross-entropy with that class."""
    logits = torch.tensor([[[3.0, 0.0, 0.0], [0.0, 4.0, 1.0]]], requires_grad=True)
    batch = Batch({}, torch.tensor([[-1, -1]]), torch.ones(1, 2))
    (got,) = torch.autograd.grad(sage().mixed(logits, logits.detach(), batch).sum(), logits)
    said = Batch({}, torch.tensor([[0, 1]]), torch.ones(1, 2))
    (true,) = torch.autograd.grad(cross_entropy(logits, said).sum(), logits)
    assert torch.allclose(got, true)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of drawn images of two classes: some without a label; the same without these."""
    folder = tmp_path_factory.mktemp("scans")
    dice = np.random.default_rng(2)
    lines = ["file,hospital,classname,split"]
    for i in range(90):
        pixels = dice.integers(0, 90, (32, 32, 3))
        pixels[..., i % 2] += 12
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
        part = ("train", "train", "test")[i % 5 % 3]
        bare = part == "train" and i % 4 > 1
        lines.append(f"{i}.png,{HOSPITALS[i // 2 % 3]},"
                     f"{'' if bare else ('red', 'green')[i % 2]},{part}")
    (folder / "all.csv").write_text("\n".join(lines) + "\n")
    kept = [line for line in lines if ",," not in line]
    (folder / "labelled.csv").write_text("\n".join(kept) + "\n")
    only = [line.replace(",red,train", ",,train").replace(",green,train", ",,train")
            if ",Porto," in line else line for line in lines]
    (folder / "only.csv").write_text("\n".join(only) + "\n")
    return folder


def run(scans: Path, table: str, output: Path, *more: str) -> int:
    return main(["--images", str(scans / table), "--clients-by", "hospital", "--backbone", "tiny",
                 "--rounds", "2", "--peft", "head", "--output-dir", str(output), *more])


def notes(output: Path) -> str:
    return " ".join((jobs.folder(output) / "log.txt").read_text().split())


def test_methods_with_labels_train_as_if_the_others_were_not_there(
    scans: Path, tmp_path: Path
) -> None:
    for table in ("all", "labelled"):
        assert run(scans, f"{table}.csv", tmp_path / table, "--trainer", "FedAvg") == 0
    both = [jobs.results(tmp_path / t) for t in ("all", "labelled")]
    states = [jobs.state(tmp_path / t) for t in ("all", "labelled")]
    assert all(bool((states[0][name] == v).all()) for name, v in states[1].items())
    assert both[0]["last"]["clients"] == both[1]["last"]["clients"]
    assert both[0]["references"] == both[1]["references"]
    said = notes(tmp_path / "all")
    assert "34 images without a label at 3 clients" in said
    assert "FedAvg trains on images with a label only: the 34 without are left out" in said
    assert "without a label" not in notes(tmp_path / "labelled")


def test_sage_trains_on_them_and_references_do_not(scans: Path, tmp_path: Path) -> None:
    sure = ("--trainer", "SAGE", "TRAINER.SAGE.TAU", "0.5")
    for table in ("all", "labelled"):
        assert run(scans, f"{table}.csv", tmp_path / table, *sure) == 0
    every, labelled = (jobs.results(tmp_path / t) for t in ("all", "labelled"))
    states = [jobs.state(tmp_path / t) for t in ("all", "labelled")]
    assert any(bool((states[0][name] != v).any()) for name, v in states[1].items())
    assert every["references"] == labelled["references"]
    again = tmp_path / "again"
    assert run(scans, "all.csv", again, *sure, "FED.CHUNK", "1") == 0
    assert jobs.results(again)["last"]["global"] == pytest.approx(every["last"]["global"])


def test_a_client_without_any_label(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(scans, "only.csv", tmp_path / "a", "--trainer", "FedAvg") == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "client(s) Porto have only images without a label, and FedAvg needs labels" in said
    assert run(scans, "only.csv", tmp_path / "b", "--trainer", "SAGE") == 0
    results = jobs.results(tmp_path / "b")
    assert results["unlabelled"] == [1]
    ways = " ".join(answer_sentences(results | {"next": None}, "SAGE"))
    assert "made together in one round reaches" in ways and "--trainer AFL" not in ways
    head = results["answer"] | {"verdict": "unclear", "together": {"personal": 0.0}}
    assert [next_step(some | {"answer": head}, [], "SAGE", "", 0.1, longer=False) is None for some
            in (results, {k: v for k, v in results.items() if k != "unlabelled"})] == [True, False]


def test_advice_and_data_add_name_a_method_that_takes_a_client_without_any_label(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [str(scans / "only.csv"), "--clients-by", "hospital"]
    assert main(["advise", "--images", *own, "--backbone", "tiny"]) == 0
    said = capsys.readouterr().out
    assert "Not judged: 1 client(s) with only images without a label (Porto)" in said
    assert "--trainer SAGE\n" in said and "FedAvg --peft" not in said and "It costs" not in said
    assert main(["data", "add", *own, "--to", str(tmp_path / "own.yaml")]) == 0
    assert "own.yaml --trainer SAGE\n" in capsys.readouterr().out


def test_without_clients_they_are_dealt_evenly_and_an_index_file_keeps_them(
    scans: Path, tmp_path: Path
) -> None:
    words = ("--images", str(scans / "all.csv"), "--partition", "iid", "--users", "4", "--backbone",
             "tiny", "--shots", "16", "--rounds", "1", "--peft", "head", "--trainer", "SAGE")
    assert main([*words, "--output-dir", str(tmp_path / "a")]) == 0
    place = jobs.folder(tmp_path / "a") / "partition.json"
    dealt = [c["unlabelled"] for c in json.loads(place.read_text())["clients"]]
    assert sorted(map(len, dealt)) == [8, 8, 9, 9]
    assert len(set(sum(dealt, []))) == 34
    assert "at random by DATA_SEED" in notes(tmp_path / "a")
    again = [*words, "--output-dir", str(tmp_path / "b"), "FED.INDEX_FILE", str(place)]
    assert main([*again, "DATA_SEED", "7"]) == 0
    found = json.loads((jobs.folder(tmp_path / "b") / "partition.json").read_text())["clients"]
    assert [c["unlabelled"] for c in found] == dealt


@pytest.mark.parametrize(("name", "words"), [
    ("gone.png", "client 1 names 'gone.png' without a label, and the set has no such image"),
    ("3.png", "'3.png' is named twice among the images without a label"),
])
def test_an_index_file_that_names_what_is_not_there(
    name: str, words: str, scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--images", str(scans / "all.csv"), "--partition", "iid", "--users", "2", "--backbone",
            "tiny", "--shots", "16", "--rounds", "1", "--peft", "head", "--trainer", "SAGE"]
    assert main([*base, "--output-dir", str(tmp_path / "a")]) == 0
    content = json.loads((jobs.folder(tmp_path / "a") / "partition.json").read_text())
    del content["sha256"]
    names = [content["clients"][c]["unlabelled"] for c in (0, 1)]
    for some in names:
        some[:] = [other for other in some if other != "3.png"]
    names[0].append("3.png")
    names[1].append(name)
    (tmp_path / "index.json").write_text(json.dumps(seal(content)))
    last = [*base, "--output-dir", str(tmp_path / "b"), "FED.INDEX_FILE"]
    assert main([*last, str(tmp_path / "index.json")]) == 3
    assert words in " ".join(capsys.readouterr().err.split())
    assert not any((tmp_path / "b").rglob("*.jsonl"))


def test_a_pack_says_that_it_leaves_them_out(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset-config-file", str(tmp_path / "scans.yaml"), "--backbone", "tiny"]
    assert main(["data", "add", str(scans / "all.csv"), "--to", words[1], "--name", "S"]) == 0
    capsys.readouterr()
    assert main(["features", *words, "--pack", str(tmp_path / "s.pack.safetensors")]) == 0
    assert "34 images without a label were left out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("change", "words"), [
    ((",,train", ",,test"), "has no label, and it is in test: nothing can be measured on it"),
    ((",red,", ",,"), ""),
])
def test_tables_that_cannot_be_read(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str],
    words: str,
) -> None:
    text = (scans / "all.csv").read_text().replace(*change)
    if not words:
        text, words = text.replace(",green,", ",,"), "no image has a label"
    (scans / "changed.csv").write_text(text)
    assert run(scans, "changed.csv", tmp_path, "--trainer", "SAGE") == 3
    assert words in " ".join(capsys.readouterr().err.split())


def test_half_of_the_classes_and_a_flip_of_labels_are_refused(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(scans, "all.csv", tmp_path, "--trainer", "SAGE", "--subsample", "base") == 2
    assert "may show classes that this run leaves out" in " ".join(capsys.readouterr().err.split())
    attack = ("FED.HOSTILE", "1", "FED.ATTACK", "label_flip")
    assert run(scans, "all.csv", tmp_path, "--trainer", "SAGE", *attack) == 2
    assert "some of these have no label" in " ".join(capsys.readouterr().err.split())


def test_a_folder_is_without_labels_where_the_user_says_so(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = tmp_path / "birds"
    for i in range(40):
        place = top / ("jay", "owl", "unlabelled", "jay", "owl")[i % 5]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.png").write_bytes((scans / f"{i}.png").read_bytes())
    words = ["--images", str(top), "--partition", "iid", "--users", "2", "--backbone", "tiny",
             "--rounds", "1", "--peft", "head", "--trainer", "SAGE"]
    assert main([*words, "--output-dir", str(tmp_path / "a")]) == 3
    assert "DATASET.UNLABELLED unlabelled" in " ".join(capsys.readouterr().err.split())
    said = [*words, "--output-dir", str(tmp_path / "b"), "DATASET.UNLABELLED"]
    assert main([*said, "unlabelled"]) == 0
    assert "8 images without a label at 2 clients" in notes(tmp_path / "b")
    assert "2 classes (all)" in notes(tmp_path / "b")
    assert main([*said, "unknown"]) != 0


def test_what_needs_every_label_refuses(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(scans, "all.csv", tmp_path / "a", "--trainer", "SAGE") == 0
    place = jobs.folder(tmp_path / "a")
    capsys.readouterr()
    words = ["--images", str(scans / "all.csv"), "--clients-by", "hospital", "--backbone", "tiny"]
    for command in (["forget", str(place), "--client", "0"],
                    ["site", "make", "--split", "0,1-2", "--to", str(tmp_path / "s"), *words]):
        assert main(command) == 2
        assert "some of these have no label" in " ".join(capsys.readouterr().err.split())
