"""Shots from a file: CoOp's pickle and our JSON give the run that the draw gives."""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from yacs.config import CfgNode

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.federated import FederatedData, build_federation
from tests import jobs
from tests.data.miniatures.own import own_split, write_split

CLASSES = ["cat", "dog", "owl", "fox"]
SHOTS = {"DATASET__NUM_SHOTS": 2, "DATASET__SUBSAMPLE_CLASSES": "base"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fewshot")
    write_split(root / "mine", CLASSES, {"train": 5, "val": 3, "test": 2})
    return root


def with_file(root: Path, name: str, **keys: Any) -> CfgNode:
    cfg = own_split(root, root / "cache", **(SHOTS | keys))
    cfg.DATASET.FEWSHOT_FILE = name
    return cfg


def every_class(root: Path, seed: int = 1) -> FederatedData:
    return build_federation(own_split(root, root / "cache", DATASET__NUM_SHOTS=2, DATA_SEED=seed))


def drawn_keys(root: Path, seed: int = 1) -> dict[str, list[str]]:
    """What CoOp's draw of 2 shots takes, of all classes."""
    data = every_class(root, seed)
    return {
        part: [data.samples[i].key for c in data.clients for i in getattr(c, part)]
        for part in ("train", "val")
    }


def coop_pickle(path: Path, keys: dict[str, list[str]], labels: dict[str, int]) -> None:
    """Dassl's own shape: objects of ``dassl.data.datasets.base_dataset.Datum``."""
    module = types.ModuleType("dassl.data.datasets.base_dataset")

    class Datum:
        def __init__(self, impath: str, label: int, classname: str) -> None:
            self._impath, self._label = impath, label
            self._domain, self._classname = 0, classname

    Datum.__module__, Datum.__qualname__ = module.__name__, "Datum"
    module.Datum = Datum  # type: ignore[attr-defined]
    names = ["dassl", "dassl.data", "dassl.data.datasets", module.__name__]
    patch = pytest.MonkeyPatch()
    for name in names:
        patch.setitem(sys.modules, name, module)
    try:
        content = {
            part: [Datum(f"/home/me/DATA/mine/images/{k}", labels[k], k.split("/")[0]) for k in ks]
            for part, ks in keys.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL))
    finally:
        patch.undo()


def labels_of(root: Path) -> dict[str, int]:
    data = load_dataset(own_split(root, root / "cache"))
    return {datum.key: datum.label for datum in data.all()}


def test_the_file_of_the_drawn_shots_gives_the_drawn_run(root: Path) -> None:
    plain = build_federation(own_split(root, root / "cache", **SHOTS))
    keys = drawn_keys(root)
    coop_pickle(root / "mine/split_fewshot/shot_2-seed_1.pkl", keys, labels_of(root))
    (root / "mine/shots.json").write_text(json.dumps(keys))
    for name in ("split_fewshot/shot_2-seed_1.pkl", "shots.json", str(root / "mine/shots.json")):
        data = build_federation(with_file(root, name))
        assert data.digest == plain.digest and data.index_file() == plain.index_file()
        assert [n for n in data.notes if n not in plain.notes] == [
            f"shots read from {Path(name).name}, not drawn by the data seed"
        ]


def test_other_shots_give_another_run_and_the_data_seed_deals_the_same_ones(root: Path) -> None:
    (root / "mine/other.json").write_text(json.dumps(drawn_keys(root, seed=2)))
    plain = build_federation(own_split(root, root / "cache", **SHOTS))
    data = build_federation(with_file(root, "other.json"))
    assert data.digest != plain.digest
    again = build_federation(with_file(root, "other.json", DATA_SEED=7))
    used = [{d.samples[i].key for c in d.clients for i in c.train} for d in (data, again)]
    assert used[0] == used[1]


def test_rows_with_labels_and_a_file_without_val(root: Path) -> None:
    labels, keys = labels_of(root), drawn_keys(root)["train"]
    rows = [[key, labels[key], key.split("/")[0]] for key in keys]
    (root / "mine/rows.json").write_text(json.dumps({"train": rows}))
    data = build_federation(with_file(root, "rows.json"))
    assert all(len(c.train) and not len(c.val) for c in data.clients)


