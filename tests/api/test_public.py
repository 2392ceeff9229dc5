"""The public names: there, lazy, cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedvlm

PROBE = """
import sys, time
began = time.process_time()
import fedvlm
spent = time.process_time() - began
assert not {"torch", "numpy", "yacs", "pandas"} & set(sys.modules), "not lazy"
assert set(fedvlm.__all__) <= set(dir(fedvlm))
print(spent)
"""


def test_importing_is_cheap_and_loads_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60,
    )
    assert float(done.stdout) < 0.1


def test_every_public_name_is_there_and_documented() -> None:
    for name in fedvlm.__all__:
        assert getattr(fedvlm, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        fedvlm.trian  # noqa: B018
