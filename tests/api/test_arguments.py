"""The typed keywords of ``train`` are the flags of a run."""

from __future__ import annotations

from typing import get_type_hints

import pytest

import fedvlm
from fedvlm.api.arguments import TrainArguments
from fedvlm.api.start import NOT_HERE, run_words
from fedvlm.core.errors import ConfigError
from fedvlm.job.flags import FLAGS

OWN = {"classnames", "columns"}  # parameters of ``train`` itself


def test_every_flag_that_makes_a_run_is_typed_and_no_other() -> None:
    wanted = {flag.names[0].removeprefix("--").replace("-", "_") for flag in FLAGS
              if flag.dest not in NOT_HERE} - OWN
    hints = get_type_hints(TrainArguments)
    assert hints.keys() == wanted
    switches = {flag.names[0].removeprefix("--").replace("-", "_") for flag in FLAGS
                if flag.kind == "switch"} & wanted
    assert {name for name, hint in hints.items() if hint == bool | None} == switches
    assert "TrainArguments" in str(fedvlm.train.__annotations__["flags"])


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="no argument 'rouns'; did you mean 'rounds'"):
        run_words({"rouns": 2})
