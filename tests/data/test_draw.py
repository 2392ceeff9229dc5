"""What a run takes of a set. One domain left out: whatever the kind, no client holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.draw import DatasetDraw, spec_of
from fedvlm.data.federated import FederatedData, build_federation
from tests.data.miniatures.own import config, own_split, write_split, write_tree
from tests.data.partition.pools import KINDS

DOMAINS = ["art", "Real World", "sketch"]
CLASSES = ["beaver", "dolphin", "otter", "apple"]  # known superclasses


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("domains")
    write_tree(folder / "mine", DOMAINS, CLASSES, 16)
    return folder


def keys(**given: Any) -> dict[str, Any]:
    return {
        "DATASET__DIR": "mine", "DATASET__FORMAT": "domains", "FED__CLIENTS": 4,
        "FED__HELD_OUT_DOMAIN": "Real World",
    } | given  # fmt: skip


def make(root: Path, **given: Any) -> FederatedData:
    return build_federation(config(root, root / "cache", **keys(**given)))


def held(data: FederatedData) -> list[int]:
    return [int(i) for c in data.clients for part in (c.train, c.val, c.test) for i in part]


@pytest.mark.parametrize("shots", [-1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_no_client_holds_it(root: Path, kind: str, shots: int) -> None:
    data = make(root, FED__PARTITION=kind, DATASET__NUM_SHOTS=shots)
    assert data.domain_names == sorted(DOMAINS)
    out = data.domain_names.index("Real World")
    assert out not in set(data.domains[held(data)]) | set(data.domains[data.global_test])
    if "domain" in kind:
        assert [c.domain for c in data.clients] == ["art", "art", "sketch", "sketch"]
    assert data.spec.held_out == "Real World"
    trained = [i for c in data.clients for i in c.train]
    whole = make(root, FED__PARTITION=kind, FED__HELD_OUT_DOMAIN="", FED__CLIENTS=3)
    if shots < 0:  # two thirds of the set, each image once
        assert len(trained) == len(set(trained)) == sum(len(c.train) for c in whole.clients) * 2 / 3
    elif kind == "disjoint":  # all shots come from what is left
        assert np.bincount(data.labels[trained]).tolist() == [2] * 4


@pytest.mark.parametrize("half", ["all", "base"])
def test_the_positions_left_for_unseen(root: Path, half: str) -> None:
    cfg = config(root, root / "cache", **keys(DATASET__SUBSAMPLE_CLASSES=half))
    selection = DatasetDraw(load_dataset(cfg), spec_of(cfg))
    assert selection.held_out == selection.data.domain_names.index("Real World")
    images = [selection.data.test[i] for i in selection.unseen]
    assert {d.domain for d in images} == {selection.held_out}
    assert {d.label for d in images} == set(selection.map)
    every = [d for d in selection.data.test if d.domain == selection.held_out]
    assert len(images) == len(every) // (1 if half == "all" else 2)
    assert selection.pool.domain_names == ["art", "sketch"]
    cfg.FED.HELD_OUT_DOMAIN = ""
    whole = DatasetDraw(load_dataset(cfg), spec_of(cfg))
    assert whole.held_out is None and len(whole.unseen) == 0


def test_new_classes_are_of_the_domains_left(root: Path) -> None:
    data = make(root, DATASET__SUBSAMPLE_CLASSES="base", FED__CLIENTS=2)
    assert len(data.new_test) > 0
    assert data.domain_names.index("Real World") not in set(data.domains[data.new_test])


def test_unknown_domains_are_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'sketch'.*known: .*Real World"):
        make(root, FED__HELD_OUT_DOMAIN="sketsh")
    write_split(tmp_path / "mine", ["a", "b"], {"train": 2, "val": 1, "test": 1})
    with pytest.raises(ConfigError, match="unknown FED.HELD_OUT_DOMAIN 'art'.*has no domains"):
        build_federation(own_split(tmp_path, tmp_path / "c", FED__HELD_OUT_DOMAIN="art"))
    write_tree(tmp_path / "one" / "mine", ["art"], ["a", "b"], 4)
    only = config(tmp_path / "one", tmp_path / "c", **keys(FED__HELD_OUT_DOMAIN="art"))
    with pytest.raises(ConfigError, match="no other domain; leave it empty"):
        build_federation(only)


def test_the_digest_says_which(root: Path) -> None:
    spelt = [make(root, FED__HELD_OUT_DOMAIN=name) for name in ("Real World", "real_world")]
    others = [make(root, FED__HELD_OUT_DOMAIN=name) for name in ("", "sketch")]
    assert spelt[0].digest == spelt[1].digest
    assert len({d.digest for d in (spelt[0], *others)}) == 3
    assert "held_out" not in others[0].index_file()["spec"]


def test_an_index_file_keeps_it(root: Path, tmp_path: Path) -> None:
    data = make(root)
    path = tmp_path / "partition.json"
    path.write_text(json.dumps(data.index_file()))
    assert make(root, FED__INDEX_FILE=str(path)).digest == data.digest
    with pytest.raises(ConfigError, match="FED.HELD_OUT_DOMAIN is 'art'.*'Real World'; set it"):
        make(root, FED__INDEX_FILE=str(path), FED__HELD_OUT_DOMAIN="art")
