"""Runs on texts over a small BERT: heads and LoRA, from folders to results that verify."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from tests import jobs
from tests.models.bert import TOPICS, texts_of, write_bert, write_news


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_bert(folder / "bert")
    write_news(folder / "20news-bydate")
    lines = [json.dumps({"text": text, "label": topic, "split": part, "site": f"s{i % 2}"})
             for part, seed in (("train", 0), ("test", 1)) for topic in TOPICS
             for i, text in enumerate(texts_of(topic, 8, seed))]
    (folder / "my_texts").mkdir()
    (folder / "my_texts" / "table.jsonl").write_text("\n".join(lines))
    return folder


def words(place: Path, output: Path, *more: str, dataset: str = "20news",
          users: str = "3") -> list[str]:
    return ["--dataset", dataset, "--root", str(place), "--backbone",
            f"transformers-text:{place / 'bert'}", "--num-users", users, "--rounds", "6",
            "--output-dir", str(output), *more, "INPUT.TEXT_LENGTH", "24"]


@pytest.mark.parametrize(("trainer", "peft"), [
    ("FedAvg", "head"), ("Thorki", "head"), ("Thorki", "head+lora"), ("FedPer", "head+lora"),
])
def test_a_head_and_lora_learn_topics(
    trainer: str, peft: str, place: Path, tmp_path: Path
) -> None:
    more = ("--lr", "0.05", "OPTIM.NAME", "sgd") if peft == "head" else ()
    assert main(words(place, tmp_path, "--trainer", trainer, "--peft", peft, "--partition", "iid",
                      "--shots", "16", "--batch-size", "8", *more)) == 0
    results, folder = jobs.results(tmp_path), jobs.folder(tmp_path)
    assert results["last"]["personal"] > 75  # of three topics, equally many texts each
    assert "zero_shot" not in results["references"]
    assert results["references"]["logreg"]["personal"] > 75
    said = (folder / "log.txt").read_text()
    assert "there is no zero-shot reference" in said and "first 24 tokens" in said
    assert main(["verify", str(folder), "--replay", "1"]) == 0


def test_a_table_with_clients(place: Path, tmp_path: Path) -> None:
    assert main(words(place, tmp_path, "--trainer", "FedAvg", "--peft", "head", "--clients-by",
                      "site", "DATASET.SPLIT_FILE", "table.jsonl",
                      dataset="custom_texts", users="2")) == 0
    assert len(jobs.results(tmp_path)["last"]["clients"]) == 2


@pytest.mark.parametrize(("more", "says", "code"), [
    (("--trainer", "Thorki", "--peft", "head", "TRAINER.THORKI.SMALL", "tower"),
     "reads pixels, and the samples are texts", 2),
    (("--trainer", "PromptFL"), "has no text tower", 2),
    (("--trainer", "FedAvg", "--peft", "head", "--views", "2"), "no augmented views", 2),
    (("--trainer", "FedAvg", "--peft", "head", "FED.HOSTILE", "0.3", "FED.ATTACK", "backdoor",
      "FED.PLAIN", "True"), "choose another attack", 2),
    (("--trainer", "FedAvg", "--peft", "head", "--backbone", "tiny"), "these samples are texts", 2),
    (("--trainer", "FedAvg", "--peft", "head", "DATASET.CORRUPTION", "gaussian_noise:5"),
     "the samples of TwentyNewsgroups are texts: leave it out", 2),
    (("--trainer", "FedAvg", "--peft", "head", "--clients-by", "nobody"),
     "name a column of a table of its texts", 2),
    (("--trainer", "FedAvg", "--peft", "head", "--labels", "a,b"), "a table of your own texts", 2),
    (("--trainer", "FedAvg", "--peft", "head", "DATASET.UNLABELLED", "none"),
     "names a folder of texts without labels", 2),
    (("--trainer", "FedAvg", "--peft", "head", "DATASET.LEAVE_OUT", "sci.spce"),
     "20news-bydate has no such folder; did you mean 'sci.space'?", 2),
    (("--trainer", "FedAvg", "--peft", "head", "--num-users", "500"),
     "train texts cannot give 500 clients", 2),
    (("--trainer", "FedAvg", "--peft", "head", "DATASET.SERVER_HOLDOUT", "900"),
     "validation texts for the clients and the server", 2),
    (("--trainer", "FedAvg", "--peft", "head", "DATASET.SPLIT_FILE", "no.csv"),
     "or leave DATASET.SPLIT_FILE out to read class folders of texts", 3),
])
def test_what_needs_images_is_refused(
    more: tuple[str, ...], says: str, code: int, place: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words(place, tmp_path, *more)) == code
    assert says in capsys.readouterr().err
    assert not any(tmp_path.rglob("*.jsonl"))


def test_an_export_says_that_it_holds_pixels(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(place, tmp_path / "run", "--trainer", "FedAvg", "--peft", "head")) == 0
    folder = jobs.folder(tmp_path / "run")
    to = ("--to", str(tmp_path / "out"), "--client", "0", "--format", "safetensors")
    assert main(["export", str(folder), *to]) == 2
    assert "this one reads texts" in capsys.readouterr().err
