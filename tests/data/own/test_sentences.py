"""``DATASET.TEMPLATES``: several prompts, and sentences by class, from the file to the features."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.api.run import load
from fedvlm.cli.main import main
from fedvlm.core.errors import DataError, FedvlmError
from fedvlm.core.spelling import check_described, fill
from fedvlm.data.own.sentences import read_templates
from fedvlm.models.towers.adapters import TreeEdits
from fedvlm.models.towers.prompts import encode_texts
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import relative, toy

CUPL = {"red_fox": ["a fox with a red coat", "an animal of the woods", "it has a bushy tail"],
        "Blue jay": ["a blue bird"], "ours polaire": "un grand ours blanc"}
NAMES = ("red fox", "blue_jay", "ours polaire")


def table(folder: Path, body: object) -> str:
    path = folder / "sentences.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body), encoding="utf-8")
    return str(path)


def wanted(model: VLModel, sentences: list[list[str]], unit: bool = True) -> Tensor:
    """The mean over a class's sentences, one class after the other."""
    rows = []
    for some in sentences:
        features = torch.cat([encode_texts(model.backbone, [s]) for s in some])
        rows.append((F.normalize(features, dim=-1) if unit else features).mean(0))
    return F.normalize(torch.stack(rows), dim=-1)


def test_sentences_of_a_class_are_averaged_as_units(tmp_path: Path) -> None:
    templates = read_templates(table(tmp_path, CUPL))
    assert len(templates) == 3
    check_described(templates, NAMES, "f")
    model = VLModel(toy(dtype=torch.float64), NAMES, templates=templates)
    model.check_texts()
    said = [[s] if isinstance(s, str) else s for s in CUPL.values()]
    for kind, unit in (("template", True), ("raw", False)):
        assert relative(model.anchor(kind, 0), wanted(model, said, unit)) < 1e-12
    assert relative(model.anchor("raw", 0), model.anchor("template", 0)) > 1e-6
    for packed in (True, False):  # the tower that LoRA changes
        inside = VLModel(model.backbone, NAMES, templates=templates, packed=packed)
        rows = inside.adapted_text(TreeEdits("text", {}), 2)
        assert relative(rows[1], model.anchor("template", 0)) < 1e-9
    assert model.anchor("literal", 4).shape == model.anchor("template", 0).shape


def test_sentences_of_other_classes_alone_are_left_out(tmp_path: Path) -> None:
    """Three sentences of a class that the model does not have: two prompts at most are told."""
    templates = read_templates(table(tmp_path, {"cat": ["a cat"], "dog": ["a dog", "it barks"],
                                                "cow": ["a cow", "it moos", "it gives milk"]}))
    for packed in (True, False):
        model = VLModel(
            toy(dtype=torch.float64), ("cat", "dog"), templates=templates, packed=packed)
        rows = model.adapted_text(TreeEdits("text", {}), 2)
        assert relative(rows[1], model.anchor("template", 0)) < 1e-9


def test_templates_by_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("a photo of a {}.\n\n  une photo de {}\n", encoding="utf-8")
    assert read_templates(str(path)) == ["a photo of a {}.", "une photo de {}"]
    model = VLModel(toy(dtype=torch.float64), NAMES, templates=read_templates(str(path)))
    said = [[t.replace("{}", n.replace("_", " ")) for t in model.templates] for n in NAMES]
    assert relative(model.anchor("template", 0), wanted(model, said)) < 1e-12


def test_a_name_is_found_however_it_is_spelled(tmp_path: Path) -> None:
    first, *_, last = read_templates(table(tmp_path, CUPL))
    assert fill(first, "Red-Fox") == CUPL["red_fox"][0] and fill(last, "blue jay") is None
    assert fill("a {} there", "red_fox") == "a red fox there"


def test_of_sets_of_labels_the_neutral_text_is_a_plain_one(tmp_path: Path) -> None:
    templates = read_templates(table(tmp_path, CUPL))
    model = VLModel(toy(dtype=torch.float64), NAMES, templates=templates, sets=True)
    want = wanted(model, [["a photo of something."]])[0]
    assert relative(model.neutral, want) < 1e-12


@pytest.mark.parametrize(("body", "said"), [
    ("{", "is no JSON"), ({}, "has no classes"), ({"a": []}, "'a' must have a list of sentences"),
    ({"a": [1]}, "'a' must have a list"), ({"a": [" "]}, "'a' must have a list"),
    ({"red fox": ["x"], "red_fox": ["y"]}, "write the class once"),
])
def test_files_that_cannot_be_used(tmp_path: Path, body: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_templates(table(tmp_path, body))


def test_texts_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    for text, said in (("one\n", "line 1: 'one' must hold {} once"), ("\n", "has no template")):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            read_templates(str(path))
    path.write_bytes(b"\xff{}")
    with pytest.raises(DataError, match="no UTF-8"):
        read_templates(str(path))
    with pytest.raises(DataError, match="no such file"):
        read_templates(str(tmp_path / "none"))


def test_a_class_without_sentences(tmp_path: Path) -> None:
    templates = read_templates(table(tmp_path, CUPL))
    said = "no sentences for the class 'red foxes'; did you mean 'red_fox'"
    with pytest.raises(DataError, match=said):
        check_described(templates, ["red foxes"], "f")
    model = VLModel(toy(), ("red foxes", "x"), templates=templates)
    for ask in (model.check_texts, lambda: model.anchor("template", 0)):
        with pytest.raises(FedvlmError, match=said):
            ask()


def run(tmp_path: Path, *words: str) -> int:
    return main(["run", "--demo", "--rounds", "1", "--clients", "2", "--shots", "1", "--trainer",
                 "ZeroShot", "--output-dir", str(tmp_path / "out"), *words])


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("a photo of a {}.\na drawing of a {}.\n")
    assert run(tmp_path, "--opts", "DATASET.TEMPLATES", str(path)) == 0
    capsys.readouterr()
    folder = next(tmp_path.rglob("results.json")).parent
    assert load(folder).client(0).classnames
    path.write_text("a photo of a {}.\na sketch of a {}.\n")  # another file is another run
    assert run(tmp_path, "--opts", "DATASET.TEMPLATES", str(path)) != 0
    assert "repeat the existing settings" in capsys.readouterr().err
    with pytest.raises(DataError, match="other texts than when the run was made"):
        load(folder).client(0)
    cupl = table(tmp_path, {"circles": ["something round"]})
    assert run(tmp_path / "3", "--opts", "DATASET.TEMPLATES", cupl) == 3
    assert "has no sentences for the class" in capsys.readouterr().err
