"""Runs of a trial, real and tiny: no test image is read, and none of their labels matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.data.federated import FederatedData
from fedvlm.job import inputs as job_inputs
from fedvlm.job.flags import parse
from fedvlm.job.inputs import Inputs, SharedInputs
from fedvlm.job.resolve import resolve
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.tune import run
from fedvlm.sweep.tune.origin import WORDS as WORDS_OF
from fedvlm.sweep.tune.origin import Origins
from fedvlm.sweep.tune.trial import score, without_tests
from fedvlm.sweep.tune.tuned import read_tuned
from tests.sweep.tune.conftest import FakePool, trials, tuned

WORDS = ("--trainers", "FedProx", "--seeds", "101", "--rounds", "1", "--local-epochs", "1")
BUDGET = 3


def real(change: Callable[[FederatedData], FederatedData]) -> type[FakePool]:
    """Return a pool of real runs in this process, on data after a change."""
    build = job_inputs.build_federation

    def changed(*args: Any, **more: Any) -> FederatedData:
        return change(build(*args, **more))

    def answer(cell: Cell) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job_inputs, "build_federation", changed)
            return score(list(cell.words), cell.digest, inputs)

    inputs = SharedInputs()
    return type("Pool", (FakePool,), {"answer": staticmethod(answer)})


def search(output: Path, change: Callable[[FederatedData], FederatedData]) -> run.Tuning:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "Scheduler", real(change))
            return tuned(output, BUDGET, *WORDS)
    finally:
        torch.set_num_threads(threads)


def poisoned(data: FederatedData) -> FederatedData:
    """Return data whose test labels are wrong and whose test images are black."""
    tests = sorted({*data.global_test, *(i for client in data.clients for i in client.test)})
    labels, samples = data.labels.copy(), list(data.samples)
    labels[tests] = (labels[tests] + 1) % len(data.classnames)
    for i in tests:
        black = np.zeros_like(samples[i].array)
        samples[i] = replace(samples[i], label=int(labels[i]), array=black)
    return replace(data, samples=samples, labels=labels)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> run.Tuning:
    return search(tmp_path_factory.mktemp("real"), lambda data: data)


def test_a_run_says_what_it_was_made_of_as_its_search_would(searched: run.Tuning) -> None:
    cell = searched.studies[0].trials[0].cells[0]
    (job,) = resolve(parse(list(cell.words)[1:])).jobs
    today = Origins().of(job.cfg)
    assert searched.records.lines[cell.digest]["origin"] == today
    assert today.keys() == WORDS_OF.keys() and all(len(word) == 64 for word in today.values())


def test_a_real_search_scores_every_clients_validation_images(searched: run.Tuning) -> None:
    (study,) = searched.studies
    assert len(study.trials) == BUDGET and study.best is not None
    (cell,) = study.trials[0].cells
    line = searched.records.lines[cell.digest]
    assert line["roles"] == ["adapter", "head"] and line["steps"] > 0 and line["cpu"] > 0
    assert [n for _, n in line["clients"]] == [20, 20]  # half of VAL_SHOTS 4 for each class
    assert not list(searched.folder.rglob("manifest.json"))  # nothing else is kept
    assert {p.name for p in searched.folder.iterdir()} >= {"runs.jsonl", "tuned.json", "optuna.log"}


def test_poisoned_test_labels_and_images_give_the_same_choice(
    tmp_path: Path, searched: run.Tuning
) -> None:
    poison = search(tmp_path, poisoned)
    assert trials(poison) == trials(searched)
    assert choice(poison) == choice(searched)


def choice(tuning: run.Tuning) -> Any:
    return [(e["values"], e["score"], e["error"]) for e in read_tuned(tuning.tuned)["entries"]]


def test_no_validation_images_are_refused(searched: run.Tuning) -> None:
    (cell,) = searched.first["FedProx"]
    blind = real(lambda data: replace(
        data, clients=[replace(client, val=client.val[:0]) for client in data.clients]
    ))
    with pytest.raises(ConfigError, match="no validation images to tune on; set DATASET.VAL_SHOTS"):
        blind.answer(cell)


def test_a_run_sees_no_index_of_a_test_image(searched: run.Tuning) -> None:
    (cell,) = searched.first["FedProx"]
    data = Inputs().data(resolve(parse(list(cell.words[1:]))).jobs[0].cfg, None)
    bare = without_tests(data)
    assert len(data.global_test) and all(len(client.test) for client in data.clients)
    assert not len(bare.global_test) and not len(bare.new_test) and not bare.others
    assert not any(len(client.test) for client in bare.clients)
    assert [list(c.val) for c in bare.clients] == [list(c.val) for c in data.clients]
