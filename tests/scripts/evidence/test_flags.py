"""Mistakes in the flags that several commands share are sentences, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence.commands import main


@pytest.mark.parametrize(("words", "says"), [
    (["map", "{file}", "--table-only"], "FOLDER {file}: {file} is a file"),
    (["map", "{folder}", "--table-only", "--runs", "{file}/x"], "--runs {file}/x: {file} is a f"),
    (["methods", "{file}/x", "--table-only"], "FOLDER {file}/x: {file} is a file"),
    (["gpu-hour", "{file}", "--pretend"], "FOLDER {file}: {file} is a file"),
    (["map", "{folder}", "--sets", "EuroSat", "--table-only"], "did you mean 'EuroSAT'"),
    (["methods", "{folder}", "--only", "map-head", "--table-only"], "did you mean 'map-heads'"),
    (["gpu-hour", "{folder}", "--only", "cart"], "--only has no 'cart'; did you mean 'card'"),
    (["map", "{folder}", "--root", "x"], "give --root and --backbone, or --table-only"),
    (["methods", "{folder}"], "give --backbone, or --table-only"),
])
def test_a_mistake_is_a_sentence(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("")
    assert main([word.format(file=file, folder=folder) for word in words]) == 2
    said = capsys.readouterr().err
    assert says.format(file=file) in said
    assert "Traceback" not in said and "unexpected" not in said
    assert not folder.exists()
