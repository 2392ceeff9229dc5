"""What ``python -m fedvlm.job.workers`` refuses; ``test_worker_processes`` has real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.job.workers.__main__ import main
from tests import jobs


def test_a_worker_wants_a_run_and_the_socket_of_its_server(
    quick_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="names no method"):
        main([str(tmp_path / "no"), str(tmp_path), "--handle", "7"])
    with pytest.raises(ConfigError, match="--handle 999 is not a socket: workers are started "
                                          "only by a run"):
        main([str(jobs.folder(quick_run)), str(tmp_path), "--handle", "999"])