def refused(root: Path, content: Any, says: str, kind: type[FedvlmError] = DataError) -> None:
    (root / "mine/bad.json").write_text(json.dumps(content))
    with pytest.raises(kind, match=says) as caught:
        build_federation(with_file(root, "bad.json"))
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_a_file_is_said(root: Path) -> None:
    keys = drawn_keys(root)
    train, first = keys["train"], keys["train"][0]
    test = f"{first.split('/')[0]}/9.png"  # images 8 and 9 of a class are its test images
    cases: list[tuple[Any, str]] = [
        ([], "an object with lists under train and val"),
        ({"train": []}, "an object with lists"),
        ({"train": "x"}, "an object with lists"),
        ({"train": train, "val": 3}, "an object with lists"),
        ({"train": [*train[1:], test]}, "not in the train list .* it is in the test list"),
        ({"train": [*train[1:], "zoo/1.png"]}, "'zoo/1.png' is not in the train list of MySet; "),
        ({"train": [*train[1:], f"zoo/{first}"]}, "is not in the train list"),
        ({"train": [*train, first]}, f"'{first}' is named twice"),
        ({"train": train[1:]}, r"1 train image.s. of class .* DATASET.NUM_SHOTS 2 asks for 2"),
        ({"train": [[first, 9, "x"], *train[1:]]}, "has label 9 there but . in MySet"),
        ({"train": [5, *train[1:]]}, r"train\[0\]: a row is a path"),
        ({"train": [[first, "0"], *train[1:]]}, r"train\[0\]: a row is a path"),
        ({"train": [[first, None], *train[1:]]}, r"train\[0\]: a row is a path"),
    ]
    for content, says in cases:
        refused(root, content, says)


def test_the_number_of_shots_is_the_configs(root: Path) -> None:
    (root / "mine/two.json").write_text(json.dumps(drawn_keys(root)))
    with pytest.raises(DataError, match="DATASET.NUM_SHOTS 4 asks for 4"):
        build_federation(with_file(root, "two.json", DATASET__NUM_SHOTS=4))
    with pytest.raises(DataError, match="DATASET.VAL_SHOTS 1 asks for 1"):
        build_federation(with_file(root, "two.json", DATASET__VAL_SHOTS=1))
    for keys, says in (
        ({"DATASET__NUM_SHOTS": -1}, "needs DATASET.NUM_SHOTS"),
        ({"FED__PARTITION": "iid"}, "every client draws its own shots"),
    ):
        with pytest.raises(ConfigError, match=says):
            build_federation(with_file(root, "two.json", **keys))


def test_a_missing_file_and_an_index_file_beside_it(root: Path) -> None:
    (root / "mine/my_own_shots.json").write_text("{}")
    with pytest.raises(DataError, match=r"looked for .*mine/my_own_shot.*mean 'my_own_shots.json'"):
        build_federation(with_file(root, "my_own_shot.json"))
    index = root / "index.json"
    plain = build_federation(own_split(root, root / "cache", **SHOTS))
    index.write_text(json.dumps(plain.index_file()))
    with pytest.raises(ConfigError, match="drop one of them"):
        build_federation(with_file(root, "my_own_shots.json", FED__INDEX_FILE=str(index)))


def test_a_crafted_pickle_runs_nothing(root: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(root / "evil"), "w"))

    (root / "mine/evil.pkl").write_bytes(pickle.dumps({"train": [Evil()], "val": []}))
    with pytest.raises(DataError):
        build_federation(with_file(root, "evil.pkl"))
    assert not (root / "evil").exists()


def test_two_runs_with_the_same_shots_give_the_same_numbers(root: Path) -> None:
    keys = drawn_keys(root)
    (root / "mine/same.json").write_text(json.dumps(keys))
    words = ["run", "--root", str(root), "--backbone", "tiny", "--trainer", "PromptFL", "--rounds",
             "1", "--num-users", "2", "--shots", "2", "--local-epochs", "1"]  # fmt: skip
    more = ["DATASET.NAME", "MySet", "DATASET.DIR", "mine", "DATASET.IMAGE_DIR", "images",
            "DATASET.SPLIT_FILE", "split.json", "DATASET.SUBSAMPLE_CLASSES", "base",
            "DATA_SEED", "1"]  # fmt: skip
    for out, given in (("drawn", []), ("given", ["DATASET.FEWSHOT_FILE", "same.json"])):
        assert main([*words, "--output-dir", str(root / out), *more, *given]) == 0
    jobs.same(root / "drawn", root / "given")
