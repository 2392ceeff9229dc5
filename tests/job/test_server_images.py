"""The server's images in a whole run: four sources, their notes, mistakes, no way back."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.data.images import ImageLoader
from fedvlm.federation.batches import SplitBatcher
from fedvlm.federation.server import Held
from fedvlm.job.build import Built, build_run
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.models.features.sources import FeatureSource, PixelSource
from tests import jobs
from tests.data.miniatures.own import write_tree

NODE = "TRAINER.HEART-PFL"
FAST = [f"{NODE}.AKT_STEPS", "2", f"{NODE}.AKT_BATCH", "4", f"{NODE}.AKT_ATTACK_STEPS", "1",
        f"{NODE}.AKT_ROUNDS", "1.0", f"{NODE}.AKT_GATE", "none"]
HEART = ("--trainer", "HEART-PFL")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "loose", ["a", "b"], ["x"], 4)


def options(source: str, folder: Path) -> list[str]:
    if source == "holdout":
        return ["DATASET.SERVER_HOLDOUT", "2"]
    return [f"{NODE}.AKT_PROXY", source.format(folder=folder)]


def built(output: Path, *opts: str, trainer: tuple[str, ...] = HEART) -> Built:
    words = [*jobs.argv(output, *trainer), "--opts", *FAST[: 10 * (trainer == HEART)], *opts]
    return build_run(resolve(parse(words)).jobs[0].cfg, pixels=True)


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("source", [
    "holdout", *(pytest.param(source, marks=pytest.mark.slow)
                 for source in ("folder:{folder}", "dataset:new_nouns", "clients")),
])
def test_a_run_with_each_source(source: str, tmp_path: Path, folder: Path, capsys: Any) -> None:
    assert jobs.run(tmp_path, *HEART, "--opts", *FAST, *options(source, folder)) == 0
    record = json.loads((jobs.folder(tmp_path) / "results.json").read_text())
    kept, typed = source.format(folder=folder.name), source.format(folder=folder)
    assert record["protocol"]["proxy"] == kept and kept in record["protocol"]["extra_data"]
    assert record["protocol"]["server_holdout"] == 2 * (source == "holdout")
    assert any(f"({kept}), digest " in note for note in record["run_info"]["notes"])
    assert str(folder) not in json.dumps(record)
    assert [("akt" in r["aggregation"]) for r in jobs.records(tmp_path)] == [False, True, True]
    said = capsys.readouterr().out
    assert f"extra data: {record['protocol']['extra_data'].replace(kept, typed)}" in said
    assert f"({typed}), digest " in said
    assert ("-server2-" in str(jobs.folder(tmp_path))) is (source == "holdout")
    partition = json.loads((jobs.folder(tmp_path) / "partition.json").read_text())
    assert len(partition.get("server", ())) == 20 * (source == "holdout")


def test_pixels_are_the_loaders(tmp_path: Path, folder: Path) -> None:
    for source in ("holdout", "clients"):
        run = built(tmp_path, *options(source, folder), "INPUT.VIEWS", "3")
        indices = run.data.server
        if source == "clients":
            indices = sorted({int(i) for c in run.data.clients for i in c.val})
        proxy = run.federation.proxy
        assert proxy is not None and proxy.source == source and len(proxy) == len(indices) == 20
        assert torch.equal(proxy.pixels(torch.arange(20)), run.loader.batch(indices))
        assert proxy.labels.tolist() == run.data.labels[indices].tolist()
    assert len(built(tmp_path, *options("folder:{folder}", folder)).federation.proxy) == 8


def test_all_methods_have_the_same_data(tmp_path: Path) -> None:
    runs = [
        built(tmp_path, "DATASET.SERVER_HOLDOUT", "2", trainer=("--trainer", name))
        for name in ("HEART-PFL", "FedAvg")
    ]
    assert runs[0].data.digest == runs[1].data.digest
    assert runs[0].federation.proxy is not None and runs[1].federation.proxy is None
    assert "proxy" in runs[0].identity and "proxy" not in runs[1].identity


def test_the_identity_has_the_images(tmp_path: Path, folder: Path) -> None:
    first, again = (built(tmp_path, *options("folder:{folder}", folder)) for _ in range(2))
    assert first.identity == again.identity
    (folder / "a" / "x" / "0.png").write_bytes((folder / "b" / "x" / "3.png").read_bytes())
    assert built(tmp_path, *options("folder:{folder}", folder)).identity != first.identity


def test_copies_of_the_clients_images_are_said(tmp_path: Path) -> None:
    run = built(tmp_path, "DATASET.SERVER_HOLDOUT", "2")
    one = tmp_path / "copy"
    one.mkdir()
    for name, i in (("client", run.data.clients[0].train[0]), ("test", run.data.global_test[0])):
        (one / f"{name}.png").write_bytes(run.data.samples[i].path.read_bytes())
    notes = built(tmp_path, f"{NODE}.AKT_PROXY", f"folder:{one}").notes
    assert any("2 of the server's images" in n and "are identical to training "
                                                   "images" in n for n in notes)


@pytest.mark.parametrize(("opts", "said"), [
    ([f"{NODE}.AKT", "yes"], "AKT yes: the server has no images of its own"),
    ([f"{NODE}.AKT_PROXY", "folder:/nowhere"], "/nowhere does not exist"),
    ([f"{NODE}.AKT_PROXY", "dataset:digit"], "did you mean 'digits'"),
    ([f"{NODE}.AKT_PROXY", "dataset:shapes"], "that is the run's own set"),
    ([f"{NODE}.AKT_PROXY", "val"], "must be holdout, dataset:NAME, folder:DIR or clients"),
    ([f"{NODE}.AKT_PROXY", "clients", "DATASET.VAL_SHOTS", "0"], "no client has validation images"),
    ([f"{NODE}.AKT_PROXY", "dataset:digits", f"{NODE}.AKT_LABELS", "true"], "have no label"),
    (["DATASET.SERVER_HOLDOUT", "99"], "would lose its last one"),
])
def test_mistakes_are_told_before_images_are_encoded(
    opts: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise AssertionError("encoded images first")

    monkeypatch.setattr("fedvlm.job.build.image_sources", no)
    assert jobs.run(tmp_path, *HEART, "--opts", *opts) in (ConfigError.exit_code, 3)
    assert said in capsys.readouterr().err


def reachable(root: object) -> list[object]:
    """Return all objects that can be had from ``root`` without its module's globals."""
    seen, todo = {id(root): root}, [root]
    while todo:
        for other in gc.get_referents(todo.pop()):
            skip = (type, ModuleType, FunctionType)
            if id(other) not in seen and not isinstance(other, skip):
                seen[id(other)] = other
                todo.append(other.__self__ if isinstance(other, MethodType) else other)
    return list(seen.values())


@pytest.mark.parametrize("source", ["holdout", "folder:{folder}", "dataset:new_nouns"])
def test_the_servers_context_is_no_way_to_the_clients_images(
    source: str, tmp_path: Path, folder: Path
) -> None:
    run = built(tmp_path, *options(source, folder))
    assert run.federation.proxy is not None
    things = reachable(run.federation.server_context(1, Held()))
    assert not [x for x in things if isinstance(x, SplitBatcher | FeatureSource | PixelSource)]
    loaders = [x for x in things if isinstance(x, ImageLoader)]
    assert len(loaders) == 1 and loaders[0] is not run.loader
    server = set(run.data.server.tolist())
    others = {id(s) for i, s in enumerate(run.data.samples) if i not in server}
    paths = {s.impath for i, s in enumerate(run.data.samples) if i not in server}
    assert not others & {id(x) for x in things}
    assert not paths & {x for x in things if isinstance(x, str)}
