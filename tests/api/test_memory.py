"""``fedvlm.train(data=...)``: from datasets in memory to a run that needs them no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from yacs.config import CfgNode

import fedvlm
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.job import inputs
from fedvlm.job import run as job_run
from tests import jobs
from tests.data.memory.toys import NAMES, Pairs, Table, pixels, rows

SMALL: dict[str, Any] = {
    "classnames": NAMES, "trainer": "FedAvg", "backbone": "tiny", "rounds": 2, "local_epochs": 1,
    "name": "balls",
}


def clients() -> dict[str, tuple[Pairs, Pairs]]:
    return {"north": (Pairs(rows(1)), Pairs(rows(2))), "south": (Pairs(rows(3)), Pairs(rows(4)))}


@pytest.fixture(scope="module")
def balls(private_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A finished run over two clients in memory: its output folder, the run, their datasets."""
    output, data = tmp_path_factory.mktemp("memory"), clients()
    yield output, fedvlm.train(data=data, output_dir=output, **SMALL), data


def test_each_client_has_its_own_dataset(balls: Any) -> None:
    _, run, data = balls
    index = json.loads((run.path / "partition.json").read_text())
    assert [c["domain"] for c in index["clients"]] == ["north", "south"]
    assert index["clients"][1]["train"] == [f"south/train/{i:07d}" for i in range(6)]
    assert run.clients == 2 and run.classnames == tuple(NAMES)
    reads = [one.reads for pair in data.values() for one in pair]
    assert reads == [12] * 4  # each image with its label, and once to be encoded


def test_the_run_needs_its_data_no_more(balls: Any, tmp_path: Path) -> None:
    _, run, _ = balls
    model = fedvlm.load(run.path).client(1)
    said = model.predict([pixels(7, 0), Image.fromarray(pixels(7, 2))])
    assert said.probabilities.shape == (2, 3)
    assert model.export(tmp_path / "model").difference < 1e-5
    photos = tmp_path / "photos"
    for i, (image, label) in enumerate(rows(2)):
        (photos / NAMES[label]).mkdir(parents=True, exist_ok=True)
        image.save(photos / NAMES[label] / f"{i}.png")
    assert main(["evaluate", str(run.path), "--images", str(photos), "--client", "0"]) == 0


def test_a_client_has_the_name_of_its_dataset(balls: Any) -> None:
    run = fedvlm.load(balls[1].path)
    assert run.client_names == ("north", "south")
    assert run.client("south").owner == run.client(1).owner == "client 1 of 2 (from 0)"
    assert list(run.named("north")) == ["client-0"]
    with pytest.raises(ConfigError, match="no client nort: clients are numbered 0 to 1, named "
                                          "north, south; did you mean 'north'"):
        run.client("nort")


@dataclass(frozen=True)
class Dealt:
    clients: list[Any]
    client_names: Any = ()


@pytest.mark.parametrize(("names", "known"), [
    (["north", "1st"], ["north", "1st"]), (["1", "2"], []), (["north", "7"], []),
], ids=["words", "numbers", "mixed"])
def test_a_name_that_is_a_number_is_none(
    names: list[str], known: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--client 1`` is the second client, and not the one whose dataset was given as 1."""
    monkeypatch.setattr(inputs, "build_federation", lambda *_: Dealt(
        [SimpleNamespace(domain=name) for name in names]))
    given: Any = SimpleNamespace(named=True, read=lambda *_: None)
    assert inputs.GivenInputs(given).data(CfgNode(), None).client_names == known


def test_the_same_data_are_the_same_run_and_others_are_refused(balls: Any) -> None:
    output, run, _ = balls
    tables = {n: tuple(Table.of(one.rows) for one in pair) for n, pair in clients().items()}
    again = fedvlm.train(data=tables, output_dir=output, **{**SMALL, "classnames": None})
    assert again.path == run.path and len(list(output.rglob("results.json"))) == 1
    other = clients()
    other["south"][0].rows[0] = (pixels(9, 0), 0)
    with pytest.raises(ConfigError, match="holds another run.*images: "):
        fedvlm.train(data=other, output_dir=output, **SMALL)
    other = clients()
    other["south"][0].rows[0] = (other["south"][0].rows[0][0], 1)
    with pytest.raises(ConfigError, match="holds another run.*data: "):
        fedvlm.train(data=other, output_dir=output, **SMALL)


def test_a_run_goes_on_where_it_was_stopped(
    balls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = job_run.RunFolder.save_state

    def stop(self: Any, round_: int, *rest: Any) -> None:
        real(self, round_, *rest)
        if round_ == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job_run.RunFolder, "save_state", stop)
        with pytest.raises(KeyboardInterrupt):
            fedvlm.train(data=clients(), output_dir=tmp_path, **SMALL)
    capsys.readouterr()
    fedvlm.train(data=clients(), output_dir=tmp_path, **SMALL)
    told = capsys.readouterr().out
    assert "resuming after round 1" in told
    assert "24 from the cache" in told  # features by content, not by file
    jobs.same(tmp_path, balls[0])


def test_the_command_line_says_where_the_data_are(
    balls: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["DATASET.NAME", "balls", "DATASET.FORMAT", "memory", "FED.PARTITION", "iid"]
    assert main(["run", "--backbone", "tiny", "--output-dir", str(tmp_path), *words]) == 2
    assert "fedvlm.train(data=...) again" in capsys.readouterr().err
    plan = tmp_path / "balls.yaml"
    plan.write_text("DATASET:\n  NAME: balls\n  FORMAT: memory\n")
    assert main(["sweep", "--datasets", str(plan), "--trainers", "FedAvg", "--backbone", "tiny",
                 "--output-dir", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "fedvlm.train(data=...) again" in told and "--images FOLDER" in told


@pytest.mark.parametrize(("more", "error", "sentence"), [
    ({"demo": True}, ConfigError, 'drop demo; backbone="tiny" is embedded'),
    ({"dataset": "eurosat"}, ConfigError, "data= already defines the images: drop dataset"),
    ({"data": None, "demo": True}, ConfigError, "classnames needs data in memory"),
    ({"partition": "iid"}, ConfigError, "partition='iid' deals one dataset"),
    ({"data": {"a": (rows(1), [(pixels(0, 0), 5)])}}, DataError,
     "client 'a', test image 0: label 5 is none of 0 to 2"),
    ({"data": {"a": (rows(1), [((torch.rand(3, 8, 8) - 0.5) * 4, 0)])}}, DataError,
     "client 'a', test image 0: an image tensor of float32 goes from 0 to 1"),
    ({"data": {"a": (rows(1), [(np.zeros((3, 8, 8), np.uint8), 0)])}}, DataError,
     "client 'a', test image 0: an image array is [H, W]"),
])
def test_mistakes_get_a_sentence(
    more: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        fedvlm.train(**{"data": clients(), "output_dir": tmp_path, **SMALL, **more})
    assert sentence in str(caught.value)
    assert not list(tmp_path.iterdir())
