"""``fedvlm.train``: keyword arguments are the flags' names, and the run comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedvlm
from fedvlm.api.start import run_words
from fedvlm.core.errors import ConfigError
from fedvlm.job.flags import parse
from tests import jobs

SMALL: dict[str, Any] = {
    "demo": True, "partition": "disjoint", "shots": 2, "rounds": 2, "num_users": 2,
    "local_epochs": 1,
}


def test_a_trained_run_is_the_command_s(quick_run: Path, tmp_path: Path) -> None:
    run = fedvlm.train(**SMALL, output_dir=tmp_path)
    assert run.path == jobs.folder(tmp_path) and run.clients == 2
    jobs.same(tmp_path, quick_run)
    again = fedvlm.train(**SMALL, output_dir=str(tmp_path), trainer=None)  # finished: only loaded
    assert again.path == run.path
    assert again.client(1).classnames == run.classnames


def test_words_are_those_of_a_command_line() -> None:
    words = run_words({
        "rounds": 3, "num_users": 2, "demo": True, "keep_logits": False,
        "targets": ["dtd", "shapes"], "beta": 0.3, "weights": Path("w.pt"), "trainer": None,
        "opts": {"OPTIM.LR": 0.1},
    })  # fmt: skip
    args = parse(words)
    assert args.flags == {
        "FED.ROUNDS": "3", "FED.CLIENTS": "2", "TEST.KEEP_LOGITS": "false",
        "TEST.TARGETS": "dtd,shapes", "FED.BETA": "0.3", "MODEL.INIT_WEIGHTS": "w.pt",
    }
    assert args.demo and args.opts == ["OPTIM.LR", "0.1"]


@pytest.mark.parametrize(("flags", "sentence"), [
    ({"ruonds": 3}, "train() has no argument 'ruonds'; did you mean 'rounds'?"),
    ({"trainer": dict}, 'and pass trainer="./mine.py:dict"'),
    ({"dry_run": True}, "train() has no argument 'dry_run': use `fedvlm run --dry-run`"),
    ({"seeds": [1, 2]}, "train() has no argument 'seeds': call train once for each seed"),
    ({"demo": "yes"}, "demo must be True or False, not 'yes'"),
    ({"opts": ["OPTIM.LR", 1]}, "opts must be a mapping"),
    ({"rounds": "three", "demo": True}, "flag --rounds"),
    ({}, "no dataset given"),
])  # fmt: skip
def test_mistakes_get_a_sentence(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fedvlm.train(**flags)
    assert sentence in str(caught.value)


def test_what_there_is_by_name() -> None:
    methods = fedvlm.trainers()
    assert "FedTV" in methods and len(methods) >= 26 and all(methods.values())
    assert {"eurosat", "shapes"} <= set(fedvlm.datasets())
